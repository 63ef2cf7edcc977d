"""ByteTrack: every box counts, strong ones first (Zhang et al., 2022, arXiv:2110.06864).

1. Strong boxes are matched with all tracks, those that were lost too, by overlap times confidence.
2. Weak boxes are matched with the tracks that the last frame had and that are still without a box.
3. Strong boxes that are left are matched with tracks that do not count yet.
4. What is left of the strongest begins tracks.

Unlike there, boxes are extended by the uncertainty of the track before they are compared, and times are in seconds.

All tracks are columns of one array (`kernels/tracking/rows.py`), so that no step loops over them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from framefuse.kernels.tracking.call import STEPS, match, move, observe
from framefuse.kernels.tracking.rows import (
    BOX_CLASS,
    BOX_CONFIDENCE,
    BOX_ROWS,
    CLASS,
    CONFIDENCE,
    CORNERS,
    HITS,
    ID,
    ROWS,
    SEEN,
    VARIANCE,
    VELOCITY,
)
from framefuse.prediction import Detections
from framefuse.tracking.tracker import NO_TRACK, TrackerOptions

Array = NDArray[Any]

MOST = 2000
"""Boxes of a frame that are tracked, the strongest ones; more get NO_TRACK."""
LARGEST = 1e6
"""Pixels; a box with a longer side is none."""
LONGEST_STEP = 1.0
"""Seconds between two frames that are no gap, however short the buffer is."""
SPAN = 0.1 + 1e-6
"""Seconds over which a direction is measured."""
FIRST_VARIANCES = 4 / 20**2, 0.0, 400 / 160**2
"""Of a new track, in shares of its area. Its velocity is twice as uncertain as that of ByteTrack, because frames may be
far apart."""


class ByteTrack:
    """See `Tracker`."""

    rows = ROWS
    """Rows of the array of tracks."""

    def __init__(self, options: TrackerOptions, *, first_id: int = 1) -> None:
        self._options, self._first, self._next = options, first_id, first_id
        self._names: Mapping[int, str] = {}
        self._last = self._before = math.nan
        self._step = 1 / STEPS
        self.reset()

    @property
    def count(self) -> int:
        return self._next - self._first

    def reset(self) -> None:
        self._tracks = np.empty((self.rows, 0))
        self._fresh = True
        """Whether the next frame is the first, whose tracks count at once."""

    def update(self, detections: Detections, seconds: float | None) -> Detections:
        now = self._advance(seconds)
        self._names = detections.names
        options, confidence = self._options, detections.confidence
        count = len(confidence)
        boxes = np.empty((BOX_ROWS, count))
        boxes[CORNERS:], boxes[BOX_CLASS], boxes[BOX_CONFIDENCE] = detections.xyxy.T, detections.class_id, confidence
        starts, ends = boxes[CORNERS : CORNERS + 2], boxes[CORNERS + 2 :]
        boxes[:2], boxes[2:4] = (starts + ends) / 2, ends - starts
        sizes = boxes[2:4]
        if 0 < count <= MOST and sizes.min() > 0 and sizes.max() < LARGEST and confidence.min() >= options.low:
            return replace(detections, tracker_id=self._follow(boxes, now))
        usable = (sizes.min(0) > 0) & (sizes.max(0) < LARGEST) & (confidence >= options.low)
        if count > MOST:
            usable[np.argsort(-confidence, kind="stable")[MOST:]] = False
        chosen = usable.nonzero()[0]
        ids = np.empty(count, np.int64)
        ids.fill(NO_TRACK)
        ids[chosen] = self._follow(boxes.take(chosen, 1), now)
        return replace(detections, tracker_id=ids)

    def predict(self, seconds: float) -> Detections:
        tracks = self._tracks
        tracks = tracks.compress((tracks[ID] >= 0) & (tracks[SEEN] == self._last), 1)
        tracks = tracks.take(np.argsort(-tracks[CONFIDENCE], kind="stable"), 1)
        move(tracks, seconds - self._last)
        half = np.maximum(tracks[2:4], 0) / 2
        return Detections(
            np.concatenate((tracks[:2] - half, tracks[:2] + half)).T.astype(np.float32),
            tracks[CONFIDENCE].astype(np.float32),
            tracks[CLASS].astype(np.int64),
            self._names,
            tracker_id=tracks[ID].astype(np.int64),
        )

    def _advance(self, seconds: float | None) -> float:
        """Move all tracks to the time of a frame; returns it."""
        now = self._last + self._step if seconds is None or not math.isfinite(seconds) else float(seconds)
        step, self._before = now - self._last, self._last
        if not 0 <= step <= max(self._options.buffer, LONGEST_STEP):
            self.reset()
        elif step:
            self._step = step
            move(self._tracks, step)
        self._last = now if math.isfinite(now) else 0.0
        return self._last

    def _follow(self, boxes: Array, now: float) -> Array:
        """Match boxes with tracks and bring these up to date.

        Args:
            boxes: (10, n) centre, width, height, class, confidence, corners.

        Returns:
            (n,) ids.
        """
        tracks, options, count = self._tracks, self._options, boxes.shape[1]
        mates = match(
            tracks,
            boxes,
            least=options.match,
            high=options.high,
            before=self._before,
            earliest=now - SPAN,
            agnostic=options.agnostic,
        )
        rows = (mates >= 0).nonzero()[0]
        if len(rows) < len(mates):
            found = mates >= 0
            tracks[VELOCITY + 2 : VARIANCE] *= found  # what is not seen keeps its size
            kept = found | ((tracks[ID] >= 0) & (tracks[SEEN] >= now - options.buffer))
            if not kept.all():
                tracks, mates = tracks.compress(kept, 1), mates.compress(kept)
                rows = (mates >= 0).nonzero()[0]
        columns = mates.take(rows)
        self._observe(tracks, boxes, rows, columns, now)
        if len(columns) < count:
            free = boxes[BOX_CONFIDENCE] >= max(options.high, options.new)
            free[columns] = False
            if len(begun := free.nonzero()[0]):
                rows = np.concatenate((rows, np.arange(len(mates), len(mates) + len(begun))))
                columns = np.concatenate((columns, begun))
                tracks = np.ascontiguousarray(np.hstack((tracks, self._begun(boxes.take(begun, 1), now))))
        new = (tracks[ID] < 0).nonzero()[0]
        if len(new):
            grown = new[tracks[HITS].take(new) >= (1 if self._fresh else options.confirm)]
            tracks[ID, grown] = np.arange(self._next, self._next + len(grown))
            self._next += len(grown)
        self._tracks, self._fresh = tracks, False
        ids = np.empty(count, np.int64)
        ids.fill(NO_TRACK)
        ids[columns] = tracks[ID].take(rows)
        return ids

    def _observe(self, tracks: Array, boxes: Array, rows: Array, columns: Array, now: float) -> None:
        """Track rows[k] has been seen as box columns[k]."""
        observe(tracks, boxes, rows, columns, now, now - SPAN)

    def _begun(self, boxes: Array, now: float) -> Array:
        """New tracks, which stand still and do not count yet."""
        tracks = np.zeros((self.rows, boxes.shape[1]))
        tracks[:4], tracks[ID], tracks[CLASS] = boxes[:4], NO_TRACK, boxes[BOX_CLASS]
        tracks[VARIANCE:ID] = np.maximum(boxes[2] * boxes[3], 1.0) * np.array(FIRST_VARIANCES)[:, None]
        tracks[CONFIDENCE], tracks[SEEN], tracks[HITS] = boxes[BOX_CONFIDENCE], now, 1
        return tracks
