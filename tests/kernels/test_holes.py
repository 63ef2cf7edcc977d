"""Holes in mattes, on the host and on a GPU, against a flood of every area."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from cuda_on_cpu import on_device
from framefuse.kernels.masks.holes import SIDE, fill_holes

Fill = Callable[[NDArray[np.float32], int], NDArray[np.float32]]


@pytest.fixture(params=["host", "fibres", pytest.param("cuda", marks=pytest.mark.gpu)])
def fill(request: pytest.FixtureRequest) -> Fill:
    """The matte with its holes filled, where the kernel under test runs."""
    move: Callable[[NDArray[Any]], Any] = np.array
    if request.param == "fibres":
        request.getfixturevalue("fibres")
        move = lambda array: on_device(array.copy())  # noqa: E731
    elif request.param == "cuda":
        module: Any = pytest.importorskip("cupy")
        move = module.array

    def filled(alpha: NDArray[np.float32], most: int) -> NDArray[np.float32]:
        there = move(alpha)
        fill_holes(there, most)
        return np.asarray(there.get() if hasattr(there, "get") else there)

    return filled


def flooded(alpha: NDArray[np.float32], most: int) -> NDArray[np.float32]:
    """The same, one area after the other; windows are no concern of it."""
    background, out = np.pad(alpha < 0.5, 1, constant_values=True), alpha.copy()
    seen = np.zeros_like(background)
    for start in zip(*np.nonzero(background), strict=True):
        area, ahead = [], [] if seen[start] else [start]
        seen[start] = True
        while ahead:
            area.append(ahead.pop())
            y, x = area[-1]
            for beside in [(y + j, x + i) for j in (-1, 0, 1) for i in (-1, 0, 1)]:
                inside = 0 <= beside[0] < background.shape[0] and 0 <= beside[1] < background.shape[1]
                if inside and background[beside] and not seen[beside]:
                    seen[beside] = True
                    ahead.append(beside)
        if (0, 0) not in area and len(area) <= most:
            for y, x in area:
                out[y - 2 : y + 1, x - 2 : x + 1] = 1
    return out


@pytest.mark.parametrize("size", [(1, 1), (3, 3), (24, 70), (40, 33)])
@pytest.mark.parametrize("share", [0.05, 0.2, 0.4])
@pytest.mark.parametrize("most", [1, 4, 14])
def test_holes_of_noise(size: tuple[int, int], share: float, most: int, fill: Fill) -> None:
    """At most 14 samples, which a window always holds."""
    random = np.random.default_rng(round(100 * share) + most)
    alpha = np.where(random.uniform(0, 1, size) < share, 0.2, 0.7).astype(np.float32)
    np.testing.assert_array_equal(fill(alpha, most), flooded(alpha, most))


def disk(radius: int, margin: int = 3) -> NDArray[np.float32]:
    """A round hole in a square."""
    y, x = np.mgrid[-radius - margin : radius + margin + 1, -radius - margin : radius + margin + 1]
    return (np.hypot(y, x) > radius).astype(np.float32)


def test_a_hole_is_filled_up_to_its_size(fill: Fill) -> None:
    for radius in (0, 1, 5, 9, 14):
        alpha = disk(radius)
        samples = int((alpha == 0).sum())
        assert fill(alpha, samples).min() == 1, radius
        np.testing.assert_array_equal(fill(alpha, samples - 1), alpha)


def test_what_is_larger_than_the_window_stays_open(fill: Fill) -> None:
    np.testing.assert_array_equal(fill(disk(SIDE // 2), 10**6), disk(SIDE // 2))


def test_the_soft_samples_around_a_hole_are_filled_too(fill: Fill) -> None:
    alpha = np.ones((9, 9), np.float32)
    alpha[2:7, 2:7] = 0.6
    alpha[4, 4] = 0.1
    expected = alpha.copy()
    expected[3:6, 3:6] = 1
    np.testing.assert_array_equal(fill(alpha, 1), expected)


def test_a_gap_that_leads_out_stays_open(fill: Fill) -> None:
    """Between an arm and a body: a sample wide, even where it goes on diagonally; and the border is no foreground."""
    alpha = np.ones((40, 60), np.float32)
    for at in range(25):
        alpha[39 - at, 10 + at] = 0
    alpha[0, 50] = alpha[20, 0] = alpha[10, 59] = 0
    np.testing.assert_array_equal(fill(alpha, 10**6), alpha)


def test_an_island_in_a_hole(fill: Fill) -> None:
    alpha = disk(6)
    alpha[8:11, 8:11] = 1
    np.testing.assert_array_equal(fill(alpha, 200), np.ones_like(alpha))


def test_nothing_is_a_hole_in_what_has_no_foreground(fill: Fill) -> None:
    for value in (0.0, 1.0, np.nan):
        alpha = np.full((12, 40), value, np.float32)
        np.testing.assert_array_equal(fill(alpha, 100), alpha)
