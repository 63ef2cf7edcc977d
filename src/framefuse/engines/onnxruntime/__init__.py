"""Engines onnxruntime, on CPUs and on NVIDIA GPUs, and onnxruntime-tensorrt and -nvrtx, its TensorRT providers."""

from framefuse.engines.backend import CUPY, Backend, Needs, Package
from framefuse.engines.engine import Capabilities


def _cuda(library: str) -> Needs:
    return Needs((Package("onnxruntime-gpu", ("onnxruntime",), f"capi/libonnxruntime_providers_{library}.so"), CUPY),
                 "cuda13")  # fmt: skip


_PRECISIONS = ("fp32", "fp16", "int8")

BACKEND = Backend(
    "onnxruntime",
    Capabilities({"cpu": ("fp32",), "cuda": _PRECISIONS}, capturable=True, quantised_as_written=True),
    opener="framefuse.engines.onnxruntime.engine:open_engine",
    needs={"cpu": Needs((Package("onnxruntime", ("onnxruntime",)),), "ort"), "cuda": _cuda("cuda")},
)
TENSORRT = Backend(
    "onnxruntime-tensorrt",
    Capabilities({"cuda": _PRECISIONS}),
    opener="framefuse.engines.onnxruntime.engine:open_tensorrt",
    needs={"cuda": _cuda("tensorrt")},
)
NVRTX = Backend(
    "onnxruntime-nvrtx",
    Capabilities({"cuda": _PRECISIONS}),
    opener="framefuse.engines.onnxruntime.engine:open_nvrtx",
    needs={"cuda": _cuda("nv_tensorrt_rtx")},
)
