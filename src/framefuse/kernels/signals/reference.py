"""Signals of scene complexity in plain numpy: the executable specification of `kernels.signals`."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def shrink(luma: NDArray[Any], step: int, shift: int = 0) -> NDArray[np.uint8]:
    """small[y, x] = (sum of (luma >> shift) over the block + step^2 // 2) // step^2; what is left over is cut off."""
    height, width = luma.shape[0] // step, luma.shape[1] // step
    blocks = (luma[: height * step, : width * step].astype(np.int64) >> shift).reshape(height, step, width, step)
    small: NDArray[np.uint8] = ((blocks.sum((1, 3)) + step * step // 2) // (step * step)).astype(np.uint8)
    return small


def signals(
    luma: NDArray[Any], previous: NDArray[Any] | None = None, *, step: int = 8, edge_threshold: int = 96, shift: int = 0
) -> tuple[float, float | None, NDArray[np.int64], NDArray[np.uint8]]:
    """(edge density, frame difference, histogram, small luma).

    edge density: share of the pixels of the small luma, its border apart, with gx^2 + gy^2 > edge_threshold^2, where
        gx = [[-1, 0, 1], [-2, 0, 2], [-1, 0, 1]] and gy its transpose (Sobel).
    frame difference: mean |small - previous|; None without a previous one.
    histogram: pixels of the small luma at each grey level.
    """
    small = shrink(luma, step, shift)
    s = small.astype(np.int64)
    difference = None if previous is None else float(np.abs(s - previous).sum() / s.size)
    density = 0.0
    if min(s.shape) > 2:
        gx = (s[:, 2:] - s[:, :-2])[:-2] + 2 * (s[:, 2:] - s[:, :-2])[1:-1] + (s[:, 2:] - s[:, :-2])[2:]
        gy = (s[2:] - s[:-2])[:, :-2] + 2 * (s[2:] - s[:-2])[:, 1:-1] + (s[2:] - s[:-2])[:, 2:]
        density = float((gx * gx + gy * gy > edge_threshold * edge_threshold).mean())
    return density, difference, np.bincount(s.ravel(), minlength=256), small
