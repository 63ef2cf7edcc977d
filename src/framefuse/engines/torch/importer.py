"""An ONNX file as PyTorch calls, for one input shape: the operators that detectors, classifiers and exporters use.

Each takes (inputs, attributes). An input that says how, not what (a shape, axes, sizes), comes as plain numbers.
"""

import functools
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from framefuse.errors import ModelError

Inputs = Sequence[Any]
Attributes = dict[str, Any]
Operator = Callable[..., Any]
"""(inputs, attributes) -> the output, or a tuple of outputs."""
Part = Callable[[dict[str, Any]], Any]
"""Values by name, of what has run -> an input of a node."""


def conv(inputs: Inputs, a: Attributes, transposed: bool = False) -> Any:
    x, weight, bias = [*inputs, None][:3]
    _no_auto_pad("ConvTranspose" if transposed else "Conv", a)
    sides = weight.dim() - 2
    pads, extra, ones = a.get("pads", [0] * 2 * sides), a.get("output_padding", [0] * sides), [1] * sides
    if transposed and list(pads[:sides]) != list(pads[sides:]):
        raise _lacks(f"ConvTranspose with pads {pads}")
    x, padding = _padded(x, pads, 0.0)
    strides, dilations, groups = a.get("strides", ones), a.get("dilations", ones), a.get("group", 1)
    return torch.convolution(x, weight, bias, strides, padding, dilations, transposed, extra, groups)


def max_pool(inputs: Inputs, a: Attributes) -> Any:
    _no_auto_pad("MaxPool", a)
    kernel = a["kernel_shape"]
    x, padding = _padded(inputs[0], a.get("pads", [0] * 2 * len(kernel)), float("-inf"))
    strides, dilations = a.get("strides", [1] * len(kernel)), a.get("dilations", [1] * len(kernel))
    return F.max_pool2d(x, kernel, strides, padding, dilations, bool(a.get("ceil_mode", 0)))


def average_pool(inputs: Inputs, a: Attributes) -> Any:
    _no_auto_pad("AveragePool", a)
    kernel, half = a["kernel_shape"], len(a["kernel_shape"])
    pads, strides = a.get("pads", [0] * 2 * half), a.get("strides", [1] * half)
    if list(pads[:half]) != list(pads[half:]):
        raise _lacks(f"AveragePool with pads {pads}")
    ceil, counted = bool(a.get("ceil_mode", 0)), bool(a.get("count_include_pad", 0))
    return F.avg_pool2d(inputs[0], kernel, strides, pads[:half], ceil, counted)


def resize(inputs: Inputs, a: Attributes) -> Any:
    """Resize as exporters write it: nearest by whole factors, linear or cubic between centres or corners."""
    x, _, scales, sizes = [*inputs, None, None, None][:4]
    size = list(sizes)[2:] if sizes else [int(n * s) for n, s in zip(x.shape[2:], list(scales or [])[2:], strict=True)]
    mode, where = a.get("mode", "nearest"), a.get("coordinate_transformation_mode", "half_pixel")
    if mode == "nearest" and all(new % old == 0 for new, old in zip(size, x.shape[2:], strict=True)):
        return F.interpolate(x, size, mode="nearest")
    if mode in ("linear", "cubic") and where in ("half_pixel", "pytorch_half_pixel", "align_corners"):
        kind = "bilinear" if mode == "linear" else "bicubic"
        return F.interpolate(x, size, mode=kind, align_corners=where == "align_corners")
    raise _lacks(f"Resize from {tuple(x.shape[2:])} to {tuple(size)} with mode {mode}, {where}")


def _stated(inputs: Inputs, number: int, a: Attributes, name: str) -> Any:
    """An input that older opsets have as an attribute; None if it is omitted."""
    value = inputs[number] if len(inputs) > number else None
    return a.get(name) if value is None else value


def split(inputs: Inputs, a: Attributes) -> Any:
    x, axis, sizes = inputs[0], a.get("axis", 0), _stated(inputs, 1, a, "split")
    return x.chunk(a.get("num_outputs", a["outputs"]), axis) if sizes is None else x.split(list(sizes), axis)


