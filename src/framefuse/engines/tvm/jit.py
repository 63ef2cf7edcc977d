"""CUDA source -> machine code, when a compiled network is first run: TVM's libraries hold source.

TVM would compile it again in every process and for every slot; here machine code is kept under the cache rule.
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
"""By which TVM's runtime asks."""

SUFFIX = ".cubin"


def register(target: Target, cache: EngineCache | None = None) -> None:
    """Answer TVM's runtime with machine code for a GPU.

    Raises:
        CapabilityError: there is no CUDA toolkit.
    """
    import tvm_ffi
    from tvm.support import nvcc

    compiler = _compiler()
    try:
        toolkit = nvcc.find_cuda_path()
        version = ".".join(map(str, nvcc.get_cuda_version(toolkit)))
    except Exception as error:  # RuntimeError, or what its subprocess raises
        raise CapabilityError(
            f"engine tvm needs a CUDA toolkit, whose headers its code includes: {error}",
            remedy="install CUDA's toolkit 13 with nvcc, or use --engine cudnn, which needs none",
        ) from error

    def compiled(code: Any) -> bytes:
        text = str(code)

        def build(path: Path) -> None:
            with target.tvm():
                made = nvcc.compile_cuda(text, target_format="cubin", arch=target.arch, compiler=compiler)
            path.write_bytes(bytes(made))

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

    tvm_ffi.register_global_func(FUNCTION, compiled, override=True)


def _compiler() -> str:
    """NVIDIA's run-time compiler where TVM can call it: it takes a third of nvcc's time."""
    try:
        importlib.import_module("cuda.bindings.nvrtc")
    except ImportError:
        return "nvcc"
    return "nvrtc"
