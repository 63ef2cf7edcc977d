"""framefuse build: a model in FP16 or INT8, for every engine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from framefuse.cli.console import print_table, stderr
from framefuse.cli.options import PrintReport, Quiet
from framefuse.entry import stop_if_interrupted
from framefuse.errors import UsageError

if TYPE_CHECKING:
    from framefuse.lowering import BuildReport

PRECISIONS = ("fp16", "int8")


def build(
    model: Annotated[str, typer.Argument(help="ONNX file in FP32, or the name of a shipped model", show_default=False)],
    precision: Annotated[str, typer.Option(metavar="fp16|int8", help="what it becomes", show_default=False)],
    calib: Annotated[
        str | None,
        typer.Option(metavar="SOURCE", help="video, images, camera, ... that show what the model will see"),
    ] = None,
    data: Annotated[
        str | None, typer.Option(metavar="DATA", help="COCO file or synthetic://... to judge the accuracy by")
    ] = None,
    images: Annotated[Path | None, typer.Option(metavar="PATH", help="images of the COCO file")] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="default: MODEL-int8.onnx or MODEL-fp16.onnx")
    ] = None,
    allow_loss: Annotated[bool, typer.Option("--allow-loss", help="write it whatever accuracy it loses")] = False,
    exist_ok: Annotated[bool, typer.Option("--exist-ok", help="write over an existing file")] = False,
    frames: Annotated[int, typer.Option(min=1, metavar="N", help="frames to calibrate with")] = 64,
    calibration: Annotated[
        str, typer.Option(metavar="percentile|entropy|minmax", help="how ranges follow from the frames")
    ] = "percentile",
    print_report: PrintReport = False,
    quiet: Quiet = False,
) -> int:
    """Lower a model to FP16 or INT8 and write it, if it stays accurate."""
    for name, value, known in (
        ("--precision", precision, PRECISIONS),
        ("--calibration", calibration, ("percentile", "entropy", "minmax")),
    ):
        if value not in known:
            raise UsageError(f"{name} {value} is not one of {', '.join(known)}")

    from framefuse.lowering import build_model

    console = stderr()

    def say(line: str) -> None:
        stop_if_interrupted()
        if not quiet:
            console.print(line, style="dim", markup=False)

    options: dict[str, Any] = {"precision": precision, "calibration": calibration}
    report = build_model(
        model,
        calib=calib,
        data=data,
        images=images,
        out=out,
        allow_loss=allow_loss,
        exist_ok=exist_ok,
        frames=frames,
        say=say,
        **options,
    )
    if print_report:
        typer.echo(report.to_json())
    elif not quiet:
        _print_layers(report)
    if not quiet:
        console.print(report.summary(), markup=False)
    return 0


def _print_layers(report: BuildReport) -> None:
    rows = [
        (layer.name, layer.kind, layer.precision, "" if layer.error is None else f"{layer.error:.2%}", layer.why)
        for layer in report.layers
    ]
    rows += [(f"{count} nodes", "", "fp32", "", why) for why, count in report.islands.items()]
    print_table(("layer", "kind", "runs in", "noise alone", "why"), rows, dim=lambda row: row[2] == report.precision)


__all__ = ["build"]
