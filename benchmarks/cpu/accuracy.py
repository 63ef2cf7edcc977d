"""Accuracy of the shipped models in every precision of this machine, on the same frames, seed by seed.

    python -m benchmarks.cpu.accuracy [--seeds 8] [--frames 40] [--models scout-n ...]

The frames are of the synthetic world's test split, which shares no texture, shape or schedule with training; their
truth is exact. Each seed has a schedule of its own, from calm to crowded, and a score differs more between seeds than
between precisions. So every seed is scored alone. Recorded are mean, least and greatest over seeds, and the difference
of each seed to FP32 on the same frames. Rows:

- fp32: the shipped file in ONNX Runtime, the reference (scout-s ships in FP16: it is that file, computed in FP32)
- bf16: in OpenVINO, its default on CPUs that multiply bf16 natively
- fp16: what `framefuse build --precision fp16` makes, computed in FP32 by OpenVINO
- int8: the file that ships, calibrated on frames of the validation split

What a machine or a model cannot do is recorded with the reason. The last line is JSON.
"""

from __future__ import annotations

import argparse
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.clips import CACHE
from benchmarks.protocol import save
from framefuse.errors import FramefuseError
from framefuse.lab.evaluation import Dataset, Scores, open_data, validate
from framefuse.lab.evaluation.dataset import Key
from framefuse.models import SHIPPED, find_model
from framefuse.sources import Source, SourceInfo
from framefuse.sources.source import Frames, PullSource
from framefuse.world import World

FIRST_SEED = 9001
MODELS = {"scout-n": "street", "scout-s": "street", "body-n": "bodies"}
"""Shipped models, and the scene that each is scored on."""
GROUPS = (
    "model",
    "CPU kernel",
    "program",
    "engine openvino",
    "engine onnxruntime",
    "lowering",
    "evaluation",
    "synthetic world",
)


@dataclass(frozen=True)
class Case:
    """A row: how a precision is had."""

    precision: str
    engine: str
    asked: str
    """What the engine is asked for."""
    made: str = ""
    """Suffix of the file that has the precision in it."""


CASES = (
    Case("fp32", "onnxruntime", "fp32"),
    Case("bf16", "openvino", "bf16"),
    Case("fp16", "openvino", "fp32", "fp16"),
    Case("int8", "openvino", "auto", "int8"),
)


def world(scene: str, seeds: int = 4, frames: int = 300) -> tuple[str, ...]:
    """Addresses of the test split, one a seed."""
    numbers = range(FIRST_SEED, FIRST_SEED + seeds)
    return tuple(f"synthetic://{scene}?seed={seed}&frames={frames}&size=1280x720&split=test" for seed in numbers)


def drawn_once(data: Dataset, limit: int) -> Dataset:
    """The data with its frames in memory, so that all rows see the very same ones, and none waits for them."""
    keys = data.spread(limit)
    frames = dict(zip(keys, data.open(keys), strict=True))
    labels = {key: data.labels(key) for key in keys}

    def replay(keys: Sequence[Key]) -> Source:
        def shown(closed: threading.Event) -> Frames:
            yield from (frames[key] for key in keys)

        return PullSource(SourceInfo(data.uri, "synthetic", frames=len(keys)), shown)

    return replace(data, keys=keys, open=replay, labels=labels.__getitem__)


def file_of(model: str, case: Case) -> Path:
    """The file that has a precision in it.

    Raises:
        FramefuseError: the model cannot be lowered to it.
    """
    if not case.made or (model, case.made) == ("scout-s", "fp16"):  # which ships in FP16
        return find_model(model)
    if (name := f"{model}-{case.made}") in SHIPPED:
        return find_model(name)
    from framefuse.lab.lowering import build_model

    target = CACHE / f"{name}.onnx"
    if not target.exists():
        calib = f"synthetic://{MODELS[model]}?split=val&frames=600&size=1280x720"
        CACHE.mkdir(parents=True, exist_ok=True)
        build_model(model, precision=case.made, calib=calib, out=target)  # type: ignore[arg-type]
    return target


def plain(scores: Scores) -> dict[str, Any]:
    """What is recorded of one seed."""
    if boxes := scores.boxes:
        return {
            "score": boxes.map50_95,
            "map50": boxes.map50,
            **boxes.by_size,
            "precision": boxes.precision,
            "recall": boxes.recall,
        }
    assert scores.pixels is not None
    return {"score": scores.pixels.miou, "accuracy": scores.pixels.accuracy}


def spread(seeds: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Mean, least and greatest of each figure over the seeds that have it."""
    found = {}
    for figure in seeds[0]:
        values = [seed[figure] for seed in seeds if seed[figure] is not None]
        if values:
            found[figure] = {"mean": fmean(values), "min": min(values), "max": max(values)}
    return found


def measure(model: str, data: Sequence[Dataset]) -> list[dict[str, Any]]:
    """The rows of one model."""
    rows: list[dict[str, Any]] = []
    for case in CASES:
        row: dict[str, Any] = {"precision": case.precision, "engine": case.engine}
        try:
            path = file_of(model, case)
            scored = [validate(path, each, engine=case.engine, precision=case.asked) for each in data]
            seeds = [plain(scores) for scores in scored]
            row |= {
                "file": path.stem,
                "file_mb": scored[0].file_mb,
                "ran": scored[0].precision,
                "input": scored[0].input,
                "seeds": seeds,
                "spread": spread(seeds),
            }
            if rows and "seeds" in rows[0]:
                points = [100 * (a["score"] - b["score"]) for a, b in zip(seeds, rows[0]["seeds"], strict=True)]
                row["points"] = {"mean": fmean(points), "min": min(points), "max": max(points)}
        except FramefuseError as error:
            row["error"] = error.message
        rows.append(row)
        print(model, case.precision, row.get("error") or row["spread"]["score"], file=sys.stderr)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--frames", type=int, default=40, help="of each seed, spread over its schedule")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    options = parser.parse_args()
    drawn: dict[str, list[Dataset]] = {}
    rows: dict[str, Any] = {}
    for model in options.models:
        scene = MODELS[model]
        if scene not in drawn:
            drawn[scene] = [drawn_once(open_data(address), options.frames) for address in world(scene, options.seeds)]
        rows[model] = measure(model, drawn[scene])
    content = {scene: world(scene, options.seeds) for scene in drawn}
    save(
        "accuracy",
        {
            "world": World.version,
            "frames_a_seed": options.frames,
            "content": content,
            "calibration": "int8: frames of the synthetic validation split",
            "models": rows,
        },
        *GROUPS,
    )


if __name__ == "__main__":
    main()
