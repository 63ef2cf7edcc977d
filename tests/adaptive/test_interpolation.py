"""Objects between two frames that were inferred, and how far two opinions about a frame differ."""

from __future__ import annotations

import numpy as np
import pytest

from framefuse.adaptive import Bridge, disagreement
from framefuse.prediction import Detections

NAMES = {0: "car", 1: "person"}


def detections(*rows: tuple[float, ...]) -> Detections:
    """Rows of x1, y1, x2, y2, confidence, class."""
    table = np.array(sorted(rows, key=lambda row: -row[4]), np.float32).reshape(-1, 6)
    return Detections(table[:, :4], table[:, 4], table[:, 5].astype(np.int64), NAMES)


NOTHING = detections()


def test_objects_move_along_straight_lines() -> None:
    first = detections((0, 0, 40, 40, 0.9, 0), (200, 100, 220, 160, 0.5, 1))
    last = detections((16, 8, 56, 48, 0.7, 0), (200, 100, 228, 160, 0.6, 1))
    middle = Bridge(first, last, 4).at(1, 0.25)
    assert middle.xyxy.tolist() == [[4, 2, 44, 42], [200, 100, 222, 160]]
    assert middle.confidence == pytest.approx([0.85, 0.525])
    assert middle.class_id.tolist() == [0, 1]
    assert middle.names == NAMES


def test_an_object_that_one_end_has_fades_with_the_distance_from_it() -> None:
    bridge = Bridge(detections((0, 0, 40, 40, 0.8, 0)), NOTHING, 4)
    assert [bridge.at(step, 0.25).confidence.tolist() for step in (1, 2, 3)] == [
        pytest.approx([0.6]),
        pytest.approx([0.4]),
        [],
    ]
    back = Bridge(NOTHING, detections((0, 0, 40, 40, 0.8, 0)), 4)
    assert [len(back.at(step, 0.25)) for step in (1, 2, 3)] == [0, 1, 1]


def test_no_object_becomes_one_of_another_class() -> None:
    between = Bridge(detections((0, 0, 40, 40, 0.8, 0)), detections((0, 0, 40, 40, 0.8, 1)), 2).at(1, 0.1)
    assert sorted(between.class_id.tolist()) == [0, 1]
    assert between.confidence == pytest.approx([0.4, 0.4])


def test_fast_objects_are_followed_and_distant_ones_are_not() -> None:
    def common(shift: float) -> int:
        ends = detections((0, 0, 30, 30, 0.8, 0)), detections((shift, 0, 30 + shift, 30, 0.8, 0))
        return len(Bridge(*ends, 2).at(1, 0.5))

    assert common(35) == 1
    assert common(300) == 0


@pytest.mark.parametrize("seed", range(5))
def test_any_boxes_are_answered_in_order_and_within_bounds(seed: int) -> None:
    rng = np.random.default_rng(seed)

    def some() -> Detections:
        corners = rng.uniform(0, 200, (int(rng.integers(0, 40)), 2))
        boxes = np.concatenate((corners, corners + rng.uniform(0, 60, corners.shape)), 1)
        scores = np.sort(rng.uniform(0.01, 1, len(boxes)))[::-1]
        return Detections(boxes.astype(np.float32), scores.astype(np.float32), rng.integers(0, 2, len(boxes)), NAMES)

    first, last = some(), some()
    bridge = Bridge(first, last, 5)
    assert np.isfinite(bridge.signs).all()
    assert (bridge.signs >= 0).all()
    for step in range(1, 5):
        found = bridge.at(step, 0.05)
        assert (np.diff(found.confidence) <= 0).all()
        assert (found.confidence > 0.05).all()
        assert (found.xyxy >= 0).all()
        assert (found.xyxy <= 260).all()
        assert (found.xyxy[:, 2:] >= found.xyxy[:, :2]).all()
        assert len(found) <= len(first) + len(last)
    assert disagreement(first, first) == pytest.approx(0, abs=1e-4)
    assert 0 <= disagreement(first, last) <= first.confidence.sum() + last.confidence.sum() / 2 + 1e-4


def test_signs_of_change() -> None:
    calm = detections((0, 0, 40, 40, 0.9, 0))
    still = Bridge(calm, calm, 4).signs
    moving = Bridge(calm, detections((20, 0, 60, 40, 0.9, 0)), 4).signs
    appearing = Bridge(calm, detections((0, 0, 40, 40, 0.9, 0), (100, 0, 140, 40, 0.9, 0)), 4).signs
    assert still[1:4].tolist() == [0, 0, 0]
    assert moving[2] > 0 == moving[1]
    assert appearing[1] > 0 == appearing[2]


def test_disagreement_counts_objects() -> None:
    one = detections((0, 0, 40, 40, 0.8, 0))
    assert disagreement(one, one) == 0
    assert disagreement(one, NOTHING) == pytest.approx(0.8)
    assert disagreement(NOTHING, one) == pytest.approx(0.4)
    assert disagreement(NOTHING, NOTHING) == 0
    assert disagreement(one, detections((0, 0, 40, 40, 0.8, 1))) == pytest.approx(1.2), "missed, and one on nothing"
    shifted = detections((8, 0, 48, 40, 0.8, 0))  # IoU 2/3
    assert disagreement(one, shifted) == pytest.approx(0.8 * (1 - (2 / 3 - 0.45) / 0.5), abs=1e-3)
