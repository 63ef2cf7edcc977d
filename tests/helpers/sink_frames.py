"""Frames, clips and detections as input of sinks, and readers of their outputs."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np

from framefuse.frame import PIXEL_FORMATS, Frame
from framefuse.prediction import Detections, FrameInfo, Result
from framefuse.sinks import Sink, SinkContext
from framefuse.sinks.images import planes_of
from framefuse.sources import SourceInfo
from reading import decoded

NAMES = {0: "person", 1: "bicycle", 2: 'traffic "light", ü'}
MS = Fraction(1, 1000)


def detections(*rows: tuple[float, ...]) -> Detections:
    """Rows of x1, y1, x2, y2, confidence, class_id."""
    table = np.array(rows, np.float32).reshape(-1, 6)
    return Detections(table[:, :4], table[:, 4], table[:, 5].astype(np.int64), NAMES)


ONE = detections((10, 20, 60, 50, 0.875, 1))
NONE = detections()


def gray_yuv(width: int, height: int, *, name: str = "yuv420p", value: int = 100, seed: int | None = None) -> list[Any]:
    """Planes of a flat image, or of noise that does not compress."""
    pixels = PIXEL_FORMATS[name]
    shapes = pixels.plane_shapes(width, height)
    if seed is not None:
        rng = np.random.default_rng(seed)
        return [rng.integers(0, 256, shape).astype(np.uint8) for shape in shapes]
    scale = 1 << (pixels.bits - 8 + pixels.shift)
    levels = [value, 128, 128] if pixels.layout != "packed" else [value]
    return [np.full(shape, level * scale, pixels.dtype) for shape, level in zip(shapes, levels, strict=False)]


def frame(index: int = 0, width: int = 96, height: int = 64, *, pts: int | str | None = "ms", **more: Any) -> Frame:
    name = more.pop("name", "yuv420p")
    coded = (height, width) if more.get("rotation") in (90, 270) else (width, height)
    planes = gray_yuv(*coded, name=name, seed=more.pop("seed", None))
    time = index * 40 if pts == "ms" else pts
    more.setdefault("time_base", MS)
    return Frame(tuple(planes), PIXEL_FORMATS[name], index=index, pts=time, source_id="clip.mp4", **more)  # type: ignore[arg-type]


def result(of: Frame, found: Detections = ONE) -> Result:
    return Result(FrameInfo.of(of), found)


def context(folder: Path, *, stem: str = "clip", **info: Any) -> SinkContext:
    return SinkContext(folder, SourceInfo(info.pop("uri", "clip.mp4"), info.pop("kind", "file"), **info), NAMES, stem)


def run(sink: Sink, where: SinkContext, frames: list[Frame], found: Detections = ONE) -> Sink:
    sink.open(where)
    try:
        for one in frames:
            sink.write(result(one, found), one)
    finally:
        sink.close()
    sink.close()  # twice is allowed
    return sink


def fill(sink: Any, where: SinkContext, results: list[Result], *, close: bool = True) -> None:
    """Write results without frames; without `close`, leave what a killed run leaves."""
    sink.open(where)
    for one in results:
        sink.write(one, None)
    if close:
        sink.close()
        sink.close()
    else:
        sink._file.close()


def times(path: Path) -> list[Any]:
    return [one.pts * one.time_base for one in decoded(path)]  # type: ignore[operator]


def boxes_of(path: Path) -> list[str]:
    """Names of the top-level boxes of an MP4."""
    data, at, found = path.read_bytes(), 0, []
    while at + 8 <= len(data):
        found.append(data[at + 4 : at + 8].decode("latin1"))
        at += max(8, int.from_bytes(data[at : at + 4], "big"))
    assert at == len(data), "the file ends inside a box"
    return found


def audio_packets(path: Path) -> list[tuple[Fraction, bytes]]:
    with av.open(path) as container:
        stream = container.streams.audio[0]
        return [
            (packet.pts * packet.time_base, bytes(packet))  # type: ignore[operator]
            for packet in container.demux(stream)
            if packet.size
        ]


def make_clip(path: Path, *, seconds: float = 2, audio: str | None = "aac", start: int = 0) -> Path:
    """A 25 fps clip with a tone."""
    with av.open(path, "w") as container:
        video: Any = container.add_stream("mpeg4", rate=25)
        video.width, video.height = 96, 64
        sound: Any = container.add_stream(audio, rate=48000, layout="stereo") if audio else None
        for i in range(round(seconds * 25)):
            av_frame = av.VideoFrame(96, 64, "yuv420p")
            for plane in planes_of(av_frame):
                plane[:] = 100
            av_frame.pts, av_frame.time_base = start + i, Fraction(1, 25)
            container.mux(video.encode(av_frame))
        if sound:
            formats = {"pcm_u8": ("u8", np.uint8), "libmp3lame": ("fltp", np.float32), "aac": ("fltp", np.float32)}
            name, dtype = formats[audio or ""]
            tone = (100 * np.sin(np.arange(round(seconds * 48000)) / 20) + 128).astype(np.uint8)
            samples = tone if dtype == np.uint8 else (tone.astype(np.float32) - 128) / 256
            shaped: Any = np.stack([samples, samples])
            block = av.AudioFrame.from_ndarray(
                shaped if name == "fltp" else shaped.T.reshape(1, -1), format=name, layout="stereo"
            )
            block.sample_rate, block.pts, block.time_base = 48000, start * 1920, Fraction(1, 48000)
            container.mux(sound.encode(block))
            container.mux(sound.encode(None))
        container.mux(video.encode(None))
    return path


def frames_of(path: Path) -> list[Frame]:
    pixels = PIXEL_FORMATS["yuv420p"]
    with av.open(path) as container:
        decoded_frames: list[Any] = list(container.decode(video=0))
    return [
        Frame(planes_of(one), pixels, i, one.pts, one.time_base, str(path), owner=one)
        for i, one in enumerate(decoded_frames)
    ]
