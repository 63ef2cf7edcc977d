"""Are the tracks right, and what do they cost? Ours beside the package `trackers`: the same boxes, the same truth.

    python -m benchmarks.tracking [--frames 900] [--runs 400]

It needs the packages `trackers` and `trackeval`. Three schedules of the synthetic street, whose identities are known,
are seen by two detectors: `scout-s`, and a seeded model of a detector, which takes the true boxes and adds jitter,
misses, false alarms, and scores that fall where an object is hidden. Each tracker gets the same boxes in one order.
HOTA and IDF1 are those of `trackeval`, for the boxes that have an id, all classes together; boxes on objects that the
truth marks as ignored do not count either way. `trackers` runs with its own defaults, and once more with the thresholds
of ours. The defaults of ours were chosen on other seeds than SEEDS.

Then with frames left out: every third or fifth frame, and gaps of one to six frames at random, as a governor leaves
them. Ours by the presentation times is compared with ours stepping by frame, as if none were missing, and with
`trackers` and its timestamps. The row "true ids" is the limit of any tracker with these boxes.

The time of a frame is that of one call of `update` with 10, 50 and 200 objects that cross a frame in straight lines,
all of them confident, a tenth missing in each frame, all trackers interleaved. Results go to
benchmarks/records/tracking.json; the last line is JSON.
"""

from __future__ import annotations

import argparse
import itertools
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.protocol import measure, save
from framefuse import Pipeline
from framefuse.prediction import Detections
from framefuse.tracking import TRACKERS, Tracker, TrackerOptions, open_tracker
from framefuse.world import World

Array = NDArray[Any]
Update = Callable[[Detections, float], tuple[Array, Array]]
"""(boxes of a frame, seconds) -> the boxes that have an id, and their ids."""

SEEDS = (11, 12, 13)
SCHEDULES = {"changing": "", "half full": "&complexity=0.5", "crowded": "&complexity=1"}
OBJECTS = 10, 50, 200
GAPS = {"every third frame": (3, 3), "every fifth frame": (5, 5), "gaps of 1 to 6 frames": (1, 6)}
"""Least and greatest distance of two frames."""
TRUE = "true ids"
"""A row of what is possible with the same boxes."""


class Truth(NamedTuple):
    """What is in a frame."""

    boxes: Array
    ids: Array
    ignored: Array


@dataclass(frozen=True)
class Scene:
    """A recorded clip: its truth, and what a detector says of each frame."""

    name: str
    seconds: Sequence[float]
    truth: Sequence[Truth]
    found: Sequence[Detections]

    def thinned(self, gaps: tuple[int, int]) -> Scene:
        """With frames left out at random."""
        steps = np.random.default_rng(0).integers(gaps[0], gaps[1] + 1, len(self.found))
        kept = [0, *(at for at in steps.cumsum().tolist() if at < len(self.found))]
        seconds, truth, found = ([part[at] for at in kept] for part in (self.seconds, self.truth, self.found))
        return Scene(self.name, seconds, truth, found)


def scenes(frames: int, seeds: Sequence[int] = SEEDS) -> list[Scene]:
    """Every schedule, seen by both detectors."""
    made = []
    for seed, (schedule, key) in zip(seeds, SCHEDULES.items(), strict=True):
        uri = f"synthetic://street?seed={seed}&frames={frames}&size=960x540&fps=30&split=test{key}"
        truths, modelled, rng = [], [], np.random.default_rng(seed)
        for shot in World.parse(uri):
            truth = shot.truth
            truths.append(Truth(truth.boxes.astype(float), truth.track_id, truth.ignored))
            modelled.append(seen(truth.boxes, truth.class_id, truth.visibility, rng))
        seconds = [index / 30 for index in range(frames)]
        results = [result.detections for result in Pipeline(uri, "scout-s", conf=0.05, max_det=300)]
        made.append(Scene(f"scout-s, {schedule}", seconds, truths, results))
        made.append(Scene(f"modelled, {schedule}", seconds, truths, modelled))
    return made


