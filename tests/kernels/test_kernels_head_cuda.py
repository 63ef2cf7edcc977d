"""The raw head of a YOLOv8 on CUDA, in views of one list of anchors, against the reference."""

from __future__ import annotations

import shutil
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from cuda_fibres import Fibres
from cuda_on_cpu import install, on_device
from framefuse.cuda import device
from framefuse.errors import CapabilityError, UsageError
from framefuse.kernels import arrays, reference
from framefuse.kernels.boxes import call as boxes
from framefuse.kernels.boxes import cuda as boxes_cuda
from framefuse.kernels.boxes import head_cuda

try:
    cp = device.cupy()
except CapabilityError as error:
    cp, missing = None, error.message
else:
    missing = ""

Levels = list[tuple[int, int]]
MAPS = np.array([[640, 384, 0, 12, 3, 3, 1920, 1080], [640, 384, 0, 0, 1, 1, 640, 384]], np.float32)
GRIDS: list[tuple[Levels, int, int]] = [
    ([(12, 20), (6, 10), (3, 5)], 80, 16),
    ([(3, 11), (1, 31), (7, 5)], 3, 16),
    ([(1, 1)], 1, 1),
    ([(9, 4)], 81, 40),
]


def logits(levels: Levels, classes: int, bins: int, share: float = 0.1, seed: int = 0) -> NDArray[np.float16]:
    """(2, anchors, 4 * bins + 8 + classes): distances, a gap, classes; about `share` of the anchors exceed 0.25."""
    rng = np.random.default_rng(seed)
    anchors = sum(rows * columns for rows, columns in levels)
    values = rng.normal(0, 3, (2, anchors, 4 * bins + 8 + classes))
    values[..., 4 * bins + 8 :] = rng.uniform(-12, -2, (2, anchors, classes))
    hot = rng.random((2, anchors)) < share
    values[hot, 4 * bins + 8 + rng.integers(0, classes, hot.sum())] = rng.uniform(-2, 6, hot.sum())
    return values.astype(np.float16)


def views(buffer: Any, levels: Levels, bins: int) -> list[Any]:
    found, start = [], 0
    for rows, columns in levels:
        part = buffer[:, start : start + rows * columns].reshape(len(buffer), rows, columns, -1)
        found += [part[..., : 4 * bins], part[..., 4 * bins + 8 :]]
        start += rows * columns
    return found


def compare(found: Any, outputs: list[Any], options: dict[str, Any]) -> None:
    outputs = [np.asarray(output, np.float32) for output in outputs]
    expected = reference.detections(outputs, "yolov8_head", MAPS, **options)
    found = [value.get() if hasattr(value, "get") else np.asarray(value) for value in found]
    np.testing.assert_array_equal(found[3], expected.counts)
    np.testing.assert_array_equal(found[4], expected.non_finite)
    for image, count in enumerate(expected.counts):
        np.testing.assert_array_equal(found[2][image, :count], expected.classes[image, :count])
        np.testing.assert_allclose(found[1][image, :count], expected.scores[image, :count], atol=1e-6)
        np.testing.assert_allclose(found[0][image, :count], expected.boxes[image, :count], atol=5e-3)


OPTIONS: list[dict[str, Any]] = [
    {"conf": 0.25, "iou": 0.7, "max_det": 300},
    {"conf": 0.001, "iou": 0.5, "max_det": 40},
    {"conf": 0.0, "iou": 0.5, "max_det": 20, "agnostic": True},
    {"conf": 0.5, "iou": 0.7, "max_det": 300, "classes": [0, 2]},
    {"conf": 1.0, "iou": 0.7, "max_det": 9},
]


@pytest.fixture
def fibres(monkeypatch: pytest.MonkeyPatch) -> None:
    if shutil.which("g++") is None:
        pytest.skip("g++ stands in for the GPU")
    install(monkeypatch, Fibres)
    monkeypatch.setattr(boxes_cuda, "BLOCKS", 16)
    arrays._device_table.cache_clear()


@pytest.mark.parametrize(("levels", "classes", "bins"), GRIDS)
def test_source_on_the_cpu(fibres: None, levels: Levels, classes: int, bins: int) -> None:
    buffer = logits(levels, classes, bins)
    outputs = views(buffer, levels, bins)
    for options in OPTIONS:
        found = boxes.detections(views(on_device(buffer), levels, bins), "yolov8_head", MAPS, **options)
        compare(found, outputs, options)


def test_values_that_are_not_finite_are_counted(fibres: None) -> None:
    levels, classes, bins = GRIDS[0]
    buffer = logits(levels, classes, bins)
    buffer[0, 7, 4 * bins + 8 + 3] = np.nan
    buffer[1, 9, 4 * bins + 8 + 1] = 5  # a candidate, whose distance is infinite
    buffer[1, 9, 4] = np.inf
    outputs = views(on_device(buffer), levels, bins)
    found = boxes.detections(outputs, "yolov8_head", MAPS, conf=0.25, iou=0.7, max_det=300)
    assert np.asarray(found.non_finite).tolist() == [1, 1]


def test_outputs_of_another_kind(fibres: None) -> None:
    levels, classes, bins = GRIDS[0]
    good = views(on_device(logits(levels, classes, bins)), levels, bins)
    for outputs, message in (
        (good[:3], "have shapes"),
        ([good[1], good[0], *good[2:]], "have shapes"),
        ([on_device(np.zeros(view.shape, np.float32)) for view in good], "are float32"),
        ([good[0][:, ::2], good[1][:, ::2]], "has strides"),
        ([good[0][..., ::-1], good[1]], "has strides"),
    ):
        with pytest.raises(UsageError, match=message):
            head_cuda.Head.of(outputs)


def test_the_threshold_of_logits_is_never_too_high() -> None:
    for conf in (1e-6, 0.001, 0.25, 0.5, 0.7, 0.999, 0.999999):
        logit = head_cuda.logit_below(conf)
        assert 1 / (1 + np.exp(-np.float64(logit))) < np.float32(conf)
        assert 1 / (1 + np.exp(-np.float64(logit))) > np.float32(conf) * 0.98 - 1e-7
    assert head_cuda.logit_below(0) < -1e38 and head_cuda.logit_below(1) > 1e38


@pytest.mark.gpu
@pytest.mark.skipif(cp is None, reason=missing)
@pytest.mark.parametrize(("levels", "classes", "bins"), [*GRIDS, ([(80, 80), (40, 40), (20, 20)], 80, 16)])
def test_on_a_gpu(levels: Levels, classes: int, bins: int) -> None:
    buffer = logits(levels, classes, bins)
    for options in OPTIONS:
        found = boxes.detections(views(cp.asarray(buffer), levels, bins), "yolov8_head", MAPS, **options)
        compare(found, views(buffer, levels, bins), options)
