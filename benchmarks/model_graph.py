"""An eager builder of ONNX graphs: every node is run on calibration data as soon as it is appended.

Seeded random weights make a network whose activations grow or die with depth; nothing in it would resemble a trained
network in numerical range, sparsity of detections or behaviour under INT8. Because each node has been evaluated when
the next is built, `Graph.conv` can do what batch normalisation has done in a trained and exported network: scale and
shift the weights so that each output channel has mean 0 and the wanted standard deviation on the calibration images.

The builder knows nothing about detectors; benchmarks/models.py writes the architectures as tables over it.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

OPSET = 17
IR_VERSION = 9
Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Tensor:
    """A value of the graph: its name there, and what it is on the calibration images."""

    name: str
    value: Array
    constant: bool = False

    @property
    def channels(self) -> int:
        """Size of axis 1 (N, C, H, W)."""
        return int(self.value.shape[1])


class Graph:
    """An ONNX graph that grows node by node.

    With `dynamic` false the spatial size is fixed to that of the calibration images and everything that depends on
    nothing but that size (the anchor grid) becomes a constant, as an exporter with fixed shapes makes it.
    """

    def __init__(self, name: str, images: npt.NDArray[np.float32], *, dynamic: bool, seed: int) -> None:
        self.name, self.dynamic = name, dynamic
        self.rng = np.random.default_rng(seed)
        self.images = Tensor("images", images)
        self._nodes: list[onnx.NodeProto] = []
        self._weights: dict[str, Array] = {}

    def constant(self, name: str, value: Array) -> Tensor:
        """An initializer. Names must be unique."""
        assert name not in self._weights, name
        self._weights[name] = value
        return Tensor(name, value, constant=True)

    def add(self, op: str, name: str, *inputs: Tensor, **attributes: Any) -> Tensor:
        """Appends a node, evaluates it and returns its output."""
        return self._append(helper.make_node(op, [t.name for t in inputs], [name], name=name, **attributes), inputs)[0]

    def split(self, name: str, x: Tensor, sizes: list[int], axis: int) -> list[Tensor]:
        """Appends a node that splits x along `axis` into parts of the given sizes."""
        lengths = self.constant(f"{name}/sizes", np.array(sizes, np.int64))
        parts = [f"{name}/{i}" for i in range(len(sizes))]
        node = helper.make_node("Split", [x.name, lengths.name], parts, name=name, axis=axis)
        return self._append(node, (x, lengths))

    def _append(self, node: onnx.NodeProto, inputs: tuple[Tensor, ...]) -> list[Tensor]:
        """Evaluates a node and appends it, unless all of its inputs are constants: then its values are constants."""
        values = evaluate(node, {t.name: t.value for t in inputs})
        if all(t.constant for t in inputs):
            return [self.constant(name, value) for name, value in zip(node.output, values, strict=True)]
        self._nodes.append(node)
        return [Tensor(name, value) for name, value in zip(node.output, values, strict=True)]

    def conv(self, name: str, x: Tensor, channels: int, kernel: int, stride: int = 1, *, pad: int | None = None,
             std: float = 1.0, shared: float = 0.0, smooth: float = 0.0) -> Tensor:  # fmt: skip
        """Convolution with bias, normalised so that every output channel has mean 0 and deviation `std`.

        `shared` is the fraction of the weights that all output channels have in common, `smooth` the fraction that is
        the same in every tap of the kernel.
        """
        pad = kernel // 2 if pad is None else pad
        geometry: dict[str, Any] = {"kernel_shape": [kernel] * 2, "strides": [stride] * 2, "pads": [pad] * 4}
        weight = self.rng.standard_normal((channels, x.channels, kernel, kernel), np.float32)
        weight = np.float32(shared) * weight[:1] + np.float32(1 - shared) * weight
        weight = np.float32(smooth) * weight.mean((2, 3), keepdims=True) + np.float32(1 - smooth) * weight
        node = helper.make_node("Conv", ["x", "w"], ["y"], **geometry)
        (raw,) = evaluate(node, {"x": x.value, "w": weight})
        mean, deviation = raw.mean((0, 2, 3), dtype=np.float64), raw.std((0, 2, 3), dtype=np.float64)
        scale = std / np.maximum(deviation, 1e-3)
        folded = self.constant(f"{name}.weight", (weight * scale[:, None, None, None]).astype(np.float32))
        bias = self.constant(f"{name}.bias", (-mean * scale).astype(np.float32))
        return self.add("Conv", f"{name}/Conv", x, folded, bias, **geometry)

    def silu(self, name: str, x: Tensor) -> Tensor:
        """`x * sigmoid(x)`, as the two nodes that exporters write (ONNX has Swish only from opset 24)."""
        return self.add("Mul", f"{name}/Mul", x, self.add("Sigmoid", f"{name}/Sigmoid", x))

    def size(self, name: str, x: Tensor) -> Tensor:
        """(height, width) of x as int64; a constant when the graph has fixed shapes."""
        if not self.dynamic:
            return self.constant(name, np.array(x.value.shape[2:], np.int64))
        return self.add("Shape", name, x, start=2, end=4)

    def shift(self, bias: str, amount: float, rows: slice | list[int]) -> None:
        """Adds `amount` to some rows of a bias after the graph was built (the evaluated values are not updated)."""
        self._weights[bias][rows] += np.float32(amount)

    def save(self, path: Path, output: Tensor, *, axes: tuple[str, str, str], metadata: dict[str, str]) -> None:
        """Writes the model with the one output `output0`; `axes` names the output's axes where they are dynamic."""
        height, width = self.images.value.shape[2:]
        used = {name for node in self._nodes for name in node.input}
        input_shape: list[Any] = ["batch", 3, "height", "width"] if self.dynamic else [1, 3, height, width]
        output_shape: list[Any] = [1, *output.value.shape[1:]]
        if self.dynamic:
            output_shape = [axis or size for axis, size in zip(axes, output_shape, strict=True)]
        nodes = [*self._nodes, helper.make_node("Identity", [output.name], ["output0"], name="output0")]
        graph = helper.make_graph(
            nodes,
            self.name,
            [helper.make_tensor_value_info("images", TensorProto.FLOAT, input_shape)],
            [helper.make_tensor_value_info("output0", TensorProto.FLOAT, output_shape)],
            [numpy_helper.from_array(value, name) for name, value in self._weights.items() if name in used],
        )
        model = helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid("", OPSET)],
            ir_version=IR_VERSION,
            producer_name="framefuse benchmarks",
        )
        helper.set_model_props(model, metadata)
        onnx.checker.check_model(model, full_check=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        onnx.save(model, path)


def evaluate(node: onnx.NodeProto, inputs: dict[str, Array]) -> list[Array]:
    """Runs one node in ONNX Runtime."""
    types = {name: helper.np_dtype_to_tensor_dtype(value.dtype) for name, value in inputs.items()}
    infos = [helper.make_tensor_value_info(name, kind, None) for name, kind in types.items()]
    graph = helper.make_graph([node], "node", infos, [onnx.ValueInfoProto(name=n) for n in node.output])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
    return list(_session(model).run(None, inputs))


def _session(model: onnx.ModelProto) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


@dataclass(frozen=True)
class Cost:
    """What a model costs whatever runs it."""

    parameters: int
    """Elements of all convolution weights and biases."""
    macs: int
    """Multiply-accumulates of all convolutions for one image."""


def cost(path: Path, *, height: int = 640, width: int = 640) -> Cost:
    """Counts parameters and multiply-accumulates of the convolutions of an ONNX file at one input size."""
    model = onnx.load(path)
    for dimension, size in zip(model.graph.input[0].type.tensor_type.shape.dim, (1, 3, height, width), strict=True):
        dimension.dim_value = size
    shapes = {
        info.name: [d.dim_value for d in info.type.tensor_type.shape.dim]
        for info in onnx.shape_inference.infer_shapes(model, data_prop=True).graph.value_info
    }
    weights = {item.name: list(item.dims) for item in model.graph.initializer}
    parameters = macs = 0
    for node in model.graph.node:
        if node.op_type == "Conv":
            weight = int(np.prod(weights[node.input[1]]))
            _, channels, rows, columns = shapes[node.output[0]]
            parameters += weight + (channels if len(node.input) > 2 else 0)
            macs += weight * rows * columns
    return Cost(parameters, macs)
