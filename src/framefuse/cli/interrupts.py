"""Signals that ask this process to stop. SIGINT and SIGTERM are taken before anything heavy is imported.

The first raises KeyboardInterrupt and is remembered, because an import or a C library may swallow that or turn it into
another error. The second is ignored, because outputs are being completed then. The third ends the process at once.
"""

from __future__ import annotations

import os
import signal

from framefuse.errors import SinkError

INTERRUPTED = 130
"""Exit code after SIGINT or SIGTERM."""

READER_GONE = 128 + signal.SIGPIPE
"""Exit code when the reader of stdout has gone: that of tools which let SIGPIPE end them."""

_signals = 0


class ReaderGone(SinkError):
    """Nobody reads stdout any more. That is how pipelines end, and nothing to complain about."""

    exit_code = READER_GONE


def interrupted() -> bool:
    """Whether a signal came that asks the process to stop."""
    return _signals > 0


def stop_if_interrupted() -> None:
    """Raise the KeyboardInterrupt that was swallowed, if one was."""
    if _signals:
        raise KeyboardInterrupt


def take_signals() -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) != signal.SIG_IGN:  # as nohup and a shell's & leave it
            signal.signal(number, _on_signal)


def _on_signal(number: int, frame: object) -> None:
    global _signals
    _signals += 1
    if _signals == 1:
        raise KeyboardInterrupt
    if _signals > 2:
        os._exit(INTERRUPTED)
