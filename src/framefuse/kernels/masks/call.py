"""Operations on masks: class arg-max, smoothing, temporal average, stretching, matte and composition.

numpy arrays go to the CPU, others (CuPy, torch, DLPack) to the GPU on which they lie, in order with `stream` (the
pointer of a CUDA stream; None: CuPy's current one). There a call launches one kernel, whose tables of taps or weights
are uploaded once for each size and cached. To capture calls in a CUDA graph, record them with `record_launches` first
and capture the plans. `kernels.reference` states the formulas.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from framefuse.cuda import kernel
from framefuse.errors import UsageError
from framefuse.kernels.arrays import address, batch, checked, device_table, kind, on, on_gpu, pitch, target
from framefuse.kernels.cpu import _function, _scratch

Region = tuple[float, float, float, float]
"""left, top, width, height in samples: the part of a plane that is stretched over an image."""

MAX_RADIUS = 64
"""Samples on each side that smoothing takes in; sums of uint8 stay exact in float32 up to here."""

CACHED = 1 << 22
"""Bytes of stretched scores that `classes` holds on the CPU."""

SMOOTHED = ("u8_u8", "u8_f32", "f32_f32")
"""Types that smoothing reads and writes."""


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
    gpu, wanted = on_gpu(scores), -1 if foreground is None else foreground
    n, classes, height, width = _shape(scores)
    with on(gpu, stream):
        dtypes = ("float32", "float16") if gpu else ("float32",)
        scores = checked("scores", scores, gpu, scores.shape, *dtypes, dense=2)
        labels = target(out, gpu, (n, height, width), "uint8", dense=2)
        if gpu:
            places = {"scores_address": scores, "score_item": pitch(scores, 0), "class_pitch": pitch(scores, 1)}
            places |= {"target_address": labels, "target_item": pitch(labels, 0)}
            size = {"n": n, "classes": classes, "pixels": height * width}
            kernel.launch(f"mask_argmax_{kind(scores)}", **places, **size, foreground=wanted)
        elif labels.size:
            scratch = _scratch.get("best", (1024,))[:1024], _scratch.get("label", (1024,), np.int32)[:1024]
            for item, to in zip(scores, labels, strict=True):
                _function("mask_argmax")(
                    address(item), item.strides[0], address(to), classes, height * width, wanted, *scratch
                )
    return labels if out is None else out


def box_blur(mask: Any, radius: int, *, out: Any | None = None, stream: int | None = None) -> Any:
    """Mean over (2 radius + 1) x (2 radius + 1) samples, edges repeated; uint8 is exact, halves up.

    Args:
        mask: (h, w) or (n, h, w), uint8 or float32.
        radius: 0..64.
        out: the mask's shape; uint8 or float32 from uint8, float32 from float32; like the mask when left out.

    Raises:
        UsageError: wrong shape, dtype or radius.
    """
    return _smooth(mask, np.ones(2 * _radius(radius) + 1, np.float32), 1 / (2 * radius + 1) ** 2, out, stream)


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
    mask: Any, sigma: float, radius: int | None = None, *, out: Any | None = None, stream: int | None = None
) -> Any:
    """Separable Gaussian of `gaussian_weights`, edges repeated; the rest as `box_blur`."""
    return _smooth(mask, gaussian_weights(sigma, radius), 1.0, out, stream)


def matte(
    mask: Any, sigma: float, radius: int | None = None, *, out: Any | None = None, stream: int | None = None
) -> Any:
    """Alpha 0..1 with a soft edge: the Gaussian of a 0..255 mask, over 255.

    Args:
        mask: (h, w) or (n, h, w) uint8.
        out: the mask's shape, float32.

    Raises:
        UsageError: wrong shape, dtype, sigma or radius.
    """
    weights, gpu = gaussian_weights(sigma, radius), on_gpu(mask)
    with on(gpu, stream):
        mask = checked("mask", mask, gpu, mask.shape, "uint8")
        alpha = target(out, gpu, mask.shape, "float32")
        _smooth(mask, weights, 1 / 255, alpha, None)
    return alpha if out is None else out


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
    gpu = on_gpu(mask)
    with on(gpu, stream):
        source = batch(checked("mask", mask, gpu, mask.shape, "uint8", "float32"))
        to = batch(checked("state", state, gpu, mask.shape, "float32"))
        n, height, width = source.shape
        symbol = f"mask_ema_{kind(source)}"
        if gpu:
            places = _places("source", source) | _places("state", to)
            kernel.launch(symbol, **places, n=n, height=height, width=width, weight=weight)
        else:
            for one, average in zip(source, to, strict=True):
                _function(symbol)(*_plane(one), *_plane(average), height, width, weight)
    return state


def upsample(
    plane: Any, size: tuple[int, int], *, content: Region | None = None, out: Any = None, stream: int | None = None
) -> Any:
    """(h, w) or (n, h, w) to (..., *size), bilinear; `kernels.reference.upsample` is the formula.

    Args:
        plane: uint8 (rounded, halves up) or float32.
        size: height and width.
        content: left, top, width, height in samples of the part to stretch, which may be fractional: a letterbox is
            undone by its place in the plane. The whole plane when left out.
        out: of the plane's dtype; of a float32 plane with values in 0..255 also uint8, rounded.

    Raises:
        UsageError: wrong shape, dtype or content.
    """
    gpu = on_gpu(plane)
    with on(gpu, stream):
        planes = batch(checked("plane", plane, gpu, plane.shape, "uint8", "float32"))
        height, width = plane.shape[-2:]
        left, top, wide, high = _content(plane, size, content)
        rounds = kind(planes) == "f32" and out is not None and out.dtype == np.uint8
        if rounds and not gpu:
            np.copyto(out, upsample(plane, size, content=content) + np.float32(0.5), casting="unsafe")
            return out
        stretched = target(out, gpu, (*plane.shape[:-2], *size), "uint8" if rounds else planes.dtype.name)
        symbol, to = f"mask_upsample_{kind(planes)}{'_u8' if rounds else ''}", batch(stretched)
        if gpu:
            tables = device_taps(size, (left, top, wide, high), (height, width))
            places = _places("source", planes) | _places("target", to)
            kernel.launch(symbol, **places, n=len(planes), height=size[0], width=size[1], **tables)
        else:
            both = (*taps(size[1], left, wide, width), *taps(size[0], top, high, height))
            scratch = _scratch.get("stretched", (2 * size[1],))
            for one, result in zip(planes, to, strict=True):
                _function(symbol)(*_plane(one), *_plane(result), height, *both, scratch)
    return stretched if out is None else out


def classes(
    scores: Any, size: tuple[int, int], *, content: Region | None = None, out: Any = None, stream: int | None = None
) -> Any:
    """`argmax` of `upsample`d scores, (n, classes <= 256, h, w) to (n, *size), without storing them upsampled.

    Args:
        scores: float32.
        size, content: as for `upsample`.
        out: (n, *size) uint8.

    Raises:
        UsageError: wrong shape, dtype or content.
    """
    gpu = on_gpu(scores)
    n, count, height, width = _shape(scores)
    with on(gpu, stream):
        scores = checked("scores", scores, gpu, scores.shape, "float32")
        left, top, wide, high = _content(scores, size, content)
        labels = target(out, gpu, (n, *size), "uint8")
        if gpu:
            tables = device_taps(size, (left, top, wide, high), (height, width))
            places = {"source_address": scores, "source_item": pitch(scores, 0), "class_pitch": pitch(scores, 1)}
            places |= {"source_pitch": pitch(scores, 2), **_places("target", labels)}
            kernel.launch("mask_classes", **places, n=n, classes=count, height=size[0], width=size[1], **tables)
            return labels if out is None else out
        across, (index, weight) = taps(size[1], left, wide, width), taps(size[0], top, high, height)
        rows = max(1, CACHED // (4 * count * size[1]))
        stretched, row = _scratch.get("scores", (count * rows * size[1],)), _scratch.get("stretched", (2 * size[1],))
        for item, found in zip(scores, labels, strict=True):
            for first in range(0, size[0], rows):
                down = index[first : first + rows], weight[first : first + rows]
                shape = count, len(down[0]), size[1]
                strip = stretched[: count * len(down[0]) * size[1]].reshape(shape)
                for one, to in zip(item, strip, strict=True):
                    _function("mask_upsample_f32")(*_plane(one), *_plane(to), height, *across, *down, row)
                argmax(strip[None], out=found[None, first : first + rows])
    return labels if out is None else out


def _shape(scores: Any) -> tuple[int, int, int, int]:
    if scores.ndim != 4 or not 1 <= scores.shape[1] <= 256:
        raise UsageError(f"scores have shape {tuple(scores.shape)}, expected (n, 1..256 classes, h, w)")
    n, classes, height, width = scores.shape
    return n, classes, height, width


def _content(planes: Any, size: tuple[int, int], content: Region | None) -> Region:
    """The part of planes to stretch to a size, which is not empty."""
    height, width = planes.shape[-2:]
    left, top, wide, high = content or (0, 0, width, height)
    if not (wide > 0 and high > 0 and min(size) > 0 and min(height, width) > 0):
        raise UsageError(f"content {content} of a plane {tuple(planes.shape)} cannot be stretched to {size}")
    return left, top, wide, high


@lru_cache(maxsize=64)
def taps(count: int, start: float, length: float, samples: int) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Lower sample and weight of the upper one for each of `count` pixels of one axis; read-only.

    Pixel i sits at u = start + (i + 1/2) length / count - 1/2 samples (half-pixel centres), clamped to the samples that
    the region start .. start + length touches. The upper sample is the next one; its weight is 0 where it is outside.
    """
    lowest = min(max(int(np.floor(start)), 0), samples - 1)
    highest = max(min(int(np.ceil(start + length)), samples) - 1, lowest)
    position = (start + (np.arange(count) + 0.5) * (length / count) - 0.5).clip(lowest, highest)
    lower = np.floor(position)
    index, weight = lower.astype(np.int32), (position - lower).astype(np.float32)
    # A weight that rounds up to 1 is the next sample's 0.
    index += weight == 1
    weight[weight == 1] = 0
    return index, weight


