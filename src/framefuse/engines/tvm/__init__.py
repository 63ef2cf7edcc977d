"""Engine tvm: ONNX -> Relax -> machine code, tuned by measurement.

package.py    the tvm package, imported late    targets.py   CPU and GPU by name
reading.py    ONNX -> Relax at one shape        compiling.py Relax -> shared library
halves.py     FP16 for the network alone        artifact.py  under the cache rule
offload.py    convolutions for cuDNN            nodes.py     what Relax's nodes are
convolve.py   what is called for them           schedules.py what TVM compiles, over a GPU's threads
memory.py     each execution's own              jit.py       CUDA source -> machine code, kept
records.py    the tuning database on disk       tuning.py    slices of tuning
engine.py     the engine                        on_gpu.py    its slots on CUDA
"""

from framefuse.engines.backend import CUPY, Backend, Needs, Package
from framefuse.engines.engine import Capabilities

_TVM = Package("apache-tvm", ("tvm",))

BACKEND = Backend(
    "tvm",
    Capabilities({"cpu": ("fp32", "fp16"), "cuda": ("fp32", "fp16")}, capturable=True, quantised_as_written=True),
    opener="framefuse.engines.tvm.engine:open_engine",
    needs={"cpu": Needs((_TVM,), "tvm"), "cuda": Needs((_TVM, CUPY), "tvm,cuda13")},
    tester="framefuse.engines.tvm.selftest:run",
)
