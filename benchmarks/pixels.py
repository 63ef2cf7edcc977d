"""How far the model's input is from what OpenCV's decode and resize gives, and whether the boxes agree.

    python -m benchmarks.pixels [--frames 60]

OpenCV converts each frame to BGR at full size (8 bits), then resizes (8 bits again); framefuse resizes the decoder's
planes and converts once, in float. Reported per clip size, in grey levels over all pixels of the picture: mean, 99th
percentile and maximum of the absolute difference; the same against the float64 reference; and for the YOLOv8n graph at
FP32, the share of boxes above 0.35 in one path that have a box of the same class with IoU >= 0.9 above 0.25 in the
other. 1080p at 640 is a scale of exactly 3, where bilinear picks single pixels. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
from itertools import islice
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from benchmarks.clips import CLIPS, clip
from benchmarks.models import model
from benchmarks.protocol import save
from framefuse import open_source
from framefuse.engines import EngineOptions, Lane, open_engine
from framefuse.kernels import reference
from framefuse.postprocess import postprocess
from framefuse.prediction import Predictions
from framefuse.preprocess import Placement, Preprocess

SPEC = Preprocess(rectangular=True)
LEVELS = 255


def opencv_input(picture: NDArray[np.uint8], placement: Placement) -> NDArray[np.float32]:
    left, top, width, height = placement.content
    resized = cv2.resize(picture, (width, height), interpolation=cv2.INTER_LINEAR)
    out = np.full((3, placement.size[1], placement.size[0]), SPEC.pad_value / LEVELS, np.float32)
    out[:, top : top + height, left : left + width] = resized[..., ::-1].transpose(2, 0, 1) / np.float32(LEVELS)
    return out


def boxes(lane: Lane, pixels: NDArray[np.float32], placement: Placement) -> Predictions:
    slot = lane.acquire()
    assert slot is not None
    slot.input[0] = pixels
    lane.submit(slot)
    lane.wait(slot)
    found = postprocess(slot.outputs, "yolov8", [placement], conf=0.25, iou=0.7, max_det=300)
    lane.release(slot)
    return found


def matched(one: Predictions, other: Predictions, confident: float = 0.35) -> tuple[int, int]:
    """(boxes of `one` above `confident` that the other has too, boxes of `one` above it)."""
    count = int((one.scores[0, : one.counts[0]] > confident).sum())
    a, b = one.boxes[0, :count, None], other.boxes[0, None, : other.counts[0]]
    if not count or not b.size:
        return 0, count
    shared = np.prod(np.clip(np.minimum(a[..., 2:], b[..., 2:]) - np.maximum(a[..., :2], b[..., :2]), 0, None), axis=2)
    area_a, area_b = (np.prod(box[..., 2:] - box[..., :2], axis=2) for box in (a, b))
    same = one.classes[0, :count, None] == other.classes[0, None, : other.counts[0]]
    return int(((shared / (area_a + area_b - shared) >= 0.9) & same).any(axis=1).sum()), count


def difference(pairs: list[NDArray[np.float32]]) -> dict[str, float]:
    values = np.concatenate([pair.ravel() for pair in pairs]) * LEVELS
    return {
        "mean": round(float(values.mean()), 3),
        "p99": round(float(np.percentile(values, 99)), 2),
        "max": round(float(values.max()), 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frames", type=int, default=60)
    args = parser.parse_args()
    engine = open_engine("openvino", model("yolov8n"), EngineOptions(precision="fp32"))
    rows: dict[str, Any] = {}
    for name in [name for name, spec in CLIPS.items() if not spec.audio]:
        capture = cv2.VideoCapture(str(clip(name)))
        to_opencv, to_reference, agreed, counted = [], [], 0, 0
        lane: Lane | None = None
        for frame in islice(open_source(clip(name)), args.frames):
            placement = SPEC.place(frame.width, frame.height)
            width, height = placement.size
            lane = lane or engine.lane(1, height, width, 1)
            ours, exact = np.empty((3, height, width), np.float32), np.empty((3, height, width), np.float32)
            SPEC(frame, ours, placement)
            theirs = opencv_input(capture.read()[1], placement)
            to_opencv.append(np.abs(ours - theirs))
            if frame.index % 10 == 0:
                reference.preprocess(
                    frame,
                    exact,
                    content=placement.content,
                    interpolation=SPEC.interpolation,
                    pad_value=SPEC.pad_value,
                    mean=SPEC.mean,
                    std=SPEC.std,
                    channel_order=SPEC.channel_order,
                )
                to_reference.append(np.abs(ours - exact))
            one, other = boxes(lane, ours, placement), boxes(lane, theirs, placement)
            for found, total in (matched(one, other), matched(other, one)):
                agreed, counted = agreed + found, counted + total
        capture.release()
        rows[name] = {
            "to_opencv": difference(to_opencv),
            "to_reference": difference(to_reference),
            "boxes": counted,
            "boxes_agreeing": round(agreed / max(counted, 1), 4),
        }
    print("| clip | to OpenCV: mean, p99, max | to the reference: max | boxes agreeing |\n|---|---|---|---|")
    for name, row in rows.items():
        to, exact_max = row["to_opencv"], row["to_reference"]["max"]
        print(f"| {name} | {to['mean']}, {to['p99']}, {to['max']} | {exact_max} | {row['boxes_agreeing']:.1%} |")
    save("pixels", rows)
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
