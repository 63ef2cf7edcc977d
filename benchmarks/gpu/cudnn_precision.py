"""FP16, FP8 and INT8 in engine cudnn: each layer in what is fastest, measured end to end in a CUDA graph.

    python -m benchmarks.gpu.cudnn_precision [MODEL.onnx ...] [--batches 1 8 32] [--frames SOURCE] [--seconds 300]

For each model and batch, by the GPU's clock, graphs launched in turns, medians:

- `fp16`: the engine as it runs by default
- `tuned`: all in FP16, with an identity behind the bias where a convolution has no activation
- `fp8`, `int8`: 8 bits wherever they may be (in `autotune.groups`)
- `fastest`: of each layer the type that is fastest by measured kernels, whatever it does to the results
- `chosen`: what the engine takes: the fastest that agrees with FP16 enough, on frames of the source

`agreement` is that of `autotune.py`: of the anchors that find something in either run, the part with the same class,
an overlap of 0.9 and a confidence within 0.1. Of models whose weights are random it says little: rounding there grows
from layer to layer. `kernels_alone_us` is the sum of the convolutions' times, each measured alone. `layers` lists what
was chosen for each convolution and why, `shapes` every kernel's time.
The last line of the output is JSON, the record cudnn_precision.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.protocol import save
from framefuse.engines.cudnn import autotune
from framefuse.engines.cudnn.autotune import PrecisionTuner
from framefuse.engines.cudnn.compiled import compile_network
from framefuse.engines.cudnn.convolutions import Builder
from framefuse.engines.cudnn.execution import Weights
from framefuse.engines.cudnn.network import LOW_PRECISIONS, Conv, Type
from framefuse.engines.cudnn.plans import Plans
from framefuse.lab.lowering.judge import read_footage
from framefuse.models import find_model
from framefuse.models.card import read_card

SIZE = 640
FRAMES = 16
STREET = f"synthetic://street?seed=3&frames={4 * FRAMES}&size={SIZE}x{SIZE}&split=test"


def measure(path: Path, batch: int, plans: Plans, images: Any, row: dict[str, Any]) -> Iterator[None]:
    """One model at one batch, into `row`; after each part there is something to save."""
    started = time.monotonic()
    compiled = compile_network(path, batch, SIZE, SIZE, streams=4)
    weights = Weights([step for step in compiled.placement.steps if isinstance(step, Conv)])
    tuner = PrecisionTuner(compiled, plans, weights, images, {})
    types: dict[str, tuple[Type, ...]] = {"fp16": (), "tuned": autotune.uniform(compiled, [], "fp16")}
    types["fastest"] = tuner.fastest(tuner.free, LOW_PRECISIONS)
    types |= {kind: autotune.uniform(compiled, tuner.free, kind) for kind in LOW_PRECISIONS}

    def say(types: dict[str, tuple[Type, ...]]) -> None:
        executions = {name: tuner.execution(found) if found else tuner.base for name, found in types.items()}
        us = tuner.times(executions)
        for name, found in types.items():
            kinds = Counter(layer.x_type for layer in tuner.layers(found))
            agrees = round(tuner.agreement(found), 4) if found else 1.0
            alone = sum(plans.microseconds(layer) or 0.0 for layer in tuner.layers(found))
            row["rows"][name] = {"us": us[name], "images_per_s": round(batch / us[name] * 1e6), "agreement": agrees,
                                 "kernels_alone_us": round(alone, 1), "layers": dict(kinds)}  # fmt: skip
            print(f"{path.stem} batch {batch} {name}: {row['rows'][name]}", flush=True)
        known = {layer.text: plans.microseconds(layer) for found in types.values() for layer in tuner.layers(found)}
        row["shapes"] |= {text: None if us is None else round(us, 3) for text, us in known.items()}
        row["seconds"] = round(time.monotonic() - started, 1)

    row |= {"model": path.name, "batch": batch, "rows": {}, "shapes": {}}
    row["without_kernel"] = {layer.text: why for layer, why in plans.unsupported.items()}
    row["kept_in_fp16"] = sorted({why for why in tuner.excluded.values()})
    say(types)
    yield
    result = tuner.tune(LOW_PRECISIONS)
    row |= {"note": result.note, "layers": result.layers}
    say({"fp16": (), "tuned": types["tuned"], "chosen": result.types})
    yield


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", help="default: yolov8n of the benchmarks, and scout-s")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--frames", default=STREET)
    parser.add_argument("--seconds", type=float, default=300, help="after these no other measurement is begun")
    options = parser.parse_args()
    models = options.models
    if not models:
        from benchmarks.models import model

        models = [str(model("yolov8n")), "scout-s"]
    builder = Builder()
    plans = Plans(builder)
    deadline = time.monotonic() + options.seconds
    found: list[dict[str, Any]] = []
    try:
        for name in models:
            path = find_model(name)
            footage = read_footage(options.frames, read_card(path), FRAMES, judges=False)
            images = np.concatenate([frame[:1] for frame in footage.inputs]).astype(np.float16)
            for batch in options.batches:
                found.append({})
                for _ in measure(path, batch, plans, images, found[-1]):
                    save("cudnn_precision", {"cudnn": builder.cudnn.backend_version(), "frames": options.frames,
                                             "found": found}, "network kernel", "engine cudnn")  # fmt: skip
                    if time.monotonic() > deadline:
                        print(f"out of time at {path.stem}, batch {batch}", flush=True)
                        return
    finally:
        plans.stop_workers()
        plans.save()


if __name__ == "__main__":
    main()
