"""Frames as arrays that users know."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fake_gpu import Gpu
from framefuse import open_source
from framefuse.frame import PIXEL_FORMATS, Frame
from media import video


def colours(height: int = 6, width: int = 10) -> Any:
    return np.random.default_rng(3).integers(0, 256, (height, width, 3), np.uint8)


def test_an_array_comes_back() -> None:
    image = colours()
    frame = Frame.from_array(image)
    assert np.array_equal(frame.to_bgr(), image) and np.array_equal(frame.to_rgb(), image[..., ::-1])
    found = frame.to_bgr()
    found[:] = 0
    assert np.array_equal(frame.to_bgr(), image), "it is a copy"
    assert np.array_equal(Frame.from_array(image, channels="rgb").to_rgb(), image)
    grey = image[..., 0].copy()
    assert np.array_equal(Frame.from_array(grey).to_rgb(), np.repeat(grey[..., None], 3, axis=2))


@pytest.mark.parametrize("rotation", [0, 90, 180, 270])
def test_rotated_as_displayed(rotation: int) -> None:
    frame = replace(Frame.from_array(colours()), rotation=rotation)
    assert frame.to_rgb().shape == (frame.height, frame.width, 3)
    assert np.array_equal(frame.to_bgr(), np.rot90(colours(), -rotation // 90))


@pytest.mark.parametrize(
    ("matrix", "full_range", "yuv", "rgb"),
    [
        ("bt601", False, (81, 90, 240), (255, 0, 0)),
        ("bt709", False, (63, 102, 240), (255, 0, 0)),
        ("bt709", False, (16, 128, 128), (0, 0, 0)),
        ("bt709", False, (235, 128, 128), (255, 255, 255)),
        ("bt601", True, (76, 85, 255), (254, 0, 0)),
    ],
)
def test_matrix_and_range(matrix: Any, full_range: bool, yuv: tuple[int, int, int], rgb: tuple[int, int, int]) -> None:
    planes = tuple(np.full(shape, value, np.uint8) for shape, value in zip(((4, 6), (2, 3), (2, 3)), yuv, strict=True))
    frame = Frame(planes, PIXEL_FORMATS["yuv420p"], matrix=matrix, full_range=full_range)
    assert np.abs(frame.to_rgb().astype(int) - rgb).max() <= 2
    assert np.array_equal(frame.to_bgr(), frame.to_rgb()[..., ::-1])


def test_frames_of_a_video(tmp_path: Path) -> None:
    with closing(open_source(video(tmp_path / "clip.mp4", frames=2))) as source:
        for frame in source:
            assert frame.to_rgb().shape == (frame.height, frame.width, 3)
            assert frame.to_rgb().std() > 0


def test_on_the_gpu_it_is_copied_to_the_host(gpu: Gpu) -> None:
    frame = Frame.from_array(colours())
    on_gpu = frame.replace_unchecked(planes=tuple(gpu.cupy().asarray(plane) for plane in frame.planes))
    assert np.array_equal(on_gpu.to_bgr(), colours()) and isinstance(on_gpu.to_bgr(), np.ndarray)
