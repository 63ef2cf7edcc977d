"""ONNX -> fused network: folds constants for one input size, fuses SiLU, ReLU and residuals into convolutions.

Everything that depends on the input size alone (anchors, strides) is evaluated with onnx's evaluator. Unsupported nodes
and everything that depends on them form the tail. The tail must be a detection head that `import_state.py` recognises;
otherwise the import fails and lists the unsupported operators.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from framefuse.engines.cudnn.import_state import ImportState, recognise_attention, recognise_head
from framefuse.engines.cudnn.network import Concat, Conv, Flatten, Network, Operation, Pool, Split, Upsample
from framefuse.errors import ModelError
from framefuse.kernels.network.call import MAX_WINDOW
from framefuse.models.onnx_file import attribute, evaluate, load_onnx

FLOATS = (1, 10, 16)
"""FLOAT, FLOAT16 and BFLOAT16 of ONNX."""
QUANTIZERS = ("QuantizeLinear", "DequantizeLinear")
SUPPORTED = (
    "convolutions with SiLU, ReLU or no activation and a residual, max pooling that keeps the size, nearest upsampling "
    "by an integer, concatenation and split of channels, attention as in YOLO11"
)


def import_network(path: Path, height: int, width: int) -> Network:
    """Import an ONNX file at one input size.

    Raises:
        ModelError: the file cannot be read, takes another size, or has unsupported operators.
    """
    model = load_onnx(path)
    importer = Importer(model, path, height, width)
    for node in model.graph.node:
        importer.import_node(node)
    return importer.finish()


class Unsupported(Exception):
    """An operation that the engine does not have; the message says why, to follow the operator's name."""


class Importer(ImportState):
    """Imports the nodes of a graph in order."""

    def import_node(self, node: Any) -> None:
        """Fold, translate or defer one node."""
        inputs = [self.resolve(name) for name in node.input if name]
        if node.op_type in QUANTIZERS and _fold_quantizer(self, node):
            return
        if node.op_type == "Constant" or (inputs and all(name in self.constants for name in inputs)):
            try:
                known = {name: self.constants[self.resolve(name)] for name in node.input if name}
                values = evaluate([node], known, list(node.output), self.model)
                self.constants.update(zip(node.output, values, strict=True))
            except Exception as error:  # of any class: onnx's evaluator lacks the operator at this opset
                self.reasons[node.output[0]] = f"{node.op_type} ({node.name or node.output[0]}): {str(error)[:80]}"
                self._defer(node)
        elif node.op_type == "Shape" and inputs[0] in self.shapes:
            start, end = attribute(node, "start", 0), attribute(node, "end", None)
            self.constants[node.output[0]] = np.array(self.onnx_shape(inputs[0])[start:end], np.int64)
        elif any(name in self.deferred for name in inputs):
            self._defer(node)
        elif node.op_type in ("Identity", "Dropout") or (node.op_type == "Cast" and attribute(node, "to", 0) in FLOATS):
            self.aliases[node.output[0]] = inputs[0]
            self.uses[inputs[0]] += self.uses[node.output[0]] - 1
        else:
            try:
                if node.op_type not in TRANSLATORS:
                    raise Unsupported
                TRANSLATORS[node.op_type](self, node, inputs)
            except Unsupported as reason:
                self.reasons[node.output[0]] = f"{node.op_type} ({node.name or node.output[0]}){reason}"
                self._defer(node)

    def finish(self) -> Network:
        """The network, after the last node."""
        wanted = [self.resolve(item.name) for item in self.model.graph.output]
        self.tail = self.tail_leading_to(wanted)
        network = Network(self.input, tuple(wanted), self.operations, self.shapes, ranges=self.ranges)
        if self.tail or any(name not in self.shapes for name in wanted):
            head = recognise_head(self) if len(wanted) == 1 else None
            if head is None:
                raise self._error()
            network = replace(network, outputs=head.values, head=head)
        network.operations[:] = _needed(network)
        if any(isinstance(op, Flatten) for op in network.operations):
            self.reasons[""] = "Reshape (not before a detection head)"
            raise self._error()
        return network

    def _error(self) -> ModelError:
        needed = {"", *(name for node in self.tail for name in node.output)}
        reasons = [reason for name, reason in self.reasons.items() if name in needed]
        count = Counter(reason.split(" ")[0] for reason in reasons)
        listed = ", ".join(f"{kind} x{times}" for kind, times in count.most_common())
        first = "; ".join(reasons[:4])
        return ModelError(
            f"engine cudnn cannot run {self.path}: its operators {listed} are not supported (first: {first}). "
            f"Supported are {SUPPORTED}, and the heads of YOLOv5, YOLOv8 and YOLO11",
            remedy="use another engine, for example onnxruntime",
        )

    def _defer(self, node: Any) -> None:
        self.tail.append(node)
        self.deferred.update(node.output)
        if node.op_type == "Reshape" and recognise_attention(self, node):
            self.deferred.discard(node.output[0])