def device_taps(size: tuple[int, int], content: Region, samples: tuple[int, int]) -> dict[str, Any]:
    """Taps of both axes on the current GPU as the arguments of kernels. `size`, `samples`: heights and widths."""
    left, top, width, height = content
    xi, xw = device_table(taps, size[1], left, width, samples[1])
    yi, yw = device_table(taps, size[0], top, height, samples[0])
    return {"across_index": xi, "across_weight": xw, "down_index": yi, "down_weight": yw}


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
    gpu, shape = on_gpu(foreground), tuple(foreground.shape)
    channels = 1 if len(shape) == 2 else shape[-1]
    if len(shape) not in (2, 3) or channels not in (1, 3, 4):
        raise UsageError(f"foreground has shape {shape}, expected (h, w) or (h, w, 1, 3 or 4)")
    with on(gpu, stream):
        result = target(out, gpu, shape, "uint8", dense=len(shape) - 1)
        planes = {
            "foreground": checked("foreground", foreground, gpu, shape, "uint8", dense=len(shape) - 1),
            "background": checked("background", background, gpu, shape, "uint8", dense=len(shape) - 1),
            "alpha": checked("alpha", alpha, gpu, shape[:2], "uint8"),
            "target": result,
        }
        if gpu:
            places = {f"{name}_address": plane for name, plane in planes.items()}
            places |= {f"{name}_pitch": pitch(plane, 0) for name, plane in planes.items()}
            kernel.launch("mask_composite", **places, height=shape[0], width=shape[1], channels=channels)
        elif result.size:
            numbers = [number for plane in planes.values() for number in _plane(plane)]
            _function(f"mask_composite_{channels}")(*numbers, *shape[:2])
    return result if out is None else out


