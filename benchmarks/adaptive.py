"""What does adaptive compute save, and what does it lose? Beside fixed rungs, fixed strides, chance and an oracle.

    python -m benchmarks.adaptive [--seeds 61 62 63] [--cache FOLDER] [--only decisions]

Accuracy. Every rung, a model at an input size, sees every frame of each clip of the synthetic street once, and its
boxes are kept. Then each policy chooses among them, and mAP is that of all frames, skipped ones too, against the exact
truth. A cost is the mean time of inference a frame, from the times of the rungs, measured on an idle machine in the
same run; audits are in it. Clips: "cycle" (calm, crowded, calm; the camera moves), "fast" (objects 2.5 times as fast),
"far" (twice as far away, half as many objects again) and "day" (a camera that mostly sees nothing, with short bursts).

- "fixed": a rung on every frame.
- "stride n": the best rung on every n-th frame. "tracked": the others show what ByteTrack predicts, as most programs
  do. "interpolated": they show what adaptive compute would show, so that only the choice of frames differs.
- "random": as many frames as adaptive compute has inferred, chosen by chance, interpolated.
- "edges": two rungs, switched by the density of edges of the frame; the threshold that costs as much is chosen.
- "oracle": the same blocks as adaptive compute, divided with knowledge of what each would lose.

Speed. mAP of slow, medium and fast objects, by sizes of their own a second (SPEEDS); those of other speeds count
neither as right nor as wrong. Regions: what adaptive compute would save, at most, if a look inside a block saw only the
rectangle around all objects of its two ends, with a margin of MARGIN pixels, at a cost by its area.

End to end. The real pipeline, with the annotated video written, 1080p, with and without `adaptive`, in turn.

Decisions. CPU time a frame of everything but inference: the median of DECIDED runs over each clip, one after the other
over all clips, since a shared machine is slower for seconds at a time. With `--only decisions` the rest is that of the
record.

Results go to benchmarks/records/adaptive.json; the last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import pickle
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import av
import numpy as np
from numpy.typing import NDArray

from benchmarks.protocol import RECORDS, save
from framefuse import Pipeline
from framefuse.adaptive import Blocks, Bridge, Governor, Limits, disagreement
from framefuse.lab.adaptive_bench import CONF, MOST, SCHEDULES, STRIDES, Found, interpolated, tracked
from framefuse.lab.evaluation import Labels, open_data
from framefuse.lab.evaluation.counters import BoxCounter, TrackCounter
from framefuse.prediction import Detections
from framefuse.tracking import TrackerOptions, open_tracker
from framefuse.world import World

RUNGS = (("scout-n", 416), ("scout-n", 640), ("scout-s", 416), ("scout-s", 640))
BEST = RUNGS[-1]
AGREEMENTS = 0.98, 0.96, 0.95, 0.93, 0.9, 0.85
SIZE = 960, 540
DECIDED = 9
SPEEDS, MARGIN = {"slow": 0.0, "medium speed": 2.0, "fast": 8.0}, 64
TRACKED = "fixed scout-s 640", "stride 2 tracked", "stride 3 tracked", "stride 3 interpolated", "adaptive 0.96"
"""Policies whose results are tracked, too."""


@dataclass
class Clip:
    """A clip, its truth, and what every rung sees."""

    name: str
    seed: int
    labels: list[Labels]
    names: list[str]
    found: dict[tuple[str, int], list[Detections]]
    edges: NDArray[Any]
    """(frames,) mean difference of neighbouring pixels."""

    def score(self, found: Found) -> dict[str, float]:
        """mAP 50:95 in percent over all frames, of all objects and by size."""
        return self._of([np.ones(len(labels.class_id), np.bool_) for labels in self.labels], found)

    def _of(self, counted: Sequence[NDArray[Any]], found: Found) -> dict[str, float]:
        """The same of some objects of each frame; the others count neither as right nor as wrong."""
        counter = BoxCounter(self.names, max_det=MOST)
        for labels, kept, one in zip(self.labels, counted, found, strict=True):
            counter.add(replace(labels, crowd=labels.crowd | ~kept), one)
        scores = counter.scores()
        return {"map": 100 * scores.map50_95} | {size: 100 * (ap or 0.0) for size, ap in scores.by_size.items()}

    def by_speed(self, found: Found) -> dict[str, float]:
        """mAP 50:95 in percent over all frames, of objects that are at least as fast as SPEEDS says."""
        bounds = [*SPEEDS.values(), math.inf]
        return {
            name: self._of([(bounds[at] <= speeds) & (speeds < bounds[at + 1]) for speeds in self.speeds], found)["map"]
            for at, name in enumerate(SPEEDS)
        }

    @cached_property
    def speeds(self) -> list[NDArray[Any]]:
        """Of the objects of each frame: sizes of their own a second; 0 where they appear."""
        before: dict[int, NDArray[Any]] = {}
        found = []
        for labels in self.labels:
            sides = labels.xyxy[:, 2:] - labels.xyxy[:, :2]
            centres, sizes = labels.xyxy[:, :2] + sides / 2, np.sqrt(sides.prod(1))
            assert labels.track_id is not None
            ids = labels.track_id.tolist()
            steps = [centre - before.get(key, centre) for key, centre in zip(ids, centres, strict=True)]
            found.append(30 * np.hypot(*np.reshape(steps, (-1, 2)).T) / np.maximum(sizes, 1))
            before = dict(zip(ids, centres, strict=True))
        return found

    def hota(self, found: Found) -> float:
        """HOTA in percent of ByteTrack on the results of all frames."""
        tracker, counter = open_tracker("bytetrack", TrackerOptions()), TrackCounter(self.names)
        for number, (labels, one) in enumerate(zip(self.labels, found, strict=True)):
            counter.add(self.name, labels, tracker.update(one, number / 30))
        return 100 * counter.scores().hota


def clip(name: str, seed: int, split: str, cache: Path, rungs: Sequence[tuple[str, int]] = RUNGS) -> Clip:
    """A clip as an H.264 file, with the boxes of rungs; kept in a folder."""
    uri = f"synthetic://street?seed={seed}&fps=30&size={SIZE[0]}x{SIZE[1]}&split={split}&{SCHEDULES[name]}"
    stem = cache / f"{name}-{split}-{seed}"
    if not stem.with_suffix(".mp4").exists():
        write(World.parse(uri), stem.with_suffix(".mp4"))
    data = open_data(uri)
    labels = [data.labels(key) for key in data.keys]
    found = {}
    for model, size in rungs:
        kept = stem.with_name(f"{stem.name}-{model}-{size}.pkl")
        if not kept.exists():
            results = Pipeline(stem.with_suffix(".mp4"), model, imgsz=size, conf=CONF, max_det=MOST)
            kept.write_bytes(pickle.dumps([result.detections for result in results]))
        found[model, size] = pickle.loads(kept.read_bytes())
    return Clip(name, seed, labels, [data.names[key] for key in sorted(data.names)], found, edges(stem))


def write(world: World, path: Path) -> None:
    part = path.with_suffix(".part.mp4")
    with av.open(str(part), "w") as file:
        stream = file.add_stream("libx264", rate=Fraction(world.fps), options={"crf": "16", "preset": "veryfast"})
        stream.width, stream.height, stream.pix_fmt = *world.size, "yuv420p"
        for shot in world:
            file.mux(stream.encode(av.VideoFrame.from_ndarray(shot.image, "rgb24")))
        file.mux(stream.encode())
    part.rename(path)


def edges(stem: Path) -> NDArray[Any]:
    densities = []
    with av.open(str(stem.with_suffix(".mp4"))) as file:
        for frame in file.decode(video=0):
            plane = frame.to_ndarray()[: frame.height : 4, ::4].astype(np.int16)
            densities.append(float(np.abs(np.diff(plane, axis=1)).mean()))
    return np.array(densities)


class Watched(Governor):
    """Notes how much of the frame is beside the objects of a block that it halves: `beside`, shares of its area."""

    def __init__(self, limits: Limits) -> None:
        super().__init__(limits)
        self.beside: list[float] = []

    def split(self, bridge: Bridge) -> int | None:
        step = super().split(bridge)
        boxes = np.concatenate((bridge.first.xyxy, bridge.last.xyxy))
        sure = np.concatenate((bridge.first.confidence, bridge.last.confidence)) > 0.1
        if step is not None and sure.any():
            low = np.maximum(boxes[sure, :2].min(0) - MARGIN, 0)
            high = np.minimum(boxes[sure, 2:].max(0) + MARGIN, SIZE)
            self.beside.append(1 - float(np.prod((high - low) / SIZE)))
        return step


def adaptive(clip: Clip, agreement: float, kind: type[Governor] = Governor) -> tuple[list[Detections], list[int], Any]:
    """Results, the frames that were inferred, and the governor."""
    governor = kind(Limits(agreement))
    blocks, results, inferred = Blocks(governor, CONF), [], []
    best = clip.found[BEST]

    def run(looks: list[int]) -> None:
        waiting = list(looks)
        while waiting:
            number = waiting.pop(0)
            inferred.append(number)
            waiting += blocks.found(number, best[number])
        results.extend(ready.detections for ready in blocks.ready())

    for _ in best:
        run(blocks.arrived())
    run(blocks.end())
    return results, inferred, governor


def decide(clips: Sequence[Clip], rows: Sequence[list[dict[str, Any]]]) -> None:
    """Measure the decisions of the rows of each clip that have any."""
    cases = [(clip, row) for clip, own in zip(clips, rows, strict=True) for row in own if "audits" in row]
    times: list[list[float]] = [[] for _ in cases]
    for _ in range(DECIDED):
        for (clip, row), taken in zip(cases, times, strict=True):
            begun = time.process_time()
            adaptive(clip, float(row["policy"].split()[1]))
            taken.append(1e6 * (time.process_time() - begun) / len(clip.labels))
    for (_, row), taken in zip(cases, times, strict=True):
        row["decision_us"] = median(taken)


def oracle(best: Found, price: float, most: int = 16) -> list[int]:
    """The frames that are inferred if every loss is known."""
    inferred = [0]

    def divided(begin: int, end: int) -> tuple[float, list[int]]:
        if end - begin < 2:
            return 0.0, []
        bridge = Bridge(best[begin], best[end], end - begin)
        lost = sum(
            disagreement(best[begin + step], bridge.at(step, CONF)) / (1 + float(best[begin + step].confidence.sum()))
            for step in range(1, bridge.gap)
        )
        middle = (begin + end) // 2
        left, right = divided(begin, middle), divided(middle, end)
        total = 1 + left[0] + right[0]
        return (price * lost, []) if price * lost <= total else (total, [*left[1], middle, *right[1]])

    for begin in range(0, len(best) - 1, most):
        end = min(begin + most, len(best) - 1)
        inferred += [*divided(begin, end)[1], end]
    return inferred


def two_rungs(clip: Clip, cost: float, costs: dict[tuple[str, int], float]) -> list[Detections]:
    """The best rung where there are most edges, the cheapest elsewhere, at a mean cost."""
    low = RUNGS[0]
    share = min(1.0, max(0.0, (cost - costs[low]) / (costs[BEST] - costs[low])))
    chosen = clip.edges >= np.quantile(clip.edges, 1 - share) if share > 0 else np.zeros(len(clip.edges), bool)
    pairs = zip(chosen, clip.found[BEST], clip.found[low], strict=True)
    return [best if yes else cheap for yes, best, cheap in pairs]


def rows_of(clip: Clip, costs: dict[tuple[str, int], float]) -> list[dict[str, Any]]:
    """Every policy on a clip: its cost in ms a frame, and its mAP."""
    best, top, rows = clip.found[BEST], costs[BEST], []
    count = len(best)

    def add(policy: str, share: float, found: Found, **more: Any) -> None:
        rows.append({"policy": policy, "ms": share * top, "share": share, **clip.score(found), **more})
        if policy in TRACKED:
            rows[-1] |= {"hota": clip.hota(found), **clip.by_speed(found)}
        print(f"{clip.name:6} {clip.seed} {policy:28} {share:6.3f} {rows[-1]['map']:5.1f}", flush=True)

    for rung in RUNGS:
        add(f"fixed {rung[0]} {rung[1]}", costs[rung] / top, clip.found[rung])
    for stride in STRIDES:
        kept = sorted({*range(0, count, stride), count - 1})
        add(f"stride {stride} tracked", 1 / stride, tracked(best, stride, 30))
        add(f"stride {stride} interpolated", len(kept) / count, interpolated(best, kept))
    for agreement in AGREEMENTS:
        found, inferred, governor = adaptive(clip, agreement)
        share = len(inferred) / count
        beside = adaptive(clip, agreement, Watched)[2].beside
        real = 1 - sum(map(disagreement, best, found)) / sum(1 + float(one.confidence.sum()) for one in best)
        more = {
            "agreement": real,
            "expected": governor.agreement,
            "audits": governor.audits,
            "beside_objects": sum(beside) / len(inferred),
        }
        add(f"adaptive {agreement}", share, found, **more)
        chance = np.random.default_rng(clip.seed).choice(np.arange(1, count - 1), max(0, len(set(inferred)) - 2), False)
        add(f"random, as adaptive {agreement}", share, interpolated(best, [0, *sorted(chance.tolist()), count - 1]))
        add(f"edges, as adaptive {agreement}", share, two_rungs(clip, share * top, costs))
    for price in (1.0, 2.0, 4.0, 8.0, 16.0):
        known = oracle(best, price)
        add(f"oracle {price:g}", len(known) / count, interpolated(best, known))
    return rows


def measured() -> dict[tuple[str, int], float]:
    """Milliseconds of inference a frame of each rung, with all requests of the engine busy; median of three rounds."""
    times: dict[tuple[str, int], list[float]] = {rung: [] for rung in RUNGS}
    frames = f"synthetic://street?frames=2&size={SIZE[0]}x{SIZE[1]}"
    for _ in range(3):
        for model, size in RUNGS:
            with Pipeline(frames, model, imgsz=size) as pipeline:
                times[model, size].append(1000 * pipeline._program.row_seconds())
    return {rung: median(values) for rung, values in times.items()}


def end_to_end(folder: Path, runs: int) -> dict[str, Any]:
    """Frames a second of the real pipeline, 1080p, with the annotated video written."""
    rows = {}
    for name in ("cycle", "day"):
        path = folder / f"{name}-1080.mp4"
        if not path.exists():
            write(World.parse(f"synthetic://street?seed=61&fps=30&size=1920x1080&split=test&{SCHEDULES[name]}"), path)
        fps: dict[str, list[float]] = {"every frame": [], "adaptive": []}
        for run in range(runs):
            for label, on in (("every frame", False), ("adaptive", True)):
                with TemporaryDirectory() as out:
                    pipeline = Pipeline(path, "scout-s", adaptive=on, save=True, project=Path(out))
                    begun = time.perf_counter()
                    frames = pipeline.run().frames
                    fps[label].append(frames / (time.perf_counter() - begun))
            print(f"end to end {name} {run}", {key: round(values[-1], 1) for key, values in fps.items()}, flush=True)
        rows[name] = {label: median(values) for label, values in fps.items()}
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[61, 62, 63])
    parser.add_argument("--cache", type=Path, default=Path("build/adaptive"))
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--only", choices=["decisions"])
    args = parser.parse_args()
    logging.disable(logging.WARNING)
    args.cache.mkdir(parents=True, exist_ok=True)
    groups = "adaptive", "synthetic world", "model"
    if args.only:
        before = json.loads((RECORDS / "adaptive.json").read_text(encoding="utf-8"))
        known = [clip(kept["clip"], kept["seed"], "test", args.cache) for kept in before["clips"]]
        decide(known, [kept["rows"] for kept in before["clips"]])
        save("adaptive", {key: before[key] for key in ("rungs", "end_to_end", "clips")}, *groups)
        return
    costs = measured()
    speed = end_to_end(args.cache, args.runs)
    clips, known = [], []
    for seed in args.seeds:
        for name in SCHEDULES:
            known.append(made := clip(name, seed, "test", args.cache))
            clips.append({"clip": name, "seed": seed, "frames": len(made.labels), "rows": rows_of(made, costs)})
    decide(known, [made["rows"] for made in clips])
    rungs = [{"model": model, "imgsz": size, "ms": costs[model, size]} for model, size in RUNGS]
    save("adaptive", {"rungs": rungs, "end_to_end": speed, "clips": clips}, *groups)


if __name__ == "__main__":
    main()
