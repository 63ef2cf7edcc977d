"""Events: one made by hand for each kind of change, and what they do when times or boxes are odd."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from fractions import Fraction

import numpy as np
import pytest

from framefuse.prediction import Change, Detections, Event, FrameInfo
from framefuse.tracking.events import EventOptions, Watch, simplified
from framefuse.tracking.zones import Line, Places, Zone

FPS = 10
YARD = Zone("yard", ((100, 0), (200, 0), (200, 100), (100, 100)))
GATE = Line("gate", ((150, 200), (150, 0)))
Row = tuple[int, float, float]
"""Track, and the middle of the lower edge of its box."""


def info(index: int, seconds: float | None = None, connection: int = 0, known: bool = True) -> FrameInfo:
    at = index / FPS if seconds is None else seconds
    return FrameInfo(index, round(at * 1000) if known else None, Fraction(1, 1000), 400, 200, "clip", connection)


def objects(rows: Iterable[Row], side: float = 20, class_id: int = 2, score: float = 0.9) -> Detections:
    listed = list(rows)
    boxes = [(x - side / 2, y - side, x + side / 2, y) for _, x, y in listed]
    return Detections(
        np.array(boxes, np.float32).reshape(-1, 4),
        np.full(len(listed), score, np.float32),
        np.full(len(listed), class_id, np.int64),
        {2: "car", 3: "bus"},
        tracker_id=np.array([number for number, *_ in listed], np.int64),
    )


def seen(watch: Watch, found: Detections, frame: FrameInfo) -> list[Event]:
    return watch.update(found, frame, frame.seconds)


def run(watch: Watch, frames: Sequence[Sequence[Row]], start: int = 0) -> list[Event]:
    return [event for n, rows in enumerate(frames, start) for event in seen(watch, objects(rows), info(n))]


def said(events: Iterable[Event]) -> list[str]:
    return [f"{event.kind} {event.track_id}: " + ", ".join(map(str, event.changes)) for event in events]


def across(number: int, y: float, start: float, end: float, frames: int) -> list[list[Row]]:
    return [[(number, x, y)] for x in np.linspace(start, end, frames).tolist()]


def test_a_track_is_new_with_its_second_box_and_ends_when_it_is_not_seen() -> None:
    watch = Watch()
    events = run(watch, [[(7, 50, 50)], [(7, 52, 50)], [(7, 54, 50)], *[[]] * 12])
    assert said(events) == ["new 7: ", "end 7: not seen"]
    new, end = events
    assert (new.frame, new.seconds, new.first_seconds) == (1, 0.1, 0)
    assert (end.seconds, end.last_seconds, end.name, end.source_id) == (1.3, 0.2, "car", "clip")
    assert end.xyxy == (44, 30, 64, 50) and end.confidence == pytest.approx(0.9)
    assert end.path == ((0, 50, 50), (0.2, 54, 50)), "straight: no point between"
    assert watch.end("source ended") == []


def test_what_is_seen_once_or_has_no_track_makes_no_event() -> None:
    watch = Watch()
    assert run(watch, [[(1, 50, 50), (-1, 90, 90)], [(-1, 90, 90)], *[[]] * 15]) == []
    found = objects([(3, 50, 50)])
    found.tracker_id = None
    assert seen(watch, found, info(20)) == [] and watch.end("stopped") == []


def test_zones_are_entered_and_left_once_and_dwell_is_the_time_between() -> None:
    watch = Watch(Places((YARD,)))
    there_and_back = across(1, 50, 50, 150, 21) + across(1, 50, 150, 250, 21)
    events = run(watch, there_and_back) + watch.end("source ended")
    assert said(events) == ["new 1: ", "update 1: entered yard", "update 1: left yard", "end 1: source ended"]
    assert events[1].visits == ((("yard", 1.1, None)),)
    (visit,) = events[-1].visits
    assert events[-1].dwell == {"yard": visit.left - visit.entered} == {"yard": pytest.approx(2.1)}  # type: ignore[operator]


def test_a_track_that_begins_in_a_zone_has_entered_it() -> None:
    watch = Watch(Places((YARD,)))
    events = run(watch, [[(1, 150, 50)], [(1, 151, 50)]]) + watch.end("source ended")
    assert said(events) == ["new 1: entered yard", "end 1: source ended"]
    assert events[-1].visits == (("yard", 0, None),) and events[-1].dwell == {"yard": pytest.approx(0.1)}


def test_trembling_at_a_border_is_no_event() -> None:
    watch = Watch(Places((YARD,), (GATE,)))
    rng = np.random.default_rng(1)
    at_border = [[(1, 100 + x, 50), (2, 150 + x, 150)] for x in rng.uniform(-1.2, 1.2, 90).tolist()]
    assert [line for line in said(run(watch, at_border)) if "yard" in line or "gate" in line] in (
        [],
        ["new 1: entered yard"],
    )


def test_lines_are_crossed_with_a_direction_and_only_between_their_ends() -> None:
    watch = Watch(Places(lines=(GATE, Line("short", ((150, 20), (150, 10))))))
    events = run(watch, across(1, 50, 100, 200, 11) + across(1, 50, 200, 100, 11)) + watch.end("stopped")
    assert said(events) == ["new 1: ", "update 1: crossed gate in", "update 1: crossed gate out", "end 1: stopped"]
    assert [(line, direction) for line, direction, _ in events[-1].crossings] == [("gate", "in"), ("gate", "out")]


def test_anchor_and_classes() -> None:
    low = ((0, 90), (400, 90), (400, 200), (0, 200))
    zones = (
        Zone("feet", low),
        Zone("middle", low, "centre"),
        Zone("buses", low, classes=frozenset([3])),
        Zone("cars", low, classes=frozenset([2, 5])),
    )
    gates = (
        Line("buses only", GATE.points, classes=frozenset([3])),
        Line("cars only", GATE.points, classes=frozenset([2])),
    )
    events = run(Watch(Places(zones, gates)), across(1, 99, 100, 200, 11))
    changes = {change for event in events for change in event.changes}
    assert changes == {Change("entered", "feet"), Change("entered", "cars"), Change("crossed", "cars only", "in")}


def test_the_class_is_the_one_with_the_most_confidence() -> None:
    watch = Watch()
    for index, (class_id, score) in enumerate([(3, 0.9), (2, 0.5), (2, 0.6), (3, 0.1)]):
        seen(watch, objects([(1, 50, 50)], class_id=class_id, score=score), info(index))
    assert watch.end("stopped")[0].name == "car"


def test_stationary_recheck_and_active() -> None:
    watch = Watch(options=EventOptions(stationary=2, recheck=3))
    rng = np.random.default_rng(2)
    parked = [[(1, 100 + dx, 50 + dy)] for dx, dy in rng.uniform(-1, 1, (90, 2)).tolist()]
    events = run(watch, parked + across(1, 50, 100, 200, 20)) + watch.end("source ended")
    assert said(events) == [
        *("new 1: ", "update 1: stationary", "update 1: recheck", "update 1: recheck"),
        *("update 1: active", "end 1: source ended"),
    ]
    times = [event.seconds for event in events]
    assert times[1:4] == pytest.approx([2, 5, 8]) and 9 <= times[4] <= 9.3
    assert [event.state for event in events] == ["active", *["stationary"] * 3, "active", "active"]
    assert 7 <= events[3].stationary_seconds <= 8.1 < 8.9 <= events[-1].stationary_seconds <= 9.4
    slow = run(Watch(options=EventOptions(stationary=2, recheck=0)), [[(1, 100, 50)]] * 99)
    assert said(slow) == ["new 1: ", "update 1: stationary"]


def test_the_best_frame_is_large_sure_and_not_at_the_edge() -> None:
    watch = Watch(options=EventOptions(better=2))
    events = []
    sizes = [20, 20.5, 21, *np.linspace(21, 60, 60).tolist(), 30, 30]
    for index, side in enumerate(sizes):
        events += seen(watch, objects([(1, 200, 150)], side=side), info(index))
    assert said(events)[:3] == ["new 1: ", "update 1: better", "update 1: better"] and len(events) == 4
    big = seen(watch, objects([(1, 200, 199.9)], side=80), info(len(sizes)))
    assert not big and watch.improved == {}, "it touches the edge"
    best = watch.end("stopped")[0].best
    assert 50 < best.xyxy[2] - best.xyxy[0] <= 60 and best.seconds == best.frame / FPS
    assert best.score == pytest.approx((best.xyxy[2] - best.xyxy[0]) ** 2 / (400 * 200) * 0.9, rel=1e-4)


def test_a_thumbnail_comes_with_the_end() -> None:
    watch = Watch()
    seen(watch, objects([(1, 50, 50), (2, 90, 90)]), info(0))
    assert watch.improved.keys() == {1, 2} and watch.improved[1] == (40, 30, 60, 50)
    watch.keep(1, b"jpeg")
    events = seen(watch, objects([(1, 50, 50), (2, 90, 90)]), info(1)) + watch.end("stopped")
    assert [event.thumbnail for event in events] == [None, None, b"jpeg", None]


def test_a_jump_counts_for_nothing_and_is_marked() -> None:
    watch = Watch(Places((YARD,), (GATE,)))
    glitch = [[(1, 50, 50)], [(1, 51, 50)], [(1, 180, 50)], [(1, 52, 50)], [(1, 53, 50)]]
    events = run(watch, glitch) + watch.end("stopped")
    assert said(events) == ["new 1: ", "update 1: jumped", "end 1: stopped"]
    assert events[-1].jumps == 1 and events[-1].visits == () and events[-1].crossings == ()
    assert max(x for _, x, _ in events[-1].path) < 54 and events[1].xyxy[0] == 41


def test_a_track_that_stays_where_it_jumped_is_there_but_has_crossed_nothing() -> None:
    watch = Watch(Places((YARD,), (GATE,)))
    moved = [[(1, 50, 50)], [(1, 51, 50)], [(1, 180, 50)], [(1, 181, 50)], *across(1, 50, 182, 260, 20)]
    events = run(watch, moved) + watch.end("stopped")
    assert said(events) == [
        *("new 1: ", "update 1: jumped", "update 1: entered yard", "update 1: left yard", "end 1: stopped"),
    ]
    assert events[-1].jumps == 1 and not events[-1].crossings


def test_an_object_that_is_hidden_for_a_moment_crosses_the_line_meanwhile() -> None:
    watch = Watch(Places(lines=(GATE,)))
    seen = across(1, 50, 100, 200, 11)
    events = run(watch, [*seen[:4], [], [], [], *seen[7:]])
    assert said(events) == ["new 1: ", "update 1: crossed gate in"]


def test_times_that_stand_still_or_are_missing() -> None:
    rows = across(1, 50, 100, 200, 11)
    watch = Watch(Places(lines=(GATE,)))
    still = [event for n, found in enumerate(rows) for event in seen(watch, objects(found), info(n, 3.0))]
    assert said(still) == ["new 1: ", "update 1: crossed gate in"] and not watch.notes
    watch = Watch(Places(lines=(GATE,)))
    unknown = []
    for n, found in enumerate([*rows, *[[]] * 50]):
        unknown += seen(watch, objects(found), info(n, known=False))
    assert said(unknown) == ["new 1: ", "update 1: crossed gate in", "end 1: not seen"]
    assert all(math.isfinite(event.seconds) for event in unknown)


@pytest.mark.parametrize(("change", "why"), [({"seconds": 0.05}, "time went back"), ({"connection": 1}, "reconnected")])
def test_tracks_end_where_time_goes_back_or_the_source_reconnects(change: dict[str, float], why: str) -> None:
    watch = Watch()
    run(watch, [[(1, 50, 50)]] * 5)
    first = seen(watch, objects([(2, 50, 50)]), info(5, **change))  # type: ignore[arg-type]
    assert said(first) == [f"end 1: {why}"]
    assert (first[0].frame, first[0].seconds) == (4, 0.4)
    assert len(watch.notes) == 1 and "new ones began" in next(iter(watch.notes))
    again = seen(watch, objects([(2, 51, 50)]), info(6, 0.6, connection=int(change.get("connection", 0))))
    assert said(again) == ["new 2: "]


def test_boxes_that_are_none_are_left_out() -> None:
    watch = Watch(Places((YARD,), (GATE,)))
    for n in range(3):
        found = objects([(1, 150, 50), (2, 50, 50), (3, 60, 60), (4, 900, 900), (5, 70, 70), (1, 20, 20)])
        found.xyxy[1, 2], found.xyxy[2, 0] = math.nan, -math.inf
        found.xyxy[4, 2:] = found.xyxy[4, :2]
        events = seen(watch, found, info(n))
    ended = watch.end("stopped")
    assert {event.track_id for event in events + ended} <= {1}
    assert list(watch.notes) == ["tracked boxes that are not finite or have no area in the frame were left out"]
    assert ended[0].xyxy == (140, 30, 160, 50), "the second box of a track in a frame does not count"


def test_other_frame_sizes_move_the_zones() -> None:
    watch = Watch(Places((Zone("left", ((0, 0), (0.5, 0), (0.5, 1), (0, 1))),)))
    run(watch, [[(1, 150, 50)]] * 2)
    small = FrameInfo(2, 200, Fraction(1, 1000), 200, 200, "clip")
    assert said(seen(watch, objects([(1, 150, 50)]), small)) == ["update 1: left left"]


def test_many_objects_at_once() -> None:
    watch = Watch(Places((YARD,), (GATE,)))
    rng = np.random.default_rng(3)
    where = (rng.uniform((20, 30), (380, 190), (5000, 2)).round(1) + 0.05).tolist()
    events = run(watch, [[(n, x, y) for n, (x, y) in enumerate(where)]] * 2) + watch.end("stopped")
    inside = sum(100 < x < 200 and y < 100 for x, y in where)
    assert len(events) == 10_000
    assert sum(Change("entered", "yard") in event.changes for event in events) == inside


def test_paths_are_simplified_within_the_tolerance() -> None:
    times = np.linspace(0, 20, 400)
    path = [(t, 100 * math.cos(t), 60 * math.sin(2 * t)) for t in times.tolist()]
    kept = simplified(path, 2, 200)
    assert kept[0] == path[0] and kept[-1] == path[-1] and len(kept) < 120
    at = np.array(kept)
    for axis in (1, 2):
        between = np.interp(times, at[:, 0], at[:, axis])
        assert np.abs(between - np.array(path)[:, axis]).max() <= 2
    assert len(simplified(path, 0.01, 10)) <= 10
    assert simplified(path[:2], 1, 5) == path[:2]
    assert len(simplified([(1.0, float(n % 7), 0.0) for n in range(50)], 1, 64)) <= 50


def test_long_tracks_stay_small() -> None:
    watch = Watch()
    for n in range(3000):
        seen(watch, objects([(1, 200 + 150 * math.cos(n / 9), 100 + 80 * math.sin(n / 5))]), info(n))
    (end,) = watch.end("stopped")
    assert 30 < len(end.path) <= 64
