"""Load the compiled kernels for this CPU and call them on numpy arrays."""

from __future__ import annotations

import importlib
import json
import platform
import sys
import threading
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from framefuse.errors import CapabilityError

LIBRARIES = Path(__file__).resolve().parent.parent / "_lib"
"""Folder of the compiled libraries, one for each instruction-set level."""

V3_FLAGS = frozenset(("avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe"))
"""Features that x86-64-v3 adds to v2, named as in /proc/cpuinfo (abm is lzcnt)."""

WIDE_FLAGS = V3_FLAGS | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl", "avx512vbmi"}
"""Features that the kernels of `WIDE` use."""

WIDE = "x86-64-v4"
"""Level of the few kernels that are much faster with the byte permutes of AVX-512; the others stay at x86-64-v3."""


class Library(NamedTuple):
    """The compiled kernels in use: instruction-set level, reason for it, file."""

    level: str
    reason: str
    path: Path


def _flags(cpuinfo: Path) -> frozenset[str]:
    try:
        lines = cpuinfo.read_text(encoding="utf-8").splitlines()
    except OSError:
        return frozenset()
    return next((frozenset(line.split(":", 1)[1].split()) for line in lines if line.startswith("flags")), frozenset())


def cpu_flags() -> frozenset[str]:
    """Features of this CPU, named as in /proc/cpuinfo; empty on systems without it."""
    return _flags(Path("/proc/cpuinfo"))


def select(machine: str, flags: frozenset[str]) -> tuple[str, str]:
    """Instruction-set level for a machine with these CPU features, and the reason."""
    if machine in ("aarch64", "arm64"):
        return "armv8-a", "the one level built for aarch64"
    if machine not in ("x86_64", "AMD64"):
        raise CapabilityError(f"no kernels for machine {machine!r}", remedy="run on x86-64 or aarch64 Linux")
    missing = sorted(V3_FLAGS - flags)
    if missing:
        return "x86-64-v2", f"this CPU reports no {', '.join(missing)}"
    return "x86-64-v3", "this CPU has AVX2, FMA and F16C"


def describe() -> Library:
    """Which compiled kernels this machine uses, and why. Loads nothing."""
    level, reason = select(platform.machine(), cpu_flags())
    if wide():
        reason += f"; bilinear preprocessing of bytes uses {WIDE}, since it also has AVX-512 VBMI"
    return Library(level, reason, LIBRARIES / f"framefuse-{level}.so")


@lru_cache(maxsize=1)
def wide() -> bool:
    """Whether this CPU runs the kernels of the level WIDE."""
    return platform.machine() in ("x86_64", "AMD64") and cpu_flags() >= WIDE_FLAGS


@lru_cache(maxsize=1)
def byte_level() -> str:
    """The level of the kernels that preprocess bytes."""
    return WIDE if wide() else describe().level


def names() -> dict[str, str]:
    """The compiled kernels of this machine and the family of each. Loads no library."""
    machine = "aarch64" if platform.machine() in ("aarch64", "arm64") else "x86_64"
    try:
        index = json.loads((LIBRARIES / f"{machine}.json").read_text(encoding="utf-8"))
    except OSError:
        return {}
    found: dict[str, str] = index["kernels"]
    return found


@lru_cache(maxsize=2)
def _module(level: str) -> Any:
    path = LIBRARIES / f"framefuse-{level}.so"
    if not path.is_file():
        raise CapabilityError(
            f"the compiled kernels for {level} are missing: {path}",
            remedy="in a checkout, run `pip install apache-tvm ziglang && python -m framefuse.kernels.build`; "
            "otherwise install framefuse again",
        )
    return tvm_ffi().load_module(str(path))


class _WithoutTorch:
    """Finds no torch for the thread that made it."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name == "torch" and threading.get_ident() == self._thread:
            raise ModuleNotFoundError("torch is not imported here", name=name)


@lru_cache(maxsize=1)
def tvm_ffi() -> Any:
    """Module tvm_ffi. It imports torch where that is installed, which takes seconds and gains nothing here."""
    hidden = _WithoutTorch()
    sys.meta_path.insert(0, hidden)
    try:
        return importlib.import_module("tvm_ffi")
    finally:
        sys.meta_path.remove(hidden)


@lru_cache(maxsize=64)
def _function(name: str) -> Any:
    return _module(WIDE if name.startswith("preprocess_wide_") else describe().level)[name]


class _Scratch(threading.local):
    """Scratch buffers of a thread, grown to the largest frame that it has processed."""

    def __init__(self) -> None:
        self.buffers: dict[str, NDArray[Any]] = {}

    def get(self, name: str, shape: tuple[int, ...], dtype: Any = np.float32) -> NDArray[Any]:
        """A buffer whose last axis is at least as long as that of `shape`.

        It starts as zeros: kernels multiply values past the end of a row by zero, so those must be finite.
        """
        buffer = self.buffers.get(name)
        if buffer is None or buffer.shape[-1] < shape[-1]:
            buffer = self.buffers[name] = np.zeros(shape, dtype)
        return buffer


_scratch = _Scratch()


def _tensor(array: NDArray[Any]) -> Any:
    """A writable array in the form that kernels take, in a third of a microsecond."""
    return tvm_ffi().from_dlpack(array)


def _address(array: NDArray[Any]) -> int:
    if array.flags.writeable and array.dtype.kind in "fiu":  # DLPack takes these, and is four times as fast
        return int(_tensor(array).data_ptr())
    return int(array.__array_interface__["data"][0])
