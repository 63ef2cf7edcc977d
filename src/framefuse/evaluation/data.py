"""Dataset: pictures whose truth is known, in the order in which the pipeline will see them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from framefuse.errors import UsageError
from framefuse.prediction import FrameInfo
from framefuse.sources import Source

Key = str | int
"""What names a picture: the path of a file, or the index of a frame."""


@dataclass(frozen=True, eq=False)
class Labels:
    """The truth of one picture: n objects, in pixels of the picture as it is shown."""

    xyxy: NDArray[np.float64]
    """(n, 4): x1, y1, x2, y2."""
    class_id: NDArray[np.int64]
    """(n,) numbers of `Dataset.names`."""
    crowd: NDArray[np.bool_]
    """(n,): a region that holds an unknown number of objects; what is found in it counts neither way."""
    area: NDArray[np.float64]
    """(n,) pixels; it decides whether an object is small, medium or large."""
    size: tuple[int, int]
    """Width and height of the picture."""
    class_mask: Callable[[], NDArray[np.uint8]] | None = None
    """Gives (height, width): the class of each pixel, a value of `Dataset.mask_names`, for data with masks."""
    complexity: float | None = None
    """How crowded the scene is, 0..1, where the data say it."""


@dataclass(frozen=True, eq=False)
class Dataset:
    """Pictures and their truth. Nothing is read before it is asked for."""

    uri: str
    names: Mapping[int, str]
    """Class names of the objects, by class number."""
    keys: Sequence[Key]
    """One for each picture."""
    open: Callable[[Sequence[Key]], Source]
    """A source that shows the pictures of these keys, in this order."""
    key_of: Callable[[FrameInfo], Key]
    """The key of a frame that such a source has shown."""
    labels: Callable[[Key], Labels]
    """The truth of a picture; asked for once a frame, after the source has shown it."""
    mask_names: Mapping[int, str] = field(default_factory=dict)
    """Class names of the values of `Labels.class_mask`; empty for data without masks."""
    mask_groups: Mapping[str, Collection[int]] = field(default_factory=dict)
    """Values of `Labels.class_mask` that a model may know under one name: {"person": head, torso, ...}."""
    notes: Sequence[str] = ()
    """What was found odd, or left out."""

    def __len__(self) -> int:
        return len(self.keys)

    def spread(self, limit: int | None) -> Sequence[Key]:
        """At most `limit` keys, evenly spread over all of them, so that every part of a video is seen.

        Raises:
            UsageError: the limit is below 1.
        """
        if limit is not None and limit < 1:
            raise UsageError(f"limit is {limit}", remedy="limit takes a whole number from 1")
        if limit is None or limit >= len(self.keys):
            return self.keys
        return [self.keys[(2 * number + 1) * len(self.keys) // (2 * limit)] for number in range(limit)]


def open_data(data: Any, images: str | Path | None = None) -> Dataset:
    """Open data whose truth is known.

    Args:
        data: a COCO file (annotations.json), a `synthetic://...` address, or a Dataset, which is returned as it is.
        images: folder of the images that the COCO file names, or the video whose frames it numbers; looked for beside
            the file when left out.

    Raises:
        SourceError: a file is missing, or says something that cannot be.
        DecodeError: it is no COCO file.
        UsageError: `data` is of no known kind.
    """
    if isinstance(data, Dataset):
        return data
    if isinstance(data, str) and data.lower().startswith("synthetic://"):
        if images is not None:
            raise UsageError(f"{data} draws its own pictures", remedy="leave --images out")
        from framefuse.evaluation.world import open_world

        return open_world(data)
    if not isinstance(data, str | Path) or not str(data).strip() or "://" in str(data):
        raise UsageError(
            f"{data!r} is no data with known truth", remedy="pass a COCO file (annotations.json) or synthetic://street"
        )
    from framefuse.evaluation.coco import open_coco

    return open_coco(Path(data), None if images is None else Path(images))
