"""ONNX -> fused network: folds constants for one input size, fuses SiLU, ReLU and residuals into convolutions.

Everything that depends on the input size alone (anchors, strides) is evaluated with onnx's evaluator. Nodes without
kernels of their own and everything that depends on them form the tail, which mostly is a detection head that
`import_state.py` recognises. Otherwise the tail is run by `array_program.py`, and so is what lies between
such nodes and a later convolution. The import fails, and lists the operators, if one of them is not there either.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np

from framefuse.engines.cudnn.array_program import OPERATORS, ArrayProgram, counted
from framefuse.engines.cudnn.import_state import CHANNEL_MULTIPLE, ImportState, recognise_attention, recognise_head
from framefuse.engines.cudnn.network import Concat, Conv, Flatten, General, Network, Operation, Pool, Split, Upsample
from framefuse.engines.cudnn.traced import Given, Traced
from framefuse.errors import ModelError
from framefuse.kernels.network.call import MAX_WINDOW
from framefuse.models.onnx_file import FLOATS, attribute, evaluate, load_onnx

QUANTIZERS = ("QuantizeLinear", "DequantizeLinear")
HEAD_CONVOLUTIONS = 2
"""Convolutions that a detection head may have: the expectation over the bins of a side is written as one."""


def import_network(path: Path, height: int, width: int, batch: int = 1) -> Network:
    """Import an ONNX file at one batch and input size.

    Raises:
        ModelError: the file cannot be read, takes another size, or has unsupported operators.
    """
    model = load_onnx(path)
    importer = Importer(model, path, height, width).import_all()
    if (found := importer.finish()) is not None:
        return found
    known = importer.constants if importer.batch == (importer.fixed or batch) else None
    for attention in (True, False):
        given = model, path, height, width, batch
        importer = Importer(*given, general=True, attention=attention, constants=known).import_all()
        network = importer.finish_generally()
        read = {name for step in network.general for name in step.xs}
        if not read & importer.reordered:  # else something besides attention reads channels in another order
            break
    return network


class Unsupported(Exception):
    """An operation that the engine does not have; the message says why, to follow the operator's name."""


