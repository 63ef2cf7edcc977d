"""The audio of a source, copied packet by packet into the video that is being written."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
from av.bitstream import BitStreamFilterContext
from av.container import InputContainer, OutputContainer
from av.stream import Discard

from framefuse.sources.ffmpeg import TAGS, demuxed

MP4_AUDIO = frozenset({"aac", "ac3", "alac", "eac3", "flac", "mp2", "mp3", "opus"})
"""Codecs that players expect in an MP4. FFmpeg accepts more (PCM), but few programs can play them."""


class AudioCopy:
    """Copies the audio packets of `path` that belong to the time range of the video, without re-encoding.

    All of this is best effort: audio that cannot be read or stored is omitted with a note, never an error.

    Args:
        start: time of the first video frame in seconds of the source. Audio is copied from there on, or from its own
            beginning if this is where the source's video begins.
        offset: seconds added to every timestamp.
        notes: omissions are appended here.
    """

    def __init__(
        self, path: Path, output: OutputContainer, *, start: Fraction, offset: Fraction, notes: list[str]
    ) -> None:
        self._output, self._offset, self._notes = output, offset, notes
        self._start: Fraction | None = None
        self._source_end: Fraction | None = None
        self._input: InputContainer | None = None
        self._targets: dict[int, Any] = {}
        self._last: dict[int, int] = {}
        self._packets: Iterator[Any] = iter(())
        self._next: Any = None
        self._disorder = 0
        try:
            self._open(path, start)
        except (av.FFmpegError, OSError, ValueError) as error:
            self._give_up(error)

    def _open(self, path: Path, start: Fraction) -> None:
        # As in sources/files.py: no other protocols, and no playlist reaches the network.
        self._input = av.open(f"file:{path}", container_options={"protocol_whitelist": "file,crypto,data"}, **TAGS)
        for stream in self._input.streams:
            reason = _unfit(stream) if stream.type == "audio" else ""
            if reason is None:
                self._targets[stream.index] = self._output.add_stream_from_template(stream)
            else:
                stream.discard = Discard.all
                if reason:
                    self._notes.append(f"audio stream {stream.index} omitted: {reason}")
        begins = Fraction(0)
        for video in self._input.streams.video[:1]:
            tick: Any = video.time_base
            begins = (video.start_time or 0) * tick
            if video.duration:
                self._source_end = begins + video.duration * tick
        if not self._targets:
            self.close()
            return
        if start > begins:
            self._start = start
            self._input.seek(int(start * av.time_base))
        self._packets = self._demux(self._input)

    def _demux(self, reader: InputContainer) -> Iterator[Any]:
        streams = [reader.streams[index] for index in self._targets]
        # MPEG-TS has an ADTS header before each AAC packet, which MP4 must not have. FFmpeg removes it for plain MP4,
        # but not for fragmented MP4.
        filters = {
            stream.index: BitStreamFilterContext("aac_adtstoasc", stream)
            for stream in streams
            if stream.codec_context.name == "aac" and not stream.codec_context.extradata
        }
        for packet in demuxed(reader, streams):
            if packet.dts is not None:
                adts = filters.get(packet.stream_index)
                yield from [packet] if adts is None else adts.filter(packet)

    def copy_until(self, end: Fraction, *, last: bool = False) -> None:
        """Write the packets that begin before `end` seconds of the source's time.

        Args:
            last: no more video follows; if `end` is also the end of the source's video, all remaining audio is written.
        """
        everything = last and self._source_end is not None and end >= self._source_end
        while (packet := self._next or self._read()) is not None:
            self._next = None
            begins = packet.dts * packet.time_base
            if begins >= end and not everything:
                self._next = packet
                return
            if self._start is None or begins + (packet.duration or 0) * packet.time_base > self._start:
                self._write(packet)

    def close(self) -> None:
        if self._disorder:
            self._notes.append(f"audio packets out of order, omitted: {self._disorder}")
            self._disorder = 0
        self._packets, self._next = iter(()), None
        if self._input is not None:
            self._input.close()
            self._input = None

    def _write(self, packet: Any) -> None:
        shift = round(self._offset / packet.time_base)
        dts, index = packet.dts + shift, packet.stream_index
        if dts <= self._last.get(index, dts - 1):
            self._disorder += 1
            return
        self._last[index] = dts
        packet.pts = dts if packet.pts is None else max(dts, packet.pts + shift)
        packet.dts = dts
        packet.stream = self._targets[index]
        self._output.mux(packet)

    def _read(self) -> Any:
        try:
            return next(self._packets, None)
        except (av.FFmpegError, OSError) as error:
            self._give_up(error)
            return None

    def _give_up(self, error: Exception) -> None:
        self._notes.append(f"audio omitted from here on: {getattr(error, 'strerror', None) or error}")
        self.close()


def _unfit(stream: Any) -> str | None:
    """Why an audio stream cannot be copied into an MP4; None if it can."""
    context = stream.codec_context
    if context is None or not context.sample_rate:
        return "its description is missing or damaged"  # as in a truncated file
    codec = context.codec.canonical_name
    return None if codec in MP4_AUDIO else f"MP4 players do not support {codec}"
