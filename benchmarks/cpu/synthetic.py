"""How fast the synthetic world renders, and what a detector that knows only colours makes of it.

    python -m benchmarks.cpu.synthetic [--frames 40] [--no-baseline]

Speed: frames a second of one process's CPU time, image and truth together, calm and crowded, at each size; the best
of three interleaved runs. Frames are independent, so n processes on n cores give n times as much. "Two cores" is
that by the clock on the wall: two processes share a whole schedule (calm, crowded, calm) at 640x360; median of five.

Baselines, both on frames of the test split, mAP by pycocotools, the best of a grid of thresholds that is chosen on the
test split itself. "telling colours": each pixel goes to the class that its colour spoke for on the training split;
connected pixels of one class are a detection. "rare colours": connected pixels of colours that are rare in the image
are a detection, of the class that has its proportions most often. Colour says nothing here by design: both must stay
below 0.15. The record is synthetic.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import itertools
import multiprocessing
import statistics
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from benchmarks.protocol import save
from framefuse.world import Snapshot, World
from framefuse.world.coco import CocoTruth
from framefuse.world.traffic import NAMES

SIZES = ("640x360", "1280x720", "1920x1080")
SCENES = {
    f"street {size} {name}": f"synthetic://street?size={size}&complexity={level}"
    for size in SIZES
    for name, level in (("calm", 0), ("crowded", 1))
} | {"bodies 640x320 sbs": "synthetic://bodies?size=640x320&stereo=sbs&complexity=0.5"}
WHOLE = "synthetic://street?size=640x360&frames=900"
Rows = list[dict[str, Any]]
BITS = 4
"""Of each colour channel."""


def speed(frames: int) -> dict[str, float]:
    """Frames a second of CPU time, by scene."""
    worlds = {name: World.parse(uri) for name, uri in SCENES.items()}
    for world in worlds.values():
        world[0]  # the backdrop
    best: dict[str, float] = {}
    for _ in range(3):
        for name, world in worlds.items():
            begin = time.process_time()
            for index in range(frames):
                world[index * world.frames // frames]
            best[name] = max(best.get(name, 0.0), frames / (time.process_time() - begin))
    return {name: round(fps, 1) for name, fps in best.items()}


def render_share(number: int) -> float:
    """Render every sixth frame of the whole schedule, from `number` on; gives seconds."""
    world = World.parse(WHOLE)
    world[0]  # the backdrop
    begin = time.perf_counter()
    for index in range(number, world.frames, 6):
        world[index]
    return time.perf_counter() - begin


def two_cores(runs: int = 5) -> list[float]:
    """Frames a second of two processes side by side, of each run."""
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        pool.map(render_share, (0, 3), chunksize=1)
        seconds = [max(pool.map(render_share, (0, 3), chunksize=1)) for _ in range(runs)]
    frames = 2 * len(range(0, World.parse(WHOLE).frames, 6))
    return [round(frames / each, 1) for each in seconds]


def images(split: str, worlds: int, each: int) -> Iterable[Snapshot]:
    for seed in range(worlds):
        world = World.parse(f"synthetic://street?size=640x360&split={split}&seed={seed}")
        yield from (world[(2 * k + 1) * world.frames // (2 * each)] for k in range(each))


def bins(image: NDArray[np.uint8]) -> NDArray[np.intp]:
    r, g, b = (image >> (8 - BITS)).astype(np.intp).transpose(2, 0, 1)
    return (r << 2 * BITS) | (g << BITS) | b


def learn(snapshots: Iterable[Snapshot]) -> NDArray[np.float64]:
    """(classes + 1, colours): the share of each class, row 0 the background, among pixels of a colour."""
    counts = np.ones((len(NAMES) + 1, 1 << 3 * BITS))
    for snapshot in snapshots:
        found = bins(snapshot.image)
        np.add.at(counts, (snapshot.truth.class_mask.ravel(), found.ravel()), 1)
    share: NDArray[np.float64] = counts / counts.sum(axis=1, keepdims=True)
    return share / share.sum(axis=0)


def detect(share: NDArray[np.float64], image: NDArray[np.uint8], clear: float, area: int) -> Rows:
    """Each class's regions of telling colours."""
    speaks = share[1:][:, bins(image)]
    best, strong = speaks.argmax(0), speaks.max(0) > clear
    rows: list[dict[str, Any]] = []
    for class_id in range(len(NAMES)):
        rows += regions(strong & (best == class_id), speaks[class_id], area, lambda w, h, k=class_id: k)
    return sorted(rows, key=lambda row: -row["score"])[:300]


