"""Both eyes: which tracks are the same object."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from framefuse.frame import View
from framefuse.prediction import Detections
from framefuse.tracking import NO_TRACK, open_tracker
from framefuse.tracking.stereo import Partners, seen_once

WIDTH, HEIGHT, COUNT = 960, 1080, 25
SIDES = [View((0, 0, WIDTH, HEIGHT), "left"), View((WIDTH, 0, WIDTH, HEIGHT), "right")]
TILES = [
    View((x + eye * WIDTH, 0, 500, HEIGHT), f"{name} tile {n}")
    for eye, name in enumerate(("left", "right"))
    for n, x in enumerate((0, WIDTH - 500), 1)
]
HALVES = [View((0, 0, WIDTH, HEIGHT), "top"), View((0, HEIGHT, WIDTH, HEIGHT), "bottom")]


def pairs(views: list[View], frames: int = 30, missed: float = 0.1) -> list[tuple[Detections, np.ndarray, np.ndarray]]:
    """Objects that move, seen by both eyes with a disparity and misses: what was found, the object of each row, and
    the track of its partner."""
    rng = np.random.default_rng(3)
    place, speed = rng.uniform(100, (WIDTH - 100, HEIGHT - 100), (COUNT, 2)), rng.normal(0, 2, (COUNT, 2))
    half, disparity = rng.uniform(15, 60, (COUNT, 2)), rng.uniform(0, 40, COUNT)
    tracker, partners, made = open_tracker(), Partners(), []
    first = len(views) // 2
    assert views[first].region is not None
    offset = np.array(views[first].region[:2])
    for frame in range(frames):
        centre = place + frame * speed
        boxes, objects, view = [], [], []
        for eye in (0, 1):
            shown = (rng.random(COUNT) > missed).nonzero()[0]
            middle = centre[shown] + eye * offset - eye * np.stack((disparity[shown], 0 * disparity[shown]), 1)
            middle += rng.normal(0, 0.5, middle.shape)
            boxes.append(np.concatenate((middle - half[shown], middle + half[shown]), 1))
            objects.append(shown)
            view.append(rng.integers(first, size=len(shown)) + eye * first)
        rows = np.concatenate(boxes).astype(np.float32)
        found = Detections(rows, np.full(len(rows), 0.9, np.float32), np.concatenate(objects) % 2)
        found = tracker.update(replace(found, view=np.concatenate(view)), frame / 30)
        linked = partners.link(found, views)
        assert linked is not None
        made.append((found, np.concatenate(objects), linked))
    return made


@pytest.mark.parametrize("views", [SIDES, HALVES, TILES], ids=["side by side", "above each other", "in tiles"])
def test_each_object_has_a_track_in_each_eye_and_they_know_each_other(views: list[View]) -> None:
    right = total = 0
    owner: dict[int, int] = {}
    eye: dict[int, int] = {}
    for found, objects, linked in pairs(views):
        assert found.tracker_id is not None and found.view is not None
        owner |= dict(zip(found.tracker_id.tolist(), objects.tolist(), strict=True))
        eye |= dict(zip(found.tracker_id.tolist(), (found.view // (len(views) // 2)).tolist(), strict=True))
        partner_of = dict(zip(found.tracker_id.tolist(), linked.tolist(), strict=True))
        for track, partner in partner_of.items():
            if track >= 0 and partner >= 0:
                assert eye[track] != eye[partner]
                assert partner_of.get(partner, track) == track
                total += 1
                right += owner[track] == owner[partner]
    assert total > 0.95 * 30 * 2 * 0.9 * COUNT * 0.95
    assert right > 0.97 * total


@pytest.mark.parametrize("views", [SIDES, TILES], ids=["whole", "in tiles"])
def test_an_object_that_both_eyes_show_counts_once(views: list[View]) -> None:
    everything, once = set[int](), set[int]()
    for found, _, linked in pairs(views, missed=0.05)[1:]:
        kept = seen_once(replace(found, pair_id=linked), views)
        assert found.tracker_id is not None and kept.tracker_id is not None
        everything |= set(found.tracker_id.tolist())
        once |= set(kept.tracker_id.tolist())
    assert len(everything - {NO_TRACK}) >= 2 * COUNT
    assert (
        COUNT <= len(once - {NO_TRACK}) <= COUNT + 3
    )  # one of which only the other eye was sure at first counts twice


def test_a_partner_stays_known_while_one_eye_sees_nothing() -> None:
    tracker, partners = open_tracker(), Partners()
    boxes = np.array([[100, 100, 160, 200], [1050, 100, 1110, 200]], np.float32)
    both = Detections(boxes, np.array([0.9, 0.8], np.float32), np.zeros(2, np.int64), view=np.array([0, 1]))
    for frame in range(3):
        found = tracker.update(both, frame / 30)
        linked = partners.link(found, SIDES)
    assert linked is not None and linked.tolist() == [2, 1]
    found = tracker.update(both[:1], 3 / 30)
    linked = partners.link(found, SIDES)
    assert linked is not None and linked.tolist() == [2]


def test_what_is_too_far_apart_or_of_another_class_is_not_the_same() -> None:
    boxes = np.array([[100, 100, 160, 200], [1400, 100, 1460, 200], [1060, 100, 1120, 200]], np.float32)
    found = Detections(boxes, np.full(3, 0.9, np.float32), np.array([0, 0, 1]), view=np.array([0, 1, 1]))
    linked = Partners().link(open_tracker().update(found, 0), SIDES)
    assert linked is not None and linked.tolist() == [NO_TRACK] * 3


def test_other_views_have_no_partners() -> None:
    found = Detections(np.array([[1, 1, 9, 9]], np.float32), np.ones(1, np.float32), np.zeros(1, np.int64))
    tracked = open_tracker().update(replace(found, view=np.zeros(1, np.int64)), 0)
    for views in ([], [View(), View((0, 0, 5, 5), "roi 1")], [View(None, "left"), View(None, "right")]):
        assert Partners().link(tracked, views) is None
