"""State of the importer: constants, shapes, operations so far, and the tail."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from framefuse.engines.cudnn.network import Operation, Shape
from framefuse.errors import ModelError
from framefuse.models.onnx_file import inputs_of
from framefuse.models.onnx_graph import evaluate

Array = NDArray[Any]


class ImportState:
    """What is known about a graph while its nodes are imported in order."""

    def __init__(self, model: Any, path: Path, height: int, width: int) -> None:
        from onnx import numpy_helper

        self.model, self.path, self.size = model, path, (height, width)
        self.constants: dict[str, Array] = {item.name: numpy_helper.to_array(item) for item in model.graph.initializer}
        inputs = inputs_of(model)
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
        self.aliases: dict[str, str] = {}
        """Alias -> value: outputs of Identity, of casts between floats and of Q/DQ nodes."""
        self.shapes: dict[str, Shape] = {self.input: (3, height, width)}
        self.ranks: dict[str, int] = {self.input: 4}
        self.operations: list[Operation] = []
        self.tail: list[Any] = []
        """Deferred nodes: unsupported ones and everything that depends on them."""
        self.deferred: set[str] = set()
        """Outputs of the tail."""
        self.reasons: dict[str, str] = {}
        """Why a node is unsupported, by its first output."""
        self.reordered: set[str] = set()
        """Values whose channels are ordered queries, keys, values instead of by head as in the model."""
        self.uses = Counter(name for node in model.graph.node for name in node.input)
        self.uses.update(item.name for item in model.graph.output)
        self.gates: dict[str, str] = {}
        """Output of a Sigmoid -> its input: one half of a SiLU."""
        self.ranges: dict[str, float] = {}
        """Largest magnitude of each value that the file quantises."""

    def resolve(self, name: str) -> str:
        """The value that a name stands for."""
        return self.aliases.get(name, name)

    def add(self, operation: Operation, shapes: Iterable[Shape], rank: int = 4) -> None:
        """Append an operation whose outputs have these shapes."""
        self.operations.append(operation)
        for name, shape in zip(operation.writes, shapes, strict=True):
            self.shapes[name], self.ranks[name] = shape, rank

    def tail_leading_to(self, names: Iterable[str]) -> list[Any]:
        """The nodes of the tail that compute these values, in order."""
        wanted, needed = {*names}, []
        for node in reversed(self.tail):
            if any(name in wanted and name not in self.shapes for name in node.output):
                needed.append(node)
                wanted |= {*node.input, *map(self.resolve, node.input)}
        return needed[::-1]

    def evaluate(self, nodes: list[Any], values: dict[str, Array], output: str) -> Array:
        """Run nodes with onnx's evaluator, which raises errors of any class for what it cannot run."""
        feeds = dict(values)
        for name in {name for node in nodes for name in node.input}:
            value = {**self.constants, **values}.get(self.resolve(name)) if name else None
            if value is not None:
                feeds[name] = value
        return evaluate(nodes, feeds, [output], self.model)[0]

    def onnx_shape(self, name: str) -> tuple[int, ...]:
        channels, height, width = self.shapes[name]
        return (1, channels, height, width) if self.ranks[name] == 4 else (1, channels, height)
