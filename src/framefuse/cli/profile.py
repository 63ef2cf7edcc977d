"""framefuse profile, tune-batch, plan and bench adaptive: what is worth using on this machine, and fits into it."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import closing
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from framefuse.cli.console import check_out, counter, deliver, print_notes, print_table, stderr, write_out
from framefuse.cli.doctor import bench
from framefuse.cli.options import ConfigFile, PrintJson, Quiet, option, with_fields
from framefuse.config import load_settings
from framefuse.errors import CapabilityError, UsageError

if TYPE_CHECKING:
    from framefuse.batching.tuning import BatchTuning
    from framefuse.config import Settings
    from framefuse.runtime.memory import MemoryPlan
    from framefuse.runtime.plan import RunPlan

OF_PROFILE: Final = "device", "engine", "threads", "iou", "max_det", "agnostic_nms", "workspace_mb"
OF_ADAPTIVE: Final = "device", "engine", "precision", "threads", "imgsz", "min_agreement", "max_latency", "target_fps"
OF_TUNE_BATCH: Final = "device", "engine", "precision", "threads", "imgsz"
KEY_FRAMES: Final = 250
"""Frames from one key frame to the next, as most encoders set them: so many of each decoder wait in memory where
several decoders read one video and its frames have to come in order."""
OF_PLAN: Final = "engine", "batch", "slots", "imgsz", "rect", "adaptive", "queue", "readers", "max_memory"
STREET: Final = "synthetic://street?split=test"
"""The truth of a world that shipped models know."""
CAMERA: Final = f"{STREET}&seed=61&fps=30&size=960x540"


@partial(with_fields, fields=OF_PROFILE)
def profile(
    models: Annotated[list[str], typer.Argument(metavar="MODEL...", help="ONNX files, or names of shipped models")],
    source: Annotated[
        str | None,
        option("SOURCE", "your footage; results of the slowest candidate serve as ground truth", "--source", "-s"),
    ] = None,
    data: Annotated[
        list[str] | None,
        option("DATA", "data with truth, as for val (default without --source: a synthetic street)", "--data", "-d"),
    ] = None,
    sizes: Annotated[str, option("N,...", "longer sides of the model input, in pixels")] = "320,416,640",
    precisions: Annotated[str, option("NAME,...", "precisions", "--precision")] = "auto",
    frames: Annotated[int, option("N", "frames to measure on, spread over the footage", min=20, max=1_000_000)] = 100,
    out: Annotated[Path, option("FILE", "where to write the ladder", "--out", "-o")] = Path("ladder.json"),
    config: ConfigFile = None,
    print_json: Annotated[bool, typer.Option("--json", help="print the ladder as JSON on stdout")] = False,
    quiet: Quiet = False,
    **given: Any,
) -> int:
    """Measure models at several sizes on this machine, and keep those that are worth using: a ladder.

    Candidates take turns on the same frames. A run takes the ladder in place of a model, and chooses the best rung for
    --target-fps.
    """
    from framefuse.lab.evaluation import open_data
    from framefuse.lab.ladder import Candidate, measure, plot, table

    options = _options(OF_PROFILE, source, data, config, given)
    sides = _sizes(sizes)
    wanted = [name.strip() for name in precisions.split(",")]
    for precision in wanted:
        load_settings(None, None, {"precision": precision})
    opened: Any = source or open_data(data or [f"{STREET}&frames=300"])
    check_out(out, *models, source, *(data or []), beside=".png")
    candidates = [Candidate(*names) for names in product(models, sides, wanted)]
    with counter(f"{len(candidates)} candidates", frames, quiet) as count:
        ladder, notes = measure(candidates, opened, limit=frames, options=options, on_frame=count)
    written = deliver(out, ladder.to_json(), lambda: plot(ladder), table(ladder), print_json=print_json)
    if not quiet:
        notes.append(f"{ladder.frames} frames of {ladder.data}; ms and CPU from a decoded frame to its objects")
        notes += [*written, f"use it   framefuse predict SOURCE {out} --target-fps 30"]
        print_notes(notes)
    return 0


def _options(
    fields: Sequence[str], source: str | None, data: list[str] | None, config: Path | None, given: Mapping[str, Any]
) -> dict[str, Any]:
    """The settings of a command among `fields` that differ from their defaults."""
    if source and data:
        raise UsageError("--source and --data were given", remedy="choose one: --data has truth, --source has none")
    settings = load_settings(config, None, given, environment=os.environ).settings
    return {field: getattr(settings, field) for field in settings.model_fields_set & {*fields}}


def _sizes(text: str) -> list[int]:
    try:
        sides = [int(side) for side in text.split(",")]
    except ValueError:
        sides = []
    if not sides or min(sides) < 32:
        raise UsageError(f"--sizes is {text!r}", remedy="write sides of at least 32 pixels: --sizes 320,416,640")
    return list(dict.fromkeys(sides))


@bench.command(epilog="Example: framefuse bench adaptive scout-s --source street.mp4")
@partial(with_fields, fields=OF_ADAPTIVE)
def adaptive(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="ONNX file, or the name of a shipped model")
    ] = "scout-s",
    source: Annotated[
        str | None,
        option("SOURCE", "your footage: what the model sees in every frame counts as right", "--source", "-s"),
    ] = None,
    data: Annotated[
        list[str] | None,
        option("DATA", "footage with truth, as for val; default: four synthetic streets", "--data", "-d"),
    ] = None,
    out: Annotated[Path, option("FILE", "where to write the page; its numbers lie beside it", "--out", "-o")] = Path(
        "adaptive.html"
    ),
    config: ConfigFile = None,
    print_json: PrintJson = False,
    quiet: Quiet = False,
    **given: Any,
) -> int:
    """Compare adaptive compute with every frame and with fixed strides, over time.

    The synthetic streets are calm, crowded and calm again; fast; far away; and a camera's day, mostly empty.
    """
    from framefuse.lab.adaptive_bench import SCHEDULES, compare, plot, render, table, to_json
    from framefuse.lab.evaluation import open_data

    options = _options(OF_ADAPTIVE, source, data, config, given)
    check_out(out, model, source, *(data or []), beside=".json")
    wanted: dict[str, Any]
    if source:
        wanted = {Path(source).name: source}
    elif data:
        wanted = {Path(data[0]).name: open_data(data)}
    else:
        wanted = {name: open_data([f"{CAMERA}&{schedule}"]) for name, schedule in SCHEDULES.items()}
    found, notes, pictures = [], list[str](), list[bytes]()
    for name, one in wanted.items():
        with counter(name, 2 * _frames(one), quiet) as count:
            found.append(compare(name, one, model, options, count))
    try:
        pictures = [plot(one) for one in found]
    except CapabilityError as error:
        notes.append(f"no plots: {error.message}")
    write_out(out, render(found, model, pictures))
    numbers = to_json(found, model)
    write_out(out.with_suffix(".json"), numbers)
    if print_json:
        typer.echo(numbers, nl=False)
    else:
        print_table(table(found))
    if not quiet:
        notes += [f"{one.name}: {line}" for one in found for line in one.choices]
        notes += [f"wrote    {path}" for path in (out, out.with_suffix(".json"))]
        print_notes(notes)
    return 0


def _frames(footage: Any) -> int:
    """Frames of data or of a source; 0: unknown."""
    if not isinstance(footage, str):
        return len(footage.keys)
    from framefuse.sources import open_source

    with closing(open_source(footage)) as opened:
        return opened.info.frames or 0


@partial(with_fields, fields=OF_TUNE_BATCH)
def tune_batch(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="ONNX file, or the name of a shipped model")],
    max_latency: Annotated[
        str | None,
        option("TIME", "limit of the 99th percentile of the latency, such as 20ms; default: only throughput counts"),
    ] = None,
    max_batch: Annotated[int, option("N", "the largest batch to try", min=1, max=64)] = 32,
    out: Annotated[Path, option("FILE", "where to write what was found", "--out", "-o")] = Path("batching.json"),
    config: ConfigFile = None,
    print_json: PrintJson = False,
    quiet: Quiet = False,
    **given: Any,
) -> int:
    """Find the largest batch and the delay with which a Batcher serves the most requests.

    Batches are measured; what a load of requests at random times does to them is simulated with the rules of the
    Batcher.
    """
    from framefuse.lab.batch_tuning import measure, plot

    limit = _seconds(max_latency) if max_latency is not None else None
    settings = load_settings(config, "latency", given, environment=os.environ).settings
    check_out(out, model, beside=".png")
    tuning = measure(model, settings, max_latency=limit, max_batch=max_batch)
    notes = deliver(out, tuning.to_json(), lambda: plot(tuning), batch_table(tuning), print_json=print_json)
    if not quiet:
        best = tuning.chosen
        chosen = f"max_batch_size {best.size}, max_queue_delay {best.delay:g} s"
        notes.append(f"best     {chosen}: {best.rate:.4g} requests/s")
        options = {name: getattr(settings, name) for name in OF_TUNE_BATCH if name in given} | {"tuning": str(out)}
        if len(size := options.get("imgsz", ())) == 1:
            options["imgsz"] = size[0]
        arguments = ", ".join(f"{name}={value!r}" for name, value in options.items())
        notes.append(f"use it   framefuse.Batcher({model!r}, {arguments})")
        print_notes(notes)
    return 0


def batch_table(tuning: BatchTuning) -> list[list[str]]:
    """Header and rows."""
    lines = [["batch", "ms a batch", "full/s", "load/s", "p50 ms", "p99 ms", ""]]
    for size, seconds in sorted(tuning.seconds.items()):
        limit = float("inf") if tuning.max_latency is None else 1e3 * tuning.max_latency
        mine = [point for point in tuning.points if point.size == size and point.p99_ms <= limit]
        load = ["-"] * 3
        if mine:
            best = tuning.chosen if tuning.chosen in mine else max(mine, key=lambda point: point.rate)
            load = [f"{best.rate:.4g}", f"{best.p50_ms:.1f}", f"{best.p99_ms:.1f}"]
        chosen = "chosen" if size == tuning.chosen.size else "" if mine else "over the limit"
        lines.append([str(size), f"{1e3 * seconds:.1f}", f"{tuning.full_rate(size):.4g}", *load, chosen])
    return lines


def _seconds(text: str) -> float:
    """Seconds of 20ms, 0.02s or 0.02."""
    match = re.fullmatch(r"(\d+\.?\d*|\.\d+)\s*(ms|s)?", text.strip())
    if not match or not float(match[1]):
        raise UsageError(f"--max-latency is {text!r}", remedy="write a time: --max-latency 20ms, or 0.02s")
    return float(match[1]) / (1000 if match[2] == "ms" else 1)


@partial(with_fields, fields=OF_PLAN)
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
    run, decoders = _planned(model, streams, settings.model_copy(update={"device": "cuda"}))
    pixels = _size(size)
    found = _predict(run, decoders, pixels)
    said = "" if settings.max_memory is None else _beyond(run, decoders, pixels, settings.max_memory)
    beyond = f"more than max_memory, {settings.max_memory:g} MiB: a run {said}" if said else ""
    if print_json:
        parts = [part._asdict() for part in found.parts]
        typer.echo(json.dumps({"bytes": round(found.size), "parts": parts, "beyond": beyond}, indent=2))
        return 0
    print_table(found.table())
    if beyond:
        stderr().print(beyond)
    return 0


def _beyond(run: RunPlan, decoders: int, size: tuple[int, int], limit: float) -> str:
    """What a run does that may take no more than `limit` MiB; empty: it is as predicted."""
    from framefuse.runtime.batching import IN_FLIGHT
    from framefuse.runtime.memory import fitted, room_within

    slots, room = run.settings.slots or IN_FLIGHT, room_within(limit)
    try:
        *_, why = fitted(run, run.batch, slots, size, room, decoders=decoders)
    except CapabilityError as error:
        return f"is refused, as {error.message}"
    return why and f"takes fewer or smaller batches: {why}"


def predicted(model: str, streams: int, size: tuple[int, int], settings: Settings) -> MemoryPlan:
    """The memory of a run that reads so many videos with frames of this size."""
    return _predict(*_planned(model, streams, settings), size)


def _planned(model: str, streams: int, settings: Settings) -> tuple[RunPlan, int]:
    """The plan of a run that reads so many videos, and its decoders."""
    from framefuse.models import find_model
    from framefuse.models.card import read_card
    from framefuse.runtime.choices import choose_batch, choose_preprocess
    from framefuse.runtime.plan import RunPlan
    from framefuse.runtime.readers import count, decoders
    from framefuse.sources.segments import Segmented

    card = read_card(find_model(model))
    engine = "cudnn" if settings.engine == "auto" else settings.engine
    source = None
    if settings.readers > streams == 1:
        source = Segmented(Path(), settings.readers, KEY_FRAMES if card.task == "semantic" else 0)
    batch, _ = choose_batch(card, settings, count(source) if source else streams)
    preprocess, _ = choose_preprocess(card, settings)
    run = RunPlan(card, settings, source, engine, batch, 0, {}, preprocess)
    return run, max(streams, decoders(source))


def _predict(run: RunPlan, decoders: int, size: tuple[int, int]) -> MemoryPlan:
    from framefuse.runtime.batching import IN_FLIGHT
    from framefuse.runtime.memory import predict

    return predict(run, run.batch, run.settings.slots or IN_FLIGHT, size, decoders=decoders)


def _size(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"([1-9]\d{0,4})x([1-9]\d{0,4})", text.strip())
    if not match:
        remedy = "write width and height: --size 1920x1080, of at most 99999 pixels each"
        raise UsageError(f"--size is {text!r}", remedy=remedy)
    return int(match[1]), int(match[2])
