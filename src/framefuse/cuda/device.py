"""The CUDA device through CuPy: arrays, addresses, memory, streams, the current GPU of a thread, errors, pools.

CuPy is the array type and owns the CUDA context. A run on `--device cuda:1` sets the current GPU for each of its
threads; all other code on CUDA uses that one and takes no number.
"""

from __future__ import annotations

import ctypes
import gc
import math
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import accumulate
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from framefuse.errors import CapabilityError, EngineError, GpuLostError, GpuMemoryError, UsageError

T = TypeVar("T")
GRAIN = 256
"""Alignment in bytes of arrays within one allocation."""
OUT_OF_MEMORY = 2
LESS_MEMORY = "use a smaller batch or --imgsz, fewer --slots, or close what else uses the GPU"
"""Remedy for a GPU that runs out of memory."""
LOST = {
    46: "the GPU is busy or gone",
    214: "its memory has an error that cannot be corrected",
    700: "a kernel read or wrote memory that is not its own",
    702: "a kernel ran too long",
    **dict.fromkeys((710, 714, 715, 716, 717, 718, 719), "a kernel failed"),
    721: "its context is gone",
    999: "the driver does not say why",
}
"""CUDA's error codes after which the process can no longer use the GPU -> what they mean."""


@lru_cache(maxsize=1)
def cupy() -> Any:
    """The cupy module, on a machine with a usable GPU.

    Raises:
        CapabilityError: CuPy is not installed, or it finds no GPU; the message says which.
    """
    try:
        import cupy as module
    except ImportError as error:
        message = f"CUDA needs CuPy, which cannot be imported: {error}"
        raise CapabilityError(message, remedy="pip install 'framefuse[cuda13]'") from error
    try:
        count = module.cuda.runtime.getDeviceCount()
    except module.cuda.runtime.CUDARuntimeError as error:
        raise _no_gpu(module.cuda.runtime, error) from error
    if count == 0:
        raise _no_gpu(module.cuda.runtime, None)
    return module


INSUFFICIENT_DRIVER, NO_DEVICE = 35, 100
"""CUDA's error codes: the driver is older than the runtime, the driver shows no GPU."""


def _no_gpu(runtime: Any, error: Any) -> CapabilityError:
    """The reason why `getDeviceCount` found no GPU, as far as it is known."""
    status = getattr(error, "status", NO_DEVICE)
    if status == INSUFFICIENT_DRIVER:
        driver, needed = version(runtime.driverGetVersion()), version(runtime.runtimeGetVersion())
        message = f"the NVIDIA driver supports CUDA {driver}, but the installed CuPy needs CUDA {needed}"
        remedy = f"update the driver to one for CUDA {needed.split('.')[0]} (`nvidia-smi` shows what it supports)"
        return CapabilityError(message, remedy=remedy)
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if status == NO_DEVICE and visible is not None:
        message = f"CUDA finds no GPU: CUDA_VISIBLE_DEVICES is {visible!r}"
        return CapabilityError(message, remedy="unset it, or set it to a GPU that `nvidia-smi -L` lists")
    return CapabilityError(f"CUDA finds no usable GPU{f': {error}' if error else ''}", remedy="check `nvidia-smi`")


def version(number: int) -> str:
    """CUDA's version number as text: 13020 is 13.2."""
    return f"{number // 1000}.{number % 1000 // 10}"


def address(array: Any) -> int:
    """Device address of the first element of a CuPy, torch, DLPack or `__cuda_array_interface__` array, or an int as it
    is.

    Raises:
        UsageError: it is not an array on a GPU.
    """
    if isinstance(array, int):
        return array
    if type(array) is cupy().ndarray:  # the usual case: a launch of a kernel asks for many addresses
        return int(array.data.ptr)
    return int(array.data_ptr()) if getattr(array, "is_cuda", False) else int(as_cupy(array).data.ptr)


def as_cupy(array: Any) -> Any:
    """The array as a CuPy array over the same memory.

    Raises:
        UsageError: it is not an array on a GPU.
    """
    module = cupy()
    if isinstance(array, module.ndarray):
        return array
    if hasattr(array, "__cuda_array_interface__"):
        return module.asarray(array)
    if hasattr(array, "__dlpack__") and array.__dlpack_device__()[0] == 2:  # kDLCUDA
        return module.from_dlpack(array)
    message = f"{type(array).__name__} is not an array on a GPU"
    raise UsageError(message, remedy="pass a CuPy array, or one with DLPack or __cuda_array_interface__ on the GPU")


