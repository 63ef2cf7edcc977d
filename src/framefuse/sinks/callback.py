"""Sinks without files: one calls a function with each result, one only counts."""

from __future__ import annotations

from collections.abc import Callable

from framefuse.common.redact import brief
from framefuse.errors import UsageError
from framefuse.frame import Frame
from framefuse.prediction import Result
from framefuse.sinks._base import BaseSink


class CallbackSink(BaseSink):
    """Calls `function(result, frame)` in the sink's thread; its exceptions reach the user unchanged.

    Args:
        function: its frame is None unless `needs_frame`, and must not be kept if it has a lease.
        needs_frame: whether the function reads pixels.

    Raises:
        UsageError: `function` is not callable.
    """

    name = "callback"

    def __init__(self, function: Callable[[Result, Frame | None], object], *, needs_frame: bool = False) -> None:
        if not callable(function):
            raise UsageError(f"the callback is {brief(function)}", remedy="pass a function of (result, frame)")
        super().__init__()
        self.needs_frame = needs_frame
        self._function = function

    def write(self, result: Result, frame: Frame | None) -> None:
        self._function(result, frame if self.needs_frame else None)


class NullSink(BaseSink):
    """Counts frames and detections."""

    name = "null"
    frames = detections = 0

    def write(self, result: Result, frame: Frame | None) -> None:
        self.frames += 1
        self.detections += len(result.detections)
