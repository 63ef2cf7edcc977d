"""Is the predicted memory of a run what it takes? And what becomes of a run where a neighbour has most of the GPU?

    python -m benchmarks.gpu.planner clip.mp4 [--models scout-n yolov8n.onnx] [--batches 1 4 8] [--sizes 640 960]
        [--streams 1 8] [--shares 0.7 0.8 0.9 0.95]

Each run is a process of its own, which reads copies of the clip side by side, decoded by NVDEC. Measured is the memory
that NVML counts on the GPU, at its peak, without what was taken before the process began. All models first run once,
side by side and uncounted: to measure convolution kernels takes memory for a moment. Several GPUs share the runs, one
run at a time on each.

A neighbour is an allocation of a share of the GPU. A run beside it must end with all frames, on smaller batches
or fewer of them, or be refused before the model is loaded: `refused`. An error in the middle of a run is `failed`.
The record is planner.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from itertools import product
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.protocol import save
from framefuse import Pipeline
from framefuse.cli.profile import predicted
from framefuse.config import settings_from
from framefuse.cuda import device
from framefuse.errors import CapabilityError, FramefuseError
from framefuse.runtime.power import nvml_handle

POLL = 0.005
"""Seconds between two readings."""
handle_of = cache(nvml_handle)


def run(given: dict[str, Any]) -> None:
    """Prints what became of a run."""
    files, tunes = given.pop("files"), given.pop("tunes", False)
    found: dict[str, Any] = {"frames": 0}
    try:
        pipeline = Pipeline(files if len(files) > 1 else files[0], device="cuda", engine="cudnn", **given)
    except CapabilityError as error:
        print(json.dumps({"refused": error.message}))
        return
    except FramefuseError as error:
        print(json.dumps({"failed": error.message}))
        return
    try:
        with pipeline:
            for _ in pipeline:
                if tunes and not found["frames"]:  # before the end, which closes the engine
                    pipeline.engine.tune()
                found["frames"] += 1
        report = pipeline.report
        found["choices"] = [line for line in report.choices if "batch" in line]
        found["by_the_host"] = sum(any("on the host" in note for note in facts.notes) for facts in report.sources)
        found["left_out"] = [source.info.error for source in pipeline.sources if source.info.error]
    except FramefuseError as error:
        found["failed"] = error.message
    print(json.dumps(found))


def child_of(runs: list[dict[str, Any]], gpu: int) -> subprocess.Popen[str]:
    """A process that does one run after another."""
    words = [sys.executable, "-m", "benchmarks.gpu.planner", "--child", json.dumps(runs)]
    shown = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    alone = {**os.environ, "CUDA_VISIBLE_DEVICES": shown[gpu] if shown[0] else str(gpu)}
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=alone)


def measured(given: dict[str, Any], gpu: int) -> dict[str, Any]:
    """What the child says, and the peak of the memory that it takes, in bytes."""
    before, peak = memory(gpu)[0], 0
    with child_of([given], gpu) as child:
        while child.poll() is None:
            peak = max(peak, memory(gpu)[0] - before)
            time.sleep(POLL)
        assert child.stdout is not None
        lines = child.stdout.read().splitlines()
    return {"peak": peak, **(json.loads(lines[-1]) if lines else {"failed": f"exit code {child.returncode}"})}


def memory(gpu: int) -> tuple[int, int]:
    """Bytes that are taken, and all."""
    nvml, handle = handle_of(gpu)
    found = nvml.nvmlDeviceGetMemoryInfo(handle)
    return int(found.used), int(found.total)


def beside_a_neighbour(given: dict[str, Any], share: float, gpu: int) -> dict[str, Any]:
    cuda = device.cupy().cuda
    with cuda.Device(gpu):
        used, total = memory(gpu)
        neighbour = cuda.memory.Memory(max(0, int(share * total) - used))
        free = total - memory(gpu)[0]
        found = {"share": share, "free_mb": free / 1e6, **measured(given, gpu)}
        del neighbour
    print(found, flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("clip", type=Path, nargs="?")
    parser.add_argument("--models", nargs="+", default=["scout-n", "scout-s"])
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 4, 8])
    parser.add_argument("--sizes", type=int, nargs="+", default=[640, 960])
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--shares", type=float, nargs="+", default=[0.7, 0.8, 0.9, 0.95])
    parser.add_argument("--frames", type=int, default=150, help="of each stream")
    parser.add_argument("--child")
    args = parser.parse_args()
    if args.child:
        for given in json.loads(args.child):
            run(given)
        return
    with Pipeline(args.clip, "squares", device="cpu", engine="null") as probe:
        info = probe.sources[0].info
    size = info.width or 0, info.height or 0
    end = float(args.frames / (info.fps or 30))
    rows = []
    count = device.cupy().cuda.runtime.getDeviceCount()
    free = SimpleQueue[int]()
    for gpu in range(count):
        free.put(gpu)

    def on_one(work: Callable[[int], dict[str, Any]]) -> dict[str, Any]:
        gpu = free.get()
        try:
            return work(gpu)
        finally:
            free.put(gpu)

    with ThreadPoolExecutor(count) as threads, TemporaryDirectory() as folder:
        files = [Path(folder) / f"{number}.mp4" for number in range(max(args.streams))]
        for file in files:
            file.symlink_to(args.clip.absolute())
        cases = []
        for model, batch, imgsz in product(args.models, args.batches, args.sizes):
            # Not every case at every number of streams: decoders add the same to each.
            streams = args.streams[len(cases) % len(args.streams)]
            options = {"model": model, "batch": batch, "imgsz": imgsz, "end": end}
            cases.append({"files": [str(file) for file in files[:streams]], "readers": streams, **options})
        first = [
            child_of([{**case, "tunes": True} for case in cases if case["model"] == model], number % count)
            for number, model in enumerate(args.models)
        ]
        for child in first:
            child.communicate()
        print("all models have run once", flush=True)
        runs = [partial(measured, given) for given in cases]
        peaks = list(threads.map(on_one, runs))  # all of them first: to predict takes memory in this process
        for given, found in zip(cases, peaks, strict=True):
            model, batch, imgsz, streams = (given[name] for name in ("model", "batch", "imgsz", "readers"))
            settings = settings_from({"device": "cuda", "engine": "cudnn", "batch": batch, "imgsz": imgsz})
            plan = predicted(model, streams, size, settings)
            rows.append({"model": Path(model).stem, "batch": batch, "imgsz": imgsz, "streams": streams, **found,
                         "predicted": plan.size, "parts": [part._asdict() for part in plan.parts]})  # fmt: skip
            ratio = plan.size / max(1, found["peak"])
            print(f"{model} {batch} {imgsz} {streams}: {found['peak'] / 1e6:.0f} MB, {ratio:.3f}", found, flush=True)
        given = {"files": [str(file) for file in files], "readers": len(files), "model": args.models[-1],
                 "batch": 64, "imgsz": 1280, "end": end}  # fmt: skip
        beside = list(threads.map(on_one, [partial(beside_a_neighbour, given, share) for share in args.shares]))
    save("planner", {"size": size, "rows": rows, "beside": beside}, "CUDA program", "pipeline", "engine cudnn")


if __name__ == "__main__":
    main()
