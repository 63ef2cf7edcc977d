"""Run a pipeline at a terminal: a progress bar while it runs, then the report and the paths of the outputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import typer

from framefuse.cli import interrupts
from framefuse.cli.console import stderr
from framefuse.cli.interrupts import ReaderGone, stop_if_interrupted
from framefuse.common.text import without_controls

if TYPE_CHECKING:
    from framefuse.fleet.fleet import Fleet
    from framefuse.pipeline import Pipeline
    from framefuse.prediction import Result


def run(
    pipeline: Pipeline,
    *,
    quiet: bool = False,
    print_report: bool = False,
    on_result: Callable[[Result], None] = lambda result: None,
    verdict: Callable[[], str] = lambda: "",
) -> None:
    """Run to the end, then print the report on stderr.

    After an error or Ctrl-C, print a summary of what was done and the paths of the outputs, and re-raise the exception.
    If the reader of stdout has gone, print only the paths.

    Args:
        quiet: print neither report nor progress.
        print_report: also print the report as JSON on stdout.
        verdict: makes one more line to print below the report.
    """
    interrupts.main_thread_writes = pipeline.settings.show
    results = iter(pipeline)
    ended: BaseException | None = None
    try:
        with pipeline, Bar(pipeline, quiet) as bar:
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
        if ended is None:
            lines = [report.table(), verdict()]
        else:
            summary = report.summary() if report.frames and not isinstance(ended, ReaderGone) else ""
            lines = [summary, *(f"wrote    {path}" for path in report.outputs)]
        lines += [f"report   {pipeline.folder / 'report.html'}"] if pipeline.folder else []
        if not quiet and any(lines):
            stderr().print(without_controls("\n".join(filter(None, lines))), markup=False)
        if print_report:
            typer.echo(report.to_json())


def run_fleet(fleet: Fleet, *, quiet: bool = False, print_report: bool = False) -> None:
    """Run a fleet to the end, then print its report on stderr."""
    console = stderr()
    shown = console.is_terminal and not quiet
    try:
        report = fleet.run(lambda frames: console.print(f"{frames:,} frames", end="\r") if shown else None)
    finally:
        done = fleet.report
        if done is not None and not quiet and (done.frames or fleet.folder):
            lines = [done.table(), *([f"wrote    {fleet.folder}"] if fleet.folder else [])]
            console.print(without_controls("\n".join(lines)), markup=False)
    if print_report:
        typer.echo(report.to_json())
    if report.errors:
        raise report.failure()


class Bar:
    """Progress bar: frames, frames per second, remaining time and dropped frames. Only on a terminal."""

    def __init__(self, pipeline: Pipeline, quiet: bool) -> None:
        from rich import progress

        self._infos = [source.info for source in pipeline.sources]
        counts = [info.frames for info in self._infos]
        total = sum(count for count in counts if count) if all(counts) else None
        console = stderr()
        self._progress = progress.Progress(
            progress.BarColumn(),
            progress.MofNCompleteColumn(),
            progress.TextColumn("frames  {task.fields[fps]:.1f} fps"),
            progress.TimeRemainingColumn() if total else progress.TimeElapsedColumn(),
            progress.TextColumn("{task.fields[drops]}", style="yellow"),
            console=console,
            transient=True,
            disable=quiet or not console.is_terminal,
        )
        self._task = self._progress.add_task("", total=total, fps=0.0, drops="")

    def __enter__(self) -> Bar:
        self._progress.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._progress.stop()

    def advance(self) -> None:
        if self._progress.disable:
            return
        task = self._progress.tasks[0]
        infos = [part for info in self._infos for part in (info, *info.parts.values())]
        dropped = sum(sum(info.drops.values()) for info in infos)
        fps = task.completed / task.elapsed if task.elapsed else 0.0
        self._progress.update(self._task, advance=1, fps=fps, drops=f"{dropped:,} dropped" if dropped else "")
