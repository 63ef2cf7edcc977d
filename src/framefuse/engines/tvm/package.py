"""The tvm package, imported only when the engine is used: that takes seconds, and 300 MB on disk."""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import os
from collections.abc import Callable
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from framefuse.errors import CapabilityError
from framefuse.kernels.cpu import tvm_ffi

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
    tvm_ffi()  # first, because TVM would have it import torch
    try:
        import tvm
        import tvm.relax
    except ImportError as error:
        raise CapabilityError(f"engine tvm needs the package apache-tvm: {error}", remedy=INSTALL) from error
    return tvm


def load_cuda() -> Path | None:
    """Load CUDA's runtime from a wheel or the toolkit; the library, or None where there is none.

    TVM's CUDA library links to it by name, and TVM does not report it if that library fails to load.
    """
    found = importlib.util.find_spec("nvidia")
    wheels = [Path(folder) for folder in (found.submodule_search_locations or ())] if found else []
    toolkit = Path(os.environ.get("CUDA_PATH") or "/usr/local/cuda")
    bundled = [path for folder in wheels for path in sorted(folder.glob("*/lib/libcudart.so.13"))]
    for library in (*bundled, toolkit / "lib64" / "libcudart.so.13"):
        with contextlib.suppress(OSError):
            ctypes.CDLL(str(library), ctypes.RTLD_GLOBAL)
            return library
    return None


def check_tuner() -> None:
    """Raise CapabilityError if TVM's tuner cannot run."""
    absent = [name for name in ("cloudpickle", "psutil") if importlib.util.find_spec(name) is None]
    if absent:
        raise CapabilityError(f"the tuner needs {' and '.join(absent)}", remedy=INSTALL)
    ffi = version("apache-tvm-ffi")
    if not ffi.startswith(SAVING_FFI):
        # It would crash the process: its JSON writer does not know TVM's objects.
        message = f"the tuner cannot save its database with apache-tvm-ffi {ffi}"
        remedy = f"{INSTALL}, which installs {SAVING_FFI}; use a separate environment if others need a later version"
        raise CapabilityError(message, remedy=remedy)


def versions() -> str:
    """Versions that decide what TVM compiles."""
    return f"{version('apache-tvm')} ffi {version('apache-tvm-ffi')}"


def tensors(result: Any) -> list[Any]:
    """A network's result as a list: it is one tensor, or several."""
    return [result] if hasattr(result, "shape") else list(result)


def address(tensor: Any) -> int:
    """Address of a tensor's first element on the GPU."""
    return int(tensor.data_ptr())


def operator(node: Any) -> str:
    """Name of the operator of a call or of a binding's call; empty for anything else."""
    value = getattr(node, "value", node)
    return str(value.op.name) if isinstance(value, tvm().relax.Call) and hasattr(value.op, "name") else ""


def shape_of(value: Any) -> list[int]:
    """Shape of a tensor."""
    return [int(size) for size in value.ty.shape]


def reads(value: Any) -> list[Any]:
    """Variables that a binding's value reads."""
    return list(tvm().relax.analysis.free_vars(value))


def rebuild(value: Any, of: Callable[[Any], Any]) -> Any:
    """A copy of a binding's value with `of` applied to each operand."""
    relax = tvm().relax
    if isinstance(value, relax.TupleGetItem):
        return relax.TupleGetItem(of(value.tuple_value), value.index)
    if isinstance(value, relax.Call):
        return relax.Call(value.op, [of(argument) for argument in value.args], value.attrs, value.ty_args)
    return of(value)


def builder_without_main(module: Any) -> Any:
    """A builder for a new `main` with the module's other functions, which the importer makes for some operators."""
    functions = {variable: function for variable, function in module.functions.items() if variable.name_hint != "main"}
    return tvm().relax.BlockBuilder(tvm().IRModule(functions))
