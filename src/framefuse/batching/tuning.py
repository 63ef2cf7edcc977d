"""BatchTuning: the largest batch and the delay that serve the most requests on one machine within a latency limit.

`framefuse tune-batch` measures the batches of a model and writes batching.json, which a `Batcher` takes. What a load
does to the latency is simulated with the very rules of the `Batcher`. Pure, except for reading the file.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from framefuse.batching.costs import Costs, quantile
from framefuse.batching.queue import RequestQueue
from framefuse.batching.simulation import poisson, simulate
from framefuse.errors import ConfigError, UsageError

SCHEMA = 2
LOADS = 0.1, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95
"""Shares of the highest throughput that are simulated."""
DELAYS = 0.0, 0.003
"""Seconds that a request may wait for others."""
REQUESTS = 1500
"""In a simulation."""
LONGEST = 3600
"""Seconds of a batch, and of a delay, at most."""
BETTER = 0.03
"""Share by which a larger batch or a longer delay must serve more."""


@dataclass(frozen=True)
class BatchPoint:
    """A load on batches of at most one size."""

    size: int
    delay: float
    """Seconds."""
    rate: float
    """Requests a second, at random times."""
    p50_ms: float
    p99_ms: float


@dataclass(frozen=True)
class BatchTuning:
    """What was measured, on what, and what follows."""

    model: str
    machine: str
    """Name of the GPU or CPU."""
    imgsz: list[int]
    """Height and width of the model's input."""
    version: str
    servers: int
    """Batches that ran at the same time."""
    seconds: dict[int, float]
    """Size -> seconds of a batch, measured."""
    max_latency: float | None
    """Seconds that 99 of 100 answers keep; None: only the throughput counts."""
    points: tuple[BatchPoint, ...]
    """Simulated."""
    chosen: BatchPoint
    """At the highest load within the limit; without one, at the highest that was simulated."""

    def full_rate(self, size: int) -> float:
        """Requests a second in batches of a size that are always full."""
        return self.servers * size / self.seconds[size]

    def to_json(self) -> str:
        return json.dumps({"schema": SCHEMA, **asdict(self)}, indent=1) + "\n"


def tuned(
    seconds: Mapping[int, float], max_latency: float | None, *, servers: int = 1, ahead: int = 0
) -> tuple[list[BatchPoint], BatchPoint]:
    """All loads, and the best.

    Args:
        seconds: of a batch by its size.
        max_latency: seconds that 99 of 100 answers keep; None: no limit.

    Raises:
        UsageError: not even single requests keep the limit.
    """
    points = list[BatchPoint]()
    for most in sorted(seconds):
        sizes = {size: one for size, one in seconds.items() if size <= most}
        full = max(servers * size / one for size, one in sizes.items())
        for delay in DELAYS if most > 1 else DELAYS[:1]:
            for load in LOADS:
                queue = RequestQueue(
                    Costs(sizes, sizes), max_queue_delay=delay, max_queue=REQUESTS, servers=servers, ahead=ahead
                )
                requests = poisson(load * full, REQUESTS / (load * full))
                found = simulate(queue, requests, seconds.__getitem__, servers=servers).latencies(requests)
                p50, p99 = (1e3 * quantile(found, share) for share in (0.5, 0.99))
                points.append(BatchPoint(most, delay, load * full, p50, p99))
    kept = [point for point in points if max_latency is None or point.p99_ms <= 1e3 * max_latency]
    if not kept:
        least = min(point.p99_ms for point in points)
        message = f"no batch size answers 99 of 100 requests within {1e3 * max_latency:g} ms" if max_latency else ""
        raise UsageError(message, remedy=f"allow more than {least:.3g} ms, or use a faster model or a smaller --imgsz")
    best = max(point.rate for point in kept)
    chosen = min(
        (point for point in kept if point.rate >= (1 - BETTER) * best),
        key=lambda point: (point.size, point.delay, -point.rate),
    )
    return points, chosen


def read_tuning(path: Path) -> BatchTuning:
    """Read a batching.json.

    Raises:
        ConfigError: the file cannot be read, or is of another kind or version.
    """
    again = "write it with framefuse tune-batch MODEL --out FILE"
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if content.pop("schema") != SCHEMA:
            raise ValueError("it has another schema")
        content["seconds"] = {int(size): float(one) for size, one in content["seconds"].items()}
        content["points"] = tuple(BatchPoint(**point) for point in content["points"])
        tuning = BatchTuning(**{**content, "chosen": BatchPoint(**content["chosen"])})
        height, width = tuning.imgsz
        if not (isinstance(tuning.imgsz, list) and type(height) is type(width) is int and min(height, width) > 0):
            raise ValueError("its imgsz is not a height and a width")
        times = [*tuning.seconds.values(), tuning.chosen.delay]
        are_seconds = all(type(one) in (int, float) and 0 <= one <= LONGEST for one in times)
        if not are_seconds or 0 in tuning.seconds.values():
            raise ValueError(f"its times are not seconds, above 0 to {LONGEST:,} for a batch")
        sizes = [tuning.chosen.size, tuning.servers, *tuning.seconds]
        if tuning.chosen.size not in tuning.seconds or not all(type(one) is int and one > 0 for one in sizes):
            raise ValueError("its sizes are not those of batches")
        if not isinstance(tuning.model, str) or not isinstance(tuning.machine, str):
            raise ValueError("its model or machine has no name")
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}", remedy=again) from error
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ConfigError(f"{path} is not a tuning of batches: {error}", remedy=again) from error
    return tuning