def reshape(inputs: Inputs, a: Attributes) -> Any:
    x, shape = inputs
    keep_zero = a.get("allowzero", 0)
    return x.reshape([x.shape[axis] if size == 0 and not keep_zero else size for axis, size in enumerate(shape)])


def cut(inputs: Inputs, a: Attributes) -> Any:
    """Slice."""
    x = inputs[0]
    starts, ends, axes, steps = (
        _stated(inputs, number, a, name) for number, name in enumerate(("starts", "ends", "axes", "steps"), 1)
    )
    axes, steps = axes or range(len(starts)), steps or [1] * len(starts)
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        size = x.shape[axis]
        numbers = range(size)[slice(start, end, step)]
        if step > 0:
            index = [slice(None)] * x.dim()
            index[axis] = slice(numbers.start, numbers.stop, step)
            x = x[tuple(index)]
        elif step == -1 and len(numbers) == size:
            x = x.flip(axis)
        else:
            raise _lacks(f"Slice with step {step}")
    return x


def gather(inputs: Inputs, a: Attributes) -> Any:
    x, axis, index = _indexed(inputs, a)
    flat = x.index_select(axis, index.reshape(-1))
    axis %= x.dim()
    return flat.reshape([*x.shape[:axis], *index.shape, *x.shape[axis + 1 :]])


def unsqueeze(inputs: Inputs, a: Attributes) -> Any:
    x, axes = inputs[0], _stated(inputs, 1, a, "axes")
    total = x.dim() + len(axes)
    for axis in sorted(axis % total for axis in axes):
        x = x.unsqueeze(axis)
    return x


def squeeze(inputs: Inputs, a: Attributes) -> Any:
    x, axes = inputs[0], _stated(inputs, 1, a, "axes")
    return x.squeeze(tuple(axes)) if axes is not None else x.squeeze()


def reduce(inputs: Inputs, a: Attributes, call: Callable[..., Any]) -> Any:
    x, axes = inputs[0], _stated(inputs, 1, a, "axes")
    return call(x, tuple(range(x.dim())) if axes is None else tuple(axes), bool(a.get("keepdims", 1)))


def gemm(inputs: Inputs, a: Attributes) -> Any:
    left, right, *bias = inputs
    left = left.mT if a.get("transA") else left
    right = right.mT if a.get("transB") else right
    product = a.get("alpha", 1.0) * (left @ right)
    return product + a.get("beta", 1.0) * bias[0] if bias else product


def batch_norm(inputs: Inputs, a: Attributes) -> Any:
    x, scale, shift, mean, variance = inputs
    return F.batch_norm(x, mean, variance, scale, shift, eps=a.get("epsilon", 1e-5))


def layer_norm(inputs: Inputs, a: Attributes) -> Any:
    x, scale, shift = [*inputs, None][:3]
    return F.layer_norm(x, x.shape[a.get("axis", -1) :], scale, shift, eps=a.get("epsilon", 1e-5))


def grid_sample(inputs: Inputs, a: Attributes) -> Any:
    mode, outside = a.get("mode", "linear"), a.get("padding_mode", "zeros")
    if "linear" not in mode:
        raise _lacks(f"GridSample with mode {mode}")
    return F.grid_sample(*inputs, padding_mode=outside, align_corners=bool(a.get("align_corners", 0)))


def pad(inputs: Inputs, a: Attributes) -> Any:
    x, pads, *value = inputs
    half = len(pads) // 2
    if a.get("mode", "constant") != "constant" or len(value) > 1 or half != x.dim():
        raise _lacks(f"Pad with mode {a.get('mode')} and axes")
    return F.pad(x, _innermost_first(pads), value=value[0] if value and value[0] is not None else 0.0)


def cumulative_sum(inputs: Inputs, a: Attributes) -> Any:
    x, axis = inputs
    if a.get("exclusive") or a.get("reverse"):
        raise _lacks("CumSum that is exclusive or reversed")
    return x.cumsum(axis[0] if isinstance(axis, list) else axis, dtype=x.dtype)


def _plain(call: Callable[..., Any]) -> Operator:
    return lambda inputs, a: call(*inputs)


