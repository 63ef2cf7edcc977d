"""Load compiled CUDA kernels and launch them.

`cubins.py` lists the kernels and compiles them. CuPy's own compiler is not used: it needs CUDA's headers, and its
launches cost three times as much.

After `prepare`, `launch` neither compiles nor allocates nor synchronises, so it can be captured in a CUDA graph.
"""

from __future__ import annotations

import ctypes
import struct
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import lru_cache
from typing import Any

from framefuse.cuda import device, driver
from framefuse.cuda.cubins import Description, describe, machine_code
from framefuse.cuda.cubins import add as add  # kernels of users
from framefuse.cuda.cubins import add_program as add_program
from framefuse.cuda.driver import check
from framefuse.cuda.nvrtc import HOPPER
from framefuse.errors import FramefuseError, UsageError

FORMATS = dict(pointer="Q", int64="q", uint64="Q", float64="d") | dict(
    int32="i4x", uint32="I4x", float32="f4x", bool="?7x", int8="b7x", uint8="B7x"
)
"""How `struct` packs a parameter of each type into a slot of 8 bytes; a table takes its size."""

CONFIGURATION = struct.Struct("<7I4xQQI4x")
"""CUlaunchConfig: blocks and threads in x, y and z, shared memory, stream, attributes and their number."""

SERIALIZATION = struct.pack("<I4xi60x", 6, 1)
"""CUlaunchAttribute of programmatic stream serialization: a kernel may start before the previous one on its stream has
ended. Only kernels that begin with a wait (`Description.waits`) use it, on compute capability HOPPER and later."""

COMPILERS = 8
"""Kernels that are compiled at the same time at most."""

NUM_REGS, MAX_DYNAMIC_SHARED_SIZE_BYTES = 4, 8
"""CU_FUNC_ATTRIBUTE_* of the driver's API."""


def prepare(symbols: Iterable[str]) -> None:
    """Compile and load kernels for the current device.

    Raises:
        CapabilityError: no GPU, no CuPy, no NVRTC, or the GPU is one that NVRTC does not know.
    """
    wanted = list(symbols)
    compile_kernels(wanted)
    for symbol in wanted:
        _loaded(symbol)


def compile_kernels(symbols: Sequence[str]) -> None:
    """Compile those kernels side by side that are not loaded on the current device yet.

    Raises:
        CapabilityError: as `prepare`.
    """
    number = device.current_gpu()
    if missing := [symbol for symbol in symbols if (number, symbol) not in _kernels]:
        capability = int(device.cupy().cuda.Device().compute_capability)
        with ThreadPoolExecutor(min(len(missing), COMPILERS), "ff-compile") as threads:
            list(threads.map(lambda symbol: machine_code(describe(symbol), capability), missing))


def compile_ahead(symbols: Sequence[str]) -> None:
    """Compile what is likely to be needed soon, in a thread. Errors come when it is needed."""

    def work() -> None:
        with suppress(FramefuseError), device.current(gpu):
            compile_kernels(symbols)

    gpu = device.current_gpu()
    threading.Thread(target=work, name="ff-compile", daemon=True).start()


def launch(symbol: str, *, stream: int | None = None, **arguments: Any) -> None:
    """Start a kernel on the current device.

    Args:
        stream: pointer of a CUDA stream; None: CuPy's current one.
        arguments: by the names in `describe(symbol).arguments`: numbers, and for addresses an int or an array on the
            GPU. They are copied now; the memory at an address is read when the kernel runs.

    Raises:
        UsageError: an argument is missing, unknown, not on the GPU, or does not fit its type.
        CapabilityError: as `prepare`.
        EngineError: CUDA refused the launch.
    """
    if recording.launches is not None:
        bind(symbol, **arguments)(stream)
        return
    kernel = _loaded(symbol)
    own = kernel.slots
    _start(kernel, kernel.packing(arguments, own.buffer), own.parameters, stream)


