"""Queries on ONNX graphs: who makes and reads a tensor, weighted layers, decoding; attributes and values of nodes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
WEIGHTED = ("Conv", "ConvTranspose", "MatMul", "Gemm")
"""Operators with weights."""
MOVES = ("Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Identity", "Cast")
"""Operators that keep values as they are."""


class OnnxGraph:
    """A read-only view of a `ModelProto`. Nodes are identified by index."""

    def __init__(self, model: Any) -> None:
        self.nodes: list[Any] = list(model.graph.node)
        self.weights: dict[str, Any] = {tensor.name: tensor for tensor in model.graph.initializer}
        self.producer: dict[str, int] = {}
        self.readers: dict[str, list[int]] = defaultdict(list)
        for number, node in enumerate(self.nodes):
            for name in node.output:
                self.producer[name] = number
            for name in reads(node):
                self.readers[name].append(number)

    def name(self, number: int) -> str:
        return str(self.nodes[number].name)

    def before(self, number: int) -> list[int]:
        return [self.producer[name] for name in reads(self.nodes[number]) if name in self.producer]

    def after(self, number: int) -> list[int]:
        return [reader for name in self.nodes[number].output for reader in self.readers[name]]

    def layers(self, *kinds: str) -> list[int]:
        """Nodes of these operators with constant weights, in order."""
        return [
            number
            for number, node in enumerate(self.nodes)
            if node.op_type in kinds and any(name in self.weights for name in node.input[1:2])
        ]

    def network(self, *kinds: str) -> list[int]:
        """The same without those that decode."""
        return [number for number in self.layers(*kinds) if not self.decodes(number)]

    def decodes(self, number: int) -> bool:
        """Whether a convolution computes an expectation over a softmax, as YOLOv8 decodes its boxes."""
        sources = self.before(number)
        while len(sources) == 1 and self.nodes[sources[0]].op_type in MOVES:
            sources = self.before(sources[0])
        return any(self.nodes[source].op_type == "Softmax" for source in sources)

    def first(self, layers: list[int]) -> list[int]:
        """The layers that do not depend on another of them."""
        follows = self._reached(layers, self.after, range(len(self.nodes)))
        return [number for number in layers if number not in follows]

    def last(self, layers: list[int]) -> list[int]:
        """The layers that no other of them depends on."""
        precedes = self._reached(layers, self.before, range(len(self.nodes) - 1, -1, -1))
        return [number for number in layers if number not in precedes]

    def up_to(self, layers: list[int]) -> set[int]:
        """The layers and everything that they depend on."""
        return self._reached(layers, self.before, range(len(self.nodes) - 1, -1, -1)) | set(layers)

    def _reached(self, starts: list[int], step: Any, order: range) -> set[int]:
        """Nodes that are one or more steps from the starts, in one pass, because ONNX sorts its nodes topologically."""
        begins, reached = set(starts), set[int]()
        for number in order:
            if number in begins or number in reached:
                reached.update(step(number))
        return reached


def reads(node: Any) -> Iterator[str]:
    """Names that a node reads, including those that its sub-graphs capture."""
    yield from (name for name in node.input if name)
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            inner = {name for part in graph.node for name in part.output}
            inner |= {value.name for value in (*graph.input, *graph.initializer)}
            yield from (name for part in graph.node for name in reads(part) if name not in inner)
            yield from (value.name for value in graph.output if value.name not in inner)


def evaluate(nodes: list[Any], values: dict[str, Array], outputs: list[str], model: Any) -> list[Array]:
    """Run nodes with onnx's reference evaluator, which raises errors of any class for what it cannot run.

    Args:
        model: where the nodes are from, for its opsets.
    """
    from onnx import TensorProto, ValueInfoProto, helper
    from onnx.reference import ReferenceEvaluator

    kinds = {name: helper.np_dtype_to_tensor_dtype(value.dtype) for name, value in values.items()}
    graph = helper.make_graph(
        nodes,
        "part",
        [helper.make_tensor_value_info(name, kind, None) for name, kind in kinds.items()],
        [ValueInfoProto(name=name) if name else helper.make_tensor_value_info(name, TensorProto.FLOAT, None)
         for name in outputs],
    )  # fmt: skip
    part = helper.make_model(graph, opset_imports=model.opset_import, ir_version=model.ir_version)
    return [np.asarray(value) for value in ReferenceEvaluator(part).run(outputs, values)]


def attribute(node: Any, name: str, default: Any) -> Any:
    """An attribute of a node, text as str; `default` if it is absent."""
    from onnx import helper

    for attribute in node.attribute:
        if attribute.name == name:
            value = helper.get_attribute_value(attribute)
            return value.decode() if isinstance(value, bytes) else value
    return default
