"""Error handling and argument types of the training commands."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NoReturn

from framefuse.errors import FramefuseError

INTERRUPTED = 130


def run(main: Callable[[], None]) -> NoReturn:
    """Run a command and exit; an error prints its message with the remedy and sets the exit code."""
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


def arguments(about: str | None, names: Iterable[str], device: str) -> argparse.ArgumentParser:
    """The arguments of a command that trains one of `names`, by default on `device`."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=names)
    parser.add_argument("--out", type=Path, default=Path("runs/train"))
    parser.add_argument("--cache", type=Path, default=Path("runs/train/frames"), help="rendered frames")
    parser.add_argument("--device", default=device)
    parser.add_argument("--processes", type=count, help="rendering processes; default: one per core")
    return parser


def count(text: str) -> int:
    """A whole number from 1, for argparse."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1")
    return int(text)


def seconds(text: str) -> float:
    """A number of seconds from 0 to a day, for argparse."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 86400:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds from 0 to 86400")
    return value
