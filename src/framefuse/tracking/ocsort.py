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

from framefuse.kernels.tracking.call import move, observe
from framefuse.kernels.tracking.rows import ALL_ROWS, CENTRES, FILTER, LAST, REMEMBERED, ROWS, SAVED, SEEN, TIMES
from framefuse.tracking.bytetrack import ByteTrack

Array = NDArray[Any]

MOST_STEPS = 30
"""Of a re-update."""


class OCSort(ByteTrack):
    """See `Tracker`."""

    rows = ALL_ROWS

    def _observe(self, tracks: Array, boxes: Array, rows: Array, columns: Array, now: float) -> None:
        seen = tracks[SEEN].take(rows)
        for since in set(seen[seen < self._before].tolist()):
            at = (seen == since).nonzero()[0]
            again = self._updated_again(tracks.take(rows[at], 1), boxes.take(columns[at], 1), now - since)
            tracks[:FILTER, rows[at]] = again
        super()._observe(tracks, boxes, rows, columns, now)

    def _updated_again(self, tracks: Array, boxes: Array, gap: float) -> Array:
        """The filters just before the observation `boxes`, `gap` seconds after the last one."""
        steps = min(MOST_STEPS, max(1, round(gap / self._step)))
        last, every, seen = tracks[LAST:SAVED], np.arange(boxes.shape[1]), boxes.copy()
        states = np.concatenate((tracks[SAVED : SAVED + FILTER], tracks[FILTER:ROWS]))
        for step in range(1, steps + 1):
            move(states, gap / steps)
            if step < steps:
                seen[:4] = last + (boxes[:4] - last) * (step / steps)
                observe(states, seen, every, every, 0.0)
        return states[:FILTER]

    def _begun(self, boxes: Array, now: float) -> Array:
        tracks = super()._begun(boxes, now)
        tracks[LAST:SAVED], tracks[SAVED : SAVED + FILTER] = boxes[:4], tracks[:FILTER]
        tracks[TIMES:CENTRES], tracks[TIMES] = -math.inf, now
        tracks[CENTRES], tracks[CENTRES + REMEMBERED] = boxes[:2]
        return tracks
