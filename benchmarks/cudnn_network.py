"""Times YOLOv8n as engine cudnn runs it: planned memory, fused convolutions, one CUDA graph; no framework around it.

    python -m benchmarks.cudnn_network [MODEL.onnx] [--batches 1 8 32] [--size 640] [--seconds 240]

Measured for each batch, device time between two events around a graph launch (median of 50 launches):

- `serial`: every step on one stream, convolutions as the ONNX lists them
- `merged`: convolutions of one input as one
- `forked`: steps that do not depend on each other on several streams, with and without merging
- `convolutions`: the same without the kernels between convolutions (their results are wrong then; only time counts)
- `decoded`: with the kernels that pack float32 NCHW pictures and turn the raw head into boxes and scores
- `layers`: each convolution alone, as measured when its plan was chosen, and what it reaches of the peak

Then: the error against ONNX Runtime, and how long the build takes cold, from the cache, and in a second process.
The last line of the output is JSON.
"""

import argparse
import json
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from framefuse.engines.cudnn.compiled import Compiled, plan
from framefuse.engines.cudnn.convolutions import Builder, Layer, Plan
from framefuse.engines.cudnn.execution import Execution, Weights, capture
from framefuse.engines.cudnn.network import Conv
from framefuse.engines.cudnn.reading import read
from framefuse.engines.cudnn.rewriting import prepare
from framefuse.kernels import cuda

LAUNCHES = 50


class Plans:
    """Plans by layer, measured once."""

    def __init__(self, builder: Builder) -> None:
        self.builder = builder
        self.known: dict[Layer, Plan] = {}
        self.seconds = 0.0

    def __call__(self, layer: Layer) -> Plan:
        if layer not in self.known:
            started = time.perf_counter()
            self.known[layer] = self.builder.choose(layer)
            self.seconds += time.perf_counter() - started
        return self.known[layer]


def device_us(graph: Any, stream: Any) -> float:
    """Median microseconds of a graph launch between two events."""
    cp = cuda.cupy()
    start, stop, times = cp.cuda.Event(), cp.cuda.Event(), []
    for index in range(LAUNCHES + 10):
        start.record(stream)
        graph.launch(stream)
        stop.record(stream)
        stop.synchronize()
        if index >= 10:
            times.append(cp.cuda.get_elapsed_time(start, stop) * 1e3)
    return round(float(np.median(times)), 1)


def wall_us(graph: Any, stream: Any) -> float:
    """Median microseconds from the launch until the host knows that it has ended."""
    times = []
    for _ in range(LAUNCHES):
        started = time.perf_counter()
        graph.launch(stream)
        stream.synchronize()
        times.append((time.perf_counter() - started) * 1e6)
    return round(float(np.median(times)), 1)


def is_glue(step: object) -> bool:
    """Whether a step is no convolution."""
    return not isinstance(step, Conv)


def measure(path: Path, batch: int, size: int, plans: Plans, pictures: Any) -> dict[str, Any]:
    """All variants at one batch."""
    cp = cuda.cupy()
    stream = cp.cuda.Stream(non_blocking=True)
    row: dict[str, Any] = {"batch": batch}
    for merge, streams in ((False, 1), (True, 1), (False, 4), (True, 2), (True, 4), (True, 6)):
        name = f"{'merged' if merge else 'plain'} {streams} stream{'s' if streams > 1 else ''}"
        network = prepare(read(path, size, size), merge=merge)
        compiled = plan(network, batch, size, size, streams)
        weights = Weights([step for step in compiled.placement.steps if isinstance(step, Conv)])
        execution = Execution(compiled, plans.builder, weights, plans)
        device_pictures = cp.asarray(pictures[:batch])

        def whole(execution: Execution = execution, pictures: Any = device_pictures) -> None:
            execution.pack(pictures, stream)
            execution.start(stream)
            execution.finish(stream)

        def no_glue(execution: Execution = execution) -> None:
            execution.start(stream, skip=is_glue)

        row[name] = {
            "network": device_us(capture(stream, partial(execution.start, stream)), stream),
            "convolutions": device_us(capture(stream, no_glue), stream),
            "arena_mb": round(compiled.memory.size * 2 / 1e6, 1),
            "steps": len(compiled.placement.steps),
        }
        graph = capture(stream, whole)
        row[name] |= {"decoded": device_us(graph, stream), "decoded_wall": wall_us(graph, stream)}
        row[name]["result"] = execution.results[0].get()
        if merge and streams == 1:
            row["layers"] = layers(compiled, execution)
        print(name, {key: value for key, value in row[name].items() if key != "result"}, flush=True)
    return row


def layers(compiled: Compiled, execution: Execution) -> list[dict[str, Any]]:
    """What each convolution takes alone."""
    rows = []
    for index, found in execution.plans.items():
        step = compiled.placement.steps[index]
        assert isinstance(step, Conv)
        work = Layer.of(compiled, step).operations * 2
        rows.append({
            "name": step.name[:60], "weight": list(step.weight.shape), "y": list(compiled.view(step.y).shape),
            "us": round(found.microseconds, 2), "tflops": round(work / found.microseconds / 1e6, 1),
            "engine": found.engine, "index": found.index, "workspace": found.workspace,
        })  # fmt: skip
    return rows


