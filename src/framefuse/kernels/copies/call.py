"""Copy arrays on the host without Python's interpreter lock: many at once, or one while the caller goes on."""

from __future__ import annotations

import atexit
import ctypes
import os
import threading
from collections.abc import Sequence
from functools import lru_cache
from itertools import cycle
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from framefuse.errors import UsageError
from framefuse.kernels.cpu import _function

PARALLEL = 4
"""Copies at the same time: one core uses a fraction of the bandwidth of the memory, and four most of it."""
WORTH = 4_000_000
"""Bytes from which on more than one core copies."""
WAITING = 256
"""Copies that wait for a thread, or whose end nobody has waited for."""
MAX_ROW = 2**31 - 1
ENTRY, SEMAPHORE = 6, 64
"""Sizes of the kernel's."""


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
    entries = [_entry(source, target) for source, target in zip(sources, targets, strict=True)]
    several = sum(source.nbytes for source in sources) >= WORTH
    started = [
        _copier().start(*entry) if several and number % PARALLEL else None for number, entry in enumerate(entries)
    ]
    copies = [copy for copy in started if copy is not None]
    own = np.array([entry for entry, copy in zip(entries, started, strict=True) if copy is None], np.int64)
    waits = np.array([copy.done for copy in copies], np.int64)
    _function("copy_rows")(own.ctypes.data, len(own), waits.ctypes.data, len(waits))
    for copy in copies:
        copy.free()


def start_copy(source: NDArray[Any], target: NDArray[Any]) -> Copy | None:
    """Start target[...] = source, and return at once. Both must stay as they are until `finish` has returned.

    Returns:
        The copy; None: it was not started, since too many wait or there is a single core.

    Raises:
        UsageError: as `copy_all`.
    """
    return _copier().start(*_entry(source, target))


class Copy(NamedTuple):
    """One that was started."""

    done: int
    """Address of the semaphore that is posted at its end."""
    taken: NDArray[np.bool_]
    at: int

    def finish(self) -> None:
        """Wait until it has ended; once for each copy. The GIL is kept if it has ended already."""
        if _libc(True).sem_trywait(self.done):
            while _libc(False).sem_wait(self.done):  # a signal has come
                pass
        self.free()

    def free(self) -> None:
        """Let another copy have its place: it has been waited for."""
        self.taken[self.at] = False


def _entry(source: NDArray[Any], target: NDArray[Any]) -> tuple[int, ...]:
    if (source.shape, source.dtype) != (target.shape, target.dtype):
        raise UsageError(f"a copy of {source.dtype} {source.shape} into {target.dtype} {target.shape}")
    rows, size = 1, source.nbytes
    if not (source.flags.c_contiguous and target.flags.c_contiguous):
        rows, size = len(source), source.nbytes // max(1, len(source))
        if not (rows and source[0].flags.c_contiguous and target[0].flags.c_contiguous):
            raise UsageError(f"the elements of a row of {source.shape} are not adjacent")
    if size > MAX_ROW:
        rows, size = len(source), source.nbytes // len(source)
    return source.ctypes.data, source.strides[0], target.ctypes.data, target.strides[0], rows, size


@lru_cache(maxsize=2)
def _libc(keeps_lock: bool) -> Any:
    """The C library, called with the GIL or without."""
    library: Any = ctypes.PyDLL(None) if keeps_lock else ctypes.CDLL(None)
    for name in ("sem_trywait", "sem_wait", "sem_post"):
        getattr(library, name).argtypes = [ctypes.c_void_p]
    library.sem_init.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_uint]
    return library


class _Worker:
    """A thread that waits inside a kernel for something to copy. A thread of Python would first have to wait for the
    GIL, behind all others that want it."""

    def __init__(self) -> None:
        self._entries = np.zeros((WAITING, ENTRY), np.int64)
        self._semaphores = np.zeros((WAITING + 1, SEMAPHORE), np.uint8)
        """One for each entry; the last one starts the thread."""
        self._taken, self._next = np.zeros(WAITING, np.bool_), 0
        first = self._semaphores.ctypes.data
        self._done = range(first, first + WAITING * SEMAPHORE, SEMAPHORE)
        self._begin = first + WAITING * SEMAPHORE
        for semaphore in (*self._done, self._begin):
            _libc(True).sem_init(semaphore, 0, 0)
        given = self._entries.ctypes.data, WAITING, self._begin, first
        self._thread = threading.Thread(target=_function("copy_worker"), args=given, name="ff-copy", daemon=True)
        self._thread.start()

    def start(self, entry: tuple[int, ...]) -> Copy | None:
        at = self._next
        if self._taken[at]:
            return None
        self._entries[at], self._taken[at], self._next = entry, True, (at + 1) % WAITING
        _libc(True).sem_post(self._begin)
        return Copy(self._done[at], self._taken, at)

    def stop(self) -> None:
        """End the thread after what waits."""
        self._entries[self._next, 4] = -1
        _libc(True).sem_post(self._begin)
        self._thread.join()


class _Copier:
    """The workers, one less than copies at the same time: a thread that waits for its copies copies, too."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._workers = [_Worker() for _ in range(min(PARALLEL, len(os.sched_getaffinity(0))) - 1)]
        self._turns = cycle(self._workers)
        atexit.register(self.stop)

    def start(self, *entry: int) -> Copy | None:
        with self._lock:
            return next(self._turns).start(entry) if self._workers else None

    def stop(self) -> None:
        """End the threads; nothing is started any more."""
        with self._lock:
            workers, self._workers = self._workers, []
        for worker in workers:
            worker.stop()


_copier = lru_cache(maxsize=1)(_Copier)
os.register_at_fork(after_in_child=_copier.cache_clear)  # a process that was forked has none of the threads
