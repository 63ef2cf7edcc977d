"""First boxes on a GPU from a cold start, in processes of their own.

    python -m benchmarks.gpu.cold CLIP.mp4 MODEL.onnx [MODEL.onnx ...] [--rounds 3]

For each model: a video, with empty caches of kernels and with those of the run before; then images one by one with
empty caches, until the kernels that were measured beside the work have come, and in another size after that. Seconds
count from the start of the process. Before that, a run that does not count leaves Python's bytecode of all packages, as
pip does where it installs them. The record is cold_start.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.protocol import save

MOST_SECONDS = 60
"""For which measured kernels are waited for."""
AFTER = 200
"""Calls that are timed after that."""
SIZE, OTHER_INPUT = (1080, 1920), 480
"""Height and width of an image, and the side of the input in the second size."""


def video(model: str, clip: str, begun: float) -> dict[str, Any]:
    from framefuse import Pipeline

    with Pipeline(clip, model, device="cuda", engine="cudnn") as pipeline:
        opened = time.time() - begun
        results = iter(pipeline)
        next(results)
        first = time.time() - begun
        return {"opened_s": opened, "first_s": first, "frames": 1 + sum(1 for _ in results)}


def images(model: str, clip: str, begun: float) -> dict[str, Any]:
    from framefuse import Model

    picture = np.random.default_rng(0).integers(0, 255, (*SIZE, 3), np.uint8)
    with Model(model, device="cuda", engine="cudnn") as opened:
        found: dict[str, Any] = {"opened_s": time.time() - begun}
        before = _times(lambda: opened(picture), lambda: _swapped(opened.engine), MOST_SECONDS)
        found |= {"first_s": found["opened_s"] + before[0], "tuned_s": time.time() - begun, "calls": len(before)}
        after = _times(lambda: opened(picture), lambda: False, MOST_SECONDS, AFTER)
        found |= {
            "before_ms": 1e3 * median(before[1:]),
            "after_ms": 1e3 * median(after),
            "worst_ms": 1e3 * max(before[1:]),
        }
        found["reasons"] = opened.engine.reasons
    return found


def other_size(model: str, clip: str, begun: float) -> dict[str, Any]:
    """Of a model that the process has used in its usual size."""
    from framefuse import Model

    picture = np.zeros((*SIZE, 3), np.uint8)
    with Model(model, device="cuda", engine="cudnn") as usual:
        usual(picture)
    started = time.time()
    with Model(model, device="cuda", engine="cudnn", imgsz=OTHER_INPUT) as opened:
        opened(picture)
        return {"second_size_s": time.time() - started}


def _swapped(engine: Any) -> bool:
    return any("measured beside the work" in reason for reason in engine.reasons)


def _times(call: Any, done: Any, seconds: float, most: int = sys.maxsize) -> list[float]:
    times: list[float] = []
    end = time.time() + seconds
    while time.time() < end and len(times) < most and not done():
        started = time.perf_counter()
        call()
        times.append(time.perf_counter() - started)
    return times


KINDS = {"video": video, "images": images, "other size": other_size}


def run(kind: str, model: str, clip: str, cache: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.gpu.cold", "--child", kind, clip, model]
    environment = {**os.environ, "XDG_CACHE_HOME": cache, "BEGUN": str(time.time())}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        return {"error": done.stderr[-1000:]}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("clip")
    parser.add_argument("models", nargs="+")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--child", choices=KINDS)
    args = parser.parse_args()
    if args.child:
        print(json.dumps(KINDS[args.child](args.models[0], args.clip, float(os.environ["BEGUN"]))))
        return
    rows = []
    with tempfile.TemporaryDirectory() as cache:
        run("video", args.models[0], args.clip, cache)
    for number in range(args.rounds):
        for model in args.models:
            with tempfile.TemporaryDirectory() as cold, tempfile.TemporaryDirectory() as other:
                for kind, start, cache in (
                    ("video", "empty caches", cold),
                    ("images", "empty caches", other),
                    ("video", "after a run", other),
                    ("other size", "after a run", other),
                ):
                    row = {"round": number, "model": Path(model).name, "kind": kind, "start": start}
                    rows.append(row | run(kind, model, args.clip, cache))
                    print(rows[-1], flush=True)
    save("cold_start", {"rows": rows}, "engine cudnn", "CUDA kernel", "network kernel", "program", "CUDA program")


if __name__ == "__main__":
    main()