def bind(symbol: str, **arguments: Any) -> Bound:
    """A launch that can be repeated: arguments are checked and packed once, here.

    It holds addresses, not arrays: the caller keeps their memory, as for a captured graph.

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
    """Packs the named arguments of the kernel described for the driver. Needs no GPU if addresses are ints."""

    def __init__(self, description: Description) -> None:
        self.description = description
        values = [
            f"address({text})" if kind in ("pointer", "int64") and text.isidentifier() else text
            for text, kind in description.parameters
        ]
        names = ", ".join(description.arguments)
        code = f"lambda *, {names}: (({', '.join(values)},), ({', '.join(description.grid)}))"
        evaluate = eval(code, {"address": device.address})
        self._evaluate: Callable[..., tuple[tuple[Any, ...], tuple[int, int, int]]] = evaluate
        # `bytes N` is a table of N bytes, which is the last parameter.
        kinds = (kind.split() for _, kind in description.parameters)
        formats = [f"{size[0]}s" if kind == "bytes" else FORMATS[kind] for kind, *size in kinds]
        self._pack = struct.Struct("<" + "".join(formats)).pack_into
        self.slots = sum(struct.calcsize(f"<{each}") // 8 for each in formats)
        """Number of 8-byte slots that the parameters take."""

    def __call__(self, arguments: dict[str, Any], buffer: Any) -> tuple[int, int, int]:
        """Write the parameters to `buffer` and return the number of blocks in x, y and z."""
        try:
            values, grid = self._evaluate(**arguments)
            self._pack(buffer, 0, *values)
        except (TypeError, struct.error) as error:
            needed = ", ".join(self.description.arguments)
            raise UsageError(f"{self.description.symbol}: {error}", remedy=f"its arguments are {needed}") from error
        if grid[0] > 2**31 - 1 or max(grid[1:]) > 65535:
            raise UsageError(f"{self.description.symbol}: {grid} blocks are more than CUDA allows")
        return grid


class _Loaded:
    """A kernel on one device."""

    def __init__(self, description: Description, capability: int) -> None:
        self.packing = Packing(description)
        self.what = f"launch {description.symbol}"
        self.shape = (*description.block, description.shared)
        self.early = int(description.waits and capability >= HOPPER)
        library, function, entry = _driver(), ctypes.c_void_p(), description.entry
        module = _module(description, capability)
        check(library.cuModuleGetFunction(ctypes.byref(function), module, entry.encode()), f"find {entry}")
        if (shared := description.shared) > 48 * 1024:  # more is opt-in
            code = library.cuFuncSetAttribute(function, MAX_DYNAMIC_SHARED_SIZE_BYTES, shared)
            check(code, f"give {shared} bytes of shared memory to {description.symbol}")
        # Modules load lazily; reading an attribute loads the kernel now instead of at its first launch.
        code = library.cuFuncGetAttribute(ctypes.byref(ctypes.c_int()), NUM_REGS, function)
        check(code, f"load {description.symbol}")
        self.function = function.value
        self.slots = _ThreadSlots(self.packing)
        """For launches that are not repeated."""


def _module(description: Description, capability: int) -> ctypes.c_void_p:
    """The machine code of a kernel on the current device; the kernels of a program share it."""
    key = device.current_gpu(), description.program or description.symbol
    if key not in _modules:
        image, module = machine_code(description, capability), ctypes.c_void_p()
        check(_driver().cuModuleLoadData(ctypes.byref(module), image), f"load {description.symbol}")
        _modules[key] = module
    return _modules[key]


class _Slots:
    """Packed parameters, and the address of each for the driver."""

    def __init__(self, packing: Packing) -> None:
        self.buffer = ctypes.create_string_buffer(8 * packing.slots)
        start, count = ctypes.addressof(self.buffer), len(packing.description.parameters)
        self.parameters = (ctypes.c_void_p * count)(*range(start, start + 8 * count, 8))


class _ThreadSlots(threading.local, _Slots):
    """Those of each thread."""


class Bound:
    """A kernel with its arguments, as `bind` returns it. Several threads may launch it at the same time."""

    def __init__(self, kernel: _Loaded, arguments: dict[str, Any]) -> None:
        self._kernel, self._slots = kernel, _Slots(kernel.packing)
        self._grid = kernel.packing(arguments, self._slots.buffer)

    def __call__(self, stream: int | None = None) -> None:
        """Launch the kernel.

        Args:
            stream: pointer of a CUDA stream; None: CuPy's current one.

        Raises:
            EngineError: CUDA refused the launch.
        """
        if recording.launches is not None:
            recording.launches.append(self)
        _start(self._kernel, self._grid, self._slots.parameters, stream)


def _start(kernel: _Loaded, grid: tuple[int, int, int], parameters: Any, stream: int | None) -> None:
    if 0 in grid:
        return
    state, pointer = _thread_state(), device.current_stream() if stream is None else stream
    CONFIGURATION.pack_into(state.configuration, 0, *grid, *kernel.shape, pointer, state.attributes, kernel.early)
    code = state.start(state.address, kernel.function, parameters, None)
    if code:
        check(code, kernel.what)


class _ThreadState(threading.local):
    """Launch configuration for the driver, one for each thread: another may be about to launch, too."""

    def __init__(self) -> None:
        self.configuration = ctypes.create_string_buffer(CONFIGURATION.size)
        self.address = ctypes.addressof(self.configuration)
        self._attribute = ctypes.create_string_buffer(SERIALIZATION, len(SERIALIZATION))
        self.attributes = ctypes.addressof(self._attribute)
        self.start = driver.driver().cuLaunchKernelEx


_thread_state = lru_cache(maxsize=1)(_ThreadState)


@lru_cache(maxsize=1)
def _driver() -> Any:
    """Other threads run while modules are loaded."""
    return ctypes.CDLL("libcuda.so.1")


_lock = threading.Lock()
_kernels: dict[tuple[int, str], _Loaded] = {}
_modules: dict[tuple[int, str], ctypes.c_void_p] = {}


def _loaded(symbol: str) -> _Loaded:
    number = device.current_gpu()
    if (number, symbol) not in _kernels:
        with _lock:  # each kernel is compiled once
            if (number, symbol) not in _kernels:
                _ = _thread_state().start  # makes CUDA's context current in this thread
                capability = int(device.cupy().cuda.Device(number).compute_capability)
                _kernels[number, symbol] = _Loaded(describe(symbol), capability)
    return _kernels[number, symbol]
