"""Engine cudnn: ONNX -> fused network -> one CUDA graph, from packages that pip installs.

Compiler, without a GPU:
network.py          operations of a fused network and the decoding of its head
importer.py         ONNX -> fused network: constant folding, operator fusion
import_state.py     what the importer knows about a graph so far
heads.py            recognises detection heads
attention.py        recognises attention blocks
quantize_nodes.py   removes Q/DQ nodes and keeps their ranges
rewrites.py         merged convolutions, padded channels
placement.py        values as views of buffers, so that concatenations cost nothing
schedule.py         streams and memory planning
compiled.py         all of the above in order
selftest.py         a small model for `doctor`

Runtime:
convolutions.py     builds and times cuDNN's fused convolutions
plans.py            the plan of each layer: in memory, cached or autotuned
plan_cache.py       plan cache on disk
workers.py          processes that build plans
worker.py           the program that they run
launch.py           kernels other than cuDNN's
weights.py          weights in GPU memory, in float16 and 8 bits
execution.py        the network with its memory on a GPU
engine.py           the engine

Mixed precision:
precisions.py       the requested precision, and the cache of tuned ones
autotune.py         chooses the precision of each layer by measurement
mixed_precision.py  which buffers can be 8-bit, and the fastest assignment
low_precision.py    INT8 and FP8 encoding
rounding.py         calibration ranges, and the effect of rounding
agreement.py        agreement between two runs
"""

from framefuse.engines.backend import CUPY, Backend, Needs, Package
from framefuse.engines.engine import Capabilities

BACKEND = Backend(
    "cudnn",
    Capabilities({"cuda": ("fp16", "int8", "fp8")}, capturable=True, calibrates=True),
    opener="framefuse.engines.cudnn.engine:CudnnEngine",
    needs={"cuda": Needs((Package("nvidia-cudnn-frontend", ("cudnn",)), CUPY), "cuda13")},
    tester="framefuse.engines.cudnn.selftest:run",
    checker="framefuse.engines.cudnn.compiled:why_not",
)
