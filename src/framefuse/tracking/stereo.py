"""Stereo: which tracks of the two eyes of a frame are the same object."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from framefuse.frame import View
from framefuse.kernels.tracking.call import Pairs, assign
from framefuse.prediction import Array, Detections
from framefuse.tracking.bytetrack import NO_TRACK

EYES = ("left", "right"), ("top", "bottom")
"""First words of the tags of the views of both eyes."""
DISPARITY = 0.15
"""Widths of an eye by which an object may be shifted from one eye to the other."""
ALIKE = 0.5
"""Share of their common height that both boxes cover at least, and least ratio of their widths."""
REMEMBERED = 10_000
"""Tracks whose partner is known, the latest ones."""


class Eyes(NamedTuple):
    """Where both eyes of a frame are among its views."""

    of_view: Array
    """(views,) 0: the left or upper eye, 1: the other one, -1: neither."""
    origins: Array
    """(2, 2) x, y of the upper left corner of each eye."""
    width: float


def find_eyes(views: Sequence[View]) -> Eyes | None:
    """The eyes that views show, whole or in tiles, by the first words of their tags; None: not two eyes."""
    for pair in EYES:
        words = [view.tag.partition(" ")[0] if view.region else "" for view in views]
        of_view = np.array([pair.index(word) if word in pair else -1 for word in words])
        if {0, 1} <= set(of_view.tolist()):
            regions = np.array([view.region or (0, 0, 0, 0) for view in views])
            first, second = regions[of_view == 0], regions[of_view == 1]
            width = (first[:, 0] + first[:, 2]).max() - first[:, 0].min()
            return Eyes(of_view, np.array([first[:, :2].min(0), second[:, :2].min(0)]), float(width))
    return None


def seen_once(found: Detections, views: Sequence[View]) -> Detections:
    """The objects without those of the right or lower eye that have a partner in the other eye."""
    eyes = find_eyes(views)
    if eyes is None or found.view is None or found.pair_id is None:
        return found
    counts: Array = (eyes.of_view[found.view] < 1) | (found.pair_id == NO_TRACK)
    return found[counts]


class Partners:
    """Links each track of one eye with the track of the same object in the other eye, and keeps the link until another
    track fits better."""

    def __init__(self) -> None:
        self._partner: dict[int, int] = {}

    def link(self, found: Detections, views: Sequence[View]) -> Array | None:
        """(n,) int64: the track in the other eye, NO_TRACK without one; None: the views are not two eyes."""
        eyes, ids = find_eyes(views), found.tracker_id
        if eyes is None or ids is None or found.view is None:
            return None
        eye = eyes.of_view[found.view]
        one, other = (((eye == number) & (ids >= 0)).nonzero()[0] for number in (0, 1))
        if len(one) and len(other):
            shifted = found.xyxy[other] - np.tile(eyes.origins[1] - eyes.origins[0], 2).astype(np.float32)
            reach = DISPARITY * eyes.width
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
    return np.where(fits, (height + width) / 2 * (1 - moved / (2 * reach)), 0)
