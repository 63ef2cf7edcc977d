"""framefuse profile: which models, sizes and precisions are worth using on this machine. framefuse bench adaptive: what
adaptive compute saves and loses.
"""

import os
from collections.abc import Mapping, Sequence
from contextlib import closing
from functools import partial
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from framefuse.cli.console import check_out, counter, deliver, print_table, stderr, write_out
from framefuse.cli.doctor import bench
from framefuse.cli.options import Command, ConfigFile, PrintJson, Quiet, option, with_fields
from framefuse.common.text import on_one_line
from framefuse.config import load_settings
from framefuse.errors import CapabilityError, UsageError

FIELDS: Final = "device", "engine", "threads", "iou", "max_det", "agnostic_nms", "workspace_mb"
OF_ADAPTIVE: Final = "device", "engine", "precision", "threads", "imgsz", "min_agreement", "max_latency", "target_fps"
STREET: Final = "synthetic://street?split=test"
"""The truth of a world that shipped models know."""
CAMERA: Final = f"{STREET}&seed=61&fps=30&size=960x540"


@partial(with_fields, fields=FIELDS)
def profile(
    models: Annotated[list[str], typer.Argument(metavar="MODEL...", help="ONNX files, or names of shipped models")],
    source: Annotated[
        str | None,
        option("SOURCE", "your footage; results of the slowest candidate serve as ground truth", "--source", "-s"),
    ] = None,
    data: Annotated[
        list[str] | None,
        option("DATA", "data with truth, as for val (default without --source: a synthetic street)", "--data", "-d"),
    ] = None,
    sizes: Annotated[str, option("N,..", "longer sides of the model input, in pixels")] = "320,416,640",
    precisions: Annotated[str, option("NAME,..", "precisions", "--precision")] = "auto",
    frames: Annotated[int, option("N", "frames to measure on, spread over the footage", min=20, max=1_000_000)] = 100,
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
    from framefuse.lab.ladder import Candidate, measure, plot, table

    options = _options(FIELDS, source, data, config, given)
    sides = _sizes(sizes)
    wanted = [name.strip() for name in precisions.split(",")]
    for precision in wanted:
        load_settings(None, None, {"precision": precision})
    opened: Any = source or open_data(data or [f"{STREET}&frames=300"])
    check_out(out, *models, source, *(data or []), beside=".png")
    candidates = [Candidate(*names) for names in product(models, sides, wanted)]
    with counter(f"{len(candidates)} candidates", frames, quiet) as count:
        ladder, notes = measure(candidates, opened, limit=frames, options=options, on_frame=count)
    written = deliver(out, ladder.to_json(), lambda: plot(ladder), table(ladder), print_json=print_json)
    if not quiet:
        notes.append(f"{ladder.frames} frames of {ladder.data}; ms and CPU from a decoded frame to its objects")
        notes += [*written, f"use it   framefuse predict SOURCE {out} --target-fps 30"]
        stderr().print("\n".join(map(on_one_line, notes)), markup=False)
    return 0


def _options(
    fields: Sequence[str], source: str | None, data: list[str] | None, config: Path | None, given: Mapping[str, Any]
) -> dict[str, Any]:
    """The settings of a command among `fields` that differ from their defaults."""
    if source and data:
        raise UsageError("--source and --data were given", remedy="choose one: --data has truth, --source has none")
    settings = load_settings(config, None, given, environment=os.environ).settings
    return {field: getattr(settings, field) for field in settings.model_fields_set & {*fields}}


def _sizes(text: str) -> list[int]:
    try:
        sides = [int(side) for side in text.split(",")]
    except ValueError:
        sides = []
    if not sides or min(sides) < 32:
        raise UsageError(f"--sizes is {text!r}", remedy="write sides of at least 32 pixels: --sizes 320,416,640")
    return list(dict.fromkeys(sides))


@bench.command(cls=Command, epilog="Example: framefuse bench adaptive scout-s --source street.mp4")
@partial(with_fields, fields=OF_ADAPTIVE)
def adaptive(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="ONNX file, or the name of a shipped model")
    ] = "scout-s",
    source: Annotated[
        str | None,
        option("SOURCE", "your footage: what the model sees in every frame counts as right", "--source", "-s"),
    ] = None,
    data: Annotated[
        list[str] | None,
        option("DATA", "footage with truth, as for val; default: four synthetic streets", "--data", "-d"),
    ] = None,
    out: Annotated[Path, option("FILE", "where to write the page; its numbers lie beside it", "--out", "-o")] = Path(
        "adaptive.html"
    ),
    config: ConfigFile = None,
    print_json: PrintJson = False,
    quiet: Quiet = False,
    **given: Any,
) -> int:
    """Compare adaptive compute with every frame and with fixed strides, over time.

    The synthetic streets are calm, crowded and calm again; fast; far away; and a camera's day, mostly empty.
    """
    from framefuse.lab.adaptive_bench import SCHEDULES, compare, plot, render, table, to_json
    from framefuse.lab.evaluation import open_data

    options = _options(OF_ADAPTIVE, source, data, config, given)
    check_out(out, model, source, *(data or []), beside=".json")
    wanted: dict[str, Any]
    if source:
        wanted = {Path(source).name: source}
    elif data:
        wanted = {Path(data[0]).name: open_data(data)}
    else:
        wanted = {name: open_data([f"{CAMERA}&{schedule}"]) for name, schedule in SCHEDULES.items()}
    found, notes, pictures = [], list[str](), list[bytes]()
    for name, one in wanted.items():
        with counter(name, 2 * _frames(one), quiet) as count:
            found.append(compare(name, one, model, options, count))
    try:
        pictures = [plot(one) for one in found]
    except CapabilityError as error:
        notes.append(f"no plots: {error.message}")
    write_out(out, render(found, model, pictures))
    numbers = to_json(found, model)
    write_out(out.with_suffix(".json"), numbers)
    if print_json:
        typer.echo(numbers, nl=False)
    else:
        head, *body = table(found)
        print_table(head, body)
    if not quiet:
        notes += [f"{one.name}: {line}" for one in found for line in one.choices]
        notes += [f"wrote    {path}" for path in (out, out.with_suffix(".json"))]
        stderr().print("\n".join(map(on_one_line, notes)), markup=False)
    return 0


def _frames(footage: Any) -> int:
    """Frames of data or of a source; 0: unknown."""
    if not isinstance(footage, str):
        return len(footage.keys)
    from framefuse.sources import open_source

    with closing(open_source(footage)) as opened:
        return opened.info.frames or 0
