"""A list of 1080p files to detections, by several processes on one GPU and on two: `Fleet`.

    python -m benchmarks.gpu.fleet CLIP MODEL [--plans 0,0,0 0,0,0,1,1,1] [--files 48] [--repeat 8] [--rounds 1]

A plan names the GPU of each process. The list is the clip, `--repeat` times as long, under as many names. The plans run
in turn, `--rounds` times, after a short run that measures the engine's kernels where none are in the cache. Two rates:

- `fps`: all frames, from the first of any process to the last of any. That processes begin and end at different moments
  is in it; that they need seconds to start is not
- `steady_fps`: the middle half of the frames, while all processes run

The record is fleet.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter
from itertools import pairwise
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from benchmarks.clips import long_clip
from benchmarks.protocol import save
from framefuse import Fleet, Pipeline
from framefuse.errors import FramefuseError
from framefuse.fleet.fleet import parse_devices
from framefuse.fleet.report import FleetReport

Samples = list[tuple[float, int]]
"""When, and how many frames there were in all."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("clip", type=Path)
    parser.add_argument("model", type=Path)
    parser.add_argument("--plans", nargs="+", default=["0,0,0", "0,0,0,1,1,1"], metavar="GPUS")
    parser.add_argument("--files", type=int, default=48)
    parser.add_argument("--repeat", type=int, default=8, help="how often the clip is repeated in each file")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=600, help="no run is begun after so many")
    parser.add_argument("--readers", type=int, default=0)
    parser.add_argument("--batch", type=int, default=8)
    args = parser.parse_args()
    runs: dict[str, list[dict[str, Any]]] = {plan: [] for plan in args.plans}
    options = {"readers": args.readers, "batch": args.batch}
    begun = perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        clip = long_clip(args.clip, Path(folder, f"clip{args.clip.suffix}"), args.repeat)
        files = [Path(folder, f"{number:03}{clip.suffix}") for number in range(args.files)]
        for file in files:
            file.symlink_to(clip)
        device = "cpu" if args.plans[0].startswith("cpu") else "cuda"
        with Pipeline([args.clip], args.model, device=device, **options) as pipeline:
            next(iter(pipeline))
            pipeline.engine.tune()
        for plan in args.plans * args.rounds:
            if perf_counter() - begun > args.seconds:
                break
            found = run(plan, files, args.model, options)
            print(plan, found, flush=True)
            if "fps" in found:
                runs[plan].append(found)
                keep(runs, {"clip": f"{args.clip.name}, {args.repeat} times", "files": args.files, **options})


def keep(runs: dict[str, list[dict[str, Any]]], setting: dict[str, Any]) -> None:
    """What is known so far: the median of the runs of each plan, and what several GPUs gain."""
    rates = {
        name: {plan: median(row[name] for row in rows) for plan, rows in runs.items() if rows}
        for name in ("fps", "steady_fps")
    }
    gains = [gain for plan in rates["fps"] if (gain := against_one(plan, rates))]
    for gain in gains:
        print(gain, flush=True)
    save(
        "fleet",
        {**setting, **rates, "gains": gains, "runs": runs},
        "CUDA kernel",
        "engine cudnn",
        "program",
        "CUDA program",
        "pipeline",
        "fleet",
    )


def run(plan: str, files: list[Path], model: Path, options: dict[str, Any]) -> dict[str, Any]:
    """One run of a plan: "0,0,1,1", or "cpu,cpu"."""
    devices = plan.split(",") if plan.startswith("cpu") else parse_devices(plan)
    samples: Samples = []
    try:
        report = Fleet(files, model, devices=devices, **options).run(
            lambda frames: samples.append((perf_counter(), frames))
        )
    except FramefuseError as error:
        return {"error": error.message}
    return facts(report) | {"steady_fps": steady(samples, report.frames)}


def steady(samples: Samples, frames: int) -> float:
    """Frames a second between a quarter and three quarters of all frames."""
    begin, end = (moment_of(samples, part * frames) for part in (0.25, 0.75))
    return frames / 2 / (end - begin) if end > begin else 0.0


def moment_of(samples: Samples, wanted: float) -> float:
    """When so many frames were done, by interpolation."""
    for (before, fewer), (after, more) in pairwise(samples):
        if fewer <= wanted < more:
            return before + (after - before) * (wanted - fewer) / (more - fewer)
    return 0.0


def against_one(plan: str, rates: dict[str, dict[str, float]]) -> dict[str, Any] | None:
    """What a plan on several GPUs gains over the fastest on one, and over one with as many processes on its GPU."""
    processes = Counter(plan.split(","))
    if len(processes) < 2:
        return None
    single = {other: fps for other, fps in rates["fps"].items() if len(set(other.split(","))) == 1}
    if not single:
        return None
    best, same = max(single, key=lambda other: single[other]), ",".join(["0"] * max(processes.values()))
    gain: dict[str, Any] = {"plan": plan, "best_on_one": best}
    for name, values in rates.items():
        gain[f"{name}_of_best"] = values[plan] / values[best]
        if same in values:
            gain[f"{name}_of_same"] = values[plan] / values[same]
    return gain


def facts(report: FleetReport) -> dict[str, Any]:
    workers = [
        {
            "device": worker.device,
            "inputs": len(worker.inputs),
            "frames": worker.frames,
            "fps": worker.report.fps if worker.report else 0.0,
            "seconds": worker.report.seconds if worker.report else 0.0,
            "limiter": worker.report.limiter if worker.report else None,
        }
        for worker in report.workers
    ]
    return {
        "frames": report.frames,
        "seconds": report.seconds,
        "fps": report.fps,
        "start_seconds": report.start_seconds,
        "workers": workers,
        "errors": [error.message for error in report.errors],
    }


if __name__ == "__main__":
    main()
