"""Post-processing against plain oracles: a loop for NMS, OpenCV, and hand-made outputs of each layout."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from framefuse.errors import NonFiniteError, UsageError
from framefuse.kernels.boxes.call import nms
from framefuse.postprocess import postprocess
from framefuse.preprocess import Placement, Preprocess

SIZE = (640, 384)
PLAIN = Placement(SIZE, SIZE, (0, 0, *SIZE))
LETTERBOX = Preprocess(rectangular=True).place(1920, 1080)
SETTINGS: dict[str, Any] = {"conf": 0.25, "iou": 0.7, "max_det": 300}


def run(
    outputs: list[NDArray[Any]], layout: str, placement: Placement = PLAIN, **settings: Any
) -> list[tuple[Any, ...]]:
    """Detections of the first image as (class, score, box)."""
    found = postprocess(outputs, layout, [placement], **{**SETTINGS, **settings})
    count = int(found.counts[0])
    rows = zip(found.classes[0, :count], found.scores[0, :count], found.boxes[0, :count].tolist(), strict=True)
    return [(int(class_id), float(score), box) for class_id, score, box in rows]


def naive_nms(boxes: NDArray[np.float32], classes: NDArray[np.int32] | None, iou: float) -> list[int]:
    """One box after the other, by descending score; float32 arithmetic, the comparison in float64."""
    kept: list[int] = []
    for i, (x1, y1, x2, y2) in enumerate(boxes):
        rivals = boxes[[j for j in kept if classes is None or classes[i] == classes[j]]]
        width = np.maximum(0, np.minimum(x2, rivals[:, 2]) - np.maximum(x1, rivals[:, 0]))
        height = np.maximum(0, np.minimum(y2, rivals[:, 3]) - np.maximum(y1, rivals[:, 1]))
        areas = (rivals[:, 2] - rivals[:, 0]) * (rivals[:, 3] - rivals[:, 1])
        with np.errstate(all="ignore"):
            overlap = width * height / (areas + (x2 - x1) * (y2 - y1) - width * height)
        if not (overlap.astype(np.float64) > iou).any():
            kept.append(i)
    return kept


def random_boxes(rng: np.random.Generator, count: int, spread: float) -> NDArray[np.float32]:
    corner = rng.uniform(0, spread, (count, 2))
    return np.concatenate((corner, corner + rng.uniform(0, 60, (count, 2))), axis=1).astype(np.float32)


def yolov8(boxes: Any, scores: Any) -> NDArray[np.float32]:
    """(n, 4) cx cy w h and (n, nc) to the raw output (1, 4 + nc, n)."""
    return np.concatenate((boxes, scores), axis=1).T[None].astype(np.float32)


def test_nms_agrees_with_opencv() -> None:
    cv2 = pytest.importorskip("cv2")
    rng = np.random.default_rng(3)
    boxes = random_boxes(rng, 400, 150) + np.float32([0, 0, 1, 1])
    scores = np.sort(rng.permutation(400) / 400 + 1e-3)[::-1].astype(np.float32)
    wide = boxes.copy()
    wide[:, 2:] -= wide[:, :2]
    expected = cv2.dnn.NMSBoxes(wide.tolist(), scores.tolist(), 0.0, 0.5)
    assert nms(boxes, scores, iou=0.5).tolist() == np.asarray(expected).ravel().tolist()


def test_more_candidates_than_the_cap_keep_the_best() -> None:
    rng = np.random.default_rng(1)
    count = 40_000
    boxes = np.stack((np.arange(count) % 200 * 3, np.arange(count) // 200, np.full(count, 2), np.full(count, 0.5)), 1)
    scores = rng.uniform(0.3, 0.9, (count, 1))
    scores[-1] = 0.95
    found = run([yolov8(boxes, scores)], "yolov8", max_det=3)
    assert [round(score, 6) for _, score, _ in found] == np.sort(scores[:, 0])[::-1][:3].round(6).tolist()


def test_random_yolov8_outputs_against_the_loop() -> None:
    rng = np.random.default_rng(4)
    for nc in (1, 3, 80):
        boxes = np.concatenate((rng.uniform(0, 300, (600, 2)), rng.uniform(5, 90, (600, 2))), 1).astype(np.float32)
        scores = rng.integers(0, 20, (600, nc)).astype(np.float32) / 20 * rng.integers(0, 2, (600, 1))  # many ties
        best, classes = scores.max(1), scores.argmax(1)
        order = sorted(np.flatnonzero(best > np.float32(0.4)), key=lambda i: (-best[i], i))
        half = boxes[:, 2:] / 2
        corners = np.concatenate((boxes[:, :2] - half, boxes[:, :2] + half), 1)[order]
        for agnostic in (False, True):
            kept = naive_nms(corners, None if agnostic else classes[order].astype(np.int32), 0.5)[:50]
            expected = [(int(classes[order][k]), float(best[order][k])) for k in kept]
            found = run([yolov8(boxes, scores)], "yolov8", conf=0.4, iou=0.5, max_det=50, agnostic=agnostic)
            assert [row[:2] for row in found] == expected
            wanted = np.clip(corners[kept], 0, np.array(SIZE * 2))
            assert np.allclose([row[2] for row in found], wanted, atol=1e-4)


def test_confidence_must_be_exceeded() -> None:
    output = yolov8([[50, 50, 20, 20], [150, 50, 20, 20]], [[0.25], [0.2500001]])
    assert len(run([output], "yolov8")) == 1


def test_lowest_class_wins_a_tie_and_classes_filters_before_max_det() -> None:
    output = yolov8([[50, 50, 20, 20], [150, 50, 20, 20]], [[0.1, 0.9, 0.9], [0.5, 0.1, 0.1]])
    assert [row[0] for row in run([output], "yolov8")] == [1, 0]
    assert [row[0] for row in run([output], "yolov8", classes=[0], max_det=1)] == [0]
    assert run([output], "yolov8", classes=[2]) == []
    assert run([output], "yolov8", classes=[]) == []


def test_boxes_land_in_source_pixels_and_are_clipped() -> None:
    output = yolov8([[320, 192, 100, 90], [0, 0, 60, 60]], [[0.9], [0.8]])
    (first, second) = run([output], "yolov8", LETTERBOX)
    assert np.allclose(first[2], [810, 405, 1110, 675])
    assert np.allclose(second[2], [0, 0, 90, 54])


def test_padded_rows_of_a_batch_are_ignored_even_when_they_are_nan() -> None:
    outputs = np.concatenate((yolov8([[50, 50, 20, 20]], [[0.9]]), yolov8([[90, 90, 20, 20]], [[0.8]])))
    outputs = np.concatenate((outputs, np.full((2, 5, 1), np.nan, np.float32)))
    found = postprocess([outputs], "yolov8", [PLAIN, LETTERBOX], **SETTINGS)
    assert found.boxes.shape == (2, 300, 4) and found.counts.tolist() == [1, 1]
    assert found.counts.dtype == found.classes.dtype == np.int32
    assert np.allclose(found.boxes[1, 0], [240, 204, 300, 264])


@pytest.mark.parametrize("where", [(0, 0, 7), (0, 3, 0), (0, 4, 11), (0, 6, 99)])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_non_finite_outputs_are_an_error(where: tuple[int, ...], value: float) -> None:
    output = np.zeros((2, 7, 100), np.float32)
    output[1][where[1:]] = value
    with pytest.raises(NonFiniteError, match="in 1 of its anchors or queries for frame 1 of a batch of 2"):
        postprocess([output], "yolov8", [PLAIN, PLAIN], **SETTINGS)
    assert postprocess([output[:1]], "yolov8", [PLAIN], **SETTINGS).counts.tolist() == [0]


def test_huge_finite_outputs_are_no_error() -> None:
    output = np.full((1, 5, 100), 3e38, np.float32)
    output[:, 4] = 0
    assert run([output], "yolov8") == []


def test_float16_outputs() -> None:
    output = yolov8([[320, 192, 100, 90]] * 5, [[0.9]] * 5).astype(np.float16)
    assert len(run([output], "yolov8")) == 1


def test_yolov5_multiplies_objectness_and_class() -> None:
    rows = [[50, 50, 20, 20, 0.9, 0.5, 0.8], [150, 50, 20, 20, 0.2, 1, 1], [250, 50, 20, 20, 0.5, 0.4, 0.4]]
    ((class_id, score, box),) = run([np.array([rows], np.float32)], "yolov5")
    assert class_id == 1 and score == pytest.approx(0.72) and box == [40, 40, 60, 60]


def test_end2end_is_sorted_and_not_suppressed() -> None:
    rows = [[10, 10, 50, 50, 0.5, 2], [10, 10, 50, 50, 0.9, 1], [0, 0, 0, 0, 0, 0]]
    found = run([np.array([rows], np.float32)], "end2end")
    assert [(row[0], row[2]) for row in found] == [(1, [10, 10, 50, 50]), (2, [10, 10, 50, 50])]
    assert len(run([np.array([rows], np.float32)], "end2end", max_det=1)) == 1


def test_detr_logits_let_every_query_and_class_compete() -> None:
    boxes = np.array([[[0.5, 0.5, 0.5, 0.5], [0.25, 0.25, 0.1, 0.1]]], np.float32)
    logits = np.array([[[2.0, -200.0, 1.0], [-1e4, 3.0, -5.0]]], np.float32)
    found = run([boxes, logits], "detr")
    assert [row[0] for row in found] == [1, 0, 2]
    assert [row[1] for row in found] == pytest.approx([1 / (1 + np.exp(-x)) for x in (3, 2, 1)], rel=1e-6)
    assert np.allclose(found[1][2], [160, 96, 480, 288])
    assert [row[0] for row in run([boxes, logits], "detr", max_det=2)] == [1, 0]


def test_detr_softmax_drops_the_last_class() -> None:
    boxes = np.array([[[0.5, 0.5, 0.5, 0.5], [0.25, 0.25, 0.1, 0.1]]], np.float32)
    logits = np.log(np.array([[[0.1, 0.6, 0.3], [0.04, 0.06, 0.9]]], np.float32))
    ((class_id, score, _),) = run([boxes, logits], "detr", activation="softmax")
    assert class_id == 1 and score == pytest.approx(0.6)


def test_detr_in_one_output_and_with_labels() -> None:
    row = np.array([[[0.5, 0.5, 0.5, 0.5, 0.3, 0.8]]], np.float32)
    ((class_id, score, box),) = run([row], "detr")
    assert (class_id, box) == (1, [160, 96, 480, 288]) and score == pytest.approx(0.8)
    labels, boxes, scores = np.array([[7, 3]]), np.array([[[0.1, 0.1, 0.2, 0.2], [0, 0, 1, 1]]]), np.array([[0.4, 0.6]])
    found = run([labels, boxes, scores], "detr")
    assert [row[0] for row in found] == [3, 7] and found[0][2] == [0, 0, 640, 384]
    found = run([labels, boxes * 100, scores], "detr", box_units="pixels")
    assert np.allclose(found[1][2], [10, 10, 20, 20])


def test_unknown_layout() -> None:
    with pytest.raises(UsageError, match="yolov9000"):
        run([np.zeros((1, 5, 1), np.float32)], "yolov9000")