def expected(path: Path, pictures: Any) -> Any:
    """Of ONNX Runtime, float32 on the CPU."""
    import onnxruntime as ort

    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return np.concatenate([session.run(None, {"images": picture[None]})[0] for picture in pictures])


def error(found: Any, wanted: Any) -> dict[str, float]:
    """How far boxes (pixels) and scores are from float32, for all anchors and for those with a score above 0.1."""
    boxes, scores = np.abs(found - wanted)[:, :4], np.abs(found - wanted)[:, 4:]
    likely = wanted[:, 4:].max(1, keepdims=True) > 0.1
    return {
        "relative": float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted)),
        "box_max": float(boxes.max()), "box_p99": float(np.quantile(boxes, 0.99)), "score_max": float(scores.max()),
        "likely_box_max": float(np.where(likely, boxes, 0).max()), "likely": int(likely.sum()),
    }  # fmt: skip


def second_process(path: Path, size: int, cache: Path) -> dict[str, Any]:
    """Seconds to build the network at batch 1 from remembered plans, in a process that has built none."""
    code = (
        "import json,sys,time;t=time.perf_counter()\n"
        "from benchmarks.cudnn_network import *\n"
        "path,size,cache=Path(sys.argv[1]),int(sys.argv[2]),json.load(open(sys.argv[3]))\n"
        "b=Builder();t0=time.perf_counter()\n"
        "c=plan(prepare(read(path,size,size)),1,size,size,4);t1=time.perf_counter()\n"
        "known={}\n"
        "def get(l):\n"
        "  if l not in known: e=cache[l.text];known[l]=b.replay(l,e['engine'],e['knobs'])\n"
        "  return known[l]\n"
        "e=Execution(c,b,Weights([s for s in c.placement.steps if isinstance(s,Conv)]),get);t2=time.perf_counter()\n"
        "s=cuda.cupy().cuda.Stream(non_blocking=True);g=capture(s,lambda:e.start(s));t3=time.perf_counter()\n"
        "print(json.dumps({'start':t0-t,'front':t1-t0,'plans':t2-t1,'count':len(known),'capture':t3-t2,"
        "'us':device_us(g,s)}))"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path), str(size), str(cache)], capture_output=True,
                          text=True, check=False)  # fmt: skip
    return json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else {"error": done.stderr[-600:]}


def serialised(builder: Builder, plans: list[Plan]) -> dict[str, Any]:
    """Whether a built plan can be kept as bytes, and what reading it costs against building it."""
    started = time.perf_counter()
    blobs = [plan.graph.serialize(as_bytes=True) for plan in plans]
    written = time.perf_counter()
    for blob in blobs:
        builder.cudnn.pygraph(handle=builder.handle).deserialize(builder.handle, blob)
    ended = time.perf_counter()
    return {"plans": len(blobs), "bytes": sum(map(len, blobs)), "serialise_s": round(written - started, 3),
            "deserialise_s": round(ended - written, 3)}  # fmt: skip


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, nargs="?")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--size", type=int, default=640)
    parser.add_argument("--candidates", type=int, nargs="+", default=[16, 8, 8], help="plans tried, for each batch")
    parser.add_argument("--plans", type=Path, default=Path("plans.json"), help="where chosen plans are written")
    options = parser.parse_args()
    if options.model is None:
        from benchmarks.models import model

        options.model = model("yolov8n")
    cp = cuda.cupy()
    pictures = np.random.default_rng(3).random((max(options.batches), 3, options.size, options.size), np.float32)
    builder = Builder()
    rows, wanted = [], expected(options.model, pictures[:2])
    result: dict[str, Any] = {
        "benchmark": "cudnn_network", "model": options.model.name, "size": options.size,
        "gpu": cp.cuda.runtime.getDeviceProperties(0)["name"].decode(), "cudnn": builder.cudnn.backend_version(),
        "frontend": builder.cudnn.__version__, "rows": rows,
    }  # fmt: skip
    for batch, candidates in zip(options.batches, options.candidates, strict=False):
        builder.candidates = candidates
        plans = Plans(builder)
        row = measure(options.model, batch, options.size, plans, pictures)
        row |= {"candidates": candidates, "distinct_layers": len(plans.known), "tuning_s": round(plans.seconds, 1),
                "layers_sum_us": round(sum(layer["us"] for layer in row["layers"]), 1)}  # fmt: skip
        for name, variant in row.items():
            if isinstance(variant, dict) and "result" in variant:
                found = variant.pop("result")[:2]
                variant["error"] = error(found, wanted[: len(found)])
                print(batch, name, variant["error"], flush=True)
        rows.append(row)
        if batch == 1:
            options.plans.write_text(json.dumps({layer.text: {"engine": plan.engine, "knobs": plan.knobs}
                                                 for layer, plan in plans.known.items()}))  # fmt: skip
            for name, probe in (
                ("serialised", partial(serialised, builder, list(plans.known.values()))),
                ("second_process", partial(second_process, options.model, options.size, options.plans)),
            ):
                try:
                    result[name] = probe()
                except Exception as failure:  # a probe: the measurements above must not be lost
                    result[name] = {"error": f"{type(failure).__name__}: {failure}"[:600]}
                print(name, result[name], flush=True)
        print(json.dumps(row["layers"][:4]), "failed", len(builder.failed), builder.failed[:3], flush=True)
    result["failed"] = len(builder.failed)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
