"""framefuse val and framefuse parity: how accurate models and engines are."""

import os
from collections.abc import Mapping
from functools import partial
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from framefuse.cli.console import check_out, counter, print_notes, print_table, progress_printer, write_out
from framefuse.cli.options import ConfigFile, Quiet, option, with_fields
from framefuse.common.files import Files
from framefuse.config import load_settings
from framefuse.errors import CapabilityError, QualityError, UsageError

DEFAULTS: Final[Mapping[str, Any]] = {"conf": 0.001, "project": "runs/val", "name": "val"}
FIELDS: Final = (
    *("device", "engine", "precision", "imgsz", "rect", "batch", "streams", "threads", "slots", "workspace_mb"),
    *("conf", "iou", "max_det", "classes", "agnostic_nms", "tiles", "tiles_whole", "target_fps"),
    *("roi", "stereo", "track", "track_high", "track_low", "track_new", "track_buffer", "track_match"),
    *("track_confirm", "track_agnostic", "adaptive", "min_agreement", "decode_threads", "queue", "project", "name"),
    "exist_ok",
)
OF_PARITY = ("device", "imgsz", "rect", "conf", "iou", "max_det", "streams", "threads", "workspace_mb", "start", "end")
PAGES = (".html", ".md", ".json")


@partial(with_fields, fields=FIELDS, defaults=DEFAULTS)
def val(
    models: Annotated[list[str], typer.Argument(metavar="MODEL...", help="ONNX files, or names of shipped models")],
    data: Annotated[
        list[str],
        option("DATA", "COCO file, synthetic://street?split=test, MOTChallenge folder; repeatable", "--data", "-d"),
    ],
    images: Annotated[Path | None, option("PATH", "folder or video of the COCO file (default: next to it)")] = None,
    limit: Annotated[
        int | None, option("N", "at most N frames, evenly spaced; with --track or --adaptive the first N", min=1)
    ] = None,
    config: ConfigFile = None,
    print_json: Annotated[bool, typer.Option("--json", help="print the scores as JSON on stdout")] = False,
    quiet: Quiet = False,
    **given: Any,
) -> int:
    """Score models on data with ground truth. --engine and --precision take lists: --precision fp32,bf16,int8."""
    engines, precisions = (_several(given, field) for field in ("engine", "precision"))
    load = partial(load_settings, config, None, given, environment=os.environ)
    settings = load(defaults=DEFAULTS).settings
    if settings.track:
        from framefuse.lab.evaluation import TRACK_DEFAULTS

        settings = load(defaults={**DEFAULTS, **TRACK_DEFAULTS}).settings
    engines, precisions = engines or [settings.engine], precisions or [settings.precision]
    for precision in precisions:
        load_settings(None, None, {"precision": precision})

    from framefuse.lab.evaluation import open_data, scored
    from framefuse.lab.evaluation.scores import FILES, Row, Wanted, class_table, save, table, to_json
    from framefuse.sinks.run_folder import output_path, run_folder

    opened = open_data(data, images)
    opened.spread(limit)
    cards = [model.removesuffix(".onnx") + ".yaml" for model in models]
    inputs = Files([*opened.files, *map(Path, (*models, *cards)), *([config] if config else [])])
    rows: list[Row] = []
    written: list[Path] = []
    with run_folder(settings.project, settings.name, settings.exist_ok) as folder:
        for name in FILES:
            output_path(folder, name, inputs)
        try:
            for wanted in (Wanted(*names) for names in product(models, engines, precisions)):
                chosen = settings.model_copy(update={"engine": wanted.engine, "precision": wanted.precision})
                row = Row(wanted.built())
                with counter(row.title, len(opened.spread(limit)), quiet) as count:
                    rows.append(scored(row, opened, limit=limit, settings=chosen, on_frame=count))
        finally:  # keep the scores that were finished before an interruption
            if any(row.scores for row in rows):
                if print_json:
                    typer.echo(to_json(rows), nl=False)
                else:
                    for lines in (table(rows), [[""]], class_table(rows)):
                        print_table(lines)
                written = save(rows, folder, inputs)
    failed = [row.error for row in rows if row.error]
    if len(failed) == len(rows):
        raise failed[0]
    notes: list[str] = []
    if not quiet:
        notes += dict.fromkeys(f"note     {note}" for row in rows if row.scores for note in row.scores.notes)
        notes += [f"wrote    {path}" for path in written]
    notes += [f"failed   {row.title}: {row.error.message} -> {row.error.remedy}" for row in rows if row.error]
    if notes:
        print_notes(notes)
    return failed[0].exit_code if failed else 0


