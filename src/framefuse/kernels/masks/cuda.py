"""Masks, drawing and signals on a GPU: checks, then one launch for a whole batch. Called by the public functions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from framefuse.cuda import device, kernel
from framefuse.cuda.launch_plan import keep_cached
from framefuse.errors import UsageError
from framefuse.kernels.masks.taps import Region, taps


def is_cuda(array: Any) -> bool:
    """Whether an array lies on a GPU; anything that is not numpy is taken for that, and checked on use."""
    return not isinstance(array, np.ndarray) or hasattr(array, "__cuda_array_interface__")


def on(stream: int | None) -> AbstractContextManager[Any]:
    """Make a stream CuPy's current one, so that memory made here is safe to use on it."""
    return nullcontext() if stream is None else device.stream_at(stream)


def checked(name: str, array: Any, shape: tuple[int, ...], *dtypes: str, dense: int = 1) -> Any:
    """The array as CuPy's, if it has that shape, one of the dtypes, and its last `dense` axes are contiguous.

    Raises:
        UsageError: it has not.
    """
    found = device.as_cupy(array)
    fits = found.shape == shape and found.dtype.name in dtypes
    contiguous = all(
        found.strides[axis] == found.itemsize * math.prod(shape[axis + 1 :])
        for axis in range(len(shape) - dense, len(shape))
        if fits and found.size and shape[axis] > 1
    )
    if not (fits and contiguous):
        raise UsageError(
            f"{name} is {found.dtype} {found.shape} with strides {found.strides} bytes, "
            f"expected {' or '.join(dtypes)} {shape} whose last {dense} axes are contiguous"
        )
    return found


def target(out: Any, shape: tuple[int, ...], dtype: str, *, dense: int = 1) -> Any:
    """`out` checked, or new memory."""
    return device.cupy().empty(shape, dtype) if out is None else checked("out", out, shape, dtype, dense=dense)


