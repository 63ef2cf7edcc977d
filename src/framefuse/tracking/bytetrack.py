"""ByteTrack: every box counts, strong ones first (Zhang et al., 2022, arXiv:2110.06864). OC-SORT adds to its steps.

1. Strong boxes are matched with all tracks, those that were lost too, by overlap times confidence.
2. Weak boxes are matched with the tracks that the last frame had and that are still without a box.
3. Strong boxes that are left are matched with tracks that do not count yet.
4. What is left of the strongest begins tracks.

Unlike there, boxes are extended by the uncertainty of the track before they are compared, and times are in seconds.

All tracks are rows of one array (`kernels/tracking/_tir_rows.py`), and a frame is one call of a kernel.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from framefuse.errors import UsageError
from framefuse.kernels.tracking._tir_rows import ALL_ROWS, CLASS, CONFIDENCE, ID, ROWS, SEEN
from framefuse.kernels.tracking.call import STEPS, Limits, follow, move
from framefuse.prediction import Array, Detections

NO_TRACK = -1
"""`tracker_id` of an object without a track: too weak, too new, or not a box."""
MOST = 2000
"""Boxes of a frame that are tracked, the strongest ones; more get NO_TRACK."""
LONGEST_STEP = 1.0
"""Seconds between two frames that are no gap, however short the buffer is."""


@dataclass(frozen=True)
class TrackerOptions:
    """When a box continues a track, begins one, and how long a track is remembered. UsageError: out of range."""

    high: float = 0.4
    """Boxes with this confidence or more are matched first."""
    low: float = 0.1
    """Boxes with this confidence or more can continue a track."""
    new: float = 0.5
    """Boxes with this confidence or more, matched with no track, begin a new one."""
    buffer: float = 1.0
    """Seconds for which a lost track is remembered."""
    match: float = 0.2
    """Overlap (IoU) that a box needs at least with the predicted box of its track."""
    confirm: int = 2
    """Frames in a row in which a new track must be found before it counts; in the first frame it counts at once."""
    agnostic: bool = False
    """Whether a box may continue a track of another class."""

    def __post_init__(self) -> None:
        for name in ("high", "low", "new", "match"):
            if not 0 <= getattr(self, name) <= 1:
                raise UsageError(f"{name} of a tracker is {getattr(self, name)}", remedy="use a number from 0 to 1")
        if not 0 <= self.buffer < math.inf or not self.confirm >= 1:
            message = f"buffer and confirm of a tracker are {self.buffer} and {self.confirm}"
            raise UsageError(message, remedy="use seconds from 0 on, and a number of frames from 1 on")


class Tracker:
    """Follows the objects of one source. It has no clock: every call says its time.

    Times are presentation times in seconds and may be any distance apart. One that stands still is another look at the
    same moment. One that goes back, or that comes after a gap longer than both `buffer` and one second, starts anew, as
    `reset`. One that is None or not finite counts as one step after the last, as long as the step before it.
    """

    rows: int
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
        """Tracks that have got an id so far."""
        return self._next - self._first

    def reset(self) -> None:
        """Forget all tracks. Ids go on, so that none repeats."""
        self._tracks = np.empty((0, self.rows))
        self._fresh = True
        """Whether the next frame is the first, whose tracks count at once."""

    def update(self, detections: Detections, seconds: float | None) -> Detections:
        """The same rows in the same order with `tracker_id`, (n,) int64; nothing else is changed or copied.

        Rows that are not boxes (NaN, infinite, no area) get NO_TRACK, as do rows below `low`.
        """
        self._advance(seconds)
        self._names = detections.names
        boxes = detections.xyxy, detections.class_id, detections.confidence
        if len(detections) <= MOST:
            return replace(detections, tracker_id=self._follow(boxes))
        chosen = np.sort(np.argsort(-detections.confidence, kind="stable")[:MOST])
        ids = np.full(len(detections), NO_TRACK, np.int64)
        ids[chosen] = self._follow((boxes[0][chosen], boxes[1][chosen], boxes[2][chosen]))
        return replace(detections, tracker_id=ids)

    def predict(self, seconds: float) -> Detections:
        """Where the tracks that the last frame showed are at a later time, with ids and the confidence, by which they
        are ordered, of that frame. Boxes may reach beyond the frame."""
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

    def _advance(self, seconds: float | None) -> None:
        """Move all tracks to the time of a frame."""
        now = self._last + self._step if seconds is None or not math.isfinite(seconds) else float(seconds)
        step, self._before = now - self._last, self._last
        if not 0 <= step <= max(self._limits.buffer, LONGEST_STEP):
            self.reset()
        elif step:
            self._step = step
            move(self._tracks, step)
        self._last = now if math.isfinite(now) else 0.0

    def _follow(self, boxes: tuple[Array, Array, Array]) -> Array:
        """(n,) the ids of corners, classes and confidences."""
        limits = self._limits._replace(confirm=1) if self._fresh else self._limits
        times = self._last, self._before, self._step
        self._tracks, ids, self._next = follow(self._tracks, boxes, limits, *times, self._next)
        self._fresh = False
        return ids


class ByteTrack(Tracker):
    """See the top of this file."""

    rows = ROWS


class OCSort(Tracker):
    """OC-SORT: what was observed counts more than what was predicted (Cao et al., 2023, arXiv:2203.14360).

    The steps of ByteTrack, with three additions:

    - momentum: a box is worth more to a track if it lies in the direction in which the track has moved (OCM);
    - recovery: tracks that are left are compared with boxes by where they were last seen (OCR);
    - re-update: when a track is found again, its filter runs again from where it was lost, along a straight line to
      where it was found, as if it had been seen all the time (ORU).
    """

    rows = ALL_ROWS