def _needed(network: Network) -> list[Operation]:
    """The operations that an output depends on."""
    wanted, kept = set(network.outputs), list[Operation]()
    for op in reversed(network.operations):
        if wanted & set(op.writes):
            kept.append(op)
            wanted |= set(op.reads)
    return kept[::-1]


def _conv(state: ImportState, node: Any, inputs: list[str]) -> None:
    x, constants = inputs[0], state.constants
    if any(name not in constants for name in inputs[1:]) or state.ranks[x] != 4:
        raise Unsupported(" with computed weights")
    weight = constants[inputs[1]].astype(np.float32)
    if weight.ndim != 4:
        raise Unsupported(f" with {weight.ndim - 2} spatial axes")
    bias = constants[inputs[2]].astype(np.float32) if len(inputs) > 2 else np.zeros(len(weight), np.float32)
    stride, dilation = tuple(attribute(node, "strides", [1, 1])), tuple(attribute(node, "dilations", [1, 1]))
    extent = [(size - 1) * step + 1 for size, step in zip(weight.shape[2:], dilation, strict=True)]
    _, height, width = state.shapes[x]
    auto_pad, pads = attribute(node, "auto_pad", "NOTSET"), tuple(attribute(node, "pads", [0, 0, 0, 0]))
    if auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        raise Unsupported(f" with auto_pad {auto_pad}")
    padded = (height + pads[0] + pads[2], width + pads[1] + pads[3])
    rows, columns = ((side - size) // step + 1 for side, size, step in zip(padded, extent, stride, strict=True))
    groups, y = attribute(node, "group", 1), node.output[0]
    conv = Conv(node.name or y, x, y, weight, bias, stride, pads, dilation, groups)
    state.add(conv, [(len(weight), rows, columns)])


def _activate(state: ImportState, x: str, y: str, activation: Any) -> None:
    """Fuse an activation into the convolution before it."""
    conv = next((op for op in reversed(state.operations) if x in op.writes), None)
    uses = {"silu": 2}.get(activation, 1)
    if not isinstance(conv, Conv) or conv.activation != "none" or conv.residual or state.uses[x] != uses:
        raise Unsupported(" that does not follow a plain convolution")
    state.operations[state.operations.index(conv)] = replace(conv, y=y, activation=activation)
    state.shapes[y], state.ranks[y] = state.shapes.pop(x), state.ranks.pop(x)


def _sigmoid(state: ImportState, node: Any, inputs: list[str]) -> None:
    """Half of a SiLU, if its only consumer multiplies it by its input."""
    y = node.output[0]
    products = [other for other in state.model.graph.node if y in other.input]
    if len(products) != 1 or products[0].op_type != "Mul" or inputs[0] not in map(state.resolve, products[0].input):
        raise Unsupported(" that is not part of a SiLU")
    state.gates[y] = inputs[0]


def _mul(state: ImportState, node: Any, inputs: list[str]) -> None:
    gate, value = sorted(inputs, key=lambda name: name not in state.gates)
    if state.gates.get(gate) != value:
        raise Unsupported(" that is not part of a SiLU")
    _activate(state, value, node.output[0], "silu")


def _add(state: ImportState, node: Any, inputs: list[str]) -> None:
    """Fuse a residual into the later of two convolutions, which moves to the place of the sum."""
    if len(inputs) != 2 or any(name not in state.shapes for name in inputs):
        raise Unsupported(" of a constant")
    order = [index for index, op in enumerate(state.operations) for name in inputs if name in op.writes]
    for index in sorted(order, reverse=True):
        conv = state.operations[index]
        if isinstance(conv, Conv) and conv.residual is None and state.uses[conv.y] == 1 and inputs[0] != inputs[1]:
            residual = inputs[1] if conv.y == inputs[0] else inputs[0]
            if state.shapes[residual] != state.shapes[conv.y]:
                break
            shape = state.shapes.pop(conv.y)
            del state.operations[index]
            state.add(replace(conv, y=node.output[0], residual=residual), [shape])
            return
    raise Unsupported(" that is not a residual of a convolution")


def _max_pool(state: ImportState, node: Any, inputs: list[str]) -> None:
    kernel, pads = attribute(node, "kernel_shape", []), attribute(node, "pads", [0, 0, 0, 0])
    size = kernel[0]
    plain = attribute(node, "strides", [1, 1]) == [1, 1] and attribute(node, "dilations", [1, 1]) == [1, 1]
    same = kernel == [size, size] and size % 2 and 1 < size <= MAX_WINDOW and pads == [size // 2] * 4
    if not same or not plain or len(node.output) != 1:
        raise Unsupported(" that changes the size")
    x, y = inputs[0], node.output[0]
    last = state.operations[-1]
    if isinstance(last, Pool) and last.ys[-1] == x and last.kernel == size:  # fuse a chain of pools into one launch
        state.operations[-1] = replace(last, ys=(*last.ys, y))
        state.shapes[y], state.ranks[y] = state.shapes[x], 4
    else:
        state.add(Pool(node.name or y, x, (y,), size), [state.shapes[x]])


def _resize(state: ImportState, node: Any, inputs: list[str]) -> None:
    """Nearest upsampling by an integer, which is checked by evaluating the node on a small image."""
    x = inputs[0]
    channels, height, width = state.shapes[x]
    arguments = [state.constants.get(state.resolve(name)) if name else None for name in node.input[1:]]
    if any(value is None for name, value in zip(node.input[1:], arguments, strict=True) if name):
        raise Unsupported(" to a computed size")
    _, scales, sizes = [*arguments, None, None, None][:3]
    if sizes is not None and sizes.size:
        factors = [float(size) / now for size, now in zip(sizes, (1, channels, height, width), strict=True)]
    else:
        factors = [] if scales is None else [float(value) for value in scales]
    scale = int(factors[2]) if len(factors) == 4 else 0
    if scale < 1 or factors != [1, 1, scale, scale]:
        raise Unsupported(f" by {factors}")
    sample = np.arange(12, dtype=np.float32).reshape(1, 1, 3, 4)
    values = {name: value for name, value in zip(node.input[1:], arguments, strict=True) if value is not None}
    if sizes is not None and sizes.size:
        values[node.input[3]] = np.array([1, 1, 3 * scale, 4 * scale], np.int64)
    (result,) = evaluate([node], {node.input[0]: sample, **values}, [node.output[0]], state.model)
    if not np.array_equal(result, sample.repeat(scale, 2).repeat(scale, 3)):
        raise Unsupported(" that does not just repeat pixels")
    step = Upsample(node.name or node.output[0], x, node.output[0], scale)
    state.add(step, [(channels, height * scale, width * scale)])


def _concat(state: ImportState, node: Any, inputs: list[str]) -> None:
    if any(name not in state.shapes for name in inputs):
        raise Unsupported(" with a constant")
    rank = state.ranks[inputs[0]]
    axis = attribute(node, "axis", 0) % rank
    shapes = [state.shapes[name] for name in inputs]
    if axis == 1:
        shape = (sum(channels for channels, _, _ in shapes), *shapes[0][1:])
    elif axis == 2 and rank == 3:
        shape = (shapes[0][0], sum(rows for _, rows, _ in shapes), 1)
    else:
        raise Unsupported(f" along axis {axis}")
    along = ("channels", "rows")[axis - 1]
    state.add(Concat(node.name or node.output[0], tuple(inputs), node.output[0], along), [shape], rank)  # type: ignore[arg-type]


def _split(state: ImportState, node: Any, inputs: list[str]) -> None:
    x = inputs[0]
    channels, height, width = state.shapes[x]
    if attribute(node, "axis", 0) % state.ranks[x] != 1:
        raise Unsupported(" along an axis other than the channels")
    count = len(node.output)
    most = -(-channels // count)
    sizes = state.split_sizes(node) or [most] * (count - 1) + [channels - most * (count - 1)]
    state.add(Split(node.name or node.output[0], x, tuple(node.output)), [(size, height, width) for size in sizes],
               state.ranks[x])  # fmt: skip


def _reshape(state: ImportState, node: Any, inputs: list[str]) -> None:
    x, wanted = inputs[0], state.constants.get(inputs[1])
    shape, (channels, height, width) = state.onnx_shape(x), state.shapes[x]
    if wanted is None or len(wanted) != 3 or state.ranks[x] != 4:
        raise Unsupported(" to something other than a list of anchors")
    sizes = [size if size else shape[axis] for axis, size in enumerate(wanted.tolist())]
    known = int(np.prod([size for size in sizes if size > 0]))
    sizes = [size if size > 0 else channels * height * width // known for size in sizes]
    if sizes != [1, channels, height * width]:
        raise Unsupported(f" to {sizes}")
    state.add(Flatten(node.name or node.output[0], x, node.output[0]), [(channels, height * width, 1)], 3)


def _fold_quantizer(state: ImportState, node: Any) -> bool:
    """Whether a Q/DQ node was removed: its range is kept, 8-bit weights are dequantised. Not if its scale is computed,
    per block, or per channel of an activation."""
    x, y = state.resolve(node.input[0]), node.output[0]
    parameters = [state.constants.get(state.resolve(name)) for name in node.input[1:] if name]
    if not parameters or any(value is None for value in parameters) or attribute(node, "block_size", 0):
        return False
    scale = np.asarray(parameters[0], np.float32)
    zero = np.asarray(parameters[1]) if len(parameters) > 1 else np.zeros(scale.shape, np.uint8)
    zero_type = zero.dtype
    limits = np.iinfo(zero_type) if zero_type.kind in "iu" else None
    if x in state.constants:
        values, axis = state.constants[x], attribute(node, "axis", 1)
        shape = [-1 if index == axis % values.ndim else 1 for index in range(values.ndim)]
        scale, zero = (value.reshape(() if value.size == 1 else shape) for value in (scale, zero.astype(np.float32)))
        if node.op_type == "DequantizeLinear":
            state.constants[y] = (values.astype(np.float32) - zero) * scale
        elif limits is not None:
            numbers = np.clip(np.rint(values / scale) + zero, limits.min, limits.max)
            state.constants[y] = numbers.astype(zero_type)
        return y in state.constants
    if x not in state.shapes or scale.size != 1:
        return False
    if node.op_type == "QuantizeLinear" and limits is not None:
        edges = [(edge - float(zero.reshape(-1)[0])) * float(scale.reshape(-1)[0]) for edge in (limits.min, limits.max)]
        state.ranges[x] = max(state.ranges.get(x, 0.0), *map(abs, edges))
    state.aliases[y] = x
    state.uses[x] += state.uses[y] - 1
    return True


TRANSLATORS: dict[str, Callable[[ImportState, Any, list[str]], None]] = {
    "Conv": _conv,
    "Sigmoid": _sigmoid,
    "Mul": _mul,
    "Relu": lambda state, node, inputs: _activate(state, inputs[0], node.output[0], "relu"),
    "Add": _add,
    "MaxPool": _max_pool,
    "Resize": _resize,
    "Concat": _concat,
    "Split": _split,
    "Reshape": _reshape,
}
