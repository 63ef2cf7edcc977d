"""Load compiled CUDA kernels and launch them.

`cubins.py` says which kernels there are and compiles them. CuPy's own compiler is not used: it needs CUDA's headers,
and its launches cost three times as much.

`prepare` does everything that is not a launch. After it, `launch` neither allocates nor compiles nor synchronises, so
it can be captured in a CUDA graph.
"""

from __future__ import annotations

import ctypes
import struct
import threading
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any

from framefuse.cuda import device
from framefuse.cuda.cubins import Description, describe, machine_code
from framefuse.cuda.cubins import add as add  # of a user's own
from framefuse.errors import EngineError, UsageError

SLOTS = 128
"""Parameters that a kernel may have; each takes 8 bytes on its way to the driver, one that is a table as many as it
needs."""

FORMATS = {
    "pointer": "Q",
    "int64": "q",
    "uint64": "Q",
    "int32": "i4x",
    "uint32": "I4x",
    "float32": "f4x",
    "float64": "d",
    "bool": "?7x",
    "int8": "b7x",
    "uint8": "B7x",
}
"""How `struct` packs a parameter of each type into a slot."""

CONFIGURATION = struct.Struct("<7I4xQQI4x")
"""CUlaunchConfig: blocks and threads in x, y and z, shared memory, stream, attributes and their number."""

SERIALIZATION = struct.pack("<I4xi60x", 6, 1)
"""CUlaunchAttribute that lets a kernel be launched before the one ahead of it on its stream has ended. Kernels that
begin with a wait (`Description.waits`) may be, on GPUs that have one."""
HOPPER = 90

NUM_REGS, MAX_DYNAMIC_SHARED_SIZE_BYTES = 4, 8
"""CU_FUNC_ATTRIBUTE_* of the driver's API."""


def prepare(symbols: Iterable[str]) -> None:
    """Compile and load kernels for the current device, so that `launch` only launches.

    Raises:
        CapabilityError: no GPU, no CuPy, no NVRTC, or the GPU is one that NVRTC does not know.
    """
    for symbol in symbols:
        _loaded(symbol)


def launch(symbol: str, *, stream: int | None = None, **arguments: Any) -> None:
    """Start a kernel on the current device.

    Args:
        stream: pointer of a CUDA stream; None: CuPy's current one.
        arguments: by the names in `describe(symbol).arguments`: numbers, and for addresses an int or an array on the
            GPU. They are copied here; the memory that they point to is read when the kernel runs.

    Raises:
        UsageError: an argument is missing, unknown, no array on the GPU, or does not fit its type.
        CapabilityError: as `prepare`.
        EngineError: CUDA refused the launch.
    """
    bind(symbol, **arguments)(stream)


def bind(symbol: str, **arguments: Any) -> Bound:
    """A launch that can be started again and again: everything is checked and packed here, once.

    It keeps addresses, not arrays: their memory must stay what it is, as with a captured graph.

    Raises:
        UsageError: as `launch`.
        CapabilityError: as `launch`.
    """
    return Bound(_loaded(symbol), arguments)


class _Recording(threading.local):
    """What `launch_plan` collects in this thread; None: nothing."""

    launches: list[Bound] | None = None
    kept: list[Any] | None = None


recording = _Recording()


