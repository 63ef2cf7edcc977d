"""Models before a run: framefuse models (list, show, get), export, build and tune."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from textwrap import indent
from typing import TYPE_CHECKING, Annotated, Any

import typer

from framefuse.cli.console import check_choice, check_out, print_rows, print_table, progress_printer, stderr
from framefuse.cli.options import App, PrintJson, PrintReport, Quiet, option, size
from framefuse.common.redact import redact_source
from framefuse.common.text import counted
from framefuse.errors import CardError, ModelError, UsageError

if TYPE_CHECKING:
    from framefuse.models.card import Card

PRECISIONS = ("fp16", "int8")
CALIB = (
    "video, images, ... like those the model will see, which set the INT8 ranges; without --judge and --data, every "
    "second frame measures the accuracy instead, with the FP32 boxes as ground truth"
)
PLAN_PRECISIONS = ("fp32", *PRECISIONS, "fp8")
app = App(name="models", help="List the models known by name, show the card of one, or fetch one.")


@app.callback(invoke_without_command=True)
def models(context: typer.Context) -> None:
    """List the models known by name, show the card of one, or fetch one."""
    if context.invoked_subcommand is None:
        list_()


@app.command("list")
def list_(print_json: PrintJson = False) -> int:
    """List the models known by name, and free ones that others publish and 'framefuse models get' fetches."""
    from framefuse.models import KNOWN, LICENCE, SHIPPED, fetched_models

    rows = [(name, "in the package", LICENCE, about) for name, about in SHIPPED.items()]
    fetched = fetched_models()
    for name, about in fetched.items():
        rows.append((name, "fetched", str(about.get("licence", "not stated")), str(about.get("source", ""))))
    for name, known in KNOWN.items():
        if name not in fetched:
            rows.append((name, f"framefuse models get {name}", known.licence, known.about))
    print_rows(("model", "where", "licence", "what it does"), rows, print_json)
    return 0


@app.command()
def show(model: Annotated[str, typer.Argument(help="name or ONNX file")], print_json: PrintJson = False) -> int:
    """Print the card of a model, and where each fact comes from; or what it outputs, if that is not recognised."""
    from framefuse.models import find_model
    from framefuse.models.card import read_card
    from framefuse.runtime.memory import model_size

    path = find_model(model)
    try:
        card = read_card(path)
    except CardError:
        _print_outputs(path)
        raise
    rows = [(key, value, card.origin.get(key, "")) for key, value in facts(card).items()]
    if path.suffix == ".onnx":
        shown = "fp32", *PRECISIONS
        sizes = (f"{size / 1e6:.1f} MB in {name}" for name, size in model_size(path).items() if name in shown)
        rows.append(("weights", ", ".join(sizes), "file"))
    if print_json:
        typer.echo(json.dumps({key: {"value": value, "from": origin} for key, value, origin in rows}, indent=2))
    else:
        shown_rows = [(key, _short(value) if key == "names" else value, origin) for key, value, origin in rows]
        print_table([("fact", "value", "from"), *shown_rows])
    return 0


def _print_outputs(path: Path) -> None:
    """What a model outputs for an image of noise, and the card to fill in."""
    from framefuse.models.card import read_facts
    from framefuse.models.openvino_file import run_once

    image, *others = read_facts(path).inputs
    shape = [size or default for size, default in zip(image.shape, (1, 3, 320, 320), strict=False)]
    if others or len(shape) != 4:
        return
    with suppress(ModelError):
        found = run_once(path, tuple(shape), image.dtype)
        typer.echo(f"For one image of noise, {image.name} {'x'.join(map(str, shape))}, the model returns:")
        rows = [
            (name, "x".join(map(str, values.shape)), values.dtype.name)
            + ((f"{values.min():.4g}", f"{values.max():.4g}") if values.size else ("", ""))
            for name, values in found.items()
        ]
        print_table([("output", "shape", "type", "least", "greatest"), *rows])
        card = f"task: detect\nlayout: yolov8\noutputs: [{', '.join(found)}]\nnames: [first, second]\nimgsz: 640\n"
        typer.echo(f"A card to fill in, {path.with_suffix('.yaml')}:\n{indent(card, '  ')}")


@app.command(epilog="Example: framefuse models get hf://onnx-community/rtdetr_r18vd --name cars")
def get(
    source: Annotated[
        str, typer.Argument(help="listed name, hf://OWNER/REPO[@REVISION][/FILE.onnx], https://... or file")
    ],
    name: Annotated[
        str | None, typer.Option(help="what to call it; default: the name of the repository or file")
    ] = None,
    sha256: Annotated[str | None, option("HEX", "refuse a file that has another SHA-256")] = None,
    print_json: PrintJson = False,
) -> int:
    """Fetch a model once; from then on, its name is enough. Prints its licence and its hash."""
    from framefuse.models.hub import get_model

    typer.echo(f"fetching {redact_source(source)}", err=True)
    found = get_model(source, name=name, sha256=sha256)
    if print_json:
        typer.echo(json.dumps(asdict(found), indent=2, default=str))
    else:
        megabytes = f"{found.size / 1e6:,.1f} MB"
        shown = ("name", found.name), ("licence", found.licence), ("SHA-256", found.sha256), ("size", megabytes)
        print_table([("fact", "value"), *shown, ("source", found.source), ("file", str(found.path))])
    if found.problem:
        _print_unusable(*found.problem.split("\n", 1))
    else:
        typer.echo(f"Use it by its name: framefuse predict video.mp4 {found.name}", err=True)
    return 0


def export(
    network: Annotated[str, typer.Argument(help="torchvision:NAME, PACKAGE.MODULE:FUNCTION, or a TorchScript file")],
    weights: Annotated[
        str | None, option("FILE|none", "state dictionary; default: the network's own weights; none: as initialised")
    ] = None,
    imgsz: Annotated[str, option("N|H,W", "input size in pixels")] = "640",
    names: Annotated[str | None, option("A,B,...", "class names")] = None,
    out: Annotated[Path | None, typer.Option(help="file to write; default: NAME.onnx in this folder")] = None,
) -> int:
    """Write a network of PyTorch as an ONNX file with its card. Models of ultralytics: `yolo export` does that."""
    from framefuse.lab.building import export_model

    check_out(out)
    classes = names.split(",") if names else None
    path, card = export_model(network, weights=weights, imgsz=size(imgsz), names=classes, out=out)
    typer.echo(path)
    if isinstance(card, CardError):
        _print_unusable(card.message, card.remedy)
    else:
        found = facts(card)
        typer.echo(f"{found['task']}, {found['layout']}, {found['imgsz']}, classes {_short(found['names'])}", err=True)
    return 0


def _print_unusable(why: str, remedy: str | None = None) -> None:
    """Say that a model was written, but lacks something."""
    typer.echo(f"It cannot be used yet: {why}" + (f"\n  -> {remedy}" if remedy else ""), err=True)


def _short(names: str) -> str:
    return names if len(names) <= 90 else f"{names[:60]}... (framefuse models show --json has all)"


def facts(card: Card) -> dict[str, str]:
    """A card as text, with the keys of a YAML card."""
    spec = card.preprocess
    names = ", ".join(card.names.values())
    found = {"path": str(card.path), "licence": str(card.about.get("licence", "not stated")), "task": card.task}
    found |= {"layout": card.layout, "imgsz": f"{spec.height} {spec.width}" + (", free" if card.dynamic_size else "")}
    found |= {"batch": "free" if card.dynamic_batch else str(card.batch)}
    found |= {"input": f"{card.input_name} {card.input_dtype}", "outputs": ", ".join(card.outputs)}
    found |= {"names": f"{card.class_count}: {names}"}
    found |= {"fit": spec.fit, "rect": "on" if spec.rectangular else "off", "stride": str(spec.stride)}
    found |= {"interpolation": spec.interpolation, "pad_value": f"{spec.pad_value:g}"}
    found |= {key: " ".join(f"{value:g}" for value in getattr(spec, key)) for key in ("mean", "std")}
    return found | {"channel_order": spec.channel_order}


def build(
    model: Annotated[str, typer.Argument(help="ONNX file in FP32, or the name of a shipped model")],
    precision: Annotated[str, option("fp16|int8", "precision of the result (tensorrt: also fp32 and fp8)")],
    calib: Annotated[str | None, option("SOURCE", CALIB)] = None,
    data: Annotated[str | None, option("DATA", "COCO file or synthetic://... to measure the accuracy on")] = None,
    images: Annotated[Path | None, option("PATH", "images of the COCO file")] = None,
    judge: Annotated[str | None, option("SOURCE", "another video, ... to measure the accuracy on, unlabelled")] = None,
    out: Annotated[Path | None, option("FILE", "output; default: MODEL-int8.onnx, MODEL-fp16.onnx; or a .plan")] = None,
    allow_loss: Annotated[bool, option("", "write the model however much accuracy it loses", "--allow-loss")] = False,
    exist_ok: Annotated[bool, typer.Option("--exist-ok", help="overwrite an existing file")] = False,
    frames: Annotated[int, option("N", "frames to calibrate with", min=1, max=1_000_000)] = 64,
    calibration: Annotated[str, option("percentile|entropy|minmax", "how the INT8 ranges are derived")] = "percentile",
    engine: Annotated[str | None, option("tensorrt", "also build a TensorRT plan, in --out or in the cache")] = None,
    shapes: Annotated[str | None, option("MIN:OPT:MAX", "plan's shapes: 1x3x640x640:8x3x640x640:16x3x640x640")] = None,
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
    say = progress_printer(quiet)
    plan = out if engine else None
    if engine:
        from framefuse.engines.tensorrt.build import bindings, precision_of
        from framefuse.models import find_model
        from framefuse.models.onnx_file import load_onnx

        bindings()  # fail before the model is lowered if no plan can be built
        written = precision_of(load_onnx(find_model(model)))
        if precision in (written, "fp32") or (precision, written) == ("fp8", "int8"):  # no need to lower the file
            _build_plan(find_model(model), precision, shapes, workspace, plan, exist_ok, say, print_report)
            return 0
    from framefuse.lab.lowering import build_model

    lowered = "int8" if precision == "fp8" else precision
    if plan is not None:
        out = plan.with_suffix(".onnx")
    footage: dict[str, Any] = {"calib": calib, "frames": frames, "data": data, "images": images, "judge": judge}
    options: dict[str, Any] = {"precision": lowered, "calibration": calibration, "allow_loss": allow_loss}
    report = build_model(model, out=out, exist_ok=exist_ok, say=say, **footage, **options)
    if print_report:
        typer.echo(report.to_json())
    elif not quiet:
        rows = [("layer", "kind", "runs in", "noise alone", "why")]
        for layer in report.layers:
            noise = "" if layer.error is None else f"{layer.error:.2%}"
            rows.append((layer.name, layer.kind, layer.precision, noise, layer.why))
        rows += [(f"{count} nodes", "", "fp32", "", why) for why, count in report.islands.items()]
        print_table(rows, dim=lambda row: row[2] == report.precision)
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


def tune(
    model: Annotated[str, typer.Argument(help="ONNX file, or the name of a shipped model")],
    trials: Annotated[int, option("N", "schedules to measure per function", min=1)] = 64,
    slice_seconds: Annotated[float, option("SECONDS", "stop after this; run again to continue", "--slice")] = 480.0,
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
        message = f"--slice {slice_seconds:g} is not between 1 and {tuning.LONGEST_SLICE:g} seconds"
        raise UsageError(message, remedy="use several slices: each continues where the last one ended")
    path = find_model(model)
    width, height = _size(size, path)
    tvm()
    check_tuner()
    cores = threads or available_cores()
    where = targets.parse(target, cores)
    if where.kind == "llvm" and where != (here := targets.this_cpu(cores)):
        message = f"--target {target} is not this CPU ({here.name}), but tuning measures on the target"
        raise UsageError(message, remedy="run it on that machine with --target cpu")
    kept = tuning.Records(database or tuning.default_folder(where), where)
    say = progress_printer(quiet)
    if kept.note:
        say(kept.note)
    lowered = compiling.lower(compiling.import_model(path, (batch, 3, height, width)), where, precision)
    found = tuning.tasks_of(lowered, where, heaviest=tasks)
    say(f"{counted(len(found), 'function')} for {where.name} at {width}x{height}, {precision}; database {kept.folder}")
    done = tuning.tune(found, where, kept, trials=trials, seconds=slice_seconds, workers=cores, say=say)
    if not quiet:
        rows = [("function", "share of operations", "schedules", "best us")]
        total = sum(task.operations for task in found) or 1.0
        for task in found:
            name, share = task.name, task.operations / total
            short = name if len(name) <= tuning.LONGEST_NAME else f"{name[: tuning.LONGEST_NAME - 3]}..."
            rows.append((short, f"{share:.1%}", str(task.measured), f"{task.best:.0f}" if task.measured else ""))
        print_table(rows)
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
            message = f"--size {text} is not a multiple of the model's stride {card.preprocess.stride}"
            raise UsageError(message, remedy=f"use --size {near[1]}x{near[0]}")
    return width, height