def _folded(call: Callable[..., Any]) -> Operator:
    """An operator of any number of inputs from one of two."""
    return lambda inputs, a: functools.reduce(call, inputs)


def quantize(inputs: Inputs, a: Attributes) -> Any:
    x, scale, zero = _beside(inputs, a)
    edges = torch.iinfo(inputs[2].dtype if len(inputs) > 2 else torch.uint8)
    return (torch.round(x / scale) + zero).clamp(edges.min, edges.max).to(getattr(torch, edges.dtype))


def dequantize(inputs: Inputs, a: Attributes) -> Any:
    x, scale, zero = _beside(inputs, a)
    return (x.to(scale.dtype) - zero) * scale


def _beside(inputs: Inputs, a: Attributes) -> tuple[Any, Any, Any]:
    """Values, and scale and zero point reshaped along their axis of the values."""
    x, scale, *zero = inputs
    if a.get("block_size"):
        raise _lacks("quantisers of blocks")
    shape = [1] * x.dim()
    if scale.dim():
        shape[a.get("axis", 1)] = -1
    offset = zero[0] if zero else torch.zeros_like(scale)
    return x, scale.reshape(shape), offset.to(scale.dtype).reshape(shape)


def top_k(inputs: Inputs, a: Attributes) -> Any:
    """TopK: values and their indices."""
    x, count = inputs
    return torch.topk(x, int(count[0]), a.get("axis", -1), bool(a.get("largest", 1)), bool(a.get("sorted", 1)))


def _indexed(inputs: Inputs, a: Attributes) -> tuple[Any, int, Any]:
    """Values, the axis, and indices without negative ones."""
    x, index = inputs
    axis = a.get("axis", 0)
    return x, axis, torch.where(index < 0, index + x.shape[axis], index)


def arg(inputs: Inputs, a: Attributes, call: Callable[..., Any]) -> Any:
    """ArgMax or ArgMin; the first of equal values."""
    if a.get("select_last_index"):
        raise _lacks("ArgMax or ArgMin with select_last_index")
    return call(inputs[0], dim=a.get("axis", 0), keepdim=bool(a.get("keepdims", 1)))


