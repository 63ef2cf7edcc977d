"""PriorityLock: a lock of many threads, one of which comes first and finds the interpreter free."""

import math
import threading
from time import monotonic

POLITE, PLACES = 0.02, 8
"""Seconds for which other threads stay away while the first one has something to do, at most, and how many of them do
where only a few may: all of them want the interpreter as soon as the first one rests."""


class PriorityLock:
    """A lock that one thread gets before others. Python's locks and its interpreter go to whoever asks at the right
    moment, so threads that ask again and again, such as clients whose requests are refused, can keep another one
    waiting for many of its turns. The first thread also says when it has something to do, so that others can stand back
    until it rests again, outside the interpreter.

    Attributes:
        first: `threading.get_ident()` of the thread that comes first.
        places: how many threads may stand back in a crowd; PLACES until somebody knows better.
    """

    def __init__(self) -> None:
        self.first, self.places, self._waits = 0, PLACES, False
        self._turn, self._lock = threading.Lock(), threading.Lock()
        self._due = math.inf
        """time.monotonic() from which on the first thread has something to do."""
        self._rests = _locked()
        """Released when it rests."""
        self._standing = set[int]()
        """Threads that stand back."""

    def rest(self, until: float | None) -> None:
        """The first thread has nothing to do until a time of time.monotonic(); None: until `due` is called."""
        rests, self._rests = self._rests, _locked()
        self._due = math.inf if until is None else until
        rests.release()

    def due(self) -> None:
        """The first thread has something to do now. Callable from any thread."""
        self._due = 0.0

    def stand_back(self, *, crowded: bool = False) -> bool:
        """Wait while the first thread has something to do, for POLITE at most; the first thread itself does not.

        Args:
            crowded: no more than `places` threads may wait.

        Returns:
            False, at once: too many wait.
        """
        rests, me = self._rests, threading.get_ident()
        if monotonic() < self._due or me == self.first:
            return True
        if crowded and len(self._standing) >= self.places:
            return False
        self._standing.add(me)
        try:
            if rests.acquire(timeout=POLITE):
                rests.release()  # it is for all that wait
        finally:
            self._standing.discard(me)
        return True

    def acquire(self) -> bool:
        if threading.get_ident() != self.first:
            if self._waits:
                with self._turn:  # until the first thread has the lock
                    pass
            return self._lock.acquire()
        if self._lock.acquire(blocking=False):
            return True
        with self._turn:
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


def _locked() -> threading.Lock:
    lock = threading.Lock()
    lock.acquire()
    return lock
