"""Zones and lines: geometry on awkward shapes, and an answer to every fault of a file."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from framefuse.common.polygons import area, clipped, crosses_itself, meet, within
from framefuse.errors import ConfigError, UsageError
from framefuse.tracking.zones import Line, Place, Places, Zone, load_places

SQUARE = ((10.0, 10.0), (30.0, 10.0), (30.0, 30.0), (10.0, 30.0))
NAMES = {"car": 2, "person": 0}


def number(item: int | str) -> int:
    if isinstance(item, str) and item not in NAMES:
        raise UsageError(f"no class {item}")
    return NAMES[item] if isinstance(item, str) else item


def load(tmp_path: Path, text: str) -> Places:
    path = tmp_path / "zones.yaml"
    path.write_text(text)
    return load_places(path, number)


def test_a_complete_file(tmp_path: Path) -> None:
    found = load(
        tmp_path,
        """
        zones:
          yard: {points: [[0.1, 0.5], [0.5, 0.5], [0.5, 1], [0.1, 1]], classes: [car, 0], anchor: centre}
          door: {points: "10,20,30,40"}
          7: {points: "0,0, 5,0, 5,5, 0,0"}
        lines:
          gate: {from: [0, 100], to: "200, 100", classes: car}
        """,
    )
    yard, door, seven = found.zones
    assert (yard.name, yard.anchor, yard.classes) == ("yard", "centre", {0, 2})
    assert door.points == ((10, 20), (40, 20), (40, 60), (10, 60))
    assert door.classes is None and door.anchor == "bottom"
    assert seven.name == "7" and len(seven.points) == 3, "the first corner again at the end closes it"
    assert found.lines == (Line("gate", ((0, 100), (200, 100)), "bottom", frozenset([2])),)
    placed, notes = found.at(200, 100)
    assert placed.zones[0].points == ((20, 50), (100, 50), (100, 100), (20, 100)) and not notes


FAULTS = {
    "": "has no zone and no line",
    "zones:": "has no zone and no line",
    "zones: 7": "zones in .* is 7",
    "zones: {a: 7}": "zone 'a' in .* is 7",
    "zone: {a: {points: '1,2,3,4'}}": "unknown key 'zone'.*\n.*did you mean 'zones'",
    "zones: {a: {point: '1,2,3,4'}}": "unknown key 'point': zone 'a'.*\n.*did you mean 'points'",
    "zones: {a: [[1, 2], [3, 4], [5, 2]]}": r"a' in .* is .*\n.*write 'a: {points: \[\[x, y\]",
    "zones: {a: {points: '1,2,3,4', colour: red}}": "unknown key 'colour'.*\n.*it takes points, anchor, classes",
    "zones: {a: {}}": "zone 'a' in .*: points is None",
    "zones: {a: {points: [[1, 2], [3, 4]]}}": "zone 'a' .* has 2 different corners",
    "zones: {a: {points: [[1, 2], [3, 4], [3, 4], [1, 2]]}}": "zone 'a' .* has 2 different corners",
    "zones: {a: {points: [[1, 2], [3, 4], [5]]}}": "zone 'a' .*: points is",
    "zones: {a: {points: [[1, 2], [3, .nan], [5, 6]]}}": "zone 'a' .*: points is",
    "zones: {a: {points: [[1, 2], [3, 1e9], [5, 6]]}}": "zone 'a' .*: points is",
    "zones: {a: {points: [[1, 2], [3, true], [5, 6]]}}": "zone 'a' .*: points is",
    "zones: {a: {points: '1,2,x,4'}}": "zone 'a' .*: points is",
    "zones: {bow: {points: [[0, 0], [9, 9], [9, 0], [0, 9]]}}": "zone 'bow' .* crosses itself",
    "zones: {a: {points: [[0, 0], [5, 5], [9, 9]]}}": "zone 'a' .* has no area",
    "zones: {a: {points: '1,2,0,4'}}": "zone 'a' .* has 2 different corners",
    "zones: {a: {points: '0,0,5,0,5,5', anchor: top}}": "anchor is 'top'.*\n.*bottom or centre",
    "zones: {a: {points: '0,0,5,0,5,5', classes: {car: 1}}}": "classes is {'car': 1}",
    "zones: {a: {points: '0,0,5,0,5,5', classes: [1.5]}}": r"classes is \[1.5\]",
    "zones:\n  a: {points: '0,0,5,0,5,5'}\n  a: {points: '0,0,5,0,5,5'}": "a is set twice, line 3",
    "zones: {a: {points: '0,0,5,0,5,5'}}\nlines: {a: {from: [1, 1], to: [2, 2]}}": "line 'a' .*: the name is",
    "lines: {a: {from: [1, 1], to: [1, 1]}}": "line 'a' .* has no length",
    "lines: {a: {from: [1, 1]}}": "line 'a' .*: to is None",
    "lines: {a: {from: [1, 1, 2, 2], to: [3, 3]}}": "line 'a' .*: from is",
    "lines: {'': {from: [1, 1], to: [3, 3]}}": "the name is empty",
    "- a": "it is not a mapping",
    "a: [": "line 1",
}


@pytest.mark.parametrize("text", FAULTS)
def test_every_fault_has_an_answer(text: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=FAULTS[text]) as found:
        load(tmp_path, text)
    assert found.value.remedy


def test_a_missing_file_and_an_unknown_class(tmp_path: Path) -> None:
    load(tmp_path, "lines: {a: {from: [1, 1], to: [3, 3]}}")
    with pytest.raises(ConfigError, match=r"No such file(.|\n)*did you mean .*zones.yaml"):
        load_places(tmp_path / "zone.yaml", number)
    with pytest.raises(UsageError, match="no class tram"):
        load(tmp_path, "lines: {a: {from: [1, 1], to: [3, 3], classes: tram}}")


def test_what_lies_outside_the_frame_is_clipped_and_said() -> None:
    wide = Zone("wide", ((-10, 50), (50, 50), (50, 150), (-10, 150)))
    away = Zone("away", ((500, 500), (600, 500), (600, 600)))
    line = Line("far", ((300, 0), (300, 90)))
    placed, notes = Places((wide, away), (line,)).at(100, 100)
    assert set(placed.zones[0].points) == {(0, 50), (50, 50), (50, 100), (0, 100)}
    assert notes == [
        "zone 'wide' was clipped to the frame of 100x100",
        "zone 'away' lies outside the frame of 100x100: nothing gets there",
        "line 'far' lies outside the frame of 100x100: nothing gets there",
    ]
    assert (placed.zones[1].depth(np.array([(50.0, 50.0)])) < 0).all()


def test_depth_is_the_distance_from_the_border_but_not_from_the_edge_of_the_frame() -> None:
    zone = Places((Zone("z", SQUARE),)).at(100, 30)[0].zones[0]
    points = np.array([(20, 15), (20, 29.9), (20, 5), (0, 10), (33, 6)], np.float64)
    assert zone.depth(points).tolist() == pytest.approx([5, 10, -5, -10, -5])
    whole = Places((Zone("all", ((0, 0), (1, 0), (1, 1), (0, 1))),)).at(100, 30)[0].zones[0]
    assert whole.depth(points[:2]).tolist() == [math.inf, math.inf]
    assert len(zone.depth(np.empty((0, 2)))) == 0


def test_a_line_has_a_right_and_a_left_as_one_looks_along_it() -> None:
    up = Line("up", ((50, 90), (50, 10)))
    assert up.side(np.array([(60.0, 50.0), (45.0, 500.0)])).tolist() == [10, -5]
    assert up.crossed((40, 50), (60, 50)) and not up.crossed((40, 95), (60, 95))


def test_polygons() -> None:
    rng = np.random.default_rng(1)
    points = rng.uniform(0, 40, (200, 2))
    inside = ((points > 10) & (points < 30)).all(1)
    assert (within(*points.T, SQUARE) == inside).all()
    assert area(SQUARE) == 400 and area(SQUARE[::-1]) == 400
    star = [
        (50 + r * math.cos(a), 50 + r * math.sin(a))
        for a, r in zip(np.arange(0, 6.28, 0.3), [9, 50] * 20, strict=False)
    ]
    assert not crosses_itself(SQUARE) and not crosses_itself(star) and not crosses_itself(SQUARE[:3])
    part = clipped(star, (60, 45))
    both = within(*points.T, star) & (points < (60, 45)).all(1)
    assert (within(*points.T, part) == both).mean() > 0.99
    assert clipped(SQUARE, (5, 5)) == []
    assert meet((0, 0), (4, 4), (2, 2), (9, 9)) and not meet((0, 0), (1, 1), (2, 2), (3, 3))
    assert Place("a", SQUARE).counts(3)