def shared(size: int) -> tuple[Any, bytes]:
    """Memory of the GPU that another process can open, and its handle (`opened`).

    Raises:
        MemoryError: there is not enough.
        EngineError: CUDA shares none.
    """
    module = cupy()
    failed = module.cuda.runtime.CUDARuntimeError
    try:
        try:
            memory = module.cuda.Memory(size)
        except failed as error:
            if error.status != OUT_OF_MEMORY:
                raise
            free_cached_memory()  # it is no memory of CuPy's pool, which would have done so
            memory = module.cuda.Memory(size)
        return memory, module.cuda.runtime.ipcGetMemHandle(memory.ptr)
    except failed as error:
        if error.status == OUT_OF_MEMORY:
            raise MemoryError(f"{size / 1e6:.0f} MB of the GPU are not free") from error
        raise translate_cuda_error(error, "share memory") from error


def opened(handle: bytes, size: int, owner: Any = None) -> Any:
    """Memory that another process shares. It is that process's: nothing may use it once that has freed it.

    Args:
        owner: is kept as long as arrays over the memory are.
    """
    module = cupy()
    return module.cuda.UnownedMemory(module.cuda.runtime.ipcOpenMemHandle(handle), size, owner, current_gpu())


def close_opened(address: int) -> None:
    """Leave memory of another process. No work that uses it may be on the way."""
    cupy().cuda.runtime.ipcCloseMemHandle(address)


def array_in(memory: Any, offset: int, shape: tuple[int, ...], dtype: Any, strides: Any = None) -> Any:
    """A CuPy array over memory, from an offset in bytes on."""
    module = cupy()
    return module.ndarray(shape, np.dtype(dtype), module.cuda.MemoryPointer(memory, offset), strides)


