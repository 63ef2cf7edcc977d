"""Segments: one long video, cut at key frames, so that several decoders read it side by side.

Title: what is cut
    A cut is a key frame that nothing after it refers back across, so each segment decodes to the frames that the whole
    file has there. Frames of the n-th segment have `connection` n, and count from 0; `in_order` puts the results
    back into the order and the numbers of the file. Segments are short: what later ones find waits for the first.
"""

import threading
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import count
from pathlib import Path
from typing import Any

import av

from framefuse.errors import DecodeError, SourceError
from framefuse.frame import Frame
from framefuse.sources.annexb import NAL_TYPES, AnnexB
from framefuse.sources.ffmpeg import NOT_VIDEO, demuxed, exact, open_container
from framefuse.sources.files import open_file
from framefuse.sources.source import Frames, PullSource, SourceInfo, SourceOptions

SECONDS = 20
"""Of a segment, about."""
WORTH = 3 * SECONDS
"""Seconds of a video from which on it is cut."""
FORMATS = "mov,mp4", "matroska"
"""Beginnings of FFmpeg's names of the formats that have an index, and one codec for all of a stream."""
IDR = {"h264": (5,), "hevc": (19, 20)}
"""NAL unit types of key frames that no later picture refers across (ITU-T H.264, table 7-1; H.265, table 7-1)."""
CLOSED = "av1", "vp8", "vp9"
"""Codecs whose key frames are all of that kind."""
PACKETS = 600
"""Behind the wanted place in which a cut is looked for."""


class Cuts:
    """Where a video can be cut; an open container of its own.

    Raises:
        SourceError, DecodeError: as `open_file`.
    """

    def __init__(self, path: Path, options: SourceOptions) -> None:
        self._container = open_container(path, options.max_pixels)
        streams = [one for one in self._container.streams.video if not one.disposition & NOT_VIDEO]
        self._stream: Any = streams[0] if len(streams) == 1 and streams[0].codec_context else None
        self._begin, self._end = options.span
        self._codec, self._annexb, self._base, self._origin = "", None, Fraction(1), 0
        if self._stream is None or not self._container.format.name.startswith(FORMATS):
            return
        self._base = exact(self._stream.time_base) or Fraction(1, 1000)
        self._origin = self._stream.start_time or 0
        context = self._stream.codec_context
        if context.name in IDR:
            self._codec, self._annexb = context.name, AnnexB(context.name, context.extradata or b"")
        elif context.name in CLOSED:
            self._codec = context.name

    @property
    def origin(self) -> Fraction:
        """Time of the first frame in seconds, from which cuts count."""
        return self._origin * self._base

    @property
    def seconds(self) -> Fraction:
        """Of the video that is to be read; 0: unknown, or it cannot be cut."""
        if not self._codec:
            return Fraction(0)
        seconds = Fraction(self._container.duration or 0, 1_000_000)
        if self._stream.duration:
            seconds = Fraction(self._stream.duration) * self._base
        return max(Fraction(0), min(seconds, self._end or seconds) - self._begin)

    def after(self, seconds: Fraction) -> Fraction | None:
        """The first cut from a time on, in seconds from the beginning of the video; None: there is none."""
        wanted = self._origin + seconds / self._base
        try:
            self._container.seek(int(wanted), stream=self._stream, backward=True)
            for number, packet in enumerate(demuxed(self._container, self._stream)):
                if number > PACKETS or not packet.size:
                    break
                if packet.is_keyframe and packet.pts is not None and packet.pts >= wanted and self._is_closed(packet):
                    found = (packet.pts - self._origin) * self._base
                    return None if self._end is not None and found >= self._end else found
        except av.FFmpegError:  # the decoder will say what is wrong there
            pass
        return None

    def _is_closed(self, packet: Any) -> bool:
        if self._annexb is None:
            return True
        types = NAL_TYPES[self._codec]
        slices = [kind for unit in self._annexb.units(packet) if (kind := types.of(unit[0])) in types.slices]
        return bool(slices) and slices[0] in IDR[self._codec]

    def close(self) -> None:
        self._container.close()


def worth_cutting(path: Path, options: SourceOptions) -> bool:
    """Whether a video is long enough to be cut, and can be: its first cuts are where they are wanted."""
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

    def open(self, options: SourceOptions) -> "SegmentedSource":
        """Open its first segment; the errors are those of `open_file`."""
        return SegmentedSource(self.path, self.readers, options)


class SegmentedSource:
    """The segments of a video, and the iterators that read them side by side.

    Attributes:
        info: facts of the whole file.
        streams: iterators, each of which takes the next segment when it has read one.
    """

    def __init__(self, path: Path, readers: int, options: SourceOptions) -> None:
        self._path, self._options, self._lock = path, options, threading.Lock()
        self._first = open_file(path, options)
        self.info: SourceInfo = self._first.info
        self._cuts = Cuts(path, options)
        self._begin, self._numbers, self._ended = options.span[0], count(), False
        """Of the next segment; whether the last one has been taken."""
        self._open: set[PullSource] = {self._first}
        self._closed = threading.Event()
        self.counts: dict[int, int] = {}
        """Frames of each segment that has been read to its end."""
        self.streams: Sequence[PullSource] = [PullSource(self.info, self._frames) for _ in range(readers)]

    def __iter__(self) -> Iterator[Frame]:
        return iter(self.streams[0])

    def _next(self) -> tuple[int, PullSource, Fraction | None] | None:
        """Number of the next segment, what reads it, and where it ends: None is the end of the file."""
        with self._lock:
            if self._ended or self._closed.is_set():
                return None
            number, begin = next(self._numbers), self._begin
            end = self._cuts.after(begin + SECONDS)
            self._ended = end is None
            self._begin = end or begin
        options = replace(self._options, start=begin, end=end if end is not None else self._options.end)
        source = self._first if number == 0 else open_file(self._path, options)
        with self._lock:
            self._open.add(source)
        if self._closed.is_set():
            source.close()
        return number, source, end

    def _frames(self, closed: threading.Event) -> Frames:
        while not closed.is_set() and (taken := self._next()) is not None:
            number, source, end = taken
            frames = 0
            try:
                for frame in source:
                    if number == 0 and end is not None and self._is_at(frame, end):  # it was opened for the whole file
                        if frame.lease is not None:
                            frame.lease.release()
                        break
                    yield frame.replace_unchecked(connection=number)
                    frames += 1
            finally:
                source.close()
                with self._lock:
                    self._open.discard(source)
                    self._merge(source.info)
                self.counts[number] = frames

    def _is_at(self, frame: Frame, end: Fraction) -> bool:
        return frame.pts is not None and frame.pts * frame.time_base - self._cuts.origin >= end

    def _merge(self, info: SourceInfo) -> None:
        if info is self.info:
            return
        for text in info.notes:
            self.info.note(text)
        for cause, number in info.drops.items():
            self.info.drops[cause] = self.info.drops.get(cause, 0) + number
        self.info.copied += info.copied

    def close(self) -> None:
        """End all readers, from any thread, any number of times."""
        self._closed.set()
        for stream in self.streams:
            stream.close()
        with self._lock:
            opened = list(self._open)
        for source in opened:
            source.close()
        self._cuts.close()
