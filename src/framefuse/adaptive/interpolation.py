"""Objects of frames that no model has seen: they lie on straight lines between what two other frames show.

`Bridge` matches the boxes of two frames and gives those of any frame between them. How wrong these are is known before
any of the frames is inferred, within limits: `signs` are what the two ends say about it, and `disagreement` is the
truth once a frame has been inferred.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from framefuse.kernels.tracking.call import assign, pair
from framefuse.prediction import Detections

Array = NDArray[Any]

DRIFT = 0.4
"""Share of its size by which an object is expected to move from a frame to the next, at most."""
OVERLAP = 0.1
"""Least IoU, after the margin for DRIFT, of a box and its continuation."""
NO_FIT, FULL_FIT = 0.45, 0.95
"""IoU up to which a box does not show an object at all, and from which it shows it fully."""
BUSY = 20.0
"""Objects of a scene that counts as 1 in `signs`."""
LONG = 8
"""Frames of a distance that counts as 1 in `signs`."""


class Bridge:
    """What two frames of a source say about those between them.

    Args:
        gap: distance of the two, in frames.

    Attributes:
        objects: of a frame, weighted by confidence.
    """

    def __init__(self, first: Detections, last: Detections, gap: int) -> None:
        self.first, self.last, self.gap = first, last, gap
        self.objects = float(first.confidence.sum() + last.confidence.sum()) / 2

    def at(self, step: int, conf: float) -> Detections:
        """The objects `step` frames after the first end, those above `conf`.

        A box that only one end has fades with the distance from it.
        """
        first, last, share = self.first, self.last, step / self.gap
        (rows, columns), (begun, ended) = self._pairs, self._single
        near, far = first.confidence[begun] * (1 - share), last.confidence[ended] * share
        both = (1 - share) * first.confidence[rows] + share * last.confidence[columns]
        boxes = (1 - share) * first.xyxy[rows] + share * last.xyxy[columns], first.xyxy[begun], last.xyxy[ended]
        classes = first.class_id[rows], first.class_id[begun], last.class_id[ended]
        confidence = np.concatenate((both, near, far))
        order = np.argsort(-confidence, kind="stable")
        order = order[: np.count_nonzero(confidence > conf)]
        return Detections(
            np.concatenate(boxes)[order].astype(np.float32),
            confidence[order].astype(np.float32),
            np.concatenate(classes)[order],
            first.names,
        )

    @cached_property
    def _pairs(self) -> tuple[Array, Array]:
        """Indices of the boxes of the first frame, and of their continuations in the last."""
        return _continued(self.first, self.last, self.gap)

    @cached_property
    def _single(self) -> tuple[Array, Array]:
        """Boxes that only the first, and that only the last frame has."""
        begun, ended = np.ones(len(self.first), np.bool_), np.ones(len(self.last), np.bool_)
        rows, columns = self._pairs
        begun[rows], ended[columns] = False, False
        return begun.nonzero()[0], ended.nonzero()[0]

    @cached_property
    def signs(self) -> Array:
        """(6,) what makes the frames between hard to guess, each per object: 1, the share of objects that only one end
        has, motion in their own sizes, change of confidence; then the distance, and the number of objects."""
        first, last, (rows, columns) = self.first, self.last, self._pairs
        count = 1 + self.objects
        ones, others = first.xyxy[rows].astype(np.float64), last.xyxy[columns].astype(np.float64)
        before, after = first.confidence[rows], last.confidence[columns]
        size = np.sqrt(np.maximum((ones[:, 2:] - ones[:, :2]).prod(1), 1.0))
        moved = float(((before + after) / 2 * np.abs(others - ones).mean(1) / size).sum())
        single = float(first.confidence.sum() - before.sum() + last.confidence.sum() - after.sum()) / 2
        changed = float(np.abs(before - after).sum())
        return np.array((1.0, single / count, moved / count, changed / count, self.gap / LONG, self.objects / BUSY))


def _continued(first: Detections, last: Detections, gap: int) -> tuple[Array, Array]:
    """Indices of the boxes of one frame, and of their continuations in another."""
    sizes = np.sqrt(np.maximum((first.xyxy[:, 2:] - first.xyxy[:, :2]).prod(1, dtype=np.float64), 0.0))
    pairs = pair(first.xyxy, last.xyxy, (first.class_id, last.class_id), OVERLAP, DRIFT * gap * sizes)
    sure = np.sqrt(first.confidence[pairs.rows] * last.confidence[pairs.columns])
    pairs = assign(pairs._replace(worth=pairs.worth * sure))
    return pairs.rows, pairs.columns


def disagreement(truth: Detections, found: Detections) -> float:
    """Objects, weighted by confidence, in which two opinions about one frame differ.

    An object counts as found by as much as its box fits, as in the mean of AP over IoU 0.50 to 0.95: not at all up
    to NO_FIT, fully from FULL_FIT on. A box on nothing counts half.
    """
    pairs = pair(truth.xyxy, found.xyxy, (truth.class_id, found.class_id), NO_FIT)
    fits = np.minimum((pairs.worth - NO_FIT) / (FULL_FIT - NO_FIT), 1)
    pairs = assign(pairs._replace(worth=fits * truth.confidence[pairs.rows]))
    missed = truth.confidence.sum() - pairs.worth.sum()
    false = found.confidence.sum() - found.confidence[pairs.columns].sum()
    return float(missed + false / 2)
