"""ByteTrack: every box counts, strong ones first (Zhang et al., 2022, arXiv:2110.06864)."""

from __future__ import annotations

from framefuse.prediction import Detections
from framefuse.tracking.tracker import TrackerOptions


class ByteTrack:
    """See `Tracker`."""

    def __init__(self, options: TrackerOptions, *, first_id: int = 1) -> None:
        self._options, self._next = options, first_id

    def update(self, detections: Detections, seconds: float | None) -> Detections:
        raise NotImplementedError

    def predict(self, seconds: float) -> Detections:
        raise NotImplementedError

    def reset(self) -> None:
        raise NotImplementedError
