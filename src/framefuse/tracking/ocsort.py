"""OC-SORT: what was observed counts more than what was predicted (Cao et al., 2023, arXiv:2203.14360).

The steps of ByteTrack, with three additions:

- momentum: a box is worth more to a track if it lies in the direction in which the track has moved (OCM);
- recovery: tracks that are left are compared with boxes by where they were last seen (OCR);
- re-update: when a track is found again, its filter runs again from where it was lost, along a straight line to where
  it was found, as if it had been seen all the time (ORU).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from framefuse.tracking import motion
from framefuse.tracking.bytetrack import ROWS, SEEN, ByteTrack
from framefuse.tracking.matching import Pairs

Array = NDArray[Any]

INERTIA = 0.2
"""Weight of the direction beside the overlap."""
SPAN = 0.1 + 1e-6
"""Seconds over which a direction is measured."""
REMEMBERED = 3
"""Observations for it."""
MOST_STEPS = 30
"""Of a re-update."""
LAST = slice(ROWS, ROWS + 4)
"""The last box: centre, width, height."""
SAVED = slice(LAST.stop, LAST.stop + motion.ROWS)
"""The filter after it."""
DIRECTION = slice(SAVED.stop, SAVED.stop + 2)
"""Unit vector; (0, 0): not known yet."""
TIMES = slice(DIRECTION.stop, DIRECTION.stop + REMEMBERED)
CENTRES = slice(TIMES.stop, TIMES.stop + 2 * REMEMBERED)
"""The last observations, newest first; their x, then their y."""


class OCSort(ByteTrack):
    """See `Tracker`."""

    rows = CENTRES.stop

    def _weighed(self, tracks: Array, boxes: Array, pairs: Pairs) -> Pairs:
        before, seen = tracks.take(pairs.rows, 1), boxes[:6].take(pairs.columns, 1)
        x, y = seen[:2] - self._reference(before)
        along = np.add.reduce(before[DIRECTION] * (x, y)) / np.maximum(np.hypot(x, y), 1e-9)
        agreement = np.arcsin(np.minimum(np.maximum(along, -1), 1)) / math.pi
        return pairs._replace(worth=np.maximum(pairs.worth + INERTIA * agreement * seen[5], 1e-6))

    def _again(self, rows: Array, columns: Array, tracks: Array, boxes: Array) -> Pairs:
        rows, columns = rows.nonzero()[0], columns.nonzero()[0]
        if not (len(rows) and len(columns)):
            return super()._again(rows, columns, tracks, boxes)
        left = tracks.take(rows, 1)
        pairs = self._pairs(motion.corners(left[LAST]), left, boxes.take(columns, 1))
        return Pairs(rows.take(pairs.rows), columns.take(pairs.columns), pairs.worth)

    def _observed(self, tracks: Array, boxes: Array, now: float) -> Array:
        for seen in {seconds for seconds in tracks[SEEN].tolist() if seconds < self._before}:
            again = (tracks[SEEN] == seen).nonzero()[0]
            tracks[: motion.ROWS, again] = self._updated_again(tracks[:, again], boxes[:4, again], now - seen)
        moved = boxes[:2] - self._reference(tracks)
        tracks[DIRECTION] = moved / np.maximum(np.hypot(*moved), 1e-9)
        tracks = super()._observed(tracks, boxes, now)
        return self._recorded(tracks, boxes, now)

    def _begun(self, boxes: Array, now: float) -> Array:
        tracks = super()._begun(boxes, now)
        tracks[TIMES] = -math.inf
        return self._recorded(tracks, boxes, now)

    def _updated_again(self, tracks: Array, boxes: Array, gap: float) -> Array:
        """The filters just before the observation `boxes`, `gap` seconds after the last one."""
        steps = min(MOST_STEPS, max(1, round(gap / self._step)))
        states, last = tracks[SAVED], tracks[LAST]
        for step in range(1, steps + 1):
            states = motion.predict(states, gap / steps * motion.STEPS)
            if step < steps:
                states = motion.correct(states, last + (boxes - last) * (step / steps))
        return states

    def _recorded(self, tracks: Array, boxes: Array, now: float) -> Array:
        """The tracks with an observation noted."""
        tracks[LAST], tracks[SAVED] = boxes[:4], tracks[: motion.ROWS]
        times, centres = tracks[TIMES], tracks[CENTRES].reshape(2, REMEMBERED, -1)
        times[1:], times[0] = times[:-1].copy(), now
        centres[:, 1:], centres[:, 0] = centres[:, :-1].copy(), boxes[:2]
        return tracks

    def _reference(self, tracks: Array) -> Array:
        """(2, tracks) the centre from which a direction counts: the oldest not more than SPAN ago, or the newest."""
        number = np.maximum(np.add.reduce(tracks[TIMES] >= self._last - SPAN) - 1, 0)
        found: Array = tracks[CENTRES].reshape(2, REMEMBERED, -1)[:, number, np.arange(len(number))]
        return found
