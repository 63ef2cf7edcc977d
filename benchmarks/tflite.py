"""Converts networks in TensorFlow Lite to ONNX: those whose operators are in CONVERTERS, which suffice for mediapipe's
selfie segmentation. One of them, a transposed convolution with a bias, is mediapipe's own, so that neither OpenVINO
nor converters of others know it.

A flatbuffer is read by the field numbers of TensorFlow Lite's schema.fbs. Images have their channels last there and
first here; weights that were stored as FP16 become FP32, as TensorFlow Lite computes with them.
"""

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

OPSET = 17
DTYPES: dict[int, Any] = {0: np.float32, 1: np.float16, 2: np.int32}
"""By TensorFlow Lite's number of a type."""
ADD, AVERAGE_POOL_2D, CONV_2D, DEPTHWISE_CONV_2D, DEQUANTIZE, LOGISTIC, MUL, RELU = 0, 1, 3, 4, 6, 14, 18, 19
RESIZE_BILINEAR, CUSTOM, MEAN, HARD_SWISH = 23, 32, 40, 117


class Table:
    """A table of a flatbuffer, whose fields have numbers.

    Args:
        at: position of the table in the data.
    """

    def __init__(self, data: bytes, at: int) -> None:
        self._data, self._at = data, at

    @classmethod
    def root(cls, data: bytes) -> "Table":
        return cls(data, _read("I", data, 0))

    def _place(self, field: int) -> int | None:
        """Where a field lies; None if it has its default."""
        types = self._at - _read("i", self._data, self._at)
        offset = 4 + 2 * field
        place = _read("H", self._data, types + offset) if offset < _read("H", self._data, types) else 0
        return self._at + place if place else None

    def number(self, field: int, form: str, default: int = 0) -> int:
        """A number, of a format of `struct`."""
        place = self._place(field)
        return default if place is None else _read(form, self._data, place)

    def array(self, field: int, dtype: Any) -> NDArray[Any]:
        """A vector of numbers; empty if it is left out."""
        if (place := self._place(field)) is None:
            return np.empty(0, dtype)
        start = self._pointed(place)
        return np.frombuffer(self._data, dtype, _read("I", self._data, start), start + 4)

    def table(self, field: int) -> "Table":
        place = self._place(field)
        if place is None:
            raise ValueError(f"the flatbuffer has no field {field}")
        return Table(self._data, self._pointed(place))

    def tables(self, field: int) -> "list[Table]":
        if (place := self._place(field)) is None:
            return []
        start = self._pointed(place)
        places = [start + 4 + 4 * n for n in range(_read("I", self._data, start))]
        return [Table(self._data, self._pointed(one)) for one in places]

    def _pointed(self, place: int) -> int:
        return place + _read("I", self._data, place)


def _read(form: str, data: bytes, at: int) -> int:
    (value,) = struct.unpack_from(f"<{form}", data, at)
    return int(value)


class Network:
    """The ONNX that is being made of a TensorFlow Lite network with one image as input."""

    def __init__(self, data: bytes) -> None:
        model = Table.root(data)
        (graph,) = model.tables(2)
        self._buffers = model.tables(4)
        self._tensors = graph.tables(0)
        self._constants: dict[int, NDArray[Any]] = {}
        self._nodes: list[onnx.NodeProto] = []
        self._weights: list[onnx.TensorProto] = []
        codes = model.tables(1)
        for operator in graph.tables(3):
            code = codes[operator.number(0, "I")]
            # codes above 127 stand in a later field, and 127 in the old one
            number = max(code.number(0, "b"), code.number(3, "i"))
            name = code.array(1, np.uint8).tobytes().decode() if number == CUSTOM else str(number)
            if name not in CONVERTERS:
                raise ValueError(f"operator {name} of TensorFlow Lite is not known here")
            inputs, outputs = operator.array(1, np.int32).tolist(), operator.array(2, np.int32).tolist()
            CONVERTERS[name](self, operator, inputs, outputs[0])
        (self._input,), (self._output,) = graph.array(1, np.int32).tolist(), graph.array(2, np.int32).tolist()

    def shape(self, tensor: int) -> tuple[int, ...]:
        return tuple(self._tensors[tensor].array(0, np.int32).tolist())

    def constant(self, tensor: int) -> NDArray[Any]:
        """What is stored in the file for a tensor."""
        if tensor not in self._constants:
            facts = self._tensors[tensor]
            raw = self._buffers[facts.number(2, "I")].array(0, np.uint8)
            self._constants[tensor] = raw.view(DTYPES[facts.number(1, "b")]).reshape(self.shape(tensor))
        return self._constants[tensor]

    def compute(self, tensor: int, values: NDArray[Any]) -> None:
        """A tensor that depends on no image."""
        self._constants[tensor] = values

    def add(self, kind: str, inputs: list[int | NDArray[Any]], output: int, **attributes: Any) -> None:
        names = [self._weight(one) if isinstance(one, np.ndarray) else f"t{one}" for one in inputs]
        self._nodes.append(helper.make_node(kind, names, [f"t{output}"], **attributes))

    def _weight(self, values: NDArray[Any]) -> str:
        if not values.size:
            return ""
        name = f"w{len(self._weights)}"
        self._weights.append(numpy_helper.from_array(np.ascontiguousarray(values), name))
        return name

    def finish(self) -> onnx.ModelProto:
        """The model, with input `image`, (batch, 3, h, w), and output `mask`, (batch, 1, h, w)."""
        ends = []
        for name, tensor in (("image", self._input), ("mask", self._output)):
            _, height, width, channels = self.shape(tensor)
            ends.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", channels, height, width]))
            for node in self._nodes:
                for side in (node.input, node.output):
                    side[:] = [name if one == f"t{tensor}" else one for one in side]
        graph = helper.make_graph(self._nodes, "network", ends[:1], ends[1:], self._weights)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8)
        onnx.checker.check_model(model, full_check=True)
        return model


