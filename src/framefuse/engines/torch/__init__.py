"""Engine torch: modules of PyTorch, and ONNX graphs as PyTorch operators."""

from framefuse.engines.backend import CUPY, Backend, Needs, Package
from framefuse.engines.engine import Capabilities

BACKEND = Backend(
    "torch",
    Capabilities(
        {"cpu": ("fp32", "bf16", "fp16"), "cuda": ("fp32", "bf16", "fp16")},
        capturable=True,
        quantised_as_written=True,
        survives_fork=False,  # a fork has none of OpenMP's workers
    ),
    opener="framefuse.engines.torch.engine:TorchEngine",
    needs={
        "cpu": Needs((Package("torch", ("torch",)),), "torch"),
        "cuda": Needs((Package("torch", ("torch",), "lib/libtorch_cuda.so"), CUPY), "torch,cuda13"),
    },
)
