"""Annotated video that plays everywhere: H.264, 8-bit 4:2:0, index in front, with the source's timestamps and audio."""

from contextlib import suppress
from fractions import Fraction
from functools import partial
from time import monotonic
from typing import Any, NamedTuple, cast

import av
import numpy as np
from av.codec import Codec
from av.video.codeccontext import VideoCodecContext

from framefuse.common.machine import available_cores
from framefuse.common.text import counted
from framefuse.errors import SinkError
from framefuse.frame import PIXEL_FORMATS, Frame
from framefuse.prediction import Result
from framefuse.sinks import USUAL, BaseSink, SinkContext, Style
from framefuse.sinks.draw import Annotator, Trails
from framefuse.sinks.images import FrameConverter, Meaning, Plane, planes_of, upright
from framefuse.sinks.mp4 import ENCODER_SECONDS, Encoding, Mp4File

NVENC, SOFTWARE = "h264_nvenc", "libx264"
ZERO_LATENCY = "zerolatency"
"""Tuning of x264 that holds back no frame, if its threads share each."""
ENCODERS = (
    "libx264", "libopenh264", "h264_nvenc", "h264_qsv", "h264_amf", "h264_vaapi", "h264_v4l2m2m", "h264_videotoolbox",
    "mpeg4", "libx265", "libsvtav1", "libvpx-vp9",
)  # fmt: skip
"""Encoders to suggest if the requested one is missing."""

DEFAULT_FPS = Fraction(30)
LEAD_IN = Fraction(2)
"""Seconds. Players show nothing before the first frame; a later start than this (trimmed, live) is moved to 0."""
JUMP = Fraction(1)
"""Seconds; a larger step backwards is a restart of the source's timestamps, a smaller one is disorder."""
TRACK_TICKS = 10_000
"""FFmpeg doubles the ticks per second of an MP4 track until they are as many as this."""
LONGEST = (2**31 - 1) // 3
"""Maximum ticks between two frames. FFmpeg has 31 bits for the distance between two frames of an MP4, and for that from
decoding to presentation, which x264 lets grow to two frames and more where it reorders."""
REPEATS = 1000
"""Maximum number of frames that fill one gap."""
FILES = 8
"""Maximum number of files that one source makes by changing its size; the last holds all frames that follow."""
MPEG4_TICKS = 65535
"""MPEG-4 part 2 divides a second into at most 2**16 - 1 ticks (ISO/IEC 14496-2, vop_time_increment_resolution)."""

PRESETS = {
    "ultrafast": ("p1", 0), "superfast": ("p1", 0), "veryfast": ("p2", 10), "faster": ("p3", 20), "fast": ("p4", 30),
    "medium": ("p4", 40), "slow": ("p5", 50), "slower": ("p6", 60), "veryslow": ("p7", 60), "placebo": ("p7", 60),
}  # fmt: skip
"""Presets of x264 -> those of NVENC, p1 to p7, and the frames that x264 looks ahead by default."""
B_FRAMES = 4
"""Frames by which x264's reordering delays the output at most."""
FEWEST_AHEAD = 12
"""Frames of delay below which x264 has to work without frame threads, reordering and lookahead."""
PROBE_SIZE = 256, 144
"""Width and height of a frame that every NVENC supports."""
RETRY_SECONDS = 60
"""Seconds after which a GPU that refused to encode is probed again."""


class VideoFormat(NamedTuple):
    """Properties that are constant within one file."""

    width: int
    height: int
    meaning: Meaning

    @property
    def even(self) -> tuple[int, int]:
        """Width and height as 4:2:0 requires."""
        return self.width + self.width % 2, self.height + self.height % 2


