"""Segments: one long video, cut at key frames, so that several decoders read it side by side.

Title: what is cut
    A cut is a key frame that nothing after it refers back across, so each segment decodes to the frames that the whole
    file has there. Frames of the n-th segment have `connection` n, and count from 0. Either `in_order` puts results
    back into the order and the numbers of the file, or `Ahead` does so with frames, of which fewer can wait. Only what
    a decoder makes up where a key frame is damaged may differ: it may look at what came before.
"""

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import NamedTuple

from framefuse.errors import DecodeError, SourceError
from framefuse.frame import Frame
from framefuse.sources.source import Frames, PullSource, SourceInfo, SourceOptions

SECONDS = 20
"""Of a segment whose results wait, about; the last ones are shorter, so that all readers end at about the same time."""
WORTH = 3 * SECONDS
"""Seconds of a video from which on it is cut."""
AHEAD_SECONDS, AHEAD_WORTH = 2, 10
"""The same where frames wait: segments go on to the next cut. No segment is to be shorter."""
SHARES = 2
"""A reader takes at most one part in so many of what would be its share of the rest."""
FURTHER = 6000
"""Packets in which the next cut is looked for: without one, all that is left is a single segment."""
LOOKS = 4
"""Places of a video at which distances of cuts are looked at."""


def worth_cutting(path: Path, options: SourceOptions) -> bool:
    """Whether a video is long enough to be cut, and can be: its first cuts are where they are wanted."""
    from framefuse.sources.cuts import Cuts

    try:
        with closing(Cuts(path, options)) as cuts:
            wanted = options.span[0] + SECONDS
            return cuts.seconds >= WORTH and (found := cuts.after(wanted)) is not None and found < wanted + SECONDS
    except (SourceError, DecodeError, OSError):
        return False


class Spacing(NamedTuple):
    """What segments of a video need where their frames wait."""

    frames: int
    """Of the longest segment that was found."""
    size: tuple[int, int]
    """Width and height of a frame."""
    bits: int
    """Of a pixel of a decoded frame."""


def spacing(path: Path, options: SourceOptions) -> Spacing | None:
    """How far cuts are apart at some places; None: the video is short, or cannot be cut near its beginning."""
    from framefuse.sources.cuts import Cuts

    try:
        with closing(Cuts(path, options)) as cuts:
            if cuts.seconds < AHEAD_WORTH or not cuts.rate or (shape := cuts.shape) is None:
                return None
            longest, end = Fraction(0), options.span[0] + cuts.seconds
            for look in range(LOOKS):
                begin = options.span[0] + cuts.seconds * look / LOOKS
                first = (cuts.after(begin) or begin) if look else begin
                if (found := cuts.after(first + AHEAD_SECONDS)) is None and not look:
                    return None
                longest = max(longest, (found or end) - first)
            return Spacing(max(1, round(longest * cuts.rate)), *shape)
    except (SourceError, DecodeError, OSError):
        return None


class Segment(NamedTuple):
    """A part of a video."""

    number: int
    begin: Fraction
    """In seconds from the beginning of the video."""
    end: Fraction | None
    """Where the next one begins; None: it is the last."""


class Segments(ABC):
    """The segments of a video, each of which is taken once, from any thread.

    Attributes:
        taken: numbers of those that were taken here, in order; other processes may have taken others.
        over: whether there are no more.
        counts: frames of each that has been read to its end.
        read: frames that the decoders have found by the end, with those that are not to be shown.
        whole: whether no other process takes any.
    """

    def __init__(self, *, whole: bool = True) -> None:
        self.taken, self.over, self.whole = list[int](), False, whole
        self.counts: dict[int, int] = {}
        self.read = 0
        self._lock, self._closed = threading.Lock(), False

    def take(self) -> Segment | None:
        """The next one; None: there is none."""
        with self._lock:
            if self.over or self._closed:
                return None
            found = self._next()
            self.over = found is None or found.end is None
            if found is not None:
                self.taken.append(found.number)
        return found

    @abstractmethod
    def _next(self) -> Segment | None:
        """As `take`."""

    def close(self) -> None:
        """Free what is open: there are no more. Callable from any thread, any number of times."""
        with self._lock:
            self._closed = True


class Cutter(Segments):
    """Cuts a video as segments are taken.

    Args:
        readers: how many take them.
        seconds: see SECONDS.

    Raises:
        SourceError, DecodeError: as `open_file`.
    """

    def __init__(self, path: Path, options: SourceOptions, readers: int, seconds: int) -> None:
        from framefuse.sources.cuts import Cuts

        super().__init__()
        self._cuts, self._readers, self._seconds = Cuts(path, options), readers, seconds
        self._begin: Fraction | None = options.span[0]
        """Of the next segment; None: the last one has been taken."""
        self._end = options.span[0] + self._cuts.seconds
        self.frames = self._cuts.frames
        """By the header of the file; 0: unknown."""

    def _next(self) -> Segment | None:
        if (begin := self._begin) is None:
            return None
        share = (self._end - begin) / (SHARES * self._readers)
        wanted = min(Fraction(self._seconds), max(Fraction(AHEAD_SECONDS), share))
        self._begin = self._cuts.after(begin + wanted, FURTHER)
        return Segment(len(self.taken), begin, self._begin)

    def close(self) -> None:
        super().close()
        self._cuts.close()


