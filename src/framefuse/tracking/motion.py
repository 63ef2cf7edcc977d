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

from functools import lru_cache
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
    move, noise = _moves(steps)
    moved: Array = move @ states
    moved[VARIANCE:] += noise * _squared(states)
    return moved


@lru_cache(maxsize=64)
def _moves(n: float) -> tuple[Array, Array]:
    """(11, 11) what n steps do to the rows of `states`, and (3, 1) the noise that they add to the last three."""
    move = np.eye(ROWS)
    move[range(4), range(4, 8)] = n
    move[VARIANCE, VARIANCE + 1 :] = 2 * n, n * n
    move[VARIANCE + 1, VARIANCE + 2] = n
    twice, thrice = max(0.0, n * (n - 1) / 2), max(0.0, n * (n - 1) * (2 * n - 1) / 6)
    return move, np.array([[n * OF_POSITION + thrice * OF_VELOCITY], [twice * OF_VELOCITY], [n * OF_VELOCITY]])


def correct(states: Array, boxes: Array) -> Array:
    """The states after an observation of each, (4, n)."""
    after, missed = states.copy(), boxes - states[POSITION]
    gains = states[VARIANCE : VARIANCE + 2] / (states[VARIANCE] + OF_POSITION * _squared(boxes))
    moving = after[:VARIANCE].reshape(2, 4, -1)
    moving += gains[:, None] * missed
    after[VARIANCE : VARIANCE + 2] *= 1 - gains[0]
    after[VARIANCE + 2] -= gains[1] * states[VARIANCE + 1]
    return after


def corners(boxes: Array) -> Array:
    """(4, n) x1, y1, x2, y2 of boxes given by centre, width and height."""
    half = np.maximum(boxes[SIZE], 0) / 2
    return np.concatenate((boxes[:2] - half, boxes[:2] + half))


def _squared(boxes: Array) -> Array:
    """(n,) the square of each object's size: its area, at least one pixel."""
    area: Array = np.maximum(boxes[2] * boxes[3], 1.0)
    return area
