"""ONNX operators on images, as `operators.py` has the others: convolutions, pools, and samples between pixels."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from framefuse.engines.cudnn.operators import Array, Attributes, NotPossible, by_channel, folded


def surrounded(
    given: Attributes, x: Array, size: Sequence[int], value: float
) -> tuple[Array, list[int], list[int], list[int]]:
    """An image with what lies around it, and of the windows of a convolution or pool: strides, dilations and counts."""
    rank = x.ndim - 2
    strides, dilations = given.get("strides", [1] * rank), given.get("dilations", [1] * rank)
    extents = [(one - 1) * step + 1 for one, step in zip(size, dilations, strict=True)]
    pads = list(given.get("pads", [0] * 2 * rank))
    kind = given.get("auto_pad", "NOTSET")
    if kind in ("SAME_UPPER", "SAME_LOWER"):
        missing = [
            max(0, (-(-side // step) - 1) * step + extent - side)
            for side, step, extent in zip(x.shape[2:], strides, extents, strict=True)
        ]
        less = [total // 2 for total in missing]
        more = [total - half for total, half in zip(missing, less, strict=True)]
        pads = less + more if kind == "SAME_UPPER" else more + less
    if given.get("ceil_mode"):
        for axis in range(rank):
            side = x.shape[2 + axis] + pads[axis] + pads[rank + axis] - extents[axis]
            count = -(-side // strides[axis])
            if count * strides[axis] >= x.shape[2 + axis] + pads[axis]:
                count -= 1  # a window must not begin in the padding
            pads[rank + axis] += max(0, count * strides[axis] - side)
    widths = [(0, 0), (0, 0), *zip(pads[:rank], pads[rank:], strict=True)]
    x = np.pad(x, widths, constant_values=value) if any(pads) else x
    counts = [(side - extent) // step + 1 for side, extent, step in zip(x.shape[2:], extents, strides, strict=True)]
    return x, strides, dilations, counts


def windows_of(given: Attributes, x: Array, size: Sequence[int], value: float) -> Array:
    """(batch, channels, *outputs, *size): what each window of a convolution or pool sees."""
    x, strides, dilations, counts = surrounded(given, x, size, value)
    rank = len(size)
    for axis in reversed(range(rank)):
        starts = strides[axis] * np.arange(counts[axis])
        x = np.take(x, starts[:, None] + dilations[axis] * np.arange(size[axis]), 2 + axis)
    return x.transpose(0, 1, *range(2, 2 + 2 * rank, 2), *range(3, 2 + 2 * rank, 2))


def conv(given: Attributes, x: Array, weight: Array, bias: Any = None) -> Array:
    groups, rank = given.get("group", 1), x.ndim - 2
    windows = windows_of(given, x, weight.shape[2:], 0.0)
    batch, channels, counts = len(x), x.shape[1] // groups, windows.shape[2 : 2 + rank]
    order = (0, 1, *range(3, 3 + rank), 2, *range(3 + rank, 3 + 2 * rank))
    parts = windows.reshape(batch, groups, channels, *windows.shape[2:]).transpose(order)
    parts = parts.reshape(batch, groups, math.prod(counts), -1)
    filters = weight.reshape(groups, len(weight) // groups, -1).transpose(0, 2, 1)
    found = np.matmul(parts, filters).transpose(0, 1, 3, 2).reshape(batch, len(weight), *counts)
    return found if bias is None else found + by_channel(bias, x.ndim)


def conv_transpose(given: Attributes, x: Array, weight: Array, bias: Any = None) -> Array:
    """As the convolution of x with zeros between its samples, with mirrored filters."""
    groups, rank = given.get("group", 1), x.ndim - 2
    if given.get("output_shape") or given.get("auto_pad", "NOTSET") != "NOTSET":
        raise NotPossible(" to a stated shape")
    strides, dilations = given.get("strides", [1] * rank), given.get("dilations", [1] * rank)
    pads, more = given.get("pads", [0] * 2 * rank), given.get("output_padding", [0] * rank)
    spread = x.reshape(*x.shape[:2], *(size for side in x.shape[2:] for size in (side, 1)))
    spread = np.pad(spread, [(0, 0), (0, 0), *((0, after) for step in strides for after in (0, step - 1))])
    spread = spread.reshape(*x.shape[:2], *(side * step for side, step in zip(x.shape[2:], strides, strict=True)))
    ends: Any = (..., *(slice(1 - step or None) for step in strides))
    spread = spread[ends]
    extents = [(size - 1) * step for size, step in zip(weight.shape[2:], dilations, strict=True)]
    before = [extent - pad for extent, pad in zip(extents, pads[:rank], strict=True)]
    after = [extent - pad + extra for extent, pad, extra in zip(extents, pads[rank:], more, strict=True)]
    if min(*before, *after) < 0:
        raise NotPossible(" with pads beyond its filters")
    mirrored = weight[(slice(None), slice(None), *[slice(None, None, -1)] * rank)]
    inside, out = weight.shape[0] // groups, weight.shape[1]
    mirrored = mirrored.reshape(groups, inside, out, *weight.shape[2:]).swapaxes(1, 2)
    mirrored = mirrored.reshape(groups * out, inside, *weight.shape[2:])
    again = {"group": groups, "dilations": dilations, "pads": [*before, *after]}
    return conv(again, spread, mirrored, bias)


def max_pool(given: Attributes, x: Array) -> Array:
    if given["outputs"] > 1:
        raise NotPossible(" with indices")
    size = given["kernel_shape"]
    x, strides, dilations, counts = surrounded(given, x, size, -np.inf)
    for axis, (length, stride, step, count) in enumerate(zip(size, strides, dilations, counts, strict=True), 2):
        ahead = [slice(None)] * axis
        x = folded(
            np.maximum,
            [x[(*ahead, slice(k * step, k * step + (count - 1) * stride + 1, stride))] for k in range(length)],
        )
    return x


def average_pool(given: Attributes, x: Array) -> Array:
    rank = x.ndim - 2
    axes = tuple(range(2 + rank, 2 + 2 * rank))
    sums = windows_of(given, x, given["kernel_shape"], 0.0).sum(axis=axes)
    if given.get("count_include_pad") and not given.get("ceil_mode"):
        return sums / np.float32(math.prod(given["kernel_shape"]))
    ones = np.ones((1, 1, *x.shape[2:]), np.float32)
    counts = windows_of(given, ones, given["kernel_shape"], 0.0).sum(axis=axes)
    return sums / counts


def global_pool(name: str) -> Callable[..., Array]:
    return lambda given, x: getattr(x, name)(axis=tuple(range(2, x.ndim)), keepdims=True)


def resize(given: Attributes, x: Array, *others: Any) -> Array:
    scales, sizes = ([*others, None, None, None][1:3]) if given["opset"] > 10 else (others[0], None)
    if given.get("axes") or given.get("keep_aspect_ratio_policy", "stretch") != "stretch" or given.get("antialias"):
        raise NotPossible(" of some axes, by aspect ratio or with antialiasing")
    if sizes is not None and len(sizes):
        targets = [int(size) for size in sizes]
        factors = [target / side for target, side in zip(targets, x.shape, strict=True)]
    else:
        factors = [float(scale) for scale in scales]
        targets = [int(side * factor) for side, factor in zip(x.shape, factors, strict=True)]
    mode, how = given.get("mode", "nearest"), given.get("coordinate_transformation_mode", "half_pixel")
    how = how if given["opset"] > 10 else "asymmetric"
    if mode not in ("nearest", "linear"):
        raise NotPossible(f" with mode {mode}")
    for axis, (target, factor) in enumerate(zip(targets, factors, strict=True)):
        side = x.shape[axis]
        if target == side and factor == 1:
            continue
        at = sample_positions(how, target, side, factor)
        shape = [1] * x.ndim
        shape[axis] = target
        if mode == "nearest":
            x = np.take(x, nearest_samples(given, at, side), axis)
            continue
        low = np.floor(at).astype(np.int64)
        weight = (at - low).astype(np.float32).reshape(shape)
        below, above = ((low + step).clip(0, side - 1) for step in (0, 1))
        lower = np.take(x, below, axis)
        x = lower + (np.take(x, above, axis) - lower) * weight
    return x


def sample_positions(how: str, target: int, side: int, factor: float) -> NDArray[np.float64]:
    """Where the samples of a resized axis lie in the original."""
    out = np.arange(target, dtype=np.float64)
    if how == "align_corners":
        return out * (side - 1) / max(1, target - 1)
    if how == "asymmetric":
        return out / factor
    if how == "pytorch_half_pixel" and target == 1:
        return np.zeros(1)
    if how in ("half_pixel", "pytorch_half_pixel"):
        return (out + 0.5) / factor - 0.5
    raise NotPossible(f" with coordinates {how}")


def nearest_samples(given: Attributes, at: NDArray[np.float64], side: int) -> NDArray[np.int64]:
    kind = given.get("nearest_mode", "round_prefer_floor") if given["opset"] > 10 else "floor"
    rounded = {
        "round_prefer_floor": lambda: np.ceil(at - 0.5),
        "round_prefer_ceil": lambda: np.floor(at + 0.5),
        "floor": lambda: np.floor(at),
        "ceil": lambda: np.ceil(at),
    }[kind]()
    return rounded.clip(0, side - 1).astype(np.int64)


def grid_sample(given: Attributes, x: Array, grid: Array) -> Array:
    """Bilinear samples of images; outside they are 0."""
    mode, outside = given.get("mode", "linear"), given.get("padding_mode", "zeros")
    if x.ndim != 4 or mode not in ("linear", "bilinear") or outside not in ("zeros", "border"):
        raise NotPossible(f" with mode {mode} and padding {outside}")
    batch, channels, height, width = x.shape
    corners = given.get("align_corners", 0)
    where = [
        (grid[..., axis] + 1) / 2 * (side - 1) if corners else ((grid[..., axis] + 1) * side - 1) / 2
        for axis, side in enumerate((width, height))
    ]
    if outside == "border":
        where = [np.clip(at, 0, side - 1) for at, side in zip(where, (width, height), strict=True)]
    low = [np.floor(at) for at in where]
    flat = x.reshape(batch, channels, height * width)
    total: Any = 0
    for right in (0, 1):
        for down in (0, 1):
            column, row = low[0] + right, low[1] + down
            weight = (1 - abs(where[0] - column)) * (1 - abs(where[1] - row))
            inside = (column >= 0) & (column < width) & (row >= 0) & (row < height)
            weight = np.where(inside, weight, 0)
            place = np.clip(row, 0, height - 1) * width + np.clip(column, 0, width - 1)
            place = place.astype(np.int64).reshape(batch, 1, -1)
            samples = np.take_along_axis(flat, np.broadcast_to(place, (batch, channels, place.shape[2])), 2)
            total = total + samples * weight.reshape(batch, 1, -1)
    return total.reshape(batch, channels, *grid.shape[1:3])
