"""Plans that TensorRT for RTX builds without a GPU: seconds and bytes for each network and precision.

    python -m benchmarks.cpu.tensorrt_build               the record tensorrt_build
    python -m benchmarks.cpu.tensorrt_build --accuracy    the record tensorrt_accuracy

The first with everything the builder warned of. Nothing here runs a plan: how fast they are is not known from this. The
second is what rewriting for TensorRT costs in accuracy, by ONNX Runtime on the rewritten files, on frames of the
synthetic world that nothing was trained on.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import onnx

from benchmarks.models import calibration_images, model
from benchmarks.protocol import save
from framefuse.engines.tensorrt.build import Shapes, bindings, build_plan
from framefuse.engines.tensorrt.plans import FLAGS
from framefuse.engines.tensorrt.qdq import symmetric, to_fp8
from framefuse.models import find_model
from framefuse.models.fp16 import plan_fp16, to_fp16
from framefuse.models.int8 import calibrate, plan_int8, prepare, quantise

SHAPES = (Shapes.exact(1, 640, 640), Shapes.parse("1x3x640x640:8x3x640x640:16x3x640x640"))
ROUNDS = 3
DATA = "synthetic://street?split=test&frames=600"
CALIBRATION = 4
"""Images for the ranges: enough to build with, too few to judge accuracy by."""


def lowered(path: Path, folder: Path) -> dict[str, Path]:
    """The file in each precision; FP8 is made of the INT8 one."""
    ready = prepare(path)
    half, eight = folder / f"{path.stem}-fp16.onnx", folder / f"{path.stem}-int8.onnx"
    onnx.save(to_fp16(ready, plan_fp16(ready, {})), half)
    layers, _ = plan_int8(ready)
    images = calibration_images()[:CALIBRATION]
    ranges = calibrate(ready, ready.graph.input[0].name, [image[None] for image in images], "percentile")
    onnx.save(quantise(ready, ranges, layers), eight)
    return {"fp32": path, "fp16": half, "int8": eight, "fp8": eight}


def rows(name: str, folder: Path) -> list[dict[str, Any]]:
    path = model(name)
    found = []
    for precision, file in lowered(path, folder).items():
        for shapes in SHAPES:
            plans = [build_plan(file, shapes, precision=precision) for _ in range(ROUNDS)]
            best = min(plans, key=lambda plan: plan.build_s)
            found.append(
                {"network": name, "precision": precision, "shapes": str(shapes), "parse_s": best.parse_s,
                 "build_s": best.build_s, "bytes": len(best.content), "onnx_bytes": file.stat().st_size,
                 "layers_before_fusion": best.layers, "messages": best.messages}
            )  # fmt: skip
    return found


def accuracy(frames: int) -> None:
    """Scores of scout-n, of its INT8 file, and of that as TensorRT gets it."""
    source = find_model("scout-n-int8")
    with TemporaryDirectory() as folder:
        made = {"int8 without zero points": symmetric, "fp8": to_fp8}
        names = ["scout-n", "scout-n-int8"]
        for name, rewritten in made.items():
            path = Path(folder, f"{name.replace(' ', '-')}.onnx")
            onnx.save(rewritten(onnx.load(source)), path)
            path.with_suffix(".yaml").write_bytes(source.with_suffix(".yaml").read_bytes())
            names.append(str(path))
        command = [sys.executable, "-m", "framefuse", "val", *names, "--engine", "onnxruntime", "--data", DATA]
        options = ["--limit", str(frames), "--json", "--quiet", "--project", folder]
        done = subprocess.run([*command, *options], check=True, capture_output=True, text=True)
    save(
        "tensorrt_accuracy",
        {"data": DATA, "frames": frames, "rows": [_row(run) for run in json.loads(done.stdout)["runs"]]},
        "engine tensorrt", "engine onnxruntime", "model", "evaluation",
    )  # fmt: skip


def _row(run: dict[str, Any]) -> dict[str, Any]:
    boxes = run["scores"]["boxes"]
    kept = {name: boxes[name] for name in ("map50_95", "map50", "precision", "recall", "by_size")}
    return {"model": Path(run["wanted"]["model"]).stem, "engine": run["scores"]["engine"], **kept}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--accuracy", action="store_true")
    parser.add_argument("--frames", type=int, default=150)
    args = parser.parse_args()
    if args.accuracy:
        accuracy(args.frames)
        return
    with TemporaryDirectory() as folder:
        found = [row for name in ("yolov8n", "yolov5s") for row in rows(name, Path(folder))]
    save(
        "tensorrt_build",
        {"tensorrt": str(bindings()), "flags": FLAGS, "ran_on_a_gpu": False, "rounds": ROUNDS,
         "rows": found},
        "engine tensorrt", "lowering",
    )  # fmt: skip


if __name__ == "__main__":
    main()
