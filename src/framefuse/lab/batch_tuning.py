"""Measures the batches of a model, and finds the size and the delay that serve the most requests."""

import io

from framefuse.batching.tuning import BatchTuning, tuned
from framefuse.common.version import __version__
from framefuse.config import Settings
from framefuse.lab.evaluation.coco import needed
from framefuse.runtime.choices import processor
from framefuse.runtime.model import Model
from framefuse.runtime.runners import ModelRunner


def measure(model: str, settings: Settings, *, max_latency: float | None, max_batch: int) -> BatchTuning:
    """Measure batches of 1, 2, 4, ... rows, and simulate what loads do to them.

    Args:
        max_latency: seconds that 99 of 100 answers keep; None: only the throughput counts.
        max_batch: the largest batch to try.

    Raises:
        UsageError: the limit cannot be kept.
        ModelError, EngineError, CapabilityError: as `Model`.
    """
    opened = Model(model, settings=settings)
    runner = ModelRunner(opened, max_batch, closes=True, all_sizes=True)
    try:
        machine = processor("cuda" if runner.ahead else "cpu")
        points, chosen = tuned(runner.seconds, max_latency, servers=runner.servers, ahead=runner.ahead)
    finally:
        runner.close()
    seconds = dict(runner.seconds)
    return BatchTuning(
        model, machine, opened.imgsz, __version__, runner.servers, seconds, max_latency, tuple(points), chosen
    )


def plot(tuning: BatchTuning) -> bytes:
    """PNG: latency over throughput, one line for each largest batch. CapabilityError without matplotlib."""
    with needed("matplotlib").rc_context({"text.parse_math": False}):  # names are text, also between dollars
        figure = needed("matplotlib.figure").Figure(figsize=(8, 5), dpi=110, layout="constrained")
        axes = figure.subplots()
        drawn = list[list[tuple[float, float]]]()
        for size in sorted(tuning.seconds):
            line = [(one.rate, one.p99_ms) for one in tuning.points if (one.size, one.delay) == (size, 0.0)]
            if line not in drawn:  # larger batches than pay are never used
                label = f"batches up to {size}" if size > 1 else "single requests"
                axes.plot(*zip(*line, strict=True), "o-", markersize=3, label=label)
                drawn.append(line)
        axes.plot(tuning.chosen.rate, tuning.chosen.p99_ms, "k*", markersize=13, label="chosen")
        if tuning.max_latency is not None:
            axes.axhline(1e3 * tuning.max_latency, color="0.5", linestyle="--", linewidth=1)
        axes.set(yscale="log", xlabel="requests a second", ylabel="p99 latency, ms", xlim=(0, None))
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.yaxis.set_minor_formatter("")
        axes.yaxis.set_major_locator(needed("matplotlib.ticker").LogLocator(subs=(1, 2, 5)))
        axes.set_title(f"{tuning.model}, {tuning.machine}: batches measured, load simulated", fontsize=9)
        axes.legend(fontsize=8)
        axes.grid(alpha=0.3)
        figure.savefig(png := io.BytesIO())
    return png.getvalue()
