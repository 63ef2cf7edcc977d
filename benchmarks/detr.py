"""Detectors without anchors: the same as their own project finds?

    python -m benchmarks.detr --peers-python PYTHON

The networks are those of transformers with random weights (peers/detr.py), run by transformers in PyTorch, and by
framefuse from their ONNX file in FP32; each side prepares its images and reads the outputs by itself. The images are
made of blocks of equal pixels, so that resizing them is exact for everybody: square, portrait and landscape ones. An
object of theirs is found again if ours has its class, its confidence within 0.01, and an IoU of 0.99.
"""

import argparse
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from benchmarks.clips import STREET
from benchmarks.peers.detr import CONF, SIZE
from benchmarks.protocol import RECORDS, ROOT, save
from framefuse import Pipeline
from framefuse.lab.evaluation.counters import overlaps
from framefuse.sources import open_source

MODELS = "rtdetr-r18", "rtdetrv2-r18", "dfine-s", "rfdetr", "detr-r18"
BLOCKS = (1, 1), (1, 2), (3, 2), (2, 2)
"""Pixels across and down of a block."""
IMAGES = 8
IOU, SCORE = 0.99, 0.01


def images(folder: Path) -> None:
    """Frames of the synthetic world, SIZE x SIZE blocks each."""
    frames = iter(open_source(STREET))
    for number in range(IMAGES):
        for _ in range(12):
            frame = next(frames)
        small = np.asarray(Image.fromarray(frame.to_rgb()).resize((SIZE, SIZE)))
        across, down = BLOCKS[number % len(BLOCKS)]
        Image.fromarray(small.repeat(down, axis=0).repeat(across, axis=1)).save(folder / f"{number:02d}.png")


def compare(python: Path, name: str, folder: Path, file: Path) -> dict[str, Any]:
    """What transformers finds in the images, and how far ours is from it."""
    command = [python, "-m", "benchmarks.peers.detr", name, "--images", folder, "--out", file]
    subprocess.run(command, cwd=ROOT, check=True, timeout=1200)
    stored = np.load(file.with_suffix(".npz"))
    row: dict[str, Any] = {
        "model": name,
        "theirs": 0,
        "ours": 0,
        "found": 0,
        "pixels": 0.0,
        "confidence": 0.0,
        "iou": 1.0,
    }
    pipeline = Pipeline(folder, file, precision="fp32", engine="onnxruntime", conf=CONF)
    for result in pipeline:
        ours, stem = result.detections, Path(result.frame.source_id).stem
        boxes, scores, labels = (stored[f"{stem}/{part}"] for part in ("boxes", "scores", "labels"))
        boxes = boxes.clip(0, np.tile((result.frame.width, result.frame.height), 2))
        row["theirs"], row["ours"] = row["theirs"] + len(boxes), row["ours"] + len(ours)
        if not len(boxes) or not len(ours):
            continue
        near, apart = overlaps(ours.xyxy, boxes)[0], abs(ours.confidence[:, None] - scores)
        alike = np.where((ours.class_id[:, None] == labels) & (apart <= SCORE), near, -1)
        for other, one in enumerate(alike.argmax(axis=0)):
            if alike[one, other] >= IOU:
                row["found"] += 1
                row["iou"] = min(row["iou"], float(near[one, other]))
                row["confidence"] = max(row["confidence"], float(apart[one, other]))
                row["pixels"] = max(row["pixels"], float(abs(ours.xyxy[one] - boxes[other]).max()))
    return row | {"layout": pipeline.card.layout, "warnings": pipeline.report.warnings}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers-python", type=Path, required=True)
    parser.add_argument("--only", choices=MODELS, nargs="*", default=MODELS)
    args = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "images"
        folder.mkdir()
        images(folder)
        for name in args.only:
            rows.append(compare(args.peers_python, name, folder, Path(temporary) / f"{name}.onnx"))
            print(rows[-1], flush=True)
    if set(args.only) == set(MODELS):
        save("detr", {"parity": rows}, "CPU kernel", "program", "peer")
        print(RECORDS / "detr.json")


if __name__ == "__main__":
    main()
