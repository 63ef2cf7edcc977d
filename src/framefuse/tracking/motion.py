"""Motion: one Kalman filter with constant velocity for all tracks at once, in arrays.

The four coordinates of a box (centre x, centre y, width, height) move independently of each other, so that a track is four
filters with a position and a velocity each: two means and the three entries of a symmetric 2x2 covariance. `states` holds
them as rows, (20, tracks) float64: four positions, four velocities, then four each of the variance of the position, its
covariance with the velocity, and the variance of the velocity.

Noise grows with the size of the object, by the constants of ByteTrack and DeepSORT (standard deviations of 1/20 of the
size and 1/160 of it a step). A step there is a frame; here it is 1/30 s, and `predict` takes any number of steps, n, with
the result of n single ones, in closed form, so that a fractional n has a meaning too.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

STEPS = 30.0
"""Steps in a second."""
ROWS = 20
POSITION, VELOCITY, SIZE = slice(0, 4), slice(4, 8), slice(2, 4)
SIZE_VELOCITY = slice(6, 8)
WEIGHT_POSITION, WEIGHT_VELOCITY = 1 / 20, 1 / 160


def begin(boxes: Array) -> Array:
    """States (20, n) of new tracks that stand still, from boxes (4, n): centre, width, height."""
    states = np.zeros((5, *boxes.shape))
    states[0] = boxes
    squared = _squared(boxes)
    states[2] = (2 * WEIGHT_POSITION) ** 2 * squared
    states[4] = (10 * WEIGHT_VELOCITY) ** 2 * squared
    return states.reshape(ROWS, -1)


def predict(states: Array, steps: float) -> Array:
    """The states after a time of `steps`: x += n v, and P = F P F' + Q of n single steps."""
    n = steps
    move = np.array(
        [[1, n, 0, 0, 0], [0, 1, 0, 0, 0], [0, 0, 1, 2 * n, n * n], [0, 0, 0, 1, n], [0, 0, 0, 0, 1]], np.float64
    )
    of_position, of_velocity = WEIGHT_POSITION**2, WEIGHT_VELOCITY**2
    noise = np.array(
        [
            n * of_position + max(0.0, n * (n - 1) * (2 * n - 1) / 6) * of_velocity,
            max(0.0, n * (n - 1) / 2) * of_velocity,
            n * of_velocity,
        ]
    )
    count = states.shape[1]
    moved = (move @ states.reshape(5, -1)).reshape(5, 4, count)
    moved[2:] += noise[:, None, None] * _squared(states[POSITION])
    result: Array = moved.reshape(ROWS, count)
    return result


def correct(states: Array, boxes: Array) -> Array:
    """The states after an observation of each, (4, n)."""
    mean, velocity, variance, covariance, of_velocity = states.reshape(5, *boxes.shape)
    gain = 1 / (variance + WEIGHT_POSITION**2 * _squared(boxes))
    by_position, by_velocity = variance * gain, covariance * gain
    missed, rest = boxes - mean, 1 - by_position
    parts = (
        mean + by_position * missed,
        velocity + by_velocity * missed,
        variance * rest,
        covariance * rest,
        of_velocity - by_velocity * covariance,
    )
    return np.concatenate(parts)


def corners(boxes: Array) -> Array:
    """(4, n) x1, y1, x2, y2 of boxes given by centre, width and height."""
    half = np.maximum(boxes[SIZE], 0) / 2
    return np.concatenate((boxes[:2] - half, boxes[:2] + half))


def _squared(boxes: Array) -> Array:
    """(n,) the square of each object's size: its area, at least one pixel."""
    area: Array = np.maximum(boxes[2] * boxes[3], 1.0)
    return area
