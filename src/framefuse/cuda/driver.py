"""Short calls of CUDA's driver on a stream that hold the GIL.

CuPy releases it for each call. A call takes a microsecond, but with a dozen threads waiting for the lock, acquiring it
again takes far longer: another thread holds it and first has to wake up.
"""

from __future__ import annotations

import ctypes
import threading
from collections import deque
from functools import lru_cache
from typing import Any

from framefuse.cuda import device
from framefuse.cuda.device import translate_cuda_error

EXTERNAL = 1
"""CU_EVENT_RECORD_EXTERNAL."""
NOT_READY = 600
"""CUDA_ERROR_NOT_READY."""


def driver() -> Any:
    """The driver library, with the context of the device current in this thread."""
    return _thread_state().library


class _ThreadState(threading.local):
    def __init__(self) -> None:
        device.cupy().cuda.runtime.free(0)  # makes the context current
        self.library = _library()


_thread_state = lru_cache(maxsize=1)(_ThreadState)


@lru_cache(maxsize=1)
def _library() -> Any:
    library = ctypes.PyDLL("libcuda.so.1")
    address, size = ctypes.c_uint64, ctypes.c_size_t
    library.cuMemcpyDtoDAsync_v2.argtypes = [address, address, size, address]
    library.cuMemcpyDtoHAsync_v2.argtypes = [address, address, size, address]
    library.cuEventRecord.argtypes = [address, address]
    library.cuEventRecordWithFlags.argtypes = [address, address, ctypes.c_uint]
    library.cuStreamWaitEvent.argtypes = [address, address, ctypes.c_uint]
    library.cuEventQuery.argtypes = [address]
    library.cuGraphLaunch.argtypes = [address, address]
    library.cuLaunchKernelEx.argtypes = [ctypes.c_void_p] * 4
    return library


def copy(to: int, source: int, size: int, stream: Any) -> None:
    """Start a copy of `size` bytes between device addresses on a stream of CuPy.

    Raises:
        GpuLostError: the GPU is lost.
    """
    check(driver().cuMemcpyDtoDAsync_v2(to, source, size, stream.ptr), "copy an image")


def download(to: int, source: int, size: int) -> None:
    """Start a copy of `size` bytes into page-locked memory, after the work on CuPy's current stream.

    Raises:
        GpuLostError: the GPU is lost.
    """
    check(driver().cuMemcpyDtoHAsync_v2(to, source, size, device.current_stream()), "copy an image to the host")


def record(event: Any, stream: Any = None) -> None:
    """Record an event after the work that is on a stream of CuPy now, by default the current one."""
    pointer = device.current_stream() if stream is None else stream.ptr
    check(driver().cuEventRecord(event.ptr, pointer), "record an event")


def record_in_graph(event: Any, stream: Any) -> None:
    """Record an event each time the graph is launched that the stream is capturing, so that the host can read it."""
    check(driver().cuEventRecordWithFlags(event.ptr, stream.ptr, EXTERNAL), "record an event in a graph")


def launch(graph: Any, stream: Any) -> None:
    """Launch a graph of CuPy on a stream. With the GIL released, a launch of tens of microseconds can take milliseconds
    while clients of a `Batcher` want the lock.

    Raises:
        GpuLostError: the GPU is lost.
    """
    check(driver().cuGraphLaunch(graph.graphExec, stream.ptr), "launch a batch")


def has_ended(event: Any) -> bool:
    """Whether the work before an event has ended.

    Raises:
        GpuLostError: the GPU is lost.
        EngineError: the work has failed.
    """
    code = driver().cuEventQuery(event.ptr)
    if code != NOT_READY:
        check(code, "finish a batch")
    return bool(code == 0)


class Reading:
    """Keeps arrays until the GPU has read them: the memory of one that nobody has any more goes to other streams."""

    def __init__(self) -> None:
        self._kept: deque[tuple[Any, Any]] = deque()
        """Events, and what was read before each."""
        self._spare: list[Any] = []

    def keep(self, arrays: Any) -> None:
        """Keep them until the work that is on CuPy's current stream now has ended."""
        while self._kept and has_ended(self._kept[0][0]):
            self._spare.append(self._kept.popleft()[0])
        event = self._spare.pop() if self._spare else device.cupy().cuda.Event(disable_timing=True)
        record(event)
        self._kept.append((event, arrays))


def wait(event: Any, stream: Any) -> None:
    """Let later work on a stream wait for an event. The host does not wait.

    Raises:
        GpuLostError: the GPU is lost.
    """
    check(driver().cuStreamWaitEvent(stream.ptr, event.ptr, 0), "wait for an image")


def check(code: int, doing: str) -> None:
    """Raise the typed error of a code of the driver that is not 0 (`device.translate_cuda_error`)."""
    if code:
        raise translate_cuda_error(device.cupy().cuda.runtime.CUDARuntimeError(code), doing)
