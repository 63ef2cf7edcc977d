"""What the command line says: tables on stdout; errors, progress, log lines and what a run did on stderr, without
passwords.

On stderr it writes text, or with --log-json one JSON object per line, for services. Everything is then a line {"time",
"level", "logger", "message", ...}: the warnings of sources, progress, errors with `remedy` and `stage`, and in the end
the facts of the report.
"""

from __future__ import annotations

import json
import logging
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

import typer

from framefuse.cli import interrupts
from framefuse.cli.interrupts import ReaderGone, stop_if_interrupted
from framefuse.common.files import Files, os_errors_as
from framefuse.common.redact import redact
from framefuse.common.text import on_one_line, without_controls
from framefuse.errors import CapabilityError, SinkError, UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from framefuse.fleet.fleet import Fleet
    from framefuse.fleet.ray import RayFleet
    from framefuse.pipeline import Pipeline
    from framefuse.prediction import Result
    from framefuse.report.bar import Bar
    from framefuse.sources import Source

PARTIAL = 5
"""Exit code if some inputs could not be read, but others were."""
LEVELS = "debug", "info", "warning", "error"
logger = logging.getLogger("framefuse")
as_json = False
"""Whether log lines are JSON, and replace all other text on stderr."""


def stderr() -> Console:
    """A console on the current stderr; plain text if it is not a terminal."""
    from rich.console import Console

    return Console(stderr=True, highlight=False, soft_wrap=True)


def check_out(out: Path | None, *inputs: str | Path | None, beside: str = "", name: str = "--out") -> None:
    """Raise SinkError before the work starts if the file of the option `name`, or the one with the suffix `beside`
    next to it, is a folder or one of the inputs, or cannot be written."""
    if out is None:
        return
    with os_errors_as(SinkError, f"cannot write {out}", f"choose another {name}"):
        if not out.parent.is_dir():
            raise OSError(f"there is no folder {out.parent}")
        if out in Files([Path(name) for name in inputs if name is not None]):
            raise OSError("it is an input of this command")
        if out.is_dir():
            raise OSError("it is a folder")
        tempfile.TemporaryFile(dir=out.parent).close()
    if beside and out.suffix == beside:
        raise SinkError(f"{name} is {out}, where the plot goes", remedy=f"use another suffix than {beside}")
    if beside:
        check_out(out.with_suffix(beside), *inputs)


def check_choice(name: str, value: str, known: Sequence[str], *, remedy: str | None = None) -> None:
    """Raise UsageError if the value of an option is not one of `known`."""
    if value not in known:
        choices = ", ".join(known)
        raise UsageError(f"{name} {value} is not one of {choices}", remedy=remedy or f"choose one of {choices}")


def write_out(out: Path, content: str | bytes) -> None:
    """Write the file of --out; SinkError if that fails."""
    with os_errors_as(SinkError, f"cannot write {out}", "choose another --out"):
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_bytes(content.encode() if isinstance(content, str) else content)


def deliver(
    out: Path, numbers: str, plot: Callable[[], bytes], table: Sequence[Sequence[str]], *, print_json: bool
) -> list[str]:
    """Write what a command has measured to --out, and its plot beside it; print it as JSON, or as a table whose first
    row is the header. Returns notes of what was written."""
    write_out(out, numbers)
    notes, picture = [f"wrote    {out}"], out.with_suffix(".png")
    try:
        write_out(picture, plot())
        notes.append(f"wrote    {picture}")
    except CapabilityError as error:
        notes.append(f"no plot: {error.message}: {error.remedy}")
    if print_json:
        typer.echo(numbers, nl=False)
    else:
        print_table(table)
    return notes


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

        def count(done: int, *_: int) -> None:
            nonlocal due
            stop_if_interrupted()
            bar.update(task, completed=done)
            if hidden and not quiet and monotonic() >= due:
                due = monotonic() + LINE_SECONDS
                console.print(without_controls(f"{title}: {done:,} of {total:,} frames"), markup=False)

        yield count


def print_error(message: str, remedy: str | None = None, *, stage: str | None = None, traceback: bool = False) -> None:
    """Print an error and its remedy, if asked below the traceback of the exception being handled."""
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
        print_table([columns, *rows])


def print_table(table: Sequence[Sequence[str]], dim: Callable[[Sequence[str]], bool] = lambda row: False) -> None:
    """Print a table on stdout. Its first row is the header, in bold; another of one cell is a title, and `dim` picks
    rows to print dimmed."""
    rows = [[on_one_line(cell) for cell in row] for row in table]
    columns = zip(*(row for row in rows if len(row) > 1 or row is rows[0]), strict=False)
    widths = [max(map(len, column)) for column in columns]
    for row in rows:
        line = "   ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=False)).rstrip()
        title = row is rows[0] or len(row) == 1
        typer.secho(line, bold=title, dim=not title and dim(row))


