"""ByteTrack: every box counts, strong ones first (Zhang et al., 2022, arXiv:2110.06864).

1. Strong boxes are matched with all tracks, those that were lost too, by overlap times confidence.
2. Weak boxes are matched with the tracks that the last frame had and that are still without a box.
3. Strong boxes that are left are matched with tracks that do not count yet.
4. What is left of the strongest begins tracks.

Unlike there, boxes are extended by the uncertainty of the track before they are compared, and times are in seconds.

All tracks are rows of one array (`kernels/tracking/_tir_rows.py`), and a frame is one call of a kernel.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from framefuse.kernels.tracking.call import CLASS, CONFIDENCE, ID, ROWS, SEEN, STEPS, Limits, follow, move
from framefuse.prediction import Detections
from framefuse.tracking.tracker import NO_TRACK, TrackerOptions

Array = NDArray[Any]

MOST = 2000
"""Boxes of a frame that are tracked, the strongest ones; more get NO_TRACK."""
LONGEST_STEP = 1.0
"""Seconds between two frames that are no gap, however short the buffer is."""


class ByteTrack:
    """See `Tracker`."""

    rows = ROWS
    """What a track holds."""

    def __init__(self, options: TrackerOptions, *, first_id: int = 1) -> None:
        limits = options.low, options.high, options.new, options.match, options.buffer
        self._limits = Limits(*limits, options.confirm, options.agnostic)
        self._first = self._next = first_id
        self._names: Mapping[int, str] = {}
        self._last = self._before = math.nan
        self._step = 1 / STEPS
        self.reset()

    @property
    def count(self) -> int:
        return self._next - self._first

    def reset(self) -> None:
        self._tracks = np.empty((0, self.rows))
        self._fresh = True
        """Whether the next frame is the first, whose tracks count at once."""

    def update(self, detections: Detections, seconds: float | None) -> Detections:
        now = self._advance(seconds)
        self._names = detections.names
        boxes = detections.xyxy, detections.class_id, detections.confidence
        if len(detections) <= MOST:
            return replace(detections, tracker_id=self._follow(boxes, now))
        chosen = np.sort(np.argsort(-detections.confidence, kind="stable")[:MOST])
        ids = np.full(len(detections), NO_TRACK, np.int64)
        ids[chosen] = self._follow((boxes[0][chosen], boxes[1][chosen], boxes[2][chosen]), now)
        return replace(detections, tracker_id=ids)

    def predict(self, seconds: float) -> Detections:
        tracks = self._tracks
        tracks = tracks[(tracks[:, ID] >= 0) & (tracks[:, SEEN] == self._last)]
        tracks = tracks[np.argsort(-tracks[:, CONFIDENCE], kind="stable")]
        move(tracks, seconds - self._last)
        half = np.maximum(tracks[:, 2:4], 0) / 2
        return Detections(
            np.hstack((tracks[:, :2] - half, tracks[:, :2] + half)).astype(np.float32),
            tracks[:, CONFIDENCE].astype(np.float32),
            tracks[:, CLASS].astype(np.int64),
            self._names,
            tracker_id=tracks[:, ID].astype(np.int64),
        )

    def _advance(self, seconds: float | None) -> float:
        """Move all tracks to the time of a frame; returns it."""
        now = self._last + self._step if seconds is None or not math.isfinite(seconds) else float(seconds)
        step, self._before = now - self._last, self._last
        if not 0 <= step <= max(self._limits.buffer, LONGEST_STEP):
            self.reset()
        elif step:
            self._step = step
            move(self._tracks, step)
        self._last = now if math.isfinite(now) else 0.0
        return self._last

    def _follow(self, boxes: tuple[Array, Array, Array], now: float) -> Array:
        """(n,) the ids of corners, classes and confidences."""
        limits = self._limits._replace(confirm=1) if self._fresh else self._limits
        self._tracks, ids, self._next = follow(self._tracks, boxes, limits, now, self._before, self._step, self._next)
        self._fresh = False
        return ids
