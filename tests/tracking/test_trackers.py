"""Trackers: one id for each object, whatever the times of the frames, and nothing else about a detection changes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from framefuse.errors import UsageError
from framefuse.kernels.masks.instances import mask_runs
from framefuse.prediction import Detections
from framefuse.tracking import NO_TRACK, TRACKERS, Tracker, TrackerOptions, open_tracker

Box = Sequence[float]
BOTH = pytest.mark.parametrize("name", TRACKERS)


def detections(*rows: Box, runs: Any = None) -> Detections:
    """From rows of x1, y1, x2, y2, and confidence 0.9 and class 0 unless they follow."""
    full = [[*row, 0.9, 0][:6] if len(row) == 4 else [*row, 0][:6] for row in rows]
    table = np.array(full, np.float32).reshape(len(rows), 6)
    return Detections(table[:, :4], table[:, 4], table[:, 5].astype(np.int64), {0: "car"}, runs)


def ids(tracker: Tracker, seconds: float | None, *rows: Box) -> list[int]:
    found = tracker.update(detections(*rows), seconds).tracker_id
    assert found is not None
    numbers: list[int] = found.tolist()
    return numbers


def moving(seconds: float, speed: float = 100, start: float = 100, y: float = 100, size: float = 60) -> list[float]:
    """A box that moves to the right by `speed` pixels a second."""
    x = start + speed * seconds
    return [x, y, x + size, y + size]


def crowd(count: int, frames: int, seed: int = 0) -> Iterator[Detections]:
    """Objects in straight lines, jittered, a tenth of them missing in each frame."""
    rng = np.random.default_rng(seed)
    place, speed = rng.uniform(0, (1920, 1080), (count, 2)), rng.normal(0, 4, (count, 2))
    size = rng.uniform(30, 90, (count, 2))
    for frame in range(frames):
        shown = rng.random(count) > 0.1
        centre = (place + frame * speed + rng.normal(0, 1, (count, 2)))[shown]
        boxes = np.concatenate((centre - size[shown] / 2, centre + size[shown] / 2), axis=1).astype(np.float32)
        scores = np.sort(rng.uniform(0.2, 1, len(boxes)))[::-1].astype(np.float32)
        yield Detections(boxes, scores, rng.integers(0, 2, len(boxes)), {})


@BOTH
@pytest.mark.parametrize(
    "times", [np.arange(60) / 30, np.arange(20) / 10, np.array([0, 1, 2, 9, 10, 12, 21, 30, 31]) / 30]
)
def test_an_object_that_moves_keeps_its_id(name: str, times: NDArray[np.float64]) -> None:
    tracker = open_tracker(name)
    found = [ids(tracker, time, moving(time), moving(time, -80, 500, 300)) for time in times]
    assert found == [[1, 2]] * len(times)


@BOTH
def test_an_object_that_was_hidden_keeps_its_id(name: str) -> None:
    tracker = open_tracker(name)
    for step in range(30):
        assert ids(tracker, step / 30, moving(step / 30, 200)) == [1]
    for step in range(30, 48):
        assert ids(tracker, step / 30) == []
    assert [ids(tracker, step / 30, moving(step / 30, 200)) for step in range(48, 60)] == [[1]] * 12


@BOTH
def test_a_lost_track_is_forgotten_after_the_buffer(name: str) -> None:
    tracker = open_tracker(name, TrackerOptions(buffer=0.5))
    assert ids(tracker, 0, moving(0)) == [1]
    for step in range(1, 20):
        ids(tracker, step / 30)
    assert [ids(tracker, step / 30, moving(0)) for step in (20, 21)] == [[NO_TRACK], [2]]


@BOTH
def test_objects_that_cross_keep_their_ids(name: str) -> None:
    tracker, found = open_tracker(name), set()
    for step in range(90):
        time = step / 30
        found.add(tuple(ids(tracker, time, moving(time, 150, 100, 100), moving(time, -150, 550, 110))))
    assert found == {(1, 2)}


@BOTH
def test_a_weak_box_continues_a_track_and_begins_none(name: str) -> None:
    tracker = open_tracker(name)
    found = [
        ids(tracker, step / 30, [*moving(step / 30), 0.9 if step < 10 else 0.15], [400, 100, 450, 150, 0.3])
        for step in range(20)
    ]
    assert found == [[1, NO_TRACK]] * 20


@BOTH
def test_a_new_track_counts_from_the_second_frame_on(name: str) -> None:
    tracker = open_tracker(name)
    assert ids(tracker, 0, moving(0)) == [1], "the first frame has nothing to wait for"
    flash = [ids(tracker, step / 30, moving(step / 30), [600, 300, 650, 350]) for step in (1, 2, 3)]
    assert flash == [[1, NO_TRACK], [1, 2], [1, 2]]
    assert ids(open_tracker(name, TrackerOptions(confirm=3)), 0, moving(0)) == [1]


@BOTH
def test_classes_do_not_mix_unless_agnostic(name: str) -> None:
    for agnostic, expected in ((False, [[1], [NO_TRACK], [2]]), (True, [[1], [1], [1]])):
        tracker = open_tracker(name, TrackerOptions(agnostic=agnostic))
        assert [ids(tracker, step / 30, [*moving(0), 0.9, min(step, 1)]) for step in range(3)] == expected


@BOTH
def test_every_third_frame_on_presentation_times(name: str) -> None:
    """An object that has gone more than its width by the third frame, which no step of a fixed length foresees."""
    tracker, times = open_tracker(name), [*np.arange(15) / 30, *(0.5 + np.arange(10) / 10)]
    assert {tuple(ids(tracker, time, moving(time, 400, size=35))) for time in times} == {(1,)}


@BOTH
def test_times_that_are_odd(name: str) -> None:
    tracker = open_tracker(name)
    times = [0, 1 / 30, 1 / 30, 1 / 30, None, math.nan, math.inf, 0.2]
    assert [ids(tracker, time, moving(0)) for time in times] == [[1]] * len(times)
    assert ids(tracker, 0.1, moving(0)) == [2], "a step back starts anew"
    assert ids(tracker, 7, moving(0)) == [3], "and so does a gap"
    tracker.reset()
    assert ids(tracker, 7, moving(0)) == [4]
    assert tracker.count == 4
    assert ids(open_tracker(name), None, moving(0)) == [1]
    assert ids(open_tracker(name, TrackerOptions(buffer=0)), 0, moving(0)) == [1]


@BOTH
def test_without_a_buffer_only_the_last_frame_counts(name: str) -> None:
    tracker = open_tracker(name, TrackerOptions(buffer=0))
    assert [ids(tracker, step / 30, moving(0)) for step in range(4)] == [[1]] * 4
    assert ids(tracker, 5 / 30) == []
    assert [ids(tracker, step / 30, moving(0)) for step in (6, 7)] == [[NO_TRACK], [2]]


@BOTH
def test_rows_that_are_not_boxes_get_no_track(name: str) -> None:
    tracker = open_tracker(name)
    nan, inf = math.nan, math.inf
    odd = [
        [nan, 0, 5, 5],
        [0, 0, inf, 5],
        [-inf, 0, 5, 5],
        [5, 5, 5, 9],
        [9, 9, 2, 2],
        [0, 0, 9, 9, nan],
        [1, 1, 3, 3, 2],
    ]
    for step in range(3):
        found = ids(tracker, step / 30, moving(0), *odd)
        assert found[0] == 1 and set(found[1:7]) == {NO_TRACK}


@BOTH
def test_no_boxes_and_thousands(name: str) -> None:
    tracker = open_tracker(name)
    assert ids(tracker, 0) == []
    rng = np.random.default_rng(0)
    corner = rng.uniform(0, 4000, (5000, 2))
    boxes = np.concatenate((corner, corner + rng.uniform(10, 60, (5000, 2))), axis=1).astype(np.float32)
    many = Detections(boxes, np.linspace(1, 0.5, 5000, dtype=np.float32), np.zeros(5000, np.int64), {})
    _, first, second = (tracker.update(many, time).tracker_id for time in (0.1, 0.2, 0.3))
    assert first is not None and second is not None
    assert (first[:2000] > 0).all() and (first[2000:] == NO_TRACK).all()
    assert (first == second).mean() > 0.99
    same = Detections(np.tile(boxes[:1], (800, 1)), many.confidence[:800], many.class_id[:800], {})
    for time in (0.4, 0.5):  # all overlap all
        found = tracker.update(same, time).tracker_id
        assert found is not None and len(set(found[found > 0].tolist())) == (found > 0).sum()


@BOTH
def test_predict_says_where_tracks_go(name: str) -> None:
    tracker = open_tracker(name)
    assert len(tracker.predict(1.0)) == 0
    for step in range(31):
        ids(tracker, step / 30, [*moving(step / 30, 300), 0.5], [*moving(0, 0, 700), 0.8], [300, 300, 310, 310, 0.2])
    told = tracker.predict(1.2)
    assert told.tracker_id is not None and told.tracker_id.tolist() == [2, 1] and told.names == {0: "car"}
    assert np.abs(told.xyxy - [moving(0, 0, 700), moving(1.2, 300)]).max() < 4
    assert told.confidence == pytest.approx([0.8, 0.5])
    ids(tracker, 32 / 30, [*moving(0, 0, 700), 0.8])
    assert tracker.predict(1.2).tracker_id == [2], "a track that the last frame did not show is not live"


@BOTH
def test_only_the_id_is_added(name: str) -> None:
    masks = mask_runs(np.random.default_rng(0).random((3, 8, 8)) > 0.5)
    found = detections(moving(0), [*moving(0, start=300), 0.05], [*moving(0, start=500), 0.7], runs=masks)
    tracked = open_tracker(name).update(found, 0)
    for field in fields(Detections):
        if field.name != "tracker_id":
            assert getattr(tracked, field.name) is getattr(found, field.name)
    assert found.tracker_id is None and tracked.tracker_id is not None
    assert tracked.tracker_id.tolist() == [1, NO_TRACK, 2] and tracked.tracker_id.dtype == np.int64


@BOTH
@settings(max_examples=20, deadline=None)
@given(st.integers(0, 1000), st.integers(1, 40), st.randoms(use_true_random=False))
def test_ids_follow_the_rows_in_any_order(name: str, seed: int, count: int, random: Any) -> None:
    """Shuffled rows have shuffled ids: who is who does not depend on the order, though the numbers of new ids do."""
    one, other, partner = open_tracker(name), open_tracker(name), dict[int, int]()
    for step, found in enumerate(crowd(count, 12, seed)):
        order = list(range(len(found)))
        random.shuffle(order)
        straight, shuffled = one.update(found, step / 30).tracker_id, other.update(found[order], step / 30).tracker_id
        assert straight is not None and shuffled is not None
        for row, number in zip(order, shuffled.tolist(), strict=True):
            assert partner.setdefault(int(straight[row]), number) == number


@BOTH
def test_a_crowd_keeps_its_ids(name: str) -> None:
    tracker, seen = open_tracker(name), 0
    for step, found in enumerate(crowd(50, 60)):
        numbers = tracker.update(Detections(found.xyxy, found.confidence, found.class_id * 0, {}), step / 30).tracker_id
        assert numbers is not None
        seen += int((numbers > 0).sum())
        assert len(set(numbers[numbers > 0].tolist())) == (numbers > 0).sum(), "no id twice in a frame"
    assert tracker.count <= 45 and seen > 1800


def test_ids_start_where_they_are_told() -> None:
    assert ids(open_tracker(first_id=1_000_001), 0, moving(0), moving(0, start=300)) == [1_000_001, 1_000_002]


@pytest.mark.parametrize(
    "wrong", [{"high": 1.5}, {"low": -0.1}, {"new": math.nan}, {"buffer": -1}, {"buffer": math.inf}, {"confirm": 0}]
)
def test_wrong_options(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(wrong))):
        TrackerOptions(**wrong)


def test_unknown_tracker() -> None:
    with pytest.raises(UsageError, match="did you mean bytetrack"):
        open_tracker("byte-track")
    with pytest.raises(UsageError, match="choose bytetrack or ocsort"):
        open_tracker("deep")
