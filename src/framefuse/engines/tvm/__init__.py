"""Engine tvm: ONNX -> Relax -> machine code, with tuned schedules."""

from framefuse.engines.backend import CUPY, Backend, Needs, Package
from framefuse.engines.engine import Capabilities

_TVM = Package("apache-tvm", ("tvm",))

BACKEND = Backend(
    "tvm",
    Capabilities({"cpu": ("fp32", "fp16"), "cuda": ("fp32", "fp16")}, capturable=True, quantised_as_written=True),
    opener="framefuse.engines.tvm.engine:TvmEngine",
    needs={"cpu": Needs((_TVM,), "tvm"), "cuda": Needs((_TVM, CUPY), "tvm,cuda13")},
)