def seen(boxes: Array, classes: Array, visibility: Array, rng: np.random.Generator) -> Detections:
    """The true boxes as a detector of middling quality sees them."""
    shown = rng.random(len(boxes)) < 0.97 * np.clip(0.25 + visibility, 0, 1)
    boxes, classes, visibility = boxes[shown], classes[shown], visibility[shown]
    size = np.sqrt((boxes[:, 2:] - boxes[:, :2]).prod(1, keepdims=True))
    boxes = boxes + rng.normal(0, 0.03, boxes.shape) * size
    scores = np.clip(0.3 + 0.55 * visibility + rng.normal(0, 0.12, len(boxes)), 0.05, 0.99)
    false = rng.poisson(1.0)
    corner = rng.uniform(0, (860, 440), (false, 2))
    boxes = np.concatenate((boxes, np.concatenate((corner, corner + rng.uniform(15, 100, (false, 2))), 1)))
    scores = np.concatenate((scores, np.clip(rng.exponential(0.2, false) + 0.05, 0, 0.95)))
    classes = np.concatenate((classes, rng.integers(0, 10, false)))
    order = np.argsort(-scores, kind="stable")
    return Detections(boxes[order].astype(np.float32), scores[order].astype(np.float32), classes[order], {})


def ours(name: str, options: TrackerOptions | None = None, *, step: float | None = None) -> Update:
    """Our tracker; `step`: seconds from frame to frame, whatever their times are."""
    tracker, numbers = open_tracker(name, options), itertools.count()

    def update(found: Detections, seconds: float) -> tuple[Array, Array]:
        ids = tracker.update(found, seconds if step is None else next(numbers) * step).tracker_id
        assert ids is not None
        return found.xyxy[ids >= 0], ids[ids >= 0]

    return update


def theirs(name: str, *, timed: bool = False, **options: Any) -> Update:
    """The tracker of the package `trackers`."""
    tracker = opened(name, **options)

    def update(found: Detections, seconds: float) -> tuple[Array, Array]:
        tracked = tracker.update(converted(found), **({"timestamp": seconds} if timed else {}))
        return tracked.xyxy[tracked.tracker_id >= 0], tracked.tracker_id[tracked.tracker_id >= 0]

    return update


def true_ids(scene: Scene) -> Update:
    """What no tracker can beat with these boxes: those on an object have its identity, and all others none."""
    from scipy.optimize import linear_sum_assignment

    truths = iter(scene.truth)

    def update(found: Detections, seconds: float) -> tuple[Array, Array]:
        truth, boxes = next(truths), found.xyxy[found.confidence >= TrackerOptions().low]
        iou = overlap(truth.boxes, boxes.astype(float))
        rows, columns = linear_sum_assignment(iou, maximize=True)
        right = iou[rows, columns] >= 0.5
        return boxes[columns[right]], truth.ids[rows[right]]

    return update


def opened(name: str, **options: Any) -> Any:
    """A tracker of the package `trackers`."""
    from trackers import ByteTrackTracker, OCSORTTracker

    return {"bytetrack": ByteTrackTracker, "ocsort": OCSORTTracker}[name](**options)


def converted(found: Detections) -> Any:
    """What `trackers` takes."""
    import supervision

    return supervision.Detections(found.xyxy, confidence=found.confidence, class_id=found.class_id)


def our_thresholds(name: str) -> dict[str, float]:
    """Those of ours, as options of `trackers`."""
    options = TrackerOptions()
    starts = {"track_activation_threshold": options.new} if name == "bytetrack" else {}
    return {"high_conf_det_threshold": options.high, **starts}


def score(scene: Scene, update: Update) -> dict[str, float]:
    """HOTA and IDF1 in percent of a tracker over a clip."""
    from scipy.optimize import linear_sum_assignment
    from trackeval.metrics import HOTA, Identity

    true_ids, found_ids, overlaps = [], [], []
    for truth, found, seconds in zip(scene.truth, scene.found, scene.seconds, strict=True):
        boxes, ids = update(found, seconds)
        iou = overlap(truth.boxes, boxes.astype(float))
        rows, columns = linear_sum_assignment(iou, maximize=True)
        on_ignored = columns[truth.ignored[rows] & (iou[rows, columns] >= 0.5)]
        kept = np.setdiff1d(np.arange(len(ids)), on_ignored)
        true_ids.append(truth.ids[~truth.ignored])
        found_ids.append(ids[kept])
        overlaps.append(iou[~truth.ignored][:, kept])
    data: dict[str, Any] = {"similarity_scores": overlaps}
    for key, short, parts in (("gt", "gt", true_ids), ("tracker", "tracker", found_ids)):
        known, numbers = np.unique(np.concatenate(parts), return_inverse=True)
        ends = np.cumsum([len(part) for part in parts])[:-1]
        data |= {
            f"{key}_ids": np.split(numbers, ends),
            f"num_{short}_ids": len(known),
            f"num_{short}_dets": len(numbers),
        }
    return {
        "hota": float(np.mean(HOTA().eval_sequence(data)["HOTA"]) * 100),
        "idf1": float(Identity({"PRINT_CONFIG": False}).eval_sequence(data)["IDF1"] * 100),
        "ids": data["num_tracker_ids"],
    }


