"""Writes nothing, only counts."""

from __future__ import annotations

from framefuse.frame import Frame
from framefuse.prediction import Result
from framefuse.sinks._base import BaseSink


class NullSink(BaseSink):
    """Counts frames and detections."""

    name = "null"

    def __init__(self) -> None:
        super().__init__()
        self.frames = 0
        self.detections = 0

    def write(self, result: Result, frame: Frame | None) -> None:
        self.frames += 1
        self.detections += len(result.detections)
