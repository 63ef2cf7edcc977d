"""Times a GPU program from surface to boxes: 1080p NV12 on the GPU -> preprocess -> engine cudnn -> boxes on the host.

    python -m benchmarks.gpu.program [MODEL.onnx] [--batches 1 8 32]

Frames are frames of the benchmark scene (noise where --noise), as NV12 surfaces that are on the GPU already, as a
decoder leaves them. Measured for each batch:

- `wall`: from handing a batch to the program to having its detections, one batch at a time; median and p99
- `graph`: device time of the captured graph alone
- `fps`: batches handed over as fast as the program takes them, two in flight

The record gpu_program is written after each row. The last line of the output is JSON.
"""

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.protocol import save
from framefuse.cuda import device
from framefuse.engines import EngineOptions, open_engine
from framefuse.frame import PIXEL_FORMATS, Frame
from framefuse.models.card import read_card
from framefuse.preprocess import Preprocess
from framefuse.runtime.cuda.program import CudaProgram
from framefuse.runtime.program import Selection

WIDTH, HEIGHT = 1920, 1080
SURFACES = 64
RUNS = 200


GROUPS = ("CUDA kernel", "engine cudnn", "program", "CUDA program")


def images(count: int, noise: bool) -> list[np.ndarray[Any, Any]]:
    """NV12 images (height * 3 / 2, width)."""
    if noise:
        return list(np.random.default_rng(0).integers(16, 235, (count, HEIGHT * 3 // 2, WIDTH), np.uint8))
    from benchmarks.scene import Scene

    scene, made = Scene(frames=300), []
    for index in np.linspace(0, 299, count).astype(int):
        red, green, blue = scene.render(int(index)).astype(np.float32).transpose(2, 0, 1)
        luma = 16 + (65.481 * red + 128.553 * green + 24.966 * blue) / 255
        halves = [plane.reshape(HEIGHT // 2, 2, WIDTH // 2, 2).mean((1, 3)) for plane in (red, green, blue)]
        u = 128 + (-37.797 * halves[0] - 74.203 * halves[1] + 112 * halves[2]) / 255
        v = 128 + (112 * halves[0] - 93.786 * halves[1] - 18.214 * halves[2]) / 255
        chroma = np.stack([u, v], -1).reshape(HEIGHT // 2, WIDTH)
        made.append(np.concatenate([luma, chroma]).round().astype(np.uint8))
    return made


def frames(made: list[Any]) -> list[Frame]:
    """As Frames, on the host or on the GPU, wherever the arrays are."""
    return [
        Frame((data[:HEIGHT], data[HEIGHT:].reshape(HEIGHT // 2, WIDTH // 2, 2)), PIXEL_FORMATS["nv12"], index)
        for index, data in enumerate(made)
    ]


def one_by_one(program: Any, surfaces: list[Frame], batch: int, runs: int = RUNS) -> dict[str, Any]:
    """Latency of a batch that has the GPU for itself, microseconds; and how many boxes there were."""
    times, boxes = [], 0
    for run in range(runs + 20):
        chosen = [surfaces[(run * batch + slot) % len(surfaces)] for slot in range(batch)]
        started = time.perf_counter()
        done = [*program.submit(chosen), *program.drain()]
        times.append((time.perf_counter() - started) * 1e6)
        boxes += sum(len(item.result.detections.confidence) for item in done)
    kept = np.array(times[20:])
    return {
        "median_us": round(float(np.median(kept)), 1), "p99_us": round(float(np.quantile(kept, 0.99)), 1),
        "boxes": round(boxes / (len(times) * batch), 1),
    }  # fmt: skip


def throughput(program: Any, surfaces: list[Frame], batch: int, seconds: float = 2.0) -> float:
    """Frames a second with as many batches in flight as the program takes."""
    count, run = 0, 0
    started = time.perf_counter()
    while time.perf_counter() - started < seconds:
        chosen = [surfaces[(run * batch + slot) % len(surfaces)] for slot in range(batch)]
        count += sum(1 for _ in program.submit(chosen))
        run += 1
    count += sum(1 for _ in program.drain())
    return round(count / (time.perf_counter() - started), 1)


def graph_us(program: Any) -> float:
    """Device microseconds of the captured graph."""
    cp = device.cupy()
    captured = next(iter(program._captured.values()))[0]
    start, stop, times = cp.cuda.Event(), cp.cuda.Event(), []
    for _ in range(60):
        start.record(captured._stream)
        for launch in captured._launches:
            launch()
        stop.record(captured._stream)
        stop.synchronize()
        times.append(cp.cuda.get_elapsed_time(start, stop) * 1e3)
    return round(float(np.median(times[10:])), 1)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, nargs="?")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--noise", action="store_true")
    parser.add_argument("--rectangular", action="store_true", help="640x384 instead of 640x640")
    options = parser.parse_args()
    if options.model is None:
        from benchmarks.models import model

        options.model = model("yolov8n")
    cp = device.cupy()
    card = read_card(options.model)
    preprocess = Preprocess(640, 640, rectangular=options.rectangular)
    selection = Selection()
    made = images(8, options.noise)
    resident = frames([cp.asarray(made[index % len(made)]) for index in range(SURFACES)])
    result: dict[str, Any] = {"model": options.model.name, "rows": []}
    for batch in options.batches:
        for layout in ("yolov8", None):  # the head folded into post-processing, and decoded as the ONNX writes it
            engine = open_engine("cudnn", options.model, EngineOptions("cuda", layout=layout))
            program = CudaProgram(engine, card, preprocess, selection, batch=batch)  # type: ignore[arg-type]
            started = time.perf_counter()
            first = [*program.submit(resident[:batch]), *program.drain()]
            row: dict[str, Any] = {"batch": batch, "path": "gpu", "folded": layout is not None,
                                   "first_s": round(time.perf_counter() - started, 2),
                                   "first_boxes": len(first[0].result.detections.confidence)}  # fmt: skip
            row |= {"wall": one_by_one(program, resident, batch), "fps": throughput(program, resident, batch)}
            copied = {kind: program.ledger.crossed(kind) / program.ledger.frames for kind in ("pixels", "control")}
            row |= {"graph_us": graph_us(program), "bytes_a_frame": copied}
            row["engine"] = list(engine.reasons)[-2:]
            program.close()
            result["rows"].append(row)
            save("gpu_program", result, *GROUPS)


if __name__ == "__main__":
    main()
