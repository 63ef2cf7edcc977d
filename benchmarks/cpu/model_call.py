"""What a call of `framefuse.Model` costs beside the network's own time: one 1080p image after another, on the CPU.

    python -m benchmarks.cpu.model_call [MODEL ...] [--calls 60]

- `network`: the engine alone runs on an input that is there already
- `call`: `model(image)`, from an array to boxes
- `pipeline`: a Pipeline for each image, which opens the model anew (3 of them)

All take turns within one process, on frames of the benchmark scene. The last line of the output is JSON.
"""

import argparse
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.models import model as benchmark_model
from benchmarks.protocol import save
from benchmarks.scene import Scene
from framefuse import Model, Pipeline
from framefuse.models import find_model

GROUPS = ("CPU kernel", "program", "pipeline", "model call", "engine openvino")


def measure(path: Path, calls: int) -> dict[str, Any]:
    """Milliseconds of each, medians over calls."""
    scene = Scene(frames=300)
    images = [np.ascontiguousarray(scene.render(index)[..., ::-1]) for index in (0, 99, 199, 299)]
    model = Model(path)
    height, width = images[0].shape[:2]
    size = model.card.preprocess.place(width, height).size
    pool = model.engine.request_pool(1, size[1], size[0], 1)
    times: dict[str, list[float]] = {"network": [], "call": [], "pipeline": []}

    def network(image: Any) -> None:
        slot = pool.acquire()
        assert slot is not None
        pool.submit(slot)
        pool.wait(slot)
        pool.release(slot)

    boxes = 0
    for number in range(calls + 5):
        for name, run in ("network", network), ("call", model):
            started = time.perf_counter()
            found = run(images[number % len(images)])
            times[name].append((time.perf_counter() - started) * 1e3)
        boxes += len(found.detections)
    for _ in range(3):
        started = time.perf_counter()
        Pipeline([images[0]], path, preset="latency").run()
        times["pipeline"].append((time.perf_counter() - started) * 1e3)
    found = {name: round(median(taken[5:] or taken), 2) for name, taken in times.items()}
    return {
        "model": path.stem, "input": f"{size[0]}x{size[1]}", "engine": f"{model.engine.name} {model.engine.precision}",
        "boxes": round(boxes / (calls + 5), 1), **found, "ratio": round(found["call"] / found["network"], 3),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", help="default: yolov8n with weights at random, scout-n and scout-s")
    parser.add_argument("--calls", type=int, default=60)
    options = parser.parse_args()
    paths = [find_model(name) for name in options.models or ["scout-n", "scout-s"]]
    if not options.models:
        paths.insert(0, benchmark_model("yolov8n"))
    save("model_call", {"rows": [measure(path, options.calls) for path in paths]}, *GROUPS)


if __name__ == "__main__":
    main()
