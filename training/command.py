"""The way out of a command of training: an error is its message, what to do about it, and its exit code."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import NoReturn

from framefuse.errors import FramefuseError

INTERRUPTED = 130


def run(main: Callable[[], None]) -> NoReturn:
    """Run a command and end the process."""
    code = 0
    try:
        main()
    except FramefuseError as error:
        print(f"error: {error}", file=sys.stderr)
        code = error.exit_code
    except KeyboardInterrupt:
        print("error: interrupted", file=sys.stderr)
        code = INTERRUPTED
    sys.exit(code)


def count(text: str) -> int:
    """A whole number from 1, for argparse."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 1")
    return int(text)


def seconds(text: str) -> float:
    """A number from 0 up to a day, for argparse."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 86400:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds from 0 to 86400")
    return value
