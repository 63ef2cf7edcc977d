"""An ONNX file as PyTorch calls, for one input shape."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from framefuse.engines.torch.ops import OPERATORS, PLAIN
from framefuse.errors import ModelError


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
        missing = sorted({node.op_type for node in graph.node} - set(OPERATORS) - {"Cast"})
        if missing:
            raise ModelError(
                f"engine torch lacks operators that the model uses: {', '.join(missing)}",
                remedy="use another engine, or pass the model as an nn.Module, .pt2 or TorchScript file",
            )
        self._device, self._half = device, half
        self._known: dict[str, torch.Tensor] = {
            tensor.name: self._typed(torch.from_numpy(numpy_helper.to_array(tensor).copy()))
            for tensor in graph.initializer
        }
        self._inputs = [value.name for value in graph.input if value.name not in self._known]
        self._outputs = [value.name for value in graph.output]
        readers = Counter(name for node in graph.node for name in node.input)
        readers.update(self._outputs)
        silus = _silus(graph, readers)
        self._steps: list[tuple[Callable[[list[Any]], Any], list[Any], list[str]]] = []
        for node in graph.node:
            name, inputs = node.op_type, list(node.input)
            if node.output[0] in silus.values():
                continue  # a Sigmoid that is fused into its Mul
            if node.output[0] in silus:
                name, inputs = "Silu", [next(part for part in inputs if part != silus[node.output[0]])]
            while inputs and not inputs[-1]:
                inputs.pop()
            attributes = _attributes(node) | {"outputs": len(node.output)}
            call = self._cast(attributes) if name == "Cast" else partial(OPERATORS[name], a=attributes)
            plain = PLAIN.get(name, ())
            parts = [self._part(part, position in plain) for position, part in enumerate(inputs)]
            self._steps.append((call, parts, list(node.output)))

    def __call__(self, image: torch.Tensor) -> list[torch.Tensor]:
        """The model's outputs in order."""
        values: dict[str, Any] = {self._inputs[0]: image}
        for call, parts, outputs in self._steps:
            made = call([part.of(values) if isinstance(part, _Part) else part for part in parts])
            if len(outputs) == 1 and not isinstance(made, tuple | list):
                values[outputs[0]] = made
            else:
                values.update(zip(outputs, made, strict=False))
        return [values[name] if name in values else self._known[name] for name in self._outputs]

    def _part(self, name: str, plain: bool) -> Any:
        """An input of a node: its value if that is known, else where to find it."""
        if name not in self._known:
            return _Part(name, plain) if name else None
        value = self._known[name]
        if plain:
            return _plain(value)
        value = value.to(self._device)
        return value.contiguous(memory_format=torch.channels_last) if value.dim() == 4 else value

    def _typed(self, value: torch.Tensor) -> torch.Tensor:
        return value.to(self._half) if value.dtype == torch.float16 else value

    def _cast(self, attributes: dict[str, Any]) -> Callable[[list[Any]], Any]:
        from onnx import helper

        name = helper.tensor_dtype_to_np_dtype(attributes["to"]).name
        dtype = self._half if name == "float16" else getattr(torch, name)
        return lambda inputs: inputs[0].to(dtype)


@dataclass(frozen=True)
class _Part:
    """An input of a node, and whether it is passed as plain numbers."""

    name: str
    plain: bool

    def of(self, values: dict[str, Any]) -> Any:
        return _plain(values[self.name]) if self.plain else values[self.name]


def _plain(value: torch.Tensor) -> Any:
    """Plain numbers instead of a tensor; an empty tensor stands for an omitted input."""
    return value.tolist() if value.numel() else None


def _attributes(node: Any) -> dict[str, Any]:
    from onnx import AttributeProto, helper, numpy_helper

    found = {}
    for attribute in node.attribute:
        value = helper.get_attribute_value(attribute)
        if attribute.type == AttributeProto.TENSOR:
            value = torch.from_numpy(numpy_helper.to_array(value).copy())
        found[attribute.name] = value.decode() if isinstance(value, bytes) else value
    return found


def _silus(graph: Any, readers: Counter[str]) -> dict[str, str]:
    """Output of each Mul of a convolution's result x and Sigmoid(x) -> that of the Sigmoid that nothing else reads."""
    convs = {node.output[0] for node in graph.node if node.op_type == "Conv"}
    gates = {node.output[0]: node.input[0] for node in graph.node if node.op_type == "Sigmoid"}
    found = {}
    for node in graph.node:
        if node.op_type != "Mul":
            continue
        for gate, x in (tuple(node.input), tuple(node.input)[::-1]):
            if gates.get(gate) == x and x in convs and readers[gate] == 1 and readers[x] == 2:
                found[node.output[0]] = gate
    return found
