"""ArrayProgram: nodes of an ONNX file, run one by one on arrays of NumPy, or traced for the GPU (`arrays.py`).

All shapes are known, so what only depends on shapes is computed with NumPy in both cases.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from framefuse.common.text import first_line
from framefuse.engines.cudnn import image_operators as images
from framefuse.engines.cudnn import operators as ops
from framefuse.engines.cudnn.operators import Array, Attributes, NotPossible
from framefuse.errors import ModelError

Function = Callable[..., Any]
"""As `operators.py` has them."""

OPERATORS: dict[str, tuple[Function, tuple[int, ...]]] = {
    "Shape": (lambda given, x: None, ()),
    **{
        name: (ops.binary(ufunc), ())
        for name, ufunc in {
            "Add": "add", "Sub": "subtract", "Mul": "multiply", "Pow": "power", "Min": "minimum", "Max": "maximum",
            "Sum": "add", "Equal": "equal", "Greater": "greater", "Less": "less", "GreaterOrEqual": "greater_equal",
            "LessOrEqual": "less_equal", "And": "logical_and", "Or": "logical_or", "Xor": "logical_xor",
        }.items()
    },
    **{
        name: (ops.unary(ufunc), ())
        for name, ufunc in {
            "Neg": "negative", "Abs": "abs", "Exp": "exp", "Log": "log", "Sqrt": "sqrt", "Reciprocal": "reciprocal",
            "Floor": "floor", "Ceil": "ceil", "Round": "rint", "Sin": "sin", "Cos": "cos", "Tanh": "tanh",
            "Sign": "sign", "Not": "logical_not", "IsNaN": "isnan", "Atan": "arctan",
        }.items()
    },
    "Div": (ops.div, ()),
    "Mod": (ops.mod, ()),
    "Erf": (ops.erf, ()),
    "Gelu": (ops.gelu, ()),
    "Relu": (lambda given, x: np.maximum(x, 0), ()),
    "Sigmoid": (ops.sigmoid, ()),
    "Softplus": (ops.softplus, ()),
    "Mish": (lambda given, x: x * np.tanh(ops.softplus(given, x)), ()),
    "LeakyRelu": (ops.leaky, ()),
    "PRelu": (lambda given, x, slope: np.where(x < 0, slope * x, x), ()),
    "Elu": (ops.elu, ()),
    "HardSigmoid": (ops.hard_sigmoid, ()),
    "HardSwish": (lambda given, x: x * np.clip(x / 6 + 0.5, 0, 1), ()),
    "Clip": (ops.clip_to, ()),
    "Where": (lambda given, which, a, b: np.where(which, a, b), ()),
    "Cast": (ops.cast, ()),
    "Identity": (lambda given, x: x, ()),
    "Dropout": (lambda given, x, *rest: x, ()),
    "Reshape": (ops.reshape, (1,)),
    "Flatten": (ops.flatten, ()),
    "Transpose": (lambda given, x: np.transpose(x, given.get("perm")), ()),
    "Squeeze": (ops.squeeze, (1,)),
    "Unsqueeze": (ops.unsqueeze, (1,)),
    "Expand": (ops.expand, (1,)),
    "Tile": (lambda given, x, counts: np.tile(x, [int(count) for count in counts]), (1,)),
    "Slice": (ops.slice_of, (1, 2, 3, 4)),
    "Concat": (lambda given, *xs: np.concatenate(xs, given["axis"]), ()),
    "Split": (ops.split_into, (1,)),
    "Gather": (ops.gather, ()),
    "GatherElements": (ops.gather_elements, ()),
    "GatherND": (ops.gather_nd, ()),
    "ScatterND": (ops.scatter_nd, ()),
    "Pad": (ops.pad_with, (1, 2, 3)),
    "ConstantOfShape": (ops.constant_of_shape, (0,)),
    "Range": (lambda given, start, limit, step: np.arange(start, limit, step), (0, 1, 2)),
    "DepthToSpace": (ops.depth_to_space, ()),
    "SpaceToDepth": (ops.space_to_depth, ()),
    "CumSum": (lambda given, x, axis: np.cumsum(x, int(np.asarray(axis).reshape(-1)[0])), (1,)),
    **{
        f"Reduce{name}": (ops.reduction(name.lower()), (1,)) for name in ("Sum", "Mean", "Max", "Min", "Prod", "L2")
    },
    "ArgMax": (ops.arg_of("argmax"), ()),
    "ArgMin": (ops.arg_of("argmin"), ()),
    "Softmax": (ops.softmax, ()),
    "LogSoftmax": (lambda given, x: np.log(ops.softmax(given, x)), ()),
    "TopK": (ops.top_k, (1,)),
    "BatchNormalization": (ops.batch_norm, ()),
    "InstanceNormalization": (ops.instance_norm, ()),
    "GroupNormalization": (ops.group_norm, ()),
    "LayerNormalization": (ops.layer_norm, ()),
    "MatMul": (lambda given, a, b: np.matmul(a, b), ()),
    "Gemm": (ops.gemm, ()),
    "Einsum": (ops.einsum, ()),
    "Conv": (images.conv, ()),
    "ConvTranspose": (images.conv_transpose, ()),
    "MaxPool": (images.max_pool, ()),
    "AveragePool": (images.average_pool, ()),
    "GlobalAveragePool": (images.global_pool("mean"), ()),
    "GlobalMaxPool": (images.global_pool("max"), ()),
    "Resize": (images.resize, (1, 2, 3)),
    "Upsample": (images.resize, (1,)),
    "GridSample": (images.grid_sample, ()),
}  # fmt: skip
"""By the operator's name: the function, and the places of inputs that must be known on the host, such as sizes."""


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
        self.on_gpu: dict[Hashable, Array] = {}
        """Copies of constants, which executions share."""

    def run(self, given: Mapping[str, Array], wanted: Sequence[str]) -> list[Array]:
        """The wanted values, float32, int64 or bool.

        Args:
            given: what the nodes read, as arrays of NumPy or traced ones.

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
                made, computed = self._call(call, values, host)
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
        return [values[name] if name in values else host[name] for name in wanted]

    def _call(self, call: Call, values: Mapping[str, Array], host: Mapping[str, Any]) -> tuple[Sequence[Array], bool]:
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
            else:
                arguments.append(host[name])
        found = function(call.attributes, *arguments)
        found = found if isinstance(found, tuple | list) else [found]
        return [_numbers(value) for value in found], device


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


def counted(kinds: Iterable[str], most: int | None = None) -> str:
    """Operators with their numbers, the most frequent first, such as "MatMul x2, Softmax x1"."""
    return ", ".join(f"{kind} x{times}" for kind, times in Counter(kinds).most_common(most))
