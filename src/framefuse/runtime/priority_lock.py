"""PriorityLock: a lock of many threads, one of which comes first and finds the interpreter free."""

from __future__ import annotations

import math
import threading
from time import monotonic

POLITE = 0.02
"""Seconds for which other threads stay away while the first one has something to do, at most."""


class PriorityLock:
    """A lock that one thread gets before others. Python's locks and its interpreter go to whoever asks at the right
    moment, so threads that ask again and again, such as clients whose requests are refused, can keep another one
    waiting for many of its turns. The first thread says when it has something to do; from then on the others wait for
    POLITE at most, outside the interpreter, before they ask for the lock.

    Attributes:
        first: `threading.get_ident()` of the thread that comes first.
    """

    def __init__(self) -> None:
        self.first = 0
        self._due = math.inf
        """time.monotonic() from which on the others wait."""
        self._gate, self._lock = _locked(), threading.Lock()

    def rest(self, until: float | None) -> None:
        """The first thread has nothing to do until a time of time.monotonic(); None: until `due` is called."""
        gate, self._gate = self._gate, _locked()
        self._due = math.inf if until is None else until
        gate.release()

    def due(self) -> None:
        """The first thread has something to do now. Callable from any thread."""
        self._due = 0.0

    def stand_back(self) -> None:
        """Wait while the first thread has something to do."""
        gate = self._gate
        if monotonic() >= self._due and gate.acquire(timeout=POLITE):
            gate.release()  # it is for all that wait

    def acquire(self) -> bool:
        if threading.get_ident() != self.first:
            self.stand_back()
            return self._lock.acquire()
        if not self._lock.acquire(blocking=False):
            self.due()
            self._lock.acquire()
        return True

    def release(self) -> None:
        self._lock.release()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *error: object) -> None:
        self.release()

    def _is_owned(self) -> bool:  # asked by Condition
        return self._lock.locked()


def _locked() -> threading.Lock:
    lock = threading.Lock()
    lock.acquire()
    return lock
