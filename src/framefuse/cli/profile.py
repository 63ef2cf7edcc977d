"""framefuse profile: which models, sizes and precisions are worth using on this machine."""

from __future__ import annotations

import os
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from framefuse.cli.console import check_out, counter, print_table, stderr, write_out
from framefuse.cli.options import ConfigFile, Quiet, option, with_fields
from framefuse.common.text import on_one_line
from framefuse.config import load_settings
from framefuse.errors import CapabilityError, UsageError

if TYPE_CHECKING:
    from framefuse.adaptive.ladder import Ladder

FIELDS: Final = "device", "engine", "threads", "iou", "max_det", "agnostic_nms", "workspace_mb"
STREET: Final = "synthetic://street?split=test&frames=300"
"""The truth of a world that shipped models know."""


@partial(with_fields, fields=FIELDS, defaults={})
def profile(
    models: Annotated[list[str], typer.Argument(metavar="MODEL...", help="ONNX files, or names of shipped models")],
    source: Annotated[
        str | None, option("SOURCE", "your footage: the slowest candidate counts as right", "--source", "-s")
    ] = None,
    data: Annotated[
        list[str] | None,
        option("DATA", "data with truth, as for val (default without --source: a synthetic street)", "--data", "-d"),
    ] = None,
    sizes: Annotated[str, option("N,..", "longer sides of the model input, in pixels")] = "320,416,640",
    precisions: Annotated[str, option("NAME,..", "precisions", "--precision")] = "auto",
    frames: Annotated[int, option("N", "frames to measure on, spread over the footage", min=20)] = 100,
    out: Annotated[Path, option("FILE", "where to write the ladder", "--out", "-o")] = Path("ladder.json"),
    config: ConfigFile = None,
    print_json: Annotated[bool, typer.Option("--json", help="print the ladder as JSON on stdout")] = False,
    quiet: Quiet = False,
    **given: Any,
) -> int:
    """Measure models at several sizes on this machine, and keep those that are worth using: a ladder.

    Candidates take turns on the same frames. A run takes the ladder in place of a model, and chooses the best rung for
    --target-fps.
    """
    from framefuse.lab.evaluation import open_data
    from framefuse.lab.ladder import Candidate, measure, plot

    if source and data:
        raise UsageError("--source and --data were given", remedy="choose one: --data has truth, --source has none")
    sides = _sizes(sizes)
    wanted = [name.strip() for name in precisions.split(",")]
    for precision in wanted:
        load_settings(None, None, {"precision": precision})
    settings = load_settings(config, None, given, environment=os.environ).settings
    options: dict[str, Any] = {field: getattr(settings, field) for field in settings.model_fields_set & {*FIELDS}}
    opened: Any = source or open_data(data or [STREET])
    check_out(out, *models, source)
    candidates = [Candidate(*names) for names in product(models, sides, wanted)]
    with counter(f"{len(candidates)} candidates", frames, quiet) as count:
        ladder, notes = measure(candidates, opened, limit=frames, options=options, on_frame=count)
    write_out(out, ladder.to_json())
    written = [out]
    try:
        write_out(out.with_suffix(".png"), plot(ladder))
        written.append(out.with_suffix(".png"))
    except CapabilityError as error:
        notes.append(f"no plot: {error.message}")
    if print_json:
        typer.echo(ladder.to_json(), nl=False)
    else:
        head, *body = table(ladder)
        print_table(head, body)
    if not quiet:
        notes.append(f"{ladder.frames} frames of {ladder.data}; ms and CPU from a decoded frame to its objects")
        notes += [*(f"wrote    {path}" for path in written), f"use it   framefuse predict SOURCE {out} --target-fps 30"]
        stderr().print("\n".join(map(on_one_line, notes)), markup=False)
    return 0


def table(ladder: Ladder) -> list[list[str]]:
    """Header and rows."""
    has_energy = any(rung.joules for rung in ladder.rungs)
    head = ["rung", "engine", "ms", "p95", "CPU ms", *(["J"] if has_energy else []), "MB", "switch ms"]
    lines = [[*head, ladder.measure, "agreement", "F1", "confidence", "verdict"]]
    for rung in ladder.rungs:
        energy = [f"{rung.joules:.3g}" if rung.joules else "-"] if has_energy else []
        lines.append([
            rung.name, rung.engine, f"{rung.p50_ms:.1f}", f"{rung.p95_ms:.1f}", f"{rung.cpu_ms:.1f}", *energy,
            f"{rung.memory_mb:.0f}", f"{rung.switch_ms:.1f}", f"{100 * rung.score:.1f}", f"{rung.agreement:.3f}",
            f"{rung.f1:.3f}", f"{rung.confidence:.2f}", rung.verdict or "kept",
        ])  # fmt: skip
    return lines


def _sizes(text: str) -> list[int]:
    try:
        sides = [int(side) for side in text.split(",")]
    except ValueError:
        sides = []
    if not sides or min(sides) < 32:
        raise UsageError(f"--sizes is {text!r}", remedy="write the sides in pixels: --sizes 320,416,640")
    return list(dict.fromkeys(sides))
