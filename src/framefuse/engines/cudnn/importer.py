"""ONNX -> fused network: constants folded at one input size, SiLU and residuals drawn into their convolutions.

Everything that depends on the input's size alone (anchors, strides) is evaluated here with onnx's own evaluator. The
walk takes operations as long as they are known; what follows is the tail. It must be a detection head whose decoding
`heads.py` recognises by evaluating it; otherwise the operators that are not known are listed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from framefuse.engines.cudnn import attention, heads
from framefuse.engines.cudnn import quantize_nodes as quantisers
from framefuse.engines.cudnn.import_state import ImportState
from framefuse.engines.cudnn.network import Concat, Conv, Flatten, Network, Operation, Pool, Split, Upsample
from framefuse.engines.cudnn.onnx_nodes import attribute, evaluate
from framefuse.errors import ModelError
from framefuse.kernels.network.call import MAX_WINDOW

Array = NDArray[Any]


KNOWN = (
    "convolutions with SiLU, ReLU or nothing and a residual, max-pooling that keeps the size, nearest upsampling by a "
    "whole number, concatenation and split of channels, attention as in YOLO11"
)


def read(path: Path, height: int, width: int) -> Network:
    """The network of an ONNX file at one input size.

    Raises:
        ModelError: the file cannot be read, takes another size, or has operators that are not known; they are listed.
    """
    import onnx

    try:
        model = onnx.load(path)
    except Exception as error:  # protobuf's classes depend on its implementation
        raise ModelError(f"{path} cannot be read as ONNX: {error}", remedy="export the model again") from error
    reader = Importer(model, path, height, width)
    for node in model.graph.node:
        reader.take(node)
    return reader.finish()


class Unknown(Exception):
    """An operation that is not one of ours; the message says why."""


class Importer(ImportState):
    """The walk over the nodes of a graph."""

    def take(self, node: Any) -> None:
        """Fold, translate or put off one node."""
        inputs = [self.name(name) for name in node.input if name]
        if node.op_type in quantisers.KINDS and quantisers.take(self, node):
            return
        if node.op_type == "Constant" or (inputs and all(name in self.constants for name in inputs)):
            try:
                self._fold(node)
            except Exception as error:  # onnx's evaluator does not know the operator, in this version of the opset
                self.reasons[node.output[0]] = f"{node.op_type} ({node.name or node.output[0]}): {str(error)[:80]}"
                self._put_off(node)
        elif node.op_type == "Shape" and inputs[0] in self.shapes:
            start, end = attribute(node, "start", 0), attribute(node, "end", None)
            self.constants[node.output[0]] = np.array(self.onnx_shape(inputs[0])[start:end], np.int64)
        elif any(name in self.beyond for name in inputs):
            self._put_off(node)
        elif node.op_type in ("Identity", "Dropout") or (node.op_type == "Cast" and self._is_float(node)):
            self.names[node.output[0]] = inputs[0]
            self.uses[inputs[0]] += self.uses[node.output[0]] - 1
        else:
            try:
                TRANSLATORS.get(node.op_type, _unknown)(self, node, inputs)
            except Unknown as reason:
                self.reasons[node.output[0]] = f"{node.op_type} ({node.name or node.output[0]}){reason}"
                self._put_off(node)

    def finish(self) -> Network:
        """The network, once every node was taken."""
        wanted = [self.name(item.name) for item in self.model.graph.output]
        self.tail = self.leading_to(wanted)
        network = Network(self.input, tuple(wanted), self.operations, self.shapes, ranges=self.ranges)
        if self.tail or any(name not in self.shapes for name in wanted):
            head = heads.recognise(self) if len(wanted) == 1 else None
            if head is None:
                raise ModelError(f"engine cudnn cannot take {self.path}: {self._missing()}",
                                 remedy="use another engine, for example onnxruntime")  # fmt: skip
            network = replace(network, outputs=head.values, head=head)
        network.operations[:] = _needed(network)
        if any(isinstance(op, Flatten) for op in network.operations):
            self.reasons[""] = "Reshape (not before a detection head)"
            raise ModelError(f"engine cudnn cannot take {self.path}: {self._missing()}",
                             remedy="use another engine, for example onnxruntime")  # fmt: skip
        return network

    def _missing(self) -> str:
        needed = {"", *(name for node in self.tail for name in node.output)}
        reasons = [reason for name, reason in self.reasons.items() if name in needed]
        count = Counter(reason.split(" ")[0] for reason in reasons)
        listed = ", ".join(f"{kind} x{times}" for kind, times in count.most_common())
        first = "; ".join(reasons[:4])
        return (
            f"its operators {listed} are not known here (first: {first}). Known are {KNOWN}, and the heads of YOLOv5, "
            "YOLOv8 and YOLO11"
        )

    def _put_off(self, node: Any) -> None:
        self.tail.append(node)
        self.beyond.update(node.output)
        if node.op_type == "Reshape" and attention.take(self, node):
            self.beyond.discard(node.output[0])

    def _is_float(self, node: Any) -> bool:
        return attribute(node, "to", 0) in (1, 10, 16)  # FLOAT, FLOAT16, BFLOAT16

    def _fold(self, node: Any) -> None:
        values = evaluate([node], {name: self.constants[self.name(name)] for name in node.input if name},
                          list(node.output), self.model)  # fmt: skip
        self.constants.update(zip(node.output, values, strict=True))


def _needed(network: Network) -> list[Operation]:
    """The operations that lead to an output."""
    wanted, kept = set(network.outputs), list[Operation]()
    for op in reversed(network.operations):
        if wanted & set(op.writes):
            kept.append(op)
            wanted |= set(op.reads)
    return kept[::-1]


def _unknown(reader: ImportState, node: Any, inputs: list[str]) -> None:
    raise Unknown("")


def _conv(reader: ImportState, node: Any, inputs: list[str]) -> None:
    x, constants = inputs[0], reader.constants
    if any(name not in constants for name in inputs[1:]) or reader.ranks[x] != 4:
        raise Unknown(": its weights are computed")
    weight = constants[inputs[1]].astype(np.float32)
    if weight.ndim != 4:
        raise Unknown(f": {weight.ndim - 2} axes")
    bias = constants[inputs[2]].astype(np.float32) if len(inputs) > 2 else np.zeros(len(weight), np.float32)
    stride, dilation = tuple(attribute(node, "strides", [1, 1])), tuple(attribute(node, "dilations", [1, 1]))
    extent = [(size - 1) * step + 1 for size, step in zip(weight.shape[2:], dilation, strict=True)]
    _, height, width = reader.shapes[x]
    automatic = attribute(node, "auto_pad", "NOTSET")
    pads = tuple(attribute(node, "pads", [0, 0, 0, 0]))
    if automatic in ("SAME_UPPER", "SAME_LOWER"):
        raise Unknown(f": auto_pad {automatic}")
    padded = (height + pads[0] + pads[2], width + pads[1] + pads[3])
    rows, columns = ((side - size) // step + 1 for side, size, step in zip(padded, extent, stride, strict=True))
    reader.add(
        Conv(node.name or node.output[0], x, node.output[0], weight, bias, stride, pads, dilation,
             attribute(node, "group", 1)),
        [(len(weight), rows, columns)],
    )  # fmt: skip


def _activate(reader: ImportState, x: str, y: str, activation: Any) -> None:
    """Draw an activation into the convolution before it."""
    conv = next((op for op in reversed(reader.operations) if x in op.writes), None)
    readers = {"silu": 2}.get(activation, 1)
    if not isinstance(conv, Conv) or conv.activation != "none" or conv.residual or reader.uses[x] != readers:
        raise Unknown(" after something that is no plain convolution")
    reader.operations[reader.operations.index(conv)] = replace(conv, y=y, activation=activation)
    reader.shapes[y], reader.ranks[y] = reader.shapes.pop(x), reader.ranks.pop(x)


def _sigmoid(reader: ImportState, node: Any, inputs: list[str]) -> None:
    """Half of a SiLU if a product of it and its input follows; a product that is not one puts both off."""
    y = node.output[0]
    products = [other for other in reader.model.graph.node if y in other.input]
    if len(products) != 1 or products[0].op_type != "Mul" or inputs[0] not in map(reader.name, products[0].input):
        raise Unknown(" that is no part of a SiLU")
    reader.gates[y] = inputs[0]


def _mul(reader: ImportState, node: Any, inputs: list[str]) -> None:
    gate, value = sorted(inputs, key=lambda name: name not in reader.gates)
    if reader.gates.get(gate) != value:
        raise Unknown(" that is no part of a SiLU")
    _activate(reader, value, node.output[0], "silu")


def _relu(reader: ImportState, node: Any, inputs: list[str]) -> None:
    _activate(reader, inputs[0], node.output[0], "relu")


def _add(reader: ImportState, node: Any, inputs: list[str]) -> None:
    """Draw a residual into the later of two convolutions, which then runs where the sum stood."""
    if len(inputs) != 2 or any(name not in reader.shapes for name in inputs):
        raise Unknown(" of a constant")
    order = [index for index, op in enumerate(reader.operations) for name in inputs if name in op.writes]
    for index in sorted(order, reverse=True):
        conv = reader.operations[index]
        if isinstance(conv, Conv) and conv.residual is None and reader.uses[conv.y] == 1 and inputs[0] != inputs[1]:
            residual = inputs[1] if conv.y == inputs[0] else inputs[0]
            if reader.shapes[residual] != reader.shapes[conv.y]:
                break
            shape = reader.shapes.pop(conv.y)
            del reader.operations[index]
            reader.add(replace(conv, y=node.output[0], residual=residual), [shape])
            return
    raise Unknown(" that is no residual of a convolution")


def _max_pool(reader: ImportState, node: Any, inputs: list[str]) -> None:
    kernel, pads = attribute(node, "kernel_shape", []), attribute(node, "pads", [0, 0, 0, 0])
    size = kernel[0]
    plain = attribute(node, "strides", [1, 1]) == [1, 1] and attribute(node, "dilations", [1, 1]) == [1, 1]
    if (
        kernel != [size, size]
        or not size % 2
        or not 1 < size <= MAX_WINDOW
        or pads != [size // 2] * 4
        or not plain
        or len(node.output) != 1
    ):
        raise Unknown(" that changes the size")
    x, y = inputs[0], node.output[0]
    last = reader.operations[-1]
    if isinstance(last, Pool) and last.ys[-1] == x and last.kernel == size:  # a pool of a pool: one launch for all
        reader.operations[-1] = replace(last, ys=(*last.ys, y))
        reader.shapes[y], reader.ranks[y] = reader.shapes[x], 4
    else:
        reader.add(Pool(node.name or y, x, (y,), size), [reader.shapes[x]])


def _resize(reader: ImportState, node: Any, inputs: list[str]) -> None:
    """Nearest upsampling by a whole number; the node is evaluated on a small image to know it."""
    x = inputs[0]
    channels, height, width = reader.shapes[x]
    parameters = [reader.constants.get(reader.name(name)) if name else None for name in node.input[1:]]
    if any(value is None for name, value in zip(node.input[1:], parameters, strict=True) if name):
        raise Unknown(": its size is computed")
    sizes = parameters[2] if len(parameters) > 2 else None
    scales = parameters[1] if len(parameters) > 1 else (parameters[0] if node.op_type == "Upsample" else None)
    if sizes is not None and sizes.size:
        factors = [float(size) / now for size, now in zip(sizes, (1, channels, height, width), strict=True)]
    else:
        factors = [float(value) for value in (scales if scales is not None else [])]
    scale = int(factors[2]) if len(factors) == 4 else 0
    if scale < 1 or factors != [1, 1, scale, scale]:
        raise Unknown(f" by {factors}")
    sample = np.arange(12, dtype=np.float32).reshape(1, 1, 3, 4)
    values = {name: value for name, value in zip(node.input[1:], parameters, strict=True) if value is not None}
    if sizes is not None and sizes.size:
        values[node.input[3]] = np.array([1, 1, 3 * scale, 4 * scale], np.int64)
    (result,) = evaluate([node], {node.input[0]: sample, **values}, [node.output[0]], reader.model)
    if not np.array_equal(result, sample.repeat(scale, 2).repeat(scale, 3)):
        raise Unknown(" that is no plain repetition of pixels")
    reader.add(Upsample(node.name or node.output[0], x, node.output[0], scale),
               [(channels, height * scale, width * scale)])  # fmt: skip


def _concat(reader: ImportState, node: Any, inputs: list[str]) -> None:
    if any(name not in reader.shapes for name in inputs):
        raise Unknown(" with a constant")
    rank = reader.ranks[inputs[0]]
    axis = attribute(node, "axis", 0) % rank
    shapes = [reader.shapes[name] for name in inputs]
    if axis == 1:
        shape = (sum(channels for channels, _, _ in shapes), *shapes[0][1:])
    elif axis == 2 and rank == 3:
        shape = (shapes[0][0], sum(rows for _, rows, _ in shapes), 1)
    else:
        raise Unknown(f" along axis {axis}")
    along = ("channels", "rows")[axis - 1]
    reader.add(Concat(node.name or node.output[0], tuple(inputs), node.output[0], along), [shape], rank)  # type: ignore[arg-type]


def _split(reader: ImportState, node: Any, inputs: list[str]) -> None:
    x = inputs[0]
    channels, height, width = reader.shapes[x]
    if attribute(node, "axis", 0) % reader.ranks[x] != 1:
        raise Unknown(" along another axis than the channels")
    sizes = reader.constants[inputs[1]].tolist() if len(inputs) > 1 else attribute(node, "split", None)
    count = len(node.output)
    sizes = sizes or [-(-channels // count)] * (count - 1) + [channels - -(-channels // count) * (count - 1)]
    reader.add(Split(node.name or node.output[0], x, tuple(node.output)), [(size, height, width) for size in sizes],
               reader.ranks[x])  # fmt: skip


def _reshape(reader: ImportState, node: Any, inputs: list[str]) -> None:
    x, wanted = inputs[0], reader.constants.get(inputs[1])
    shape, (channels, height, width) = reader.onnx_shape(x), reader.shapes[x]
    if wanted is None or len(wanted) != 3 or reader.ranks[x] != 4:
        raise Unknown(" to something else than a list of anchors")
    sizes = [size if size else shape[axis] for axis, size in enumerate(wanted.tolist())]
    known = int(np.prod([size for size in sizes if size > 0]))
    sizes = [size if size > 0 else channels * height * width // known for size in sizes]
    if sizes != [1, channels, height * width]:
        raise Unknown(f" to {sizes}")
    reader.add(Flatten(node.name or node.output[0], x, node.output[0]), [(channels, height * width, 1)], 3)


TRANSLATORS: dict[str, Callable[[ImportState, Any, list[str]], None]] = {
    "Conv": _conv,
    "Sigmoid": _sigmoid,
    "Mul": _mul,
    "Relu": _relu,
    "Add": _add,
    "MaxPool": _max_pool,
    "Resize": _resize,
    "Concat": _concat,
    "Split": _split,
    "Reshape": _reshape,
}
