"""ONNX operators on arrays: what a network needs beside the steps that have kernels of their own.

An `ArrayProgram` runs nodes in order with NumPy or CuPy. All shapes are known, so what only depends on shapes is
computed on the host with NumPy, and the rest on the GPU in float32 and int64. Nothing reads an array of the GPU back,
so a run can be captured in a CUDA graph. Each function follows the operator of its name (onnx.ai/onnx/operators).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from framefuse.common.text import first_line
from framefuse.errors import ModelError

Array = Any
"""Of NumPy or CuPy."""
Attributes = Mapping[str, Any]


class NotPossible(Exception):
    """What an operator here cannot do; to follow its name."""


@dataclass(frozen=True)
class Call:
    """One node."""

    kind: str
    name: str
    inputs: tuple[str, ...]
    """Empty names are inputs that are left out."""
    outputs: tuple[str, ...]
    attributes: Attributes


class ArrayProgram:
    """Nodes of a graph, with the constants that they read.

    Args:
        nodes: in order, of operators that `OPERATORS` has.
        constants: by name.
        resolve: the value that a name stands for.
        opset: of the file.
    """

    def __init__(
        self,
        nodes: Sequence[Any],
        constants: Mapping[str, NDArray[Any]],
        resolve: Callable[[str], str] = lambda name: name,
        *,
        opset: int = 17,
    ) -> None:
        self.calls = [call_of(node, resolve, opset) for node in nodes]
        named = {name for call in self.calls for name in call.inputs if name}
        self.constants = {name: _numbers(constants[name]) for name in named & constants.keys()}
        made = {name for call in self.calls for name in call.outputs}
        self.reads = sorted(named - made - self.constants.keys())
        """Values that the nodes read and do not make."""
        self._uploaded: dict[tuple[str, tuple[int, ...], bytes], Array] = {}

    def run(self, xp: Any, given: Mapping[str, Array], wanted: Sequence[str]) -> list[Array]:
        """The wanted values, float32 or int64.

        Args:
            xp: NumPy or CuPy, whose arrays are given.

        Raises:
            ModelError: a node asks for what its operator here cannot do.
        """
        # Values that depend on shapes alone stay on the host.
        host: dict[str, NDArray[Any]] = dict(self.constants)
        values: dict[str, Array] = {**given}
        last = {name: index for index, call in enumerate(self.calls) for name in call.inputs}
        kept = {*wanted}
        for index, call in enumerate(self.calls):
            try:
                made, computed = self._call(xp, call, values, host)
            except NotPossible as error:
                raise ModelError(f"engine cudnn cannot run {call.kind} ({call.name}){error}") from error
            except (ValueError, IndexError, KeyError, TypeError) as error:  # sizes that do not go together
                message = f"engine cudnn cannot run {call.kind} ({call.name}): {first_line(error, 200)}"
                raise ModelError(message, remedy="use the input size of the model, or another engine") from error
            for name, value in zip(call.outputs, made, strict=False):
                (values if computed else host)[name] = value
            for name in call.inputs:  # its memory can be used again
                if last[name] == index and name not in kept:
                    values.pop(name, None)
        return [values[name] if name in values else self._upload(xp, host[name]) for name in wanted]

    def _call(
        self, xp: Any, call: Call, values: Mapping[str, Array], host: Mapping[str, Any]
    ) -> tuple[Sequence[Array], bool]:
        """The outputs of a node, and whether they depend on more than shapes."""
        function, on_host = OPERATORS[call.kind]
        if call.kind == "Shape":
            name = call.inputs[0]
            shape = (values[name] if name in values else host[name]).shape
            return [np.array(shape[call.attributes.get("start", 0) : call.attributes.get("end")], np.int64)], False
        device = any(name in values for name in call.inputs)
        arguments: list[Array] = []
        for place, name in enumerate(call.inputs):
            if not name:
                arguments.append(None)
            elif name in values:
                if device and place in on_host:
                    raise NotPossible(f", whose input {name} is computed")
                arguments.append(values[name])
            elif not device or place in on_host or call.kind == "Gather":
                arguments.append(host[name])
            else:
                arguments.append(self._upload(xp, host[name]))
        given = {**call.attributes, "upload": self._upload}
        found = function(xp if device else np, given, *arguments)
        found = found if isinstance(found, tuple | list) else [found]
        return [_numbers(value) for value in found], device

    def _upload(self, xp: Any, value: NDArray[Any]) -> Array:
        """An array of the host where those of `xp` are. It is copied once: in a captured run there are no copies."""
        if xp is np or not isinstance(value, np.ndarray):
            return value
        key = value.dtype.str, value.shape, value.tobytes()
        if key not in self._uploaded:
            self._uploaded[key] = xp.asarray(np.ascontiguousarray(value))
        return self._uploaded[key]


def call_of(node: Any, resolve: Callable[[str], str], opset: int) -> Call:
    """A node of ONNX with its attributes as plain values."""
    from onnx import helper, numpy_helper

    found: dict[str, Any] = {"opset": opset, "outputs": len(node.output)}
    for attribute in node.attribute:
        value = helper.get_attribute_value(attribute)
        if isinstance(value, bytes):
            value = value.decode()
        elif hasattr(value, "raw_data"):
            value = numpy_helper.to_array(value)
        found[attribute.name] = value
    inputs = tuple(resolve(name) if name else "" for name in node.input)
    return Call(node.op_type, node.name or node.output[0], inputs, tuple(node.output), found)


def _numbers(value: Array) -> Array:
    """Of the three types that there are: float32, int64 and bool."""
    kind = value.dtype.kind
    if kind == "f" or value.dtype.name == "bfloat16":
        return value.astype(np.float32, copy=False)
    return value if kind == "b" else value.astype(np.int64, copy=False)


# Elementwise.


def _binary(name: str) -> Callable[..., Array]:
    return lambda xp, given, *values: _folded(getattr(xp, name), values)


def _folded(function: Callable[[Array, Array], Array], values: Sequence[Array]) -> Array:
    result = values[0]
    for value in values[1:]:
        result = function(result, value)
    return result


def _unary(name: str) -> Callable[..., Array]:
    return lambda xp, given, x: getattr(xp, name)(x)


def _div(xp: Any, given: Attributes, a: Array, b: Array) -> Array:
    if a.dtype.kind != "f":  # towards 0
        return xp.sign(a) * xp.sign(b) * (abs(a) // abs(b))
    return a / b


def _mod(xp: Any, given: Attributes, a: Array, b: Array) -> Array:
    return xp.fmod(a, b) if given.get("fmod") else xp.mod(a, b)


def _sigmoid(xp: Any, given: Attributes, x: Array) -> Array:
    return 0.5 * xp.tanh(0.5 * x) + 0.5


def _erf(xp: Any, given: Attributes, x: Array) -> Array:
    if xp is np:
        return np.vectorize(math.erf, otypes=[np.float32])(x)
    from cupyx.scipy import special

    return special.erf(x)


def _gelu(xp: Any, given: Attributes, x: Array) -> Array:
    if given.get("approximate") == "tanh":
        return 0.5 * x * (1 + xp.tanh(0.7978845608 * (x + 0.044715 * x * x * x)))
    return 0.5 * x * (1 + _erf(xp, given, x * 0.7071067812))


def _clip(xp: Any, given: Attributes, x: Array, low: Any = None, high: Any = None) -> Array:
    low = given.get("min") if low is None else low
    high = given.get("max") if high is None else high
    x = x if low is None else xp.maximum(x, low)
    return x if high is None else xp.minimum(x, high)


def _cast(xp: Any, given: Attributes, x: Array) -> Array:
    if given["to"] == 9:
        return x != 0
    if given["to"] in (1, 10, 11, 16):
        return x.astype(np.float32)
    if given["to"] in (2, 3, 4, 5, 6, 7, 12, 13):
        return x.astype(np.int64)
    raise NotPossible(f" to type {given['to']}")


def _leaky(xp: Any, given: Attributes, x: Array) -> Array:
    return xp.where(x < 0, given.get("alpha", 0.01) * x, x)


def _elu(xp: Any, given: Attributes, x: Array) -> Array:
    return xp.where(x < 0, given.get("alpha", 1.0) * xp.expm1(xp.minimum(x, 0)), x)


def _hard_sigmoid(xp: Any, given: Attributes, x: Array) -> Array:
    return xp.clip(given.get("alpha", 0.2) * x + given.get("beta", 0.5), 0, 1)


def _softplus(xp: Any, given: Attributes, x: Array) -> Array:
    return xp.maximum(x, 0) + xp.log1p(xp.exp(-abs(x)))


# Shapes.


def _axis(given: Attributes, default: int, rank: int) -> int:
    return int(given.get("axis", default)) % rank


def _axes(given: Attributes, axes: Any) -> tuple[int, ...] | None:
    """Axes that an attribute names, or an input of later opsets; None: not said."""
    found = given.get("axes") if axes is None else axes
    return None if found is None else tuple(int(axis) for axis in np.asarray(found).reshape(-1))


def _reshape(xp: Any, given: Attributes, x: Array, shape: Any) -> Array:
    wanted = [int(size) for size in shape]
    if not given.get("allowzero"):
        wanted = [x.shape[place] if size == 0 else size for place, size in enumerate(wanted)]
    return x.reshape(wanted)


def _flatten(xp: Any, given: Attributes, x: Array) -> Array:
    axis = int(given.get("axis", 1)) % (x.ndim + 1)
    return x.reshape(math.prod(x.shape[:axis]), -1)


def _squeeze(xp: Any, given: Attributes, x: Array, axes: Any = None) -> Array:
    return xp.squeeze(x, _axes(given, axes))


def _unsqueeze(xp: Any, given: Attributes, x: Array, axes: Any = None) -> Array:
    return xp.expand_dims(x, _axes(given, axes))


def _expand(xp: Any, given: Attributes, x: Array, shape: Any) -> Array:
    return xp.broadcast_to(x, np.broadcast_shapes(x.shape, tuple(int(size) for size in shape)))


def _slice(xp: Any, given: Attributes, x: Array, *parts: Any) -> Array:
    starts, ends = parts[:2] if parts else (given["starts"], given["ends"])
    axes = parts[2] if len(parts) > 2 and parts[2] is not None else given.get("axes", range(len(starts)))
    steps = parts[3] if len(parts) > 3 and parts[3] is not None else [1] * len(starts)
    cut = [slice(None)] * x.ndim
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        size = x.shape[int(axis)]
        whole = step < 0 and end < -size  # down to the first
        cut[int(axis)] = slice(int(start), None if whole else int(end), int(step))
    return x[tuple(cut)]


def _split(xp: Any, given: Attributes, x: Array, sizes: Any = None) -> list[Array]:
    axis, count = _axis(given, 0, x.ndim), given["outputs"]
    sizes = given.get("split") if sizes is None else sizes
    if sizes is None:
        most = -(-x.shape[axis] // count)
        sizes = [most] * (count - 1) + [x.shape[axis] - most * (count - 1)]
    return list(xp.split(x, np.cumsum(np.asarray(sizes))[:-1].tolist(), axis))


def _gather(xp: Any, given: Attributes, x: Array, places: Array) -> Array:
    axis = _axis(given, 0, x.ndim)
    if isinstance(places, np.ndarray) and not places.ndim:
        return x[(*[slice(None)] * axis, int(places))]
    return xp.take(*(given["upload"](xp, value) for value in (x, places)), axis)


def _gather_elements(xp: Any, given: Attributes, x: Array, places: Array) -> Array:
    axis = _axis(given, 0, x.ndim)
    return xp.take_along_axis(x, xp.where(places < 0, places + x.shape[axis], places), axis)


def _gather_nd(xp: Any, given: Attributes, x: Array, places: Array) -> Array:
    if given.get("batch_dims"):
        raise NotPossible(" of several batches")
    return x[tuple(places[..., axis] for axis in range(places.shape[-1]))]


def _scatter_nd(xp: Any, given: Attributes, x: Array, places: Array, values: Array) -> Array:
    if given.get("reduction", "none") != "none":
        raise NotPossible(f" with reduction {given['reduction']}")
    result = x.copy()
    result[tuple(places[..., axis] for axis in range(places.shape[-1]))] = values
    return result


def _pad(xp: Any, given: Attributes, x: Array, pads: Any = None, value: Any = None, axes: Any = None) -> Array:
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


def _constant_of_shape(xp: Any, given: Attributes, shape: Any) -> Array:
    value = np.asarray(given.get("value", np.zeros(1, np.float32)))
    return np.full([int(size) for size in shape], value.reshape(-1)[0], value.dtype)


def _depth_to_space(xp: Any, given: Attributes, x: Array) -> Array:
    batch, channels, height, width = x.shape
    size = given["blocksize"]
    if given.get("mode", "DCR") == "DCR":
        x = x.reshape(batch, size, size, channels // size**2, height, width).transpose(0, 3, 4, 1, 5, 2)
    else:
        x = x.reshape(batch, channels // size**2, size, size, height, width).transpose(0, 1, 4, 2, 5, 3)
    return x.reshape(batch, channels // size**2, height * size, width * size)


def _space_to_depth(xp: Any, given: Attributes, x: Array) -> Array:
    batch, channels, height, width = x.shape
    size = given["blocksize"]
    x = x.reshape(batch, channels, height // size, size, width // size, size).transpose(0, 3, 5, 1, 2, 4)
    return x.reshape(batch, channels * size**2, height // size, width // size)


# Reductions.


def _reduce(name: str) -> Callable[..., Array]:
    def function(xp: Any, given: Attributes, x: Array, axes: Any = None) -> Array:
        found = _axes(given, axes)
        if found is None and given.get("noop_with_empty_axes"):
            return x
        keep = bool(given.get("keepdims", 1))
        if name == "l2":
            return xp.sqrt((x * x).sum(axis=found, keepdims=keep))
        return getattr(x, name)(axis=found, keepdims=keep)

    return function


def _arg(name: str) -> Callable[..., Array]:
    def function(xp: Any, given: Attributes, x: Array) -> Array:
        if given.get("select_last_index"):
            raise NotPossible(" with select_last_index")
        axis = _axis(given, 0, x.ndim)
        found = getattr(xp, name)(x, axis)
        return xp.expand_dims(found, axis) if given.get("keepdims", 1) else found

    return function


def _softmax(xp: Any, given: Attributes, x: Array) -> Array:
    if given["opset"] < 13:  # of all axes from this one on
        axis = _axis(given, 1, x.ndim)
        flat = x.reshape(*x.shape[:axis], -1)
        return _softmax_along(xp, flat, -1).reshape(x.shape)
    return _softmax_along(xp, x, _axis(given, -1, x.ndim))


def _softmax_along(xp: Any, x: Array, axis: int) -> Array:
    powers = xp.exp(x - x.max(axis=axis, keepdims=True))
    return powers / powers.sum(axis=axis, keepdims=True)


def _top_k(xp: Any, given: Attributes, x: Array, count: Any) -> tuple[Array, Array]:
    k, axis = int(np.asarray(count).reshape(-1)[0]), _axis(given, -1, x.ndim)
    rows = xp.moveaxis(x, axis, -1)
    keys = -rows if given.get("largest", 1) else rows
    places = _first(xp, keys, k)
    values = xp.take_along_axis(rows, places, -1)
    return xp.moveaxis(values, -1, axis), xp.moveaxis(places, -1, axis)


def _first(xp: Any, keys: Array, count: int) -> Array:
    """(..., count): places of the smallest keys in order, of equal ones the first."""
    if xp is np:
        return np.argsort(keys, axis=-1, kind="stable")[..., :count]
    from framefuse.kernels.network.call import smallest

    return smallest(keys.astype(np.float32), count)


# Normalisation.


def _normalised(xp: Any, x: Array, axes: tuple[int, ...], epsilon: float) -> Array:
    centred = x - x.mean(axis=axes, keepdims=True)
    return centred / xp.sqrt((centred * centred).mean(axis=axes, keepdims=True) + epsilon)


def _by_channel(value: Array, rank: int) -> Array:
    return value.reshape(-1, *[1] * (rank - 2))


def _batch_norm(xp: Any, given: Attributes, x: Array, scale: Array, bias: Array, mean: Array, variance: Array) -> Array:
    scale, bias, mean, variance = (_by_channel(value, x.ndim) for value in (scale, bias, mean, variance))
    return (x - mean) * (scale / xp.sqrt(variance + given.get("epsilon", 1e-5))) + bias


def _instance_norm(xp: Any, given: Attributes, x: Array, scale: Array, bias: Array) -> Array:
    found = _normalised(xp, x, tuple(range(2, x.ndim)), given.get("epsilon", 1e-5))
    return found * _by_channel(scale, x.ndim) + _by_channel(bias, x.ndim)


def _group_norm(xp: Any, given: Attributes, x: Array, scale: Array, bias: Array) -> Array:
    parts = x.reshape(x.shape[0], given["num_groups"], -1)
    found = _normalised(xp, parts, (2,), given.get("epsilon", 1e-5)).reshape(x.shape)
    if len(scale) != x.shape[1]:  # before opset 21: of groups
        scale, bias = (value.repeat(x.shape[1] // len(value)) for value in (scale, bias))
    return found * _by_channel(scale, x.ndim) + _by_channel(bias, x.ndim)


def _layer_norm(xp: Any, given: Attributes, x: Array, scale: Array, bias: Any = None) -> Array:
    axes = tuple(range(_axis(given, -1, x.ndim), x.ndim))
    found = _normalised(xp, x, axes, given.get("epsilon", 1e-5)) * scale
    return found if bias is None else found + bias


# Products.


def _product(xp: Any, a: Array, b: Array) -> Array:
    """The matrix product; see `cuda.blas`."""
    if xp is np:
        return np.matmul(a, b)
    from framefuse.cuda import blas

    return blas.matmul(a, b)


def _einsum(xp: Any, given: Attributes, *factors: Array) -> Array:
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
    found = _product(xp, left_matrix, right_matrix).reshape([sizes[one] for one in made])
    return found.transpose([made.index(one) for one in right])


def _gemm(xp: Any, given: Attributes, a: Array, b: Array, c: Any = None) -> Array:
    a, b = (a.T if given.get("transA") else a), (b.T if given.get("transB") else b)
    found = _product(xp, a, b)
    if (alpha := given.get("alpha", 1.0)) != 1:
        found = found * np.float32(alpha)
    if c is None:
        return found
    return found + (c if (beta := given.get("beta", 1.0)) == 1 else np.float32(beta) * c)


def _padded(
    xp: Any, given: Attributes, x: Array, size: Sequence[int], value: float
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
    x = xp.pad(x, widths, constant_values=value) if any(pads) else x
    counts = [(side - extent) // step + 1 for side, extent, step in zip(x.shape[2:], extents, strides, strict=True)]
    return x, strides, dilations, counts


def _windows(xp: Any, given: Attributes, x: Array, size: Sequence[int], value: float) -> Array:
    """(batch, channels, *outputs, *size): a view of what each window of a convolution or pool sees."""
    x, strides, dilations, counts = _padded(xp, given, x, size, value)
    steps = [*x.strides[:2]]
    steps += [stride * step for stride, step in zip(x.strides[2:], strides, strict=True)]
    steps += [stride * step for stride, step in zip(x.strides[2:], dilations, strict=True)]
    return xp.lib.stride_tricks.as_strided(x, (*x.shape[:2], *counts, *size), steps)


def _conv(xp: Any, given: Attributes, x: Array, weight: Array, bias: Any = None) -> Array:
    groups, rank = given.get("group", 1), x.ndim - 2
    windows = _windows(xp, given, x, weight.shape[2:], 0.0)
    batch, channels, counts = len(x), x.shape[1] // groups, windows.shape[2 : 2 + rank]
    order = (0, 1, *range(3, 3 + rank), 2, *range(3 + rank, 3 + 2 * rank))
    parts = windows.reshape(batch, groups, channels, *windows.shape[2:]).transpose(order)
    parts = parts.reshape(batch, groups, math.prod(counts), -1)
    filters = weight.reshape(groups, len(weight) // groups, -1).transpose(0, 2, 1)
    found = _product(xp, parts, filters).transpose(0, 1, 3, 2).reshape(batch, len(weight), *counts)
    return found if bias is None else found + _by_channel(bias, x.ndim)


def _conv_transpose(xp: Any, given: Attributes, x: Array, weight: Array, bias: Any = None) -> Array:
    """As the convolution of x with zeros between its samples, with mirrored filters."""
    groups, rank = given.get("group", 1), x.ndim - 2
    if given.get("output_shape") or given.get("auto_pad", "NOTSET") != "NOTSET":
        raise NotPossible(" to a stated shape")
    strides, dilations = given.get("strides", [1] * rank), given.get("dilations", [1] * rank)
    pads, more = given.get("pads", [0] * 2 * rank), given.get("output_padding", [0] * rank)
    sides = [(side - 1) * step + 1 for side, step in zip(x.shape[2:], strides, strict=True)]
    spread = xp.zeros((*x.shape[:2], *sides), np.float32)
    spread[(slice(None), slice(None), *(slice(None, None, step) for step in strides))] = x
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
    return _conv(xp, again, spread, mirrored, bias)


# Pools and samples of images.


def _max_pool(xp: Any, given: Attributes, x: Array) -> Array:
    if given["outputs"] > 1:
        raise NotPossible(" with indices")
    size = given["kernel_shape"]
    x, strides, dilations, counts = _padded(xp, given, x, size, -np.inf)
    for axis, (length, stride, step, count) in enumerate(zip(size, strides, dilations, counts, strict=True), 2):
        ahead = [slice(None)] * axis
        x = _folded(
            xp.maximum,
            [x[(*ahead, slice(k * step, k * step + (count - 1) * stride + 1, stride))] for k in range(length)],
        )
    return x


def _average_pool(xp: Any, given: Attributes, x: Array) -> Array:
    rank = x.ndim - 2
    axes = tuple(range(2 + rank, 2 + 2 * rank))
    sums = _windows(xp, given, x, given["kernel_shape"], 0.0).sum(axis=axes)
    if given.get("count_include_pad") and not given.get("ceil_mode"):
        return sums / np.float32(math.prod(given["kernel_shape"]))
    ones = np.ones((1, 1, *x.shape[2:]), np.float32)
    counts = _windows(np, given, ones, given["kernel_shape"], 0.0).sum(axis=axes)
    return sums / given["upload"](xp, counts)


def _global_pool(name: str) -> Callable[..., Array]:
    return lambda xp, given, x: getattr(x, name)(axis=tuple(range(2, x.ndim)), keepdims=True)


def _resize(xp: Any, given: Attributes, x: Array, *others: Any) -> Array:
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
        at = _positions(how, target, side, factor)
        shape = [1] * x.ndim
        shape[axis] = target
        if mode == "nearest":
            x = xp.take(x, given["upload"](xp, _nearest(given, at, side)), axis)
            continue
        low = np.floor(at).astype(np.int64)
        weight = given["upload"](xp, (at - low).astype(np.float32).reshape(shape))
        below, above = (given["upload"](xp, (low + step).clip(0, side - 1)) for step in (0, 1))
        lower = xp.take(x, below, axis)
        x = lower + (xp.take(x, above, axis) - lower) * weight
    return x


def _positions(how: str, target: int, side: int, factor: float) -> NDArray[np.float64]:
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


def _nearest(given: Attributes, at: NDArray[np.float64], side: int) -> NDArray[np.int64]:
    kind = given.get("nearest_mode", "round_prefer_floor") if given["opset"] > 10 else "floor"
    rounded = {
        "round_prefer_floor": lambda: np.ceil(at - 0.5),
        "round_prefer_ceil": lambda: np.floor(at + 0.5),
        "floor": lambda: np.floor(at),
        "ceil": lambda: np.ceil(at),
    }[kind]()
    return rounded.clip(0, side - 1).astype(np.int64)


def _grid_sample(xp: Any, given: Attributes, x: Array, grid: Array) -> Array:
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
        where = [xp.clip(at, 0, side - 1) for at, side in zip(where, (width, height), strict=True)]
    low = [xp.floor(at) for at in where]
    flat = x.reshape(batch, channels, height * width)
    total: Any = 0
    for right in (0, 1):
        for down in (0, 1):
            column, row = low[0] + right, low[1] + down
            weight = (1 - abs(where[0] - column)) * (1 - abs(where[1] - row))
            inside = (column >= 0) & (column < width) & (row >= 0) & (row < height)
            weight = xp.where(inside, weight, 0)
            place = xp.clip(row, 0, height - 1) * width + xp.clip(column, 0, width - 1)
            place = place.astype(np.int64).reshape(batch, 1, -1)
            samples = xp.take_along_axis(flat, xp.broadcast_to(place, (batch, channels, place.shape[2])), 2)
            total = total + samples * weight.reshape(batch, 1, -1)
    return total.reshape(batch, channels, *grid.shape[1:3])


Function = Callable[..., Any]
"""(xp, attributes, *inputs) -> an array, or several. Inputs that are left out are None."""

OPERATORS: dict[str, tuple[Function, tuple[int, ...]]] = {
    "Shape": (lambda xp, given, x: None, ()),
    **{
        name: (_binary(ufunc), ())
        for name, ufunc in {
            "Add": "add", "Sub": "subtract", "Mul": "multiply", "Pow": "power", "Min": "minimum", "Max": "maximum",
            "Sum": "add", "Equal": "equal", "Greater": "greater", "Less": "less", "GreaterOrEqual": "greater_equal",
            "LessOrEqual": "less_equal", "And": "logical_and", "Or": "logical_or", "Xor": "logical_xor",
        }.items()
    },
    **{
        name: (_unary(ufunc), ())
        for name, ufunc in {
            "Neg": "negative", "Abs": "abs", "Exp": "exp", "Log": "log", "Sqrt": "sqrt", "Reciprocal": "reciprocal",
            "Floor": "floor", "Ceil": "ceil", "Round": "rint", "Sin": "sin", "Cos": "cos", "Tanh": "tanh",
            "Sign": "sign", "Not": "logical_not", "IsNaN": "isnan", "Atan": "arctan",
        }.items()
    },
    "Div": (_div, ()),
    "Mod": (_mod, ()),
    "Erf": (_erf, ()),
    "Gelu": (_gelu, ()),
    "Relu": (lambda xp, given, x: xp.maximum(x, 0), ()),
    "Sigmoid": (_sigmoid, ()),
    "Softplus": (_softplus, ()),
    "Mish": (lambda xp, given, x: x * xp.tanh(_softplus(xp, given, x)), ()),
    "LeakyRelu": (_leaky, ()),
    "PRelu": (lambda xp, given, x, slope: xp.where(x < 0, slope * x, x), ()),
    "Elu": (_elu, ()),
    "HardSigmoid": (_hard_sigmoid, ()),
    "HardSwish": (lambda xp, given, x: x * xp.clip(x / 6 + 0.5, 0, 1), ()),
    "Clip": (_clip, ()),
    "Where": (lambda xp, given, which, a, b: xp.where(which, a, b), ()),
    "Cast": (_cast, ()),
    "Identity": (lambda xp, given, x: x, ()),
    "Dropout": (lambda xp, given, x, *rest: x, ()),
    "Reshape": (_reshape, (1,)),
    "Flatten": (_flatten, ()),
    "Transpose": (lambda xp, given, x: xp.transpose(x, given.get("perm")), ()),
    "Squeeze": (_squeeze, (1,)),
    "Unsqueeze": (_unsqueeze, (1,)),
    "Expand": (_expand, (1,)),
    "Tile": (lambda xp, given, x, counts: xp.tile(x, [int(count) for count in counts]), (1,)),
    "Slice": (_slice, (1, 2, 3, 4)),
    "Concat": (lambda xp, given, *xs: xp.concatenate(xs, given["axis"]), ()),
    "Split": (_split, (1,)),
    "Gather": (_gather, ()),
    "GatherElements": (_gather_elements, ()),
    "GatherND": (_gather_nd, ()),
    "ScatterND": (_scatter_nd, ()),
    "Pad": (_pad, (1, 2, 3)),
    "ConstantOfShape": (_constant_of_shape, (0,)),
    "Range": (lambda xp, given, start, limit, step: np.arange(start, limit, step), (0, 1, 2)),
    "DepthToSpace": (_depth_to_space, ()),
    "SpaceToDepth": (_space_to_depth, ()),
    "CumSum": (lambda xp, given, x, axis: xp.cumsum(x, int(np.asarray(axis).reshape(-1)[0])), (1,)),
    **{
        f"Reduce{name}": (_reduce(name.lower()), (1,)) for name in ("Sum", "Mean", "Max", "Min", "Prod", "L2")
    },
    "ArgMax": (_arg("argmax"), ()),
    "ArgMin": (_arg("argmin"), ()),
    "Softmax": (_softmax, ()),
    "LogSoftmax": (lambda xp, given, x: xp.log(_softmax(xp, given, x)), ()),
    "TopK": (_top_k, (1,)),
    "BatchNormalization": (_batch_norm, ()),
    "InstanceNormalization": (_instance_norm, ()),
    "GroupNormalization": (_group_norm, ()),
    "LayerNormalization": (_layer_norm, ()),
    "MatMul": (lambda xp, given, a, b: _product(xp, a, b), ()),
    "Gemm": (_gemm, ()),
    "Einsum": (_einsum, ()),
    "Conv": (_conv, ()),
    "ConvTranspose": (_conv_transpose, ()),
    "MaxPool": (_max_pool, ()),
    "AveragePool": (_average_pool, ()),
    "GlobalAveragePool": (_global_pool("mean"), ()),
    "GlobalMaxPool": (_global_pool("max"), ()),
    "Resize": (_resize, (1, 2, 3)),
    "Upsample": (_resize, (1,)),
    "GridSample": (_grid_sample, ()),
}  # fmt: skip
"""By the operator's name: the function, and the places of inputs that must be known on the host, such as sizes."""
