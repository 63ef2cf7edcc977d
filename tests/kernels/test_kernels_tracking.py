"""Tracks: the filter is the textbook's, every overlap is found, and the assignment is SciPy's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from framefuse.kernels.tracking import call
from framefuse.kernels.tracking.call import STEPS, Pairs, assign, match, move, observe, pair
from framefuse.kernels.tracking.rows import ALL_ROWS, BOX_ROWS, CENTRES, DIRECTION, ROWS, SEEN, TIMES

Array = NDArray[Any]

seeds = given(st.integers(0, 10_000), st.integers(1, 30), st.integers(1, 30))


def new_tracks(*boxes: tuple[float, ...], rows: int = ROWS) -> Array:
    tracks = np.zeros((rows, len(boxes)))
    tracks[:4] = np.array(boxes).T
    tracks[8], tracks[10] = 4 / 20**2 * tracks[2] * tracks[3], 400 / 160**2 * tracks[2] * tracks[3]
    return tracks


def see(tracks: Array, *boxes: tuple[float, ...], now: float = 0, confidence: float = 0.9) -> None:
    """Each track as the box of its number."""
    observe(
        tracks, columns_of(*boxes, confidence=confidence), np.arange(len(boxes)), np.arange(len(boxes)), now, now - 0.1
    )


def columns_of(*boxes: tuple[float, ...], confidence: float = 0.9) -> Array:
    found = np.zeros((BOX_ROWS, len(boxes)))
    found[:4], found[5] = np.array(boxes).T, confidence
    found[6:8], found[8:] = found[:2] - found[2:4] / 2, found[:2] + found[2:4] / 2
    return found


@pytest.mark.parametrize("steps", [1, 2, 5])
def test_one_long_step_is_many_short_ones(steps: int) -> None:
    long = new_tracks((100, 100, 40, 30), (50, 60, 20, 80))
    move(long, 1 / STEPS)
    see(long, (104, 100, 40, 30), (52, 61, 21, 80))
    short = long.copy()
    move(long, steps / STEPS)
    for _ in range(steps):
        move(short, 1 / STEPS)
    assert np.allclose(long[:8], short[:8])
    assert np.allclose(long[8:11], short[8:11], rtol=0.05), "the size, and so the noise, changes from step to step"


def test_the_filter_is_that_of_a_matrix() -> None:
    """Against the textbook: x = Fx, P = FPF' + Q, K = PH'/(HPH' + R)."""
    tracks = new_tracks((100, 80, 40, 40))
    covariance = np.array([[tracks[8, 0], tracks[9, 0]], [tracks[9, 0], tracks[10, 0]]])
    mean = np.array([100.0, 0])
    for step, seen in enumerate((103.0, 105, 110, 112)):
        n = 1 + step % 2
        for _ in range(n):
            forward = np.array([[1.0, 1], [0, 1]])
            mean = forward @ mean
            covariance = forward @ covariance @ forward.T + np.diag([(40 / 20) ** 2, (40 / 160) ** 2])
        gain = covariance[:, 0] / (covariance[0, 0] + (40 / 20) ** 2)
        mean, covariance = mean + gain * (seen - mean[0]), covariance - np.outer(gain, covariance[0])
        move(tracks, n / STEPS)
        see(tracks, (seen, 80, 40, 40), now=step)
        assert np.allclose(tracks[[0, 4], 0], mean)
        assert np.allclose(tracks[8:11, 0], [covariance[0, 0], covariance[0, 1], covariance[1, 1]])
    assert tracks[SEEN, 0] == 3 and move(np.empty((ROWS, 0)), 1) is None


def test_the_last_observations_are_kept_and_give_the_direction() -> None:
    tracks = new_tracks((0, 0, 40, 40), rows=ALL_ROWS)
    tracks[TIMES:CENTRES] = -np.inf
    for step in range(6):
        see(tracks, (3.0 * step, 4.0 * step, 40, 40), now=step / 30)
    assert tracks[TIMES:CENTRES, 0].tolist() == [5 / 30, 4 / 30, 3 / 30]
    assert tracks[CENTRES:, 0].tolist() == [15, 12, 9, 20, 16, 12]
    assert tracks[DIRECTION : DIRECTION + 2, 0] == pytest.approx([0.6, 0.8])


@settings(max_examples=100, deadline=None)
@seeds
def test_the_assignment_is_the_best(seed: int, rows: int, columns: int) -> None:
    rng = np.random.default_rng(seed)
    grid = np.where(rng.random((rows, columns)) < rng.choice((0.1, 0.4, 1)), rng.random((rows, columns)), 0)
    if seed % 3 == 0:
        grid = np.ceil(grid * 4) / 4  # many of the same worth
    some = np.nonzero(grid)
    chosen = assign(Pairs(*some, grid[some]))
    assert len(set(chosen.rows)) == len(chosen.rows) and len(set(chosen.columns)) == len(chosen.columns)
    assert chosen.worth.sum() == pytest.approx(grid[linear_sum_assignment(-grid)].sum())


@settings(max_examples=60, deadline=None)
@seeds
def test_overlaps_are_all_found(seed: int, count: int, others: int) -> None:
    rng = np.random.default_rng(seed)
    ones, twos = (
        np.concatenate((corner := rng.uniform(0, 100, (n, 2)), corner + rng.uniform(1, 60, (n, 2))), axis=1)
        for n in (count, others)
    )
    classes, margins = (rng.integers(0, 2, count), rng.integers(0, 2, others)), rng.uniform(0, 8, count)
    found = pair(ones, twos, classes, 0.2, margins)
    expected = {}
    for row in range(count):
        for column in range(others):
            grow = margins[row] * np.array([-1, -1, 1, 1])
            a, b = ones[row] + grow, twos[column] + grow
            common = np.clip(np.minimum(a[2:], b[2:]) - np.maximum(a[:2], b[:2]), 0, None).prod()
            iou = common / ((a[2:] - a[:2]).prod() + (b[2:] - b[:2]).prod() - common)
            if iou >= 0.2 and classes[0][row] == classes[1][column]:
                expected[row, column] = iou
    assert dict(zip(zip(found.rows, found.columns, strict=True), found.worth, strict=True)) == pytest.approx(expected)


def test_more_pairs_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    boxes = np.tile(np.array([[10.0, 10, 50, 50]]), (90, 1))
    classes = np.zeros(90, np.int64)
    found = pair(boxes, boxes, (classes, classes), 0.5)
    assert len(found.rows) == 8100 and len(assign(found).rows) == 90
    monkeypatch.setattr(call, "ROOM", 1)
    tracks = new_tracks(*[(30.0, 30.0, 40.0, 40.0)] * 120)
    seen = columns_of(*[(30.0, 30.0, 40.0, 40.0)] * 120)
    mates = match(tracks, seen, least=0.2, high=0.4, before=0, earliest=-1, agnostic=False)
    assert sorted(mates) == list(range(120))


def test_nothing_to_pair() -> None:
    none, one = np.empty((0, 4)), np.array([[0.0, 0, 9, 9]])
    empty, zero = np.empty(0, np.int64), np.zeros(1, np.int64)
    for boxes in ((none, one), (one, none), (none, none)):
        classes = tuple(zero if len(side) else empty for side in boxes)
        assert len(assign(pair(*boxes, classes, 0.1)).rows) == 0
