"""The smallest job for an engine: two convolutions with SiLU and a residual, against the same in NumPy."""

from __future__ import annotations

import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from framefuse.engines.backend import Backend
from framefuse.engines.engine import Device, EngineOptions
from framefuse.errors import CapabilityError

SIZE = 32
CHANNELS = 8
BIAS = 0.1

Array = NDArray[Any]


def run(backend: Backend, device: Device) -> str:
    """Versions, precision and the distance from NumPy.

    Raises:
        CapabilityError: a package or the device is missing.
        RuntimeError: the results differ.
    """
    require(backend, device)
    with tempfile.TemporaryDirectory() as folder:
        path = write(Path(folder, "two.onnx"))
        with closing(backend.open(path, EngineOptions(device))) as engine:
            pool = engine.request_pool(1, SIZE, SIZE, 1)
            slot = pool.acquire()
            assert slot is not None
            images = np.random.default_rng(0).random((1, 3, SIZE, SIZE), np.float32)
            slot.write(images)
            pool.submit(slot)
            pool.wait(slot)
            output = slot.outputs[0]
            found = f"{backend.versions(device)}, {engine.precision}"
            if engine.precision == "none":
                return found
            worst = float(np.abs(output - expected(images)).max())
            if not worst <= (1e-4 if engine.precision == "fp32" else 0.05):
                raise RuntimeError(f"two convolutions in {engine.precision} are {worst:.3g} off NumPy")
            pool.close()
    return f"{found}, {worst:.1g} off NumPy at most"


def require(backend: Backend, device: str) -> None:
    """
    Raises:
        CapabilityError: a package of the engine is not installed.
    """
    if why := backend.missing(device):
        raise CapabilityError(why, remedy=backend.install(device))


def write(path: Path) -> Path:
    """Write the network as ONNX; 8 channels at the size of the image come out."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    nodes, weights, x = [], [], "images"
    for number, weight in enumerate(_weights()):
        weights += [
            numpy_helper.from_array(weight, f"weight{number}"),
            numpy_helper.from_array(np.full(CHANNELS, BIAS, np.float32), f"bias{number}"),
        ]
        raw, gate, y = f"raw{number}", f"gate{number}", f"y{number}"
        nodes += [
            helper.make_node("Conv", [x, f"weight{number}", f"bias{number}"], [raw], pads=[1, 1, 1, 1]),
            helper.make_node("Sigmoid", [raw], [gate]),
            helper.make_node("Mul", [raw, gate], [y]),
        ]
        x = y
    nodes.append(helper.make_node("Add", ["y0", "y1"], ["sum"]))
    graph = helper.make_graph(
        nodes,
        "two",
        [helper.make_tensor_value_info("images", TensorProto.FLOAT, ["batch", 3, "height", "width"])],
        [helper.make_tensor_value_info("sum", TensorProto.FLOAT, ["batch", CHANNELS, "height", "width"])],
        weights,
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


def expected(images: Array) -> Array:
    """What the network puts out for images (batch, 3, height, width)."""
    x, total = images, np.float32(0)
    for weight in _weights():
        padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
        windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))
        raw = np.einsum("nchwij,ocij->nohw", windows, weight) + np.float32(BIAS)
        x = raw / (1 + np.exp(-raw))
        total = total + x
    return np.asarray(total)


def _weights() -> list[Array]:
    rng = np.random.default_rng(0)
    return [
        rng.normal(0, channels**-0.5 / 3, (CHANNELS, channels, 3, 3)).astype(np.float32) for channels in (3, CHANNELS)
    ]
