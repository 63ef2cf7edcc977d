"""PriorityLock: a lock that one thread gets before others."""

from __future__ import annotations

import threading


class PriorityLock:
    """A lock that one thread gets before others. Python's locks go to whoever asks at the right moment, so threads that
    ask again and again, such as clients whose requests are refused, can keep another one waiting for seconds.

    Attributes:
        first: `threading.get_ident()` of the thread that comes first.
    """

    def __init__(self) -> None:
        self.first, self._waits = 0, False
        self._gate, self._lock = threading.Lock(), threading.Lock()

    def acquire(self) -> bool:
        if threading.get_ident() != self.first:
            if self._waits:
                with self._gate:  # until the first thread has the lock
                    pass
            return self._lock.acquire()
        if self._lock.acquire(blocking=False):
            return True
        with self._gate:
            self._waits = True
            self._lock.acquire()
            self._waits = False
        return True

    def release(self) -> None:
        self._lock.release()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *error: object) -> None:
        self.release()

    def _is_owned(self) -> bool:  # asked by Condition
        return self._lock.locked()
