"""Engine tensorrt: TensorRT >= 10, or TensorRT for RTX."""

from framefuse.engines.backend import CUPY, Backend, Needs, Package
from framefuse.engines.engine import Capabilities

BACKEND = Backend(
    "tensorrt",
    Capabilities({"cuda": ("fp32", "fp16", "int8", "fp8")}, capturable=True),
    opener="framefuse.engines.tensorrt.engine:TensorrtEngine",
    needs={"cuda": Needs((Package("tensorrt", ("tensorrt", "tensorrt_rtx")), CUPY), "tensorrt,cuda13")},
    tester="framefuse.engines.tensorrt.engine:run_selftest",
    checker="framefuse.engines.tensorrt.engine:why_not",
)
