"""framefuse engines: what an engine makes of a model."""

from __future__ import annotations

from typing import Annotated

import typer

from framefuse.cli.console import check_choice, print_rows
from framefuse.cli.options import PrintJson, option, size

app = typer.Typer(name="engines", help="Show what an engine makes of a model.", rich_markup_mode=None)


@app.callback()
def engines() -> None:
    """Show what an engine makes of a model."""


@app.command()
def show(
    model: Annotated[str, typer.Argument(help="ONNX file, or the name of a shipped model")],
    imgsz: Annotated[str | None, option("N...", "height and width (default: those of the model)")] = None,
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
