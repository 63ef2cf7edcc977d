"""A clip through a detector in tiles and as a whole, as often as asked: each peer in a process of its own.

    python -m benchmarks.peers.sliced PEER --clip CLIP --model MODEL      # then a line on standard input for each run

The answer to a line is one of JSON: `fps` and `cpu_ms_per_frame` from the result of the first frame to that of the
last, so that loading and warming up are outside, and `boxes`: of each frame the rows x1, y1, x2, y2, confidence, class.

SAHI is called as its documentation does, `get_sliced_prediction` with its default merging, over the frames that OpenCV
decodes; its model is ultralytics', which runs the ONNX file in ONNX Runtime. Tiles, overlap, the whole frame besides
them, confidence and suppression are those of framefuse. It lives in the environment of the peers (env.sh).
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.protocol import package_versions

TILE, OVERLAP = 640, 0.2
CONFIDENCE, IOU = 0.25, 0.7
Rows = list[list[float]]
Run = Callable[[Path], Iterator[Rows]]


def sahi(model: Path) -> Run:
    """`AutoDetectionModel` of the type ultralytics, and `get_sliced_prediction`."""
    os.environ.update(YOLO_AUTOINSTALL="false", YOLO_OFFLINE="true", YOLO_VERBOSE="false")
    import cv2
    from sahi import AutoDetectionModel
    from sahi.predict import get_sliced_prediction

    network = AutoDetectionModel.from_pretrained(
        "ultralytics", str(model), confidence_threshold=CONFIDENCE, device="cpu", image_size=TILE, task="detect"
    )

    def run(clip: Path) -> Iterator[Rows]:
        capture = cv2.VideoCapture(str(clip))
        while True:
            more, frame = capture.read()
            if not more:
                break
            found = get_sliced_prediction(
                cv2.cvtColor(frame, cv2.COLOR_BGR2RGB), network, slice_height=TILE, slice_width=TILE,
                overlap_height_ratio=OVERLAP, overlap_width_ratio=OVERLAP, perform_standard_pred=True, verbose=0,
            )  # fmt: skip
            yield [
                [*item.bbox.to_xyxy(), float(item.score.value), item.category.id]
                for item in found.object_prediction_list
            ]
        capture.release()

    return run


def framefuse(model: Path, **options: Any) -> Run:
    """`Pipeline(clip, model, tiles=...)` with its defaults."""
    import numpy as np

    from framefuse import Pipeline

    def run(clip: Path) -> Iterator[Rows]:
        with Pipeline(clip, model, tiles=f"{TILE}:{OVERLAP}", **options) as pipeline:
            for result in pipeline:
                found = result.detections
                yield np.column_stack([found.xyxy, found.confidence, found.class_id]).tolist()

    return run


PEERS: dict[str, Callable[[Path], Run]] = {
    "framefuse": framefuse,
    "framefuse, fp32": lambda model: framefuse(model, precision="fp32"),
    "framefuse, INT8": framefuse,
    "SAHI, ONNX Runtime": sahi,
    "SAHI, ONNX Runtime, INT8": sahi,
    "SAHI, OpenVINO": sahi,
}


def measure(run: Run, clip: Path) -> dict[str, Any]:
    """One run over the clip."""
    boxes: list[Rows] = []
    start = stop = (0.0, 0.0)
    for rows in run(clip):
        stop = time.perf_counter(), time.process_time()
        start = stop if not boxes else start
        boxes.append(rows)
    wall, cpu = stop[0] - start[0], stop[1] - start[1]
    return {"fps": (len(boxes) - 1) / wall, "cpu_ms_per_frame": cpu / (len(boxes) - 1) * 1e3, "boxes": boxes}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peer", choices=PEERS)
    parser.add_argument("--clip", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    options = parser.parse_args()
    answers, sys.stdout = sys.stdout, sys.stderr  # libraries print, too
    run = PEERS[options.peer](options.model)
    for _ in sys.stdin:
        print(json.dumps({**measure(run, options.clip), "packages": package_versions()}), file=answers, flush=True)
    os._exit(0)  # the libraries' threads do not all end when their main thread does


if __name__ == "__main__":
    main()
