"""SIGINT, SIGTERM and SIGHUP, which ask this process to stop. The handlers are installed before heavy imports.

The first signal raises KeyboardInterrupt and is recorded, because an import or a C library may swallow the exception
or turn it into another one. The second is ignored while outputs are being completed, but ends the process if only the
engine is waited for. The third always ends it.
"""

import os
import signal
import threading

from framefuse.errors import SinkError

INTERRUPTED = 130
"""Exit code after one of these signals."""

main_thread_writes = False
"""Whether outputs are written by the main thread, as those of a run with windows are."""
ends_normally = False
"""Whether a signal ended a live source, which is no error, as it has no other end."""
_signals = 0


class ReaderGone(SinkError):
    """The reader of stdout has gone. This is how shell pipelines end, so nothing is reported."""

    exit_code = 128 + signal.SIGPIPE
    """As for a tool that SIGPIPE ends."""


def interrupted() -> bool:
    """Whether a signal has asked the process to stop."""
    return _signals > 0


def stop_if_interrupted() -> None:
    """Raise KeyboardInterrupt if a signal has arrived, in case the first one was swallowed."""
    if _signals:
        raise KeyboardInterrupt


def take_signals() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:  # ignored by nohup, or by a shell's &
            signal.signal(number, _on_signal)


def _on_signal(number: int, frame: object) -> None:
    global _signals
    _signals += 1
    if _signals == 1:
        raise KeyboardInterrupt
    names = {thread.name for thread in threading.enumerate()}
    # Only the engine is waited for if the thread that writes the outputs has ended, and the one of the model has not.
    if _signals > 2 or ("ff-program" in names and "ff-write" not in names and not main_thread_writes):
        os._exit(INTERRUPTED)
