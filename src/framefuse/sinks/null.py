"""Writes nothing, only counts."""

from __future__ import annotations

from pathlib import Path

from framefuse.frame import Frame
from framefuse.prediction import Result
from framefuse.sinks import SinkContext


class NullSink:
    """Counts frames and detections."""

    name = "null"
    needs_frame = False

    def __init__(self) -> None:
        self.paths: list[Path] = []
        self.notes: list[str] = []
        self.frames = 0
        self.detections = 0

    def open(self, context: SinkContext) -> None:
        pass

    def write(self, result: Result, frame: Frame | None) -> None:
        self.frames += 1
        self.detections += len(result.detections)

    def close(self) -> None:
        pass
