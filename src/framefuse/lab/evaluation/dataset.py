"""Dataset: images with known ground truth, in the order in which the pipeline sees them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from framefuse.errors import UsageError
from framefuse.prediction import FrameInfo
from framefuse.sources import Source

Key = Any
"""Identifies an image: the path of a file, the index of a frame, or (number of the part, key) in joined data."""


@dataclass(frozen=True, eq=False)
class Labels:
    """The ground truth of one image: n objects, in pixels of the image as displayed."""

    xyxy: NDArray[np.float64]
    """(n, 4): x1, y1, x2, y2."""
    class_id: NDArray[np.int64]
    """(n,) numbers of `Dataset.names`."""
    crowd: NDArray[np.bool_]
    """(n,): a region with an unknown number of objects; detections in it count neither as right nor as wrong."""
    area: NDArray[np.float64]
    """(n,) pixels; it decides whether an object is small, medium or large."""
    size: tuple[int, int]
    """Width and height of the image."""
    class_mask: Callable[[], NDArray[np.uint8]] | None = None
    """Returns (height, width): the class of each pixel, a key of `Dataset.mask_names`; None without masks."""
    complexity: float | None = None
    """How crowded the scene is, 0..1; None if unknown."""
    track_id: NDArray[np.int64] | None = None
    """(n,): an object has the same number in every frame of its video; None if unknown."""


@dataclass(frozen=True, eq=False)
class Dataset:
    """Images and their ground truth, read on demand."""

    uri: str
    names: Mapping[int, str]
    """Class names of the objects, by class number."""
    keys: Sequence[Key]
    """One per image."""
    open: Callable[[Sequence[Key]], Source]
    """Returns a source that yields the images of these keys, in this order."""
    key_of: Callable[[FrameInfo], Key]
    """The key of a frame from such a source."""
    labels: Callable[[Key], Labels]
    """The ground truth of an image; called once per frame, after the source has yielded it."""
    mask_names: Mapping[int, str] = field(default_factory=dict)
    """Class names of the values of `Labels.class_mask`; empty for data without masks."""
    mask_groups: Mapping[str, Collection[int]] = field(default_factory=dict)
    """Values of `Labels.class_mask` that a model may have as one class: {"person": head, torso, ...}."""
    mixed: bool = False
    """Whether the images may differ in size."""
    no_masks: str = "no masks"
    """Why there are no masks, for messages."""
    files: Sequence[Path] = ()
    """What it is read from, so that no output overwrites one."""
    notes: Sequence[str] = ()
    """Oddities of the data, and what was left out."""

    def __len__(self) -> int:
        return len(self.keys)

    def spread(self, limit: int | None) -> Sequence[Key]:
        """At most `limit` keys, evenly spread, so that every part of a video is represented.

        Raises:
            UsageError: the limit is not a positive integer.
        """
        if limit is not None and (not isinstance(limit, Integral) or isinstance(limit, bool) or limit < 1):
            raise UsageError(f"limit is {limit!r}", remedy="limit takes a whole number from 1")
        if limit is None or limit >= len(self.keys):
            return self.keys
        return [self.keys[(2 * number + 1) * len(self.keys) // (2 * limit)] for number in range(limit)]


NOTHING = "background"
"""Class name of pixels that belong to no object."""


def plain(name: str) -> str:
    """A name normalised for comparison."""
    return " ".join(name.casefold().replace("_", " ").replace("-", " ").split())
