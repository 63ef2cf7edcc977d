"""Quantised graphs as TensorRT reads them: signed numbers around zero, in 8 bit integers or in FP8.

A file of `framefuse build` quantises activations as uint8 with a zero point, because SiLU gives a few negative numbers
and many positive ones: with zero in the middle almost half of the numbers would stand for values that never come.
TensorRT takes zero points of 0 only. `symmetric` keeps every rounded number and moves the tensor instead: with
d = scale x (zero point - 128), y = x + d is quantised around zero, and the convolution that reads y subtracts
d x sum(weights) in its bias. Where a convolution pads, the padding is d instead of 0, so it is put there by a Pad of
its own. What those cost on a GPU has not been measured.
"""

from copy import deepcopy
from typing import Any

import numpy as np

from framefuse.errors import ModelError
from framefuse.models.onnx_file import attribute, is_quantised, opset_of

FP8_LARGEST = 448.0
"""The largest number of float8e4m3fn."""
FP8_OPSET = 19


def symmetric(model: Any) -> Any:
    """A copy whose quantisers are all int8 with zero points of 0, and which computes the same.

    Raises:
        ModelError: a quantiser whose scale or zero point is no constant, or has several zero points.
    """
    from onnx import helper

    moved = deepcopy(model)
    graph = _Graph(moved)
    nodes: list[Any] = []
    gone: set[str] = set()

    def make(kind: str, inputs: list[str], output: str) -> None:
        nodes.append(helper.make_node(kind, inputs, [output], f"{output}/{kind}"))

    def quantised(
        node: Any, start: str, pads: tuple[int, ...], offset: np.float32, made: dict[tuple[int, ...], str]
    ) -> str:
        """The moved tensor, padded and quantised and back; once for each padding."""
        if pads not in made:
            name, source = f"{start}_{len(made)}", start
            if any(pads):
                half = len(pads) // 2
                sides = graph.add(f"{name}_pads", np.array([0, 0, *pads[:half], 0, 0, *pads[half:]], np.int64))
                source = f"{name}/padded"
                make("Pad", [start, sides, graph.add(f"{name}_with", offset)], source)
            scale = [node.input[1], graph.add(f"{name}_zero", np.int8(0))]
            make("QuantizeLinear", [source, *scale], f"{name}/q")
            make("DequantizeLinear", [f"{name}/q", *scale], f"{name}/dq")
            made[pads] = f"{name}/dq"
        return made[pads]

    for node in moved.graph.node:
        if node.op_type == "DequantizeLinear" and node.input[0] in gone:
            continue
        zero = graph.zero_point(node) if node.op_type == "QuantizeLinear" else None
        if zero is None or (zero.dtype == np.int8 and not zero.any()):  # what TensorRT accepts as it is
            nodes.append(node)
            continue
        scale = graph.constant(node, node.input[1])
        if scale.size != 1 or zero.dtype != np.uint8:
            message = f"{node.name} quantises with {zero.size} zero points of {zero.dtype}; TensorRT takes one of 0"
            raise ModelError(message, remedy="build the file with framefuse build --precision int8")
        offset = np.float32(scale.item() * (int(zero.item()) - 128))
        gone.add(node.output[0])
        start = f"{node.output[0]}/moved"
        make("Add", [node.input[0], graph.add(f"{start}_by", offset)], start)
        made: dict[tuple[int, ...], str] = {}
        for back in graph.readers(node.output[0]):
            for reader in graph.readers(back.output[0]):
                weight = graph.value(reader.input[1]) if reader.op_type == "Conv" else None
                padded = attribute(reader, "auto_pad", "") not in ("", "NOTSET", "VALID")
                if weight is None or padded or reader.input[0] != back.output[0]:
                    plain = f"{back.output[0]}/back"
                    if plain not in made.values():
                        inputs = [quantised(node, start, (), offset, made), graph.add(f"{plain}_by", -offset)]
                        make("Add", inputs, plain)
                        made[(-1,)] = plain
                    reader.input[:] = [plain if name == back.output[0] else name for name in reader.input]
                    continue
                pads = next((a for a in reader.attribute if a.name == "pads"), None)
                sides = tuple(pads.ints) if pads is not None else ()
                reader.input[0] = quantised(node, start, sides if any(sides) else (), offset, made)
                if pads is not None:
                    pads.ints[:] = [0] * len(sides)
                bias = graph.value(reader.input[2]) if len(reader.input) > 2 else np.zeros(weight.shape[0], np.float32)
                if bias is None:
                    raise ModelError(f"the bias of {reader.name} is computed, where TensorRT needs a constant")
                moved_bias = bias - offset * weight.astype(np.float64).sum(axis=tuple(range(1, weight.ndim)))
                name = graph.add(f"{reader.name or reader.output[0]}/moved_bias", moved_bias.astype(np.float32))
                reader.input[:] = [*list(reader.input)[:2], name]
    del moved.graph.node[:]
    moved.graph.node.extend(nodes)
    return graph.finished()


