"""What the importer knows about a graph so far; detection heads and attention blocks recognised in it.

They are recognised by what they compute: their nodes are evaluated on random values. Exporters write the same
computation in many ways, so the nodes themselves are not inspected. A head is recognised only if its result equals that
of `network.decode` or `network.decode_anchors` up to rounding.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from framefuse.engines.cudnn import network
from framefuse.engines.cudnn.network import AnchorHead, Attention, Concat, Conv, Flatten, Head, Operation, Shape, Split
from framefuse.errors import ModelError
from framefuse.kernels.network.call import MAX_KEYS, MAX_VALUES
from framefuse.models.onnx_file import attribute, evaluate, inputs_of

Array = NDArray[Any]
HEAD_TOLERANCE = 2e-4
"""Relative to the largest coordinate, for float32 evaluation."""
ATTENTION_TOLERANCE = 1e-4
ATTENTION_NODES = 50
"""An attention block has no more."""
CHANNEL_MULTIPLE = 8
"""Channels of a value are padded to multiples of this: 16 bytes of float16. Those of keys and values must be some."""


class ImportState:
    """What is known about a graph while its nodes are imported in order."""

    def __init__(
        self,
        model: Any,
        path: Path,
        height: int,
        width: int,
        batch: int = 1,
        *,
        general: bool = False,
        attention: bool = True,
        constants: dict[str, Array] | None = None,
    ) -> None:
        from onnx import numpy_helper

        self.model, self.path, self.size = model, path, (height, width)
        self.general, self.attention = general, attention
        if constants is None:
            constants = {item.name: numpy_helper.to_array(item) for item in model.graph.initializer}
        self.constants = constants
        """Weights, and what was folded. An import of the same graph at this size and batch that came before, and is
        over, may have begun them."""
        inputs = inputs_of(model)
        axes = [d.dim_value for d in inputs[0].type.tensor_type.shape.dim] if len(inputs) == 1 else []
        if len(axes) != 4 or axes[1] not in (0, 3):
            found = [(item.name, len(item.type.tensor_type.shape.dim)) for item in inputs]
            remedy = "engine cudnn takes one input of (batch, 3, height, width)"
            raise ModelError(f"{path} has inputs {found}", remedy=remedy)
        if any(fixed not in (0, asked) for fixed, asked in zip(axes[2:], (height, width), strict=True)):
            message = f"{path} takes {axes[3]}x{axes[2]} images only, not {width}x{height}"
            raise ModelError(message, remedy="export the model with dynamic height and width")
        self.fixed = axes[0]
        """Images that the file states; 0: any number."""
        self.batch = self.fixed or batch
        self.input = inputs[0].name
        self.aliases: dict[str, str] = {}
        """Alias -> value: outputs of Identity, of casts between floats and of Q/DQ nodes."""
        self.shapes: dict[str, Shape] = {self.input: (3, height, width)}
        self.ranks: dict[str, int] = {self.input: 4}
        self.operations: list[Operation] = []
        self.tail: list[Any] = []
        """Deferred nodes: unsupported ones and everything that depends on them."""
        self.makers: dict[str, int] = {}
        """Outputs of the tail -> which of its nodes computes them."""
        self.deferred: set[str] = set()
        """Outputs of the tail."""
        self.reordered: set[str] = set()
        """Values whose channels are ordered queries, keys, values instead of by head as in the model."""
        self.readers = defaultdict[str, list[Any]](list)
        self.uses = Counter(item.name for item in model.graph.output)
        for node in model.graph.node:
            self.uses.update(node.input)
            for name in {*node.input}:
                self.readers[name].append(node)
        self.gates: dict[str, Any] = {}
        """Output of a Sigmoid that is one half of a SiLU -> its node."""
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

    def defer(self, node: Any) -> None:
        """Append a node to the tail."""
        self.makers |= {name: len(self.tail) for name in node.output if name}  # optional outputs have no name
        self.tail.append(node)
        self.deferred.update(node.output)

    def tail_leading_to(self, names: Iterable[str], most: float = inf) -> list[Any]:
        """The nodes of the tail that compute these values, in order; none if there are more than `most`."""
        left, needed = [*names], set[int]()
        while left and len(needed) <= most:
            name = left.pop()
            number = self.makers.get(name)
            if number is not None and number not in needed and name not in self.shapes:
                needed.add(number)
                for read in self.tail[number].input:
                    left += read, self.resolve(read)
        return [self.tail[number] for number in sorted(needed)] if len(needed) <= most else []

    def evaluate(self, nodes: list[Any], values: dict[str, Array], output: str) -> Array | None:
        """What nodes compute; None if onnx's evaluator cannot run them."""
        known = self.constants | values
        names = {name for node in nodes for name in node.input if name and self.resolve(name) in known}
        feeds = values | {name: known[self.resolve(name)] for name in names}
        try:
            return evaluate(nodes, feeds, [output], self.model)[0]
        except Exception:  # of any class
            return None

    def split_sizes(self, node: Any) -> list[int]:
        """Sizes of the parts of a Split; empty if they are computed or not stated."""
        sizes = attribute(node, "split", [])
        if len(node.input) > 1:
            sizes = self.constants.get(self.resolve(node.input[1]), np.zeros(0))
        return [int(size) for size in sizes]

    def onnx_shape(self, name: str) -> tuple[int, ...]:
        channels, height, width = self.shapes[name]
        sizes = self.batch, channels, height, width
        return sizes if self.ranks[name] == 4 else sizes[:3]


