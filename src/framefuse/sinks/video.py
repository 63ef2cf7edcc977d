"""Annotated video that plays everywhere: H.264, 8-bit 4:2:0, index in front, with the times and sound of the source."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

import numpy as np

from framefuse.errors import SinkError
from framefuse.frame import PIXEL_FORMATS, Frame, Matrix
from framefuse.prediction import Result
from framefuse.sinks import SinkContext
from framefuse.sinks.canvas import PictureReader, Plane, upright
from framefuse.sinks.draw import Annotator
from framefuse.sinks.encoders import SOFTWARE, is_video_encoder, options_of
from framefuse.sinks.mp4 import Encoding, Mp4File

ENCODERS = (
    "libx264", "libopenh264", "h264_nvenc", "h264_qsv", "h264_amf", "h264_vaapi", "h264_v4l2m2m", "h264_videotoolbox",
    "mpeg4", "libx265", "libsvtav1", "libvpx-vp9",
)  # fmt: skip
"""Encoders worth naming when the wanted one is missing."""

FPS_WITHOUT_ANY = Fraction(30)
LEAD_IN = Fraction(2)
"""Seconds. Players show nothing until the first frame's time; a start later than this (trimmed, live) is moved to 0."""
JUMP = Fraction(1)
"""Seconds backwards from which on times are taken to start anew, rather than to be out of order."""
MPEG4_TICKS = 65535
"""MPEG-4 part 2 counts a second in 16 bits (ISO/IEC 14496-2, vop_time_increment_resolution)."""


class Look(NamedTuple):
    """What must stay the same within one file."""

    width: int
    height: int
    matrix: Matrix
    full_range: bool


