"""ByteTrack: every box counts, strong ones first (Zhang et al., 2022, arXiv:2110.06864).

1. Strong boxes are matched with all tracks, those that were lost too, by overlap times confidence.
2. Weak boxes are matched with the tracks that the last frame had and that are still without a box.
3. Strong boxes that are left are matched with tracks that do not count yet.
4. What is left of the strongest begins tracks.

Unlike there, boxes are extended by the uncertainty of the track before they are compared, and times are in seconds.

All tracks are columns of one array, so that no step loops over them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from framefuse.prediction import Detections
from framefuse.tracking import motion
from framefuse.tracking.matching import Pairs, assign, overlapping
from framefuse.tracking.tracker import NO_TRACK, TrackerOptions

Array = NDArray[Any]

MOST = 2000
"""Boxes of a frame that are tracked, the strongest ones; more get NO_TRACK."""
LARGEST = 1e6
"""Pixels; a box with a longer side is none."""
UNCERTAIN = 2.0
"""Standard deviations of a predicted place by which boxes are extended before they are compared."""
LONGEST_STEP = 1.0
"""Seconds between two frames that are no gap, however short the buffer is."""
WEAK_MATCH = 0.5
"""IoU that step 2 asks for at least."""
ID, CLASS, SEEN, HITS, CONFIDENCE = range(motion.ROWS, motion.ROWS + 5)
"""Rows of the array of tracks after those of `motion`; SEEN is the time of the last observation, in seconds."""
ROWS = CONFIDENCE + 1
CORNERS = slice(6, 10)
"""Rows of an array of boxes."""
NONE = Pairs(np.empty(0, np.intp), np.empty(0, np.intp), np.empty(0))


class ByteTrack:
    """See `Tracker`."""

    rows = ROWS
    """Rows of the array of tracks."""

    def __init__(self, options: TrackerOptions, *, first_id: int = 1) -> None:
        self._options, self._first, self._next = options, first_id, first_id
        self._names: Mapping[int, str] = {}
        self._last = self._before = math.nan
        self._step = 1 / motion.STEPS
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
        boxes = np.empty((10, len(confidence)))
        boxes[CORNERS], boxes[4], boxes[5] = detections.xyxy.T, detections.class_id, confidence
        starts, ends = boxes[6:8], boxes[8:10]
        boxes[:2], boxes[motion.SIZE] = (starts + ends) / 2, ends - starts
        sizes, count = boxes[motion.SIZE], len(confidence)
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
        tracks = tracks[:, (tracks[ID] >= 0) & (tracks[SEEN] == self._last)]
        tracks = tracks[:, np.argsort(-tracks[CONFIDENCE], kind="stable")]
        moved = motion.predict(tracks[: motion.ROWS], (seconds - self._last) * motion.STEPS) if tracks.size else tracks
        return Detections(
            motion.corners(moved[motion.POSITION]).T.astype(np.float32),
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
            if self._tracks.size:
                self._tracks[: motion.ROWS] = motion.predict(self._tracks[: motion.ROWS], step * motion.STEPS)
        self._last = now if math.isfinite(now) else 0.0
        return self._last

    def _follow(self, boxes: Array, now: float) -> Array:
        """Match boxes with tracks and bring these up to date.

        Args:
            boxes: (10, n) centre, width, height, class, confidence, corners.

        Returns:
            (n,) ids.
        """
        tracks, options = self._tracks, self._options
        strong = boxes[5] >= options.high
        mates = self._match(tracks, boxes, strong)
        found = mates >= 0
        rows = found.nonzero()[0]
        if len(rows) < len(mates):
            tracks[motion.SIZE_VELOCITY] *= found
            kept = found | ((tracks[ID] >= 0) & (tracks[SEEN] >= now - options.buffer))
            if not kept.all():
                tracks, mates = tracks.compress(kept, 1), mates.compress(kept)
                rows = (mates >= 0).nonzero()[0]
        columns = mates.take(rows)
        tracks[:, rows] = self._observed(tracks.take(rows, 1), boxes.take(columns, 1), now)
        if len(columns) < len(strong):
            free = strong & (boxes[5] >= options.new)
            free[columns] = False
            if len(begun := free.nonzero()[0]):
                rows = np.concatenate((rows, np.arange(len(mates), len(mates) + len(begun))))
                columns = np.concatenate((columns, begun))
                tracks = np.concatenate((tracks, self._begun(boxes.take(begun, 1), now)), axis=1)
        new = (tracks[ID] < 0).nonzero()[0]
        if len(new):
            grown = new[tracks[HITS].take(new) >= (1 if self._fresh else options.confirm)]
            tracks[ID, grown] = np.arange(self._next, self._next + len(grown))
            self._next += len(grown)
        self._tracks, self._fresh = tracks, False
        ids = np.empty(boxes.shape[1], np.int64)
        ids.fill(NO_TRACK)
        ids[columns] = tracks[ID].take(rows)
        return ids

    def _match(self, tracks: Array, boxes: Array, strong: Array) -> Array:
        """(tracks,) the box of each track; -1: none."""
        mates, free = np.empty(tracks.shape[1], np.intp), np.ones(boxes.shape[1], np.bool_)
        mates.fill(-1)
        if not (mates.size and free.size):
            return mates

        def take(pairs: Pairs, *weigh: Callable[[Pairs], Pairs]) -> None:
            if len(pairs.rows):
                pairs = assign(pairs, *weigh)
                mates[pairs.rows], free[pairs.columns] = pairs.columns, False

        pairs = self._pairs(motion.corners(tracks), tracks, boxes)
        old = tracks[ID] >= 0
        firm = strong.take(pairs.columns)
        first = old.take(pairs.rows) & firm
        take(pairs if first.all() else pairs.where(first), partial(self._weighed, tracks, boxes))
        if not free.any():
            return mates
        left = ((mates.take(pairs.rows) < 0) & free.take(pairs.columns)).nonzero()[0]
        pairs, firm = pairs.where(left), firm.take(left)
        if len(left):
            seen = (old & (tracks[SEEN] == self._before)).take(pairs.rows)
            take(pairs.where(seen & ~firm & (pairs.worth >= WEAK_MATCH)))
        take(self._again(old & (mates < 0), strong & free, tracks, boxes))
        if len(left):
            take(pairs.where(~old.take(pairs.rows) & firm & free.take(pairs.columns)))
        return mates

    def _pairs(self, last: Array, tracks: Array, boxes: Array) -> Pairs:
        """Tracks and boxes that overlap and may belong together; `last`: corners of the tracks."""
        margins = UNCERTAIN * np.sqrt(tracks[motion.VARIANCE])
        pairs = overlapping(last, boxes[CORNERS], self._options.match, margins)
        alike = tracks[CLASS].take(pairs.rows) == boxes[4].take(pairs.columns)
        return pairs if self._options.agnostic or alike.all() else pairs.where(alike)

    def _weighed(self, tracks: Array, boxes: Array, pairs: Pairs) -> Pairs:
        """The pairs with what counts in the first step."""
        return pairs._replace(worth=pairs.worth * boxes[5].take(pairs.columns))

    def _again(self, rows: Array, columns: Array, tracks: Array, boxes: Array) -> Pairs:
        """Pairs for another try, of tracks and strong boxes that are left."""
        return NONE

    def _observed(self, tracks: Array, boxes: Array, now: float) -> Array:
        """The tracks after each has been seen as a box."""
        tracks[: motion.ROWS] = motion.correct(tracks[: motion.ROWS], boxes[:4])
        tracks[CLASS], tracks[CONFIDENCE], tracks[SEEN] = boxes[4], boxes[5], now
        tracks[HITS] += 1
        return tracks

    def _begun(self, boxes: Array, now: float) -> Array:
        """New tracks that do not count yet."""
        tracks = np.zeros((self.rows, boxes.shape[1]))
        tracks[: motion.ROWS] = motion.begin(boxes[:4])
        tracks[ID], tracks[CLASS], tracks[CONFIDENCE] = NO_TRACK, boxes[4], boxes[5]
        tracks[SEEN], tracks[HITS] = now, 1
        return tracks
