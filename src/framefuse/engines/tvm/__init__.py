"""Engine tvm: ONNX -> Relax -> machine code, with tuned schedules.

package.py            imports the tvm package on first use; tensors that its programs return
targets.py            compile targets: CPU and GPU by name
importer.py           ONNX -> Relax at one input shape: constant folding
nodes.py              reading and copying Relax nodes
fp16.py               mixed precision: float16 for the network, float32 for decoding
offload.py            convolutions as calls of cuDNN
cudnn_convolution.py  what these calls run
schedules.py          GPU schedules of what TVM compiles itself
memory.py             a program's memory as arguments
compiling.py          Relax -> shared library
jit.py                CUDA source -> cubin, cached
records.py            tuning database on disk
tuning.py             autotuning in time slices
cuda.py               device executions
engine.py             the engine, and its compiled libraries in the engine cache
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
