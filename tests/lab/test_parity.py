"""Every pixel format gives the boxes of the reference path, and they agree with OpenCV's decode and resize."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from framefuse import Pipeline
from framefuse.engines import EngineOptions, open_engine
from framefuse.frame import PIXEL_FORMATS, Frame
from framefuse.kernels import reference
from framefuse.models import find_model
from framefuse.models.card import read_card
from framefuse.postprocess import postprocess
from framefuse.prediction import Predictions
from framefuse.preprocess import Placement, Preprocess
from framefuse.sources import open_source
from training.squares_clip import squares_clip

# FFmpeg's pixel format, an encoder and a container that keep it as it is.
FORMATS = [
    ("yuv420p", "libx264", "mp4"),
    ("yuvj420p", "libx264", "mp4"),
    ("yuv422p", "libx264", "mp4"),
    ("yuv444p", "libx264", "mp4"),
    ("yuv420p10le", "libx264", "mp4"),
    ("yuv422p10le", "libx264", "mkv"),
    ("yuv444p10le", "libx264", "mkv"),
    ("yuv420p12le", "libx265", "mp4"),
    ("nv12", "rawvideo", "nut"),
    ("rgb24", "libx264rgb", "mkv"),  # decoded as gbrp
    ("rgb24", "rawvideo", "nut"),
    ("gray", "libx264", "mp4"),
]
FAST = ("yuv420p", "yuv444p10le", "nv12", "gray")
"""Pixel formats in the fast suite: planar, of 10 bits, half interleaved, and without colour."""
FRAMES = 4
SIZE = (1366, 768)


class ReferencePath:
    """The plainest way from a frame to boxes: the float64 reference kernel, ONNX Runtime, one frame at a time."""

    def __init__(self) -> None:
        self.card = read_card(find_model("squares"))
        self.spec = Preprocess(rectangular=True, stride=self.card.preprocess.stride)
        self.engine = open_engine("onnxruntime", self.card.path, EngineOptions())

    def pixels(self, frame: Frame) -> tuple[NDArray[np.float32], Placement]:
        placement = self.spec.place(frame.width, frame.height)
        width, height = placement.size
        out = np.empty((3, height, width), np.float32)
        spec = self.spec
        reference.preprocess(
            frame,
            out,
            content=placement.content,
            interpolation=spec.interpolation,
            pad_value=spec.pad_value,
            mean=spec.mean,
            std=spec.std,
            channel_order=spec.channel_order,
        )
        return out, placement

    def boxes(self, pixels: NDArray[np.float32], placement: Placement) -> Predictions:
        pool = self.engine.request_pool(1, *pixels.shape[1:], 1)
        slot = pool.acquire()
        assert slot is not None
        slot.input[0] = pixels
        pool.submit(slot)
        pool.wait(slot)
        return postprocess(slot.outputs, self.card.layout, [placement], conf=0.25, iou=0.7, max_det=300)


@pytest.fixture(scope="module")
def path() -> ReferencePath:
    return ReferencePath()


def overlap(one: NDArray[np.float32], other: NDArray[np.float32]) -> NDArray[np.float32]:
    """IoU of boxes pair by pair."""
    low, high = np.maximum(one[:, :2], other[:, :2]), np.minimum(one[:, 2:], other[:, 2:])
    shared = np.prod(np.clip(high - low, 0, None), axis=1)
    areas = np.prod(one[:, 2:] - one[:, :2], axis=1) + np.prod(other[:, 2:] - other[:, :2], axis=1)
    return shared / (areas - shared)


def in_order(boxes: NDArray[np.float32], classes: NDArray[np.int64]) -> NDArray[np.float32]:
    return boxes[np.lexsort((boxes[:, 1], boxes[:, 0], classes))]


@pytest.mark.parametrize(
    ("pix_fmt", "codec", "container"),
    [pytest.param(*each, marks=() if each[0] in FAST else pytest.mark.slow) for each in FORMATS],
)
def test_every_pixel_format_gives_the_boxes_of_the_reference_path(
    pix_fmt: str, codec: str, container: str, path: ReferencePath, tmp_path: Path
) -> None:
    clip = tmp_path / f"clip.{container}"
    squares_clip(clip, frames=FRAMES, size=SIZE, codec=codec, pix_fmt=pix_fmt, seed=3)

    worst = 0.0
    expected = []
    for frame in open_source(clip):
        pixels, placement = path.pixels(frame)
        ours = np.empty_like(pixels)
        path.spec(frame, ours, placement)
        worst = max(worst, float(np.abs(ours - pixels).max()) * 255)
        expected.append(path.boxes(pixels, placement))
    assert worst < 1.0

    results = list(Pipeline(clip, "squares", precision="fp32"))
    assert len(results) == len(expected) == FRAMES
    for result, predictions in zip(results, expected, strict=True):
        count = int(predictions.counts[0])
        assert count == len(result.detections) == (0 if pix_fmt == "gray" else 6)
        if count:
            ours_sorted = in_order(result.detections.xyxy, result.detections.class_id)
            theirs = in_order(predictions.boxes[0, :count], predictions.classes[0, :count])
            assert overlap(ours_sorted, theirs).min() >= 0.99


def test_p010_is_yuv420p10_in_another_arrangement(path: ReferencePath, tmp_path: Path) -> None:
    """No file format carries P010; decoders on GPUs give it. Its model input equals that of the same planar image."""
    clip = tmp_path / "clip.mp4"
    squares_clip(clip, frames=1, size=SIZE, pix_fmt="yuv420p10le")
    (frame,) = open_source(clip)
    y, u, v = frame.planes
    chroma = np.stack((u, v), axis=2) << 6
    p010 = replace(frame, planes=(y << 6, chroma), format=PIXEL_FORMATS["p010"])
    placement = path.spec.place(*SIZE)
    planar, semiplanar = (np.empty((3, *placement.size[::-1]), np.float32) for _ in range(2))
    path.spec(frame, planar, placement)
    path.spec(p010, semiplanar, placement)
    np.testing.assert_allclose(planar, semiplanar, atol=1e-6)


@pytest.mark.parametrize(
    "size", [*(pytest.param(size, marks=pytest.mark.slow) for size in [(1920, 1080), (1918, 1078)]), (1366, 768)]
)
def test_boxes_agree_with_opencv_decode_and_resize(size: tuple[int, int], path: ReferencePath, tmp_path: Path) -> None:
    """OpenCV converts to BGR at full size first and rounds to 8 bits twice: pixels differ a little, boxes must not."""
    cv2 = pytest.importorskip("cv2")
    clip = tmp_path / "clip.mp4"
    truth = squares_clip(clip, frames=FRAMES, size=size, seed=3)
    capture = cv2.VideoCapture(str(clip))
    for frame, squares in zip(open_source(clip), truth, strict=True):
        ours, placement = path.pixels(frame)
        left, top, width, height = placement.content
        _, image = capture.read()
        resized = cv2.resize(image, (width, height), interpolation=cv2.INTER_LINEAR)
        theirs = np.full_like(ours, 114 / 255)
        theirs[:, top : top + height, left : left + width] = resized[..., ::-1].transpose(2, 0, 1) / 255
        assert np.abs(ours - theirs).mean() * 255 < 1.5
        one, other = path.boxes(ours, placement), path.boxes(theirs, placement)
        count = len(squares)
        assert one.counts[0] == other.counts[0] == count
        a = in_order(one.boxes[0, :count], one.classes[0, :count])
        b = in_order(other.boxes[0, :count], other.classes[0, :count])
        assert overlap(a, b).min() > 0.95
    capture.release()
