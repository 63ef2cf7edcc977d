"""Short calls of CUDA's driver on a stream, made without giving up the GIL.

CuPy gives it up for each call. A call takes a microsecond, but where a dozen threads want the lock, getting it back
takes many: it has gone to a thread that first must wake up.
"""

from __future__ import annotations

import ctypes
import threading
from functools import lru_cache
from typing import Any

from framefuse.cuda import device
from framefuse.cuda.errors import translate_cuda_error

EXTERNAL = 1
"""CU_EVENT_RECORD_EXTERNAL."""


def driver() -> Any:
    """The driver, with the device's context current in this thread."""
    return _here().library


class _Here(threading.local):
    def __init__(self) -> None:
        device.cupy().cuda.runtime.free(0)  # makes the context current
        self.library = _library()


@lru_cache(maxsize=1)
def _here() -> _Here:
    return _Here()


@lru_cache(maxsize=1)
def _library() -> Any:
    library = ctypes.PyDLL("libcuda.so.1")
    address, size = ctypes.c_uint64, ctypes.c_size_t
    library.cuMemcpyDtoDAsync_v2.argtypes = [address, address, size, address]
    library.cuEventRecord.argtypes = [address, address]
    library.cuEventRecordWithFlags.argtypes = [address, address, ctypes.c_uint]
    library.cuStreamWaitEvent.argtypes = [address, address, ctypes.c_uint]
    return library


def copy(to: int, source: int, size: int, stream: Any) -> None:
    """Copy on the device, once a stream of CuPy gets there.

    Raises:
        GpuLostError: the GPU is lost.
    """
    _check(driver().cuMemcpyDtoDAsync_v2(to, source, size, stream.ptr), "copy an image")


def record(event: Any, stream: Any) -> None:
    """`event` is when a stream has done all that is on it now."""
    _check(driver().cuEventRecord(event.ptr, stream.ptr), "record an event")


def record_in_graph(event: Any, stream: Any) -> None:
    """Record an event each time the graph is launched that the stream is capturing, so that the host can read it."""
    _check(driver().cuEventRecordWithFlags(event.ptr, stream.ptr, EXTERNAL), "record an event in a graph")


def wait(event: Any, stream: Any) -> None:
    """What is put on a stream from now on waits for an event; the host does not.

    Raises:
        GpuLostError: the GPU is lost.
    """
    _check(driver().cuStreamWaitEvent(stream.ptr, event.ptr, 0), "wait for an image")


def _check(code: int, doing: str) -> None:
    if code:
        raise translate_cuda_error(device.cupy().cuda.runtime.CUDARuntimeError(code), doing)