@dataclass(frozen=True)
class Segmented:
    """A video that several readers share."""

    path: Path
    readers: int
    ahead: int = 0
    """Frames of a segment that may wait for those before them; 0: results wait instead, any number."""
    bits: int = 12
    """Of a pixel of a decoded frame; by default those of NV12."""
    segments: Segments | None = None
    """Those that other processes take, too; None: it is cut here."""

    def open(self, options: SourceOptions) -> "SegmentedSource":
        """Open the first reader; the errors are those of `open_file`."""
        seconds = AHEAD_SECONDS if self.ahead else SECONDS
        return SegmentedSource(
            self.path, self.readers, options, self.segments or Cutter(self.path, options, self.readers, seconds)
        )


class SegmentedSource:
    """The segments of a video, and the readers that take them in turn.

    Attributes:
        info: facts of the whole file.
        streams: the readers. Each has a decoder of its own, which the first has opened.
        segments: what they take.
    """

    def __init__(self, path: Path, readers: int, options: SourceOptions, segments: Segments) -> None:
        from framefuse.sources.files import open_video

        self._end, self._lock, self.segments = options.span[1], threading.Lock(), segments
        self._open = partial(open_video, path, options, list[Frame]())
        self._first = self._open()
        self._unused = [self._first]
        self._videos = [self._first]
        self._done = self._busy = 0
        """Segments of which the readers are done, and that they read."""
        self._closed = self._ended = self._noted = False
        """Whether the file has been read to its end, and what was found has been noted."""
        self.info: SourceInfo = self._first.info
        self.streams: Sequence[PullSource] = [PullSource(self.info, self._frames) for _ in range(readers)]

    @property
    def on_gpu(self) -> bool:
        """Whether a GPU decodes, as far as is known before it does."""
        return self._first.on_gpu

    @property
    def copied(self) -> int:
        """Bytes that all readers have copied within GPU memory by now."""
        return self.info.copied if self._noted else sum(video.info.copied for video in self._videos)

    def __iter__(self) -> Iterator[Frame]:
        return iter(self.streams[0])

    def segment(self) -> PullSource | None:
        """The next segment by itself; None: there is none."""
        return None if (taken := self._next()) is None else PullSource(self.info, partial(self._segment, taken))

    def _next(self) -> Segment | None:
        """The next segment; None: there is none."""
        with self._lock:
            taken = None if self._closed else self.segments.take()
        if taken is None:
            self._finish()
        return taken

    def _frames(self, closed: threading.Event) -> Frames:
        while not closed.is_set() and (taken := self._next()) is not None:
            yield from self._segment(taken, closed)
        if not closed.is_set():
            self.check_decoded()

    def _segment(self, taken: Segment, closed: threading.Event) -> Frames:
        """The frames of a segment, counted."""
        number, begin, cut = taken
        with self._lock:
            if self._closed:
                return
            self._busy += 1
            video = self._unused.pop() if self._unused else None
        passed = 0
        try:
            if video is None:
                video = self._open()
                self._videos.append(video)
            video.shared = True
            with closing(video.between(begin, cut or self._end, closed, cut=cut is not None)) as frames:
                while True:
                    try:
                        frame = next(frames)
                    except StopIteration as stopped:
                        # Where the end of the video is damaged, another process may know where it ends.
                        known = self.segments.whole or passed > 0
                        self._ended = self._ended or (cut is None and bool(stopped.value) and known)
                        break
                    yield frame.replace_unchecked(connection=number)
                    passed += 1
            if not closed.is_set():
                self.segments.counts[number] = passed
        finally:
            with self._lock:
                self._unused += [video] if video else []
                self._busy, self._done = self._busy - 1, self._done + 1
            self._finish()

    def _finish(self) -> None:
        """Close the decoders and note what they have found together, once the last is done."""
        with self._lock:
            over = self._closed or (self.segments.over and self._done == len(self.segments.taken))
            if self._busy or not over or self._noted:
                return
            self._noted = True
            for video in self._unused:
                if video is not self._first:
                    self._first.add(video)
            self._first.note_counts(self._ended, whole=self.segments.whole)
            self.segments.read = self._first.decoded + self._first.hidden
            for video in self._unused:
                video.close()
            self.segments.close()

    def check_decoded(self) -> None:
        """As `Video.check_decoded`, once the readers are done with all segments."""
        with self._lock:
            self._first.check_decoded(self._ended and self._noted)

    def close(self) -> None:
        """End all readers, from any thread, any number of times."""
        for stream in self.streams:
            stream.close()
        with self._lock:
            self._closed = True
        self._finish()
