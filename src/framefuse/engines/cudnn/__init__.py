"""Engine cudnn: ONNX -> fused network -> one CUDA graph, from packages that pip installs.

The compiler needs no GPU: `importer` reads a file as a `network`, with what `import_state` recognises in it, `rewrites`
merge and pad its operations, and `compiled` plans its memory and streams. Then `execution` runs it with the `plans` of
its `convolutions`, and `autotune` chooses what is 8-bit. `engine` offers all of that.
"""

from framefuse.engines.backend import CUPY, Backend, Needs, Package
from framefuse.engines.engine import Capabilities

BACKEND = Backend(
    "cudnn",
    Capabilities({"cuda": ("fp16", "tf32", "fp32", "int8", "fp8")}, capturable=True, calibrates=True),
    opener="framefuse.engines.cudnn.engine:CudnnEngine",
    needs={"cuda": Needs((Package("nvidia-cudnn-frontend", ("cudnn",)), CUPY), "cuda13")},
    tester="framefuse.engines.cudnn.engine:run_selftest",
    checker="framefuse.engines.cudnn.compiled:why_not",
    sizer="framefuse.engines.cudnn.plans:network_memory",
)
