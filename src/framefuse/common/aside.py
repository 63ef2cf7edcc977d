"""Calls that the calling thread may stop waiting for; what it waits for goes on in a daemon thread.

Title: C++ hears no signals
    Python handles a signal between two of its own instructions, in the main thread. While that is inside a library, to
    compile a network or to wait for one, Ctrl-C waits too. Waiting for another Python thread ends with the signal.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import TypeVar

T = TypeVar("T")


def aside(call: Callable[[], T], seconds: float | None = None) -> T:
    """`call()` in a daemon thread, such that a signal ends the wait for it ("C++ hears no signals").

    Raises what it raises, and TimeoutError if it has not ended after so many seconds.
    """
    outcomes: SimpleQueue[tuple[T | None, BaseException | None]] = SimpleQueue()

    def run() -> None:
        try:
            outcomes.put((call(), None))
        except BaseException as error:
            outcomes.put((None, error))

    threading.Thread(target=run, name="ff-engine", daemon=True).start()
    try:
        value, error = outcomes.get(timeout=seconds)
    except Empty:
        raise TimeoutError(f"no end after {seconds} s") from None
    try:
        if error is not None:
            raise error
        return value  # type: ignore[return-value]  # None only if the call returned it
    finally:
        del error  # its traceback refers to this frame