def _same(size: int, kernel: int, stride: int) -> tuple[int, int]:
    """Padding before and after, of which TensorFlow puts the odd pixel after."""
    missing = max(0, (-(-size // stride) - 1) * stride + kernel - size)
    return missing // 2, missing - missing // 2


def _convolution(network: Network, operator: Table, inputs: list[int], output: int) -> None:
    _convolve(network, operator.table(4), inputs, output, first=3, depthwise=False)


def _depthwise(network: Network, operator: Table, inputs: list[int], output: int) -> None:
    _convolve(network, operator.table(4), inputs, output, first=4, depthwise=True)


def _convolve(network: Network, options: Table, inputs: list[int], output: int, *, first: int, depthwise: bool) -> None:
    """`first`: field of the fused activation, which the dilations follow."""
    if options.number(first, "b") or {options.number(first + n, "i", 1) for n in (1, 2)} != {1}:
        raise ValueError("fused activations and dilated convolutions are not known here")
    strides = [options.number(2, "i", 1), options.number(1, "i", 1)]
    _, *size, channels = network.shape(inputs[0])
    weight = network.constant(inputs[1])
    kernel = list(weight.shape[1:3])
    sides = [_same(*side) for side in zip(size, kernel, strides, strict=True)]
    pads = [0] * 4 if options.number(0, "b") else [pad for pads in zip(*sides, strict=True) for pad in pads]
    weight = weight.transpose(3, 0, 1, 2) if depthwise else weight.transpose(0, 3, 1, 2)
    group = channels if depthwise else 1
    facts = {"kernel_shape": kernel, "strides": strides, "pads": pads, "group": group}
    network.add("Conv", [inputs[0], weight, network.constant(inputs[2])], output, **facts)


def _transposed(network: Network, operator: Table, inputs: list[int], output: int) -> None:
    _, across, down = operator.array(5, np.uint8).view(np.int32).tolist()
    weight = network.constant(inputs[1])
    if weight.shape[1:3] != (down, across):
        raise ValueError("transposed convolutions whose windows overlap are not known here")
    facts = {"kernel_shape": [down, across], "strides": [down, across]}
    network.add(
        "ConvTranspose", [inputs[0], weight.transpose(3, 0, 1, 2), network.constant(inputs[2])], output, **facts
    )


def _mean(network: Network, operator: Table, inputs: list[int], output: int) -> None:
    """AVERAGE_POOL_2D or MEAN, which are to cover the whole image."""
    count, *size, channels = network.shape(inputs[0])
    if network.shape(output) != (count, 1, 1, channels):
        raise ValueError(f"a mean of parts of {size[1]}x{size[0]} pixels is not known here")
    network.add("GlobalAveragePool", [inputs[0]], output)


def _resize(network: Network, operator: Table, inputs: list[int], output: int) -> None:
    options = operator.table(4)
    if options.number(2, "b") or not options.number(3, "b"):
        raise ValueError("resizing is only known with half-pixel centres here")
    before, after = network.shape(inputs[0]), network.shape(output)
    scales = np.array([1, 1, after[1] / before[1], after[2] / before[2]], np.float32)
    nothing = np.empty(0, np.float32)
    network.add("Resize", [inputs[0], nothing, scales], output, mode="linear")


def _plain(kind: str) -> Callable[[Network, Table, list[int], int], None]:
    """An operator that ONNX has under another name, with no options but a fused activation."""

    def convert(network: Network, operator: Table, inputs: list[int], output: int) -> None:
        if kind in ("Add", "Mul") and operator.table(4).number(0, "b"):
            raise ValueError("fused activations are not known here")
        network.add(kind, list(inputs), output)

    return convert


def _dequantize(network: Network, operator: Table, inputs: list[int], output: int) -> None:
    network.compute(output, network.constant(inputs[0]).astype(np.float32))


CONVERTERS: dict[str, Callable[[Network, Table, list[int], int], None]] = {
    str(ADD): _plain("Add"),
    str(AVERAGE_POOL_2D): _mean,
    str(CONV_2D): _convolution,
    str(DEPTHWISE_CONV_2D): _depthwise,
    str(DEQUANTIZE): _dequantize,
    str(LOGISTIC): _plain("Sigmoid"),
    str(MUL): _plain("Mul"),
    str(RELU): _plain("Relu"),
    str(RESIZE_BILINEAR): _resize,
    str(MEAN): _mean,
    str(HARD_SWISH): _plain("HardSwish"),
    "Convolution2DTransposeBias": _transposed,
}
"""By the number of an operator, or its name if it is none of TensorFlow Lite's."""


def convert(file: Path, target: Path) -> tuple[int, int]:
    """Write a network in TensorFlow Lite as ONNX; the height and width of its input.

    Raises:
        ValueError: it has an operator, or an option of one, that is not known here.
    """
    model = Network(file.read_bytes()).finish()
    onnx.save(model, target)
    height, width = (side.dim_value for side in model.graph.input[0].type.tensor_type.shape.dim[2:])
    return height, width