class Importer(ImportState):
    """Imports the nodes of a graph in order."""

    def import_all(self) -> Self:
        """Import every node."""
        for node in self.model.graph.node:
            self.import_node(node)
        return self

    def import_node(self, node: Any) -> None:
        """Fold, translate or defer one node."""
        inputs = [self.resolve(name) for name in node.input if name]
        if node.op_type in QUANTIZERS and _fold_quantizer(self, node):
            return
        if self.constants.keys() >= {*node.output}:  # an earlier import has folded it
            return
        if node.op_type == "Constant" or (inputs and all(name in self.constants for name in inputs)):
            try:
                known = {name: self.constants[self.resolve(name)] for name in node.input if name}
                values = evaluate([node], known, list(node.output), self.model)
                self.constants.update(zip(node.output, values, strict=True))
            except Exception:  # of any class: onnx's evaluator lacks the operator at this opset
                self._defer(node)
        elif node.op_type == "Shape" and inputs[0] in self.shapes:
            start, end = attribute(node, "start", 0), attribute(node, "end", None)
            self.constants[node.output[0]] = np.array(self.onnx_shape(inputs[0])[start:end], np.int64)
        elif any(name in self.deferred for name in inputs) and not self._resumed(node, inputs):
            self._defer(node)
        elif node.op_type in ("Identity", "Dropout") or (node.op_type == "Cast" and attribute(node, "to", 0) in FLOATS):
            self.aliases[node.output[0]] = inputs[0]
            self.uses[inputs[0]] += self.uses[node.output[0]] - 1
        else:
            try:
                if node.op_type not in TRANSLATORS:
                    raise Unsupported
                TRANSLATORS[node.op_type](self, node, inputs)
            except Unsupported:
                self._defer(node)

    def finish(self) -> Network | None:
        """The network, after the last node; None if it needs `array_program.py`."""
        wanted = [self.resolve(item.name) for item in self.model.graph.output]
        self.tail = self.tail_leading_to(wanted)
        network = Network(self.input, tuple(wanted), self.operations, self.shapes, ranges=self.ranges)
        if self.tail or any(name not in self.shapes for name in wanted):
            is_head = len(wanted) == 1 and sum(node.op_type == "Conv" for node in self.tail) <= HEAD_CONVOLUTIONS
            head = recognise_head(self) if is_head else None
            if head is None:
                return None
            network = replace(network, outputs=head.values, head=head)
        network.operations[:] = _needed(network)
        return None if any(isinstance(op, Flatten) for op in network.operations) else network

    def finish_generally(self) -> Network:
        """The network whose last nodes are run one by one.

        Raises:
            ModelError: an operator is missing.
        """
        wanted = tuple(self.resolve(item.name) for item in self.model.graph.output)
        nodes = self.tail_leading_to(wanted)
        self._refuse_unknown(nodes)
        program = self._program(nodes)
        made = {name for call in program.calls for name in call.outputs}
        reads = tuple(dict.fromkeys([*program.reads, *(name for name in wanted if name not in made)]))
        tail = General("outputs", program, reads, wanted, self.fixed)
        network = Network(self.input, reads, self.operations, self.shapes, tail=tail, ranges=self.ranges)
        network.operations[:] = _needed(network)
        return network

    def _resumed(self, node: Any, inputs: list[str]) -> bool:
        """Whether what a convolution reads, which comes from deferred nodes, is now a value of the network."""
        weights = len(inputs) > 1 and inputs[1] in self.constants and self.constants[inputs[1]].ndim == 4
        if not (self.general and node.op_type == "Conv" and weights):
            return False
        x = inputs[0]
        nodes = self.tail_leading_to([x])
        if any(other.op_type not in OPERATORS for other in nodes):
            return False
        program = self._program(nodes)
        shapes = [(self.batch, *self.shapes[name]) for name in program.reads]
        given = [Traced(Given(number, np.float32, shape)) for number, shape in enumerate(shapes)]
        (value,) = program.run(dict(zip(program.reads, given, strict=True)), [x])
        self.add(General(x, program, tuple(program.reads), (x,), self.fixed), [value.shape[1:]])
        self.deferred.discard(x)
        return True

    def _program(self, nodes: list[Any]) -> ArrayProgram:
        opset = next(one.version for one in self.model.opset_import if one.domain in ("", "ai.onnx"))
        return ArrayProgram(nodes, self.constants, self.resolve, opset=opset)

    def _refuse_unknown(self, nodes: list[Any]) -> None:
        unknown = [node for node in nodes if node.op_type not in OPERATORS]
        if unknown:
            listed, first = counted(node.op_type for node in unknown), ", ".join(map(_described, unknown[:4]))
            message = f"engine cudnn cannot run {self.path}: it does not know the operators {listed} (first: {first})"
            raise ModelError(message, remedy="use another engine, for example onnxruntime")

    def _defer(self, node: Any) -> None:
        for name in node.input:  # half of something that is no SiLU
            if gate := self.gates.pop(name, None):
                self.defer(gate)
        self.defer(node)
        if node.op_type == "Reshape" and self.attention and recognise_attention(self, node):
            self.deferred.discard(node.output[0])


def _described(node: Any) -> str:
    """A node, with its attributes."""
    from onnx import helper

    found = [f"{one.name}={str(helper.get_attribute_value(one))[:40]}" for one in node.attribute]
    return f"{node.op_type} {node.name or node.output[0]} ({', '.join(found)})"


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
    if groups > 1 and (len(weight) % CHANNEL_MULTIPLE or state.shapes[x][0] % CHANNEL_MULTIPLE):
        raise Unsupported(f" in groups, of channels that are no multiple of {CHANNEL_MULTIPLE}")
    conv = Conv(node.name or y, x, y, weight, bias, stride, pads, dilation, groups)
    state.add(conv, [(len(weight), rows, columns)])


def _conv_transpose(state: Importer, node: Any, inputs: list[str]) -> None:
    """Where filters do not overlap, as a convolution of 1x1 whose channels are then spread over space."""
    from onnx import helper

    x, y, constants, size = inputs[0], node.output[0], state.constants, attribute(node, "strides", [1, 1])[0]
    if any(name not in constants for name in inputs[1:]) or state.ranks[x] != 4:
        raise Unsupported(" with computed weights")
    weight, (_, height, width) = constants[inputs[1]].astype(np.float32), state.shapes[x]
    usual = {"group": 1, "pads": [0] * 4, "dilations": [1, 1], "output_padding": [0, 0], "auto_pad": "NOTSET",
             "output_shape": [], "strides": [size, size]}  # fmt: skip
    if weight.shape[2:] != (size, size) or any(attribute(node, name, value) != value for name, value in usual.items()):
        raise Unsupported(" with filters that overlap")
    count = weight.shape[1]
    bias = constants[inputs[2]].astype(np.float32) if len(inputs) > 2 else np.zeros(count, np.float32)
    parts = f"{y}/parts"
    filters = weight.transpose(2, 3, 1, 0).reshape(size * size * count, -1, 1, 1)
    state.add(Conv(node.name or y, x, parts, filters, np.tile(bias, size * size)), [(len(filters), height, width)])
    state.uses[parts] = 1
    state._defer(helper.make_node("DepthToSpace", [parts], [y], parts, blocksize=size))


