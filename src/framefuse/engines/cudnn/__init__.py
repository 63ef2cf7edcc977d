"""Engine cudnn: ONNX -> fused network -> one CUDA graph, from packages that pip installs.

Compiler, without a GPU:
network.py       operations of a fused network and the decoding of its head
importer.py      ONNX -> fused network: constant folding, operator fusion, Q/DQ nodes removed
import_state.py  what the importer knows about a graph so far, detection heads and attention blocks in it
compiled.py      merged convolutions, padded channels; values as views of buffers, streams, memory planning

Runtime:
convolutions.py  builds and times cuDNN's fused convolutions
plans.py         the plan of each layer: in memory, cached, or built by other processes and timed
execution.py     the network with its weights and memory on a GPU, and kernels other than cuDNN's
autotune.py      which buffers can be 8-bit, the fastest assignment by measurement, and its agreement with FP16
engine.py        the engine, the requested precision, and the cache of tuned ones
"""

from framefuse.engines.backend import CUPY, Backend, Needs, Package
from framefuse.engines.engine import Capabilities

BACKEND = Backend(
    "cudnn",
    Capabilities({"cuda": ("fp16", "int8", "fp8")}, capturable=True, calibrates=True),
    opener="framefuse.engines.cudnn.engine:CudnnEngine",
    needs={"cuda": Needs((Package("nvidia-cudnn-frontend", ("cudnn",)), CUPY), "cuda13")},
    tester="framefuse.engines.cudnn.engine:run_selftest",
    checker="framefuse.engines.cudnn.compiled:why_not",
    sizer="framefuse.engines.cudnn.compiled:network_memory",
)
