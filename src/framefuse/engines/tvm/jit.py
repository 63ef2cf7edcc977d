"""CUDA source -> cubin when a compiled network is first loaded, because TVM's libraries contain source.

TVM would compile it again in every process and for every request; here the engine cache keeps the cubin.
"""

from __future__ import annotations

import hashlib
import importlib
from pathlib import Path
from typing import Any

from framefuse.engines.cache import EngineCache
from framefuse.engines.tvm.package import versions
from framefuse.engines.tvm.targets import Target
from framefuse.errors import CapabilityError

FUNCTION = "tvm_callback_cuda_compile"
"""The global function that TVM's runtime calls to compile CUDA source."""

SUFFIX = ".cubin"


def register(target: Target, cache: EngineCache | None = None) -> None:
    """Register the cached compiler with TVM's runtime.

    Raises:
        CapabilityError: no CUDA toolkit is installed.
    """
    import tvm_ffi
    from tvm.support import nvcc

    compiler = _compiler()
    try:
        toolkit = nvcc.find_cuda_path()
        version = ".".join(map(str, nvcc.get_cuda_version(toolkit)))
    except Exception as error:  # RuntimeError, or an error of its subprocess
        raise CapabilityError(
            f"engine tvm needs the headers of a CUDA toolkit: {error}",
            remedy="install CUDA toolkit 13 with nvcc, or use --engine cudnn, which needs no toolkit",
        ) from error

    def compile_cached(code: Any) -> bytes:
        text = str(code)

        def build(path: Path) -> None:
            with target.tvm():
                cubin = nvcc.compile_cuda(text, target_format="cubin", arch=target.arch, compiler=compiler)
            path.write_bytes(bytes(cubin))

        key = {
            "model": hashlib.sha256(text.encode()).hexdigest(),
            "engine": "tvm cuda",
            "version": versions(),
            "device": target.text,
            "precision": "",
            "shapes": "",
            "flags": f"{compiler} {version}",
        }
        return (cache or EngineCache("tvm")).get(key, build, suffix=SUFFIX).path.read_bytes()

    tvm_ffi.register_global_func(FUNCTION, compile_cached, override=True)


def _compiler() -> str:
    """NVRTC where TVM can call it, in a third of nvcc's time."""
    try:
        importlib.import_module("cuda.bindings.nvrtc")
    except ImportError:
        return "nvcc"
    return "nvrtc"
