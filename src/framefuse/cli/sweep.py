"""framefuse sweep: compare settings on footage that exists: infer once, then apply every setting of a grid."""

import csv
import io
import json
import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any, Final

import typer

from framefuse.cli.console import check_choice, counter, print_notes, print_table, write_out
from framefuse.cli.options import ConfigFile, Quiet, option, with_fields
from framefuse.common.files import Files
from framefuse.common.text import counted
from framefuse.config import Settings, load_settings
from framefuse.errors import UsageError

DEFAULTS: Final[Mapping[str, Any]] = {"project": "runs/sweep", "name": "sweep"}
FIELDS: Final = (
    *("device", "engine", "precision", "imgsz", "rect", "batch", "streams", "threads", "slots", "workspace_mb"),
    *("conf", "iou", "max_det", "classes", "agnostic_nms", "min_area"),
    *(field for field in Settings.model_fields if field.startswith("track")),
    *("zones", "vid_stride", "start", "end", "decode_threads", "max_pixels", "project", "name", "exist_ok"),
)
FILES: Final = "sweep.csv", "sweep.html", "chosen.yaml"
HIGHER: Final = "hota", "idf1", "boxes", "tracks", "entered", "crossed"
LOWER: Final = "false_starts", "fragments"
"""Columns, by whether more or less is better."""


@partial(with_fields, fields=FIELDS, defaults=DEFAULTS)
def sweep(
    inputs: Annotated[
        list[str], typer.Argument(metavar="FILE... MODEL", help="videos, folders, synthetic://..., then the model")
    ],
    grid: Annotated[Path | None, option("FILE", "YAML file of lines 'field: [value, value]'", "--grid", "-g")] = None,
    short: Annotated[float, option("SECONDS", "a track that lasts less is a false start", min=0)] = 0.5,
    by: Annotated[str | None, option("COLUMN", "sort by a column and choose the first; default: hota")] = None,
    choose: Annotated[int | None, option("N", "choose this setting", min=1)] = None,
    compare: Annotated[
        tuple[int, int] | None, option("A B", "settings whose tracks to compare (default: 1 and the chosen)")
    ] = None,
    rows: Annotated[int, option("N", "rows to print; sweep.csv has all", min=1)] = 20,
    config: ConfigFile = None,
    print_json: Annotated[bool, typer.Option("--json", help="print all rows as JSON on stdout")] = False,
    quiet: Quiet = False,
    **given: Any,
) -> int:
    """Compare settings on videos: infer once, then apply each setting of a grid to the recorded boxes.

    Detections, tracks and zones take several values between commas, --classes between semicolons: --conf 0.2,0.3,0.5
    --classes "car,person;car". Every combination is a setting.
    """
    from framefuse.lab.evaluation.data import sequences_in
    from framefuse.lab.sweep import page
    from framefuse.lab.sweep.record import FIELDS as SWEPT
    from framefuse.lab.sweep.record import choices, read_grid, record
    from framefuse.lab.sweep.replay import places_of, replay
    from framefuse.models import find_model
    from framefuse.models.card import read_card
    from framefuse.sinks.run_folder import output_path, run_folder
    from framefuse.sources import videos_in

    if len(inputs) < 2:
        example = "framefuse sweep video.mp4 model.onnx --conf 0.2,0.4"
        raise UsageError("a sweep needs a video and a model", remedy=example)
    fixed = {field: value for field, value in given.items() if field not in SWEPT}
    base = load_settings(config, None, fixed, defaults=DEFAULTS, environment=os.environ).settings
    values = read_grid(grid, {field: value for field, value in given.items() if field in SWEPT})
    card = read_card(find_model(inputs[-1]))
    every = choices(values, base, card)
    places_of(every, card)  # so that a wrong file ends the sweep before the model runs
    if by := by and by.replace("-", "_").replace(" ", "_"):
        check_choice("--by", by, (*HIGHER, *LOWER))
    for name, number in (("--choose", choose), *(("--compare", number) for number in compare or ())):
        if number is not None and not 1 <= number <= len(every):
            raise UsageError(f"{name} is {number}", remedy=f"the grid has settings 1 to {len(every)}")
    videos = [
        [item] if "://" in item else list(map(str, sequences_in(Path(item)))) or videos_in(item) for item in inputs[:-1]
    ]
    sources = [path for paths in videos for path in paths]
    read = Files(map(Path, (*sources, card.path, *filter(None, (grid, config, *values.get("zones", ()))))))
    with run_folder(base.project, base.name, base.exist_ok) as folder:
        table_file, page_file, yaml_file = (output_path(folder, name, read) for name in FILES)
        ious, notes = sorted({choice.settings.iou for choice in every}), []
        counting = partial(counter, quiet=quiet)
        recordings = [record(source, card, base, ious, counting=counting) for source in sources]
        for one in recordings:
            how = f"inferred in {one.seconds:.1f} s" if one.inferred else "from the cache, nothing inferred"
            notes.append(f"{one.source}: {counted(one.frames, 'frame')}, {how}")
        started = perf_counter()
        with counting("settings", len(every)) as count:
            numbers, trackings = replay(recordings, every, card, short=short, on_choice=count)
        notes.append(f"{counted(len(every), 'setting')} in {perf_counter() - started:.2f} s")
        if trackings:
            how = f"{counted(len(trackings), 'tracking')} computed, {min(trackings):.2f} to {max(trackings):.2f} s each"
            notes.append(f"{how}: settings that differ only in conf or zones share one")
        columns = list(dict.fromkeys(name for one in numbers for name in one))
        by = by or ("hota" if "hota" in columns else None)
        found = list(zip(every, numbers, strict=True))
        if by:
            check_choice("--by", by, columns, remedy=f"this sweep has {', '.join(columns)}")
            sign = -1 if by in HIGHER else 1
            found.sort(key=lambda one: (by not in one[1], sign * one[1].get(by, 0)))
        best = choose or (found[0][0].number if by else None)
        lines = page.table(values, found, columns)
        text = io.StringIO(newline="")
        csv.writer(text, lineterminator="\n").writerows(lines)
        chosen = page.as_yaml(every[best - 1], base, inputs[-1], left_out={*DEFAULTS, "exist_ok"}) if best else ""
        pair = compare or ((1, best) if best and best > 1 else None)
        differences = page.compare(recordings, *(every[number - 1] for number in pair)) if pair and trackings else []
        heading = [f"Sweep of {counted(len(every), 'setting')}", f"{inputs[-1]} on {', '.join(sources)}"]
        heading.append(f"Sorted by {by}." if by else "In the order of the grid.")
        html = page.render(heading, lines[: 1 + page.MOST_ROWS], chosen, differences, notes)
        outputs = {table_file: text.getvalue(), page_file: html} | ({yaml_file: chosen} if chosen else {})
        for path, content in outputs.items():
            write_out(path, content)
        if print_json:
            settings = [{"setting": choice.number, **choice.values, **counts} for choice, counts in found]
            typer.echo(json.dumps({"notes": notes, "settings": settings}, indent=1, default=str))
        else:
            print_table(lines[: rows + 1])
        if not quiet:
            notes += [f"{len(every) - rows:,} more rows are in {table_file.name}"] if len(every) > rows else []
            notes += [] if best else ["--choose N, or --by COLUMN for the best, writes a setting as YAML"]
            notes += [f"wrote    {path}" for path in outputs]
            print_notes(notes)
    return 0
