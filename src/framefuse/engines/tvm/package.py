"""The tvm package, imported when this engine is chosen and not before: it takes seconds and 300 MB on disk."""

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
"""The last apache-tvm-ffi that can save TVM's objects."""


@cache
def tvm() -> Any:
    """The module.

    TVM's threads would pin themselves, the caller too, and spin for work: decoding needs those cores.

    Raises:
        CapabilityError: it is not installed, or has no compiler.
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
    """Make CUDA's runtime known to the loader where it is a wheel, or a toolkit that the loader does not see.

    TVM's CUDA part links to it by name alone, and TVM says nothing where that part cannot be loaded.
    """
    found = importlib.util.find_spec("nvidia")
    wheels = [Path(folder) for folder in (found.submodule_search_locations or ())] if found else []
    toolkit = Path(os.environ.get("CUDA_PATH") or "/usr/local/cuda")
    near = [path for folder in wheels for path in sorted(folder.glob("*/lib/libcudart.so.13"))]
    for library in (*near, toolkit / "lib64" / "libcudart.so.13"):
        with contextlib.suppress(OSError):
            ctypes.CDLL(str(library), ctypes.RTLD_GLOBAL)
            return


def check_tuner() -> None:
    """Raise CapabilityError where TVM's tuner cannot run."""
    absent = [name for name in ("cloudpickle", "psutil") if importlib.util.find_spec(name) is None]
    if absent:
        raise CapabilityError(f"the tuner needs {' and '.join(absent)}", remedy=INSTALL)
    ffi = version("apache-tvm-ffi")
    if not ffi.startswith(SAVING_FFI):
        # It would not fail but crash: its JSON writer does not know TVM's objects.
        raise CapabilityError(
            f"the tuner cannot save its database with apache-tvm-ffi {ffi}",
            remedy=f"{INSTALL}, which takes {SAVING_FFI}, in an environment of its own if others need a later one",
        )


def versions() -> str:
    """Of everything that decides what a compile gives."""
    return f"{version('apache-tvm')} ffi {version('apache-tvm-ffi')}"
