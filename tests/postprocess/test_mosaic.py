"""Class masks of views: every pixel of the frame has the class of the view that shows it best."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from framefuse.frame import Region, View
from framefuse.postprocess.merge import join
from framefuse.prediction import Masks

TRIANGLE = ((10.0, 0.0), (20.0, 20.0), (0.0, 20.0))


def masked(views: list[View], size: tuple[int, int], seed: int = 0) -> list[Masks]:
    random = np.random.default_rng(seed)
    regions = [view.region or (0, 0, *size) for view in views]
    return [Masks(random.integers(1, 200, (height, width), np.uint8)) for _, _, width, height in regions]


def depth(region: Region, size: tuple[int, int], x: int, y: int) -> float:
    """Distance of a pixel from the nearest edge of a region inside the frame; 0: it is not in the region."""
    left, top, width, height = region
    if not (left <= x < left + width and top <= y < top + height):
        return 0
    distances = [
        (x - left + 1, left > 0),
        (y - top + 1, top > 0),
        (left + width - x, left + width < size[0]),
        (top + height - y, top + height < size[1]),
    ]
    return min((distance for distance, counts in distances if counts), default=1e6)


def expected(found: list[Masks], views: list[View], size: tuple[int, int], level: list[int]) -> NDArray[Any]:
    joined = np.zeros(size[::-1], np.uint8)
    for y in range(size[1]):
        for x in range(size[0]):
            ranks = [
                (level[number], depth(view.region or (0, 0, *size), size, x, y), -number)
                for number, view in enumerate(views)
                if depth(view.region or (0, 0, *size), size, x, y)
            ]
            if ranks:
                number = -max(ranks)[2]
                left, top, *_ = views[number].region or (0, 0)
                joined[y, x] = found[number].class_id[y - top, x - left]
    return joined


@pytest.mark.parametrize(
    ("regions", "level"),
    [
        ([None, (0, 0, 21, 17), (12, 0, 21, 17), (0, 8, 21, 17), (12, 8, 21, 17)], [0, 1, 1, 1, 1]),
        ([(0, 0, 33, 25)], [0]),
        ([(3, 5, 11, 7)], [0]),
        ([(0, 0, 16, 25), (16, 0, 17, 25)], [0, 0]),
        ([(1, 1, 20, 20), (1, 1, 20, 20)], [0, 0]),
        ([(4, 4, 10, 10), None, (2, 2, 20, 20), (10, 1, 20, 9)], [2, 0, 1, 1]),
    ],
)
def test_pixels_take_the_class_of_the_view_in_which_they_lie_deepest(
    regions: list[Region | None], level: list[int]
) -> None:
    turned: list[Region | None] = [region and (region[1], region[0], region[3], region[2]) for region in regions]
    for given, size in ((regions, (33, 25)), (turned, (25, 33))):
        views = [View(region) for region in given]
        found = masked(views, size)
        np.testing.assert_array_equal(join(found, views, size), expected(found, views, size, level))


def test_a_view_of_the_whole_frame_changes_no_pixel() -> None:
    for view in (View(), View((0, 0, 33, 25), "all")):
        (found,) = masked([view], (33, 25))
        np.testing.assert_array_equal(join([found], [view], (33, 25)), found.class_id)


def test_outside_of_regions_and_polygons_the_class_is_0() -> None:
    views = [View((0, 0, 20, 20), outline=TRIANGLE), View((20, 5, 10, 10))]
    found = masked(views, (40, 20))
    joined = join(found, views, (40, 20))
    assert not joined[:, 30:].any() and not joined[:5, 20:].any()
    for y in range(20):
        inside = [x for x in range(20) if abs(x + 0.5 - 10) < (y + 0.5) / 2]
        np.testing.assert_array_equal(np.flatnonzero(joined[y, :20]), inside)
        np.testing.assert_array_equal(joined[y, inside], found[0].class_id[y, inside])
    assert not join([], [], (40, 20)).any()


def test_a_polygon_leaves_what_it_hides_to_other_views() -> None:
    views = [View(), View((0, 0, 20, 20), outline=TRIANGLE)]
    found = masked(views, (20, 21))
    joined = join(found, views, (20, 21))
    assert joined[1, 1] == found[0].class_id[1, 1] and joined[15, 10] == found[1].class_id[15, 10]
