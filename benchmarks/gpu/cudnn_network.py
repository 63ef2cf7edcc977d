"""Times YOLOv8n as engine cudnn runs it: planned memory, fused convolutions, one CUDA graph; no framework around it.

    python -m benchmarks.gpu.cudnn_network [MODEL.onnx] [--batches 1 8 32] [--size 640]

Measured for each batch, device time between two events around a graph launch (median of 50 launches):

- `network`: convolutions of one input merged, on one stream, and steps that do not depend on each other on four
- `decoded`: with the kernels that pack float32 NCHW images and turn the raw head into boxes and scores

Then: the error against ONNX Runtime, and how long the engine takes to build in a fresh process, twice: the first time
cold where $XDG_CACHE_HOME has no plans yet, the second time from what the first has written. The record
is cudnn_network, of other models cudnn_network_MODEL, and is written after each batch. The last line is JSON.
"""

import argparse
import json
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.protocol import save
from framefuse.cuda import device
from framefuse.engines.cudnn.compiled import plan
from framefuse.engines.cudnn.convolutions import Builder
from framefuse.engines.cudnn.execution import Execution, Weights
from framefuse.engines.cudnn.importer import import_network
from framefuse.engines.cudnn.network import Conv
from framefuse.engines.cudnn.plans import Plans
from framefuse.engines.cudnn.rewrites import rewrite
from framefuse.engines.requests import capture

LAUNCHES = 50
NOTE = (
    "`error` is against ONNX Runtime in float32 on random weights, which enlarge rounding; gpu_accuracy.json has "
    "trained models. `build` in a fresh process: `open_s` is the CUDA context, `build_s` everything after it."
)


def device_us(graph: Any, stream: Any, launches: int = LAUNCHES) -> float:
    """Median microseconds of a graph launch between two events."""
    cp = device.cupy()
    start, stop, times = cp.cuda.Event(), cp.cuda.Event(), []
    for index in range(launches + 3):
        start.record(stream)
        graph.launch(stream)
        stop.record(stream)
        stop.synchronize()
        if index >= 3:
            times.append(cp.cuda.get_elapsed_time(start, stop) * 1e3)
    return round(float(np.median(times)), 1)


STREAMS = (1, 4)


def measure(path: Path, batch: int, size: int, plans: Plans, images: Any) -> dict[str, Any]:
    """One batch, convolutions of one input merged, on one stream and on several."""
    cp = device.cupy()
    stream = cp.cuda.Stream(non_blocking=True)
    row: dict[str, Any] = {"batch": batch}
    for streams in STREAMS:
        name = f"merged {streams} stream{'s' if streams > 1 else ''}"
        network = rewrite(import_network(path, size, size))
        compiled = plan(network, batch, size, size, streams)
        weights = Weights([step for step in compiled.placement.steps if isinstance(step, Conv)])
        execution = Execution(compiled, plans.builder, weights, plans)
        device_images = cp.asarray(images[:batch])

        def whole(execution: Execution = execution, images: Any = device_images) -> None:
            execution.pack(images, stream)
            execution.start(stream)
            execution.finish(stream)

        whole()  # loads everything that a first launch loads
        stream.synchronize()
        row[name] = {
            "network": device_us(capture(stream, partial(execution.start, stream)), stream),
            "arena_mb": round(compiled.memory.size * 2 / 1e6, 1),
            "steps": len(compiled.placement.steps),
        }
        row[name]["decoded"] = device_us(capture(stream, whole), stream)
        row[name]["result"] = execution.results[0].get()
        print(name, {key: value for key, value in row[name].items() if key != "result"}, flush=True)
    return row


def expected(path: Path, images: Any) -> Any:
    """Of ONNX Runtime, float32 on the CPU."""
    import onnxruntime as ort

    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return np.concatenate([session.run(None, {"images": image[None]})[0] for image in images])


def error(found: Any, wanted: Any) -> dict[str, float]:
    """How far boxes (pixels) and scores are from float32, for all anchors and for those with a score above 0.1."""
    boxes, scores = np.abs(found - wanted)[:, :4], np.abs(found - wanted)[:, 4:]
    likely = wanted[:, 4:].max(1, keepdims=True) > 0.1
    return {
        "relative": float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted)),
        "box_max": float(boxes.max()), "box_p99": float(np.quantile(boxes, 0.99)), "score_max": float(scores.max()),
        "likely_box_max": float(np.where(likely, boxes, 0).max()), "likely": int(likely.sum()),
    }  # fmt: skip


def second_process(path: Path, size: int, batch: int) -> dict[str, Any]:
    """Seconds to open the engine and to make it ready for a batch, in a process that has built nothing."""
    code = (
        "import json,sys,time;t=time.perf_counter()\n"
        "from pathlib import Path\n"
        "from framefuse.engines import EngineOptions,open_engine\n"
        "e=open_engine('cudnn',Path(sys.argv[1]),EngineOptions('cuda',layout='yolov8'));t1=time.perf_counter()\n"
        "x=e.execution(int(sys.argv[3]),int(sys.argv[2]),int(sys.argv[2]));t2=time.perf_counter()\n"
        "from framefuse.cuda import device\n"
        "from framefuse.engines.requests import capture\n"
        "s=device.cupy().cuda.Stream(non_blocking=True);x.start(s);s.synchronize();g=capture(s,lambda:x.start(s));t3=time.perf_counter()\n"
        "print(json.dumps({'open_s':t1-t,'build_s':t2-t1,'capture_s':t3-t2,'reasons':list(e.reasons)}))"
    )
    return in_process(code, path, size, batch)


def in_process(code: str, *arguments: object) -> dict[str, Any]:
    """The JSON that Python code prints last, run in a process of its own."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return dict(json.loads(done.stdout.splitlines()[-1]))
    return {"error": f"exit {done.returncode}: {done.stdout[-300:]} {done.stderr[-900:]}"}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, nargs="?")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--size", type=int, default=640)
    options = parser.parse_args()
    if options.model is None:
        from benchmarks.models import model

        options.model = model("yolov8n")
    images = np.random.default_rng(3).random((max(options.batches), 3, options.size, options.size), np.float32)
    builder = Builder()
    rows, wanted = [], expected(options.model, images[:2])
    name = "cudnn_network" if options.model.stem == "yolov8n" else f"cudnn_network_{options.model.stem}"
    result: dict[str, Any] = {
        "note": NOTE, "model": options.model.name,
        "size": options.size,
        "cudnn": builder.cudnn.backend_version(),
        "frontend": builder.cudnn.__version__, "rows": rows,
    }  # fmt: skip
    for batch in options.batches:
        built = {attempt: second_process(options.model, options.size, batch) for attempt in ("cold", "cached")}
        print(built, flush=True)
        plans = Plans(builder)
        row = measure(options.model, batch, options.size, plans, images)
        plans.save()
        row |= {"build": built, "candidates": builder.candidates}
        for kind, variant in row.items():
            if isinstance(variant, dict) and "result" in variant:
                found = variant.pop("result")[:2]
                variant["error"] = error(found, wanted[: len(found)])
                print(batch, kind, variant["error"], flush=True)
        rows.append(row)
        save(name, {**result, "failed": len(builder.failures)}, "network kernel", "engine cudnn")


if __name__ == "__main__":
    main()
