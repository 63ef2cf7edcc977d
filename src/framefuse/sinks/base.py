"""What several sinks have in common, and the sinks without files: a function, and a count."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from framefuse.common.redact import brief
from framefuse.errors import UsageError
from framefuse.frame import Frame
from framefuse.prediction import Detections, Result
from framefuse.sinks import SinkContext
from framefuse.sinks.run_folder import RecordFile, check_unmoved, make_folder_durable, open_folder

UNTINTED = "background"
"""The class that masks do not tint."""


class BaseSink:
    """A sink without outputs."""

    needs_frame = False

    def __init__(self) -> None:
        self.paths: list[Path] = []
        self.notes: list[str] = []

    def open(self, context: SinkContext) -> None:
        self._context = context

    def close(self) -> None:
        pass


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


class FolderSink(BaseSink):
    """Writes files that are complete one by one into folders, which `close` writes through to the disk."""

    folder: str
    """Name of the folder inside the run's."""

    def __init__(self) -> None:
        super().__init__()
        self._folders: dict[Path, os.stat_result] = {}

    def open(self, context: SinkContext) -> None:
        super().open(context)
        self.paths.append(self._folder(self.folder))

    def _folder(self, name: str) -> Path:
        """A folder inside the run's, created at its first use."""
        path = self._context.folder / name
        if path not in self._folders:
            self._folders[path] = open_folder(path)
        return path

    def close(self) -> None:
        for folder, opened in self._folders.items():
            check_unmoved(folder, opened)
            make_folder_durable(folder)


class RecordSink(BaseSink):
    """Appends records to <stem>.<suffix>, or to <stem>.<stream>, of which `_complete` makes it; none leave no file."""

    name: str
    suffix = ""
    """Default: the name of the sink."""
    stream = ""

    def open(self, context: SinkContext) -> None:
        super().open(context)
        target = context.output(f"{context.stem}.{self.suffix or self.name}")
        written = context.output(f"{context.stem}.{self.stream}") if self.stream else target
        self._file = RecordFile(written, part=context.ends and not self.stream)
        self._file.append(self._header())
        self._begin, self._closed = self._file.size, False
        self.paths.append(target)

    def close(self) -> None:
        if not self.paths or self._closed:
            return
        self._closed = True
        if self._file.size > self._begin:
            self._file.close()
            self._complete(self._file.path)
        else:
            self._file.discard()

    def _header(self) -> bytes:
        """The beginning of the file, which is no record."""
        return b""

    def _complete(self, stream: Path) -> None:
        pass


def tracks_of(found: Detections) -> list[int | None]:
    """The id of each detection; None: it has no track."""
    numbers = [-1] * len(found) if found.tracker_id is None else found.tracker_id.tolist()
    return [number if number >= 0 else None for number in numbers]


def rows_of(found: Detections) -> Iterator[tuple[list[float], float, int, int | None]]:
    """Box (2 decimals), confidence (4 decimals), class id and track of each detection."""
    boxes = np.round(found.xyxy.astype(np.float64), 2).tolist()
    scores = np.round(found.confidence.astype(np.float64), 4).tolist()
    return zip(boxes, scores, found.class_id.tolist(), tracks_of(found), strict=True)
