"""Cuts: where a video can be cut, so that each part decodes to the frames that the whole file has there."""

from contextlib import suppress
from fractions import Fraction
from pathlib import Path
from typing import Any

import av

from framefuse.sources.annexb import NAL_TYPES, AnnexB
from framefuse.sources.ffmpeg import NOT_VIDEO, demuxed, exact, open_container
from framefuse.sources.source import SourceOptions

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
        self._annexb: AnnexB | None = None
        self._codec, self._base, self._origin = "", Fraction(1), 0
        if self._stream is None or not self._container.format.name.startswith(FORMATS):
            return
        self._base = exact(self._stream.time_base) or Fraction(1, 1000)
        self._origin = self._stream.start_time or 0
        context = self._stream.codec_context
        if context.name in IDR:
            with suppress(av.FFmpegError):  # the header is damaged
                self._annexb = AnnexB(context.name, context.extradata or b"")
        if self._annexb is not None or context.name in CLOSED:
            self._codec = context.name

    @property
    def seconds(self) -> Fraction:
        """Of the video that is to be read; 0: unknown, or it cannot be cut."""
        if not self._codec:
            return Fraction(0)
        seconds = Fraction(self._container.duration or 0, 1_000_000)
        if self._stream.duration:
            seconds = Fraction(self._stream.duration) * self._base
        return max(Fraction(0), min(seconds, self._end or seconds) - self._begin)

    @property
    def frames(self) -> int:
        """Of the whole file, by its header; 0: unknown."""
        return self._stream.frames if self._stream is not None else 0

    @property
    def rate(self) -> Fraction:
        """Frames a second; 0: unknown."""
        return exact(self._stream.average_rate) or exact(self._stream.guessed_rate) or Fraction(0)

    @property
    def shape(self) -> tuple[tuple[int, int], int] | None:
        """Width and height of a frame, and bits of a pixel; None: unknown."""
        context = self._stream.codec_context
        format = context.format
        return None if format is None else ((context.width, context.height), format.padded_bits_per_pixel)

    def after(self, seconds: Fraction, packets: int = PACKETS) -> Fraction | None:
        """The first cut from a time on, in seconds from the beginning of the video; None: so many packets have none."""
        wanted = self._origin + seconds / self._base
        with suppress(av.FFmpegError):  # the decoder will say what is wrong there
            self._container.seek(int(wanted), stream=self._stream, backward=True)
            for number, packet in enumerate(demuxed(self._container, self._stream)):
                if number > packets or not packet.size:
                    break
                if packet.is_keyframe and packet.pts is not None and packet.pts >= wanted and self._is_closed(packet):
                    found = (packet.pts - self._origin) * self._base
                    return None if self._end is not None and found >= self._end else found
        return None

    def _is_closed(self, packet: Any) -> bool:
        if self._annexb is None:
            return True
        types = NAL_TYPES[self._codec]
        units: list[Any] = []
        with suppress(av.FFmpegError):  # it is damaged
            units = self._annexb.units(packet)
        slices = [kind for unit in units if (kind := types.of(unit[0])) in types.slices]
        return bool(slices) and slices[0] in IDR[self._codec]

    def close(self) -> None:
        self._container.close()
