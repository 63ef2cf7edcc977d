"""Tiny real media files, generated on the fly: one function per kind, which returns the path it wrote."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
from numpy.typing import NDArray
from PIL import Image

CONTAINERS: dict[str, dict[str, str]] = {
    "mp4": {},
    "mkv": {},
    "ts": {},
    "flv": {},
    "h264": {},
    "avi": {"codec": "mpeg4"},
    "webm": {"codec": "libvpx-vp9"},
    "mjpeg": {"codec": "mjpeg", "pixel_format": "yuvj420p"},
}
"""File suffix -> arguments of `clip`."""
RED, GREEN, BLUE = (200, 30, 40), (20, 180, 60), (30, 50, 210)


def rgb_image(number: int, width: int = 64, height: int = 48) -> NDArray[np.uint8]:
    """(height, width, 3) RGB: a gradient, a saturated square that moves with `number`, no symmetry."""
    y, x = np.mgrid[0:height, 0:width]
    image = np.stack([40 + 150 * x / width, 30 + 170 * y / height, 90 + 0 * x], axis=-1).astype(np.uint8)
    side = max(1, min(width, height) // 4)
    left, top = (3 * number) % max(1, width - side), (2 * number) % max(1, height - side)
    image[top : top + side, left : left + side] = (RED, GREEN, BLUE)[number % 3]
    return image


def video(
    path: Path,
    *,
    codec: str = "libx264",
    pixel_format: str = "yuv420p",
    size: tuple[int, int] = (64, 48),
    frames: int = 8,
    rate: Fraction | int = 25,
    pts: Sequence[int] | None = None,
    time_base: Fraction | None = None,
    colour: Mapping[str, int] | None = None,
    aspect: Fraction | None = None,
    options: Mapping[str, str] | None = None,
    container_options: Mapping[str, str] | None = None,
    container_format: str | None = None,
    audio: bool = False,
    title: str = "",
) -> Path:
    """Encode `rgb_image(0)`, `rgb_image(1)`, ...

    Args:
        pts: presentation times in units of `time_base`; 0, 1, 2, ... in units of 1/rate when left out.
        colour: colorspace, color_range, color_trc, color_primaries as FFmpeg's numbers.
        options: of the encoder. gop_size is `g`, no reordering is `bf: 0`.
        audio: add a track of silence (aac).
    """
    width, height = size
    time_base = time_base or 1 / Fraction(rate)
    with av.open(str(path), "w", format=container_format, container_options=dict(container_options or {})) as output:
        if title:
            output.metadata["title"] = title
        stream: Any = output.add_stream(codec, rate=rate, options=dict(options or {}))
        stream.width, stream.height, stream.pix_fmt = width, height, pixel_format
        stream.codec_context.time_base = time_base
        for name, value in (colour or {}).items():
            setattr(stream.codec_context, name, value)
        if aspect is not None:
            stream.codec_context.sample_aspect_ratio = aspect
        sound: Any = output.add_stream("aac", rate=8000, layout="mono") if audio else None
        times = range(frames) if pts is None else pts
        for number, time in enumerate(times):
            frame = av.VideoFrame.from_ndarray(rgb_image(number, width, height), format="rgb24")
            frame = frame.reformat(format=pixel_format)
            frame.pts, frame.time_base = time, time_base
            output.mux(stream.encode(frame))
        output.mux(stream.encode(None))
        if sound is not None:
            _silence(output, sound, samples=8000 * len(times) // round(rate))
    return path


def clip(path: Path, frames: int = 50, **options: Any) -> Path:
    """25 frames a second, a key frame every 10, reordered."""
    encoder = {"g": "10", "bf": "2"} if options.get("codec", "libx264") == "libx264" else {"g": "10"}
    return video(path, frames=frames, options=encoder, **options)


def without_key_frames(path: Path) -> Path:
    """A video whose only key frame is missing."""
    whole = video(path.with_name(f"whole{path.suffix}"), options={"bf": "0"})
    with av.open(str(whole)) as source, av.open(str(path), "w") as output:
        stream = output.add_stream_from_template(source.streams.video[0])
        for packet in source.demux(video=0):
            if packet.dts is not None and not packet.is_keyframe:
                packet.stream = stream
                output.mux(packet)
    return path


def audio_only(path: Path) -> Path:
    """A second of silence, no video."""
    with av.open(str(path), "w") as output:
        _silence(output, output.add_stream("aac", rate=8000, layout="mono"), samples=8000)
    return path


def cover_art(path: Path) -> Path:
    """An MP3 whose ID3 tag holds an image: FFmpeg shows it as a video stream."""
    art, sound = path.with_suffix(".art.png"), path.with_suffix(".plain.mp3")
    Image.fromarray(rgb_image(0)).save(art)
    with av.open(str(sound), "w") as output:
        _silence(output, output.add_stream("libmp3lame", rate=8000, layout="mono"), samples=8000)
    body = b"\x00image/png\x00\x03\x00" + art.read_bytes()
    tag = b"APIC" + struct.pack(">I", len(body)) + b"\x00\x00" + body
    # Sizes in an ID3 header have seven bits per byte.
    size = bytes((len(tag) >> shift) & 0x7F for shift in (21, 14, 7, 0))
    data = sound.read_bytes()
    path.write_bytes(b"ID3\x03\x00\x00" + size + tag + data[data.index(b"\xff\xe3") :])
    art.unlink()
    sound.unlink()
    return path


def with_display_matrix(path: Path, a: int, b: int, c: int, d: int) -> Path:
    """Write a display matrix into an MP4: x' = a x + c y, y' = b x + d y, y downwards (ISO 14496-12, track header)."""
    data = bytearray(path.read_bytes())
    start = data.index(b"tkhd") + 4
    assert data[start] == 0, "version 0 of the box is expected"
    matrix = start + 40
    one = 1 << 16
    data[matrix : matrix + 20] = struct.pack(">5i", a * one, b * one, 0, c * one, d * one)
    path.write_bytes(data)
    return path


def y4m(path: Path, width: int, height: int, frames: int = 1) -> Path:
    """An uncompressed gray clip with any size in its header."""
    data = b"FRAME\n" + bytes(max(0, width) * max(0, height))
    path.write_bytes(f"YUV4MPEG2 W{width} H{height} F25:1 Ip Cmono\n".encode() + data * frames)
    return path


def scramble(path: Path, first: float, last: float, *, seed: int = 1) -> Path:
    """Overwrite the part between two fractions of a file with noise."""
    data = bytearray(path.read_bytes())
    start, stop = int(len(data) * first), int(len(data) * last)
    data[start:stop] = np.random.default_rng(seed).integers(0, 256, stop - start, dtype=np.uint8).tobytes()
    path.write_bytes(data)
    return path


def truncate(path: Path, fraction: float) -> Path:
    """Remove the end of a file."""
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * fraction)])
    return path


def damage_packet(path: Path, number: int) -> Path:
    """Overwrite one packet of video."""
    with av.open(str(path)) as container:
        packets = [(packet.pos, packet.size) for packet in container.demux(video=0) if packet.size]
    data = bytearray(path.read_bytes())
    position, size = packets[number]
    data[position : position + size] = b"\xff" * size
    path.write_bytes(data)
    return path


def cuttable(path: Path, **options: Any) -> Path:
    """A video of 100 frames, 25 a second, with a key frame every ten that nothing refers back across, and B-frames."""
    closed = {"g": "10", "bf": "3", "x264-params": "open-gop=0:scenecut=0"}
    return video(path, **{"frames": 100, "rate": 25, "size": (160, 120), "options": closed, **options})


def damage_units(path: Path, *numbers: int, lengths: bool = False) -> Path:
    """Overwrite what the NAL units of some packets hold, or all behind the type of the first, with the next length."""
    with av.open(str(path)) as container:
        packets = [bytes(packet) for packet in container.demux(video=0) if packet.size]
    data = path.read_bytes()
    for packet in map(packets.__getitem__, numbers):
        damaged, at = bytearray(packet), 0
        while at < len(packet):
            begin = at + 4
            at = len(packet) if lengths else begin + int.from_bytes(packet[at:begin], "big")
            damaged[begin + 1 : at] = b"\xff" * (at - begin - 1)
        assert data.count(packet) == 1
        data = data.replace(packet, damaged)
    path.write_bytes(data)
    return path


def image(path: Path, number: int = 0, *, size: tuple[int, int] = (64, 48), mode: str = "RGB", **save: Any) -> Path:
    """`rgb_image(number)` as an image of a Pillow mode."""
    Image.fromarray(rgb_image(number, *size)).convert(mode).save(path, **save)
    return path


def animation(path: Path, durations: Sequence[int], *, size: tuple[int, int] = (64, 48)) -> Path:
    """An animated GIF, WebP or PNG: one frame per duration (ms)."""
    first, *others = [Image.fromarray(rgb_image(number, *size)) for number in range(len(durations))]
    first.save(path, save_all=True, append_images=others, duration=list(durations), loop=0)
    return path


def _silence(output: Any, stream: Any, samples: int) -> None:
    for start in range(0, samples, 1024):
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), format="fltp", layout="mono")
        frame.sample_rate, frame.pts, frame.time_base = 8000, start, Fraction(1, 8000)
        output.mux(stream.encode(frame))
    output.mux(stream.encode(None))
