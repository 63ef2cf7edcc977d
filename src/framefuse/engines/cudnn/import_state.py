"""What the importer knows of a graph on its way: constants, shapes, operations so far, and the tail."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from framefuse.engines.cudnn.network import Operation, Shape
from framefuse.engines.cudnn.onnx_nodes import evaluate
from framefuse.errors import ModelError

Array = NDArray[Any]


class ImportState:
    """What is known of a graph while its nodes are taken one after the other."""

    def __init__(self, model: Any, path: Path, height: int, width: int) -> None:
        from onnx import numpy_helper

        self.model, self.path, self.size = model, path, (height, width)
        self.constants: dict[str, Array] = {item.name: numpy_helper.to_array(item) for item in model.graph.initializer}
        inputs = [item for item in model.graph.input if item.name not in self.constants]
        axes = [d.dim_value for d in inputs[0].type.tensor_type.shape.dim] if len(inputs) == 1 else []
        if len(axes) != 4 or axes[1] not in (0, 3):
            raise ModelError(
                f"{path} has inputs {[(item.name, len(item.type.tensor_type.shape.dim)) for item in inputs]}",
                remedy="engine cudnn takes one input of (batch, 3, height, width)",
            )
        if any(fixed not in (0, asked) for fixed, asked in zip(axes[2:], (height, width), strict=True)):
            raise ModelError(
                f"{path} takes {axes[3]}x{axes[2]} images only, not {width}x{height}",
                remedy="export the model with dynamic height and width",
            )
        self.input = inputs[0].name
        self.names: dict[str, str] = {}
        """Other names of values: outputs of Identity and of casts between floats."""
        self.shapes: dict[str, Shape] = {self.input: (3, height, width)}
        self.ranks: dict[str, int] = {self.input: 4}
        self.operations: list[Operation] = []
        self.tail: list[Any] = []
        self.beyond: set[str] = set()
        """Values of the tail."""
        self.reasons: dict[str, str] = {}
        """Why the tail begins, for each value where it does."""
        self.regrouped: set[str] = set()
        """Images of queries, keys and values whose channels lie by kind, not by head as in the model."""
        self.uses = Counter(name for node in model.graph.node for name in node.input)
        self.uses.update(item.name for item in model.graph.output)
        self.gates: dict[str, str] = {}
        """Sigmoid of a value, by name: half of a SiLU."""
        self.ranges: dict[str, float] = {}
        """Largest magnitude of values that the file quantises."""

    def name(self, name: str) -> str:
        return self.names.get(name, name)

    def add(self, operation: Operation, shapes: Iterable[Shape], rank: int = 4) -> None:
        """Append an operation whose results have these shapes."""
        self.operations.append(operation)
        for name, shape in zip(operation.writes, shapes, strict=True):
            self.shapes[name], self.ranks[name] = shape, rank

    def leading_to(self, names: Iterable[str]) -> list[Any]:
        """The nodes of the tail that values need, in order."""
        wanted, kept = {*names}, []
        for node in reversed(self.tail):
            if any(name in wanted and name not in self.shapes for name in node.output):
                kept.append(node)
                wanted |= {*node.input, *map(self.name, node.input)}
        return kept[::-1]

    def evaluated(self, nodes: list[Any], values: dict[str, Array], output: str) -> Array:
        """A value of some nodes of the tail, by onnx's evaluator. It raises whatever it cannot do."""
        feeds = dict(values)
        for name in {name for node in nodes for name in node.input}:
            known = {**self.constants, **values}.get(self.name(name)) if name else None
            if known is not None:
                feeds[name] = known
        return evaluate(nodes, feeds, [output], self.model)[0]

    def onnx_shape(self, name: str) -> tuple[int, ...]:
        channels, height, width = self.shapes[name]
        return (1, channels, height, width) if self.ranks[name] == 4 else (1, channels, height)
