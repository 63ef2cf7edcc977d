"""The sound of a source, copied packet by packet beside a video that is being written."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import av
from av.container import InputContainer, OutputContainer


class AudioCopy:
    """Copies the audio packets of `path` that belong to the time range of the video, without re-encoding.

    Everything is best effort: audio that cannot be copied is left out with a note, never an error.

    Args:
        start: seconds of the first video frame in the source's own time; later audio is copied, and all earlier audio too
            if the source's video begins there (its encoder's priming belongs to it).
        offset: seconds added to every time.
        notes: what was left out is appended here.
    """

    def __init__(
        self, path: Path, output: OutputContainer, *, start: Fraction, offset: Fraction, notes: list[str]
    ) -> None:
        self._output, self._offset, self._notes = output, offset, notes
        self._ends: Fraction | None = None
        self._input: InputContainer | None = None
        self._packets: Iterator[av.Packet] = iter(())
        self._next: av.Packet | None = None
        self._targets = {}
        try:
            self._input = av.open(path)
            for stream in self._input.streams.audio:
                codec = stream.codec_context.name
                if codec in output.supported_codecs:
                    self._targets[stream.index] = output.add_stream_from_template(stream)
                else:
                    notes.append(f"audio stream {stream.index} left out: {output.format.name} cannot hold {codec}")
            if not self._targets:
                self.close()
                return
            for other in self._input.streams:
                if other.index not in self._targets:
                    other.discard = "all"
            begins = Fraction(0)
            for video in self._input.streams.video[:1]:
                begins = (video.start_time or 0) * video.time_base
                if video.duration:
                    self._ends = begins + video.duration * video.time_base
            if start > begins:
                self._input.seek(int(start * av.time_base))
            self._start = start if start > begins else None
            self._packets = self._input.demux([self._input.streams[index] for index in self._targets])
        except (av.FFmpegError, OSError) as error:
            self._give_up(error)

    def copy_until(self, end: Fraction, *, last: bool = False) -> None:
        """Write the packets that begin before `end` seconds of the source's time.

        Args:
            last: no more video follows; if `end` is also the end of the source's video, all that is left is written.
        """
        everything = last and self._ends is not None and end >= self._ends
        while self._targets:
            packet = self._next or self._read()
            self._next = None
            if packet is None:
                return
            assert packet.time_base is not None
            begins = (packet.dts or 0) * packet.time_base
            if not everything and begins >= end:
                self._next = packet
                return
            if self._start is not None and begins + (packet.duration or 0) * packet.time_base <= self._start:
                continue
            shift = round(self._offset / packet.time_base)
            packet.dts = (packet.dts or 0) + shift
            packet.pts = packet.dts if packet.pts is None else packet.pts + shift
            packet.stream = self._targets[packet.stream_index]
            self._output.mux(packet)

    def close(self) -> None:
        self._targets = {}
        self._next = None
        if self._input is not None:
            self._input.close()
            self._input = None

    def _read(self) -> av.Packet | None:
        try:
            return next((packet for packet in self._packets if packet.dts is not None), None)
        except (av.FFmpegError, OSError) as error:
            self._give_up(error)
            return None

    def _give_up(self, error: Exception) -> None:
        self._notes.append(f"audio left out from here on: {error}")
        self.close()