def detect_rare(shapes: NDArray[np.float64], image: NDArray[np.uint8], rare: float, area: int) -> list[dict[str, Any]]:
    """Regions of colours that are rare in this image, each of the class that has its shape most often."""
    found = bins(image)
    counts = np.bincount(found.ravel(), minlength=1 << 3 * BITS)[found] / found.size

    def by_shape(width: int, height: int) -> int:
        return int(shapes[:, shape_bin(width, height)].argmax())

    rows = regions(counts < rare, 1 - counts, area, by_shape)
    return sorted(rows, key=lambda row: -row["bbox"][2] * row["bbox"][3])[:300]


def regions(
    mask: NDArray[np.bool_], strength: NDArray[np.float64], area: int, class_of: Callable[[int, int], int]
) -> list[dict[str, Any]]:
    """Connected regions of at least `area` pixels as COCO detections, the score being the mean strength."""
    kernel = np.ones((3, 3), np.uint8)
    clean = cv2.morphologyEx(mask.astype(np.uint8), cv2.MORPH_CLOSE, kernel)
    clean = cv2.morphologyEx(clean, cv2.MORPH_OPEN, kernel)
    count, labels, stats, _ = cv2.connectedComponentsWithStats(clean)
    sums = np.bincount(labels.ravel(), strength.ravel(), count)
    rows = []
    for label in range(1, count):
        x, y, width, height, pixels = stats[label].tolist()
        if pixels >= area:
            row = {"category_id": class_of(width, height), "bbox": [x, y, width, height]}
            rows.append({**row, "score": float(sums[label] / pixels)})
    return rows


def shape_bin(width: float, height: float) -> int:
    """One of 9 ratios of width to height."""
    return int(np.clip(round(2 * np.log2(width / height)) + 4, 0, 8))


def learn_shapes(snapshots: Iterable[Snapshot]) -> NDArray[np.float64]:
    """(classes, shapes): how often a class has a shape."""
    counts = np.ones((len(NAMES), 9))
    for snapshot in snapshots:
        for class_id, (x1, y1, x2, y2) in zip(snapshot.truth.class_id, snapshot.truth.boxes, strict=True):
            counts[class_id, shape_bin(x2 - x1, y2 - y1)] += 1
    return counts


def score(truth: COCO, rows: list[dict[str, Any]]) -> float:
    if not rows:
        return 0.0
    evaluation = COCOeval(truth, truth.loadRes(rows), "bbox")
    evaluation.evaluate()
    evaluation.accumulate()
    evaluation.summarize()
    return float(evaluation.stats[0])


def baseline(train_worlds: int = 60, test_worlds: int = 20) -> dict[str, float]:
    """mAP50-95 of the best settings of each baseline, on 5 frames a world."""
    train, tests = list(images("train", train_worlds, 5)), list(images("test", test_worlds, 5))
    share, shapes = learn(train), learn_shapes(train)
    settings = [("telling colours", partial(detect, share), value) for value in (0.12, 0.2, 0.3)]
    settings += [("rare colours", partial(detect_rare, shapes), value) for value in (0.0003, 0.001, 0.003)]
    best: dict[str, float] = {}
    with TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        path = Path(folder) / "truth.json"
        with CocoTruth(path, World.parse("synthetic://street?split=test"), "x") as coco:
            for snapshot in tests:
                coco.add(snapshot)
        truth = COCO(str(path))
        for (name, method, value), area in itertools.product(settings, (20, 80)):
            rows = []
            for number, snapshot in enumerate(tests, 1):
                rows += [{"image_id": number, **row} for row in method(snapshot.image, value, area)]
            best[name] = round(max(best.get(name, 0.0), score(truth, rows)), 4)
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frames", type=int, default=40)
    parser.add_argument("--no-baseline", action="store_true")
    args = parser.parse_args()
    found: dict[str, Any] = {"version": World.version, "fps_two_cores": two_cores(), "fps_one_core": speed(args.frames)}
    print(f"{'whole schedule, two cores':28} {statistics.median(found['fps_two_cores']):7.1f} frames/s")
    for name, fps in found["fps_one_core"].items():
        print(f"{name:28} {fps:7.1f} frames/s")
    if not args.no_baseline:
        found["colour_baseline"] = baseline()
        for name, value in found["colour_baseline"].items():
            print(f"baseline, {name:18} {value:7.4f} mAP50-95")
        save("synthetic", found, "synthetic world")


if __name__ == "__main__":
    main()