def _activate(state: ImportState, x: str, y: str, activation: Any) -> None:
    """Fuse an activation into the convolution before it."""
    conv = next((op for op in reversed(state.operations) if x in op.writes), None)
    uses = {"silu": 2}.get(activation, 1)
    if not isinstance(conv, Conv) or conv.activation != "none" or state.uses[x] != uses:
        raise Unsupported(" that does not follow a plain convolution")
    if conv.residual and (conv.last != "none" or conv.depthwise):
        raise Unsupported(" after a sum that has an activation, or of a depthwise convolution")
    place = "last" if conv.residual else "activation"
    state.operations[state.operations.index(conv)] = replace(conv, y=y, **{place: activation})
    state.shapes[y], state.ranks[y] = state.shapes.pop(x), state.ranks.pop(x)


def _sigmoid(state: ImportState, node: Any, inputs: list[str]) -> None:
    """Half of a SiLU, if its only consumer multiplies it by its input."""
    y = node.output[0]
    products = state.readers[y]
    if len(products) != 1 or products[0].op_type != "Mul" or inputs[0] not in map(state.resolve, products[0].input):
        raise Unsupported(" that is not part of a SiLU")
    state.gates[y] = node


def _mul(state: ImportState, node: Any, inputs: list[str]) -> None:
    if any(name in state.constants for name in inputs):
        _fold_constant(state, node, inputs)
        return
    gate, value = sorted(inputs, key=lambda name: name not in state.gates)
    if gate not in state.gates or state.resolve(state.gates[gate].input[0]) != value:
        raise Unsupported(" that is not part of a SiLU")
    _activate(state, value, node.output[0], "silu")


def _add(state: ImportState, node: Any, inputs: list[str]) -> None:
    """Fuse a residual into the later of two convolutions, which moves to the place of the sum."""
    if any(name in state.constants for name in inputs):
        _fold_constant(state, node, inputs)
        return
    if len(inputs) != 2 or any(name not in state.shapes for name in inputs):
        raise Unsupported(" of other than two images")
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


def _fold_constant(state: ImportState, node: Any, inputs: list[str]) -> None:
    """Multiply by or add a number of each channel, as normalisation does, in the convolution before."""
    x, constant = sorted(inputs, key=lambda name: name in state.constants)
    value = state.constants[constant]
    conv = next((op for op in reversed(state.operations) if x in op.writes), None)
    plain = isinstance(conv, Conv) and conv.activation == "none" and not conv.residual and state.uses[x] == 1
    if not isinstance(conv, Conv) or not plain or x in state.reordered:
        raise Unsupported(" of a constant that does not follow a plain convolution")
    count = len(conv.weight)
    if value.size != 1 and value.shape not in ((1, count, 1, 1), (count, 1, 1)):
        raise Unsupported(f" of a constant {value.shape}")
    each = np.broadcast_to(value.astype(np.float32).reshape(-1), (count,))
    if node.op_type == "Mul":
        folded = replace(conv, weight=conv.weight * each[:, None, None, None], bias=conv.bias * each)
    else:
        folded = replace(conv, bias=conv.bias + each)
    y = node.output[0]
    state.operations[state.operations.index(conv)] = replace(folded, y=y)
    state.shapes[y], state.ranks[y] = state.shapes.pop(x), state.ranks.pop(x)


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
    if any(sum(sizes[:part]) % CHANNEL_MULTIPLE for part in range(count)):
        raise Unsupported(f" into parts that do not begin at multiples of {CHANNEL_MULTIPLE} channels")
    state.add(Split(node.name or node.output[0], x, tuple(node.output)), [(size, height, width) for size in sizes],
               state.ranks[x])  # fmt: skip


def _reshape(state: ImportState, node: Any, inputs: list[str]) -> None:
    if state.general:
        raise Unsupported(" that is no part of a known head")
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


TRANSLATORS: dict[str, Callable[[Importer, Any, list[str]], None]] = {
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
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
