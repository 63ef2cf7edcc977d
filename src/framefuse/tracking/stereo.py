"""Stereo: which tracks of the two eyes of a frame are the same object."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from framefuse.frame import View
from framefuse.prediction import Detections
from framefuse.tracking.matching import Pairs, assign
from framefuse.tracking.tracker import NO_TRACK

Array = NDArray[Any]

EYES = ("left", "right"), ("top", "bottom")
"""Tags of the views of both eyes."""
DISPARITY = 0.15
"""Widths of an eye by which an object may be shifted from one eye to the other."""
ALIKE = 0.5
"""Share of their common height that both boxes cover at least, and least ratio of their widths."""
REMEMBERED = 10_000
"""Tracks whose partner is known, the latest ones."""


class Partners:
    """Links each track of one eye with the track of the same object in the other eye, and keeps the link until another
    track fits better."""

    def __init__(self) -> None:
        self._partner: dict[int, int] = {}

    def link(self, found: Detections, views: Sequence[View]) -> Array | None:
        """(n,) int64: the track in the other eye, NO_TRACK without one; None: the views are not two eyes."""
        known = {view.tag: (number, view.region) for number, view in enumerate(views) if view.region}
        eyes = next(([known[tag] for tag in pair] for pair in EYES if known.keys() >= set(pair)), None)
        ids, view = found.tracker_id, found.view
        if eyes is None or ids is None or view is None:
            return None
        one, other = (((view == number) & (ids >= 0)).nonzero()[0] for number, _ in eyes)
        if len(one) and len(other):
            (_, (left, top, width, _)), (_, (x, y, _, _)) = eyes
            shifted = found.xyxy[other] - np.array((x - left, y - top) * 2, np.float32)
            reach = DISPARITY * width
            linked = [[self._partner.get(a) == b for b in ids[other].tolist()] for a in ids[one].tolist()]
            worth = _likeness(found.xyxy[one], shifted, reach) * (1 + np.array(linked))
            worth[found.class_id[one][:, None] != found.class_id[other]] = 0
            rows, columns = (worth >= ALIKE).nonzero()
            pairs = assign(Pairs(rows, columns, worth[rows, columns]))
            for a, b in zip(ids[one[pairs.rows]].tolist(), ids[other[pairs.columns]].tolist(), strict=True):
                for track, partner in ((a, b), (b, a)):
                    self._partner.pop(self._partner.pop(track, NO_TRACK), None)
                    self._partner[track] = partner
            while len(self._partner) > REMEMBERED:
                del self._partner[next(iter(self._partner))]
        return np.array([self._partner.get(track, NO_TRACK) for track in ids.tolist()], np.int64)


def _likeness(ones: Array, others: Array, reach: float) -> Array:
    """(m, n) in 0..1: 0 where boxes cannot be the same object, else more for the same height, width and place."""
    ones, others = ones[:, None].astype(np.float64), others[None].astype(np.float64)
    common = np.minimum(ones[..., 3], others[..., 3]) - np.maximum(ones[..., 1], others[..., 1])
    height = common / (np.maximum(ones[..., 3], others[..., 3]) - np.minimum(ones[..., 1], others[..., 1]))
    widths = ones[..., 2] - ones[..., 0], others[..., 2] - others[..., 0]
    width = np.minimum(*widths) / np.maximum(*widths)
    moved = np.abs(ones[..., 0] + ones[..., 2] - others[..., 0] - others[..., 2]) / 2
    fits = (np.minimum(height, width) >= ALIKE) & (moved <= reach)
    likeness: Array = np.where(fits, (height + width) / 2 * (1 - moved / (2 * reach)), 0)
    return likeness
