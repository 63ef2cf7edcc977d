"""Load the compiled kernels for this CPU, and launch them on numpy arrays."""

from __future__ import annotations

import platform
import threading
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from framefuse.errors import CapabilityError, UsageError
from framefuse.frame import Frame
from framefuse.kernels.plan import MAX_ELEMENTS, ChannelOrder, Content, Interpolation, Request, Triple, plan

LIBRARIES = Path(__file__).resolve().parent / "_lib"
"""Where `build.py` puts one library for each instruction-set level."""

V3_FLAGS = frozenset(("avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe"))
"""What x86-64-v3 adds to v2, by the names of /proc/cpuinfo (abm is lzcnt)."""

SLACK = 8
"""Floats that the gather may read, with weight 0, past the last sample of a blended row."""


class Library(NamedTuple):
    """The compiled kernels in use: instruction-set level, why that one, and the file."""

    level: str
    reason: str
    path: Path


def _flags(cpuinfo: Path) -> frozenset[str]:
    try:
        lines = cpuinfo.read_text(encoding="utf-8").splitlines()
    except OSError:
        return frozenset()
    return next((frozenset(line.split(":", 1)[1].split()) for line in lines if line.startswith("flags")), frozenset())


def select(machine: str, flags: frozenset[str]) -> tuple[str, str]:
    """Instruction-set level for a machine with these CPU flags, and the reason."""
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
    level, reason = select(platform.machine(), _flags(Path("/proc/cpuinfo")))
    return Library(level, reason, LIBRARIES / f"framefuse-{level}.so")


@lru_cache(maxsize=1)
def _module() -> Any:
    library = describe()
    if not library.path.is_file():
        raise CapabilityError(
            f"the compiled kernels for {library.level} are missing: {library.path}",
            remedy="in a checkout, run `pip install apache-tvm ziglang && python -m framefuse.kernels.build`; "
            "otherwise install framefuse again",
        )
    import tvm_ffi  # takes long where torch is installed, so only when a kernel is first used

    return tvm_ffi.load_module(str(library.path))


@lru_cache(maxsize=64)
def _function(name: str) -> Any:
    return _module()[name]


class _Scratch(threading.local):
    """Buffers of one thread, grown to the largest frame it has seen."""

    def __init__(self) -> None:
        self.buffers: dict[str, NDArray[Any]] = {}

    def get(self, name: str, shape: tuple[int, ...], dtype: Any = np.float32) -> NDArray[Any]:
        """A buffer whose last axis is at least as long as asked for.

        It starts as zeros: the kernel multiplies what it reads past the end of a row by zero, so that must be finite.
        """
        buffer = self.buffers.get(name)
        if buffer is None or buffer.shape[-1] < shape[-1]:
            buffer = self.buffers[name] = np.zeros(shape, dtype)
        return buffer


_scratch = _Scratch()


def _address(array: NDArray[Any]) -> int:
    return int(array.__array_interface__["data"][0])


def _planes(frame: Frame) -> tuple[list[int], list[int]]:
    """Address and pitch in elements of each plane, padded to three."""
    addresses, pitches = [], []
    for number, plane in enumerate(frame.planes):
        if not isinstance(plane, np.ndarray):
            raise UsageError(f"plane {number} is a {type(plane).__name__}, not an array on the host")
        pitch = plane.strides[0] // plane.itemsize
        if pitch * plane.itemsize != plane.strides[0] or not plane[0].flags.c_contiguous:
            raise UsageError(
                f"plane {number} has strides {plane.strides} bytes; within a row its samples must be adjacent",
                remedy="pass np.ascontiguousarray(plane), which copies",
            )
        if abs(pitch) * plane.shape[0] > MAX_ELEMENTS:
            raise UsageError(f"plane {number} has {plane.shape[0]} rows {pitch} samples apart, more than 2^31 samples")
        addresses.append(_address(plane))
        pitches.append(pitch)
    spare = 3 - len(addresses)
    return addresses + addresses[:1] * spare, pitches + pitches[:1] * spare


def preprocess(
    frame: Frame,
    out: NDArray[Any],
    *,
    content: Content,
    interpolation: Interpolation,
    pad_value: float,
    mean: Triple,
    std: Triple,
    channel_order: ChannelOrder,
    rows: tuple[int, int] | None = None,
) -> None:
    """Resize, convert to RGB, normalise and lay out a frame as a model input, in one pass over its own planes.

    `kernels.reference.preprocess` is the specification: the formula, the standards and the meaning of the arguments are
    stated there. This one agrees with it to 0.02 grey levels. The frame's planes may be read-only and have any row
    pitch. The GIL is released while it runs, so several threads may fill disjoint `rows` at once.

    Raises:
        UsageError: an argument or a plane cannot be used; the message says which and why.
        CapabilityError: there are no compiled kernels for this machine.
    """
    request = Request.of(frame, out, content, interpolation, pad_value, mean, std, channel_order, rows)
    todo = plan(request)
    addresses, pitches = _planes(frame)
    written = _address(out) + todo.offset * out.itemsize
    target = written
    if todo.strip_elements:
        target = _address(_scratch.get(todo.name, (todo.strip_elements,), out.dtype))
    scratch = (_scratch.get("rows", (3, todo.row_elements + SLACK)), _scratch.get("lanes", (3, 4 * todo.columns)))
    _function(todo.name)(*addresses, *pitches, target, written, *todo.walk, *todo.tables, *scratch)