class Timeline:
    """Presentation times of one file: those of the source, made strictly increasing where they are not.

    Args:
        first: its time base is kept; where it has no pts the time base is one frame.
        rate: frames a second, for frames without a pts.
    """

    def __init__(self, first: Frame, rate: Fraction, encoder: str) -> None:
        self._timed = first.pts is not None
        self.time_base = first.time_base if self._timed else 1 / rate
        self.inexact = encoder == "mpeg4" and self.time_base.denominator > MPEG4_TICKS
        if self.inexact:
            whole = min(MPEG4_TICKS, rate.limit_denominator(1001).numerator)
            self.time_base = Fraction(1, MPEG4_TICKS // whole * whole)
        self._frame_ticks = max(1, round(1 / (rate * self.time_base)))
        begins = Fraction(0) if first.pts is None else first.pts * first.time_base
        self.offset = Fraction(0) if 0 <= begins <= LEAD_IN else -begins
        """Seconds added to the source's times."""
        self.last: int | None = None
        self._index = 0
        self.ticks = self._frame_ticks
        """Duration of the last frame: what lay between the two before it."""
        self.missing = self.moved = self.jumps = 0

    def stamp(self, frame: Frame) -> int:
        """The pts of the next frame, in units of `time_base`."""
        if frame.pts is None:
            self.missing += self._timed
            # By the index, so that frames left out on purpose (vid_stride) keep their time.
            pts = 0 if self.last is None else self.last + max(1, frame.index - self._index) * self._frame_ticks
        else:
            pts = round((frame.pts * frame.time_base + self.offset) / self.time_base)
        if self.last is not None:
            if (self.last - pts) * self.time_base > JUMP:
                self.jumps += 1
                self.offset += (self.last + self._frame_ticks - pts) * self.time_base
                pts = self.last + self._frame_ticks
            elif pts <= self.last:
                self.moved += 1
                pts = self.last + 1
            self.ticks = pts - self.last
        self.last, self._index = pts, frame.index
        return pts

    @property
    def source_seconds(self) -> Fraction:
        """Time of the last frame, in the source's own time."""
        return (self.last or 0) * self.time_base - self.offset

    @property
    def source_end(self) -> Fraction:
        """When the last frame ends, in the source's own time."""
        return self.source_seconds + self.ticks * self.time_base

    def notes(self, name: str) -> list[str]:
        found = []
        if self.inexact:
            found.append(f"{name}: times rounded to {self.time_base} s, as mpeg4 needs")
        if self.offset and not self.jumps:
            found.append(f"{name}: starts at 0, all times moved by {float(self.offset):.3f} s")
        if self.missing:
            found.append(f"{name}: {self.missing} frames without a time follow one frame after the last")
        if self.moved:
            found.append(f"{name}: {self.moved} frames not later than the one before were moved to one tick after it")
        if self.jumps:
            found.append(f"{name}: time jumped back {self.jumps} times; the video goes on without the jump")
        return found


class VideoSink:
    """Writes <stem>.mp4, upright, with the source's times (variable rates too) and its audio packets.

    Pictures of odd size gain one column or row, a copy of the last. When the size or the colour description changes in
    mid-stream, a second file <stem>_2.mp4 goes on. Memory held is one picture and what the encoder keeps. See mp4.py
    for what is left after an error, and Timeline for times that are missing or out of order.

    Args:
        encoder: FFmpeg's name; there is no fallback to another (`encoders.choose_encoder` looks before).
        crf, preset, gpu: see `encoders.options_of`.
        threads: of the encoder; 0: as it likes.
        audio: copy the audio of a source that is a file.
    """

    name = "video"
    needs_frame = True

    def __init__(
        self,
        *,
        encoder: str = SOFTWARE,
        crf: int = 23,
        preset: str = "ultrafast",
        threads: int = 0,
        audio: bool = True,
        gpu: int | None = None,
    ) -> None:
        self.paths: list[Path] = []
        self.notes: list[str] = []
        self._encoder, self._audio = encoder, audio
        self._options = options_of(encoder, crf, preset, gpu)
        self._threads = threads
        self._reader = PictureReader()
        self._look: Look | None = None
        self._file: Mp4File | None = None

    def open(self, context: SinkContext) -> None:
        if not is_video_encoder(self._encoder):
            found = ", ".join(filter(is_video_encoder, ENCODERS))
            raise SinkError(
                f"this build of FFmpeg has no video encoder {self._encoder!r}",
                remedy=f"choose one with --encoder: {found}",
            )
        self._first = context.output(f"{context.stem}.mp4")  # already here, before any sink writes
        self._context = context

    def write(self, result: Result, frame: Frame | None) -> None:
        assert frame is not None, "the sink video needs the frame"
        planes, matrix, full_range = self._reader.yuv420p(frame)
        look = Look(frame.width, frame.height, matrix, full_range)
        if self._file is None or look != self._look:
            self._finish()
            self._file = self._start(frame, look)
        picture = self._file.picture()
        fill(picture, planes, frame.rotation)
        self._annotator.draw(picture, result.detections, result.masks)
        pts = self._times.stamp(frame)
        self._file.encode(pts, self._times.source_seconds)

    def close(self) -> None:
        self._finish()

    def _start(self, frame: Frame, look: Look) -> Mp4File:
        number = len(self.paths) + 1
        path = self._first
        if number > 1:
            stem = self._context.taken["stem"].take(f"{self._context.stem}_{number}")
            path = self._context.output(f"{stem}.mp4")
        width, height = look.width + look.width % 2, look.height + look.height % 2
        if number > 1:
            self.notes.append(f"{path.name}: begun as the pictures became {look.width}x{look.height}, {look.matrix}")
        if (width, height) != (look.width, look.height):
            self.notes.append(f"{path.name}: {look.width}x{look.height} padded to {width}x{height}, as 4:2:0 needs")
        source = self._context.source
        rate = source.fps or FPS_WITHOUT_ANY
        if frame.pts is None and source.fps is None:
            self.notes.append(f"{path.name}: the source has neither times nor a frame rate: {rate} fps assumed")
        self._times = Timeline(frame, rate, self._encoder)
        turned = frame.rotation in (90, 270)
        aspect = 1 / frame.sample_aspect_ratio if turned else frame.sample_aspect_ratio
        self._look = look
        self._annotator = Annotator(
            width, height, PIXEL_FORMATS["yuv420p"], matrix=look.matrix, full_range=look.full_range
        )
        file = Mp4File(
            path,
            Encoding(
                encoder=self._encoder,
                options=self._options,
                width=width,
                height=height,
                threads=self._threads,
                time_base=self._times.time_base,
                rate=rate,
                matrix=look.matrix,
                full_range=look.full_range,
                sample_aspect_ratio=aspect,
            ),
        )
        self.paths.append(path)
        if self._audio and source.path is not None and source.kind == "file":
            start = Fraction(0) if frame.pts is None else frame.pts * frame.time_base
            file.add_audio(source.path, start=start, offset=self._times.offset, notes=self.notes)
        return file

    def _finish(self) -> None:
        if self._file is None:
            return
        file, self._file = self._file, None
        self.notes += self._times.notes(file.path.name)
        left = file.close(self._times.source_end)
        if left:
            self.notes.append(left)


def fill(picture: tuple[Plane, ...], planes: tuple[Plane, ...], rotation: int) -> None:
    """Copy planes upright into those of an even-sized picture; a missing last row or column repeats the one before."""
    for source, target in zip(planes, picture, strict=True):
        source = upright(source, rotation)
        height, width = source.shape
        np.copyto(target[:height, :width], source)
        if width < target.shape[1]:
            target[:height, width] = target[:height, width - 1]
        if height < target.shape[0]:
            target[height] = target[height - 1]
