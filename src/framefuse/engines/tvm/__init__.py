"""Engine tvm: ONNX -> Relax -> machine code, with tuned schedules.

package.py    imports the tvm package on first use; tensors that its programs return; reading and copying Relax nodes
targets.py    compile targets: CPU and GPU by name
compiling.py  ONNX -> Relax at one input shape -> shared library; mixed precision, a program's memory as arguments
offload.py    convolutions as calls of cuDNN
schedules.py  GPU schedules of what TVM compiles itself
tuning.py     autotuning in time slices, and its database on disk
cuda.py       device executions, what they call for convolutions, and CUDA source -> cubin, cached
engine.py     the engine, and its compiled libraries in the engine cache
"""

from framefuse.engines.backend import CUPY, Backend, Needs, Package
from framefuse.engines.engine import Capabilities

_TVM = Package("apache-tvm", ("tvm",))

BACKEND = Backend(
    "tvm",
    Capabilities({"cpu": ("fp32", "fp16"), "cuda": ("fp32", "fp16")}, capturable=True, quantised_as_written=True),
    opener="framefuse.engines.tvm.engine:TvmEngine",
    needs={"cpu": Needs((_TVM,), "tvm"), "cuda": Needs((_TVM, CUPY), "tvm,cuda13")},
)
