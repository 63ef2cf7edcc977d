"""What is in a frame of a world, exactly."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

IGNORED_BELOW = 0.25
"""An object of which less than this share is visible is no fair question: ground truth marks it as crowd."""
SMALLEST_SIDE = 4
"""Pixels; a visible extent below this on either side is marked as crowd too."""


@dataclass(frozen=True)
class Truth:
    """What is in one frame. Rows are objects with at least one visible pixel, those behind first."""

    boxes: NDArray[np.float32]
    """(n, 4) x1, y1, x2, y2: edges of the visible pixels' extent."""
    class_id: NDArray[np.int64]
    """(n,)"""
    track_id: NDArray[np.int64]
    """(n,) from 1; the same object has the same number in every frame, and in both eyes."""
    visibility: NDArray[np.float32]
    """(n,) visible pixels over all pixels of the object, hidden ones and those outside the image included."""
    instances: NDArray[np.uint16]
    """(h, w): 0 background, k + 1 where row k is visible."""
    class_mask: NDArray[np.uint8]
    """(h, w): 0 background; street: class_id + 1; bodies: index into the world's `names`."""
    complexity: float
    """0 calm .. 1 crowded: how much of the scene's crowd is there."""
    disparity: NDArray[np.float32] | None = None
    """(h, w) pixels by which a point lies further left in the right eye than in the left; stereo only."""

    @property
    def ignored(self) -> NDArray[np.bool_]:
        """(n,) too hidden (visibility < 0.25) or too small (a side below 4 pixels) to be asked for."""
        sides = self.boxes[:, 2:] - self.boxes[:, :2]
        result: NDArray[np.bool_] = (self.visibility < IGNORED_BELOW) | (
            sides.min(axis=1, initial=np.inf) < SMALLEST_SIDE
        )
        return result


@dataclass(frozen=True)
class Snapshot:
    """One frame of a world."""

    index: int
    image: NDArray[np.uint8]
    """(h, w, 3) RGB"""
    truth: Truth
