"""The exact ground truth of a frame of a world."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

IGNORED_BELOW = 0.25
"""Visibility below which an object is too hidden for evaluation: ground truth marks it as crowd."""
SMALLEST_SIDE = 4
"""Pixels; objects with a smaller visible extent on either side are marked as crowd too."""


@dataclass(frozen=True)
class Truth:
    """Ground truth of one frame. Rows are objects with at least one visible pixel, back to front."""

    boxes: NDArray[np.float32]
    """(n, 4) x1, y1, x2, y2: bounding box of the visible pixels."""
    class_id: NDArray[np.int64]
    """(n,)"""
    track_id: NDArray[np.int64]
    """(n,) from 1; an object has the same number in every frame and in both eyes."""
    visibility: NDArray[np.float32]
    """(n,) visible pixels over all pixels of the object, including hidden ones and those outside the image."""
    instances: NDArray[np.uint16]
    """(h, w): 0 background, k + 1 where row k is visible."""
    class_mask: NDArray[np.uint8]
    """(h, w): 0 background; street: class_id + 1; bodies: index into the world's `names`."""
    complexity: float
    """Share of the scene's crowd that is present, 0 calm .. 1 crowded."""
    disparity: NDArray[np.float32] | None = None
    """(h, w) pixels by which a point is further left in the right eye than in the left; stereo only."""

    @property
    def ignored(self) -> NDArray[np.bool_]:
        """(n,) too hidden (visibility < 0.25) or too small (a side below 4 pixels) for evaluation."""
        sides = self.boxes[:, 2:] - self.boxes[:, :2]
        small: NDArray[np.bool_] = sides.min(axis=1, initial=np.inf) < SMALLEST_SIDE
        return small | (self.visibility < IGNORED_BELOW)


@dataclass(frozen=True)
class Snapshot:
    """One frame of a world."""

    index: int
    image: NDArray[np.uint8]
    """(h, w, 3) RGB"""
    truth: Truth
