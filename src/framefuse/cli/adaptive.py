"""framefuse bench adaptive: what adaptive compute saves and loses."""

from __future__ import annotations

import os
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from framefuse.cli.console import check_out, counter, print_table, stderr, write_out
from framefuse.cli.doctor import bench
from framefuse.cli.options import Command, ConfigFile, PrintJson, Quiet, option, with_fields
from framefuse.common.text import on_one_line
from framefuse.config import load_settings
from framefuse.errors import CapabilityError, UsageError

FIELDS: Final = "device", "engine", "precision", "threads", "imgsz", "min_agreement", "max_latency", "target_fps"
STREET: Final = "synthetic://street?split=test&seed=61&fps=30&size=960x540"


@bench.command(cls=Command, epilog="Example: framefuse bench adaptive scout-s --source street.mp4")
@partial(with_fields, fields=FIELDS, defaults={})
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

    if source and data:
        raise UsageError("--source and --data were given", remedy="choose one: --data has truth, --source has none")
    settings = load_settings(config, None, given, environment=os.environ).settings
    options = {field: getattr(settings, field) for field in settings.model_fields_set & {*FIELDS}}
    check_out(out, model, source)
    wanted: dict[str, Any]
    if source:
        wanted = {Path(source).name: source}
    elif data:
        wanted = {Path(data[0]).name: open_data(data)}
    else:
        wanted = {name: open_data([f"{STREET}&{schedule}"]) for name, schedule in SCHEDULES.items()}
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
