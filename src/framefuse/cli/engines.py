"""framefuse engines: what an engine makes of a model, and how exact its results are."""

from __future__ import annotations

from typing import Annotated

import typer

from framefuse.cli.console import check_choice, print_rows
from framefuse.cli.options import App, PrintJson, option, size

PRECISIONS = "auto", "fp32", "tf32", "bf16", "fp16", "int8", "fp8"
app = App(name="engines", help="Show what an engine makes of a model, and how exact its results are.")


@app.command()
def show(
    model: Annotated[str, typer.Argument(help="ONNX file, or the name of a shipped model")],
    imgsz: Annotated[str | None, option("N,...", "a number, or height and width (default: those of the model)")] = None,
    batch: Annotated[int, option("N", "images per batch", min=1, max=64)] = 1,
    device: Annotated[str, option("auto|cpu|cuda", "cpu: without times; auto: with them if there is a GPU")] = "auto",
    print_json: PrintJson = False,
) -> int:
    """List the steps that engine cudnn makes of a model, what runs each, and how long it takes."""
    from framefuse.engines.cudnn.partition import partition
    from framefuse.lab.loading import usable_device
    from framefuse.models import find_model
    from framefuse.models.card import read_card

    check_choice("device", device, ("auto", "cpu", "cuda"))
    path = find_model(model)
    if imgsz is None:
        spec = read_card(path).preprocess
        height, width = spec.height, spec.width
    else:
        height, width = size(imgsz)
    measure = (usable_device() if device == "auto" else device) == "cuda"
    steps = partition(path, batch, height, width, measure=measure)
    times = ["" if step.microseconds is None else f"{step.microseconds:.1f}" for step in steps]
    rows = [
        (str(number), *step[:3], *([time] if measure else []))
        for number, (step, time) in enumerate(zip(steps, times, strict=True))
    ]
    columns = ("step", "runs as", "nodes", "channels x height x width", *(["µs alone"] if measure else []))
    print_rows(columns, rows, print_json)
    return 0


@app.command()
def check(
    model: Annotated[str, typer.Argument(help="ONNX file, or the name of a shipped model")],
    engine: Annotated[str, option("NAME", "see 'framefuse doctor'; auto: the one that predict would use")] = "auto",
    precision: Annotated[str, option("|".join(PRECISIONS), "auto: the engine's own")] = "auto",
    imgsz: Annotated[str | None, option("N,...", "a number, or height and width (default: those of the model)")] = None,
    batch: Annotated[int, option("N", "images per batch", min=1, max=64)] = 1,
    device: Annotated[str, option("auto|cpu|cuda|cuda:N", "where the engine runs")] = "auto",
    calib: Annotated[str | None, option("SOURCE", "engine cudnn: sample frames, as those of predict")] = None,
    again: Annotated[bool, typer.Option("--again", help="measure even if the result is known")] = False,
    print_json: PrintJson = False,
) -> int:
    """Compare the outputs of an engine with FP32 on the CPU, as the first run of a model does beside its work."""
    from framefuse.lab.checking import check_outputs

    check_choice("precision", precision, PRECISIONS)
    options = {"engine": engine, "precision": precision, "batch": batch, "device": device, "calib": calib}
    sides = {} if imgsz is None else {"imgsz": list(size(imgsz))}
    verdict = check_outputs(model, again=again, **options, **sides)
    rows = [(name, f"{distance:.2g}", f"{verdict.limit:.2g}") for name, distance in verdict.distances.items()]
    print_rows(("output", "relative distance", "limit"), rows, print_json)
    if text := verdict.warning or verdict.failed:
        typer.echo(f"warning: {text}", err=True)
    return 0
