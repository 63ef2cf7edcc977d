"""Accuracy of the GPU path: engine cudnn in float16, everything on the GPU, against ONNX Runtime in FP32 on the CPU.

    python -m benchmarks.gpu.accuracy [--frames 240] [--models scout-n scout-s]

Both see the very same frames of the synthetic world's test split, which training never saw and whose truth is exact.
Measured for each model:

- the mAP of both, and the points between them (goal: 0.2 at most)
- box by box at confidence 0.25, boxes of at least 16 pixels: the part whose overlap with the reference's is at least
  0.95 (goal: 99 %), the median overlap (goal: 0.99), and boxes without a partner
- of those, the ones that the other side does not have before suppression either: how far from the threshold their
  confidence is at most (goal: 0.02). What both have before suppression, with confidences within 0.02, differs by which
  of two boxes suppressed the other, or whether an overlap reached the threshold: counted apart, `suppressed`

The reference preprocesses on the CPU; the GPU path has its own kernels, float16 from the first pixel to the logits.
The record is gpu_accuracy. The last line is JSON.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.cpu.accuracy import drawn_once, world
from benchmarks.protocol import save
from framefuse.lab.evaluation import Dataset, open_data, validate
from framefuse.lab.evaluation.counters import overlaps
from framefuse.pipeline import Pipeline
from framefuse.prediction import Detections

CONFIDENCE = 0.25
SMALLEST = 16.0
"""Pixels of the shorter side of a box that is compared."""
SAME = 0.95
"""Overlap of one box as two number formats have it."""
REFERENCE = {"engine": "onnxruntime", "precision": "fp32", "device": "cpu"}
GPU = {"engine": "cudnn", "precision": "fp16", "device": "cuda"}

GOALS = {"points": 0.2, "part_at_0.95": 0.99, "median_iou": 0.99, "furthest_unmatched": 0.02}


class Boxes(NamedTuple):
    """Of one frame."""

    xyxy: NDArray[Any]
    confidence: NDArray[Any]
    class_id: NDArray[Any]


@dataclass
class Alone:
    """A box without a partner."""

    frame: int
    side: int
    """0: the reference has it, 1: the GPU."""
    xyxy: list[float]
    confidence: float
    class_id: int
    candidate: float | None = None
    """Confidence of the same box on the other side before suppression; None: it has none."""

    def look_up(self, candidates: Boxes) -> None:
        """Find it among what the other side has before suppression."""
        table = overlaps(np.array([self.xyxy]), candidates.xyxy)[0][0] * (candidates.class_id == self.class_id)
        same = candidates.confidence[table >= SAME]
        if len(same):
            self.candidate = float(same[np.abs(same - self.confidence).argmin()])

    @property
    def suppressed(self) -> bool:
        return self.candidate is not None and abs(self.candidate - self.confidence) <= GOALS["furthest_unmatched"]


def pairs(
    reference: Boxes, found: Boxes, least: float = 0.5
) -> tuple[list[tuple[int, int, float]], set[int], set[int]]:
    """Boxes of one class that overlap by at least `least`, the best pairs first, and the indices without a partner."""
    table = overlaps(reference.xyxy, found.xyxy)[0]
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


def compare(reference: Sequence[Boxes], found: Sequence[Boxes]) -> tuple[dict[str, Any], list[Alone]]:
    """Box parity over frames, and boxes without a partner; both were kept at CONFIDENCE."""
    shared, moved, lost = [], [], list[Alone]()
    for frame, (one, other) in enumerate(zip(reference, found, strict=True)):
        made, left, right = pairs(one, other)
        for i, j, value in made:
            if (one.xyxy[i, 2:] - one.xyxy[i, :2]).min() >= SMALLEST:
                shared.append(value)
                moved.append(abs(float(one.confidence[i]) - float(other.confidence[j])))
        for side, (boxes, alone) in enumerate(((one, left), (other, right))):
            for index in alone:
                box, confidence = boxes.xyxy[index], float(boxes.confidence[index])
                if (box[2:] - box[:2]).min() >= SMALLEST:
                    lost.append(Alone(frame, side, box.tolist(), confidence, int(boxes.class_id[index])))
    values = np.array(shared or [0.0])
    return {
        "boxes": len(shared),
        "part_at_0.95": float((values >= 0.95).mean()),
        "median_iou": float(np.median(values)),
        "least_iou": float(values.min()),
        "mean_change_of_confidence": float(np.mean(moved or [0.0])),
    }, lost


def boxes(model: str, data: Dataset, keys: Sequence[Any], **options: Any) -> tuple[list[Boxes], list[str]]:
    """What a model finds in some frames, and why its engine runs as it does."""
    kept: list[Boxes] = []
    with Pipeline(data.open(keys), model, conf=CONFIDENCE, **options) as pipeline:
        for result in pipeline:
            assert isinstance(result.detections, Detections)
            kept.append(Boxes(result.detections.xyxy, result.detections.confidence, result.detections.class_id))
        return kept, list(pipeline.engine.reasons)


def measure(model: str, data: Dataset) -> dict[str, Any]:
    """A row."""
    scores = [validate(model, data, **options) for options in (REFERENCE, GPU)]  # type: ignore[arg-type]
    reference, _ = boxes(model, data, data.keys, **REFERENCE)
    found, reasons = boxes(model, data, data.keys, **GPU)
    before, after = (score.value for score in scores)
    row, lost = compare(reference, found)
    if frames := sorted({alone.frame for alone in lost}):
        keys = [data.keys[number] for number in frames]
        sides = [boxes(model, data, keys, iou=1.0, max_det=3000, **side)[0] for side in (REFERENCE, GPU)]
        for alone in lost:
            alone.look_up(sides[1 - alone.side][frames.index(alone.frame)])
    distance = [alone.confidence - CONFIDENCE for alone in lost if not alone.suppressed]
    return {
        "model": model,
        "frames": scores[0].frames,
        "input": scores[1].input,
        "reference": 100 * before,
        "gpu": 100 * after,
        "points": 100 * (after - before),
        **row,
        "unmatched": len(lost),
        "suppressed": len(lost) - len(distance),
        "furthest_unmatched": max(distance, default=0.0),
        "alone": [asdict(alone) for alone in lost],
        "reasons": reasons,
    }


def met(row: dict[str, Any]) -> dict[str, bool]:
    """Which goals a row reaches."""
    return {
        "points": abs(row["points"]) <= GOALS["points"],
        "part_at_0.95": row["part_at_0.95"] >= GOALS["part_at_0.95"],
        "median_iou": row["median_iou"] >= GOALS["median_iou"],
        "furthest_unmatched": row["furthest_unmatched"] <= GOALS["furthest_unmatched"],
    }


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
    save(
        "gpu_accuracy",
        {"rows": rows, "data": addresses, "goals": GOALS},
        "CUDA kernel",
        "engine cudnn",
        "program",
        "CUDA program",
        "model",
        "evaluation",
        "synthetic world",
    )


if __name__ == "__main__":
    main()
