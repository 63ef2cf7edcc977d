"""FrameFeed: a source of the images that a program submits."""

import sys
import threading
from collections import deque
from dataclasses import replace
from fractions import Fraction
from typing import Any

from framefuse.common.redact import brief
from framefuse.errors import QueueFullError, UsageError
from framefuse.frame import Frame
from framefuse.sources.images import array_frame
from framefuse.sources.source import Frames, PullSource, SourceInfo, check_timeout, is_number

MICROSECOND = Fraction(1, 1_000_000)


class FrameFeed(PullSource):
    """A source of images that come from a program, for a Pipeline.

        feed = FrameFeed("robot 3")
        pipeline = Pipeline(feed, "yolov8n.onnx").start()
        feed.submit(image)
        print(pipeline.get_result().detections)

    Args:
        name: of the source, in results and outputs.
        capacity: images that may wait; `submit` then waits.
        live: drop images that are older than `max_age`, as those of a camera; otherwise all are processed.

    Raises:
        UsageError: `capacity` is no number from 1, or `name` no text.
    """

    def __init__(self, name: str = "feed", *, capacity: int = 8, live: bool = False) -> None:
        if not isinstance(capacity, int) or isinstance(capacity, bool) or capacity < 1:
            raise UsageError(f"capacity is {brief(capacity)}", remedy="let at least one image wait")
        if not isinstance(name, str) or not name:
            raise UsageError(f"name is {brief(name)}", remedy="give the source a name")
        self._waiting: deque[Frame] = deque()
        self._capacity, self._count, self._finished = capacity, 0, False
        self._changed = threading.Condition()
        info = SourceInfo(name, "live" if live else "array", mixed=True)
        super().__init__(info, self._frames_until, interrupt=self._wake)

    def submit(self, image: Any, *, seconds: float | None = None, timeout: float | None = None) -> int:
        """Append an image. Do not change an array before its result is there.

        Args:
            image: (h, w), (h, w, 3) BGR or (h, w, 4) BGRA array of uint8, a PIL image, or a `Frame`.
            seconds: its time, for trackers and events; default: images are equally far apart.
            timeout: how long to wait for room; None: as long as it takes.

        Returns:
            Its number, which is `result.frame.index`.

        Raises:
            QueueFullError: no room within `timeout` seconds.
            UsageError: it is no image, `seconds` or `timeout` is no number, or the feed has ended.
        """
        if seconds is not None and not (is_number(seconds) and abs(seconds) <= sys.float_info.max):
            raise UsageError(f"seconds is {brief(seconds)}", remedy="give the time of the image as a number")
        check_timeout(timeout)
        with self._changed:
            self._changed.wait_for(lambda: len(self._waiting) < self._capacity or self._ended, timeout)
            if self._ended:
                raise UsageError(f"the feed {brief(self.info.uri)} has ended", remedy="add another one")
            if len(self._waiting) >= self._capacity:
                message = f"{len(self._waiting)} images are waiting in the feed {brief(self.info.uri)}"
                raise QueueFullError(message, remedy="submit fewer, or wait longer")
            number = self._count
            frame = image if isinstance(image, Frame) else array_frame(image, number, self.info)
            pts = frame.pts if seconds is None else round(seconds / MICROSECOND)
            base = frame.time_base if seconds is None else MICROSECOND
            self._waiting.append(replace(frame, index=number, pts=pts, time_base=base, source_id=self.info.uri))
            self._count += 1
            self._changed.notify_all()
        return number

    def finish(self) -> None:
        """No more images come; those that wait are processed."""
        with self._changed:
            self._finished = True
            self._changed.notify_all()

    @property
    def _ended(self) -> bool:
        return self._finished or self._closed.is_set()

    def _frames_until(self, closed: threading.Event) -> Frames:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._ended)
                if closed.is_set() or not self._waiting:
                    return
                frame = self._waiting.popleft()
                self._changed.notify_all()
            yield frame

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()