ALIKE = "Add Sub Mul Pow MatMul Sigmoid Relu Tanh Exp Log Sqrt Erf Neg Abs Floor Ceil Where"
"""Operators that PyTorch has by the same name."""
OPERATORS: dict[str, Operator] = {
    "QuantizeLinear": quantize, "DequantizeLinear": dequantize, "Resize": resize, "Split": split, "Reshape": reshape,
    "Conv": conv, "ConvTranspose": partial(conv, transposed=True), "MaxPool": max_pool, "AveragePool": average_pool,
    "Slice": cut, "Gather": gather, "Unsqueeze": unsqueeze, "Squeeze": squeeze,
    "Gemm": gemm, "BatchNormalization": batch_norm, "Pad": pad,
    "LayerNormalization": layer_norm, "GridSample": grid_sample, "CumSum": cumulative_sum, "TopK": top_k,
    "ArgMax": partial(arg, call=torch.argmax), "ArgMin": partial(arg, call=torch.argmin),
    "ReduceMean": partial(reduce, call=torch.mean), "ReduceSum": partial(reduce, call=torch.sum),
    "ReduceMax": partial(reduce, call=torch.amax), "ReduceMin": partial(reduce, call=torch.amin),
    "Clip": lambda inputs, a: inputs[0].clamp(_stated(inputs, 1, a, "min"), _stated(inputs, 2, a, "max")),
    "Div": lambda inputs, a: torch.div(*inputs, rounding_mode=None if inputs[0].is_floating_point() else "trunc"),
    "Expand": lambda inputs, a: inputs[0].expand(torch.broadcast_shapes(inputs[0].shape, tuple(inputs[1]))),
    "GatherElements": lambda inputs, a: torch.gather(*_indexed(inputs, a)),
    "Tile": lambda inputs, a: inputs[0].repeat(*inputs[1]),
    "GlobalAveragePool": lambda inputs, a: inputs[0].mean((2, 3), keepdim=True),
    "Concat": lambda inputs, a: torch.cat(tuple(inputs), a["axis"]),
    "Transpose": lambda inputs, a: inputs[0].permute(*a.get("perm", range(inputs[0].dim())[::-1])),
    "Softmax": lambda inputs, a: inputs[0].softmax(a.get("axis", -1)),
    "Flatten": lambda inputs, a: inputs[0].flatten(a.get("axis", 1)),
    "LeakyRelu": lambda inputs, a: F.leaky_relu(inputs[0], a.get("alpha", 0.01)),
    "HardSigmoid": lambda inputs, a: (inputs[0] * a.get("alpha", 0.2) + a.get("beta", 0.5)).clamp(0, 1),
    # Exporters write scalars, some as lists of one.
    "Range": lambda inputs, a: torch.arange(*(value[0] if isinstance(value, list) else value for value in inputs)),
    "ConstantOfShape": lambda inputs, a: torch.full(tuple(inputs[0]), a["value"].item() if "value" in a else 0.0,
                                                    dtype=a["value"].dtype if "value" in a else torch.float32),
    "Shape": lambda inputs, a: torch.tensor(inputs[0].shape[a.get("start", 0) : a.get("end")]),
    "Cast": lambda inputs, a: inputs[0].to(a["to"]),
    "Silu": lambda inputs, a: F.silu(inputs[0], inplace=True),
    "Identity": lambda inputs, a: inputs[0], "Dropout": lambda inputs, a: inputs[0],
    **{name: _plain(getattr(torch, name.lower())) for name in ALIKE.split()}, "Equal": _plain(torch.eq),
    "Less": _plain(torch.lt), "LessOrEqual": _plain(torch.le), "Greater": _plain(torch.gt),
    "GreaterOrEqual": _plain(torch.ge), "And": _plain(torch.logical_and), "Or": _plain(torch.logical_or),
    "Not": _plain(torch.logical_not), "Max": _folded(torch.maximum), "Min": _folded(torch.minimum),
    "HardSwish": _plain(F.hardswish), "Softplus": _plain(F.softplus),
}  # fmt: skip
"""By ONNX name. Silu is a Sigmoid and the Mul after it."""
PLAIN = {
    "Reshape": (1,), "Slice": (1, 2, 3, 4), "Split": (1,), "Resize": (1, 2, 3), "Expand": (1,), "Unsqueeze": (1,),
    "Squeeze": (1,), "ReduceMean": (1,), "ReduceSum": (1,), "ReduceMax": (1,), "ReduceMin": (1,), "Clip": (1, 2),
    "Range": (0, 1, 2), "Pad": (1, 2), "CumSum": (1,), "ConstantOfShape": (0,), "TopK": (1,), "Tile": (1,),
}  # fmt: skip
"""Inputs of an operator that are passed as plain numbers."""


def _lacks(what: str) -> ModelError:
    return ModelError(f"engine torch has no {what}", remedy="use another engine")


