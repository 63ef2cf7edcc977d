"""framefuse build: convert a model to FP16 or INT8 for every engine, or build a plan for TensorRT."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from framefuse.cli.console import check_choice, check_out, print_table, progress_printer, stderr
from framefuse.cli.options import PrintReport, Quiet, option
from framefuse.errors import UsageError

if TYPE_CHECKING:
    from framefuse.lab.lowering import BuildReport

PRECISIONS = ("fp16", "int8")
PLAN_PRECISIONS = ("fp32", *PRECISIONS, "fp8")


def build(
    model: Annotated[str, typer.Argument(help="ONNX file in FP32, or the name of a shipped model")],
    precision: Annotated[str, option("fp16|int8", "precision of the result (tensorrt: also fp32 and fp8)")],
    calib: Annotated[
        str | None,
        typer.Option(
            metavar="SOURCE",
            help="video, images, camera, ... like those the model will see: half of the frames set the INT8 ranges; "
            "without --judge and --data the others measure the accuracy, with the FP32 boxes as ground truth",
        ),
    ] = None,
    data: Annotated[str | None, option("DATA", "COCO file or synthetic://... to measure the accuracy on")] = None,
    images: Annotated[Path | None, option("PATH", "images of the COCO file")] = None,
    judge: Annotated[
        str | None, option("SOURCE", "another video, ... to measure the accuracy on, without labels")
    ] = None,
    out: Annotated[Path | None, option("FILE", "output; default: MODEL-int8.onnx, MODEL-fp16.onnx; or a .plan")] = None,
    allow_loss: Annotated[
        bool, typer.Option("--allow-loss", help="write the model even if it loses too much accuracy")
    ] = False,
    exist_ok: Annotated[bool, typer.Option("--exist-ok", help="overwrite an existing file")] = False,
    frames: Annotated[int, option("N", "frames to calibrate with", min=1)] = 64,
    calibration: Annotated[str, option("percentile|entropy|minmax", "how the INT8 ranges are derived")] = "percentile",
    engine: Annotated[
        str | None, option("tensorrt", "also build a TensorRT plan; without --out it goes into the cache")
    ] = None,
    shapes: Annotated[
        str | None, option("MIN:OPT:MAX", "input shapes of the plan: 1x3x640x640:8x3x640x640:16x3x640x640")
    ] = None,
    workspace: Annotated[int, option("MIB", "scratch memory of the plan; 0: no limit", min=0)] = 0,
    print_report: PrintReport = False,
    quiet: Quiet = False,
) -> int:
    """Convert a model to FP16 or INT8, and write it if it stays accurate."""
    _check_engine(engine, shapes, workspace, out)
    check_out(out, model, calib, data, judge)
    plan_only = f"{precision} is only for plans: add --engine tensorrt" if precision in PLAN_PRECISIONS else None
    check_choice("--precision", precision, PLAN_PRECISIONS if engine else PRECISIONS, remedy=plan_only)
    check_choice("--calibration", calibration, ("percentile", "entropy", "minmax"))
    if engine:
        from framefuse.engines.tensorrt.build import bindings

        bindings()  # fail before the model is lowered if no plan can be built

    from framefuse.lab.lowering import build_model
    from framefuse.models import find_model

    say = progress_printer(quiet)
    plan = out if engine else None
    if engine and _written_as(model, precision):
        _build_plan(find_model(model), precision, shapes, workspace, plan, exist_ok, say, print_report)
        return 0
    lowered = "int8" if precision == "fp8" else precision
    if plan is not None:
        out = plan.with_suffix(".onnx")
    options: dict[str, Any] = {"precision": lowered, "calibration": calibration}
    report = build_model(
        model,
        calib=calib,
        data=data,
        images=images,
        judge=judge,
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
        stderr().print(report.summary(), markup=False)
    if engine:
        _build_plan(report.output, precision, shapes, workspace, plan, exist_ok, say, False)
    return 0


def _check_engine(engine: str | None, shapes: str | None, workspace: int, out: Path | None) -> None:
    if engine not in (None, "tensorrt"):
        raise UsageError(f"--engine {engine} builds no plans", remedy="use --engine tensorrt, or leave it out")
    for name, value in (("--shapes", shapes), ("--workspace", workspace)):
        if value and engine is None:
            raise UsageError(f"{name} {value} only applies to plans", remedy="add --engine tensorrt")
    if engine and out is not None and out.suffix not in (".plan", ".engine"):
        raise UsageError(f"--out {str(out)!r} is not a plan", remedy="use a file name that ends in .plan")
    if out is not None and engine is None and out.suffix in (".plan", ".engine"):
        raise UsageError(f"--out {out} is a plan", remedy="add --engine tensorrt")


def _written_as(model: str, precision: str) -> bool:
    """Whether a plan of this precision can be built from the file without lowering it."""
    from framefuse.engines.onnx_shapes import load
    from framefuse.engines.tensorrt.build import precision_of
    from framefuse.models import find_model

    written = precision_of(load(find_model(model)))
    return precision in (written, "fp32") or (precision, written) == ("fp8", "int8")


def _build_plan(
    model: Path, precision: str, shapes: str | None, workspace: int, out: Path | None, exist_ok: bool, say: Any,
    print_report: bool,
) -> None:  # fmt: skip
    from framefuse.engines.tensorrt.build import LARGEST_BATCH, Shapes, bindings
    from framefuse.engines.tensorrt.plans import build as build_file
    from framefuse.models.card import read_card

    if out is not None and out.exists() and not exist_ok:
        raise UsageError(f"{out} exists", remedy="use --exist-ok to overwrite it, or another --out")
    if shapes is None:
        card = read_card(model)
        size = 3, card.preprocess.height, card.preprocess.width
        low, high = (1, LARGEST_BATCH) if card.dynamic_batch else (card.batch, card.batch)
        profile = Shapes((low, *size), (low, *size), (high, *size))
    else:
        profile = Shapes.parse(shapes)
    found = bindings()
    say(f"building a plan with {found} for {profile}")
    use = f"--engine tensorrt --device cuda and {model.name}"
    if out is not None:
        use = f"open_engine('tensorrt', Path('{out}'), EngineOptions())"
    path, plan = build_file(model, profile, precision=precision, output=out, workspace_mb=workspace, found=found)
    for kind, lines in plan.messages.items():
        for line in lines:
            say(f"{found} {kind.lower()}: {line}")
    say(
        f"{path}: {plan.precision}, {len(plan.content) / 1e6:.1f} MB, {plan.layers} layers before fusion, built in "
        f"{plan.parse_s + plan.build_s:.1f} s; use it with {use}"
    )
    if print_report:
        typer.echo(json.dumps({"plan": str(path), "bytes": len(plan.content), "precision": plan.precision,
                               "shapes": str(profile), "engine": str(found), "messages": plan.messages}))  # fmt: skip


def _print_layers(report: BuildReport) -> None:
    rows = [
        (layer.name, layer.kind, layer.precision, "" if layer.error is None else f"{layer.error:.2%}", layer.why)
        for layer in report.layers
    ]
    rows += [(f"{count} nodes", "", "fp32", "", why) for why, count in report.islands.items()]
    print_table(("layer", "kind", "runs in", "noise alone", "why"), rows, dim=lambda row: row[2] == report.precision)
