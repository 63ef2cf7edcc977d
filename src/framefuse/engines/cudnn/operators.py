"""ONNX operators on arrays of NumPy or CuPy: elementwise, shapes, reductions, normalisation and products.

Arrays are float32, int64 or bool. Nothing reads an array of the GPU back. Each function follows the operator of its
name (onnx.ai/onnx/operators): (xp, attributes, *inputs) -> an array, or several; `xp` is NumPy or CuPy, and inputs that
are left out are None. `upload` among the attributes copies an array of the host to where those of `xp` are, once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

Array = Any
"""Of NumPy or CuPy."""
Attributes = Mapping[str, Any]


class NotPossible(Exception):
    """What an operator here cannot do; to follow its name."""


# Elementwise.


def binary(name: str) -> Callable[..., Array]:
    return lambda xp, given, *values: folded(getattr(xp, name), values)


def folded(function: Callable[[Array, Array], Array], values: Sequence[Array]) -> Array:
    result = values[0]
    for value in values[1:]:
        result = function(result, value)
    return result


def unary(name: str) -> Callable[..., Array]:
    return lambda xp, given, x: getattr(xp, name)(x)


def div(xp: Any, given: Attributes, a: Array, b: Array) -> Array:
    if a.dtype.kind != "f":  # towards 0
        return xp.sign(a) * xp.sign(b) * (abs(a) // abs(b))
    return a / b


def mod(xp: Any, given: Attributes, a: Array, b: Array) -> Array:
    return xp.fmod(a, b) if given.get("fmod") else xp.mod(a, b)


def sigmoid(xp: Any, given: Attributes, x: Array) -> Array:
    return 0.5 * xp.tanh(0.5 * x) + 0.5


def erf(xp: Any, given: Attributes, x: Array) -> Array:
    if xp is np:
        return np.vectorize(math.erf, otypes=[np.float32])(x)
    return _erf_kernel()(x)


@cache
def _erf_kernel() -> Any:
    """That of cupyx comes with SciPy, whose import takes longer than that of most models."""
    from framefuse.cuda import device

    return device.cupy().ElementwiseKernel("float32 x", "float32 y", "y = erff(x)", "framefuse_erf")


def gelu(xp: Any, given: Attributes, x: Array) -> Array:
    if given.get("approximate") == "tanh":
        return 0.5 * x * (1 + xp.tanh(0.7978845608 * (x + 0.044715 * x * x * x)))
    return 0.5 * x * (1 + erf(xp, given, x * 0.7071067812))


def clip_to(xp: Any, given: Attributes, x: Array, low: Any = None, high: Any = None) -> Array:
    low = given.get("min") if low is None else low
    high = given.get("max") if high is None else high
    x = x if low is None else xp.maximum(x, low)
    return x if high is None else xp.minimum(x, high)


def cast(xp: Any, given: Attributes, x: Array) -> Array:
    if given["to"] == 9:
        return x != 0
    if given["to"] in (1, 10, 11, 16):
        return x.astype(np.float32)
    if given["to"] in (2, 3, 4, 5, 6, 7, 12, 13):
        return x.astype(np.int64)
    raise NotPossible(f" to type {given['to']}")


def leaky(xp: Any, given: Attributes, x: Array) -> Array:
    return xp.where(x < 0, given.get("alpha", 0.01) * x, x)


def elu(xp: Any, given: Attributes, x: Array) -> Array:
    return xp.where(x < 0, given.get("alpha", 1.0) * xp.expm1(xp.minimum(x, 0)), x)


def hard_sigmoid(xp: Any, given: Attributes, x: Array) -> Array:
    return xp.clip(given.get("alpha", 0.2) * x + given.get("beta", 0.5), 0, 1)


def softplus(xp: Any, given: Attributes, x: Array) -> Array:
    return xp.maximum(x, 0) + xp.log1p(xp.exp(-abs(x)))


# Shapes.


def axis_of(given: Attributes, default: int, rank: int) -> int:
    return int(given.get("axis", default)) % rank


def axes_of(given: Attributes, axes: Any) -> tuple[int, ...] | None:
    """Axes that an attribute names, or an input of later opsets; None: not said."""
    found = given.get("axes") if axes is None else axes
    return None if found is None else tuple(int(axis) for axis in np.asarray(found).reshape(-1))


def reshape(xp: Any, given: Attributes, x: Array, shape: Any) -> Array:
    wanted = [int(size) for size in shape]
    if not given.get("allowzero"):
        wanted = [x.shape[place] if size == 0 else size for place, size in enumerate(wanted)]
    return x.reshape(wanted)


def flatten(xp: Any, given: Attributes, x: Array) -> Array:
    axis = int(given.get("axis", 1)) % (x.ndim + 1)
    return x.reshape(math.prod(x.shape[:axis]), -1)


def squeeze(xp: Any, given: Attributes, x: Array, axes: Any = None) -> Array:
    return xp.squeeze(x, axes_of(given, axes))


def unsqueeze(xp: Any, given: Attributes, x: Array, axes: Any = None) -> Array:
    return xp.expand_dims(x, axes_of(given, axes))


def expand(xp: Any, given: Attributes, x: Array, shape: Any) -> Array:
    return xp.broadcast_to(x, np.broadcast_shapes(x.shape, tuple(int(size) for size in shape)))


def slice_of(xp: Any, given: Attributes, x: Array, *parts: Any) -> Array:
    starts, ends = parts[:2] if parts else (given["starts"], given["ends"])
    axes = parts[2] if len(parts) > 2 and parts[2] is not None else given.get("axes", range(len(starts)))
    steps = parts[3] if len(parts) > 3 and parts[3] is not None else [1] * len(starts)
    cut = [slice(None)] * x.ndim
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        size = x.shape[int(axis)]
        whole = step < 0 and end < -size  # down to the first
        cut[int(axis)] = slice(int(start), None if whole else int(end), int(step))
    return x[tuple(cut)]


def split_into(xp: Any, given: Attributes, x: Array, sizes: Any = None) -> list[Array]:
    axis, count = axis_of(given, 0, x.ndim), given["outputs"]
    sizes = given.get("split") if sizes is None else sizes
    if sizes is None:
        most = -(-x.shape[axis] // count)
        sizes = [most] * (count - 1) + [x.shape[axis] - most * (count - 1)]
    return list(xp.split(x, np.cumsum(np.asarray(sizes))[:-1].tolist(), axis))


def gather(xp: Any, given: Attributes, x: Array, places: Array) -> Array:
    axis = axis_of(given, 0, x.ndim)
    if places.ndim:
        return xp.take(x, places, axis)
    return xp.squeeze(xp.take(x, places.reshape(1), axis), axis)  # of a single place, the axis is gone


def gather_elements(xp: Any, given: Attributes, x: Array, places: Array) -> Array:
    axis = axis_of(given, 0, x.ndim)
    return xp.take_along_axis(x, xp.where(places < 0, places + x.shape[axis], places), axis)


def gather_nd(xp: Any, given: Attributes, x: Array, places: Array) -> Array:
    if given.get("batch_dims"):
        raise NotPossible(" of several batches")
    return x[tuple(places[..., axis] for axis in range(places.shape[-1]))]


def scatter_nd(xp: Any, given: Attributes, x: Array, places: Array, values: Array) -> Array:
    if given.get("reduction", "none") != "none":
        raise NotPossible(f" with reduction {given['reduction']}")
    result = x.copy()
    result[tuple(places[..., axis] for axis in range(places.shape[-1]))] = values
    return result


def pad_with(xp: Any, given: Attributes, x: Array, pads: Any = None, value: Any = None, axes: Any = None) -> Array:
    pads = given["pads"] if pads is None else [int(pad) for pad in pads]
    count, widths = len(pads) // 2, [(0, 0)] * x.ndim
    for axis, before, after in zip(range(count) if axes is None else axes, pads[:count], pads[count:], strict=True):
        widths[int(axis)] = (int(before), int(after))
    mode = given.get("mode", "constant")
    if min(map(min, widths)) < 0:
        raise NotPossible(" by less than nothing")
    if mode == "constant":
        value = given.get("value", 0.0) if value is None else value
        return xp.pad(x, widths, constant_values=float(np.asarray(value).reshape(-1)[0]))
    return xp.pad(x, widths, mode={"reflect": "reflect", "edge": "edge", "wrap": "wrap"}[mode])


def constant_of_shape(xp: Any, given: Attributes, shape: Any) -> Array:
    value = np.asarray(given.get("value", np.zeros(1, np.float32)))
    return np.full([int(size) for size in shape], value.reshape(-1)[0], value.dtype)


def depth_to_space(xp: Any, given: Attributes, x: Array) -> Array:
    batch, channels, height, width = x.shape
    size = given["blocksize"]
    if given.get("mode", "DCR") == "DCR":
        x = x.reshape(batch, size, size, channels // size**2, height, width).transpose(0, 3, 4, 1, 5, 2)
    else:
        x = x.reshape(batch, channels // size**2, size, size, height, width).transpose(0, 1, 4, 2, 5, 3)
    return x.reshape(batch, channels // size**2, height * size, width * size)


def space_to_depth(xp: Any, given: Attributes, x: Array) -> Array:
    batch, channels, height, width = x.shape
    size = given["blocksize"]
    x = x.reshape(batch, channels, height // size, size, width // size, size).transpose(0, 3, 5, 1, 2, 4)
    return x.reshape(batch, channels * size**2, height // size, width // size)


# Reductions.


def reduction(name: str) -> Callable[..., Array]:
    def function(xp: Any, given: Attributes, x: Array, axes: Any = None) -> Array:
        found = axes_of(given, axes)
        if found is None and given.get("noop_with_empty_axes"):
            return x
        keep = bool(given.get("keepdims", 1))
        if name == "l2":
            return xp.sqrt((x * x).sum(axis=found, keepdims=keep))
        return getattr(x, name)(axis=found, keepdims=keep)

    return function


def arg_of(name: str) -> Callable[..., Array]:
    def function(xp: Any, given: Attributes, x: Array) -> Array:
        if given.get("select_last_index"):
            raise NotPossible(" with select_last_index")
        axis = axis_of(given, 0, x.ndim)
        found = getattr(xp, name)(x, axis)
        return xp.expand_dims(found, axis) if given.get("keepdims", 1) else found

    return function


def softmax(xp: Any, given: Attributes, x: Array) -> Array:
    if given["opset"] < 13:  # of all axes from this one on
        axis = axis_of(given, 1, x.ndim)
        flat = x.reshape(*x.shape[:axis], -1)
        return softmax_along(xp, flat, -1).reshape(x.shape)
    return softmax_along(xp, x, axis_of(given, -1, x.ndim))


def softmax_along(xp: Any, x: Array, axis: int) -> Array:
    powers = xp.exp(x - x.max(axis=axis, keepdims=True))
    return powers / powers.sum(axis=axis, keepdims=True)


def top_k(xp: Any, given: Attributes, x: Array, count: Any) -> tuple[Array, Array]:
    k, axis = int(np.asarray(count).reshape(-1)[0]), axis_of(given, -1, x.ndim)
    rows = xp.moveaxis(x, axis, -1)
    keys = -rows if given.get("largest", 1) else rows
    places = first_places(xp, keys, k)
    values = xp.take_along_axis(rows, places, -1)
    return xp.moveaxis(values, -1, axis), xp.moveaxis(places, -1, axis)


def first_places(xp: Any, keys: Array, count: int) -> Array:
    """(..., count): places of the smallest keys in order, of equal ones the first."""
    if xp is np:
        return np.argsort(keys, axis=-1, kind="stable")[..., :count]
    from framefuse.kernels.network.call import smallest

    return smallest(keys.astype(np.float32), count)


# Normalisation.


def normalised(xp: Any, x: Array, axes: tuple[int, ...], epsilon: float) -> Array:
    centred = x - x.mean(axis=axes, keepdims=True)
    return centred / xp.sqrt((centred * centred).mean(axis=axes, keepdims=True) + epsilon)


def by_channel(value: Array, rank: int) -> Array:
    return value.reshape(-1, *[1] * (rank - 2))


def batch_norm(xp: Any, given: Attributes, x: Array, scale: Array, bias: Array, mean: Array, variance: Array) -> Array:
    scale, bias, mean, variance = (by_channel(value, x.ndim) for value in (scale, bias, mean, variance))
    return (x - mean) * (scale / xp.sqrt(variance + given.get("epsilon", 1e-5))) + bias


def instance_norm(xp: Any, given: Attributes, x: Array, scale: Array, bias: Array) -> Array:
    found = normalised(xp, x, tuple(range(2, x.ndim)), given.get("epsilon", 1e-5))
    return found * by_channel(scale, x.ndim) + by_channel(bias, x.ndim)


def group_norm(xp: Any, given: Attributes, x: Array, scale: Array, bias: Array) -> Array:
    parts = x.reshape(x.shape[0], given["num_groups"], -1)
    found = normalised(xp, parts, (2,), given.get("epsilon", 1e-5)).reshape(x.shape)
    if len(scale) != x.shape[1]:  # before opset 21: of groups
        scale, bias = (value.repeat(x.shape[1] // len(value)) for value in (scale, bias))
    return found * by_channel(scale, x.ndim) + by_channel(bias, x.ndim)


def layer_norm(xp: Any, given: Attributes, x: Array, scale: Array, bias: Any = None) -> Array:
    axes = tuple(range(axis_of(given, -1, x.ndim), x.ndim))
    found = normalised(xp, x, axes, given.get("epsilon", 1e-5)) * scale
    return found if bias is None else found + bias


# Products.


def product(xp: Any, a: Array, b: Array) -> Array:
    """The matrix product; see `cuda.blas`."""
    if xp is np:
        return np.matmul(a, b)
    from framefuse.cuda import blas

    return blas.matmul(a, b)


def einsum(xp: Any, given: Attributes, *factors: Array) -> Array:
    """A product of two arrays, over the letters that only they have."""
    left, _, right = given["equation"].replace(" ", "").partition("->")
    letters = left.split(",")
    if len(letters) != 2 or not right or any(len(set(one)) < len(one) or "." in one for one in (*letters, right)):
        raise NotPossible(f" of {given['equation']}")
    (first, second), (a, b) = letters, factors
    shared = [one for one in first if one in second and one in right]
    summed = [one for one in first if one in second and one not in right]
    rows, columns = ([one for one in name if one not in other] for name, other in ((first, second), (second, first)))
    if {*shared, *rows, *columns} != {*right}:
        raise NotPossible(f" of {given['equation']}")
    sizes = dict(zip(first + second, a.shape + b.shape, strict=True))

    def matrix(x: Array, name: str, order: list[str], *parts: list[str]) -> Array:
        shape = [math.prod(sizes[one] for one in part) for part in parts]
        return x.transpose([name.index(one) for one in order]).reshape(shape)

    left_matrix = matrix(a, first, [*shared, *rows, *summed], shared, rows, summed)
    right_matrix = matrix(b, second, [*shared, *summed, *columns], shared, summed, columns)
    made = [*shared, *rows, *columns]
    found = product(xp, left_matrix, right_matrix).reshape([sizes[one] for one in made])
    return found.transpose([made.index(one) for one in right])


def gemm(xp: Any, given: Attributes, a: Array, b: Array, c: Any = None) -> Array:
    a, b = (a.T if given.get("transA") else a), (b.T if given.get("transB") else b)
    found = product(xp, a, b)
    if (alpha := given.get("alpha", 1.0)) != 1:
        found = found * np.float32(alpha)
    if c is None:
        return found
    return found + (c if (beta := given.get("beta", 1.0)) == 1 else np.float32(beta) * c)
