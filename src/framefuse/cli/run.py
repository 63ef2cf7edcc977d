"""Run a pipeline at a terminal: a progress bar while it runs, then the report and the paths of the outputs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import typer

from framefuse.cli import console, interrupts
from framefuse.cli.console import log, stderr
from framefuse.cli.interrupts import ReaderGone, stop_if_interrupted
from framefuse.common.text import without_controls
from framefuse.report.bar import Bar

PARTIAL = 5
"""Exit code if some inputs could not be read, but others were."""

if TYPE_CHECKING:
    from framefuse.fleet.fleet import Fleet
    from framefuse.pipeline import Pipeline
    from framefuse.prediction import Result
    from framefuse.sources import Source


def run(
    pipeline: Pipeline,
    *,
    quiet: bool = False,
    print_report: bool = False,
    on_result: Callable[[Result], None] = lambda result: None,
    verdict: Callable[[], str] = lambda: "",
) -> int:
    """Run to the end, then print the report on stderr. A signal ends a live source.

    After an error or Ctrl-C, print a summary of what was done and the paths of the outputs, and re-raise the exception.
    If the reader of stdout has gone, print only the paths.

    Args:
        quiet: print neither report nor progress.
        print_report: also print the report as JSON on stdout.
        verdict: makes one more line to print below the report.

    Returns:
        the exit code: PARTIAL if some of several inputs could not be read.
    """
    interrupts.main_thread_writes = pipeline.settings.show
    results = iter(pipeline)
    ended: BaseException | None = None
    try:
        with pipeline, _bar(pipeline.sources, quiet, False if console.as_json else None) as bar:
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
        if console.as_json:
            for text in report.warnings:
                log(logging.WARNING, text)
            facts = {name: getattr(report, name) for name in ("frames", "seconds", "fps", "detections", "unreadable")}
            log(logging.INFO, report.summary(), event="end", **facts, folder=pipeline.folder and str(pipeline.folder))
        elif not quiet and any(lines):
            stderr().print(without_controls("\n".join(filter(None, lines))), markup=False)
        if print_report:
            typer.echo(report.to_json())
    return PARTIAL if report.unreadable else 0


def run_fleet(fleet: Fleet, *, quiet: bool = False, print_report: bool = False) -> int:
    """Run a fleet to the end, then print its report on stderr; the exit code, as of `run`."""
    try:
        with _bar([], quiet) as bar:
            report = fleet.run(bar.reach)
    finally:
        done = fleet.report
        if done is not None and not quiet and (done.frames or fleet.folder):
            lines = [done.table(), *([f"wrote    {fleet.folder}"] if fleet.folder else [])]
            stderr().print(without_controls("\n".join(lines)), markup=False)
    if print_report:
        typer.echo(report.to_json())
    if report.errors:
        raise report.failure()
    return PARTIAL if report.unreadable else 0


def _bar(sources: Sequence[Source], quiet: bool, bar: bool | None = None) -> Bar:
    terminal = stderr()

    def line(text: str, **facts: float) -> None:
        if console.as_json:
            log(logging.INFO, text, event="progress", **facts)
        else:
            terminal.print(text, markup=False)

    return Bar([source.info for source in sources], terminal, shown=not quiet, line=line, bar=bar)