def to_fp8(model: Any) -> Any:
    """A copy of an INT8 graph with FP8 (e4m3) instead of 8 bit integers, with the same ranges.

    Activations have one scale a tensor, weights one a channel; the largest magnitude of each becomes 448.

    Raises:
        ModelError: the model is not quantised.
    """
    from onnx import TensorProto, helper, version_converter

    if not is_quantised(model):
        raise ModelError("FP8 needs ranges, and the model has none", remedy="build it with --precision int8 first")
    converted = version_converter.convert_version(model, max(FP8_OPSET, opset_of(model)))
    graph = _Graph(converted)
    tensors: list[Any] = []
    fp8 = TensorProto.FLOAT8E4M3FN
    zero = helper.make_tensor("fp8_zero", fp8, [], b"\0", raw=True)
    for node in converted.graph.node:
        if node.op_type == "QuantizeLinear":
            scale, shift = graph.constant(node, node.input[1]), graph.zero_point(node)
            limits = np.iinfo(shift.dtype)
            ends = [np.abs(scale * (float(end) - shift.astype(np.float64))) for end in (limits.min, limits.max)]
            largest = np.maximum(*ends).max()
            name = graph.add(f"{node.output[0]}/fp8_scale", np.float32(largest / FP8_LARGEST))
            node.input[1:] = [name, zero.name]
            for back in graph.readers(node.output[0]):
                back.input[1:] = [name, zero.name]
        elif node.op_type == "DequantizeLinear" and node.input[0] in graph.constants:
            values = graph.value(node.output[0])
            assert values is not None
            if values.ndim < 2:  # a bias
                continue
            axis = attribute(node, "axis", 1)
            others = tuple(index for index in range(values.ndim) if index != axis)
            scale = np.maximum(np.abs(values).max(axis=others, keepdims=True) / FP8_LARGEST, 1e-12)
            name = f"{node.output[0]}/fp8"
            # make_tensor rounds to the nearest number of the type.
            tensors.append(helper.make_tensor(name, fp8, values.shape, (values / scale).ravel().tolist()))
            zeros = helper.make_tensor(f"{name}_zero", fp8, [scale.size], b"\0" * scale.size, raw=True)
            tensors.append(zeros)
            node.input[:] = [name, graph.add(f"{name}_scale", scale.ravel().astype(np.float32)), zeros.name]
    converted.graph.initializer.extend([zero, *tensors])
    return graph.finished()


class _Graph:
    def __init__(self, model: Any) -> None:
        from onnx import numpy_helper

        self.constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
        self._model = model
        self._added: dict[str, Any] = {}
        self._nodes = list(model.graph.node)
        self._makers = {name: node for node in self._nodes for name in node.output}

    def add(self, name: str, value: Any) -> str:
        self._added[name] = np.asarray(value)
        return name

    def readers(self, name: str) -> list[Any]:
        return [node for node in self._nodes if name in node.input]

    def constant(self, node: Any, name: str) -> Any:
        if name not in self.constants:
            raise ModelError(f"{node.name} ({node.op_type}) computes its {name}, where TensorRT needs a constant")
        return self.constants[name]

    def zero_point(self, node: Any) -> Any:
        return self.constant(node, node.input[2]) if len(node.input) > 2 and node.input[2] else np.uint8(0)

    def value(self, name: str) -> Any:
        """A constant, possibly stored quantised; None if it is computed."""
        if name in self.constants:
            return self.constants[name]
        node = self._makers.get(name)
        if node is None or node.op_type != "DequantizeLinear" or node.input[0] not in self.constants:
            return None
        stored = self.constants[node.input[0]].astype(np.float32)
        scale, zero = self.constant(node, node.input[1]), self.zero_point(node).astype(np.float32)
        if scale.ndim:
            axis = attribute(node, "axis", 1)
            shape = [-1 if index == axis else 1 for index in range(stored.ndim)]
            scale, zero = scale.reshape(shape), zero.reshape(shape) if zero.ndim else zero
        return (stored - zero) * scale

    def finished(self) -> Any:
        """The model with what was added, without constants that nothing reads and shapes that may have changed."""
        from onnx import checker, numpy_helper

        graph = self._model.graph
        graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in self._added.items())
        used = {name for node in graph.node for name in node.input}
        kept = [tensor for tensor in graph.initializer if tensor.name in used]
        del graph.initializer[:], graph.value_info[:]
        graph.initializer.extend(kept)
        checker.check_model(self._model, full_check=True)
        return self._model