def _no_auto_pad(name: str, a: Attributes) -> None:
    if a.get("auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
        raise _lacks(f"{name} with auto_pad {a['auto_pad']}")


def _padded(x: Any, pads: Sequence[int], value: float) -> tuple[Any, list[int]]:
    """The input and its symmetric padding; asymmetric padding is applied here."""
    half = len(pads) // 2
    before, after = list(pads[:half]), list(pads[half:])
    if before == after:
        return x, before
    return F.pad(x, _innermost_first(pads), value=value), [0] * half


def _innermost_first(pads: Sequence[int]) -> list[int]:
    """Paddings of ONNX in the order of PyTorch."""
    half = len(pads) // 2
    return [side for pair in zip(reversed(pads[:half]), reversed(pads[half:]), strict=True) for side in pair]


class OnnxNetwork:
    """A model at one input shape (`onnx_shapes.at_shape`, `onnx_shapes.folded`).

    Args:
        model: ONNX `ModelProto`.
        half: the type used for float16.

    Raises:
        ModelError: it has operators that this engine lacks; the message names all of them.
    """

    def __init__(self, model: Any, device: torch.device, half: torch.dtype = torch.float16) -> None:
        from onnx import numpy_helper

        graph = model.graph
        if missing := sorted({node.op_type for node in graph.node} - set(OPERATORS)):
            remedy = "use another engine, or pass the model as an nn.Module, .pt2 or TorchScript file"
            raise ModelError(f"engine torch lacks operators that the model uses: {', '.join(missing)}", remedy=remedy)
        self._device = device
        self._known: dict[str, torch.Tensor] = {}
        for tensor in graph.initializer:
            value = torch.from_numpy(numpy_helper.to_array(tensor).copy())
            self._known[tensor.name] = value.to(half) if value.dtype == torch.float16 else value
        self._inputs = [value.name for value in graph.input if value.name not in self._known]
        self._outputs = [value.name for value in graph.output]
        readers = Counter(name for node in graph.node for name in node.input)
        readers.update(self._outputs)
        silus = _silus(graph, readers)
        self._steps: list[tuple[Callable[[list[Any]], Any], list[Part], list[str]]] = []
        for node in graph.node:
            name, inputs = node.op_type, list(node.input)
            if node.output[0] in silus.values():
                continue  # a Sigmoid that is fused into its Mul
            if node.output[0] in silus:
                name, inputs = "Silu", [next(part for part in inputs if part != silus[node.output[0]])]
            while inputs and not inputs[-1]:
                inputs.pop()
            attributes = _attributes(node, half) | {"outputs": len(node.output)}
            call = partial(OPERATORS[name], a=attributes)
            plain = PLAIN.get(name, ())
            parts = [self._part(part, position in plain) for position, part in enumerate(inputs)]
            self._steps.append((call, parts, list(node.output)))

    def __call__(self, image: torch.Tensor) -> list[torch.Tensor]:
        """The model's outputs in order."""
        values: dict[str, Any] = {self._inputs[0]: image}
        for call, parts, outputs in self._steps:
            made = call([part(values) for part in parts])
            values.update(zip(outputs, made if isinstance(made, tuple | list) else [made], strict=False))
        return [values[name] if name in values else self._known[name] for name in self._outputs]

    def _part(self, name: str, plain: bool) -> Part:
        """An input of a node that is passed as plain numbers, or as it is; "": it is omitted."""
        if not name:
            return lambda values: None
        if name not in self._known:
            return lambda values: _numbers(values[name]) if plain else values[name]
        value: Any = _numbers(self._known[name]) if plain else self._known[name].to(self._device)
        if not plain and value.dim() == 4:
            value = value.contiguous(memory_format=torch.channels_last)
        return lambda values: value


def _numbers(value: torch.Tensor) -> Any:
    """Plain numbers instead of a tensor; an empty tensor stands for an omitted input."""
    return value.tolist() if value.numel() else None


def _attributes(node: Any, half: torch.dtype) -> Attributes:
    """By name; the type of a Cast as one of PyTorch."""
    from onnx import AttributeProto, helper, numpy_helper

    found: Attributes = {}
    for attribute in node.attribute:
        value = helper.get_attribute_value(attribute)
        if attribute.type == AttributeProto.TENSOR:
            value = torch.from_numpy(numpy_helper.to_array(value).copy())
        found[attribute.name] = value.decode() if isinstance(value, bytes) else value
    if node.op_type == "Cast":
        kind = helper.tensor_dtype_to_np_dtype(found["to"]).name
        found["to"] = half if kind == "float16" else getattr(torch, kind)
    return found


def _silus(graph: Any, readers: Counter[str]) -> dict[str, str]:
    """Output of each Mul of a convolution's result x and Sigmoid(x) -> that of the Sigmoid that nothing else reads."""
    convs = {node.output[0] for node in graph.node if node.op_type == "Conv"}
    gates = {node.output[0]: node.input[0] for node in graph.node if node.op_type == "Sigmoid"}
    return {
        node.output[0]: gate
        for node in graph.node
        if node.op_type == "Mul"
        for gate, x in (tuple(node.input), tuple(node.input)[::-1])
        if gates.get(gate) == x and x in convs and readers[gate] == 1 and readers[x] == 2
    }