def print_notes(notes: Iterable[str]) -> None:
    """Print what the user should know of a result on stderr, each note on one line."""
    stderr().print("\n".join(map(on_one_line, notes)), markup=False)


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line = {"time": time, "level": record.levelname.lower(), "logger": record.name}
        line |= {"message": redact(record.getMessage()), **getattr(record, "facts", {})}
        if record.exc_info:
            line["traceback"] = redact(self.formatException(record.exc_info))
        return json.dumps(line, ensure_ascii=False, default=str)


class TextFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return without_controls(redact(super().format(record)))


def set_up_logs(level: str | None = None, json_lines: bool = False, quiet: bool = False) -> None:
    """Print log lines of this level and above on stderr; UsageError if there is no such level."""
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


def run(
    pipeline: Pipeline,
    *,
    quiet: bool = False,
    print_report: bool = False,
    on_result: Callable[[Result], None] = lambda result: None,
    verdict: Callable[[], str] = lambda: "",
) -> int:
    """Run to the end, then print the report on stderr, and below it the line of `verdict`. A signal ends a live source.

    After an error or Ctrl-C, print a summary of what was done and the paths of the outputs, and re-raise the exception.
    If the reader of stdout has gone, print only the paths. The exit code is PARTIAL if some of several inputs could not
    be read.
    """
    interrupts.main_thread_writes = pipeline.settings.show
    results = iter(pipeline)
    ended: BaseException | None = None
    try:
        with pipeline, _bar(pipeline.sources, quiet) as bar:
            try:
                stop_if_interrupted()
                for result in results:
                    stop_if_interrupted()
                    on_result(result)
                    bar.advance()
            except BaseException as error:
                results.throw(error)  # so that the run itself ends, and its report names the error
    except BaseException as error:
        ended = error
        raise
    finally:
        report = pipeline.report
        live = any(source.info.live for source in pipeline.sources) and report.frames > 0
        interrupts.ends_normally = live and isinstance(ended, KeyboardInterrupt)
        if ended is None or interrupts.ends_normally:
            lines = [report.table(), verdict()]
        else:
            summary = report.summary() if report.frames and not isinstance(ended, ReaderGone) else ""
            lines = [summary, *(f"wrote    {path}" for path in report.outputs)]
        lines += [f"report   {pipeline.folder / 'report.html'}"] if pipeline.folder else []
        if as_json:
            _log_end(report, report.summary(), report.warnings, pipeline.folder, "fps", "detections")
        elif not quiet and any(lines):
            stderr().print(without_controls("\n".join(filter(None, lines))), markup=False)
        if print_report:
            typer.echo(report.to_json())
    return PARTIAL if report.unreadable else 0


def run_fleet(fleet: Fleet | RayFleet, *, quiet: bool = False, print_report: bool = False) -> int:
    """Run a fleet to the end, then print its report on stderr; the exit code, as of `run`."""
    from framefuse.fleet.report import FleetReport

    try:
        with _bar([], quiet) as bar:
            report = fleet.run(bar.reach)
    finally:
        done = fleet.report
        if done is not None and as_json:
            if isinstance(done, FleetReport):
                warnings = done.warnings
            else:
                warnings = [f"{file}: {why}" for file, why in done.failed.items()]
            _log_end(done, done.table().splitlines()[0], warnings, fleet.folder)
        elif done is not None and not quiet and (done.frames or fleet.folder):
            lines = [done.table(), *([f"wrote    {fleet.folder}"] if fleet.folder else [])]
            stderr().print(without_controls("\n".join(lines)), markup=False)
    if print_report:
        typer.echo(report.to_json())
    if isinstance(report, FleetReport) and report.errors:
        raise report.failure()
    return PARTIAL if report.unreadable else 0


def _log_end(report: Any, summary: str, warnings: Iterable[str], folder: Path | None, *more: str) -> None:
    """Log the end of a run in JSON: its warnings, then a summary with the facts that the report has by these names."""
    for text in warnings:
        log(logging.WARNING, text)
    facts = {name: getattr(report, name) for name in ("frames", "seconds", "unreadable", *more)}
    log(logging.INFO, summary, event="end", **facts, folder=folder and str(folder))


def _bar(sources: Sequence[Source], quiet: bool) -> Bar:
    from framefuse.report.bar import Bar

    how: dict[str, Any] = {"line": partial(log, logging.INFO, event="progress"), "bar": False} if as_json else {}
    return Bar([source.info for source in sources], stderr(), shown=not quiet, **how)
