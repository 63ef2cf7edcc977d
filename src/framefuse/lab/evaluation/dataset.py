"""Dataset: images whose truth is known, in the order in which the pipeline will see them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import NDArray

from framefuse.errors import UsageError
from framefuse.prediction import FrameInfo
from framefuse.sources import Source

Key = Any
"""What names an image: the path of a file, the index of a frame, or (number of the part, key) in joined data."""


@dataclass(frozen=True, eq=False)
class Labels:
    """The truth of one image: n objects, in pixels of the image as it is shown."""

    xyxy: NDArray[np.float64]
    """(n, 4): x1, y1, x2, y2."""
    class_id: NDArray[np.int64]
    """(n,) numbers of `Dataset.names`."""
    crowd: NDArray[np.bool_]
    """(n,): a region that holds an unknown number of objects; what is found in it counts neither way."""
    area: NDArray[np.float64]
    """(n,) pixels; it decides whether an object is small, medium or large."""
    size: tuple[int, int]
    """Width and height of the image."""
    class_mask: Callable[[], NDArray[np.uint8]] | None = None
    """Gives (height, width): the class of each pixel, a value of `Dataset.mask_names`, for data with masks."""
    complexity: float | None = None
    """How crowded the scene is, 0..1, where the data say it."""


@dataclass(frozen=True, eq=False)
class Dataset:
    """Images and their truth. Nothing is read before it is asked for."""

    uri: str
    names: Mapping[int, str]
    """Class names of the objects, by class number."""
    keys: Sequence[Key]
    """One for each image."""
    open: Callable[[Sequence[Key]], Source]
    """A source that shows the images of these keys, in this order."""
    key_of: Callable[[FrameInfo], Key]
    """The key of a frame that such a source has shown."""
    labels: Callable[[Key], Labels]
    """The truth of an image; asked for once a frame, after the source has shown it."""
    mask_names: Mapping[int, str] = field(default_factory=dict)
    """Class names of the values of `Labels.class_mask`; empty for data without masks."""
    mask_groups: Mapping[str, Collection[int]] = field(default_factory=dict)
    """Values of `Labels.class_mask` that a model may know under one name: {"person": head, torso, ...}."""
    mixed: bool = False
    """Whether the images may be of many sizes."""
    no_masks: str = "no masks"
    """What data without masks have."""
    notes: Sequence[str] = ()
    """What was found odd, or left out."""

    def __len__(self) -> int:
        return len(self.keys)

    def spread(self, limit: int | None) -> Sequence[Key]:
        """At most `limit` keys, evenly spread over all of them, so that every part of a video is seen.

        Raises:
            UsageError: the limit is no whole number from 1.
        """
        if limit is not None and (not isinstance(limit, Integral) or isinstance(limit, bool) or limit < 1):
            raise UsageError(f"limit is {limit!r}", remedy="limit takes a whole number from 1")
        if limit is None or limit >= len(self.keys):
            return self.keys
        return [self.keys[(2 * number + 1) * len(self.keys) // (2 * limit)] for number in range(limit)]


NOTHING = "background"
"""What pixels of no class are called."""


def plain(name: str) -> str:
    """A name as it is compared with others."""
    return " ".join(name.casefold().replace("_", " ").replace("-", " ").split())
