"""What does adaptive compute save on a GPU that has to keep up with many streams? Watts at one rate, and mAP.

    python -m benchmarks.gpu.adaptive [--streams 16] [--rate 4200] [--workers 4] [--seconds 12] [--rounds 2]
        [--clips FOLDER] [--keep-scores]

Streams are clips "day" of `benchmarks.adaptive`, 960x540: a camera that mostly sees nothing. NVDEC decodes their H.264.
Each of several processes reads its share of them side by side, and takes results at its share of the rate. Every policy
has the same model, batch and rate, and they run in turn. The watts are those of NVML's energy counter over `--seconds`
in the middle of a run; idle ones are those with a CUDA context and nothing to do. mAP is that of all frames of three
clips, skipped ones too, against the exact truth; `--keep-scores` takes it from the record. The record is adaptive_gpu.
"""

from __future__ import annotations

import argparse
import json
import logging
import multiprocessing
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.adaptive import SIZE, write
from benchmarks.protocol import RECORDS, save
from framefuse import Pipeline
from framefuse.cuda import device
from framefuse.lab.adaptive_bench import CONF, MOST, SCHEDULES
from framefuse.lab.evaluation import Labels, open_data
from framefuse.lab.evaluation.counters import BoxCounter
from framefuse.runtime.power import gpu_counter
from framefuse.world import World

MODEL = "scout-s"
SEEDS, SCORED = range(61, 69), 3
POLICIES: dict[str, dict[str, Any]] = {
    "every frame": {},
    "every frame, scout-n": {"model": "scout-n"},
    "adaptive": {"adaptive": True},
}
BATCH = 8
MADE_UP = 1.0
"""Seconds by which results may be late and still be made up for: opening the next file takes a part of one."""


def uri_of(seed: int) -> str:
    return f"synthetic://street?seed={seed}&fps=30&size={SIZE[0]}x{SIZE[1]}&split=test&{SCHEDULES['day']}"


def made(seed: int, folder: Path) -> Path:
    path = folder / f"day-{seed}.mp4"
    if not path.exists():
        write(World.parse(uri_of(seed)), path)
    return path


def opened(source: Any, options: dict[str, Any], **more: Any) -> Pipeline:
    return Pipeline(source, **{"model": MODEL, "device": "cuda", **options, **more})


@cache
def truth(seed: int) -> tuple[list[str], list[Labels]]:
    """Names of the classes, and what is in each frame."""
    data = open_data(uri_of(seed))
    return [data.names[key] for key in sorted(data.names)], [data.labels(key) for key in data.keys]


def score(seed: int, folder: Path, options: dict[str, Any]) -> tuple[float, float]:
    """mAP 50:95 in percent, and the share of the frames that were inferred."""
    names, labels = truth(seed)
    counter = BoxCounter(names, max_det=MOST)
    results = list(opened(made(seed, folder), options, conf=CONF, max_det=MOST))
    for label, result in zip(labels, results, strict=True):
        counter.add(label, result.detections)
    return 100 * counter.scores().map50_95, sum(result.inferred for result in results) / len(results)


def work(files: list[Path], options: dict[str, Any], rate: float, counts: Any, number: int) -> None:
    """Take results at a rate; counts: those of this process, and how many frames the model saw."""
    logging.disable(logging.WARNING)
    begun, inferred = 0.0, 0
    for done, result in enumerate(opened(files, options, batch=BATCH, readers=len(set(map(Path.resolve, files)))), 1):
        begun, inferred = begun or time.perf_counter(), inferred + result.inferred
        counts[2 * number], counts[2 * number + 1] = done, inferred
        ahead = begun + done / rate - time.perf_counter()
        if ahead > 0.002:
            time.sleep(ahead)
        elif ahead < -MADE_UP:
            begun -= ahead + MADE_UP


