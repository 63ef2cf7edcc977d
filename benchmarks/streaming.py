"""Streaming accuracy: what is known of the present frame when it comes, late results counting as late.

    python -m benchmarks.streaming [--seeds 61 62 63] [--cache FOLDER]

A camera at 30 frames a second is simulated on the clips of `benchmarks.adaptive`, with the times of the rungs of the
record adaptive. A model that runs on whole frames takes the newest one whenever it is free, and drops the others.
Adaptive compute runs as on a live source: blocks of at most half of 0.3 s, no frame dropped, looks in the order in
which they are asked for, and no more of them than the model has time for. Scored is, at the time of every frame, the
latest result there is (Li et al., 2020, arXiv:2005.10420): as it is, or moved to the present by a tracker. Nothing is
timed. The record is streaming.
"""

from __future__ import annotations

import argparse
import logging
from bisect import bisect_right
from math import inf
from pathlib import Path
from typing import Any

from benchmarks.adaptive import BEST, RUNGS, Clip, clip
from benchmarks.protocol import read, save
from framefuse.adaptive import Blocks, Budget, Governor, Limits
from framefuse.lab.adaptive_bench import CONF, SCHEDULES, Found
from framefuse.prediction import Detections
from framefuse.runtime.adaptive import LIVE_LATENCY
from framefuse.tracking import TrackerOptions, open_tracker

FPS = 30
Arrivals = list[tuple[float, int, Detections]]
"""Results: when they are known, of which frame, and what they say; in the order of the times."""


def whole(found: Found, cost: float) -> Arrivals:
    """A model that takes the newest frame whenever it is free."""
    results, free, number = Arrivals(), 0.0, 0
    while number < len(found):
        free = max(free, number / FPS) + cost
        results.append((free, number, found[number]))
        number = max(number + 1, int(free * FPS))
    return results


def adaptive(found: Found, cost: float) -> Arrivals:
    """Adaptive compute on a live source."""
    limits = Limits(ahead=int(LIVE_LATENCY * FPS / 2))
    governor = Governor(limits, budget=Budget(min(1.0, 1 / (FPS * cost))))
    blocks = Blocks(governor, CONF)
    waiting, results = list[int](), Arrivals()
    looked, ends, number = -1, inf, 0
    """The frame that is being looked at, when that ends, and the next frame to come."""
    while number < len(found) or ends < inf:
        if ends <= number / FPS or number == len(found):
            now, ends = ends, inf
            waiting += blocks.found(looked, found[looked])
            for ready in blocks.ready():
                results.append((now, ready.number, ready.detections))
                if now - ready.number / FPS > LIVE_LATENCY:
                    governor.late()
        else:
            now, number = number / FPS, number + 1
            waiting += blocks.arrived()
        if waiting and ends == inf:
            looked, ends = waiting.pop(0), now + cost
    return results


def present(results: Arrivals, frames: int, *, moved: bool) -> list[Detections]:
    """What is known at the time of each frame."""
    tracker = open_tracker("bytetrack", TrackerOptions(high=0.25, low=CONF, new=0.05, confirm=1))
    times, shown, taken = [time for time, _, _ in results], list[Detections](), 0
    nothing = results[0][2][:0]
    for number in range(frames):
        known = bisect_right(times, number / FPS)
        for _, of, detections in results[taken:known] if moved else ():
            tracker.update(detections, of / FPS)
        taken = known
        latest = results[known - 1][2] if known else nothing
        shown.append(tracker.predict(number / FPS) if moved and known else latest)
    return shown


def rows_of(one: Clip, costs: dict[tuple[str, int], float]) -> list[dict[str, Any]]:
    rows = []
    runs = {f"{model} {size}": whole(one.found[model, size], costs[model, size]) for model, size in RUNGS}
    runs["adaptive"] = adaptive(one.found[BEST], costs[BEST])
    for policy, results in runs.items():
        age = sum(time - number / FPS for time, number, _ in results) / len(results)
        scores = {
            name: one.score(present(results, len(one.labels), moved=moved))["map"]
            for name, moved in (("as it is", False), ("moved", True))
        }
        rows.append({"policy": policy, "results": len(results) / len(one.labels), "age_ms": 1e3 * age, **scores})
        print(one.name, one.seed, rows[-1], flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[61, 62, 63])
    parser.add_argument("--cache", type=Path, default=Path("build/adaptive"))
    args = parser.parse_args()
    logging.disable(logging.WARNING)
    costs = {(rung["model"], rung["imgsz"]): rung["ms"] / 1e3 for rung in read("adaptive")["rungs"]}
    clips = [
        {"clip": name, "seed": seed, "rows": rows_of(clip(name, seed, "test", args.cache), costs)}
        for seed in args.seeds
        for name in SCHEDULES
    ]
    rungs = [{"model": model, "imgsz": size, "ms": 1e3 * costs[model, size]} for model, size in RUNGS]
    save("streaming", {"fps": FPS, "rungs": rungs, "clips": clips}, "adaptive", "synthetic world", "model")


if __name__ == "__main__":
    main()
