"""framefuse parity: compare pixels and boxes of every engine, stage by stage, with the reference and ultralytics."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from framefuse.cli.console import check_out, print_table, progress_printer, write_out
from framefuse.cli.options import ConfigFile, Quiet, option, with_fields
from framefuse.config import load_settings
from framefuse.errors import CapabilityError, QualityError, UsageError

FIELDS: Final = (
    *("device", "imgsz", "rect", "conf", "iou", "max_det", "streams", "threads", "workspace_mb", "start", "end"),
)
PAGES = (".html", ".md", ".json")


@partial(with_fields, fields=FIELDS, defaults={})
def parity(
    model: Annotated[str, typer.Argument(help="ONNX file, or the name of a shipped model")],
    source: Annotated[str | None, option("SOURCE", "video to compare on (default: a generated clip)")] = None,
    engine: Annotated[str | None, option("NAME,..", "engines (default: all that are installed)")] = None,
    precision: Annotated[str, option("NAME,..", "precisions to compare for each engine")] = "auto",
    frames: Annotated[int, option("N", "frames to compare, spread over the source", min=1)] = 4,
    peer_python: Annotated[
        Path | None, option("PYTHON", "Python with ultralytics (AGPL), to compare with it too")
    ] = None,
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
    certificate = certify(
        model, source, engines=named or None, precisions=precision.split(","),
        frames=frames, peer_python=peer_python, settings=settings, say=say,
    )  # fmt: skip
    if print_json:
        typer.echo(certificate.to_json())
    elif not quiet:
        typer.echo(f"{head(certificate)}\n")
        print_table(("", "stage", "found", "limit", ""), certificate.table())
        typer.echo(f"\n{LEGEND}\n")
        typer.echo("\n".join(certificate.summary()))
    if out is not None:
        page = {".html": certificate.html, ".md": certificate.markdown, ".json": certificate.to_json}[out.suffix]()
        write_out(out, page)
        say(f"wrote {out}")
    if missing := _missing(certificate, named):
        raise CapabilityError(f"{missing.name} was not compared: {missing.absent}", remedy="run 'framefuse doctor'")
    if (end := verdict(certificate)) != "CERTIFIED":
        outside = [line for line in certificate.summary()[:-1] if "outside the limits" in line]
        why = outside[0] if outside else end.removeprefix("NOT CERTIFIED: ")
        raise QualityError(f"{certificate.model} is not certified: {why}", remedy="see the table")
    return 0


def _missing(certificate: Any, named: Sequence[str]) -> Any:
    """A requested engine that was not compared; None if another one is outside the limits, which is more important."""
    if any(one.verdict == "outside" for one in certificate.engines if not one.absent):
        return None
    ran = {one.name for one in certificate.engines if not one.absent}
    return next((one for one in certificate.engines if one.name not in ran and (one.name in named or not ran)), None)
