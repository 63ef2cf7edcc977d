"""framefuse tune-batch: how large batches of requests should be on this machine."""

from __future__ import annotations

import os
import re
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from framefuse.cli.console import check_out, deliver, stderr
from framefuse.cli.options import ConfigFile, PrintJson, Quiet, option, with_fields
from framefuse.common.text import on_one_line
from framefuse.config import load_settings
from framefuse.errors import UsageError

if TYPE_CHECKING:
    from framefuse.batching.tuning import BatchTuning

FIELDS: Final = "device", "engine", "precision", "threads", "imgsz"


@partial(with_fields, fields=FIELDS)
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
    notes = deliver(out, tuning.to_json(), lambda: plot(tuning), table(tuning), print_json=print_json)
    if not quiet:
        best = tuning.chosen
        notes.append(
            f"best     max_batch_size {best.size}, max_queue_delay {best.delay:g} s: {best.rate:.4g} requests/s"
        )
        options = {name: getattr(settings, name) for name in FIELDS if name in given} | {"tuning": str(out)}
        arguments = ", ".join(f"{name}={value!r}" for name, value in options.items())
        notes.append(f"use it   framefuse.Batcher({model!r}, {arguments})")
        stderr().print("\n".join(map(on_one_line, notes)), markup=False)
    return 0


def table(tuning: BatchTuning) -> list[list[str]]:
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
