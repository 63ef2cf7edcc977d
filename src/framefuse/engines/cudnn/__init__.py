"""Engine cudnn: ONNX -> fused network -> one CUDA graph, from parts that pip installs.

network.py       what a fused network is            reading.py, heads.py, attention.py, nodes.py   from ONNX to it
rewriting.py     fewer and wider convolutions       placement.py           concatenation by slices
schedule.py      streams and shared memory          compiled.py            all of these: the front half, no GPU
reference.py     the same in NumPy                  launch.py              kernels between convolutions
convolutions.py  cuDNN's kernels, measured          plans.py, plan_cache.py  remembered
execution.py     the network on a GPU               engine.py              the engine

Precision, layer by layer, where it was asked for:
precisions.py    what was asked for, the cache      choosing.py, measuring.py, workers.py, worker.py   measured choice
mixing.py        which buffers hold 8 bits          agreement.py, rounding.py      what that does to the results
eight_bits.py    INT8 and FP8 as numbers            scaled.py              weights and factors in memory
quantisers.py    ranges that a file states
"""

from framefuse.engines.backend import CUPY, Backend, Needs, Package
from framefuse.engines.engine import Capabilities

BACKEND = Backend(
    "cudnn",
    Capabilities({"cuda": ("fp16", "int8", "fp8")}, capturable=True, calibrates=True),
    opener="framefuse.engines.cudnn.engine:open_engine",
    needs={"cuda": Needs((Package("nvidia-cudnn-frontend", ("cudnn",)), CUPY), "cuda13")},
    tester="framefuse.engines.cudnn.selftest:run",
    checker="framefuse.engines.cudnn.compiled:why_not",
)