def _smooth(mask: Any, weights: NDArray[np.float32], scale: float, out: Any | None, stream: int | None) -> Any:
    gpu = on_gpu(mask)
    with on(gpu, stream):
        source = checked("mask", mask, gpu, mask.shape, "uint8", "float32")
        made = target(None, gpu, source.shape, source.dtype.name) if out is None else out
        smoothed = checked("out", made, gpu, source.shape, "uint8", "float32")
        kinds = f"{kind(source)}_{kind(smoothed)}"
        if kinds not in SMOOTHED:
            raise UsageError(f"a {source.dtype} mask cannot be smoothed into uint8", remedy="pass out of float32")
        symbol, planes, to = f"mask_smooth_{kinds}", batch(source), batch(smoothed)
        n, height, width = planes.shape
        if gpu:
            places = _places("source", planes) | _places("target", to)
            (table,) = device_table(_weights, *weights.tolist())
            reach = {"scale": scale, "radius": len(weights) // 2, "weights_address": table}
            kernel.launch(symbol, **places, n=n, height=height, width=width, **reach)
        else:
            scratch = _scratch.get("smooth", (width + 2 * MAX_RADIUS,)), _scratch.get("sums", (width,))
            for one, result in zip(planes, to, strict=True):
                _function(symbol)(*_plane(one), *_plane(result), height, width, scale, weights, *scratch)
    return made


def _weights(*weights: float) -> tuple[NDArray[np.float32]]:
    return (np.array(weights, np.float32),)


def _radius(radius: int) -> int:
    if not 0 <= radius <= MAX_RADIUS:
        raise UsageError(f"radius {radius} is not between 0 and {MAX_RADIUS} samples")
    return radius


def _plane(plane: NDArray[Any]) -> tuple[int, int]:
    """Address, and pitch in elements."""
    return address(plane), pitch(plane, 0)


def _places(name: str, planes: Any) -> dict[str, Any]:
    """Where a batch of planes lies, as arguments of a kernel."""
    return {f"{name}_address": planes, f"{name}_item": pitch(planes, 0), f"{name}_pitch": pitch(planes, 1)}
