"""What tuning gives: YOLOv8n and YOLOv5s on the CPU through TVM, untuned and tuned, at FP32 and FP16.

    for p in fp32 fp16; do framefuse tune yolov8n.onnx --size 640x640 --precision $p --trials 4; done
    python -m benchmarks.cpu.tvm_tuning [MODEL ...] [--precisions fp32 fp16] [--database DIR]

Untuned is what TVM compiles without a database: fused plain loops. Tuned takes the best schedule that the database has
for each function. The variants of a model run in turn, so that a busy machine slows all of them; ratios are of medians.
The last line of the output is JSON.
"""

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.models import model as benchmark_model
from benchmarks.protocol import save
from framefuse.common.machine import available_cores
from framefuse.engines.tvm import compiling, engine, package, targets, tuning
from framefuse.engines.tvm.compiling import import_model

SIZE = 640
ROUNDS = 3


def machine(path: Path, target: targets.Target, precision: str, database: tuning.Records | None) -> Any:
    """TVM's virtual machine over a compiled model."""
    tvm = package.tvm()
    built = engine.artifact(path, (1, 3, SIZE, SIZE), target, precision, records=database)
    return tvm.relax.VirtualMachine(tvm.runtime.load_module(str(built.path)), tvm.cpu())


def measure(path: Path, target: targets.Target, precisions: list[str], database: tuning.Records) -> dict[str, Any]:
    """Milliseconds of each variant of a model."""
    import onnxruntime
    import tvm_ffi

    image = engine._aligned((1, 3, SIZE, SIZE), np.dtype(np.float32))
    y, x = np.mgrid[0:SIZE, 0:SIZE] / SIZE
    image[0] = np.stack([0.5 + 0.4 * np.sin(9 * x + 3 * y), 0.5 + 0.4 * np.cos(7 * y), x * y])
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = target.cores
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    runs = {"onnxruntime fp32": lambda: session.run(None, {session.get_inputs()[0].name: image})}
    for precision in precisions:
        for name, used in (("untuned", None), ("tuned", database)):
            made = machine(path, target, precision, used)
            runs[f"{name} {precision}"] = lambda run=made["main"]: [
                np.from_dlpack(value).copy() for value in package.tensors(run(tvm_ffi.from_dlpack(image)))
            ]
    expected = runs["onnxruntime fp32"]()
    times: dict[str, list[float]] = {name: [] for name in runs}
    errors = {}
    for turn in range(ROUNDS + 1):
        for name, run in runs.items():
            started = time.perf_counter()
            found = run()
            if turn:
                times[name].append((time.perf_counter() - started) * 1e3)
            errors[name] = max(
                float(np.abs(a - b).max() / np.abs(b).max()) for a, b in zip(found, expected, strict=True)
            )
    row: dict[str, Any] = {
        name: {"median_ms": round(float(np.median(values)), 1), "min_ms": round(min(values), 1), "error": errors[name]}
        for name, values in times.items()
    }
    for precision in precisions:
        fast, slow = row[f"tuned {precision}"], row[f"untuned {precision}"]
        row[f"speedup {precision}"] = round(slow["median_ms"] / fast["median_ms"], 2)
        lowered = compiling.lower(import_model(path, (1, 3, SIZE, SIZE)), target, precision)
        tasks = tuning.tasks_of(lowered, target)
        opened = database.open()
        for task in tasks:
            task.look_up(opened)
        found_tasks = [task for task in tasks if task.measured]
        whole = sum(task.operations for task in tasks)
        row[f"tuning {precision}"] = {
            "functions": len(tasks),
            "tuned": len(found_tasks),
            "schedules": sum(task.measured for task in found_tasks),
            "share_of_operations": round(sum(task.operations for task in found_tasks) / whole, 3),
        }
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("models", nargs="*", default=["yolov8n", "yolov5s"], help="names, or ONNX files")
    parser.add_argument("--precisions", nargs="+", default=["fp32", "fp16"])
    parser.add_argument("--database", type=Path)
    options = parser.parse_args()
    target = targets.this_cpu(available_cores())
    database = tuning.Records(options.database or tuning.default_folder(target), target)
    result: dict[str, Any] = {
        "target": target.text,
        "versions": package.versions(),
        "rounds": ROUNDS,
        "models": {},
    }
    for name in options.models:
        path = Path(name) if name.endswith(".onnx") else benchmark_model(name)
        result["models"][path.stem] = measure(path, target, options.precisions, database)
        save("tvm_tuning", result, "engine tvm")
        said = result["models"][path.stem].items()
        print(path.stem, {key: value for key, value in said if key.split()[0] != "tuning"})


if __name__ == "__main__":
    main()
