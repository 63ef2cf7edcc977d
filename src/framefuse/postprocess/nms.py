"""Non-maximum suppression."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

BLOCK = 192
"""Boxes compared with each other at once: no matrix grows with the square of the number of candidates."""


def nms(boxes: NDArray[np.float32], classes: NDArray[np.int32] | None, iou: float, max_det: int) -> NDArray[np.intp]:
    """Greedy NMS: keep a box unless one kept before it overlaps it by more than `iou`.

    overlap(a, b) = intersection / (area(a) + area(b) - intersection), in float32, compared with `iou` in float64: the
    arithmetic of torchvision.ops.nms. Two boxes without area overlap by 0 / 0, which suppresses nothing.

    Args:
        boxes: (n, 4) x1 y1 x2 y2 by descending score.
        classes: (n,) only boxes of one class suppress each other; None: all do.
        max_det: stop after this many.

    Returns:
        Indices of the kept boxes, ascending.
    """
    # float32 x > float64 t is float32 x > the largest float32 that does not exceed t.
    threshold = np.float32(iou)
    if float(threshold) > iou:
        threshold = np.nextafter(threshold, np.float32(-1))
    columns = np.concatenate((boxes.T, ((boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1]))[None]))

    def suppress(first: NDArray[np.intp], second: NDArray[np.intp]) -> NDArray[np.bool_]:
        """(len(first), len(second)): whether one suppresses the other."""
        ax1, ay1, ax2, ay2, area = columns[:, first, None]
        bx1, by1, bx2, by2, other = columns[:, None, second]
        width = np.minimum(ax2, bx2) - np.maximum(ax1, bx1)
        height = np.minimum(ay2, by2) - np.maximum(ay1, by1)
        intersection = np.maximum(width, 0, out=width) * np.maximum(height, 0, out=height)
        over: NDArray[np.bool_] = intersection / (area + other - intersection) > threshold
        if classes is not None:
            over &= classes[first, None] == classes[second]
        return over

    kept = np.empty(0, np.intp)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        for start in range(0, len(boxes), BLOCK):
            block = np.arange(start, min(start + BLOCK, len(boxes)))
            if len(kept):
                block = block[~suppress(kept, block).any(axis=0)]
            over = np.triu(suppress(block, block), 1)
            alive = np.ones(len(block), np.bool_)
            for row in np.flatnonzero(over.any(axis=1)):
                if alive[row]:
                    alive &= ~over[row]
            kept = np.concatenate((kept, block[alive]))
            if len(kept) >= max_det:
                return kept[:max_det]
    return kept
