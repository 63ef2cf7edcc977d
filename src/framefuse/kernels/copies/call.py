"""Copy many arrays on the host without Python's interpreter lock, several at the same time."""

from __future__ import annotations

import atexit
import ctypes
import os
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from framefuse.errors import UsageError
from framefuse.kernels.cpu import _function

PARALLEL = 4
"""Copies at the same time: one core uses a fraction of the bandwidth of the memory, and four most of it."""
WORTH = 4_000_000
"""Bytes from which on more than one core copies."""
MAX_ROW = 2**31 - 1
SEMAPHORE = 64
"""Bytes from one semaphore to the next; of the kernel."""


def copy_all(sources: Sequence[NDArray[Any]], targets: Sequence[NDArray[Any]]) -> None:
    """targets[i][...] = sources[i].

    The calling thread takes a share, and other cores take theirs where that pays. The GIL is released while the bytes
    are copied, once for all of them: with many threads, each release costs a wait.

    Args:
        sources, targets: arrays of the same shapes and dtypes in pairs, which do not overlap. The elements of a row
            are adjacent; rows, along the first axis, may have any pitch.

    Raises:
        UsageError: the arrays of a pair differ, or the elements of a row are not adjacent.
    """
    table, sizes, total = np.empty((len(sources), 5), np.int64), np.empty(len(sources), np.int64), 0
    for number, (source, target) in enumerate(zip(sources, targets, strict=True)):
        if (source.shape, source.dtype) != (target.shape, target.dtype):
            raise UsageError(f"a copy of {source.dtype} {source.shape} into {target.dtype} {target.shape}")
        rows, size = 1, source.nbytes
        if not (source.flags.c_contiguous and target.flags.c_contiguous):
            rows, size = len(source), source.nbytes // max(1, len(source))
            if not (rows and source[0].flags.c_contiguous and target[0].flags.c_contiguous):
                raise UsageError(f"the elements of a row of {source.shape} are not adjacent")
        if size > MAX_ROW:
            rows, size = len(source), source.nbytes // len(source)
        table[number] = source.ctypes.data, source.strides[0], target.ctypes.data, target.strides[0], rows
        sizes[number] = size
        total += source.nbytes
    several = total >= WORTH and len(sources) > 1
    if not (several and _helpers.copy(table, sizes)):
        job = _job(table, sizes, 1)
        _function("copy_rows")(job.ctypes.data, 0, 0)


def _job(table: NDArray[np.int64], sizes: NDArray[np.int64], threads: int) -> NDArray[np.int64]:
    return np.array([table.ctypes.data, sizes.ctypes.data, len(table), threads], np.int64)


class _Helpers:
    """Threads that wait inside a kernel for something to copy. Threads of Python would first have to wait for the GIL,
    behind all others that want it."""

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._threads: list[threading.Thread] | None = None
        """None: they do not run; empty: there is a single core."""
        self._job = np.zeros(4, np.int64)
        self._semaphores = np.zeros((PARALLEL, SEMAPHORE), np.uint8)
        """The last one counts the ends, the others each start a thread."""

    def copy(self, table: NDArray[np.int64], sizes: NDArray[np.int64]) -> bool:
        """Copy with the help of the threads; False if there are none, or they are at work for another thread."""
        if not self._turn.acquire(blocking=False):
            return False
        try:
            if self._threads is None:
                self._threads = self._started()
            if self._threads:
                self._job[:] = _job(table, sizes, len(self._threads) + 1)
                _function("copy_rows")(self._job.ctypes.data, *self._addresses())
            return bool(self._threads)
        finally:
            self._turn.release()

    def _addresses(self, thread: int = 0) -> tuple[int, int]:
        """Of the semaphore that starts a thread, and of that which counts the ends."""
        first = self._semaphores.ctypes.data
        return first + thread * SEMAPHORE, first + (PARALLEL - 1) * SEMAPHORE

    def _started(self) -> list[threading.Thread]:
        libc, threads = ctypes.CDLL(None), list[threading.Thread]()
        for number in range(PARALLEL):
            libc.sem_init(ctypes.c_void_p(self._addresses(number)[0]), 0, 0)
        work = _function("copy_worker")
        for number in range(min(PARALLEL, len(os.sched_getaffinity(0))) - 1):
            given = self._job.ctypes.data, number + 1, *self._addresses(number)
            threads.append(threading.Thread(target=work, args=given, name="ff-copy", daemon=True))
            threads[-1].start()
        return threads

    def stop(self) -> None:
        """End the threads, until something is copied again."""
        with self._turn:
            threads, self._threads = self._threads or [], None
            self._job[2] = -1
            for number in range(len(threads)):
                ctypes.CDLL(None).sem_post(ctypes.c_void_p(self._addresses(number)[0]))
            for thread in threads:
                thread.join()


_helpers = _Helpers()
atexit.register(lambda: _helpers.stop())


def _after_fork() -> None:
    """A process that was forked has none of the threads."""
    global _helpers
    _helpers = _Helpers()


os.register_at_fork(after_in_child=_after_fork)
