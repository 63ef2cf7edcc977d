"""Merging: one object that several views show is one object, and objects of one view stay as they are."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from framefuse.common.polygons import within
from framefuse.frame import View
from framefuse.postprocess.merge import merge
from framefuse.prediction import Detections

SIZE = 1000, 600
LEFT = View((0, 0, 600, 600), "tile 1")
RIGHT = View((400, 0, 600, 600), "tile 2")


def objects(*rows: Sequence[float]) -> Detections:
    """x1, y1, x2, y2, confidence, class of each."""
    table = np.array(rows, np.float32).reshape(-1, 6)
    return Detections(table[:, :4].copy(), table[:, 4].copy(), table[:, 5].astype(np.int64), {0: "car", 1: "van"})


def merged(*found: tuple[View, Detections], max_det: int = 300, agnostic: bool = False) -> list[list[float]]:
    """x1, y1, x2, y2, confidence, class, view of each object, rounded."""
    result = merge([o for _, o in found], [v for v, _ in found], SIZE, max_det=max_det, agnostic=agnostic)
    assert result.view is not None
    columns = (result.xyxy, result.confidence[:, None], result.class_id[:, None], result.view[:, None])
    table: list[list[float]] = np.concatenate(columns, axis=1).round(3).tolist()
    return table


def test_one_view_of_the_whole_frame_changes_nothing() -> None:
    found = objects((0, 0, 50, 50, 0.9, 0), (5, 5, 55, 55, 0.8, 0), (990, 0, 1000, 600, 0.8, 1))
    result = merge([found], [View()], SIZE, max_det=300)
    for name in ("xyxy", "confidence", "class_id"):
        np.testing.assert_array_equal(getattr(result, name), getattr(found, name))
    assert result.names == found.names


def test_the_better_of_two_sights_stays() -> None:
    whole, tile = objects((450, 100, 500, 150, 0.6, 0)), objects((452, 101, 501, 150, 0.8, 0))
    assert merged((View(), whole), (LEFT, tile)) == [[452, 101, 501, 150, pytest.approx(0.8), 0, 1]]


def test_neighbours_within_a_view_are_left_to_its_own_suppression() -> None:
    pair = objects((100, 100, 150, 150, 0.9, 0), (105, 100, 155, 150, 0.8, 0))
    assert len(merged((LEFT, pair), (RIGHT, objects((900, 0, 950, 50, 0.5, 0))))) == 3


def test_classes_are_told_apart_unless_they_are_not_to_be() -> None:
    found = (View(), objects((450, 100, 500, 150, 0.6, 0))), (LEFT, objects((450, 100, 500, 150, 0.5, 1)))
    assert len(merged(*found)) == 2
    assert len(merged(*found, agnostic=True)) == 1


def test_a_part_at_the_edge_of_a_tile_yields_to_the_whole_object() -> None:
    """Although the part is the more confident one."""
    part, whole = objects((550, 200, 599, 300, 0.9, 0)), objects((550, 200, 700, 300, 0.5, 0))
    assert merged((LEFT, part), (RIGHT, whole)) == [[550, 200, 700, 300, 0.5, 0, 1]]


def test_the_edge_of_the_frame_cuts_nothing() -> None:
    """A box there is as whole as any other."""
    found = (View(), objects((0, 0, 90, 90, 0.5, 0))), (LEFT, objects((0, 0, 40, 40, 0.9, 0)))
    assert len(merged(*found)) == 2


def test_two_parts_of_an_object_larger_than_the_overlap_are_joined() -> None:
    parts = (LEFT, objects((100, 200, 600, 300, 0.7, 0))), (RIGHT, objects((400, 202, 900, 299, 0.9, 0)))
    assert merged(*parts) == [[100, 200, 900, 300, pytest.approx(0.9), 0, 1]]


def test_parts_that_only_touch_are_two_objects() -> None:
    parts = (LEFT, objects((500, 100, 600, 200, 0.7, 0))), (RIGHT, objects((400, 190, 520, 400, 0.9, 0)))
    assert len(merged(*parts)) == 2


def test_a_larger_view_has_the_last_word_on_parts() -> None:
    bus, wheel = (100, 100, 500, 300, 0.5, 1), (150, 220, 230, 300, 0.9, 0)
    assert merged((View(), objects(bus)), (LEFT, objects(wheel))) == [[*bus[:4], 0.5, 1, 0]], "whose wheel is no car"
    both = objects(bus, (152, 221, 230, 300, 0.4, 0))
    assert len(merged((View(), both), (LEFT, objects(wheel)))) == 2, "unless both views show it"
    assert len(merged((View(), objects(bus)), (LEFT, objects((150, 220, 185, 255, 0.9, 0))))) == 2, "or it is too small"
    assert len(merged((LEFT, objects(bus)), (RIGHT, objects((420, 220, 490, 300, 0.9, 0))))) == 2, (
        "neighbours are equals"
    )


def test_a_weak_box_of_the_larger_view_says_nothing() -> None:
    part = LEFT, objects((150, 220, 210, 280, 0.9, 0))
    assert len(merged((View(), objects((100, 100, 500, 300, 0.2, 1))), part)) == 2


def test_a_larger_view_has_the_last_word_on_what_it_shows_clearly() -> None:
    seen, alike = objects((150, 100, 230, 160, 0.9, 0)), objects((152, 101, 230, 160, 0.3, 0))
    assert merged((View(), objects()), (LEFT, seen)) == []
    assert len(merged((View(), alike), (LEFT, seen))) == 1
    assert len(merged((View(), objects()), (LEFT, objects((150, 100, 210, 160, 0.9, 0))))) == 1, "it is too small"
    assert len(merged((RIGHT, objects()), (LEFT, seen))) == 1, "neighbours are equals"


def test_what_a_tile_cuts_counts_if_the_larger_view_shows_it_or_a_neighbour_continues_it() -> None:
    cut, whole = objects((550, 200, 600, 300, 0.9, 0)), objects((555, 200, 600, 300, 0.3, 0))
    assert merged((View(), objects()), (LEFT, cut)) == []
    assert merged((View(), whole), (LEFT, cut)) == [[555, 200, 600, 300, pytest.approx(0.3), 0, 0]]
    assert len(merged((View(), objects()), (LEFT, objects((540, 200, 590, 250, 0.9, 0))))) == 1, "it is not cut"
    assert len(merged((LEFT, cut), (RIGHT, objects()))) == 1, "there is no larger view"
    ones, others = View((0, 0, 510, 600), "one"), View((490, 0, 510, 600), "other")
    parts = (ones, objects((470, 200, 510, 240, 0.7, 0))), (others, objects((490, 201, 530, 239, 0.9, 0)))
    assert [row[:4] for row in merged((View(), objects()), *parts)] == [[470, 200, 530, 240]]


def test_boxes_end_at_their_view() -> None:
    eyes = View((0, 0, 500, 600), "left"), View((500, 0, 500, 600), "right")
    found = merged((eyes[0], objects((450, 10, 520, 60, 0.9, 0))), (eyes[1], objects((300, 10, 490, 60, 0.9, 0))))
    assert found == [[450, 10, 500, 60, pytest.approx(0.9), 0, 0]], "and what lies outside of it is dropped"


def test_an_outline_drops_what_has_its_centre_outside() -> None:
    triangle = View((0, 0, 600, 600), "roi 1", outline=((0, 0), (600, 0), (0, 600)))
    found = objects((10, 10, 60, 60, 0.9, 0), (500, 500, 560, 560, 0.8, 0), (290, 290, 305, 305, 0.7, 0))
    assert [row[0] for row in merged((triangle, found))] == [10, 290]


def test_the_strongest_stay_within_the_limit() -> None:
    views = [(LEFT, objects((0, 0, 9, 9, 0.3, 0), (20, 0, 29, 9, 0.2, 0))), (RIGHT, objects((900, 0, 950, 50, 0.5, 0)))]
    assert [row[4] for row in merged(*views, max_det=2)] == [0.5, pytest.approx(0.3)]


def test_nothing_found() -> None:
    assert merged((LEFT, objects()), (RIGHT, objects())) == []


def test_points_within_a_polygon() -> None:
    ring = ((0.0, 0.0), (10.0, 0.0), (10.0, 10.0), (5.0, 4.0), (0.0, 10.0))
    points = np.array([(1, 1), (5, 3), (5, 8), (9, 8), (11, 5), (-1, 5)], np.float32)
    assert within(*points.T, ring).tolist() == [True, True, False, True, False, False]
