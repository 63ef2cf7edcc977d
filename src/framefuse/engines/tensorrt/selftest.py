"""The smallest job: a plan, built where no GPU is needed for that, and run where TensorRT knows the GPU."""

from __future__ import annotations

import tempfile
from pathlib import Path

from framefuse.engines import selftest
from framefuse.engines.backend import Backend
from framefuse.engines.engine import Device
from framefuse.engines.tensorrt.build import Shapes, bindings, build_plan
from framefuse.errors import CapabilityError, EngineError


def run(backend: Backend, device: Device) -> str:
    """As `framefuse.engines.selftest.run`; CapabilityError also where a plan is built but does not run."""
    found = bindings()
    built = str(found)
    with tempfile.TemporaryDirectory() as folder:
        if found.rtx:
            path = selftest.write(Path(folder, "two.onnx"))
            size = selftest.SIZE
            built += f" builds ({build_plan(path, Shapes.exact(1, size, size), found=found).build_s:.1f} s)"
    try:
        return f"{built}, {selftest.run(backend, device)}"
    except (CapabilityError, EngineError) as error:
        raise CapabilityError(f"{built}, but does not run here: {error.message}", remedy=error.remedy) from error
