"""The raw head of a YOLOv8: compiled filter against the reference, and the reference against decoded boxes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from framefuse.errors import UsageError
from framefuse.kernels import reference
from framefuse.kernels.boxes.call import detections

MAPS = np.array([[640, 384, 0, 12, 3, 3, 1920, 1080]], np.float32)


def heads(
    rng: np.random.Generator,
    grids: list[tuple[int, int]],
    nc: int = 80,
    bins: int = 16,
    batch: int = 1,
    share: float = 0.02,
) -> list[NDArray[np.float32]]:
    """Outputs of which about `share` of the anchors are likely to be above 0.25."""
    outputs = []
    for rows, columns in grids:
        outputs.append(rng.normal(0, 3, (batch, rows, columns, 4 * bins)).astype(np.float32))
        logits = rng.uniform(-12, -2, (batch, rows, columns, nc)).astype(np.float32)
        hot = rng.random(logits.shape[:3]) < share
        logits[hot, rng.integers(0, nc, hot.sum())] = rng.uniform(-2, 6, hot.sum())
        outputs.append(logits)
    return outputs


def bfloat16(outputs: list[NDArray[np.float32]]) -> list[NDArray[np.uint16]]:
    return [(output.view(np.uint32) >> 16).astype(np.uint16) for output in outputs]


def compare(outputs: list[Any], maps: NDArray[np.float32] = MAPS, **options: Any) -> Any:
    settings: dict[str, Any] = {"conf": 0.25, "iou": 0.7, "max_det": 300, **options}
    ours = detections(outputs, "yolov8_head", maps, **settings)
    expected = reference.detections(outputs, "yolov8_head", maps, **settings)
    np.testing.assert_array_equal(ours.counts, expected.counts)
    np.testing.assert_array_equal(ours.non_finite, expected.non_finite)
    for image, count in enumerate(expected.counts):
        np.testing.assert_array_equal(ours.classes[image, :count], expected.classes[image, :count])
        np.testing.assert_allclose(ours.scores[image, :count], expected.scores[image, :count], atol=2e-7)
        np.testing.assert_allclose(ours.boxes[image, :count], expected.boxes[image, :count], atol=2e-3)
    return ours


@pytest.mark.parametrize("kind", ["f32", "bf16"])
@pytest.mark.parametrize(
    ("grids", "nc", "bins"),
    [
        ([(48, 80), (24, 40), (12, 20)], 80, 16),
        ([(80, 80), (40, 40), (20, 20)], 80, 16),
        ([(1, 1)], 1, 1),
        ([(3, 11), (1, 31), (7, 5)], 3, 16),
        ([(33, 1), (1, 64)], 81, 7),
        ([(1, 4097)], 2, 16),
    ],
)
def test_filter_equals_the_reference(kind: str, grids: list[tuple[int, int]], nc: int, bins: int) -> None:
    outputs: list[Any] = heads(np.random.default_rng(nc), grids, nc, bins, share=0.1)
    if kind == "bf16":
        outputs = bfloat16(outputs)
    for conf in (0.25, 0.001, 0.9):
        found = compare(outputs, conf=conf)
    compare(outputs, conf=0.0, max_det=40, agnostic=True)
    compare(outputs, classes=[0, nc - 1])
    assert detections(outputs, "yolov8_head", MAPS, conf=1.0, iou=0.7, max_det=9).counts[0] == 0
    assert found.boxes.shape == (1, 300, 4)


@pytest.mark.parametrize("kind", ["f32", "bf16"])
def test_values_that_are_not_finite_are_counted_and_left_out(kind: str) -> None:
    rng = np.random.default_rng(5)
    outputs = heads(rng, [(12, 20), (5, 3)], 6)
    for value, at in ((np.nan, 3), (np.inf, 40), (-np.inf, 41), (-np.nan, 239)):
        outputs[1].reshape(240, 6)[at, rng.integers(6)] = value
    outputs[3][0, 4, 2, 5] = -np.inf
    outputs[1].reshape(240, 6)[100, 2] = 5  # above the threshold, so that its distances are looked at
    outputs[0].reshape(240, 64)[100, 63] = np.nan
    outputs[0].reshape(240, 64)[101, 63] = np.nan
    outputs[1].reshape(240, 6)[101] = -9
    found = compare(outputs if kind == "f32" else bfloat16(outputs))  # type: ignore[arg-type]
    assert found.non_finite[0] == 6


def test_every_image_of_a_batch() -> None:
    outputs = heads(np.random.default_rng(9), [(12, 20), (6, 10)], batch=3)
    found = compare(outputs, np.repeat(MAPS, 3, axis=0))
    assert found.counts.min() > 0
    compare(outputs, np.repeat(MAPS, 2, axis=0))  # the rest of the batch is padding


def test_scores_near_the_threshold() -> None:
    """The threshold is a logit that rounds: whichever side it falls on, the score decides."""
    outputs = heads(np.random.default_rng(2), [(8, 8)], 1, share=0)
    for conf in (0.25, 0.5, 0.001, 0.999):
        logit = np.float32(np.log(conf / (1 - conf)))
        steps = logit + np.arange(-32, 32, dtype=np.float32) * np.spacing(np.abs(logit) + np.float32(1e-3)) * 64
        outputs[1][:] = steps.reshape(1, 8, 8, 1)
        found = detections(outputs, "yolov8_head", MAPS, conf=conf, iou=1.0, max_det=64)
        kept = int(found.counts[0])
        assert 0 < kept < 64
        assert (found.scores[0, :kept] > np.float32(conf)).all()
        exact = 1 / (1 + np.exp(-steps.astype(np.float64)))
        assert (exact > conf + 2e-7).sum() <= kept <= (exact > conf - 2e-7).sum()


def test_same_boxes_as_the_decoded_head() -> None:
    """What a YOLOv8 puts out itself: sigmoids, and centres and sizes in pixels."""
    outputs = heads(np.random.default_rng(7), [(48, 80), (24, 40), (12, 20)])
    parts = []
    for distances, logits in zip(outputs[::2], outputs[1::2], strict=True):
        _, rows, columns, nc = logits.shape
        weights = np.exp(distances.reshape(rows * columns, 4, 16))
        left, top, right, bottom = ((weights * np.arange(16)).sum(2) / weights.sum(2)).T
        y, x = np.divmod(np.arange(rows * columns), columns)
        box = np.stack((x + 0.5 + (right - left) / 2, y + 0.5 + (bottom - top) / 2, left + right, top + bottom))
        parts.append(np.concatenate((box * (640 / columns), 1 / (1 + np.exp(-logits.reshape(-1, nc).T)))))
    decoded = np.concatenate(parts, axis=1)[None].astype(np.float32)
    pixels = MAPS.copy()
    pixels[:, :2] = 1
    settings: dict[str, Any] = {"conf": 0.25, "iou": 0.7, "max_det": 300}
    expected = detections([decoded], "yolov8", pixels, **settings)
    found = detections(outputs, "yolov8_head", MAPS, **settings)
    count = int(expected.counts[0])
    assert count == found.counts[0] > 20
    np.testing.assert_array_equal(found.classes[0, :count], expected.classes[0, :count])
    np.testing.assert_allclose(found.scores[0, :count], expected.scores[0, :count], atol=1e-6)
    np.testing.assert_allclose(found.boxes[0, :count], expected.boxes[0, :count], atol=1e-2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda o: o[:-1], "have shapes"),
        (lambda o: [], "have shapes"),
        (lambda o: [o[0][:, :2], *o[1:]], "have shapes"),
        (lambda o: [o[0][..., :63].copy(), o[1]], "outputs have shapes"),
        (lambda o: [o[0].astype(np.float64), o[1]], "are float64, float32"),
        (lambda o: [o[0][..., ::-1], *o[1:]], "contiguous"),
    ],
)
def test_wrong_outputs_are_refused(change: Any, message: str) -> None:
    outputs = heads(np.random.default_rng(1), [(4, 4), (2, 2)], 3)
    with pytest.raises(UsageError, match=message):
        detections(change(outputs), "yolov8_head", MAPS, conf=0.25, iou=0.7, max_det=9)
