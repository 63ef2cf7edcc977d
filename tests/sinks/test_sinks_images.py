"""The sink of images: what it writes is read back by Pillow."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from framefuse.frame import PIXEL_FORMATS, Frame
from framefuse.sinks import open_sink
from framefuse.sinks.draw import class_colour
from framefuse.sinks.images import FrameConverter, upright
from preprocess_frames import random_frame
from sink_frames import NONE, context, frame, result, run


@pytest.mark.parametrize("name", ["rgb24", "bgr24", "bgra", "gray", "gray16", "yuv420p", "yuv444p10", "rgb48"])
def test_images_are_annotated_one_by_one(tmp_path: Path, name: str) -> None:
    pixels = PIXEL_FORMATS[name]
    rgb = pixels.layout == "packed"
    one = frame(name=name, matrix="rgb" if rgb else "bt601", full_range=True)
    sink = open_sink("images")
    sink.open(context(tmp_path, kind="images"))
    for source in ("a/photo.png", "b/photo.jpg", "c/photo.png"):
        named = Frame(one.planes, pixels, source_id=source, matrix=one.matrix, full_range=True)
        sink.write(result(named), named)
    sink.close()
    assert sorted(os.listdir(tmp_path)) == ["photo.png", "photo_2.jpg", "photo_3.png"]
    with Image.open(tmp_path / "photo.png") as image:
        image.load()
        found = np.asarray(image).astype(int)
    assert found.shape == (64, 96, 3)
    assert np.abs(found[49, 20:50] - class_colour(1)).max() == 0
    assert np.abs(found[40, 30:50] - 100).max() <= 2
    with Image.open(tmp_path / "photo_2.jpg") as image:
        assert image.format == "JPEG"
        assert np.abs(np.asarray(image).astype(int)[49, 20:50] - class_colour(1)).max() < 24


def test_images_are_upright(tmp_path: Path) -> None:
    one = frame(rotation=90)
    one.planes[0][-16:, :16] = 220
    sink = run(open_sink("images"), context(tmp_path), [one], NONE)
    assert sink.paths == [tmp_path]
    with Image.open(tmp_path / "clip_0.png") as image:
        found = np.asarray(image)
    assert found.shape == (64, 96, 3) and found[:14, :14].min() > 200 and found[:, 20:].max() < 120


@pytest.mark.parametrize(
    "name", sorted(PIXEL_FORMATS.keys() - {f"yuv440p{bits}" for bits in (9, 14, 16)})
)  # not FFmpeg's
def test_the_luma_of_a_frame_is_that_of_its_conversion(name: str) -> None:
    """Where it has one, nothing is converted; swscale rounds and dithers more bits to the nearest level."""
    facts: dict[str, Any] = {"matrix": "rgb"} if PIXEL_FORMATS[name].layout == "packed" or "gbr" in name else {}
    one, converter = random_frame(name, 64, 48, rotation=90, **facts), FrameConverter()
    found, expected = converter.luma(one), upright(converter.yuv420p(one)[0][0], 90)
    assert found.dtype == np.uint8 and found.shape == expected.shape == (64, 48)
    assert np.abs(found.astype(int) - expected).max() <= (1 if PIXEL_FORMATS[name].bits > 8 else 0)
