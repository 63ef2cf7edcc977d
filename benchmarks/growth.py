"""What is left behind: memory, threads and files after many frames, many runs, and many sources that come and go.

    python -m benchmarks.growth [--device cuda] [--frames 30720] [--cycles 200] [--swaps 6000]

- `frames`: one run over a long file; every 1,024 frames its source pauses until nothing is on its way, and the memory
  is read
- `cycles`: runs that are opened, read for a few frames, and closed
- `swaps`: sources that a running pipeline takes in and gives back, one frame each, and one of a source that stays

The first half of each is left out: some memory is taken once, little by little. A slope is that of the line of least
squares. The heap is what the C library has handed out. Python's objects are in it, because their own allocator is
switched off for the measurement (PYTHONMALLOC=malloc), as are the C library's caches of each thread. A GPU's memory is
what the driver says is taken, by any process. The record, growth or growth_gpu, is written after each part.
"""

from __future__ import annotations

import argparse
import gc
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import heap
from benchmarks.clips import long_clip
from benchmarks.protocol import save
from framefuse import FrameFeed, Pipeline
from framefuse.frame import Frame
from framefuse.sources import Source
from training.squares_clip import squares_clip

MODEL, SIZE, FRAMES = "squares", (640, 480), 256
"""Size in pixels and frames of the clip."""
EVERY, PAUSE = 1024, 1.0
"""Frames between two readings, and the seconds for which the source then waits."""
WARM_UP, TAKEN = 0.5, 8
"""Share of the readings that is left out, and frames that are taken from each of many runs."""
CLEAR_NAMES: Callable[[], None] = getattr(sys, "_clear_internal_caches", None) or sys._clear_type_cache
KINDS, MOST = ("heap", "threads", "files", "gpu"), 10_000
"""What is read, and how often at most."""
GROUPS = "program", "pipeline"
ENGINES = {"cpu": ("engine openvino",), "cuda": ("engine cudnn", "CUDA program")}


class Readings:
    """Rows of numbers in memory that does not grow: it would be measured, too."""

    def __init__(self) -> None:
        self._rows, self._count = np.zeros((MOST, len(KINDS)), np.int64), 0

    def add(self, *row: int) -> None:
        self._rows[self._count] = row
        self._count += 1

    def summary(self, each: float) -> dict[str, Any]:
        """Slopes per 1,000 units, of readings that are `each` units apart; what was there at first, and at last."""
        used = self._rows[int(WARM_UP * self._count) : self._count]
        units = [each * number for number in range(len(used))]
        found: dict[str, Any] = {"readings": len(used)}
        for name, values in zip(KINDS, used.T.tolist(), strict=True):
            slope = statistics.linear_regression(units, values).slope
            found[name] = {"per_1000": 1000 * slope, "first": values[0], "last": values[-1]}
        return found


class Meter:
    """Reads what the process holds."""

    def __init__(self, device: str) -> None:
        self._on_gpu = device == "cuda"

    def read(self, readings: Readings) -> None:
        """Append what the process holds now."""
        gc.collect()
        CLEAR_NAMES()  # 4,096 entries of a cache keep the names that C code looks up, and it fills slowly
        taken = 0
        if self._on_gpu:
            from cupy.cuda import runtime

            free, total = runtime.memGetInfo()
            taken = total - free
        files = len(os.listdir("/proc/self/fd"))
        readings.add(heap.in_use(), threading.active_count(), files, taken)


class Paused:
    """A source that pauses now and then, after which `meter` has read what the process holds."""

    def __init__(self, source: Source, meter: Meter) -> None:
        self.info, self.close, self._source, self._meter = source.info, source.close, source, meter
        self.readings = Readings()

    def __iter__(self) -> Iterator[Frame]:
        for number, frame in enumerate(self._source):
            if number and number % EVERY == 0:
                time.sleep(PAUSE)
                self._meter.read(self.readings)
            yield frame


def frames(clip: Path, device: str, meter: Meter) -> dict[str, Any]:
    """One run over a file."""
    pipeline = Pipeline(clip, MODEL, device=device)
    paused = Paused(pipeline.sources[0], meter)
    pipeline._inputs.numbered[0] = paused
    begun = time.perf_counter()
    done = sum(1 for _ in pipeline)
    return {"frames": done, "seconds": time.perf_counter() - begun, **paused.readings.summary(EVERY)}


def cycles(clip: Path, count: int, device: str, meter: Meter) -> dict[str, Any]:
    """So many runs of a few frames."""
    readings = Readings()
    for _ in range(count):
        with Pipeline(clip, MODEL, device=device) as pipeline:
            assert len(list(islice(pipeline, TAKEN))) == TAKEN
        del pipeline
        meter.read(readings)
    return {"cycles": count, **readings.summary(1)}


def swaps(count: int, device: str, meter: Meter) -> dict[str, Any]:
    """So many sources in one run."""
    image, readings = np.zeros((SIZE[1], SIZE[0], 3), np.uint8), Readings()
    stays = FrameFeed("stays")
    with Pipeline(stays, MODEL, device=device).start() as pipeline:
        for number in range(count):
            other = FrameFeed(f"camera {number:06}")
            pipeline.add_source(other)
            other.submit(image)
            pipeline.get_result(60)
            pipeline.remove_source(other.info.uri)
            stays.submit(image)
            pipeline.get_result(60)
            if number % 10 == 9:
                meter.read(readings)
        stays.finish()
    return {"swaps": count, **readings.summary(10)}


def main() -> None:
    if os.environ.get("PYTHONMALLOC") != "malloc":
        environment = {**os.environ, "PYTHONMALLOC": "malloc", "GLIBC_TUNABLES": "glibc.malloc.tcache_count=0"}
        os.execve(sys.executable, [sys.executable, "-m", "benchmarks.growth", *sys.argv[1:]], environment)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=ENGINES, default="cpu")
    parser.add_argument("--frames", type=int, default=30 * EVERY)
    parser.add_argument("--cycles", type=int, default=200)
    parser.add_argument("--swaps", type=int, default=6000)
    args = parser.parse_args()
    meter, facts = Meter(args.device), dict[str, Any]()
    with tempfile.TemporaryDirectory() as folder:
        short = Path(folder, "short.mp4")
        squares_clip(short, frames=FRAMES, size=SIZE)
        long = long_clip(short, Path(folder, "long.mp4"), -(-(args.frames + 1) // FRAMES))
        parts: dict[str, Callable[[], dict[str, Any]]] = {
            "frames": lambda: frames(long, args.device, meter),
            "cycles": lambda: cycles(short, args.cycles, args.device, meter),
            "swaps": lambda: swaps(args.swaps, args.device, meter),
        }
        record = "growth_gpu" if args.device == "cuda" else "growth"
        for name, part in parts.items():
            facts[name] = part()
            print(name, facts[name], flush=True)
            save(record, {"device": args.device, "model": MODEL, **facts}, *GROUPS, *ENGINES[args.device])


if __name__ == "__main__":
    main()
