"""Does a latency limit hold while another process takes the machine? With rungs to step down to, and without.

    python -m benchmarks.overload [--seconds 20] [--rounds 2]

A camera, which is a busy synthetic street at 25 frames a second, runs through `--adaptive --max-latency 0.25`. After a
third of the time, other processes keep all cores busy, twice over; they end after the second third. Counted are the
ages of the results when the caller gets them. Without rungs, only fewer frames are inferred. The record is overload.
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import os
import time
from collections import deque
from collections.abc import Iterator
from contextlib import nullcontext
from itertools import islice
from multiprocessing.synchronize import Event
from statistics import median
from typing import Any, cast
from unittest import mock

import numpy as np

from benchmarks.protocol import save
from framefuse import Pipeline
from framefuse.frame import Frame
from framefuse.runtime.rungs import Rungs
from framefuse.world import World

FPS, LIMIT, MODEL = 25, 0.25, "scout-s"
STREET = f"synthetic://street?seed=61&fps={FPS}&size=960x540&split=test&frames=350"
PHASES = "idle before", "overloaded", "idle after"


def camera(images: list[Any], seconds: float) -> Iterator[Any]:
    """Frames at their rate; what is late is not made up for."""
    due = time.monotonic()
    for number in range(int(3 * seconds * FPS)):
        due = max(due + 1 / FPS, time.monotonic() - 1 / FPS)
        time.sleep(max(0.0, due - time.monotonic()))
        yield images[number % len(images)]


def burn(begin: Event) -> None:
    begin.wait()
    while True:
        sum(range(100_000))


def run(images: list[Any], seconds: float) -> dict[str, Any]:
    """Ages and rungs of the results by phase."""
    ages: dict[str, list[float]] = {phase: [] for phase in PHASES}
    rungs: dict[str, list[str]] = {phase: [] for phase in PHASES}
    begin = multiprocessing.Event()
    burners = [
        multiprocessing.Process(target=burn, args=[begin], daemon=True) for _ in range(2 * (os.cpu_count() or 1))
    ]
    for burner in burners:  # now, since a fork of this process in the middle of the run would stop it
        burner.start()
    pipeline = Pipeline(camera(images, seconds), MODEL, adaptive=True, max_latency=LIMIT, queue=2)
    begun, inferred = time.monotonic(), 0
    for result in pipeline:
        now = time.monotonic()
        phase = min(2, int((now - begun) / seconds))
        if phase == 1:
            begin.set()
        if phase == 2 and burners[0].is_alive():
            for burner in burners:
                burner.kill()
        inferred += result.inferred
        ages[PHASES[phase]].append(now - (result.arrival or now))
        rungs[PHASES[phase]] += [result.rung] * result.inferred
    for burner in burners:
        burner.kill()
        burner.join()
    guard = pipeline._adapter._guard if pipeline._adapter else None
    rows = [
        {
            "phase": phase,
            "frames": len(ages[phase]),
            "p50_ms": 1e3 * float(np.quantile(ages[phase], 0.5)),
            "p95_ms": 1e3 * float(np.quantile(ages[phase], 0.95)),
            "late": float(np.mean(np.array(ages[phase]) > LIMIT)),
            "inferred": len(rungs[phase]) / len(ages[phase]),
            "looks": {rung: rungs[phase].count(rung) / len(rungs[phase]) for rung in sorted(set(rungs[phase]))},
        }
        for phase in PHASES
    ]
    return {"rows": rows, "switches": guard.switches if guard else 0, "choices": pipeline.report.choices[-2:]}


def switching(image: Any, times: int = 30) -> list[dict[str, Any]]:
    """Milliseconds from a frame to its result, of each rung by itself and right after another one."""
    pipeline = Pipeline([image], MODEL, adaptive=True, max_latency=LIMIT)
    rungs = cast("Rungs", pipeline._program)
    frame = Frame.from_array(image)

    def timed(level: int) -> float:
        rungs.level, begun = level, time.perf_counter()
        rungs.batch_key(frame)
        deque(rungs.submit([frame]), maxlen=0)
        deque(rungs.drain(), maxlen=0)
        return 1e3 * (time.perf_counter() - begun)

    rows = []
    with pipeline:
        for level, program in enumerate(rungs.programs):
            timed(level)
            steady = [timed(level) for _ in range(times)]
            after = []
            for number in range(times):
                timed((level + 1 + number % (len(rungs.programs) - 1)) % len(rungs.programs))
                after.append(timed(level))
            rows.append({"rung": program.rung, "steady_ms": median(steady), "after_ms": median(after)})
            print(rows[-1], flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--rounds", type=int, default=2)
    args = parser.parse_args()
    logging.disable(logging.WARNING)
    images = [np.ascontiguousarray(shot.image[..., ::-1]) for shot in islice(World.parse(STREET), 150, None)]
    runs: dict[str, list[dict[str, Any]]] = {"with rungs": [], "without rungs": []}
    for _ in range(args.rounds):
        for name, found in runs.items():
            alone = mock.patch("framefuse.pipeline.rungs_below", lambda *given: [])
            with nullcontext() if name == "with rungs" else alone:
                found.append(run(images, args.seconds))
            print(name, found[-1], flush=True)
    table = {
        name: [
            {"phase": phase}
            | {
                key: median(one["rows"][number][key] for one in found)
                for key in ("p50_ms", "p95_ms", "late", "inferred")
            }
            | {"looks": found[0]["rows"][number]["looks"]}
            for number, phase in enumerate(PHASES)
        ]
        for name, found in runs.items()
    }
    facts = {"fps": FPS, "limit_ms": 1e3 * LIMIT, "seconds": args.seconds, "model": MODEL, "table": table}
    facts["switching"] = switching(images[0])
    switches = [one["switches"] for one in runs["with rungs"]]
    save("overload", {**facts, "switches": switches, "runs": runs}, "adaptive", "program", "engine openvino", "model")


if __name__ == "__main__":
    main()