def _several(given: dict[str, Any], field: str) -> list[str]:
    """The values of an option that takes a list here; it is removed from `given` unless it has a single value."""
    values = [value.strip() for value in str(given.get(field, "")).split(",")]
    if field in given and not all(values):
        raise UsageError(f"--{field} is {given[field]!r}", remedy=f"write --{field} first,second")
    if len(values) < 2:
        return []
    del given[field]
    return list(dict.fromkeys(values))


@partial(with_fields, fields=OF_PARITY)
def parity(
    model: Annotated[str, typer.Argument(help="ONNX file, or the name of a shipped model")],
    source: Annotated[str | None, option("SOURCE", "video to compare on (default: a generated clip)")] = None,
    engine: Annotated[str | None, option("NAME,...", "engines (default: all that are installed)")] = None,
    precision: Annotated[str, option("NAME,...", "precisions to compare for each engine")] = "auto",
    frames: Annotated[int, option("N", "frames to compare, spread over the source", min=1, max=1_000_000)] = 4,
    peer_python: Annotated[Path | None, option("PYTHON", "Python with ultralytics (AGPL), to compare with too")] = None,
    out: Annotated[Path | None, option("FILE", "write the certificate: .html, .md or .json")] = None,
    config: ConfigFile = None,
    print_json: Annotated[bool, typer.Option("--json", help="print the certificate as JSON on stdout")] = False,
    quiet: Quiet = False,
    **given: Any,
) -> int:
    """Certify pixels and boxes from compressed video to result, and name the stage where a difference starts."""
    if out is not None and out.suffix not in PAGES:
        raise UsageError(f"--out {str(out)!r} does not end in {', '.join(PAGES)}", remedy="use --out parity.html")
    settings = load_settings(config, None, given, environment=os.environ).settings
    check_out(out, model, source, config)

    from framefuse.lab.parity import certify
    from framefuse.lab.parity.report import LEGEND, head, verdict

    say = progress_printer(quiet)
    named = [] if engine is None else engine.split(",")
    what: dict[str, Any] = {"engines": named or None, "precisions": precision.split(","), "frames": frames}
    certificate = certify(model, source, peer_python=peer_python, settings=settings, say=say, **what)
    if print_json:
        typer.echo(certificate.to_json())
    elif not quiet:
        typer.echo(f"{head(certificate)}\n")
        print_table([("", "stage", "found", "limit", ""), *certificate.table()])
        typer.echo(f"\n{LEGEND}\n")
        typer.echo("\n".join(certificate.summary()))
    if out is not None:
        page = {".html": certificate.html, ".md": certificate.markdown, ".json": certificate.to_json}[out.suffix]()
        write_out(out, page)
        say(f"wrote {out}")
    ran = {one.name for one in certificate.engines if not one.absent}
    absent = (one for one in certificate.engines if one.name not in ran and (one.name in named or not ran))
    wrong = any(one.verdict == "outside" for one in certificate.engines if not one.absent)
    if (missing := next(absent, None)) and not wrong:  # an engine that is outside the limits is more important
        raise CapabilityError(f"{missing.name} was not compared: {missing.absent}", remedy="run 'framefuse doctor'")
    if (end := verdict(certificate)) != "CERTIFIED":
        outside = [line for line in certificate.summary()[:-1] if "outside the limits" in line]
        why = outside[0] if outside else end.removeprefix("NOT CERTIFIED: ")
        raise QualityError(f"{certificate.model} is not certified: {why}", remedy="see the table")
    return 0