def overlap(ones: Array, others: Array) -> Array:
    """(m, n) IoU."""
    sides = np.minimum(ones[:, None, 2:], others[None, :, 2:]) - np.maximum(ones[:, None, :2], others[None, :, :2])
    common = np.clip(sides, 0, None).prod(2)
    areas = [(boxes[:, 2:] - boxes[:, :2]).prod(1) for boxes in (ones, others)]
    result: Array = common / np.maximum(areas[0][:, None] + areas[1] - common, 1e-9)
    return result


def crowd(count: int, frames: int) -> list[Detections]:
    """Objects in straight lines, jittered, a tenth of them missing in each frame."""
    rng = np.random.default_rng(count)
    place, speed = rng.uniform(0, (1920, 1080), (count, 2)), rng.normal(0, 4, (count, 2))
    half, scores = rng.uniform(15, 45, (count, 2)), np.sort(rng.uniform(0.75, 1, count))[::-1].astype(np.float32)
    made = []
    for frame in range(frames):
        shown = rng.random(count) > 0.1
        centre = place + frame * speed + rng.normal(0, 1, (count, 2))
        boxes = np.concatenate((centre - half, centre + half), axis=1)[shown].astype(np.float32)
        made.append(Detections(boxes, scores[shown], np.zeros(len(boxes), np.int64)))
    return made


def timed(count: int, runs: int) -> dict[str, Any]:
    """The time of a frame of `count` objects, by tracker. What they take is made beforehand."""
    found = crowd(count, 200)
    found += found[::-1]  # there and back, so that no frame is a jump
    their_found = [converted(one) for one in found]
    calls: dict[str, Callable[[], object]] = {}
    for name in TRACKERS:
        mine, other = open_tracker(name), opened(name)
        frames, numbers, their_frames = itertools.cycle(found), itertools.count(), itertools.cycle(their_found)
        calls[f"ours {name}"] = partial(_step_ours, mine, frames, numbers)
        calls[f"trackers {name}"] = partial(_step_theirs, other, their_frames)
    return {name: measurement.wall for name, measurement in measure(calls, warmups=60, runs=runs).items()}


def _step_ours(tracker: Tracker, frames: Iterator[Detections], numbers: Iterator[int]) -> object:
    return tracker.update(next(frames), next(numbers) / 30)


def _step_theirs(tracker: Any, frames: Iterator[Any]) -> object:
    return tracker.update(next(frames))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frames", type=int, default=900)
    parser.add_argument("--runs", type=int, default=400)
    args = parser.parse_args()
    logging.disable(logging.WARNING)
    recorded = scenes(args.frames)

    def scored(clips: Sequence[Scene], make: Callable[[], Update] | None) -> dict[str, Any]:
        each = {clip.name: score(clip, make() if make else true_ids(clip)) for clip in clips}
        return {"mean": {key: float(np.mean([row[key] for row in each.values()])) for key in ("hota", "idf1")}, **each}

    every: dict[str, Any] = {TRUE: scored(recorded, None)}
    thinned: dict[str, dict[str, Any]] = {
        gap: {TRUE: scored([clip.thinned(steps) for clip in recorded], None)} for gap, steps in GAPS.items()
    }
    for name in TRACKERS:
        peers = {
            f"ours {name}": partial(ours, name),
            f"trackers {name}": partial(theirs, name),
            f"trackers {name}, our thresholds": partial(theirs, name, **our_thresholds(name)),
        }
        every |= {peer: scored(recorded, make) for peer, make in peers.items()}
        stepping = {
            f"ours {name}": partial(ours, name),
            f"ours {name}, stepping by frame": partial(ours, name, step=1 / 30),
            f"trackers {name}, with timestamps": partial(theirs, name, timed=True),
        }
        for gap, steps in GAPS.items():
            clips = [clip.thinned(steps) for clip in recorded]
            thinned[gap] |= {peer: scored(clips, make) for peer, make in stepping.items()}
    for title, rows in {"every frame": every, **thinned}.items():
        for peer, row in rows.items():
            print(f"{title:22} {peer:36} HOTA {row['mean']['hota']:.1f} IDF1 {row['mean']['idf1']:.1f}", flush=True)
    times = {str(count): timed(count, args.runs) for count in OBJECTS}
    for objects, measured in times.items():
        for peer, stats in measured.items():
            print(f"{objects:>4} objects {peer:24} {stats.median:.3f} ms")
    save("tracking", {"frames": args.frames, "every_frame": every, "thinned": thinned, "ms": times},
         "tracking", "synthetic world", "model")  # fmt: skip


if __name__ == "__main__":
    main()
