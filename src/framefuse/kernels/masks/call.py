"""Operations on masks: class arg-max, smoothing, temporal average, stretching, matte and composition.

numpy arrays go to the CPU, others (CuPy, torch, DLPack) to the GPU on which they lie, in order with `stream` (the
pointer of a CUDA stream; None: CuPy's current one). There a call launches one kernel, whose tables of taps or weights
are uploaded once for each size and cached. To capture calls in a CUDA graph, record them with `record_launches` first
and capture the plans. `kernels.reference` states the formulas.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from framefuse.errors import UsageError
from framefuse.kernels.cpu import _address, _function, _scratch
from framefuse.kernels.masks import cuda as masks_cuda
from framefuse.kernels.masks.taps import Region, taps

NAMES = {np.dtype(np.uint8): "u8", np.dtype(np.float32): "f32"}
MAX_RADIUS = 64
"""Samples on each side that smoothing takes in; sums of uint8 stay exact in float32 up to here."""

Rows = tuple[int, int] | None
"""first, last: fill only rows first..last - 1, so that threads can share an image on the host; None: all."""


def argmax(scores: Any, *, foreground: int | None = None, out: Any | None = None, stream: int | None = None) -> Any:
    """label[n, y, x] = the class c with the greatest scores[n, c, y, x]; the lowest c wins a tie, NaN never wins.

    Args:
        scores: (n, classes <= 256, h, w) float32, on a GPU also float16. Each (h, w)
            plane must be contiguous; a view of some rows is.
        foreground: give 255 where this class wins and 0 elsewhere, instead of the label.
        out: (n, h, w) uint8, each (h, w) contiguous.

    Raises:
        UsageError: wrong dtype or shape.
    """
    if masks_cuda.is_cuda(scores):
        return masks_cuda.argmax(scores, foreground, out, stream)
    if scores.ndim != 4 or scores.dtype != np.float32 or not 1 <= scores.shape[1] <= 256:
        raise UsageError(f"scores are {scores.dtype} {scores.shape}, expected float32 (n, 1..256 classes, h, w)")
    n, classes, height, width = scores.shape
    out = _target(out, (n, height, width), np.dtype(np.uint8))
    if not out.size:
        return out
    if not (scores[0, 0].flags.c_contiguous and out[0].flags.c_contiguous):
        raise UsageError(f"planes of scores {scores.strides} and out {out.strides} (strides) must be contiguous")
    wanted = -1 if foreground is None else foreground
    scratch = _scratch.get("best", (1024,))[:1024], _scratch.get("label", (1024,), np.int32)[:1024]
    for item, labels in zip(scores, out, strict=True):
        _function("mask_argmax")(
            _address(item), item.strides[0], _address(labels), classes, height * width, wanted, *scratch
        )
    return out


def box_blur(mask: Any, radius: int, *, out: Any | None = None, rows: Rows = None, stream: int | None = None) -> Any:
    """Mean over (2 radius + 1) x (2 radius + 1) samples, edges repeated; uint8 is exact, halves up.

    Args:
        mask: (h, w) or (n, h, w), uint8 or float32.
        radius: 0..64.
        rows: fill only these rows, on the host.
        out: the mask's shape; uint8 or float32 from uint8, float32 from float32; like the mask when left out.

    Raises:
        UsageError: wrong shape, dtype or radius.
    """
    return _smooth(mask, np.ones(2 * _radius(radius) + 1, np.float32), 1 / (2 * radius + 1) ** 2, out, rows, stream)


def gaussian_weights(sigma: float, radius: int | None = None) -> NDArray[np.float32]:
    """w[i] = exp(-(i - r)^2 / (2 sigma^2)) / sum, i = 0..2 r; r = ceil(3 sigma) when left out.

    Raises:
        UsageError: sigma is not positive, or the radius above 64.
    """
    if not 0 < sigma < np.inf:
        raise UsageError(f"sigma {sigma} is not a positive number of samples")
    reach = _radius(int(np.ceil(3 * sigma)) if radius is None else radius)
    weights: NDArray[Any] = np.exp(-((np.arange(2 * reach + 1) - reach) ** 2) / (2 * sigma * sigma))
    weights /= weights.sum()
    return weights.astype(np.float32)


def gaussian_blur(
    mask: Any,
    sigma: float,
    radius: int | None = None,
    *,
    out: Any | None = None,
    rows: Rows = None,
    stream: int | None = None,
) -> Any:
    """Separable Gaussian of `gaussian_weights`, edges repeated; the rest as `box_blur`."""
    return _smooth(mask, gaussian_weights(sigma, radius), 1.0, out, rows, stream)


def matte(
    mask: Any,
    sigma: float,
    radius: int | None = None,
    *,
    out: Any | None = None,
    rows: Rows = None,
    stream: int | None = None,
) -> Any:
    """Alpha 0..1 with a soft edge: the Gaussian of a 0..255 mask, over 255.

    Args:
        mask: (h, w) or (n, h, w) uint8.
        out: the mask's shape, float32.

    Raises:
        UsageError: wrong shape, dtype, sigma or radius.
    """
    weights = gaussian_weights(sigma, radius)
    if masks_cuda.is_cuda(mask):
        return masks_cuda.smooth(mask, weights, 1 / 255, out, "float32", stream)
    if mask.dtype != np.uint8:
        raise UsageError(f"mask is {mask.dtype}, expected uint8")
    out = _target(out, mask.shape, np.dtype(np.float32))
    return _smooth(mask, weights, 1 / 255, out, rows, stream)


def ema(mask: Any, state: Any, weight: float, *, stream: int | None = None) -> Any:
    """state += weight * (mask - state), in place: the exponential average over the frames of a video.

    Args:
        mask: (h, w) or (n, h, w), uint8 or float32.
        state: the same shape, float32; start it as the first mask.
        weight: of the new mask, 0..1.

    Returns:
        state.

    Raises:
        UsageError: wrong shape, dtype or weight.
    """
    if not 0 <= weight <= 1:
        raise UsageError(f"weight {weight} is not between 0 and 1")
    if masks_cuda.is_cuda(mask):
        masks_cuda.ema(mask, state, weight, stream)
        return state
    _target(state, mask.shape, np.dtype(np.float32))
    for source, target in zip(_planes(mask), _planes(state), strict=True):
        _function(f"mask_ema_{_kind(mask)}")(*_plane(source), *_plane(target), *source.shape, weight)
    return state


def upsample(
    plane: Any,
    size: tuple[int, int],
    *,
    content: Region | None = None,
    out: Any | None = None,
    rows: Rows = None,
    stream: int | None = None,
) -> Any:
    """(h, w) or (n, h, w) to (..., *size), bilinear; `kernels.reference.upsample` is the formula.

    Args:
        plane: uint8 (rounded, halves up) or float32.
        size: height and width.
        content: left, top, width, height in samples of the part to stretch, which may be fractional: a letterbox is
            undone by its place in the plane. The whole plane when left out.
        out: of the plane's dtype.
        rows: fill only these rows, on the host.

    Raises:
        UsageError: wrong shape, dtype or content.
    """
    if masks_cuda.is_cuda(plane):
        return masks_cuda.upsample(plane, size, content, out, stream)
    planes, kind = _planes(plane), _kind(plane)
    height, width = plane.shape[-2:]
    out = _target(out, (*plane.shape[:-2], *size), plane.dtype)
    left, top, wide, high = content or (0, 0, width, height)
    if not (wide > 0 and high > 0 and min(size) > 0 and min(height, width) > 0):
        raise UsageError(f"content {content} of a plane {plane.shape} cannot be stretched to {size}")
    tables = (*taps(size[1], left, wide, width), *taps(size[0], top, high, height))
    scratch = _scratch.get("stretched", (2 * size[1],))
    first, last = rows or (0, size[0])
    for source, target in zip(planes, _planes(out), strict=True):
        _function(f"mask_upsample_{kind}")(*_plane(source), *_plane(target), height, first, last, *tables, scratch)
    return out


def composite(
    foreground: Any, background: Any, alpha: Any, *, out: Any | None = None, stream: int | None = None
) -> Any:
    """(foreground * alpha + background * (255 - alpha) + 127) // 255 in each channel.

    Args:
        foreground, background: (h, w) or (h, w, 1 | 3 | 4) uint8 of one shape.
        alpha: (h, w) uint8.
        out: like foreground; it may be `background` itself.

    Raises:
        UsageError: wrong shape or dtype.
    """
    if masks_cuda.is_cuda(foreground):
        return masks_cuda.composite(foreground, background, alpha, out, stream)
    channels = 1 if foreground.ndim == 2 else foreground.shape[-1]
    if foreground.ndim not in (2, 3) or channels not in (1, 3, 4):
        raise UsageError(f"foreground has shape {foreground.shape}, expected (h, w) or (h, w, 1, 3 or 4)")
    for name, array in (("foreground", foreground), ("background", background)):
        if array.shape != foreground.shape or array.dtype != np.uint8:
            raise UsageError(f"{name} is {array.dtype} {array.shape}, expected uint8 {foreground.shape}")
    if alpha.shape != foreground.shape[:2] or alpha.dtype != np.uint8:
        raise UsageError(f"alpha is {alpha.dtype} {alpha.shape}, expected uint8 {foreground.shape[:2]}")
    out = _target(out, foreground.shape, np.dtype(np.uint8))
    if out.size:
        _function(f"mask_composite_{channels}")(
            *_plane(foreground), *_plane(background), *_plane(alpha), *_plane(out), *alpha.shape
        )
    return out


def _smooth(
    mask: Any, weights: NDArray[np.float32], scale: float, out: Any | None, rows: Rows, stream: int | None
) -> Any:
    if masks_cuda.is_cuda(mask):
        return masks_cuda.smooth(mask, weights, scale, out, None, stream)
    planes = _planes(mask)
    out = _target(out, mask.shape, mask.dtype if out is None else out.dtype)
    name = f"mask_smooth_{_kind(mask)}_{_kind(out)}"
    if name == "mask_smooth_f32_u8":
        raise UsageError("a float32 mask cannot be smoothed into uint8", remedy="pass out of float32")
    height, width = mask.shape[-2:]
    scratch = _scratch.get("smooth", (width + 2 * MAX_RADIUS,)), _scratch.get("sums", (width,))
    first, last = rows or (0, height)
    for source, target in zip(planes, _planes(out), strict=True):
        _function(name)(*_plane(source), *_plane(target), height, width, first, last, scale, weights, *scratch)
    return out


def _radius(radius: int) -> int:
    if not 0 <= radius <= MAX_RADIUS:
        raise UsageError(f"radius {radius} is not between 0 and {MAX_RADIUS} samples")
    return radius


def _kind(array: NDArray[Any]) -> str:
    if array.dtype not in NAMES:
        raise UsageError(f"array is {array.dtype}, expected uint8 or float32")
    return NAMES[array.dtype]


def _target(out: NDArray[Any] | None, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    if out is None:
        return np.empty(shape, dtype)
    if out.shape != shape or out.dtype != dtype:
        raise UsageError(f"out is {out.dtype} {out.shape}, expected {dtype} {shape}")
    return out


def _planes(array: NDArray[Any]) -> NDArray[Any]:
    """As (n, h, w); nothing to do for one without samples."""
    if array.ndim not in (2, 3):
        raise UsageError(f"array has shape {array.shape}, expected (h, w) or (n, h, w)")
    planes = array[None] if array.ndim == 2 else array
    return planes if planes.size else planes[:0]


def _plane(plane: NDArray[Any]) -> tuple[int, int]:
    """Address, and pitch in elements."""
    pitch, rest = divmod(plane.strides[0], plane.itemsize)
    if rest or (plane.size and not plane[0].flags.c_contiguous):
        raise UsageError(
            f"plane has strides {plane.strides} bytes; within a row its samples must be adjacent",
            remedy="pass np.ascontiguousarray(plane), which copies",
        )
    return _address(plane), pitch
