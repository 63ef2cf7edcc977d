"""How long a sweep takes over boxes that are recorded: 1,000 settings of 10 minutes of video, on all cores.

    python -m benchmarks.sweep [--minutes 10] [--runs 3]

The boxes are those of a seeded model of a detector, at 30 frames a second: objects that cross the frame in straight
lines, with jitter and misses, and false alarms of low confidence, so that about ten boxes of a frame are above 0.1 and
as many below. They are read from Parquet as `framefuse sweep` reads its recordings; inference is no part of this.

- "trackers": both trackers with two buffers and two smallest areas, 25 confidences and five files of zones, which is
  8 trackings.
- "boxes only": without a tracker, 50 confidences, five lists of classes and four smallest areas.

A time is that of `replay`, with the processes that it starts; the median of the runs is reported, and the seconds of
each tracking. The record is sweep.
"""

from __future__ import annotations

import argparse
import statistics
import time
from fractions import Fraction
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from benchmarks.protocol import save
from framefuse import Settings
from framefuse.lab.sweep.record import Recording, choices
from framefuse.lab.sweep.replay import load, replay
from framefuse.models import find_model
from framefuse.models.card import read_card
from framefuse.prediction import Detections, FrameInfo, Result
from framefuse.sinks import SinkContext
from framefuse.sinks.parquet import ParquetSink
from framefuse.sources import SourceInfo

FPS, SIZE, OBJECTS, NOISE = 30, (1280, 720), 10, 10


def recording(folder: Path, frames: int, names: dict[int, str]) -> Recording:
    """Boxes as a recording holds them."""
    chance = np.random.default_rng(0)
    sink = ParquetSink()
    sink.open(SinkContext(folder, SourceInfo("synthetic", "file"), names, "iou-0.7"))
    begin, end = np.zeros((2, OBJECTS, 2))
    sides, kind, left, lasts = np.ones((OBJECTS, 2)), np.zeros(OBJECTS), np.zeros(OBJECTS), np.ones(OBJECTS)
    for number in range(frames):
        new = left <= 0
        count = int(new.sum())
        begin[new], end[new] = (chance.uniform(0, SIZE, (count, 2)) for _ in range(2))
        sides[new], kind[new] = chance.uniform(20, 160, (count, 2)), chance.integers(0, len(names), count)
        left[new] = lasts[new] = chance.integers(60, 400, count)
        centres = begin + (end - begin) * (1 - left / lasts)[:, None] + chance.normal(0, 1.5, (OBJECTS, 2))
        left -= 1
        seen = chance.random(OBJECTS) > 0.05
        scores = np.where(
            chance.random(OBJECTS) < 0.1, chance.uniform(0.1, 0.5, OBJECTS), chance.uniform(0.5, 1, OBJECTS)
        )
        centres = np.concatenate((centres[seen], chance.uniform(0, SIZE, (NOISE, 2))))
        half = np.concatenate((sides[seen], chance.uniform(10, 80, (NOISE, 2)))) / 2
        confidence = np.concatenate((scores[seen], chance.uniform(0.01, 0.12, NOISE))).astype(np.float32)
        classes = np.concatenate((kind[seen], chance.integers(0, len(names), NOISE))).astype(np.int64)
        xyxy = np.concatenate((centres - half, centres + half), 1).clip(0, SIZE * 2).astype(np.float32)
        order = np.argsort(-confidence)
        order = order[(xyxy[order, 2:] > xyxy[order, :2]).all(1)]
        found = Detections(xyxy[order], confidence[order], classes[order], names)
        sink.write(Result(FrameInfo(number, number, Fraction(1, FPS), *SIZE, "synthetic"), found), None)
    sink.close()
    return Recording("recorded", folder, frames)


def zones(folder: Path, count: int) -> list[Path]:
    """Files with two zones and a line each."""
    paths = []
    for number in range(count):
        x = 0.1 + 0.1 * number
        paths.append(folder / f"zones{number}.yaml")
        paths[-1].write_text(
            f"zones:\n  a: {{points: [[{x}, 0.1], [{x + 0.3}, 0.1], [{x + 0.3}, 0.6], [{x}, 0.6]]}}\n"
            f"  b: {{points: [[{x}, 0.7], [{x + 0.2}, 0.7], [{x + 0.1}, 0.95]]}}\n"
            f"lines:\n  c: {{from: [{x}, 0], to: [{x + 0.2}, 1]}}\n"
        )
    return paths


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--runs", type=int, default=3)
    args = parser.parse_args()
    card = read_card(find_model("scout-n"))
    frames = round(args.minutes * 60 * FPS)
    with TemporaryDirectory() as name:
        folder = Path(name)
        recorded = recording(folder, frames, dict(card.names))
        table = load(recorded.boxes(0.7), FPS)
        shares, areas = np.linspace(0.05, 0.9, 50).round(4).tolist(), [0.0, 400.0, 0.001, 0.005]
        grids: dict[str, dict[str, list[Any]]] = {
            "trackers": {
                "track": ["bytetrack", "ocsort"], "track_buffer": [0.5, 2.0], "min_area": areas[:2],
                "conf": shares[::2], "zones": zones(folder, 5),
            },
            "boxes only": {
                "classes": [None, [0], [0, 1], [2, 3], [4]], "min_area": areas, "conf": shares,
            },
        }  # fmt: skip
        found: dict[str, Any] = {
            "frames": frames,
            "boxes_per_frame": len(table.frame) / frames,
            "boxes_above_0.1": float((table.found.confidence > 0.1).sum()) / frames,
            "rows": [],
        }
        for title, grid in grids.items():
            every = choices(grid, Settings(), card)
            seconds, trackings = [], []
            for _ in range(args.runs):
                load.cache_clear()
                begin = time.perf_counter()
                _, tracked = replay([recorded], every, card)
                seconds.append(time.perf_counter() - begin)
                trackings += tracked
            row = {"grid": title, "settings": len(every), "seconds": seconds, "median": statistics.median(seconds)}
            row |= {"trackings": len(trackings) // args.runs, "tracking_seconds": trackings}
            found["rows"].append(row)
            print(f"{title:12} {len(every):6,} settings {row['median']:7.2f} s, {row['trackings']} trackings")
    save("sweep", found, "sweep")


if __name__ == "__main__":
    main()
