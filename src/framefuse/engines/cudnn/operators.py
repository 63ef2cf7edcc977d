"""ONNX operators on arrays of NumPy, or traced ones: elementwise, shapes, reductions, normalisation and products.

Arrays are float32, int64 or bool. Each function follows the operator of its name (onnx.ai/onnx/operators):
(attributes, *inputs) -> an array, or several; inputs that are left out are None. `traced.py` has the functions of NumPy
that they may call.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from framefuse.engines.cudnn import traced

Array = Any
"""Of NumPy, or traced."""
Attributes = Mapping[str, Any]


class NotPossible(Exception):
    """What an operator here cannot do; to follow its name."""


# Elementwise.


def binary(name: str) -> Callable[..., Array]:
    return lambda given, *values: folded(getattr(np, name), values)


def folded(function: Callable[[Array, Array], Array], values: Sequence[Array]) -> Array:
    result = values[0]
    for value in values[1:]:
        result = function(result, value)
    return result


def unary(name: str) -> Callable[..., Array]:
    return lambda given, x: getattr(np, name)(x)


def div(given: Attributes, a: Array, b: Array) -> Array:
    if a.dtype.kind != "f":  # towards 0
        return np.sign(a) * np.sign(b) * (abs(a) // abs(b))
    return a / b


def mod(given: Attributes, a: Array, b: Array) -> Array:
    return np.fmod(a, b) if given.get("fmod") else np.mod(a, b)


def sigmoid(given: Attributes, x: Array) -> Array:
    return 0.5 * np.tanh(0.5 * x) + 0.5


def erf(given: Attributes, x: Array) -> Array:
    if isinstance(x, np.ndarray):
        return np.vectorize(math.erf, otypes=[np.float32])(x)
    return traced.elementwise("erff({})", [x], [np.float32], np.float32)


def gelu(given: Attributes, x: Array) -> Array:
    if given.get("approximate") == "tanh":
        return 0.5 * x * (1 + np.tanh(0.7978845608 * (x + 0.044715 * x * x * x)))
    return 0.5 * x * (1 + erf(given, x * 0.7071067812))


def clip_to(given: Attributes, x: Array, low: Any = None, high: Any = None) -> Array:
    low = given.get("min") if low is None else low
    high = given.get("max") if high is None else high
    x = x if low is None else np.maximum(x, low)
    return x if high is None else np.minimum(x, high)


def cast(given: Attributes, x: Array) -> Array:
    if given["to"] == 9:
        return x != 0
    if given["to"] in (1, 10, 11, 16):
        return x.astype(np.float32)
    if given["to"] in (2, 3, 4, 5, 6, 7, 12, 13):
        return x.astype(np.int64)
    raise NotPossible(f" to type {given['to']}")


def leaky(given: Attributes, x: Array) -> Array:
    return np.where(x < 0, given.get("alpha", 0.01) * x, x)


def elu(given: Attributes, x: Array) -> Array:
    return np.where(x < 0, given.get("alpha", 1.0) * np.expm1(np.minimum(x, 0)), x)


def hard_sigmoid(given: Attributes, x: Array) -> Array:
    return np.clip(given.get("alpha", 0.2) * x + given.get("beta", 0.5), 0, 1)


def softplus(given: Attributes, x: Array) -> Array:
    return np.maximum(x, 0) + np.log1p(np.exp(-abs(x)))


# Shapes.


def axis_of(given: Attributes, default: int, rank: int) -> int:
    return int(given.get("axis", default)) % rank


def axes_of(given: Attributes, axes: Any) -> tuple[int, ...] | None:
    """Axes that an attribute names, or an input of later opsets; None: not said."""
    found = given.get("axes") if axes is None else axes
    return None if found is None else tuple(int(axis) for axis in np.asarray(found).reshape(-1))


def reshape(given: Attributes, x: Array, shape: Any) -> Array:
    wanted = [int(size) for size in shape]
    if not given.get("allowzero"):
        wanted = [x.shape[place] if size == 0 else size for place, size in enumerate(wanted)]
    return x.reshape(wanted)


def flatten(given: Attributes, x: Array) -> Array:
    axis = int(given.get("axis", 1)) % (x.ndim + 1)
    return x.reshape(math.prod(x.shape[:axis]), -1)


def squeeze(given: Attributes, x: Array, axes: Any = None) -> Array:
    return np.squeeze(x, axes_of(given, axes))


def unsqueeze(given: Attributes, x: Array, axes: Any = None) -> Array:
    return np.expand_dims(x, axes_of(given, axes) or ())


def expand(given: Attributes, x: Array, shape: Any) -> Array:
    return np.broadcast_to(x, np.broadcast_shapes(x.shape, tuple(int(size) for size in shape)))


def slice_of(given: Attributes, x: Array, *parts: Any) -> Array:
    starts, ends = parts[:2] if parts else (given["starts"], given["ends"])
    axes = parts[2] if len(parts) > 2 and parts[2] is not None else given.get("axes", range(len(starts)))
    steps = parts[3] if len(parts) > 3 and parts[3] is not None else [1] * len(starts)
    cut = [slice(None)] * x.ndim
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        size = x.shape[int(axis)]
        whole = step < 0 and end < -size  # down to the first
        cut[int(axis)] = slice(int(start), None if whole else int(end), int(step))
    return x[tuple(cut)]


def split_into(given: Attributes, x: Array, sizes: Any = None) -> list[Array]:
    axis, count = axis_of(given, 0, x.ndim), given["outputs"]
    sizes = given.get("split") if sizes is None else sizes
    if sizes is None:
        most = -(-x.shape[axis] // count)
        sizes = [most] * (count - 1) + [x.shape[axis] - most * (count - 1)]
    return list(np.split(x, np.cumsum(np.asarray(sizes))[:-1].tolist(), axis))


def gather(given: Attributes, x: Array, places: Array) -> Array:
    axis = axis_of(given, 0, x.ndim)
    if places.ndim:
        return np.take(x, places, axis)
    return np.squeeze(np.take(x, places.reshape(1), axis), axis)  # of a single place, the axis is gone


def gather_elements(given: Attributes, x: Array, places: Array) -> Array:
    axis = axis_of(given, 0, x.ndim)
    return np.take_along_axis(x, np.where(places < 0, places + x.shape[axis], places), axis)


def gather_nd(given: Attributes, x: Array, places: Array) -> Array:
    if given.get("batch_dims"):
        raise NotPossible(" of several batches")
    return x[tuple(places[..., axis] for axis in range(places.shape[-1]))]


def scatter_nd(given: Attributes, x: Array, places: Array, values: Array) -> Array:
    if given.get("reduction", "none") != "none":
        raise NotPossible(f" with reduction {given['reduction']}")
    key = tuple(places[..., axis] for axis in range(places.shape[-1]))
    if any(isinstance(one, traced.Traced) for one in (x, places, values)):
        return traced.scattered(traced.traced(x), key, values)
    result = x.copy()
    result[key] = values
    return result


def pad_with(given: Attributes, x: Array, pads: Any = None, value: Any = None, axes: Any = None) -> Array:
    pads = given["pads"] if pads is None else [int(pad) for pad in pads]
    count, widths = len(pads) // 2, [(0, 0)] * x.ndim
    for axis, before, after in zip(range(count) if axes is None else axes, pads[:count], pads[count:], strict=True):
        widths[int(axis)] = (int(before), int(after))
    mode = given.get("mode", "constant")
    if min(map(min, widths)) < 0:
        raise NotPossible(" by less than nothing")
    if mode == "constant":
        value = given.get("value", 0.0) if value is None else value
        return np.pad(x, widths, constant_values=float(np.asarray(value).reshape(-1)[0]))
    return np.pad(x, widths, mode={"reflect": "reflect", "edge": "edge", "wrap": "wrap"}[mode])  # type: ignore[call-overload]


def constant_of_shape(given: Attributes, shape: Any) -> Array:
    value = np.asarray(given.get("value", np.zeros(1, np.float32)))
    return np.full([int(size) for size in shape], value.reshape(-1)[0], value.dtype)


def depth_to_space(given: Attributes, x: Array) -> Array:
    batch, channels, height, width = x.shape
    size = given["blocksize"]
    if given.get("mode", "DCR") == "DCR":
        x = x.reshape(batch, size, size, channels // size**2, height, width).transpose(0, 3, 4, 1, 5, 2)
    else:
        x = x.reshape(batch, channels // size**2, size, size, height, width).transpose(0, 1, 4, 2, 5, 3)
    return x.reshape(batch, channels // size**2, height * size, width * size)


def space_to_depth(given: Attributes, x: Array) -> Array:
    batch, channels, height, width = x.shape
    size = given["blocksize"]
    x = x.reshape(batch, channels, height // size, size, width // size, size).transpose(0, 3, 5, 1, 2, 4)
    return x.reshape(batch, channels * size**2, height // size, width // size)


# Reductions.


def reduction(name: str) -> Callable[..., Array]:
    def function(given: Attributes, x: Array, axes: Any = None) -> Array:
        found = axes_of(given, axes)
        if found is None and given.get("noop_with_empty_axes"):
            return x
        keep = bool(given.get("keepdims", 1))
        if name == "l2":
            return np.sqrt((x * x).sum(axis=found, keepdims=keep))
        return getattr(x, name)(axis=found, keepdims=keep)

    return function


def arg_of(name: str) -> Callable[..., Array]:
    def function(given: Attributes, x: Array) -> Array:
        if given.get("select_last_index"):
            raise NotPossible(" with select_last_index")
        axis = axis_of(given, 0, x.ndim)
        found = getattr(np, name)(x, axis)
        return np.expand_dims(found, axis) if given.get("keepdims", 1) else found

    return function


def softmax(given: Attributes, x: Array) -> Array:
    if given["opset"] < 13:  # of all axes from this one on
        axis = axis_of(given, 1, x.ndim)
        flat = x.reshape(*x.shape[:axis], -1)
        return softmax_along(flat, -1).reshape(x.shape)
    return softmax_along(x, axis_of(given, -1, x.ndim))


def softmax_along(x: Array, axis: int) -> Array:
    powers = np.exp(x - x.max(axis=axis, keepdims=True))
    return powers / powers.sum(axis=axis, keepdims=True)


def top_k(given: Attributes, x: Array, count: Any) -> tuple[Array, Array]:
    k, axis = int(np.asarray(count).reshape(-1)[0]), axis_of(given, -1, x.ndim)
    rows = np.moveaxis(x, axis, -1)
    keys = -rows if given.get("largest", 1) else rows
    places = first_places(keys, k)
    values = np.take_along_axis(rows, places, -1)
    return np.moveaxis(values, -1, axis), np.moveaxis(places, -1, axis)


def first_places(keys: Array, count: int) -> Array:
    """(..., count): places of the smallest keys in order, of equal ones the first."""
    if isinstance(keys, np.ndarray):
        return np.argsort(keys, axis=-1, kind="stable")[..., :count]
    return traced.smallest(keys, count)


# Normalisation.


def normalised(x: Array, axes: tuple[int, ...], epsilon: float) -> Array:
    centred = x - x.mean(axis=axes, keepdims=True)
    return centred / np.sqrt((centred * centred).mean(axis=axes, keepdims=True) + epsilon)


def by_channel(value: Array, rank: int) -> Array:
    return value.reshape(-1, *[1] * (rank - 2))


def batch_norm(given: Attributes, x: Array, scale: Array, bias: Array, mean: Array, variance: Array) -> Array:
    scale, bias, mean, variance = (by_channel(value, x.ndim) for value in (scale, bias, mean, variance))
    return (x - mean) * (scale / np.sqrt(variance + given.get("epsilon", 1e-5))) + bias


def instance_norm(given: Attributes, x: Array, scale: Array, bias: Array) -> Array:
    found = normalised(x, tuple(range(2, x.ndim)), given.get("epsilon", 1e-5))
    return found * by_channel(scale, x.ndim) + by_channel(bias, x.ndim)


def group_norm(given: Attributes, x: Array, scale: Array, bias: Array) -> Array:
    parts = x.reshape(x.shape[0], given["num_groups"], -1)
    found = normalised(parts, (2,), given.get("epsilon", 1e-5)).reshape(x.shape)
    if len(scale) != x.shape[1]:  # before opset 21: of groups
        scale, bias = (value.repeat(x.shape[1] // len(value)) for value in (scale, bias))
    return found * by_channel(scale, x.ndim) + by_channel(bias, x.ndim)


def layer_norm(given: Attributes, x: Array, scale: Array, bias: Any = None) -> Array:
    axes = tuple(range(axis_of(given, -1, x.ndim), x.ndim))
    found = normalised(x, axes, given.get("epsilon", 1e-5)) * scale
    return found if bias is None else found + bias


# Products.


def einsum(given: Attributes, *factors: Array) -> Array:
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
    found = np.matmul(left_matrix, right_matrix).reshape([sizes[one] for one in made])
    return found.transpose([made.index(one) for one in right])


def gemm(given: Attributes, a: Array, b: Array, c: Any = None) -> Array:
    a, b = (a.T if given.get("transA") else a), (b.T if given.get("transB") else b)
    found = np.matmul(a, b)
    if (alpha := given.get("alpha", 1.0)) != 1:
        found = found * np.float32(alpha)
    if c is None:
        return found
    return found + (c if (beta := given.get("beta", 1.0)) == 1 else np.float32(beta) * c)
