"""Tracks on the CPU: the motion of all at once, and which boxes belong to which. `rows.py` says what the arrays hold.

Motion is a Kalman filter with constant velocity. The four coordinates of a box move independently of each other, each
with a position and a velocity. Noise grows with the size of the object alike in all four, so that they share one
covariance. Its constants are those of ByteTrack and DeepSORT: standard deviations of 1/20 of the size, and of 1/160 of
it a step. A step there is a frame; here it is 1/STEPS s. The size is the square root of the area.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from framefuse.kernels.cpu import _function, _scratch
from framefuse.kernels.tracking.rows import ROWS

Array = NDArray[Any]

STEPS = 30.0
"""Steps in a second."""
ROOM = 4096
"""Pairs that there is room for at first."""


class Pairs(NamedTuple):
    """Track or box `rows[k]` and box `columns[k]`, in the order of rows, with what the pair is worth."""

    rows: Array
    columns: Array
    worth: Array

    def where(self, chosen: Array) -> Pairs:
        """Those of a mask."""
        at = chosen.nonzero()[0]
        return Pairs(self.rows.take(at), self.columns.take(at), self.worth.take(at))


def move(tracks: Array, seconds: float) -> None:
    """Bring (11 or more, n) tracks to a time that is `seconds` later."""
    if tracks.size:
        _function("track_move")(seconds * STEPS, tracks)


def observe(tracks: Array, boxes: Array, rows: Array, columns: Array, now: float, earliest: float = 0.0) -> None:
    """Track rows[k] has been seen as box columns[k].

    Args:
        earliest: seconds; the direction of a track counts from where it was then, or since.
    """
    if rows.size:
        _function("track_observe")(now, earliest, int(len(tracks) > ROWS), tracks, boxes, rows, columns)


def match(
    tracks: Array, boxes: Array, *, least: float, high: float, before: float, earliest: float, agnostic: bool
) -> Array:
    """(m,) the box of each track, -1 without one, by the steps of ByteTrack; with all rows of tracks, of OC-SORT.

    Args:
        least: IoU that a pair needs.
        high: confidence from which a box is strong.
        before: time of the last frame: only tracks that it has shown are matched with weak boxes.
        earliest: as of `observe`.
        agnostic: whether classes may differ.
    """
    count, others = tracks.shape[1], boxes.shape[1]
    mates, starts, *work = np.empty(count, np.int64), np.empty(count + 2, np.int64), *_work(count, others)
    limits = least, high, before, earliest, int(agnostic), int(len(tracks) > ROWS)
    room = ROOM
    mates.fill(-1)
    while count and others:
        lists = _lists(room)
        _function("track_match")(*limits, tracks, boxes, mates, starts, *lists, *work)
        if (room := int(starts[-1])) <= len(lists[0]):
            break
    return mates


def pair(ones: Array, others: Array, classes: tuple[Array, Array], least: float, margins: Array | None = None) -> Pairs:
    """Pairs of boxes of one class with IoU >= least, which is their worth, from corners (m, 4) and (n, 4).

    Args:
        margins: (m,) pixels by which both boxes of a pair are extended on every side: wide for a box whose place is
            uncertain (buffered IoU: Yang et al., 2023, arXiv:2211.14317).
    """
    one, other = (np.array(boxes.T, np.float64, order="C") for boxes in (ones, others))
    count, room = len(ones), ROOM
    grow = np.zeros(count) if margins is None else margins
    starts, floats = np.zeros(count + 1, np.int64), np.empty((3, len(others)))
    while count and len(others):
        lists = _lists(room)
        _function("track_pairs")(least, one, other, grow, *classes, starts, *lists, floats)
        if (room := int(starts[-1])) <= len(lists[0]):
            break
    columns, worth = (values[: starts[-1]].copy() for values in _lists(ROOM))
    return Pairs(np.arange(count).repeat(np.diff(starts)), columns, worth)


def assign(pairs: Pairs) -> Pairs:
    """The pairs, none sharing a row or a column with another, whose worths have the largest sum."""
    if not len(pairs.rows):
        return pairs
    count, others = int(pairs.rows[-1]) + 1, int(pairs.columns.max()) + 1
    starts, mates = pairs.rows.searchsorted(np.arange(count + 1)), np.empty(count, np.int64)
    lists = np.ascontiguousarray(pairs.columns), np.ascontiguousarray(pairs.worth)
    _function("track_assign")(starts, *lists, mates, *_work(count, others))
    return pairs.where(mates.take(pairs.rows) == pairs.columns)


def _work(count: int, others: int) -> tuple[Array, Array, Array]:
    """Scratch of an assignment."""
    return np.empty(count), np.empty((4, others), np.int32), np.empty((3, others))


def _lists(room: int) -> tuple[Array, Array]:
    """Columns and worths of at least so many pairs, this thread's."""
    return _scratch.get("track columns", (room,), np.int64), _scratch.get("track worths", (room,), np.float64)
