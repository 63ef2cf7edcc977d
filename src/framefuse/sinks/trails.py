"""Trails: where the objects of a video have been in the last seconds."""

from __future__ import annotations

from collections import deque

import numpy as np
from numpy.typing import NDArray

from framefuse.prediction import Result

Trail = tuple[int, NDArray[np.float64]]
"""Id of a track, and the centres of its boxes (n, 2) in pixels, oldest first."""


class Trails:
    """Remembers the centres of all tracks for some seconds of presentation time; 0: nothing.

    Args:
        rate: frames per second, for frames without a time.
    """

    def __init__(self, seconds: float, rate: float = 30.0) -> None:
        self._seconds, self._rate = seconds, rate
        self._paths: dict[int, deque[tuple[float, float, float]]] = {}
        self._last = 0.0

    def after(self, result: Result) -> list[Trail]:
        """The trails once this frame is shown. A time that goes back starts them anew."""
        found, frame = result.detections, result.frame
        if not self._seconds or found.tracker_id is None:
            return []
        now = frame.index / self._rate if frame.seconds is None else frame.seconds
        if now < self._last:
            self._paths.clear()
        self._last = now
        centres = ((found.xyxy[:, :2] + found.xyxy[:, 2:]) / 2).tolist()
        for number, (x, y) in zip(found.tracker_id.tolist(), centres, strict=True):
            if number >= 0:
                self._paths.setdefault(number, deque()).append((now, x, y))
        for number, path in list(self._paths.items()):
            while path and now - path[0][0] > self._seconds:
                path.popleft()
            if not path:
                del self._paths[number]
        return [(number, np.array(path)[:, 1:]) for number, path in self._paths.items()]
