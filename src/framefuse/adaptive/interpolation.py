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

from framefuse.kernels.tracking.call import pair
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
SIDES = np.ones(4, np.float32)
total = np.add.reduce
"""The sum, which for few numbers takes half as long as `numpy.sum`."""


class Bridge:
    """What two frames of a source say about those between them.

    Args:
        gap: distance of the two, in frames.

    Attributes:
        objects: of a frame, weighted by confidence.
    """

    def __init__(self, first: Detections, last: Detections, gap: int) -> None:
        self.first, self.last, self.gap = first, last, gap
        self.objects = float(total(first.confidence) + total(last.confidence)) / 2

    def at(self, step: int, conf: float) -> Detections:
        """The objects `step` frames after the first end, those above `conf`.

        A box that only one end has fades with the distance from it.
        """
        (before, after, fading, growing, classes), share = self._ends, step / self.gap
        if not len(classes):
            return self.first
        confidence = (1 - share) * fading + share * growing
        order = (-confidence).argsort(kind="stable")[: np.count_nonzero(confidence > conf)]
        boxes = (1 - share) * before.take(order, 0) + share * after.take(order, 0)
        return Detections(boxes, confidence.take(order), classes.take(order), self.first.names)

    @cached_property
    def _ends(self) -> tuple[Array, ...]:
        """Of all objects: boxes and confidences in the first and in the last frame, and classes."""
        first, last, (rows, columns) = self.first, self.last, self._pairs
        alone = np.ones(len(first) + len(last), np.bool_)
        alone[rows] = alone[columns + len(first)] = False
        single = alone.nonzero()[0]
        begin, end = np.concatenate((rows, single)), np.concatenate((columns + len(first), single))
        boxes = np.concatenate((first.xyxy, last.xyxy), dtype=np.float32)
        classes = np.concatenate((first.class_id, last.class_id))
        confidence = np.concatenate((first.confidence, last.confidence), dtype=np.float32)
        fading, growing = confidence.take(begin), confidence.take(end)
        gone = len(rows) + int(single.searchsorted(len(first)))
        growing[len(rows) : gone], fading[gone:] = 0, 0
        return boxes.take(begin, 0), boxes.take(end, 0), fading, growing, classes.take(begin)

    @cached_property
    def _pairs(self) -> tuple[Array, Array]:
        """Indices of the boxes of the first frame, and of their continuations in the last."""
        first, last = self.first, self.last
        begin = first.xyxy, first.class_id, np.sqrt(first.confidence)
        end = last.xyxy, last.class_id, np.sqrt(last.confidence)
        found = pair(begin, end, OVERLAP, drift=DRIFT * self.gap)
        return found.rows, found.columns

    @cached_property
    def signs(self) -> Array:
        """(6,) what makes the frames between hard to guess, each per object: 1, the share of objects that only one end
        has, motion in their own sizes, change of confidence; then the distance, and the number of objects."""
        first, last, (rows, columns) = self.first, self.last, self._pairs
        count, ones = 1 + self.objects, first.xyxy.take(rows, 0)
        before, after = first.confidence.take(rows), last.confidence.take(columns)
        sides, both = ones[:, 2:] - ones[:, :2], before + after
        size = np.sqrt(np.maximum(sides[:, 0] * sides[:, 1], 1.0))
        moved = float(both @ (np.abs(last.xyxy.take(columns, 0) - ones) @ SIDES / size)) / 8
        single = self.objects - float(total(both)) / 2
        changed = float(total(np.abs(before - after)))
        return np.array((1.0, single / count, moved / count, changed / count, self.gap / LONG, self.objects / BUSY))


def disagreement(truth: Detections, found: Detections) -> float:
    """Objects, weighted by confidence, in which two opinions about one frame differ.

    An object counts as found by as much as its box fits, as in the mean of AP over IoU 0.50 to 0.95: not at all up
    to NO_FIT, fully from FULL_FIT on. A box on nothing counts half.
    """
    seen = truth.xyxy, truth.class_id, truth.confidence
    guessed = found.xyxy, found.class_id, np.ones(len(found))
    pairs = pair(seen, guessed, NO_FIT, scale=(NO_FIT, FULL_FIT))
    missed = total(truth.confidence) - total(pairs.worth)
    false = total(found.confidence) - total(found.confidence[pairs.columns])
    return float(missed + false / 2)
