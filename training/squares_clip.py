"""Video clips with ground truth for the squares detector: coloured squares that drift over a grey background."""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

COLOURS = np.array([(228, 60, 52), (30, 200, 50), (40, 76, 228)], np.float32)
"""RGB of red, green and blue: class 0, 1, 2 of the squares detector."""

Truth = list[tuple[int, float, float, float, float]]
"""Ground truth of one frame: (class_id, x1, y1, x2, y2) per square, in pixels, measured at pixel edges."""


def squares_scene(
    frames: int, size: tuple[int, int] = (1280, 720), *, fps: float = 30, seed: int = 0
) -> Iterator[tuple[NDArray[np.uint8], Truth]]:
    """Frames (height, width, 3) RGB, each with its ground truth. The array is reused: copy it to keep a frame.

    Six squares, two per class, move on Lissajous curves, each within its own cell, so that they never overlap. Edges
    are antialiased, so that positions are exact to a fraction of a pixel.

    Args:
        size: (width, height).
        seed: the same seed gives the same frames.
    """
    random = np.random.default_rng(seed)
    width, height = size
    columns, rows = (3, 2) if width >= height else (2, 3)
    cell = np.array((width / columns, height / rows))
    sides = random.permutation(np.linspace(0.16, 0.62, 6)) * cell.min()
    centres = [((number % columns + 0.5) * cell[0], (number // columns + 0.5) * cell[1]) for number in range(6)]
    classes = random.permutation([0, 0, 1, 1, 2, 2])
    cycles = random.uniform(0.1, 0.28, (6, 2))
    phases = random.uniform(0, 1, (6, 2))
    backgrounds = _backgrounds(size, random)
    image = np.empty_like(backgrounds[0])
    for index in range(frames):
        np.copyto(image, backgrounds[index % len(backgrounds)])
        truth: Truth = []
        for number, side in enumerate(sides):
            swing = np.sin(2 * math.pi * (cycles[number] * index / fps + phases[number]))
            left, top = centres[number] + swing * (0.47 * cell - side / 2) - side / 2
            _shade(image, left + 0.05 * side, top + 0.08 * side, side)
            _blend(image, left, top, side, COLOURS[classes[number]])
            truth.append((int(classes[number]), float(left), float(top), float(left + side), float(top + side)))
        yield image, truth


def squares_clip(
    path: Path,
    *,
    frames: int = 90,
    size: tuple[int, int] = (1280, 720),
    fps: int | Fraction = 30,
    seed: int = 0,
    audio: bool = False,
    codec: str = "libx264",
    pix_fmt: str = "yuv420p",
) -> list[Truth]:
    """Write `squares_scene` as a video, tagged BT.709, and return its ground truth per frame.

    Args:
        size: (width, height); even if the pixel format subsamples chroma.
        audio: add a quiet AAC tone.
        codec, pix_fmt: FFmpeg names of the encoder and of its pixel format.
    """
    import av

    truths = []
    with av.open(str(path), "w") as container:
        options = {"preset": "ultrafast", "crf": "18"} if codec == "libx264" else {}
        stream: Any = container.add_stream(codec, rate=Fraction(fps), options=options)
        stream.width, stream.height = size
        stream.pix_fmt = pix_fmt
        stream.thread_count = 2
        rgb = av.VideoFormat(pix_fmt).is_rgb
        full = rgb or pix_fmt.startswith("yuvj")
        context = stream.codec_context
        context.color_primaries = context.color_trc = 1  # BT.709 in all three lists of H.273
        context.colorspace = 0 if rgb else 1
        context.color_range = 2 if full else 1
        tone: Any = container.add_stream("aac", rate=48_000, layout="mono") if audio else None
        for index, (image, truth) in enumerate(squares_scene(frames, size, fps=float(fps), seed=seed)):
            frame = av.VideoFrame.from_ndarray(image, format="rgb24").reformat(
                format=pix_fmt, dst_colorspace="ITU709", dst_color_range="JPEG" if full else "MPEG"
            )
            frame.pts, frame.time_base = index, 1 / Fraction(fps)
            container.mux(stream.encode(frame))
            truths.append(truth)
        container.mux(stream.encode())
        if tone is not None:
            for packet in _tone(tone, frames / float(fps)):
                container.mux(packet)
    return truths


def _backgrounds(size: tuple[int, int], random: np.random.Generator) -> list[NDArray[np.uint8]]:
    """Four images of one soft grey background with different grain."""
    width, height = size
    x, y = np.linspace(0, 1, width, dtype=np.float32), np.linspace(0, 1, height, dtype=np.float32)[:, None]
    grey = 148 - 62 * y
    for _ in range(6):
        across, along, phase = random.uniform(-5, 5, 3).astype(np.float32)
        grey = grey + 5 * np.sin(2 * math.pi * (across * x + along * y + phase))
    grey = grey + random.normal(0, 2, (height, width)).astype(np.float32)
    images = []
    for _ in range(4):
        grain = grey + random.normal(0, 1.2, (height, width)).astype(np.float32)
        images.append(np.repeat(grain.round().astype(np.uint8)[:, :, None], 3, axis=2))
    return images


def _coverage(start: float, side: float, softness: float, length: int) -> tuple[slice, NDArray[np.float32]]:
    """The pixels of an axis that [start, start + side) touches, and the coverage of each, 0..1."""
    first, last = max(0, math.floor(start - softness)), min(length, math.ceil(start + side + softness))
    centre = np.arange(first, last, dtype=np.float32) + 0.5
    inside = side / 2 - np.abs(centre - (start + side / 2))
    return slice(first, last), np.clip(inside / (1 + 2 * softness) + 0.5, 0, 1)


def _blend(image: NDArray[np.uint8], left: float, top: float, side: float, colour: NDArray[np.float32]) -> None:
    columns, across = _coverage(left, side, 0, image.shape[1])
    rows, along = _coverage(top, side, 0, image.shape[0])
    patch = image[rows, columns]
    cover = (along[:, None] * across)[:, :, None]
    patch[...] = (patch + (colour - patch) * cover + 0.5).astype(np.uint8)


def _shade(image: NDArray[np.uint8], left: float, top: float, side: float) -> None:
    """A soft shadow, which stays grey, so that the detector ignores it."""
    columns, across = _coverage(left, side, 0.08 * side, image.shape[1])
    rows, along = _coverage(top, side, 0.08 * side, image.shape[0])
    patch = image[rows, columns]
    patch[...] = (patch * (1 - 0.4 * along[:, None] * across)[:, :, None]).astype(np.uint8)


def _tone(stream: Any, seconds: float) -> Iterator[Any]:
    """Packets of a quiet 440 Hz tone."""
    import av

    samples = np.arange(round(seconds * stream.rate))
    wave = (0.05 * np.sin(2 * math.pi * 440 / stream.rate * samples)).astype(np.float32)
    for start in range(0, len(wave), 1024):
        frame = av.AudioFrame.from_ndarray(wave[None, start : start + 1024], format="fltp", layout="mono")
        frame.sample_rate, frame.pts, frame.time_base = stream.rate, start, Fraction(1, stream.rate)
        yield stream.encode(frame)
    yield stream.encode(None)