def recognise_head(state: ImportState) -> Head | AnchorHead | None:
    """The head that the tail of a graph computes; None if it is unknown."""
    frontier = sorted({state.resolve(name) for node in state.tail for name in node.input} & set(state.shapes))
    if frontier and all(state.ranks[name] == 4 for name in frontier):
        return _anchor_head(state, frontier)
    if len(frontier) != 2 or any(state.ranks[name] != 3 for name in frontier):
        return None
    parts = {name: _parts(state, name) for name in frontier}
    levels = [tuple(state.shapes[part.image][1:] for part in found) for found in parts.values()]
    if not levels[0] or levels[0] != levels[1]:
        return None
    rows = state.shapes[frontier[0]][1]
    rng = np.random.default_rng(0)
    values = {name: rng.normal(0, 2, state.shapes[name][:2]).astype(np.float32) for name in frontier}
    result = _evaluate_tail(state, {name: value[None] for name, value in values.items()})
    if result is None:
        return None
    for sides, scores in (frontier, frontier[::-1]):
        channels, classes = state.shapes[sides][0], state.shapes[scores][0]
        if channels % 4 or result.shape != (1, 4 + classes, rows):
            continue
        head = Head((), (), channels // 4, classes, levels[0])
        expected = network.decode(values[sides], values[scores], head, *state.size)
        if np.abs(result[0] - expected).max() < HEAD_TOLERANCE * max(state.size):
            return _over_feature_maps(state, head, parts[sides], parts[scores])
    return None


def _anchor_head(state: ImportState, frontier: list[str]) -> AnchorHead | None:
    """A head over feature maps, the largest first. Its results for logits of 0 are the anchor sizes."""
    names = sorted(frontier, key=lambda name: -state.shapes[name][1])
    shapes = [state.shapes[name] for name in names]
    zeros = _evaluate_tail(state, {name: np.zeros((1, *state.shapes[name]), np.float32) for name in names})
    if zeros is None or zeros.ndim != 3 or zeros.shape[2] < 6 or any(shape[0] % zeros.shape[2] for shape in shapes):
        return None
    fields, sizes, first = zeros.shape[2], [], 0
    for channels, rows, columns in shapes:
        cells = rows * columns
        starts = range(first, first + channels // fields * cells, cells)
        if first + channels // fields * cells > zeros.shape[1]:
            return None
        sizes.append(tuple((float(zeros[0, at, 2]), float(zeros[0, at, 3])) for at in starts))
        first += channels // fields * cells
    head = AnchorHead(tuple(names), tuple(sizes), fields - 5, tuple(shape[1:] for shape in shapes))
    rng = np.random.default_rng(0)
    values = {name: rng.normal(0, 2, (1, *state.shapes[name])).astype(np.float32) for name in names}
    result, expected = _evaluate_tail(state, values), network.decode_anchors(list(values.values()), head, *state.size)
    if result is None or result.shape != expected.shape:
        return None
    return head if np.abs(result - expected).max() < HEAD_TOLERANCE * max(state.size) else None


def _evaluate_tail(state: ImportState, values: dict[str, NDArray[Any]]) -> NDArray[Any] | None:
    return state.evaluate(state.tail, values, state.resolve(state.model.graph.output[0].name))


@dataclass(frozen=True)
class Part:
    """Channels start .. start + count - 1 of an image."""

    image: str
    start: int
    count: int


def _parts(state: ImportState, name: str) -> list[Part]:
    """The feature maps that a list of anchors joins, level by level; empty if unknown."""
    producer = next((op for op in state.operations if name in op.writes), None)
    if isinstance(producer, Flatten):
        return [Part(producer.x, 0, state.shapes[name][0])]
    if isinstance(producer, Concat) and producer.along == "rows":
        parts = [_parts(state, x) for x in producer.xs]
        return [part for found in parts for part in found] if all(parts) else []
    if isinstance(producer, Split):
        start = sum(state.shapes[y][0] for y in producer.ys[: producer.ys.index(name)])
        return [replace(part, start=part.start + start, count=state.shapes[name][0])
                for part in _parts(state, producer.x)]  # fmt: skip
    return []


def _over_feature_maps(state: ImportState, head: Head, sides: list[Part], scores: list[Part]) -> Head | None:
    """The head over feature maps instead of joined lists of anchors."""
    names: dict[Part, str] = {}
    for pair in zip(sides, scores, strict=True):
        for image in {part.image: None for part in pair}:
            ordered = sorted((part for part in pair if part.image == image), key=lambda part: part.start)
            covered = [part.start for part in ordered] == [0, *(part.count for part in ordered[:-1])]
            channels, height, width = state.shapes[image]
            if not covered or sum(part.count for part in ordered) != channels:
                return None  # two networks in one, or unread channels
            if len(ordered) == 1:
                names[ordered[0]] = image
                continue
            ys = tuple(f"{image}/{part.start}" for part in ordered)
            state.add(Split(f"{image}/head", image, ys), [(part.count, height, width) for part in ordered])
            names |= dict(zip(ordered, ys, strict=True))
    return replace(head, sides=tuple(names[part] for part in sides), scores=tuple(names[part] for part in scores))


def recognise_attention(state: ImportState, node: Any) -> bool:
    """Whether a deferred Reshape ends an attention block, or the values of one; if so, add the operation for it.

    In YOLO11 one convolution computes queries, keys and values, head by head. Both the attention output and the values
    alone are reshaped to images; another convolution reads the values for its positional encoding. The channels of the
    first convolution are reordered to queries, keys, values of all heads, so that each kind is one slice.
    """
    nodes = state.tail_leading_to([node.output[0]], ATTENTION_NODES)
    frontier = {state.resolve(name) for other in nodes for name in other.input} & set(state.shapes)
    splits = [other for other in nodes if other.op_type == "Split"]
    if len(frontier) != 1 or len(splits) != 1 or len(splits[0].output) != 3:
        return False
    (x,) = frontier
    conv = next((op for op in state.operations if x in op.writes), None)
    first = [other for other in nodes if x in map(state.resolve, other.input)]
    shape = state.constants.get(state.resolve(first[0].input[1])) if first[0].op_type == "Reshape" else None
    sizes = state.split_sizes(splits[0]) if attribute(splits[0], "axis", 0) in (2, -2) else []
    if not isinstance(conv, Conv) or conv.residual or conv.groups > 1 or state.uses[x] != 1 or shape is None:
        return False
    channels, height, width = state.shapes[x]
    heads = int(shape[1]) if len(shape) == 4 else 0
    if not sizes or heads < 1 or sizes[0] != sizes[1] or heads * sum(sizes) != channels:
        return False
    keys, _, values = sizes
    step = Attention(node.name or node.output[0], x, node.output[0], heads, keys, values, float(keys**-0.5))
    batch = max(1, int(shape[0]))
    image = np.random.default_rng(0).normal(0, 1, (batch, channels, height, width)).astype(np.float32)
    result = state.evaluate(nodes, {x: image}, node.output[0])
    order = _channel_order(heads, keys, values)
    ours = image[:, order]
    if any(other.op_type == "Softmax" for other in nodes):
        expected, operation = network.attend(ours, step), step
    else:
        expected, operation = ours[:, 2 * heads * keys :], None
    if keys > MAX_KEYS or values > MAX_VALUES or keys % CHANNEL_MULTIPLE or values % CHANNEL_MULTIPLE:
        return False
    if result is None or result.shape != expected.shape or np.abs(result - expected).max() > ATTENTION_TOLERANCE:
        return False
    if x not in state.reordered:
        state.reordered.add(x)
        index = state.operations.index(conv)
        state.operations[index] = replace(conv, weight=conv.weight[order], bias=conv.bias[order])
    if operation is not None:
        state.add(operation, [(heads * values, height, width)])
    else:
        parts = [(2 * heads * keys, height, width), (heads * values, height, width)]
        state.add(Split(node.name or node.output[0], x, (f"{node.output[0]}/before", node.output[0])), parts)
    return True


def _channel_order(heads: int, keys: int, values: int) -> list[int]:
    """Indices of the model's channels in the order queries, keys, values of all heads."""
    table = np.arange(heads * (2 * keys + values)).reshape(heads, -1)
    parts = np.split(table, [keys, 2 * keys], 1)
    return [int(channel) for part in parts for channel in part.reshape(-1)]
