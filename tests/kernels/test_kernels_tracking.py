"""Tracks: the filter is the textbook's, every overlap is found, and the assignment is SciPy's."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from framefuse.kernels.tracking import call
from framefuse.kernels.tracking._tir_rows import ALL_ROWS, CENTRES, DIRECTION, ROWS, SEEN, TIMES
from framefuse.kernels.tracking.call import STEPS, Limits, Pairs, assign, follow, move, pair

Array = NDArray[Any]

seeds = given(st.integers(0, 10_000), st.integers(1, 30), st.integers(1, 30))


LIMITS = Limits(low=0.1, high=0.4, new=0.5, least=0.2, buffer=1, confirm=1, agnostic=False)


def seen(tracks: Array, *boxes: tuple[float, ...], now: float = 0, before: float = 0) -> Array:
    """The tracks after a frame with boxes of these centres and sizes."""
    centre, size = np.array(boxes)[:, :2], np.array(boxes)[:, 2:]
    found = np.hstack((centre - size / 2, centre + size / 2)), np.zeros(len(boxes)), np.full(len(boxes), 0.9)
    after, ids, _ = follow(tracks, found, LIMITS, now, before, 1 / STEPS, 1 + len(tracks))
    assert ids.tolist() == list(range(1, 1 + len(boxes)))
    return after


@pytest.mark.parametrize("steps", [1, 2, 5])
def test_one_long_step_is_many_short_ones(steps: int) -> None:
    long = seen(np.empty((0, ROWS)), (100, 100, 40, 30), (50, 60, 20, 80))
    move(long, 1 / STEPS)
    long = seen(long, (104, 100, 40, 30), (52, 61, 21, 80))
    short = long.copy()
    move(long, steps / STEPS)
    for _ in range(steps):
        move(short, 1 / STEPS)
    assert np.allclose(long[:, :8], short[:, :8])
    assert np.allclose(long[:, 8:11], short[:, 8:11], rtol=0.05), "the size, so the noise, changes from step to step"


def test_the_filter_is_that_of_a_matrix() -> None:
    """Against the textbook: x = Fx, P = FPF' + Q, K = PH'/(HPH' + R)."""
    tracks = seen(np.empty((0, ROWS)), (100, 80, 40, 40))
    covariance = np.array([[tracks[0, 8], tracks[0, 9]], [tracks[0, 9], tracks[0, 10]]])
    mean = np.array([100.0, 0])
    for step, place in enumerate((103.0, 105, 110, 112)):
        n = 1 + step % 2
        for _ in range(n):
            forward = np.array([[1.0, 1], [0, 1]])
            mean = forward @ mean
            covariance = forward @ covariance @ forward.T + np.diag([(40 / 20) ** 2, (40 / 160) ** 2])
        gain = covariance[:, 0] / (covariance[0, 0] + (40 / 20) ** 2)
        mean, covariance = mean + gain * (place - mean[0]), covariance - np.outer(gain, covariance[0])
        move(tracks, n / STEPS)
        tracks = seen(tracks, (place, 80, 40, 40), now=step)
        assert np.allclose(tracks[0, [0, 4]], mean)
        assert np.allclose(tracks[0, 8:11], [covariance[0, 0], covariance[0, 1], covariance[1, 1]])
    assert tracks[0, SEEN] == 3
    move(np.empty((0, ROWS)), 1)


def test_the_last_observations_are_kept_and_give_the_direction() -> None:
    tracks = np.empty((0, ALL_ROWS))
    for step in range(6):
        tracks = seen(tracks, (3.0 * step, 4.0 * step, 40, 40), now=step / 30, before=(step - 1) / 30)
    assert tracks[0, TIMES:CENTRES].tolist() == [5 / 30, 4 / 30, 3 / 30]
    assert tracks[0, CENTRES:].tolist() == [15, 12, 9, 20, 16, 12]
    assert tracks[0, DIRECTION : DIRECTION + 2] == pytest.approx([0.6, 0.8])


def test_a_track_that_was_lost_has_the_filter_of_a_straight_line() -> None:
    """OC-SORT runs the filter again from where the track was last seen, as if it had been seen all the time."""
    lost = whole = np.empty((0, ALL_ROWS))
    for step in range(9):
        move(lost, 1 / STEPS)
        move(whole, 1 / STEPS)
        box, now = (100 + 2.0 * step, 50, 40, 40), step / 30
        whole = seen(whole, box, now=now, before=now - 1 / 30)
        if step < 4 or step == 8:
            lost = seen(lost, box, now=now, before=now - 1 / 30)
    assert np.allclose(lost[0, :11], whole[0, :11])


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
def test_boxes_that_belong_together_are_found(seed: int, count: int, others: int) -> None:
    """Against every overlap one by one, and SciPy's assignment."""
    rng = np.random.default_rng(seed)
    ones, twos = (
        np.concatenate((corner := rng.uniform(0, 100, (n, 2)), corner + rng.uniform(1, 60, (n, 2))), axis=1)
        for n in (count, others)
    )
    classes, drift = (rng.integers(0, 2, count), rng.integers(0, 2, others)), rng.uniform(0, 0.2)
    weights, grid = (rng.random(count), rng.random(others)), np.zeros((count, others))
    for row in range(count):
        for column in range(others):
            grow = drift * math.sqrt((ones[row, 2:] - ones[row, :2]).prod()) * np.array([-1, -1, 1, 1])
            a, b = ones[row] + grow, twos[column] + grow
            common = np.clip(np.minimum(a[2:], b[2:]) - np.maximum(a[:2], b[:2]), 0, None).prod()
            iou = common / ((a[2:] - a[:2]).prod() + (b[2:] - b[:2]).prod() - common)
            if iou >= 0.2 and classes[0][row] == classes[1][column]:
                grid[row, column] = min(1, (iou - 0.1) / 0.7) * weights[0][row] * weights[1][column]
    found = pair((ones, classes[0], weights[0]), (twos, classes[1], weights[1]), 0.2, scale=(0.1, 0.8), drift=drift)
    assert len(set(found.rows)) == len(set(found.columns)) == len(found.rows)
    assert found.worth == pytest.approx(grid[found.rows, found.columns], abs=1e-4)
    assert found.worth.sum() == pytest.approx(grid[linear_sum_assignment(-grid)].sum(), abs=1e-4)


def test_more_pairs_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    boxes = np.tile(np.array([[10.0, 10, 50, 50]]), (90, 1)), np.zeros(90, np.int64), np.ones(90)
    assert sorted(pair(boxes, boxes, 0.5).columns) == list(range(90))
    monkeypatch.setattr(call, "ROOM", 1)
    monkeypatch.setattr(call._scratch, "buffers", {})
    tracks = np.empty((0, ROWS))
    for _ in range(3):
        tracks = seen(tracks, *[(30.0, 30.0, 40.0, 40.0)] * 120)
    assert tracks.shape == (120, ROWS)


def test_nothing_to_pair() -> None:
    none, one = (np.empty((0, 4)), np.empty(0), np.empty(0)), (np.array([[0.0, 0, 9, 9]]), np.zeros(1), np.ones(1))
    assert all(len(pair(*boxes, 0.1).rows) == 0 for boxes in ((none, one), (one, none), (none, none)))
    assert len(assign(pair(none, one, 0.1)).rows) == 0
