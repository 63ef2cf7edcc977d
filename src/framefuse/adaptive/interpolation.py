"""Objects of frames that no model has seen: they lie on straight lines between what two other frames show.

`Bridge` matches the boxes of two frames and gives those of any frame between them. How wrong these are is known before
any of the frames is inferred, within limits: `signs` are what the two ends say about it, and `disagreement` is the
truth once a frame has been inferred.
"""

from functools import cached_property

import numpy as np

from framefuse.kernels.tracking.call import Ends, bridge, pair
from framefuse.prediction import Array, Detections

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
        if not (len(self.first) or len(self.last)):
            return self.first
        ends, share = self._ends, np.float32(step / self.gap)
        (before, after), (fading, growing), rest = ends.boxes, ends.confidence, np.float32(1) - share
        confidence = rest * fading + share * growing
        order = (-confidence).argsort(kind="stable")[: np.count_nonzero(confidence > conf)]
        boxes = rest * before.take(order, 0) + share * after.take(order, 0)
        return Detections(boxes, confidence.take(order), ends.classes.take(order), self.first.names)

    @cached_property
    def _ends(self) -> Ends:
        """All objects, paired where they go on."""
        first, last = ((end.xyxy, end.class_id, end.confidence) for end in (self.first, self.last))
        return bridge(first, last, OVERLAP, drift=DRIFT * self.gap)

    @cached_property
    def signs(self) -> Array:
        """(6,) what makes the frames between hard to guess, each per object: 1, the share of objects that only one end
        has, motion in their own sizes, change of confidence; then the distance, and the number of objects."""
        count, ends = 1 + self.objects, self._ends
        single, moved = self.objects - ends.shown / 2, ends.moved / 8
        return np.array(
            (1.0, single / count, moved / count, ends.changed / count, self.gap / LONG, self.objects / BUSY)
        )


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
