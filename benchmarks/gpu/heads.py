"""What does it cost on a GPU to find masks, keypoints and oriented boxes, inside a captured graph? Batch 1, 640x640.

    python -m benchmarks.gpu.heads [--objects 50] [--times 300]

The model is one that does nothing: its outputs, 8,400 anchors of 80 classes, lie on the GPU. Measured are the events in
the graph around postprocessing: candidates, rank, suppression, what the anchors say besides, masks as run lengths of
1920x1080, and the copy of the results to the host. `candidates`: anchors above the confidence threshold, which
suppression compares; as many of them lie around each object. The record is heads_gpu.
"""

from __future__ import annotations

import argparse
from collections import deque
from dataclasses import replace
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.protocol import save
from framefuse.engines.null import CudaNullEngine
from framefuse.frame import Frame
from framefuse.models import find_model
from framefuse.models.card import Card, read_card
from framefuse.preprocess import Preprocess
from framefuse.runtime.cuda import captured_batch
from framefuse.runtime.cuda.program import CudaProgram
from framefuse.runtime.program import Selection

SIDE, ANCHORS, CLASSES, PROTOTYPES, KEYPOINTS = 640, 8400, 80, 32, (17, 3)
FRAME = 1080, 1920
EXTRA = {"detect": 0, "segment": PROTOTYPES, "pose": KEYPOINTS[0] * KEYPOINTS[1], "obb": 1}


def outputs(task: str, objects: int, candidates: int) -> list[NDArray[np.float32]]:
    """Objects of one class each, with several anchors of almost the same box."""
    random = np.random.default_rng(1)
    table = np.zeros((ANCHORS, 4 + CLASSES + EXTRA[task]), np.float32)
    top = SIDE * (1 - FRAME[0] / FRAME[1]) / 2 + 30  # objects in the padding above and below the frame are no objects
    centres = random.uniform((60, top), (SIDE - 60, SIDE - top), (objects, 2))
    sides = random.uniform(20, 90, (objects, 2))
    number = np.arange(candidates) % objects
    table[:candidates, :2] = centres[number] + random.normal(0, 1, (candidates, 2))
    table[:candidates, 2:4] = sides[number]
    table[np.arange(candidates), 4 + number % CLASSES] = random.uniform(0.3, 0.9, candidates)
    table[:, 4 + CLASSES :] = random.normal(size=(ANCHORS, EXTRA[task]))
    found = [np.ascontiguousarray(table.T[None])]
    planes = random.normal(size=(1, PROTOTYPES, SIDE // 32, SIDE // 32)).repeat(8, 2).repeat(8, 3)  # regions, not noise
    return [*found, planes.astype(np.float32)] if task == "segment" else found


def card_of(task: Any) -> Card:
    names = {number: str(number) for number in range(CLASSES)}
    read = ("boxes", "planes"), (0, 1)
    outputs, indices = read if task == "segment" else (("boxes",), (0,))
    return replace(
        read_card(find_model("scout-n")), task=task, layout="yolov8", extra=EXTRA[task], names=names,
        keypoints=KEYPOINTS if task == "pose" else None, outputs=outputs, output_indices=indices,
    )  # fmt: skip


def measured(task: str, objects: int, candidates: int, times: int) -> dict[str, Any]:
    """Microseconds of postprocessing on the GPU, and how many objects are found."""
    found, frame = outputs(task, objects, candidates), Frame.from_array(np.zeros((*FRAME, 3), np.uint8))
    engine = CudaNullEngine(lambda *size: found)
    program = CudaProgram(engine, card_of(task), Preprocess(SIDE, SIDE), Selection(), slots=1)
    seconds, kept = list[float](), 0
    for _ in range(times):
        deque(program.submit([frame]), maxlen=0)
        captured = program._in_flight[0].captured
        (kept,) = (len(one.result.detections) for one in program.drain())
        seconds += captured.device_seconds()[2:]
    program.close()
    return {"task": task, "candidates": candidates, "objects": kept, "us": 1e6 * median(seconds)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--objects", type=int, default=50)
    parser.add_argument("--times", type=int, default=300)
    args = parser.parse_args()
    captured_batch.TIMED_EVERY = 2
    rows = []
    for candidates in (500, 1000, 2000):
        for task in EXTRA:
            rows.append(measured(task, args.objects, candidates, args.times))
            print(rows[-1], flush=True)
    save("heads_gpu", {"rows": rows}, "CUDA kernel", "CUDA program", "program")


if __name__ == "__main__":
    main()