class Packing:
    """Turns the arguments of a kernel, given by name, into what a driver wants. Needs no GPU where addresses are ints.

    Args:
        description: of the kernel.
    """

    def __init__(self, description: Description) -> None:
        self.description = description
        values = [
            f"address({text})" if kind in ("pointer", "int64") and text.isidentifier() else text
            for text, kind in description.parameters
        ]
        names = ", ".join(description.arguments)
        code = f"lambda *, {names}: (({', '.join(values)},), ({', '.join(description.grid)}))"
        self._evaluate: Callable[..., tuple[tuple[Any, ...], tuple[int, int, int]]] = eval(
            code, {"address": device.address}
        )
        formats = [_format(kind) for _, kind in description.parameters]
        self._pack = struct.Struct("<" + "".join(formats)).pack_into
        self.slots = sum(struct.calcsize(f"<{each}") // 8 for each in formats)
        """Of 8 bytes, that the parameters take."""

    def __call__(self, arguments: dict[str, Any], buffer: Any) -> tuple[int, int, int]:
        """Write the kernel's parameters to `buffer`, 8 bytes each; returns the blocks in x, y and z."""
        try:
            values, grid = self._evaluate(**arguments)
            self._pack(buffer, 0, *values)
        except (TypeError, struct.error) as error:
            needed = ", ".join(self.description.arguments)
            raise UsageError(f"{self.description.symbol}: {error}", remedy=f"its arguments are {needed}") from error
        if grid[0] > 2**31 - 1 or max(grid[1:]) > 65535:
            raise UsageError(f"{self.description.symbol}: {grid} blocks are more than CUDA allows")
        return grid


def _format(kind: str) -> str:
    """How `struct` packs a parameter; `bytes N` is a table of so many bytes, and the last parameter."""
    name, _, size = kind.partition(" ")
    return f"{size}s" if name == "bytes" else FORMATS[name]


class _Loaded:
    """A kernel on one device."""

    def __init__(self, description: Description, capability: int) -> None:
        self.packing = Packing(description)
        self.what = f"launch {description.symbol}"
        self.shape = (*description.block, description.shared)
        self.early = int(description.waits and capability >= HOPPER)
        self._module, self._function = ctypes.c_void_p(), ctypes.c_void_p()
        driver, image = _driver(), machine_code(description, capability)
        _check(driver.cuModuleLoadData(ctypes.byref(self._module), image), f"load {description.symbol}")
        _check(
            driver.cuModuleGetFunction(ctypes.byref(self._function), self._module, description.entry.encode()),
            f"find {description.entry}",
        )
        if description.shared > 48 * 1024:  # more has to be asked for
            _check(
                driver.cuFuncSetAttribute(self._function, MAX_DYNAMIC_SHARED_SIZE_BYTES, description.shared),
                f"give {description.shared} bytes of shared memory to {description.symbol}",
            )
        # Loading is lazy; asking for an attribute makes it happen now and not in the first launch.
        _check(
            driver.cuFuncGetAttribute(ctypes.byref(ctypes.c_int()), NUM_REGS, self._function),
            f"load {description.symbol}",
        )

        self.function = self._function.value


class Bound:
    """A kernel with its arguments: what `bind` returns. Threads may start one at the same time."""

    def __init__(self, kernel: _Loaded, arguments: dict[str, Any]) -> None:
        self._kernel, self._what = kernel.function, kernel.what
        self._buffer = ctypes.create_string_buffer(8 * kernel.packing.slots)
        grid = kernel.packing(arguments, self._buffer)
        start = ctypes.addressof(self._buffer)
        count = len(kernel.packing.description.parameters)
        self._parameters = (ctypes.c_void_p * count)(*range(start, start + 8 * count, 8))
        self._shape = (*grid, *kernel.shape)
        self._early = kernel.early
        self._empty = min(grid) == 0  # there is nothing to do

    def __call__(self, stream: int | None = None) -> None:
        """Start it.

        Args:
            stream: pointer of a CUDA stream; None: CuPy's current one.

        Raises:
            EngineError: CUDA refused the launch.
        """
        if recording.launches is not None:
            recording.launches.append(self)
        if self._empty:
            return
        here = _here()
        CONFIGURATION.pack_into(
            here.configuration,
            0,
            *self._shape,
            device.current_stream() if stream is None else stream,
            here.attributes,
            self._early,
        )
        code = here.start(here.address, self._kernel, self._parameters, None)
        if code:
            _check(code, self._what)


class _Here(threading.local):
    """How a launch is described to CUDA; one for each thread, since ctypes lets others run meanwhile."""

    def __init__(self) -> None:
        device.cupy().cuda.runtime.free(0)  # makes the device's context current in this thread
        self.configuration = ctypes.create_string_buffer(CONFIGURATION.size)
        self.address = ctypes.addressof(self.configuration)
        self._attribute = ctypes.create_string_buffer(SERIALIZATION, len(SERIALIZATION))
        self.attributes = ctypes.addressof(self._attribute)
        self.start = _driver().cuLaunchKernelEx


@lru_cache(maxsize=1)
def _here() -> _Here:
    return _Here()


@lru_cache(maxsize=1)
def _driver() -> Any:
    library = ctypes.CDLL("libcuda.so.1")
    pointer = ctypes.c_void_p
    library.cuLaunchKernelEx.argtypes = [pointer, pointer, pointer, pointer]
    return library


def _check(code: int, doing: str) -> None:
    if code == 0:
        return
    name = ctypes.c_char_p()
    _driver().cuGetErrorName(code, ctypes.byref(name))
    raise EngineError(f"CUDA could not {doing}: {(name.value or b'').decode() or code}")


_lock = threading.Lock()
_kernels: dict[tuple[int, str], _Loaded] = {}


def _loaded(symbol: str) -> _Loaded:
    number = device.cupy().cuda.runtime.getDevice()
    kernel = _kernels.get((number, symbol))
    if kernel is None:
        with _lock:  # two threads that need one kernel compile it once
            kernel = _kernels.get((number, symbol))
            if kernel is None:
                _ = _here().start  # CUDA's context is current in this thread from here on
                capability = int(device.cupy().cuda.Device(number).compute_capability)
                kernel = _kernels[number, symbol] = _Loaded(describe(symbol), capability)
    return kernel
