"""framefuse plan: what a run would take of the memory of a GPU, without running it."""

from __future__ import annotations

import json
import os
import re
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from framefuse.cli.console import print_table, stderr
from framefuse.cli.options import ConfigFile, PrintJson, option, with_fields
from framefuse.config import load_settings
from framefuse.errors import UsageError

if TYPE_CHECKING:
    from framefuse.config import Settings
    from framefuse.runtime.memory import MemoryPlan

FIELDS: Final = "engine", "batch", "slots", "imgsz", "rect", "adaptive", "queue", "max_memory"


@partial(with_fields, fields=FIELDS)
def plan(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="ONNX file, or the name of a shipped model")],
    streams: Annotated[int, option("N", "videos that are decoded at the same time", min=1, max=64)] = 1,
    size: Annotated[str, option("WxH", "size of their frames")] = "1920x1080",
    config: ConfigFile = None,
    print_json: PrintJson = False,
    **given: Any,
) -> int:
    """Predict the GPU memory of a run, part by part, before anything is loaded. No GPU is needed."""
    settings = load_settings(config, None, given, environment=os.environ).settings
    found = predicted(model, streams, _size(size), settings.model_copy(update={"device": "cuda"}))
    if print_json:
        typer.echo(
            json.dumps({"bytes": round(found.size), "parts": [part._asdict() for part in found.parts]}, indent=2)
        )
        return 0
    head, *rows = found.table()
    print_table(head, rows)
    if settings.max_memory is not None and found.size > settings.max_memory * 2**20:
        stderr().print(f"more than max_memory, {settings.max_memory:g} MiB: a run takes fewer or smaller batches")
    return 0


def predicted(model: str, streams: int, size: tuple[int, int], settings: Settings) -> MemoryPlan:
    """The memory of a run that reads so many videos with frames of this size."""
    from framefuse.models import find_model
    from framefuse.models.card import read_card
    from framefuse.runtime.batching import IN_FLIGHT
    from framefuse.runtime.choices import choose_batch, choose_preprocess
    from framefuse.runtime.memory import predict
    from framefuse.runtime.plan import RunPlan

    card = read_card(find_model(model))
    engine = "cudnn" if settings.engine == "auto" else settings.engine
    batch, _ = choose_batch(card, settings, streams)
    preprocess, _ = choose_preprocess(card, settings)
    run = RunPlan(card, settings, None, engine, batch, 0, {}, preprocess)
    return predict(run, batch, settings.slots or IN_FLIGHT, size, decoders=streams)


def _size(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"([1-9]\d{0,4})x([1-9]\d{0,4})", text.strip())
    if not match:
        raise UsageError(f"--size is {text!r}", remedy="write width and height: --size 1920x1080")
    return int(match[1]), int(match[2])
