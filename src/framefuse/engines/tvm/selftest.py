"""Self-test: a ResNet-18 (He et al., 2015) of an eighth of the width, compared with ONNX Runtime."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from framefuse.common.ort import onnxruntime
from framefuse.engines.backend import Backend
from framefuse.engines.engine import Device, EngineOptions
from framefuse.engines.selftest import require
from framefuse.errors import CapabilityError

SIZE = 64
WIDTHS = (8, 16, 32, 64)
CLASSES = 10


def run(backend: Backend, device: Device) -> str:
    """Compile and run it; returns versions and the distance from ONNX Runtime.

    Raises:
        RuntimeError: the results differ.
        CapabilityError: TVM is not installed.
    """
    require(backend, device)
    with tempfile.TemporaryDirectory() as folder:
        path = write(Path(folder, "resnet18.onnx"))
        pool = backend.open(path, EngineOptions(device)).request_pool(1, SIZE, SIZE, 1)
        slot = pool.acquire()
        assert slot is not None
        slot.input[...] = np.random.default_rng(0).random(slot.input.shape)
        pool.submit(slot)
        pool.wait(slot)
        try:
            ort = onnxruntime("tvm")
        except CapabilityError:
            return f"{backend.versions(device)}, a small ResNet-18 runs; onnxruntime is not installed to compare with"
        session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"], enable_fallback=0)
        (expected,) = session.run(None, {"images": slot.input})
        worst = float(np.abs(slot.outputs[0] - expected).max() / np.abs(expected).max())
    if not worst < 1e-4:
        raise RuntimeError(f"a small ResNet-18 differs from ONNX Runtime by {worst:.3g} of the range")
    return f"{backend.versions(device)}, fp32, a small ResNet-18 differs from ONNX Runtime by at most {worst:.1g}"


def write(path: Path) -> Path:
    """Write the model as ONNX, with seeded random weights."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    rng = np.random.default_rng(0)
    nodes: list[Any] = []
    weights: list[Any] = []

    def weight(*shape: int) -> str:
        value = rng.normal(0, (2 / np.prod(shape[1:] or (1e4,))) ** 0.5, shape).astype(np.float32)
        weights.append(numpy_helper.from_array(value, f"w{len(weights)}"))
        return str(weights[-1].name)

    def node(kind: str, *inputs: str, **attributes: Any) -> str:
        nodes.append(helper.make_node(kind, inputs, [f"v{len(nodes)}"], **attributes))
        return str(nodes[-1].output[0])

    def conv(x: str, inputs: int, outputs: int, kernel: int, stride: int) -> str:
        pads, steps = [kernel // 2] * 4, [stride] * 2
        return node("Conv", x, weight(outputs, inputs, kernel, kernel), weight(outputs), pads=pads, strides=steps)

    x = node("Relu", conv("images", 3, WIDTHS[0], 7, 2))
    x = node("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    inputs = WIDTHS[0]
    for stage, outputs in enumerate(WIDTHS):
        for block in range(2):
            stride = 2 if stage and not block else 1
            y = conv(node("Relu", conv(x, inputs, outputs, 3, stride)), outputs, outputs, 3, 1)
            short = x if stride == 1 else conv(x, inputs, outputs, 1, stride)
            x, inputs = node("Relu", node("Add", y, short)), outputs
    x = node("Flatten", node("GlobalAveragePool", x))
    x = node("Gemm", x, weight(CLASSES, inputs), weight(CLASSES), transB=1)
    graph = helper.make_graph(
        nodes,
        "resnet18",
        [helper.make_tensor_value_info("images", TensorProto.FLOAT, ["batch", 3, "height", "width"])],
        [helper.make_tensor_value_info(x, TensorProto.FLOAT, None)],
        weights,
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path
