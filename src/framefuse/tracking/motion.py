"""Motion: one Kalman filter with constant velocity for all tracks at once, in arrays.

The four coordinates of a box (centre x, centre y, width, height) move independently of each other, each with a position
and a velocity. Noise grows with the size of the object alike in all four, so that they share one covariance. `states`
holds as rows, (11, tracks) float64: four positions, four velocities, the variance of a position, its covariance with
its velocity, and the variance of a velocity.

The constants are those of ByteTrack and DeepSORT: standard deviations of 1/20 of the size, and of 1/160 of it a step. A
step there is a frame; here it is 1/30 s, and `predict` takes any number n of steps, with the result of n single ones in
closed form, so that a fractional n has a meaning too. The size is the square root of the area. The first velocity of a
track is twice as uncertain as theirs, because frames may be far apart.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

STEPS = 30.0
"""Steps in a second."""
ROWS = 11
POSITION, VELOCITY, SIZE, SIZE_VELOCITY = slice(0, 4), slice(4, 8), slice(2, 4), slice(6, 8)
VARIANCE = 8
OF_POSITION, OF_VELOCITY = 1 / 20**2, 1 / 160**2


def begin(boxes: Array) -> Array:
    """States of new tracks that stand still, from boxes (4, n): centre, width, height."""
    states = np.zeros((ROWS, boxes.shape[1]))
    squared = _squared(boxes)
    states[POSITION], states[VARIANCE], states[VARIANCE + 2] = (
        boxes,
        4 * OF_POSITION * squared,
        400 * OF_VELOCITY * squared,
    )
    return states


def predict(states: Array, steps: float) -> Array:
    """The states after a time of `steps`: x += n v, and P = F P F' + Q of n single steps."""
    n, squared = steps, _squared(states)
    moved = states.copy()
    _, covariance, of_velocity = states[VARIANCE:]
    moved[POSITION] += n * states[VELOCITY]
    twice, thrice = max(0.0, n * (n - 1) / 2), max(0.0, n * (n - 1) * (2 * n - 1) / 6)
    moved[VARIANCE] += 2 * n * covariance + n * n * of_velocity + (n * OF_POSITION + thrice * OF_VELOCITY) * squared
    moved[VARIANCE + 1] += n * of_velocity + twice * OF_VELOCITY * squared
    moved[VARIANCE + 2] += n * OF_VELOCITY * squared
    return moved


def correct(states: Array, boxes: Array) -> Array:
    """The states after an observation of each, (4, n)."""
    variance, covariance, of_velocity = states[VARIANCE:]
    by_position = variance / (total := variance + OF_POSITION * _squared(boxes))
    by_velocity, rest = covariance / total, 1 - by_position
    missed = boxes - states[POSITION]
    return np.concatenate(
        (
            states[POSITION] + by_position * missed,
            states[VELOCITY] + by_velocity * missed,
            [variance * rest, covariance * rest, of_velocity - by_velocity * covariance],
        )
    )


def corners(boxes: Array) -> Array:
    """(4, n) x1, y1, x2, y2 of boxes given by centre, width and height."""
    half = np.maximum(boxes[SIZE], 0) / 2
    return np.concatenate((boxes[:2] - half, boxes[:2] + half))


def _squared(boxes: Array) -> Array:
    """(n,) the square of each object's size: its area, at least one pixel."""
    area: Array = np.maximum(boxes[2] * boxes[3], 1.0)
    return area
