"""How far the model's input is from what OpenCV's decode and resize gives.

    python -m benchmarks.pixels [--frames 60]

OpenCV converts each frame to BGR at full size (8 bits), then resizes (8 bits again); framefuse resizes the decoder's
planes and converts once, in float. Reported per clip size, in grey levels over all pixels of the image: mean, 99th
percentile and maximum of the absolute difference; and the same against the float64 reference. 1080p at 640 is a
scale of exactly 3, where bilinear picks single pixels. That boxes agree is a test (tests/lab/test_parity.py), with a
detector that knows what it sees: the YOLOv8n graph has random weights here, which make other boxes of any difference.
The last line is JSON.
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
from benchmarks.protocol import save
from framefuse import open_source
from framefuse.kernels import reference
from framefuse.preprocess import Placement, Preprocess

SPEC = Preprocess(rectangular=True)
LEVELS = 255


def opencv_input(image: NDArray[np.uint8], placement: Placement) -> NDArray[np.float32]:
    left, top, width, height = placement.content
    resized = cv2.resize(image, (width, height), interpolation=cv2.INTER_LINEAR)
    out = np.full((3, placement.size[1], placement.size[0]), SPEC.pad_value / LEVELS, np.float32)
    out[:, top : top + height, left : left + width] = resized[..., ::-1].transpose(2, 0, 1) / np.float32(LEVELS)
    return out


def difference(pairs: list[NDArray[np.float32]]) -> dict[str, float]:
    values = np.concatenate([pair.ravel() for pair in pairs]) * LEVELS
    return {
        "mean": round(float(values.mean()), 3),
        "p99": round(float(np.percentile(values, 99)), 2),
        "max": round(float(values.max()), 4),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frames", type=int, default=60)
    args = parser.parse_args()
    rows: dict[str, Any] = {}
    for name in [name for name, spec in CLIPS.items() if not spec.audio]:
        capture = cv2.VideoCapture(str(clip(name)))
        to_opencv, to_reference = [], []
        for frame in islice(open_source(clip(name)), args.frames):
            placement = SPEC.place(frame.width, frame.height)
            width, height = placement.size
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
        capture.release()
        rows[name] = {
            "to_opencv": difference(to_opencv),
            "to_reference": difference(to_reference),
        }
    print("| clip | to OpenCV: mean, p99, max | to the reference: max |\n|---|---|---|")
    for name, row in rows.items():
        to, exact_max = row["to_opencv"], row["to_reference"]["max"]
        print(f"| {name} | {to['mean']}, {to['p99']}, {to['max']} | {exact_max} |")
    save("pixels", rows)
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
