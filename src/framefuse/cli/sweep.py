"""framefuse sweep: compare settings on footage that exists: infer once, then apply every setting of a grid."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from framefuse.cli.console import counter, print_table, stderr, write_out
from framefuse.cli.options import ConfigFile, Quiet, with_fields
from framefuse.common.files import Files
from framefuse.common.text import counted, on_one_line
from framefuse.config import Settings, load_settings
from framefuse.errors import UsageError

if TYPE_CHECKING:
    from framefuse.lab.sweep.grid import Choice
    from framefuse.lab.sweep.replay import Numbers, Replayed

DEFAULTS: Final[Mapping[str, Any]] = {"project": "runs/sweep", "name": "sweep"}
TRACK: Final = tuple(field for field in Settings.model_fields if field.startswith("track"))
FIELDS: Final = (
    *("device", "engine", "precision", "imgsz", "rect", "batch", "streams", "threads", "slots", "workspace_mb"),
    *("conf", "iou", "max_det", "classes", "min_area", *TRACK),
    *("agnostic_nms", "vid_stride", "start", "end", "decode_threads", "max_pixels", "project", "name", "exist_ok"),
)
FILES: Final = "sweep.csv", "sweep.html", "chosen.yaml"
HIGHER: Final = ("hota", "idf1", "tracks", "boxes")
"""Numbers of which more is better; of the others, less is."""


@partial(with_fields, fields=FIELDS, defaults=DEFAULTS)
def sweep(
    inputs: Annotated[
        list[str],
        typer.Argument(metavar="FILE... MODEL", help="videos, folders or synthetic://..., then the model"),
    ],
    grid: Annotated[
        Path | None, typer.Option("--grid", "-g", metavar="FILE", help="YAML file of lines 'field: [value, value]'")
    ] = None,
    short: Annotated[
        float, typer.Option(min=0, metavar="SECONDS", help="a track that lasts less is a false start")
    ] = 0.5,
    by: Annotated[
        str | None, typer.Option("--by", metavar="COLUMN", help="sort by this column, and choose the first row")
    ] = None,
    choose: Annotated[
        int | None, typer.Option("--choose", min=1, metavar="N", help="the setting to write as YAML")
    ] = None,
    compare: Annotated[
        tuple[int, int] | None,
        typer.Option("--compare", metavar="A B", help="settings whose tracks are compared (default: 1 and the chosen)"),
    ] = None,
    rows: Annotated[int, typer.Option(min=1, metavar="N", help="rows to print; sweep.csv has all")] = 20,
    config: ConfigFile = None,
    print_json: Annotated[bool, typer.Option("--json", help="print all rows as JSON on stdout")] = False,
    quiet: Quiet = False,
    **given: Any,
) -> int:
    """Compare settings on videos: infer once, then apply each setting of a grid to the recorded boxes.

    --conf, --iou, --max-det, --min-area and the tracker's options take several values between commas, --classes between
    semicolons: --conf 0.2,0.3,0.5 --classes "car,person;car". Every combination is a setting.
    """
    from framefuse.lab.sweep import page
    from framefuse.lab.sweep.grid import FIELDS as FREE
    from framefuse.lab.sweep.grid import choices, read_grid
    from framefuse.lab.sweep.record import record
    from framefuse.lab.sweep.replay import replay
    from framefuse.models import find_model
    from framefuse.models.card import read_card
    from framefuse.sinks.run_folder import output_path, run_folder
    from framefuse.sources.paths import videos_in

    if len(inputs) < 2:
        raise UsageError(
            "a sweep needs a video and a model", remedy="framefuse sweep video.mp4 model.onnx --conf 0.2,0.4"
        )
    fixed = {field: value for field, value in given.items() if field not in FREE}
    base = load_settings(config, None, fixed, defaults=DEFAULTS, environment=os.environ).settings
    values = read_grid(grid, {field: value for field, value in given.items() if field in FREE})
    card = read_card(find_model(inputs[-1]))
    every = choices(values, base, card)
    for option, number in (("--choose", choose), *(("--compare", number) for number in compare or ())):
        if number is not None and not 1 <= number <= len(every):
            raise UsageError(f"{option} is {number}", remedy=f"the grid has settings 1 to {len(every)}")
    sources = [path for item in inputs[:-1] for path in ([item] if "://" in item else videos_in(item))]
    read = Files([*map(Path, sources), card.path, *([grid] if grid else []), *([config] if config else [])])
    with run_folder(base.project, base.name, base.exist_ok) as folder:
        paths = {name: output_path(folder, name, read) for name in FILES}
        ious, recordings, notes = sorted({choice.settings.iou for choice in every}), [], []
        for source in sources:
            with counter(on_one_line(source), 0, quiet) as count:
                recordings.append(record(source, card, base, ious, on_frame=count))
            one = recordings[-1]
            how = f"inferred in {one.seconds:.1f} s" if one.inferred else "from the cache, nothing inferred"
            notes.append(f"{source}: {counted(one.frames, 'frame')}, {how}")
        started = perf_counter()
        with counter("settings", len(every), quiet) as count:
            done = replay(recordings, every, short=short, on_choice=count)
        notes += _spent(done, len(every), perf_counter() - started)
        order = _order(done.numbers, by)
        number = choose or (order[0] + 1 if by else None)
        lines = _lines(values, every, done.numbers, order)
        write_out(paths["sweep.csv"], _csv(lines))
        written = [paths["sweep.csv"]]
        chosen = None
        if number is not None:
            chosen = number, _yaml(every[number - 1], base, inputs[-1])
            write_out(paths["chosen.yaml"], chosen[1])
            written.append(paths["chosen.yaml"])
        pair = compare or ((1, number) if number not in (None, 1) else None)
        difference = None
        if pair and done.trackings:
            difference = page.compare(recordings, every[pair[0] - 1], every[pair[1] - 1])
        facts = {"title": f"Sweep of {counted(len(every), 'setting')}", "what": f"{inputs[-1]} on {', '.join(sources)}"}
        facts["order"] = f"Sorted by {by}." if by else "In the order of the grid."
        write_out(paths["sweep.html"], page.render(lines[: 1 + page.MOST_ROWS], notes, difference, chosen, facts))
        written.append(paths["sweep.html"])
        if print_json:
            fields = [{"setting": k + 1, **every[k].values, **done.numbers[k]} for k in order]
            typer.echo(json.dumps({"notes": notes, "settings": fields}, indent=1, default=str))
        else:
            print_table(lines[0], lines[1 : rows + 1])
        if not quiet:
            left = [f"and {len(every) - rows:,} more rows in {paths['sweep.csv']}"] if len(every) > rows else []
            hint = [] if chosen else ["choose a setting with --choose N, or the best of a column with --by COLUMN"]
            text = [*left, *notes, *hint, *(f"wrote    {path}" for path in written)]
            stderr().print("\n".join(map(on_one_line, text)), markup=False)
    return 0


def _spent(done: Replayed, count: int, seconds: float) -> list[str]:
    notes = [f"{counted(count, 'setting')} in {seconds:.2f} s"]
    if done.trackings:
        times = [one.seconds for one in done.trackings]
        average = sum(times) / len(times)
        notes.append(
            f"{counted(len(times), 'tracking')} computed, of {average:.2f} s each ({min(times):.2f} to "
            f"{max(times):.2f} s); settings that differ only in conf or zones share one"
        )
    return notes


def _order(numbers: Sequence[Numbers], by: str | None) -> list[int]:
    """Places of the rows, sorted."""
    if by is None:
        return list(range(len(numbers)))
    name = by.replace("-", "_").casefold()
    if name not in numbers[0]:
        raise UsageError(f"--by is {by}", remedy=f"choose one of {', '.join(numbers[0])}")
    sign = -1 if name in HIGHER else 1
    return sorted(range(len(numbers)), key=lambda row: sign * (numbers[row][name] or 0))


def _lines(
    values: Mapping[str, Sequence[Any]], every: Sequence[Choice], numbers: Sequence[Numbers], order: Sequence[int]
) -> list[list[str]]:
    """Header and rows; fields that are the same in all settings are left out."""
    fields = [field for field in values if len(values[field]) > 1] or list(values)
    lines = [["setting", *fields, *(name.replace("_", " ") for name in numbers[0])]]
    for row in order:
        cells = ["-" if value is None else f"{value:.6g}" for value in numbers[row].values()]
        lines.append([str(row + 1), *map(every[row].text, fields), *cells])
    return lines


def _csv(lines: Sequence[Sequence[str]]) -> str:
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows(lines)
    return text.getvalue()


def _yaml(choice: Choice, base: Any, model: str) -> str:
    """The setting as `predict --config` takes it."""
    own = base.model_dump(mode="json", exclude_unset=True, exclude={"project", "name", "exist_ok"})
    own |= {"model": model, **choice.values}
    lines = [f"# Setting {choice.number} of a sweep: framefuse predict SOURCE --config FILE"]
    return "\n".join([*lines, *(f"{field}: {json.dumps(value, default=str)}" for field, value in own.items())]) + "\n"
