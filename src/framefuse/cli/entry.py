"""Entry point of `framefuse` and `python -m framefuse`: signals, standard streams, and process exit.

Standard streams
    Only framefuse writes data to stdout: whatever C libraries print there, such as NVIDIA's decoder, goes to stderr.
    A message that cannot be printed on stderr is dropped and never affects the exit code. Data that cannot be written
    to stdout is a SinkError; if its reader has gone (`| head`), the command exits silently.

Process exit
    The process exits without Python's finalisation: an abandoned thread (sources/connection.py) may still be inside
    FFmpeg, and would crash when it returns into a finalised interpreter.
"""

import io
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from typing import BinaryIO, NoReturn

from framefuse.cli.interrupts import INTERRUPTED, ReaderGone, interrupted, take_signals
from framefuse.errors import SinkError


def start() -> NoReturn:
    """Run the command line of this process and exit with its code."""
    code = 1
    try:
        take_signals()
        _open_streams()
        from framefuse.cli.app import main

        code = main()
    except SystemExit as error:  # raised by shell completion
        code = error.code if isinstance(error.code, int) else 1
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt) or interrupted():
            code = INTERRUPTED
            print("error: interrupted", file=sys.stderr)
        else:
            print(f"error: {type(error).__name__}: {error}\n  -> reinstall framefuse", file=sys.stderr)
    finally:
        with suppress(SinkError):
            sys.stdout.flush()
        os._exit(code)


def _open_streams() -> None:
    # A file opened later must not get the number of a closed standard stream, on which C libraries print.
    while (spare := os.open(os.devnull, os.O_RDONLY)) <= 2:
        pass
    os.close(spare)
    data = os.dup(1)
    os.dup2(2, 1)  # keeps the output of C libraries out of the data
    sys.stdout = _Stream(os.fdopen(data, "wb"), sys.stdout, _as_sink_error)
    sys.stderr = _Stream(os.fdopen(2, "wb", closefd=False), sys.stderr, partial(suppress, OSError))


class _Stream(io.TextIOWrapper):
    """Text in the encoding of a standard stream, which may be closed. File names may contain what it cannot encode."""

    def __init__(self, data: BinaryIO, old: object, guard: Callable[[], AbstractContextManager[None]]) -> None:
        super().__init__(data, getattr(old, "encoding", None), "backslashreplace", line_buffering=True)
        self._guard = guard

    def write(self, text: str, /) -> int:
        with self._guard():
            super().write(text)
        return len(text)

    def flush(self) -> None:
        with self._guard():
            super().flush()


@contextmanager
def _as_sink_error() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError as error:
        raise ReaderGone("the reader of stdout has gone") from error
    except OSError as error:
        raise SinkError(f"cannot write to stdout: {error.strerror}", remedy="keep it open, or free space") from error
