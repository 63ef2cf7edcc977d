"""Does the copy ledger tell the truth? Its bytes beside those that CUPTI recorded in the same run, and every CUDA call.

    python -m benchmarks.gpu.ledger CLIP.mp4 [MODEL.onnx] [--engine cudnn]

Each row is one run: surfaces that are on the GPU, NVDEC's surfaces, frames decoded on the host, frames drawn after it.
`ledger` and `cupti` are bytes a frame by direction; `calls` are those of the thread that launches, a batch.
The record is ledger.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import protocol

DIRECTIONS = ("h2d", "d2h", "d2d")
BATCHES = 200
START = 100
WAITS = ("Synchronize", "StreamWaitValue")


def compared(ledger: dict[str, float], seen: Any, frames: int, batches: int) -> dict[str, Any]:
    """A row: bytes a frame by direction of both books, and what the launching thread called, a batch."""
    cupti = {way: seen.copied[way] / frames for way in DIRECTIONS}
    calls = seen.of_launching_threads()
    calls["cudaDeviceSynchronize"] -= 1  # that of the trace itself, where it ends in this thread
    calls = +calls
    return {
        "frames": frames,
        "batches": batches,
        "ledger": {way: ledger.get(way, 0.0) for way in DIRECTIONS},
        "cupti": cupti,
        "difference": {
            way: (cupti[way] - ledger.get(way, 0.0)) / max(cupti[way], ledger.get(way, 0.0), 1.0) for way in DIRECTIONS
        },
        "largest_copy": {way: max((size for name, size, _ in seen.copies if name == way), default=0)
                         for way in DIRECTIONS},
        "graph_launches_a_batch": sum(count for name, count in calls.items() if "GraphLaunch" in name) / batches,
        "waits_a_batch": {
            name: count / batches for name, count in calls.items() if any(word in name for word in WAITS)
        },
        "calls_a_batch": {name: round(count / batches, 3) for name, count in calls.most_common(25)},
    }  # fmt: skip


def crossing(ledger: Any) -> Counter[str]:
    """Bytes by direction."""
    found: Counter[str] = Counter()
    for copy, size in ledger.totals().items():
        found[copy.direction] += size
    return found


def program_row(trace: Any, model: Path, engine: str, frames: list[Any], batch: int, way: str = "copy") -> Any:
    """The program alone, one batch at a time, so that each wait is for a result."""
    from framefuse.engines import EngineOptions, open_engine
    from framefuse.models.card import read_card
    from framefuse.preprocess import Preprocess
    from framefuse.runtime.cuda.program import CudaProgram
    from framefuse.runtime.program import Selection

    opened = open_engine(engine, model, EngineOptions("cuda", layout="yolov8"))
    program = CudaProgram(
        opened, read_card(model), Preprocess(640, 640, rectangular=True), Selection(), batch=batch, mode=way
    )  # type: ignore[arg-type]
    for _ in range(3):
        [*program.submit(frames[:batch]), *program.drain()]
    before, counted = crossing(program.ledger), program.ledger.frames
    trace.begin()
    for run in range(BATCHES):
        [*program.submit([frames[(run * batch + slot) % len(frames)] for slot in range(batch)]), *program.drain()]
    seen = trace.end()
    count = program.ledger.frames - counted
    ledger = {name: size / count for name, size in (crossing(program.ledger) - before).items()}
    program.close()
    return compared(ledger, seen, count, BATCHES)


def pipeline_row(trace: Any, clip: Path, model: Path, batch: int, **options: Any) -> Any:
    """A run of `Pipeline` over the clip, four times for each image of a batch; both books are opened after START
    frames, since the model is loaded and the graph captured before, and while nothing is in flight."""
    from benchmarks.gpu.cupti_trace import come_to_rest
    from framefuse.pipeline import Pipeline

    pipeline = Pipeline([clip] * 4 * batch, model, device="cuda", batch=batch, **options)
    program = pipeline._program

    def booked() -> Counter[str]:
        decoded = sum(info.copied for info in pipeline._inputs.infos())
        return crossing(program.ledger) + Counter({"d2d": decoded})

    before, counted = Counter[str](), 0
    for number, _ in enumerate(pipeline, 1):
        if number == START:
            come_to_rest(lambda: program.ledger.frames)
            trace.begin()
            before, counted = booked(), program.ledger.frames
    seen = trace.end()
    count = program.ledger.frames - counted
    ledger = {name: size / count for name, size in (booked() - before).items()}
    row = compared(ledger, seen, count, -(-count // batch))
    report = pipeline.report
    row["report"] = [vars(copy) for copy in report.copies]
    row["decoder"] = [note for info in report.sources for note in info.notes]
    return row


def measure(clip: Path, model: Path, engine: str) -> dict[str, Any]:
    """Every row that this machine can run; a row that fails says why."""
    import cupy as cp

    from benchmarks.gpu.cupti_trace import Trace
    from benchmarks.gpu.program import frames, images

    made = images(4, noise=True)
    resident = frames([cp.asarray(made[index % len(made)]) for index in range(16)])
    rows: dict[str, Any] = {}
    with Trace() as trace:
        jobs: dict[str, Callable[[], Any]] = {
            "surfaces on the GPU": lambda: program_row(trace, model, engine, resident, 1),
            "surfaces on the GPU, batch 8, engine null": lambda: program_row(trace, model, "null", resident, 8),
            "host frames, copied": lambda: program_row(trace, model, engine, frames(made), 1),
            "host frames, mapped": lambda: program_row(trace, model, engine, frames(made), 1, "mapped"),
            "host frames, managed": lambda: program_row(trace, model, engine, frames(made), 1, "managed"),
            "NVDEC to boxes": lambda: pipeline_row(trace, clip, model, 1, engine=engine),
            "NVDEC to boxes, batch 4, engine null": lambda: pipeline_row(trace, clip, model, 4, engine="null"),
        }
        for name, job in jobs.items():
            try:
                rows[name] = job()
            except Exception as error:  # the other rows are worth having
                rows[name] = {"failed": f"{type(error).__name__}: {error}"[:500]}
            print(name, json.dumps(rows[name])[:1500], flush=True)
        with tempfile.TemporaryDirectory() as folder:
            name = "NVDEC to boxes, drawn on the host"
            try:
                rows[name] = pipeline_row(trace, clip, model, 1, engine=engine, save=True, project=folder)
            except Exception as error:
                rows[name] = {"failed": f"{type(error).__name__}: {error}"[:500]}
    return {"model": model.name, "engine": engine, "clip": clip.name, "rows": rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("clip", type=Path, nargs="?")
    parser.add_argument("model", type=Path, nargs="?")
    parser.add_argument("--engine", default="cudnn")
    options = parser.parse_args()
    if options.model is None:
        from benchmarks.models import model

        options.model = model("yolov8n")
    found = measure(options.clip, options.model, options.engine)
    protocol.save("ledger", found, "CUDA kernel", "engine cudnn", "program", "CUDA program", "pipeline")


if __name__ == "__main__":
    main()
