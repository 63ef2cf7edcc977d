"""The tvm package, imported only when the engine is used: that takes seconds, and 300 MB on disk."""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import os
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from framefuse.errors import CapabilityError

INSTALL = "pip install 'framefuse[tvm]'"

SAVING_FFI = "0.1.14"
"""The last version of apache-tvm-ffi that can save TVM's objects."""


@cache
def tvm() -> Any:
    """The tvm module.

    By default TVM pins its threads and the caller's to cores and spins while idle; decoding needs those cores.

    Raises:
        CapabilityError: it is not installed.
    """
    os.environ.setdefault("TVM_BIND_THREADS", "0")
    os.environ.setdefault("TVM_THREAD_POOL_SPIN_COUNT", "1000")
    load_cuda()
    try:
        import tvm
        import tvm.relax
    except ImportError as error:
        raise CapabilityError(f"engine tvm needs the package apache-tvm: {error}", remedy=INSTALL) from error
    return tvm


def load_cuda() -> None:
    """Load CUDA's runtime from a wheel or the toolkit.

    TVM's CUDA library links to it by name, and TVM does not report it if that library fails to load.
    """
    found = importlib.util.find_spec("nvidia")
    wheels = [Path(folder) for folder in (found.submodule_search_locations or ())] if found else []
    toolkit = Path(os.environ.get("CUDA_PATH") or "/usr/local/cuda")
    bundled = [path for folder in wheels for path in sorted(folder.glob("*/lib/libcudart.so.13"))]
    for library in (*bundled, toolkit / "lib64" / "libcudart.so.13"):
        with contextlib.suppress(OSError):
            ctypes.CDLL(str(library), ctypes.RTLD_GLOBAL)
            return


def check_tuner() -> None:
    """Raise CapabilityError if TVM's tuner cannot run."""
    absent = [name for name in ("cloudpickle", "psutil") if importlib.util.find_spec(name) is None]
    if absent:
        raise CapabilityError(f"the tuner needs {' and '.join(absent)}", remedy=INSTALL)
    ffi = version("apache-tvm-ffi")
    if not ffi.startswith(SAVING_FFI):
        # It would crash the process: its JSON writer does not know TVM's objects.
        raise CapabilityError(
            f"the tuner cannot save its database with apache-tvm-ffi {ffi}",
            remedy=f"{INSTALL}, which installs {SAVING_FFI}; use a separate environment if others need a later version",
        )


def last_line(error: object) -> str:
    """The last line of an error, where TVM puts its message."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__


def versions() -> str:
    """Versions that decide what TVM compiles."""
    return f"{version('apache-tvm')} ffi {version('apache-tvm-ffi')}"


def tensors(result: Any) -> list[Any]:
    """A network's result as a list: it is one tensor, or several."""
    return [result] if hasattr(result, "shape") else list(result)


def address(tensor: Any) -> int:
    """Address of a tensor's first element on the GPU."""
    return int(tensor.data_ptr())
