"""framefuse tune: find schedules for engine tvm by measurement, in slices that can be interrupted and resumed."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from framefuse.cli.console import check_choice, print_table, progress_printer, stderr
from framefuse.cli.options import Quiet, option
from framefuse.common.text import counted
from framefuse.errors import ModelError, UsageError


def tune(
    model: Annotated[str, typer.Argument(help="ONNX file, or the name of a shipped model")],
    trials: Annotated[int, option("N", "schedules to measure per function", min=1)] = 64,
    slice_seconds: Annotated[
        float, option("SECONDS", "stop after this long; run again to continue", "--slice")
    ] = 480.0,
    database: Annotated[Path | None, option("DIR", "tuning database; default: where engine tvm looks for it")] = None,
    precision: Annotated[str, option("fp32|fp16", "precision that the model will run at")] = "fp32",
    target: Annotated[str, option("NAME", "cpu, cuda, or a name such as cuda-sm_90")] = "cpu",
    size: Annotated[str | None, option("WxH", "model input size; default: the model's own")] = None,
    batch: Annotated[int, option("N", "batch that the model will run at", min=1)] = 1,
    tasks: Annotated[int | None, option("N", "tune only the N heaviest functions", min=1)] = None,
    threads: Annotated[int, option("N", "CPU threads; 0: all cores", min=0)] = 0,
    quiet: Quiet = False,
) -> int:
    """Measure schedules for the functions of a model. A later call continues where this one stops."""
    from framefuse.common.machine import available_cores
    from framefuse.engines.tvm import compiling, targets, tuning
    from framefuse.engines.tvm.package import check_tuner, tvm
    from framefuse.models import find_model

    check_choice("--precision", precision, compiling.PRECISIONS)
    if not 1 <= slice_seconds <= tuning.LONGEST_SLICE:
        raise UsageError(
            f"--slice {slice_seconds:g} is not between 1 and {tuning.LONGEST_SLICE:g} seconds",
            remedy="use several slices: each continues where the last one ended",
        )
    path = find_model(model)
    width, height = _size(size, path)
    tvm()
    check_tuner()
    cores = threads or available_cores()
    where = targets.parse(target, cores)
    if where.kind == "llvm" and where != (here := targets.this_cpu(cores)):
        raise UsageError(
            f"--target {target} is not this CPU ({here.name}), but tuning measures on the target",
            remedy="run it on that machine with --target cpu",
        )
    kept = tuning.Records(database or tuning.default_folder(where), where)
    say = progress_printer(quiet)
    if kept.note:
        say(kept.note)
    lowered = compiling.lower(compiling.import_model(path, (batch, 3, height, width)), where, precision)
    found = tuning.tasks_of(lowered, where, heaviest=tasks)
    say(f"{counted(len(found), 'function')} for {where.name} at {width}x{height}, {precision}; database {kept.folder}")
    done = tuning.tune(found, where, kept, trials=trials, seconds=slice_seconds, workers=cores, say=say)
    if not quiet:
        rows = [
            (
                name if len(name) <= tuning.LONGEST_NAME else f"{name[: tuning.LONGEST_NAME - 3]}...",
                f"{share:.1%}",
                str(count),
                f"{best:.0f}" if count else "",
            )
            for name, share, count, best in tuning.summary(found)
        ]
        print_table(("function", "share of operations", "schedules", "best us"), rows)
        after = "all trials are done" if done.finished else "run it again to continue"
        stderr().print(f"{counted(done.added, 'schedule')} in {done.seconds:.0f} s; {after}", markup=False)
    return 0


def _size(text: str | None, model: Path) -> tuple[int, int]:
    from framefuse.models.card import read_card

    if text is None:
        preprocess = read_card(model).preprocess
        return preprocess.width, preprocess.height
    try:
        width, height = (int(part) for part in text.lower().split("x"))
    except ValueError as error:
        raise UsageError(f"--size {text} is not WIDTHxHEIGHT", remedy="write it as 640x384") from error
    if width < 1 or height < 1:
        raise UsageError(f"--size {text} is empty", remedy="write it as 640x384")
    with suppress(ModelError):  # a model without a card can be tuned too
        card = read_card(model)
        if card.dynamic_size and (near := card.nearest_size(height, width)) != (height, width):
            raise UsageError(
                f"--size {text} is not a multiple of the model's stride {card.preprocess.stride}",
                remedy=f"use --size {near[1]}x{near[0]}",
            )
    return width, height
