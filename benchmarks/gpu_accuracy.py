"""Accuracy of the GPU path: engine cudnn in float16, everything on the GPU, against ONNX Runtime in FP32 on the CPU.

    python -m benchmarks.gpu_accuracy [--frames 240] [--models scout-n scout-s]

Both see the very same frames of the synthetic world's test split, which training never saw and whose truth is exact.
Measured for each model:

- the mAP of both, and the points between them (goal: 0.2 at most)
- box by box at confidence 0.25, boxes of at least 16 pixels: the part whose overlap with the reference's is at least
  0.95 (goal: 99 %), the median overlap (goal: 0.99), and boxes without a partner: how far from the threshold their
  confidence is at most (goal: 0.02)

The reference preprocesses on the CPU; the GPU path has its own kernels, float16 from the first pixel to the logits.
Recorded are benchmarks/results/gpu_accuracy.json and docs/results/accuracy_gpu.md. The last line is JSON.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.accuracy import drawn_once, world
from benchmarks.gpu_sources import stamp
from benchmarks.protocol import ROOT, save
from framefuse.evaluation import Dataset, open_data, validate
from framefuse.pipeline import Pipeline
from framefuse.prediction import Detections

PAGE = ROOT / "docs" / "results" / "accuracy_gpu.md"
CONFIDENCE = 0.25
SMALLEST = 16.0
"""Pixels of the shorter side of a box that is compared."""
REFERENCE = {"engine": "onnxruntime", "precision": "fp32", "device": "cpu"}
GPU = {"engine": "cudnn", "precision": "fp16", "device": "cuda"}

GOALS = {"points": 0.2, "part_at_0.95": 0.99, "median_iou": 0.99, "furthest_unmatched": 0.02}


class Boxes(NamedTuple):
    """Of one frame."""

    xyxy: NDArray[Any]
    confidence: NDArray[Any]
    class_id: NDArray[Any]


def overlaps(one: NDArray[Any], other: NDArray[Any]) -> NDArray[np.float64]:
    """(n, m) intersection over union."""
    a, b = one[:, None].astype(np.float64), other[None].astype(np.float64)
    sides = np.maximum(0, np.minimum(a[..., 2:], b[..., 2:]) - np.maximum(a[..., :2], b[..., :2]))
    common = sides.prod(-1)
    areas = [(box[..., 2:] - box[..., :2]).prod(-1) for box in (a, b)]
    return np.asarray(common / np.maximum(areas[0] + areas[1] - common, 1e-9))


def pairs(
    reference: Boxes, found: Boxes, least: float = 0.5
) -> tuple[list[tuple[int, int, float]], set[int], set[int]]:
    """Boxes of one class that overlap by at least `least`, the best pairs first, and the indices without a partner."""
    table = overlaps(reference.xyxy, found.xyxy)
    table[reference.class_id[:, None] != found.class_id[None]] = 0
    left, right = set(range(len(reference.xyxy))), set(range(len(found.xyxy)))
    made = []
    for flat in np.argsort(-table, axis=None, kind="stable"):
        i, j = divmod(int(flat), table.shape[1])
        if table[i, j] < least:
            break
        if i in left and j in right:
            left.remove(i)
            right.remove(j)
            made.append((i, j, float(table[i, j])))
    return made, left, right


def compare(reference: Sequence[Boxes], found: Sequence[Boxes]) -> dict[str, Any]:
    """Box parity over frames; both were kept at CONFIDENCE."""
    overlap, distance, lost, moved = [], [], 0, []
    for one, other in zip(reference, found, strict=True):
        made, left, right = pairs(one, other)
        for i, j, value in made:
            if (one.xyxy[i, 2:] - one.xyxy[i, :2]).min() >= SMALLEST:
                overlap.append(value)
                moved.append(abs(float(one.confidence[i]) - float(other.confidence[j])))
        for boxes, alone in ((one, left), (other, right)):
            for index in alone:
                if (boxes.xyxy[index, 2:] - boxes.xyxy[index, :2]).min() >= SMALLEST:
                    lost += 1
                    distance.append(float(boxes.confidence[index]) - CONFIDENCE)
    values = np.array(overlap or [0.0])
    return {
        "boxes": len(overlap),
        "part_at_0.95": float((values >= 0.95).mean()),
        "median_iou": float(np.median(values)),
        "least_iou": float(values.min()),
        "mean_change_of_confidence": float(np.mean(moved or [0.0])),
        "unmatched": lost,
        "furthest_unmatched": max(distance, default=0.0),
        "unmatched_beyond_0.02": sum(value > GOALS["furthest_unmatched"] for value in distance),
    }


def boxes(model: str, data: Dataset, **options: str) -> tuple[list[Boxes], list[str]]:
    """What a model finds in every frame, and why its engine runs as it does."""
    kept: list[Boxes] = []
    with Pipeline(data.open(data.keys), model, conf=CONFIDENCE, **options) as pipeline:
        for result in pipeline:
            assert isinstance(result.detections, Detections)
            kept.append(Boxes(result.detections.xyxy, result.detections.confidence, result.detections.class_id))
        return kept, list(pipeline.engine.reasons)


def measure(model: str, data: Dataset) -> dict[str, Any]:
    """A row."""
    scores = [validate(model, data, **options) for options in (REFERENCE, GPU)]  # type: ignore[arg-type]
    reference, _ = boxes(model, data, **REFERENCE)
    found, reasons = boxes(model, data, **GPU)
    before, after = (score.value for score in scores)
    return {
        "model": model, "frames": scores[0].frames, "input": scores[1].input, "reference": 100 * before,
        "gpu": 100 * after, "points": 100 * (after - before), **compare(reference, found), "reasons": reasons,
    }  # fmt: skip


def met(row: dict[str, Any]) -> dict[str, bool]:
    """Which goals a row reaches."""
    return {
        "points": abs(row["points"]) <= GOALS["points"],
        "part_at_0.95": row["part_at_0.95"] >= GOALS["part_at_0.95"],
        "median_iou": row["median_iou"] >= GOALS["median_iou"],
        "furthest_unmatched": row["furthest_unmatched"] <= GOALS["furthest_unmatched"],
    }


def page(rows: list[dict[str, Any]], data: Sequence[str]) -> str:
    """The table for people."""
    lines = [
        "# Accuracy on the GPU: measured",
        "",
        "Made by `python -m benchmarks.gpu_accuracy` on an H200; do not edit. Engine cudnn in float16, from the pixels",
        "to the boxes on the GPU, against ONNX Runtime in FP32 on the CPU, on the same frames of",
        "",
        *(f"    {uri}" for uri in data),
        "",
        "| model | frames | mAP50-95 FP32 | GPU FP16 | points (0.2) | boxes | IoU >= 0.95 (99 %) | median IoU (0.99) "
        "| without a partner | their furthest confidence from 0.25 (0.02) | met |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        lines.append(
            f"| {row['model']} | {row['frames']} | {row['reference']:.2f} | {row['gpu']:.2f} | {row['points']:+.2f} "
            f"| {row['boxes']} | {row['part_at_0.95']:.2%} | {row['median_iou']:.4f} | {row['unmatched']} "
            f"| {row['furthest_unmatched']:.3f} | {'yes' if all(row['met'].values()) else 'missed'} |"
        )
    lines += ["", f"Boxes: pairs of one class at confidence {CONFIDENCE} whose shorter side is at least 16 pixels."]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure, record, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["scout-n", "scout-s"])
    parser.add_argument("--frames", type=int, default=240)
    options = parser.parse_args()
    addresses = world("street")
    data = drawn_once(open_data(list(addresses)), options.frames)
    rows = []
    for model in options.models:
        row = measure(model, data)
        rows.append({**row, "met": met(row)})
        print(rows[-1], flush=True)
    PAGE.write_text(page(rows, addresses))
    save("gpu_accuracy", {"rows": rows, "data": addresses, "goals": GOALS, "sources": stamp()})


if __name__ == "__main__":
    main()
