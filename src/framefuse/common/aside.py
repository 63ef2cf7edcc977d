"""Runs a call in a daemon thread, so that a signal or a timeout ends the wait for it.

Title: C++ hears no signals
    Python handles a signal between two of its own instructions, in the main thread. While that is inside a library, to
    compile a network or to wait for one, Ctrl-C waits too. Waiting for another Python thread ends with the signal.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import TypeVar

T = TypeVar("T")


def aside(call: Callable[[], T], seconds: float | None = None) -> T:
    """`call()` in a daemon thread, such that a signal ends the wait for it ("C++ hears no signals").

    Raises what it raises, and TimeoutError if it has not ended after so many seconds.
    """
    outcome: Future[T] = Future()

    def run() -> None:
        try:
            outcome.set_result(call())
        except BaseException as error:
            outcome.set_exception(error)

    threading.Thread(target=run, name="ff-engine", daemon=True).start()
    if not wait([outcome], seconds).done:
        raise TimeoutError(f"no end after {seconds} s")
    try:
        return outcome.result()
    finally:
        outcome = Future()  # without the exception, whose traceback refers to this frame
