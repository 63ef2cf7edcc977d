"""Segments: one long video, cut at key frames, so that several decoders read it side by side.

Title: what is cut
    A cut is a key frame that nothing after it refers back across, so each segment decodes to the frames that the whole
    file has there. Frames of the n-th segment have `connection` n, and count from 0; `in_order` puts the results
    back into the order and the numbers of the file. Segments are short: what later ones find waits for the first.
"""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from framefuse.errors import DecodeError, SourceError
from framefuse.frame import Frame
from framefuse.sources.source import Frames, PullSource, SourceInfo, SourceOptions

if TYPE_CHECKING:
    from framefuse.sources.files import Video

SECONDS = 20
"""Of a segment, about."""
WORTH = 3 * SECONDS
"""Seconds of a video from which on it is cut."""


def worth_cutting(path: Path, options: SourceOptions) -> bool:
    """Whether a video is long enough to be cut, and can be: its first cuts are where they are wanted."""
    from framefuse.sources.cuts import Cuts

    try:
        with closing(Cuts(path, options)) as cuts:
            wanted = options.span[0] + SECONDS
            return cuts.seconds >= WORTH and (found := cuts.after(wanted)) is not None and found < wanted + SECONDS
    except (SourceError, DecodeError, OSError):
        return False


@dataclass(frozen=True)
class Segmented:
    """A video that several readers share."""

    path: Path
    readers: int

    def open(self, options: SourceOptions) -> SegmentedSource:
        """Open the first reader; the errors are those of `open_file`."""
        return SegmentedSource(self.path, self.readers, options)


class SegmentedSource:
    """The segments of a video, and the readers that take them in turn.

    Attributes:
        info: facts of the whole file.
        streams: the readers. Each has a decoder of its own, which the first has opened.
        counts: frames of each segment that has been read to its end.
    """

    def __init__(self, path: Path, readers: int, options: SourceOptions) -> None:
        from framefuse.sources.cuts import Cuts
        from framefuse.sources.files import open_video

        self._end, self._lock = options.span[1], threading.Lock()
        self._open = partial(open_video, path, options)
        opened = self._open()
        self._unused: list[Video] = [opened]
        self._cuts = Cuts(path, options)
        self._begin: Fraction | None = options.span[0]
        """Of the next segment; None: the last one has been taken."""
        self._numbers, self._closed = count(), False
        self.info: SourceInfo = opened.info
        self.counts: dict[int, int] = {}
        self.streams: Sequence[PullSource] = [PullSource(self.info, self._frames) for _ in range(readers)]

    def __iter__(self) -> Iterator[Frame]:
        return iter(self.streams[0])

    def _next(self) -> tuple[int, Fraction, Fraction | None] | None:
        """Number, begin and end of the next segment; None: there is none."""
        with self._lock:
            if (begin := self._begin) is None or self._closed:
                return None
            self._begin = self._cuts.after(begin + SECONDS)
            return next(self._numbers), begin, self._begin or self._end

    def _frames(self, closed: threading.Event) -> Frames:
        if (taken := self._next()) is None:
            return
        with self._lock:
            video = self._unused.pop() if self._unused else None
        video, ended = video or self._open(), False
        try:
            while taken is not None and not closed.is_set():
                number, begin, end = taken
                ended = yield from self._segment(number, video.between(begin, end, closed))
                taken = self._next()
        finally:
            video.note_counts(ended, whole=False)
            video.close()
            if video.info is not self.info:
                with self._lock:
                    self.info.absorb(video.info)
                    self.info.copied += video.info.copied

    def _segment(self, number: int, frames: Generator[Frame, None, bool]) -> Generator[Frame, None, bool]:
        """The frames of a segment, counted; returns whether the file has ended."""
        passed = 0
        with closing(frames):
            while True:
                try:
                    frame = next(frames)
                except StopIteration as stopped:
                    self.counts[number] = passed
                    return bool(stopped.value)
                yield frame.replace_unchecked(connection=number)
                passed += 1

    def close(self) -> None:
        """End all readers, from any thread, any number of times."""
        for stream in self.streams:
            stream.close()
        with self._lock:
            self._closed = True
            self._cuts.close()
            while self._unused:
                self._unused.pop().close()
