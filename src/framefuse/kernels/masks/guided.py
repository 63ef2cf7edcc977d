"""Mattes at the resolution of a frame from those of a model: the fast guided filter (He and Sun, arXiv:1505.00996).

A matte follows the edges of the picture that guides it: within a small window alpha is a linear function of the luma,
fitted at the resolution of the model and applied at that of the frame. On a GPU `canvas.compose` does the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

import numpy as np
from numpy.typing import NDArray

from framefuse.cuda import kernel
from framefuse.errors import UsageError
from framefuse.kernels.arrays import checked, kind, on_gpu, pitch
from framefuse.kernels.cpu import _scratch
from framefuse.kernels.masks.call import box_blur, upsample
from framefuse.kernels.masks.grids import TOGETHER, Grid, most, new_samples, table

RADIUS = 1
"""Samples of the model's grid on each side of a window."""
SMALLEST_VARIANCE = 1e-3
"""Variance of luma (0..1) below which a window has no edge to follow."""
SHARPEST = 0.1
"""Width in pixels of the sharpest edge."""


def shrink(plane: Any, size: tuple[int, int], *, white: float = 1.0) -> Any:
    """(h, w) uint8 to `size` (rows, columns) float32: the mean of the pixels of each cell, whose borders are rounded
    down to whole pixels.

    Args:
        white: what 255 becomes.

    Raises:
        UsageError: `size` is larger than the plane, or empty.
    """
    (height, width), (rows, columns) = plane.shape, size
    if not (0 < rows <= height and 0 < columns <= width):
        raise UsageError(f"a plane of {width}x{height} pixels cannot be shrunk to {columns}x{rows}")
    if on_gpu(plane):
        return shrunk([plane], [Grid((0, 0, width, height), size)], white=white)[0]
    down, across = np.arange(rows + 1) * height // rows, np.arange(columns + 1) * width // columns
    fewest, first = height // rows, down[:-1]
    sums: NDArray[Any] = plane[first].astype(np.uint32 if fewest > 255 else np.uint16)
    for step in range(1, fewest):  # whole rows, which is fast
        sums += plane[first + step]
    taller = np.diff(down) > fewest
    sums[taller] += plane[first[taller] + fewest]
    sums = np.add.reduceat(sums, across[:-1], axis=1, dtype=np.uint32)
    areas = np.diff(down)[:, None] * np.diff(across) * 255
    return (sums / areas * white).astype(np.float32)


def shrunk(planes: Sequence[Any], grids: Sequence[Grid], *, shift: int = 0, white: float = 1.0) -> list[Any]:
    """`shrink` of each view of planes on a GPU, in order with CuPy's current stream; all views of the first plane, then
    those of the next. They follow each other in memory.

    Args:
        planes: up to TOGETHER planes alike, (h, w) uint8 or uint16, each sample with `shift` bits more than 8.
        grids: the views of each, and the size of each view.
        white: what 255 becomes, of 8 bits.
    """
    every = [*grids] * len(planes)
    made = new_samples(every)
    planes = [checked("plane", plane, True, planes[0].shape, "uint8", "uint16") for plane in planes]
    places = {f"source_{n}_address": plane for n, plane in zip_longest(range(TOGETHER), planes, fillvalue=0)}
    facts: dict[str, Any] = {"source_pitch": pitch(planes[0], 0), "shift": shift, "white": white, "frames": len(planes)}
    tables = {"grids_address": table(every)[0], "target_address": made[0]}
    kernel.launch(f"matte_shrink_{kind(planes[0])}", **places, **facts, **tables, **most(grids))
    return made


def guided(
    alpha: Any,
    low: Any,
    guide: Any,
    *,
    gain: float = 1.0,
    out: Any | None = None,
) -> Any:
    """The matte of `guide`, (h, w) uint8, whose edges it follows.

    Args:
        alpha: (rows, columns) float32 in 0..1.
        low: `guide` at that size, as `shrink` makes it.
        guide: (h, w) uint8, the luma of the frame.
        gain: what the distance of alpha from 1/2 is multiplied by: the softness of edges divided by it.
        out: (h, w) uint8.
    """
    mean_alpha, mean_low = box_blur(alpha, RADIUS), box_blur(low, RADIUS)
    variance = box_blur(low * low, RADIUS) - mean_low * mean_low
    slope = (box_blur(alpha * low, RADIUS) - mean_alpha * mean_low) / (variance.clip(min=0) + SMALLEST_VARIANCE)
    level = mean_alpha - slope * mean_low
    # 255 (gain (slope guide / 255 + level - 1/2) + 1/2), halves up
    size = guide.shape[0], guide.shape[1]
    fine = [_scratch.get(name, (size[0] * size[1],))[: size[0] * size[1]].reshape(size) for name in ("slope", "level")]
    slope = upsample(box_blur(slope * np.float32(gain), RADIUS), size, out=fine[0])
    level = upsample(box_blur((level - 0.5) * np.float32(255 * gain) + np.float32(128), RADIUS), size, out=fine[1])
    np.multiply(slope, guide, out=slope)
    np.add(slope, level, out=slope)
    np.clip(slope, 0, 255, out=slope)
    matte = np.empty(guide.shape, np.uint8) if out is None else out
    np.copyto(matte, slope, casting="unsafe")
    return matte
