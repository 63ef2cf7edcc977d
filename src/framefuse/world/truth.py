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
    keypoints: NDArray[np.float32]
    """(n, 17, 3) x, y and v of COCO's keypoints of people: v 2 seen, 1 behind another object, 0 outside the image (then
    x and y are 0, too). Other objects have zeros. Left is the person's own left. A person's own body hides nothing."""
    disparity: NDArray[np.float32] | None = None
    """(h, w) pixels by which a point is further left in the right eye than in the left; stereo only."""

    @property
    def ignored(self) -> NDArray[np.bool_]:
        """(n,) too hidden (visibility < 0.25) or too small (a side below 4 pixels) for evaluation."""
        sides = self.boxes[:, 2:] - self.boxes[:, :2]
        small: NDArray[np.bool_] = sides.min(axis=1, initial=np.inf) < SMALLEST_SIDE
        return small | (self.visibility < IGNORED_BELOW)

    @property
    def corners(self) -> NDArray[np.float32]:
        """(n, 4, 2) x, y of the corners of the oriented boxes: the smallest rectangles around the visible pixels."""
        found = np.zeros((len(self.boxes), 4, 2), np.float32)
        for row, (x1, y1, x2, y2) in enumerate(self.boxes.astype(int).tolist()):
            found[row] = oriented_box(self.instances[y1:y2, x1:x2] == row + 1) + np.array([x1, y1])
        return found


def oriented_box(mask: NDArray[np.bool_]) -> NDArray[np.float64]:
    """(4, 2) x, y of the corners of the smallest rectangle around the pixels of a mask that is not empty.

    One of its sides contains a side of the convex hull (Freeman and Shapira 1975), so all of these are tried.
    """
    rows = np.flatnonzero(mask.any(1))
    left, right = mask[rows].argmax(1), mask.shape[1] - mask[rows, ::-1].argmax(1)
    ends = [(x, y + low) for low in (0, 1) for x, y in zip((*left, *right), (*rows, *rows), strict=True)]
    hull = np.array(_hull(sorted(set(ends))), np.float64)
    sides = np.roll(hull, -1, 0) - hull
    cos, sin = (sides / np.hypot(*sides.T)[:, None]).T
    along, across = hull @ np.stack([cos, sin]), hull @ np.stack([-sin, cos])
    areas = np.ptp(along, 0) * np.ptp(across, 0)
    best = int(areas.argmin())
    (a, b), (c, d) = ((line[:, best].min(), line[:, best].max()) for line in (along, across))
    turn = np.array([[cos[best], sin[best]], [-sin[best], cos[best]]])
    box: NDArray[np.float64] = np.array([(a, c), (b, c), (b, d), (a, d)]) @ turn
    return box


def _hull(points: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Corners of the convex hull of sorted points (Andrew 1979)."""
    halves = []
    for ordered in (points, points[::-1]):
        half: list[tuple[int, int]] = []
        for x, y in ordered:
            while len(half) > 1:
                (ax, ay), (bx, by) = half[-2:]
                if (bx - ax) * (y - ay) - (by - ay) * (x - ax) > 0:
                    break
                half.pop()
            half.append((x, y))
        halves.append(half[:-1])
    return halves[0] + halves[1]


@dataclass(frozen=True)
class Snapshot:
    """One frame of a world."""

    index: int
    image: NDArray[np.uint8]
    """(h, w, 3) RGB"""
    truth: Truth
