"""Nine networks of many kinds on the CPU: framefuse's engine beside ONNX Runtime and OpenVINO itself.

    python -m benchmarks.networks --peers-python .venv-peers/bin/python [--rounds 4] [--only NAME...]

network_graphs.py makes them with random weights; the peers' environment needs transformers and onnxscript, too. All
take turns in every round. The input is in place, in the format that each takes, since preprocessing writes it there. As
many requests are in flight as suit each: framefuse's own number, OpenVINO's under its hint THROUGHPUT, which its own
benchmark uses, and one for ONNX Runtime, whose threads share one. `auto` is what framefuse and OpenVINO choose where
nothing is asked for; the other rows are FP32.

`agrees`: the distance of framefuse's FP32 outputs from ONNX Runtime's, as a share of their spread.

Results go to benchmarks/records/networks.json.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.protocol import ROOT, save
from framefuse.engines import EngineOptions, open_engine

NAMES = ("yolo26n", "yolo11s", "yolov8n-seg", "yolov8n-pose", "yolox-s", "rtdetr-r18", "deeplabv3plus", "resnet18",
         "resnet50")  # fmt: skip
Run = Callable[[int], None]
"""Runs so many images."""


class Ours:
    """framefuse's engine for CPUs."""

    def __init__(self, path: Path, precision: Any, image: Any) -> None:
        self._engine = open_engine("openvino", path, EngineOptions("cpu", precision))
        self._pool = self._engine.request_pool(image.shape[0], *image.shape[2:], 0)
        self._image, self.precision, self._filled = image, self._engine.precision, set[int]()

    def outputs(self) -> list[Any]:
        slot = self._pool.acquire()
        slot.write(self._image)
        self._pool.submit(slot)
        self._pool.wait(slot)
        found = [np.array(output, np.float32) for output in slot.outputs]
        self._pool.release(slot)
        return found

    def __call__(self, count: int) -> None:
        started = list[Any]()
        for _ in range(count):
            slot = self._pool.acquire()
            if slot is None:
                self._finish(started.pop(0))
                slot = self._pool.acquire()
            if id(slot) not in self._filled:
                slot.write(self._image)
                self._filled.add(id(slot))
            self._pool.submit(slot)
            started.append(slot)
        for slot in started:
            self._finish(slot)

    def _finish(self, slot: Any) -> None:
        self._pool.wait(slot)
        self._pool.release(slot)


def onnxruntime(path: Path, image: Any) -> tuple[Run, list[Any]]:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = len(os.sched_getaffinity(0))
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    feed = {session.get_inputs()[0].name: image}

    def run(count: int) -> None:
        for _ in range(count):
            session.run(None, feed)

    return run, session.run(None, feed)


def openvino(path: Path, image: Any, *, fp32: bool) -> Run:
    import openvino as ov

    options = {"PERFORMANCE_HINT": "THROUGHPUT"} | ({"INFERENCE_PRECISION_HINT": "f32"} if fp32 else {})
    queue = ov.AsyncInferQueue(ov.Core().compile_model(str(path), "CPU", options))
    for request in queue:
        request.set_input_tensor(0, ov.Tensor(image, shared_memory=True))

    def run(count: int) -> None:
        for _ in range(count):
            queue.start_async()
        queue.wait_all()

    return run


def compare(name: str, path: Path, rounds: int, seconds: float) -> dict[str, Any]:
    import onnx

    shape = [axis.dim_value or 1 for axis in onnx.load(path).graph.input[0].type.tensor_type.shape.dim]
    image = np.random.default_rng(0).random(shape, np.float32)
    ours = {precision: Ours(path, precision, image) for precision in ("auto", "fp32")}
    theirs, reference = onnxruntime(path, image)
    sides: dict[str, Run] = {
        "framefuse, auto": ours["auto"], "OpenVINO, auto": openvino(path, image, fp32=False),
        "framefuse": ours["fp32"], "OpenVINO": openvino(path, image, fp32=True), "ONNX Runtime": theirs,
    }  # fmt: skip
    rates: dict[str, list[float]] = {side: [] for side in sides}
    for number in range(rounds + 1):
        for side, run in random.Random(number).sample(list(sides.items()), len(sides)):
            begun, done = time.perf_counter(), 0
            while (taken := time.perf_counter() - begun) < seconds:
                run(8)
                done += 8
            if number:
                rates[side].append(done / taken)
    apart = max(
        float(np.sqrt(np.mean((one.ravel() - other.ravel()) ** 2)) / max(1e-6, float(other.std())))
        for one, other in zip(ours["fp32"].outputs(), reference, strict=True)
    )
    return {"name": name, "shape": shape, "precision": ours["auto"].precision, "agrees": apart,
            "rates": {side: median(found) for side, found in rates.items()}}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers-python", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=1.5)
    parser.add_argument("--only", choices=NAMES, nargs="*", default=NAMES)
    args = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name in args.only:
            path = Path(folder) / f"{name}.onnx"
            words, variables = [args.peers_python.absolute(), "-m", "benchmarks.network_graphs", name, path], os.environ
            subprocess.run(
                words, check=True, cwd=folder, env=variables | {"PYTHONPATH": str(ROOT)}, capture_output=True
            )
            rows.append(compare(name, path, args.rounds, args.seconds))
            print(rows[-1], flush=True)
    if set(args.only) == set(NAMES):
        save("networks", {"rows": rows}, "engine openvino")


if __name__ == "__main__":
    main()