def pitch(array: Any, axis: int) -> int:
    """Elements from one index of an axis to the next."""
    return int(array.strides[axis] // array.itemsize)


def batch(array: Any) -> Any:
    """(h, w) or (n, h, w) as (n, h, w)."""
    if array.ndim not in (2, 3):
        raise UsageError(f"array has shape {array.shape}, expected (h, w) or (n, h, w)")
    return array[None] if array.ndim == 2 else array


@lru_cache(maxsize=256)
def _device_table(gpu: int, key: tuple[Any, ...], make: Any) -> tuple[Any, ...]:
    return tuple(device.uploaded(part) for part in make(*key))


def device_table(make: Any, *key: Any) -> tuple[Any, ...]:
    """The arrays of make(*key), which are constant, on the current device; the last 256 results are cached.

    Raises:
        UsageError: the current stream is being captured and nothing would keep them (`launch_plan.keep_cached`).
    """
    return keep_cached(_device_table(device.current_gpu(), key, make), None)


def device_taps(size: tuple[int, int], content: Region, samples: tuple[int, int]) -> dict[str, Any]:
    """Taps of both axes as the arguments of kernels. `size` and `samples` are heights and widths."""
    left, top, width, height = content
    xi, xw = device_table(taps, size[1], left, width, samples[1])
    yi, yw = device_table(taps, size[0], top, height, samples[0])
    return {"across_index": xi, "across_weight": xw, "down_index": yi, "down_weight": yw}


def argmax(scores: Any, foreground: int | None, out: Any, stream: int | None) -> Any:
    with on(stream):
        scores = device.as_cupy(scores)
        if scores.ndim != 4 or not 1 <= scores.shape[1] <= 256:
            raise UsageError(f"scores have shape {scores.shape}, expected (n, 1..256 classes, h, w)")
        n, classes, height, width = scores.shape
        scores = checked("scores", scores, scores.shape, "float32", "float16", dense=2)
        labels = target(out, (n, height, width), "uint8", dense=2)
        kernel.launch(
            f"mask_argmax_{'f16' if scores.itemsize == 2 else 'f32'}",
            scores_address=scores,
            score_item=pitch(scores, 0),
            class_pitch=pitch(scores, 1),
            target_address=labels,
            target_item=pitch(labels, 0),
            n=n,
            classes=classes,
            pixels=height * width,
            foreground=-1 if foreground is None else foreground,
        )
        return labels if out is None else out


def _weights(*weights: float) -> tuple[NDArray[np.float32]]:
    return (np.array(weights, np.float32),)


def smooth(
    mask: Any, weights: NDArray[np.float32], scale: float, out: Any, dtype: str | None, stream: int | None
) -> Any:
    with on(stream):
        mask = device.as_cupy(mask)
        source = batch(checked("mask", mask, mask.shape, "uint8", "float32"))
        wanted = dtype or (mask.dtype.name if out is None else device.as_cupy(out).dtype.name)
        if (mask.dtype.name, wanted) not in (("uint8", "uint8"), ("uint8", "float32"), ("float32", "float32")):
            raise UsageError(f"a {mask.dtype} mask cannot be smoothed into {wanted}", remedy="pass out of float32")
        smoothed = target(out, mask.shape, wanted)
        to = batch(smoothed)
        n, height, width = source.shape
        kernel.launch(
            f"mask_smooth_{'u8' if mask.itemsize == 1 else 'f32'}_{'u8' if wanted == 'uint8' else 'f32'}",
            **_pair("source", source),
            **_pair("target", to),
            n=n,
            height=height,
            width=width,
            scale=scale,
            radius=len(weights) // 2,
            weights_address=device_table(_weights, *weights.tolist())[0],
        )
        return smoothed if out is None else out


def ema(mask: Any, state: Any, weight: float, stream: int | None) -> None:
    with on(stream):
        mask = device.as_cupy(mask)
        source = batch(checked("mask", mask, mask.shape, "uint8", "float32"))
        to = batch(checked("state", state, mask.shape, "float32"))
        n, height, width = source.shape
        kernel.launch(
            f"mask_ema_{'u8' if mask.itemsize == 1 else 'f32'}",
            **_pair("source", source),
            **_pair("state", to),
            n=n,
            height=height,
            width=width,
            weight=weight,
        )


def upsample(plane: Any, size: tuple[int, int], content: Region | None, out: Any, stream: int | None) -> Any:
    with on(stream):
        plane = device.as_cupy(plane)
        source = batch(checked("plane", plane, plane.shape, "uint8", "float32"))
        n, height, width = source.shape
        region = content or (0, 0, width, height)
        if not (region[2] > 0 and region[3] > 0 and min(size) > 0 and min(height, width) > 0):
            raise UsageError(f"content {content} of a plane {plane.shape} cannot be stretched to {size}")
        stretched = target(out, (*plane.shape[:-2], *size), plane.dtype.name)
        kernel.launch(
            f"mask_upsample_{'u8' if plane.itemsize == 1 else 'f32'}",
            **_pair("source", source),
            **_pair("target", batch(stretched)),
            n=n,
            height=size[0],
            width=size[1],
            **device_taps(size, region, (height, width)),
        )
        return stretched if out is None else out


def composite(foreground: Any, background: Any, alpha: Any, out: Any, stream: int | None) -> Any:
    with on(stream):
        foreground = device.as_cupy(foreground)
        shape = foreground.shape
        channels = 1 if len(shape) == 2 else shape[-1]
        if len(shape) not in (2, 3) or channels not in (1, 3, 4):
            raise UsageError(f"foreground has shape {shape}, expected (h, w) or (h, w, 1, 3 or 4)")
        dense = len(shape) - 1
        foreground = checked("foreground", foreground, shape, "uint8", dense=dense)
        background = checked("background", background, shape, "uint8", dense=dense)
        alpha = checked("alpha", alpha, shape[:2], "uint8")
        result = target(out, shape, "uint8", dense=dense)
        kernel.launch(
            "mask_composite",
            foreground_address=foreground,
            foreground_pitch=pitch(foreground, 0),
            background_address=background,
            background_pitch=pitch(background, 0),
            alpha_address=alpha,
            alpha_pitch=pitch(alpha, 0),
            target_address=result,
            target_pitch=pitch(result, 0),
            height=shape[0],
            width=shape[1],
            channels=channels,
        )
        return result if out is None else out


def overlay(components: Sequence[Any], step: int, labels: Any, inks: Any, opacity: Any, stream: int | None) -> None:
    with on(stream):
        labels = checked("labels", labels, components[0].shape, "uint8")
        kernel.launch(
            "draw_overlay",
            **_components(components, step),
            label_address=labels,
            label_pitch=pitch(labels, 0),
            inks_address=device_table(_ink_table, bytes(np.asarray(inks).tobytes()), bytes(opacity.tobytes()))[0],
        )


def _ink_table(inks: bytes, opacity: bytes) -> tuple[NDArray[np.uint8]]:
    table = np.frombuffer(inks, np.uint8).reshape(256, 3)
    return (np.concatenate((table, np.frombuffer(opacity, np.uint8)[:, None]), axis=1),)


def draw_boxes(
    components: Sequence[Any], step: int, boxes: Any, inks: Any, line_width: int, count: Any, stream: int | None
) -> None:
    with on(stream):
        n = len(boxes)
        if not n:
            return
        kernel.launch(
            "draw_boxes",
            **_components(components, step),
            line=line_width,
            n=n,
            count_address=0 if count is None else checked("count", count, (1,), "int32"),
            boxes_address=checked("boxes", boxes, (n, 4), "int32", dense=2),
            inks_address=checked("inks", inks, (n, 3), "uint8", dense=2),
        )


def signals(
    luma: Any, previous: Any, step: int, edge_threshold: int, shift: int, out: Any, stream: int | None
) -> tuple[Any, Any]:
    """(counts (258,) int32, small luma), both on the GPU."""
    with on(stream):
        luma = checked("luma", luma, luma.shape, "uint8", "uint16")
        shape = luma.shape[0] // step, luma.shape[1] // step
        small = target(out, shape, "uint8", dense=2)
        counts = device.cupy().empty(258, np.int32)
        kernel.launch(
            f"signal_shrink_{'u8' if luma.itemsize == 1 else 'u16'}",
            luma=luma,
            pitch=pitch(luma, 0),
            small=small,
            height=shape[0],
            width=shape[1],
            step=step,
            shift=shift,
            counts=counts,
        )
        kernel.launch(
            "signal_count",
            small=small,
            previous=0 if previous is None else checked("previous", previous, shape, "uint8", dense=2),
            height=shape[0],
            width=shape[1],
            threshold=edge_threshold,
            counts=counts,
        )
        return counts, small


def _pair(name: str, planes: Any) -> dict[str, Any]:
    return {f"{name}_address": planes, f"{name}_item": pitch(planes, 0), f"{name}_pitch": pitch(planes, 1)}


def _components(components: Sequence[Any], step: int) -> dict[str, Any]:
    y, u, v = components
    height, width = y.shape
    return {
        "y_address": y,
        "u_address": u,
        "v_address": v,
        "y_pitch": pitch(y, 0),
        "u_pitch": pitch(u, 0),
        "v_pitch": pitch(v, 0),
        "chroma_step": step,
        "height": height,
        "width": width,
    }
