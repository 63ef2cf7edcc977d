"""Tracks against the ground truth: HOTA, CLEAR and identity metrics by trackeval."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from framefuse.lab.evaluation.boxes import overlaps
from framefuse.lab.evaluation.coco import needed
from framefuse.lab.evaluation.dataset import Labels
from framefuse.lab.evaluation.scores import IOU, TrackScores
from framefuse.prediction import Detections


class _Step(NamedTuple):
    """A frame of one class: ids of its objects (n,) and of its tracks (m,), and their overlaps (n, m)."""

    objects: NDArray[np.int64]
    tracks: NDArray[np.int64]
    overlaps: NDArray[np.float64]


class TrackCounter:
    """Counts tracks frame by frame. Each class of each sequence is scored by itself, and all are summed, as over the
    sequences of a benchmark.

    Args:
        names: the classes that are compared.

    Raises:
        CapabilityError: the extra `val` is not installed.
    """

    def __init__(self, names: Sequence[str]) -> None:
        metrics = needed("trackeval").metrics
        quiet = {"PRINT_CONFIG": False, "THRESHOLD": IOU}
        self._metrics: list[Any] = [metrics.HOTA(), metrics.CLEAR(quiet), metrics.Identity(quiet)]
        self._assign = needed("scipy.optimize").linear_sum_assignment
        self._names = list(names)
        self._steps: dict[tuple[str, int], list[_Step]] = defaultdict(list)

    def add(self, sequence: str, labels: Labels, found: Detections) -> None:
        """Count one frame. Boxes that match an object which does not count (`Labels.crowd`) are left out, as
        MOTChallenge does.

        Args:
            sequence: what the frame is one of.
            found: classes index `names`; boxes without a track do not count.
        """
        assert labels.track_id is not None
        tracks = np.full(len(found), -1, np.int64) if found.tracker_id is None else found.tracker_id
        for number in range(len(self._names)):
            known, seen = labels.class_id == number, (found.class_id == number) & (tracks >= 0)
            shared, _ = overlaps(labels.xyxy[known], found.xyxy[seen])
            crowd, kept = labels.crowd[known], np.ones(int(seen.sum()), bool)
            at, of = self._assign(-np.where(shared >= IOU, shared, 0))
            kept[of[(shared[at, of] >= IOU) & crowd[at]]] = False
            step = _Step(labels.track_id[known][~crowd], tracks[seen][kept], shared[~crowd][:, kept])
            self._steps[sequence, number].append(step)

    def scores(self) -> TrackScores:
        parts = {key: self._part(steps) for key, steps in self._steps.items()}
        parts = {key: data for key, data in parts.items() if data["num_gt_dets"] or data["num_tracker_dets"]}
        if not parts:
            return TrackScores(0.0, 0.0, 0.0, 0.0, 0.0, 0, 0, 0, 0, {}, {})
        results = {key: [metric.eval_sequence(data) for metric in self._metrics] for key, data in parts.items()}
        hota, clear, identity = (self._summed(results, number) for number in range(3))
        by_class: dict[str, tuple[int, float | None]] = {}
        for number, name in enumerate(self._names):
            own = {key: one for key, one in results.items() if key[1] == number}
            objects = sum(parts[key]["num_gt_dets"] for key in own)
            by_class[name] = objects, float(np.mean(self._summed(own, 0)["HOTA"])) if objects else None
        curves = {name: [round(float(value), 6) for value in hota[name]] for name in ("HOTA", "DetA", "AssA")}
        return TrackScores(
            **{name.lower(): float(np.mean(hota[name])) for name in curves},
            mota=float(clear["MOTA"]),
            idf1=float(identity["IDF1"]),
            id_switches=int(clear["IDSW"]),
            fragments=int(clear["Frag"]),
            objects=sum(data["num_gt_dets"] for data in parts.values()),
            identities=sum(data["num_gt_ids"] for data in parts.values()),
            by_class=by_class,
            curves=curves,
        )

    def _summed(self, results: dict[tuple[str, int], list[Any]], number: int) -> Any:
        return self._metrics[number].combine_sequences({str(key): one[number] for key, one in results.items()})

    @staticmethod
    def _part(steps: Sequence[_Step]) -> dict[str, Any]:
        """A sequence as trackeval takes it: ids count from 0 without gaps."""
        data: dict[str, Any] = {"num_timesteps": len(steps), "similarity_scores": [step.overlaps for step in steps]}
        for name, ids in (("gt", [step.objects for step in steps]), ("tracker", [step.tracks for step in steps])):
            known, index = np.unique(np.concatenate(ids), return_inverse=True)
            data[f"{name}_ids"] = np.split(index, np.cumsum([len(one) for one in ids])[:-1])
            data |= {f"num_{name}_ids": len(known), f"num_{name}_dets": len(index)}
        return data
