"""What the command line says: tables on stdout; errors, progress and log lines on stderr, without passwords.

On stderr it writes text, or with --log-json one JSON object per line, for services. Everything is then a line {"time",
"level", "logger", "message", ...}: the warnings of sources, progress, errors with `remedy` and `stage`, and in the end
the facts of the report.
"""

from __future__ import annotations

import json
import logging
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

import typer

from framefuse.cli.interrupts import stop_if_interrupted
from framefuse.common.files import Files
from framefuse.common.redact import redact
from framefuse.common.text import on_one_line, without_controls
from framefuse.errors import SinkError, UsageError

if TYPE_CHECKING:
    from rich.console import Console

LEVELS = "debug", "info", "warning", "error"
logger = logging.getLogger("framefuse")
as_json = False
"""Whether log lines are JSON, and replace all other text on stderr."""


def stderr() -> Console:
    """A console on the current stderr; plain text if it is not a terminal."""
    from rich.console import Console

    return Console(stderr=True, highlight=False, soft_wrap=True)


def check_out(out: Path | None, *inputs: str | Path | None) -> None:
    """Check before the work starts that the file of --out can be written.

    Raises:
        SinkError: it is a folder or one of the inputs, or its folder is missing or not writable.
    """
    if out is None:
        return
    why = "it is a folder" if out.is_dir() else None
    if out in Files([Path(name) for name in inputs if name is not None]):
        why = "it is an input of this command"
    if not out.parent.is_dir():
        why = f"there is no folder {out.parent}"
    try:
        if why is None:
            tempfile.TemporaryFile(dir=out.parent).close()
    except OSError as error:
        why = error.strerror
    if why is not None:
        raise SinkError(f"cannot write {out}: {why}", remedy="choose another --out")


def check_choice(name: str, value: str, known: Sequence[str], *, remedy: str | None = None) -> None:
    """Raise UsageError if the value of an option is not one of `known`."""
    if value not in known:
        choices = ", ".join(known)
        raise UsageError(f"{name} {value} is not one of {choices}", remedy=remedy or f"choose one of {choices}")


def write_out(out: Path, text: str) -> None:
    """Write the file of --out; SinkError if that fails."""
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise SinkError(f"cannot write {out}: {error.strerror}", remedy="choose another --out") from error


def progress_printer(quiet: bool) -> Callable[[str], None]:
    """A function that prints lines of progress on stderr, and stops the command if it was interrupted."""
    console = stderr()

    def say(line: str) -> None:
        stop_if_interrupted()
        if not quiet:
            console.print(without_controls(line), style="dim", markup=False)

    return say


@contextmanager
def counter(title: str, total: int, quiet: bool) -> Iterator[Callable[[int], None]]:
    """A function that shows how many frames are done, and stops the command if it was interrupted."""
    from rich import progress

    from framefuse.report.bar import LINE_SECONDS

    console = stderr()
    columns = (progress.TextColumn("{task.description}"), progress.BarColumn(), progress.MofNCompleteColumn())
    hidden = quiet or not console.is_terminal
    with progress.Progress(*columns, console=console, transient=True, disable=hidden) as bar:
        task, due = bar.add_task(title, total=total), monotonic() + LINE_SECONDS

        def count(done: int) -> None:
            nonlocal due
            stop_if_interrupted()
            bar.update(task, completed=done)
            if hidden and not quiet and monotonic() >= due:
                due = monotonic() + LINE_SECONDS
                console.print(without_controls(f"{title}: {done:,} of {total:,} frames"), markup=False)

        yield count


def print_error(message: str, remedy: str | None = None, *, stage: str | None = None, traceback: bool = False) -> None:
    """Print an error and its remedy.

    Args:
        traceback: first print the traceback of the exception being handled.
    """
    from rich.text import Text

    if as_json:
        facts = {key: value for key, value in (("remedy", remedy), ("stage", stage)) if value}
        logger.error(message, extra={"facts": facts}, exc_info=traceback)
        return
    if traceback:
        import traceback as tracebacks

        sys.stderr.write(without_controls(redact(tracebacks.format_exc())))
    console = stderr()
    title = f"error in {stage}: " if stage else "error: "
    console.print(Text.assemble((title, "bold red"), without_controls(redact(message))))
    if remedy:
        console.print(Text(f"  -> {without_controls(redact(remedy))}", style="dim"))


def print_rows(columns: Sequence[str], rows: Sequence[Sequence[str]], objects: bool) -> None:
    """Print a table on stdout, or as JSON one object for each row."""
    if objects:
        typer.echo(json.dumps([dict(zip(columns, row, strict=True)) for row in rows], indent=2))
    else:
        print_table(columns, rows)


def print_table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], dim: Callable[[Sequence[str]], bool] = lambda row: False
) -> None:
    """Print a table on stdout with a bold header; a row of one cell is a title.

    Args:
        dim: whether to print a row dimmed.
    """
    columns, *rows = ([on_one_line(cell) for cell in row] for row in (columns, *rows))
    full = [columns, *(row for row in rows if len(row) > 1)]
    widths = [max(len(row[column]) for row in full) for column in range(len(columns))]
    for row in (columns, *rows):
        line = "   ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=False)).rstrip()
        title = row is columns or len(row) == 1
        typer.secho(line, bold=title, dim=not title and dim(row))


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": redact(record.getMessage()),
            **getattr(record, "facts", {}),
        }
        if record.exc_info:
            line["traceback"] = redact(self.formatException(record.exc_info))
        return json.dumps(line, ensure_ascii=False, default=str)


class TextFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return without_controls(redact(super().format(record)))


def set_up_logs(level: str | None = None, json_lines: bool = False, quiet: bool = False) -> None:
    """Print log lines of this level and above on stderr.

    Raises:
        UsageError: there is no such level.
    """
    global as_json
    check_choice("--log-level", level or "info", LEVELS)
    as_json = json_lines
    chosen = level or ("error" if quiet else "info" if json_lines else "warning")
    logger.setLevel(chosen.upper())
    handler = logging.StreamHandler()
    plain = "%(message)s" if level is None else "%(asctime)s %(levelname)s %(name)s: %(message)s"
    handler.setFormatter(JsonFormatter() if json_lines else TextFormatter(plain))
    logger.handlers[:] = [handler] if json_lines or level is not None else []


def log(level: int, message: str, **facts: Any) -> None:
    """Log a message with facts, which only JSON shows."""
    logger.log(level, message, extra={"facts": facts})