def paced(files: list[Path], options: dict[str, Any], args: argparse.Namespace, folder: Path) -> dict[str, float]:
    """Frames a second, their share that the model saw, and watts."""
    counter, context = gpu_counter(device.current_gpu()), multiprocessing.get_context("spawn")
    counts, share = context.Array("q", 2 * args.workers, lock=False), args.streams // args.workers
    needed = int(args.rate / args.streams * (args.seconds + 20) / 1800) + 1
    workers = []
    for number in range(args.workers):
        mine = files[number * share : (number + 1) * share]
        names = [folder / f"{number}-{again}-{stream}.mp4" for again in range(needed) for stream in range(share)]
        for name, stream in zip(names, mine * needed, strict=True):
            if not name.exists():
                name.symlink_to(stream)
        given = names, options, args.rate / args.workers, counts, number
        workers.append(context.Process(target=work, args=given, daemon=True))
    for worker in workers:
        worker.start()
    while not all(counts[2 * number] for number in range(args.workers)):
        time.sleep(0.1)
        if not all(worker.is_alive() for worker in workers):
            raise RuntimeError("a process has ended")
    time.sleep(3)

    def read() -> tuple[float, float, int, int]:
        counter.read()
        return time.perf_counter(), counter.joules, sum(counts[::2]), sum(counts[1::2])

    before = read()
    time.sleep(args.seconds)
    seconds, joules, frames, seen = (after - start for start, after in zip(before, read(), strict=True))
    for worker in workers:
        worker.kill()
        worker.join()
    return {"fps": frames / seconds, "share": seen / frames, "watts": joules / seconds, "joules": joules / frames}


def idle(seconds: float = 4) -> float:
    counter = gpu_counter(device.current_gpu())
    counter.read()
    before, begun = counter.joules, time.perf_counter()
    time.sleep(seconds)
    counter.read()
    return (counter.joules - before) / (time.perf_counter() - begun)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--rate", type=float, default=4200)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=12)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--clips", type=Path, help="where they are; made there if there are none")
    parser.add_argument("--keep-scores", action="store_true")
    args = parser.parse_args()
    logging.disable(logging.WARNING)
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory() as name:
        folder = args.clips or Path(name)
        folder.mkdir(exist_ok=True)
        with ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn")) as pool:
            clips = sorted(folder.glob("day-*.mp4")) or list(pool.map(made, SEEDS, [folder] * len(SEEDS)))
        print(f"clips are there after {time.perf_counter() - begun:.0f} s", flush=True)
        rows: dict[str, dict[str, Any]] = {}
        recorded = json.loads((RECORDS / "adaptive_gpu.json").read_text())["policies"] if args.keep_scores else {}
        before = {policy: row["scores"] for policy, row in recorded.items()}
        for policy, options in POLICIES.items():
            scores = before.get(policy) or [score(seed, folder, options) for seed in SEEDS[:SCORED]]
            middle = median(found for found, _ in scores)
            rows[policy] = {"map": middle, "scores": scores, "runs": []}
            print(f"{time.perf_counter() - begun:.0f} s: {policy} {scores}", flush=True)
        device.cupy().zeros(1)
        resting = idle()
        print("idle", resting, flush=True)
        files = [clips[number % len(clips)] for number in range(args.streams)]
        for _ in range(args.rounds):
            for policy, options in POLICIES.items():
                rows[policy]["runs"].append(paced(files, options, args, folder))
                print(f"{time.perf_counter() - begun:.0f} s: {policy} {rows[policy]['runs'][-1]}", flush=True)
    for row in rows.values():
        row |= {key: median(run[key] for run in row["runs"]) for key in row["runs"][0]}
        row["joules_above_idle"] = (row["watts"] - resting) / row["fps"]
    setting = {
        "streams": args.streams,
        "clips": len(clips),
        "rate": args.rate,
        "workers": args.workers,
        "batch": BATCH,
        "model": MODEL,
    }
    groups = "adaptive", "engine cudnn", "program", "CUDA program", "pipeline", "synthetic world", "model"
    save("adaptive_gpu", {**setting, "idle_watts": resting, "policies": rows}, *groups)


if __name__ == "__main__":
    main()
