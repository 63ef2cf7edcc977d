"""Mattes at the resolution of a frame from those of a model: the fast guided filter (He and Sun, arXiv:1505.00996).

A matte follows the edges of the picture that guides it: within a small window alpha is a linear function of the luma,
fitted at the resolution of the model and applied at that of the frame. As in `masks.call`, numpy arrays go to the CPU,
others to the GPU on which they lie, in order with CuPy's current stream.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from framefuse.cuda import kernel
from framefuse.cuda.launch_plan import keep
from framefuse.errors import UsageError
from framefuse.kernels.arrays import checked, new, on_gpu, pitch, target
from framefuse.kernels.cpu import _scratch
from framefuse.kernels.masks.call import box_blur, device_taps, upsample

RADIUS = 1
"""Samples of the model's grid on each side of a window."""
SMALLEST_VARIANCE = 1e-3
"""Variance of luma (0..1) below which a window has no edge to follow."""


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
        plane, shrunk = checked("plane", plane, True, plane.shape, "uint8"), new(True, size, np.float32)
        places = {"source_address": plane, "source_pitch": pitch(plane, 0), "target_address": shrunk}
        sizes = {"height": height, "width": width, "rows": rows, "columns": columns, "white": white}
        kernel.launch("matte_shrink", **places, **sizes)
        return shrunk
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
    if on_gpu(guide):
        return _guided_on_gpu(alpha, low, guide, gain, out)
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


def _guided_on_gpu(alpha: Any, low: Any, guide: Any, gain: float, out: Any | None) -> Any:
    """Two kernels: one fits, one stretches and applies."""
    size, (rows, columns) = guide.shape, alpha.shape
    guide, matte = checked("guide", guide, True, size, "uint8"), target(out, True, size, "uint8")
    fits = keep(new(True, (rows, columns, 2), np.float32))  # between both
    low = {"low_address": checked("low", low, True, alpha.shape, "float32", dense=2)}
    low |= {"alpha_address": checked("alpha", alpha, True, alpha.shape, "float32", dense=2)}
    kernel.launch(
        "matte_fit", **low, rows=rows, columns=columns, variance=SMALLEST_VARIANCE, gain=gain, target_address=fits
    )
    places = {"guide_address": guide, "guide_pitch": pitch(guide, 0)}
    places |= {"target_address": matte, "target_pitch": pitch(matte, 0), "height": size[0], "width": size[1]}
    taps = device_taps(size, (0, 0, columns, rows), (rows, columns))
    kernel.launch("matte_stretch", fit_address=fits, rows=rows, columns=columns, **places, **taps)
    return matte
