"""The smallest job for an engine: two convolutions with SiLU and a residual, against onnx's evaluator in NumPy."""

import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from framefuse.engines.backend import Backend
from framefuse.engines.engine import Device, EngineOptions
from framefuse.errors import CapabilityError

SIZE = 32
CHANNELS = 8
NETWORK = """
<ir_version: 9, opset_import: ["": 17]>
two (float[batch, 3, height, width] images) => (float[batch, 8, height, width] sum) {
    raw0 = Conv <pads = [1, 1, 1, 1]> (images, weight0, bias0)
    gate0 = Sigmoid (raw0)
    y0 = Mul (raw0, gate0)
    raw1 = Conv <pads = [1, 1, 1, 1]> (y0, weight1, bias1)
    gate1 = Sigmoid (raw1)
    y1 = Mul (raw1, gate1)
    sum = Add (y0, y1)
}
"""


def run(backend: Backend, device: Device) -> str:
    """Versions, precision and the distance from NumPy.

    Raises:
        CapabilityError: a package or the device is missing.
        RuntimeError: the results differ.
    """
    from onnx.reference import ReferenceEvaluator

    if why := backend.missing(device):
        raise CapabilityError(why, remedy=backend.install(device))
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
            reference: Any = ReferenceEvaluator(str(path))
            worst = float(np.abs(output - reference.run(None, {"images": images})[0]).max())
            if not worst <= (1e-4 if engine.precision == "fp32" else 0.05):
                raise RuntimeError(f"two convolutions in {engine.precision} are {worst:.3g} off NumPy")
            pool.close()
    return f"{found}, {worst:.1g} off NumPy at most"


def write(path: Path) -> Path:
    """Write the network as ONNX; 8 channels at the size of the image come out."""
    import onnx
    from onnx import numpy_helper, parser

    model, rng = parser.parse_model(NETWORK), np.random.default_rng(0)
    for number, channels in enumerate((3, CHANNELS)):
        weight = rng.normal(0, channels**-0.5 / 3, (CHANNELS, channels, 3, 3)).astype(np.float32)
        bias = np.full(CHANNELS, 0.1, np.float32)
        model.graph.initializer.extend(
            numpy_helper.from_array(values, f"{name}{number}") for name, values in (("weight", weight), ("bias", bias))
        )
    onnx.save(model, path)
    return path