class Timeline:
    """Timestamps of one file: those of the source, made strictly increasing.

    A gap that is too long for MP4 (over two hours at 90 kHz, 0.7 s at 1 GHz) is filled with repeats of the frame before
    it, so that all frames keep their times; one that REPEATS do not fill is shortened.

    Args:
        first: the first frame; its time base is kept. If it has no pts, the time base is one frame.
        rate: frames per second, for frames without pts.
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
        """Seconds added to the source's timestamps."""
        self.last: int | None = None
        self._index = 0
        self.ticks = self._frame_ticks
        """Duration of the last frame, taken from the interval before it."""
        scale = self.time_base.denominator
        while scale < TRACK_TICKS:
            scale *= 2
        self._longest = max(1, LONGEST // int(scale * self.time_base))
        self.missing = self.moved = self.jumps = self.repeated = self.shortened = 0

    def stamps(self, frame: Frame) -> list[int]:
        """The pts of repeats of the frame before, then that of the next frame, in units of `time_base`."""
        if frame.pts is None:
            self.missing += self._timed
            # By the index, so that frames skipped by vid_stride keep their duration.
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
            elif pts - self.last > (end := (REPEATS + 1) * self._longest):
                self.shortened += 1
                self.offset -= (pts - self.last - end) * self.time_base
                pts = self.last + end
            self.ticks = pts - self.last
        repeats = [] if self.last is None else range(self.last + self._longest, pts, self._longest)
        self.repeated += len(repeats)
        self.last, self._index = pts, frame.index
        return [*repeats, pts]

    def source_seconds(self, *, end: bool = False) -> Fraction:
        """pts of the last frame, or its end, in seconds of the source's own time."""
        return ((self.last or 0) + end * self.ticks) * self.time_base - self.offset

    def notes(self, name: str) -> list[str]:
        shifted = self.offset and not self.jumps and not self.shortened
        longest = float(self._longest * self.time_base)
        filled = f"to fill gaps over {longest:,.1f} s, as MP4 requires"
        notes = [
            (self.inexact, f"timestamps rounded to {self.time_base} s, as mpeg4 requires"),
            (shifted, f"starts at 0, all timestamps shifted by {float(self.offset):.3f} s"),
            (self.missing, f"{counted(self.missing, 'frame')} without pts placed by the frame rate"),
            (self.moved, f"{counted(self.moved, 'frame')} delayed, as the pts did not increase"),
            (self.jumps, f"pts jumped back {counted(self.jumps, 'time')}; the video continues without the jump"),
            (self.repeated, f"{counted(self.repeated, 'repeated frame')} {filled}"),
            (self.shortened, f"{counted(self.shortened, 'gap')} shortened to {(REPEATS + 1) * longest:,.1f} s"),
        ]
        return [f"{name}: {text}" for happened, text in notes if happened]


class VideoSink(BaseSink):
    """Writes <stem>.mp4, upright, with the source's timestamps (variable rates too) and audio packets.

    Frames of odd size are extended by a copy of the last column or row. If the size or the colour description changes
    within the stream, a second file <stem>_2.mp4 continues, and so on. The last of FILES files has the largest size so
    far, and all further frames are scaled to it. Memory use is one frame plus the encoder's. See mp4.py for what
    remains after an error, and Timeline for timestamps that are missing or out of order.

    Args:
        encoder: FFmpeg's name; there is no fallback (`choose_encoder` checks in advance).
        options: see `encoder_options`.
    """

    name = "video"
    needs_frame = True
    suffix, pixels, stored = ".mp4", "yuv420p", "yuv420p"
    """Of the files, of the frames that are drawn, and of those that are encoded."""

    def __init__(self, *, encoder: str = SOFTWARE, style: Style = USUAL, **options: Any) -> None:
        super().__init__()
        self._encoder, self._style = encoder, style
        self._low_latency = bool(options.get("low_latency"))
        self._options = partial(encoder_options, encoder, **options)
        self._converter = FrameConverter()
        self._format = self._largest = VideoFormat(0, 0, Meaning("bt601", False))
        self._file: Mp4File | None = None
        self._boxes = b""
        """What the files say about VR, see `Stereo`."""

    def open(self, context: SinkContext) -> None:
        if not is_video_encoder(self._encoder):
            remedy = f"choose another --encoder: {', '.join(filter(is_video_encoder, ENCODERS))}"
            raise SinkError(f"this FFmpeg has no video encoder {self._encoder!r}", remedy=remedy)
        super().open(context)
        self._first = context.output(self._called(context.stem))  # checked now, before any sink writes
        self._trails = Trails(self._style.trail, float(context.source.fps or DEFAULT_FPS))

    def write(self, result: Result, frame: Frame | None) -> None:
        assert frame is not None, "the sink video needs the frame"
        planes, meaning = self._converter.yuv420p(frame)
        format = VideoFormat(frame.width, frame.height, meaning)
        if self._file is None or (format != self._format and len(self.paths) < FILES):
            self._largest = max(self._largest, format, key=lambda one: one.width * one.height)
            self.close()
            self._file = self._start(frame, format if len(self.paths) + 1 < FILES else self._largest)
        *repeats, pts = self._times.stamps(frame)
        for repeat in repeats:
            self._file.encode(repeat, self._times.source_seconds(), alone=True)
        target = self._file.planes()
        if format == self._format:
            fill(target, planes, frame.rotation)
            self._draw(target, format, result)
        else:
            own = av.VideoFrame(*format.even, self.pixels)
            fill(planes_of(own), planes, frame.rotation)
            self._draw(planes_of(own), format, result)
            self._converter.fit(own, meaning, target, self._format.meaning)
        self._file.encode(pts, self._times.source_seconds(), alone=bool(repeats))

    def _called(self, stem: str) -> str:
        """The name of the file."""
        return f"{stem}{self.suffix}"

    def _draw(self, planes: tuple[Plane, ...], format: VideoFormat, result: Result) -> None:
        """Draw on the planes of a frame, upright and of even size, what the result says about it."""
        views = result.views if self._style.views else ()
        annotator = self._annotator if format == self._format else annotator_of(format, self._style)
        trails = self._trails.after(result)
        annotator.draw(planes, result.detections, result.masks, trails, views, result.classification)

    def _start(self, frame: Frame, format: VideoFormat) -> Mp4File:
        number, path, source = len(self.paths) + 1, self._first, self._context.source
        if number > 1:
            stem = self._context.taken["stem"].take(f"{self._context.stem}_{number}")
            path = self._context.output(self._called(stem))
        size, (width, height) = f"{format.width}x{format.height}", format.even
        if number == FILES:
            self.notes.append(f"{path.name}: the frames keep changing; all from here on are scaled to {size}")
        elif number > 1:
            self.notes.append(f"{path.name}: started because the frames changed to {size}, {format.meaning.matrix}")
        if (width, height) != (format.width, format.height):
            self.notes.append(f"{path.name}: {size} padded to {width}x{height}, as 4:2:0 requires")
        rate = source.fps or DEFAULT_FPS
        if frame.pts is None and source.fps is None:
            self.notes.append(f"{path.name}: the source has neither timestamps nor a frame rate: {rate} fps assumed")
        self._times = Timeline(frame, rate, self._encoder)
        aspect = frame.sample_aspect_ratio ** (-1 if frame.rotation in (90, 270) else 1)
        self._format, self._annotator = format, annotator_of(format, self._style)
        options, threads = self._options(rate=rate)
        slices = self._low_latency or options.get("tune") == ZERO_LATENCY
        codec = self._encoder, options, threads, self._times.time_base, rate
        encoding = Encoding(*codec, width, height, *format.meaning, aspect, self.pixels, self.stored, slices)
        file = Mp4File(path, encoding, boxes=self._boxes, part=self._context.ends)
        self.paths.append(path)
        if source.path is not None and source.kind == "file":
            start = Fraction(0) if frame.pts is None else frame.pts * frame.time_base
            file.add_audio(source.path, start=start, offset=self._times.offset, notes=self.notes)
        return file

    def close(self) -> None:
        if self._file is None:
            return
        file, self._file = self._file, None
        self.notes += self._times.notes(file.path.name)
        self.notes += file.close(self._times.source_seconds(end=True))


def annotator_of(format: VideoFormat, style: Style) -> Annotator:
    matrix, full_range = format.meaning
    return Annotator(*format.even, PIXEL_FORMATS["yuv420p"], matrix=matrix, full_range=full_range, style=style)


def fill(targets: tuple[Plane, ...], planes: tuple[Plane, ...], rotation: int) -> None:
    """Copy planes upright into the first of those of a frame of even size; a missing last row or column repeats the
    previous one."""
    for source, target in zip(planes, targets, strict=False):
        source = upright(source, rotation)
        height, width = source.shape
        np.copyto(target[:height, :width], source)
        if width < target.shape[1]:
            target[:height, width] = target[:height, width - 1]
        if height < target.shape[0]:
            target[height] = target[height - 1]


def choose_encoder(requested: str, gpu: int | None) -> tuple[str, str]:
    """FFmpeg's name of the encoder, and the reason for the choice.

    Args:
        requested: FFmpeg's name, or auto.
        gpu: number of the GPU on which the run is; None: the run is on the CPU.
    """
    if requested != "auto":
        return requested, f"encoder {requested}: as requested"
    if gpu is None:
        return SOFTWARE, f"encoder {SOFTWARE}: the run is on the CPU"
    if why := nvenc_refuses(gpu):
        return SOFTWARE, f"encoder {SOFTWARE}: on the CPU, because {why}"
    return NVENC, f"encoder {NVENC}: supported by the GPU"


_probes: dict[int, tuple[float, str | None]] = {}
"""GPU -> time of its latest probe, and why it cannot encode."""


def nvenc_refuses(gpu: int) -> str | None:
    """Why this GPU cannot encode a small frame; None: it can.

    A probe takes up to a second, so the answer is cached; a refusal only for RETRY_SECONDS, because an encoder session
    or memory may become free.
    """
    if not is_video_encoder(NVENC):
        return "this build of FFmpeg has no NVENC"
    if gpu in _probes and (_probes[gpu][1] is None or monotonic() - _probes[gpu][0] < RETRY_SECONDS):
        return _probes[gpu][1]
    why: str | None = None
    try:
        context = cast(VideoCodecContext, av.CodecContext.create(NVENC, "w"))
        (context.width, context.height), context.pix_fmt = PROBE_SIZE, "yuv420p"
        context.options = {"gpu": str(gpu)}
        context.encode(av.VideoFrame(*PROBE_SIZE, "yuv420p"))
        context.encode(None)
    except (av.FFmpegError, ValueError) as error:
        why = f"NVENC cannot be opened on this GPU ({getattr(error, 'strerror', None) or error})"
    _probes[gpu] = monotonic(), why
    return why


def encoder_options(
    encoder: str,
    *,
    rate: Fraction,
    crf: int = 23,
    preset: str = "ultrafast",
    threads: int = 0,
    gpu: int | None = None,
    low_latency: bool = False,
) -> tuple[dict[str, str], int]:
    """The encoder's own options, and its threads.

    Args:
        crf: quality as x264's crf, lower is better; mapped to a fixed quantiser of mpeg4 and to NVENC's cq.
        preset: the encoder's speed preset; for NVENC also those of x264.
        rate: frames per second.
        threads: 0: as many as keep the delay short, or the encoder's default.
        gpu: GPU of NVENC; None: FFmpeg's default.
        low_latency: x264 and NVENC give a frame back before they get the next one.
    """
    if encoder == "mpeg4":
        quantiser = min(31, max(2, round(crf / 6)))
        return {"flags": "+qscale", "global_quality": str(quantiser * 118)}, threads  # FF_QP2LAMBDA
    if encoder.endswith("_nvenc"):
        where = {} if gpu is None else {"gpu": str(gpu)}
        where |= {"zerolatency": "1", "delay": "0"} if low_latency else {}
        speed, _ = PRESETS.get(preset, (preset, 0))
        return {"rc": "vbr", "cq": str(crf), "b": "0", "preset": speed, **where}, threads
    options = {"crf": str(crf), "preset": preset}
    if encoder != SOFTWARE or preset not in PRESETS:
        return options, threads
    # x264 is to hold back at most ENCODER_SECONDS of frames, which a kill loses, not 60.
    frames = int(rate * Fraction(ENCODER_SECONDS))
    if frames < FEWEST_AHEAD or low_latency:
        return {**options, "tune": ZERO_LATENCY}, threads
    most = min(frames // 3, available_cores() * 3 // 2)
    ahead = min(PRESETS[preset][1], frames - most - B_FRAMES)
    return {**options, "rc-lookahead": str(ahead), "x264-params": "sync-lookahead=0"}, threads or most


def is_video_encoder(name: str) -> bool:
    """Whether this build of FFmpeg has a video encoder of this name."""
    with suppress(ValueError):
        return Codec(name, "w").type == "video"
    return False