def pinned(shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
    """Zeros in page-locked host memory, which the GPU copies without the CPU.

    Raises:
        CapabilityError: as `cupy`.
    """
    array = _pinned(shape, dtype).reshape(shape)
    array[...] = 0
    return array


def _pinned(shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
    count = math.prod(shape)
    memory = cupy().cuda.alloc_pinned_memory(max(1, count * np.dtype(dtype).itemsize))
    found: NDArray[Any] = np.frombuffer(memory, dtype, count)
    return found


LENT = 256 << 20
"""Bytes of page-locked memory at most in what `lent` returned and somebody still holds."""
_lent, _lending = [0], threading.Lock()


def lent(shape: tuple[int, ...], dtype: Any) -> NDArray[Any] | None:
    """An array in page-locked host memory for a result that a caller may keep; its values are anything. Its memory goes
    to another when nobody holds the array, or a view of it, any more. None: LENT bytes are held, or there is no such
    memory, so that the result is to be copied into ordinary memory.
    """

    def count(size: int) -> int:
        with _lending:
            _lent[0] += size
            return _lent[0]

    size = math.prod(shape) * np.dtype(dtype).itemsize
    try:
        array = _pinned(shape, dtype) if count(size) <= LENT else None
    except Exception:  # of CuPy: the machine has no more of such memory
        array = None
    if array is None:
        count(-size)
        return None
    weakref.finalize(array, count, -size)
    return array.reshape(shape)


def current_gpu() -> int:
    """Number of this thread's current GPU."""
    return int(cupy().cuda.runtime.getDevice())


def current_stream() -> int:
    """CuPy's current stream of this thread, as a pointer."""
    return int(cupy().cuda.get_current_stream().ptr)


@dataclass(frozen=True)
class _Pointer:
    """A stream in the protocol by which CuPy accepts foreign streams."""

    value: int

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.value


@lru_cache(maxsize=1)
def _stream_type() -> Any:
    class Borrowed(cupy().cuda.Stream):  # type: ignore[misc]
        def __del__(self) -> None:
            """Do not destroy the stream, as CuPy would: it belongs to another owner."""

    return Borrowed


def stream_at(pointer: int) -> Any:
    """The stream at a pointer as a stream of CuPy, which does not own it; `with` makes it the current one."""
    return _stream_type().from_external(_Pointer(pointer))


_uploads: dict[int, Any] = {}
"""The stream of each device on which constant tables are uploaded."""
PLAN_FIRST = "record the call with kernels.record_launches before the capture, and capture the plan instead"
"""Remedy where a call cannot be captured."""


def upload(array: NDArray[Any], stream: int | None) -> Any:
    """Copy a small array of the host to the current device, in order with a stream.

    Its memory comes from the pool of that stream and returns there, so only work on the same stream may read it, and
    the array may be dropped as soon as that work is launched. The host's array may be changed when this returns.

    Args:
        stream: pointer of a CUDA stream; None: CuPy's current one.

    Raises:
        UsageError: the stream is being captured.
    """
    pointer = current_stream() if stream is None else stream
    if capturing(pointer):
        raise UsageError("this call uploads a table, which cannot be captured in a CUDA graph", remedy=PLAN_FIRST)
    with stream_at(pointer):
        found = cupy().empty(array.shape, array.dtype)
    copy_to_device(array, found, pointer)
    return found


def copy_to_device(array: NDArray[Any], target: Any, stream: int | None) -> None:
    """Start the copy of a small C-contiguous array of the host into one of the same size on the device.

    CUDA stages pageable memory before this returns, so the host's array may then be changed; page-locked memory must
    stay as it is until the copy has ended.
    """
    runtime = cupy().cuda.runtime
    pointer = current_stream() if stream is None else stream
    runtime.memcpyAsync(target.data.ptr, array.ctypes.data, array.nbytes, runtime.memcpyHostToDevice, pointer)


def copy_to_host(array: Any, target: NDArray[Any], stream: int | None) -> None:
    """Start the copy of a C-contiguous array of the device into one of the same size in page-locked memory."""
    runtime = cupy().cuda.runtime
    pointer = current_stream() if stream is None else stream
    runtime.memcpyAsync(target.ctypes.data, array.data.ptr, target.nbytes, runtime.memcpyDeviceToHost, pointer)


def uploaded(array: NDArray[Any]) -> Any:
    """A constant table on the current device, for kernels on any stream; the copy has ended when this returns.

    Keep the array while a kernel may read it: its memory then goes to the next table, whatever other streams are doing.
    The caches of tables are bounded and drop the least recently used one.

    Raises:
        UsageError: CuPy's current stream is being captured.
    """
    if capturing(None):
        raise UsageError("this call needs a table that is not on the GPU yet", remedy=PLAN_FIRST)
    module = cupy()
    gpu = current_gpu()
    stream = _uploads.get(gpu) or _uploads.setdefault(gpu, new_stream())
    with stream:
        found = module.asarray(array)
    stream.synchronize()
    return found


def synchronize() -> None:
    """Wait until the work on CuPy's current stream has ended."""
    cupy().cuda.runtime.streamSynchronize(current_stream())


def new_stream() -> Any:
    """A stream that does not synchronise with the default stream."""
    return cupy().cuda.Stream(non_blocking=True)


def capturing(stream: int | None) -> bool:
    """Whether a stream (None: CuPy's current one) is being captured in a graph. Holds the GIL, as `driver` does."""
    pointer, status = current_stream() if stream is None else stream, ctypes.c_int()
    code = _stream_is_capturing()(pointer, ctypes.byref(status))
    if code or status.value > 1:  # CUDA is new to this thread, or the capture is invalid, which CuPy raises
        return bool(cupy().cuda.runtime.streamIsCapturing(pointer))
    return bool(status.value)


@lru_cache(maxsize=1)
def _stream_is_capturing() -> Any:
    function = ctypes.PyDLL("libcuda.so.1").cuStreamIsCapturing
    function.argtypes = [ctypes.c_uint64, ctypes.POINTER(ctypes.c_int)]
    return function


@contextmanager
def current(gpu: int | None, doing: str = "go on") -> Iterator[None]:
    """Make a GPU this thread's current one inside the block; None changes nothing.

    Args:
        doing: what the block does, as an infinitive for the messages of CUDA's errors.

    Raises:
        GpuMemoryError: there is not enough memory; CUDA itself takes several hundred MB to start.
        GpuLostError, EngineError: CUDA fails for another reason.
    """
    if gpu is None:
        yield
        return
    cp = cupy()
    runtime = cp.cuda.runtime
    before = runtime.getDevice()
    try:
        runtime.setDevice(gpu)
        runtime.free(0)  # frees nothing: starts CUDA on this GPU
    except runtime.CUDARuntimeError as error:
        raise translate_cuda_error(error, f"start CUDA on cuda:{gpu}") from error
    try:
        yield
    except (cp.cuda.memory.OutOfMemoryError, runtime.CUDARuntimeError) as error:
        raise translate_cuda_error(error, doing) from error
    finally:
        with suppress(runtime.CUDARuntimeError):  # the GPU is lost, which another error reports
            runtime.setDevice(before)


def on(gpu: int | None, items: Iterator[T], doing: str, *, own_stream: bool = False) -> Iterator[T]:
    """Iterate with a GPU as the current one; for a thread that does nothing else. Errors as in `current`.

    Args:
        own_stream: with a new stream as the current one, too.
    """
    with current(gpu, doing), new_stream() if own_stream and gpu is not None else nullcontext():
        yield from items


def translate_cuda_error(error: Exception, doing: str) -> EngineError:
    """The typed error to raise in place of one of CUDA's.

    Args:
        error: CUDARuntimeError or OutOfMemoryError of CuPy.
        doing: what CUDA was asked to do, as an infinitive.

    Returns:
        GpuMemoryError: there is not enough memory.
        GpuLostError: the process can no longer use the GPU.
        EngineError: anything else.
    """
    code = getattr(error, "status", None)
    text = str(error).splitlines()[0] if str(error) else type(error).__name__
    if isinstance(error, MemoryError) or code == OUT_OF_MEMORY:
        free = ""
        with suppress(Exception):  # which would hide the error that is being reported
            left, total = cupy().cuda.runtime.memGetInfo()
            free = f" ({left / 1e6:,.0f} of {total / 1e6:,.0f} MB are free)"
        return GpuMemoryError(f"the GPU has no room to {doing}{free}: {text}", remedy=LESS_MEMORY)
    if code in LOST:
        remedy = "start again; if it comes back, run `framefuse doctor` and look for Xid lines in the kernel's log"
        return GpuLostError(f"CUDA could not {doing}: {LOST[code]} ({text})", remedy=remedy)
    return EngineError(f"CUDA could not {doing}: {text}")


def packed(sizes: Sequence[int]) -> tuple[list[int], int]:
    """Where parts of so many bytes begin in a single allocation, and its size."""
    *starts, end = accumulate((-(-size // GRAIN) * GRAIN for size in sizes), initial=0)
    return starts, end


def packed_allocation(
    shapes: Sequence[tuple[tuple[int, ...], Any]], allocate: Callable[[int], Any]
) -> tuple[list[Any], Any]:
    """Arrays one after the other in a single allocation, so that one copy moves all of them, and the allocation.

    Args:
        shapes: shape and dtype of each array.
        allocate: number of bytes -> uint8 array of that size.
    """
    sizes = [math.prod(shape) * np.dtype(dtype).itemsize for shape, dtype in shapes]
    starts, end = packed(sizes)
    memory, parts = allocate(end), zip(shapes, starts, sizes, strict=True)
    return [memory[at : at + size].view(dtype).reshape(shape) for (shape, dtype), at, size in parts], memory


def memory() -> tuple[int, int]:
    """Bytes of the current GPU that are free, with those that CuPy's pool caches, and all of them."""
    cp = cupy()
    free, total = cp.cuda.runtime.memGetInfo()
    return free + cp.get_default_memory_pool().free_bytes(), total


def free_cached_memory() -> None:
    """Return the memory that CuPy's pools cache, so that other sizes and other processes can use it."""
    gc.collect()  # the traceback of a failed allocation often holds arrays in a cycle
    free_pools()
    cupy().get_default_pinned_memory_pool().free_all_blocks()


def free_pools() -> None:
    """Return the memory of the GPU that CuPy caches. It caches what a stream has used for that stream alone, which
    nothing can use once the stream is gone."""
    cupy().get_default_memory_pool().free_all_blocks()


class StreamPool:
    """Hands out objects, which `make` creates on the current device, to one user at a time and keeps all of them until
    the process ends.

    The pool also references objects that are in use. Otherwise a user and its CuPy stream could be garbage of one
    cycle: Python would finalize the stream, which destroys it, and the user's finalizer would release a dead stream.
    """

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._all: list[Any] = []
        self._free: dict[int, list[Any]] = {}

    def acquire(self) -> tuple[Any, Callable[[], None]]:
        """An object of the current device and the function that releases it, which any thread may call."""
        free = self._free.setdefault(current_gpu(), [])
        try:
            found = free.pop()
        except IndexError:
            found = self._make()
            self._all.append(found)
        return found, partial(free.append, found)
