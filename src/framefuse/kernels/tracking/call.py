"""Tracks on the CPU: the motion of all at once, and which boxes belong to which. `_tir_rows.py` says what arrays hold.

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
from framefuse.kernels.tracking._tir_rows import BOX_ROWS, FLOATS, ID, INTS, ROWS, TOLD

Array = NDArray[Any]
Boxes = tuple[Array, Array, Array]
"""Corners (n, 4), classes (n,), and confidences or weights (n,)."""

STEPS = 30.0
"""Steps in a second."""
ROOM = 4096
"""Pairs that there is room for at first."""
NO_BOX = np.full((1, 4), np.nan), np.zeros(1), np.zeros(1)
"""A kernel takes no empty array."""


class Pairs(NamedTuple):
    """Track or box `rows[k]` and box `columns[k]`, in the order of rows, with what the pair is worth."""

    rows: Array
    columns: Array
    worth: Array

    def where(self, chosen: Array) -> Pairs:
        """Those of a mask."""
        at = chosen.nonzero()[0]
        return Pairs(self.rows.take(at), self.columns.take(at), self.worth.take(at))


class Ends(NamedTuple):
    """The objects of two frames, n of them: the pairs, then those that one frame has alone."""

    boxes: Array
    """(2, n, 4) float32: the corners of each in the first frame and in the last; of one alone, the same twice."""
    confidence: Array
    """(2, n) float32; 0 in a frame without it."""
    classes: Array
    """(n,) int64."""
    shown: float
    """Sum of both confidences of the pairs."""
    moved: float
    """The same, each times how far its corners moved, in sizes of the object."""
    changed: float
    """Sum of the changes of confidence of the pairs."""


class Limits(NamedTuple):
    """When a box continues or begins a track: see `TrackerOptions`."""

    low: float
    high: float
    new: float
    least: float
    buffer: float
    confirm: int
    agnostic: bool


def move(tracks: Array, seconds: float) -> None:
    """Bring tracks, (n, 11 or more), to a time that is `seconds` later."""
    if len(tracks):
        _function("track_move")(seconds * STEPS, tracks)


def follow(
    tracks: Array, boxes: Boxes, limits: Limits, now: float, before: float, step: float, first: int
) -> tuple[Array, Array, int]:
    """A frame of ByteTrack, or of OC-SORT if the tracks have all its rows.

    Args:
        tracks: (m, rows), moved to the time of this frame.
        boxes: those that are not boxes (NaN, no area, a side of 1e6 pixels or more) and those below `low` are left out.
        now: seconds.
        before: time of the last frame: only tracks that it has shown are matched with weak boxes.
        step: seconds between two frames, for what OC-SORT draws where a track was lost.
        first: the next id.

    Returns:
        The tracks after it; (n,) int64 ids of the boxes, -1 without one; the next id.
    """
    real = len(boxes[2])
    if not len(tracks):
        tracks = np.zeros((1, tracks.shape[1]))  # without an id and an area: nothing continues it
        tracks[0, ID] = -1
    count, found = len(tracks), max(real, 1)
    after, ids = np.empty((count + found, tracks.shape[1])), np.empty(found, np.int64)
    tally, mates, starts = np.array((first, 0, 0)), np.empty(count, np.int64), np.empty(count + 1, np.int64)
    times, momentum, room = (now, before, step), int(tracks.shape[1] > ROWS), ROOM
    given = (*_typed(boxes if real else NO_BOX), tracks, after, ids, tally, mates, starts)
    work = *_work(count, found), np.empty((BOX_ROWS, found))
    while True:
        columns, worth = _lists(room)
        offers, ints, floats, placed = work
        _function("track_follow")(
            *times, *limits[:6], int(limits.agnostic), momentum, *given, columns, worth, offers, placed, ints, floats
        )
        following, many, room = tally.tolist()
        if room <= len(columns):
            return after[:many], ids[:real], following


def pair(one: Boxes, other: Boxes, least: float, *, scale: tuple[float, float] = (0, 1), drift: float = 0) -> Pairs:
    """The boxes of two frames that belong together: those of one class with IoU >= least, none in two pairs. The sum of
    what the pairs are worth is the largest possible.

    Args:
        one: corners (m, 4), classes (m,) and weights (m,).
        other: n of them.
        scale: a pair is worth the product of its weights, times how far its IoU is from the first to the second value.
        drift: both boxes of a pair are extended on every side, by so many times the size of the first (buffered IoU:
            Yang et al., 2023, arXiv:2211.14317).
    """
    if not (len(one[0]) and len(other[0])):
        return Pairs(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0))
    mates, worths = _join("track_pairs", (least, *scale, drift), _typed(one), _typed(other))
    rows = (mates >= 0).nonzero()[0]
    return Pairs(rows, mates.take(rows), worths.take(rows))


def bridge(one: Boxes, other: Boxes, least: float, *, drift: float) -> Ends:
    """The objects of two frames, with weights that are confidences: those of `pair` and the others, in one call.

    Args:
        one, other, least, drift: as of `pair`; a pair is worth the root of the product of its confidences, times its
            IoU. A frame without objects gets one that is nowhere, of confidence 0.
    """
    one, other = (_typed(boxes if len(boxes[2]) else NO_BOX) for boxes in (one, other))
    most = len(one[2]) + len(other[2])
    boxes, confidence = np.empty((2, most, 4), np.float32), np.empty((2, most), np.float32)
    classes, told = np.empty(most, np.int64), np.empty(TOLD)
    _join("track_bridge", (least, drift), one, other, boxes, confidence, classes, told)
    shown, moved, changed, objects = told.tolist()
    rows = slice(int(objects))
    return Ends(boxes[:, rows], confidence[:, rows], classes[rows], shown, moved, changed)


def _join(kernel: str, numbers: tuple[float, ...], one: Boxes, other: Boxes, *results: Array) -> tuple[Array, Array]:
    """Run a kernel that pairs the boxes of two frames, neither empty, with as much room as the pairs need.

    Returns:
        Of each of the first, its mate among the others, or -1, and what that pair is worth.
    """
    count, others, room = len(one[2]), len(other[2]), ROOM
    starts, mates, worths = np.empty(count + 1, np.int64), np.empty(count, np.int64), np.empty(count)
    work = *_work(count, others), np.empty((4, others))
    given = [array for both in zip(one, other, strict=True) for array in both]
    while True:
        lists = _lists(room)
        _function(kernel)(*numbers, *given, *results, mates, worths, starts, *lists, *work)
        if (room := int(starts[-1])) <= len(lists[0]):
            return mates, worths


def assign(pairs: Pairs) -> Pairs:
    """The pairs, none sharing a row or a column with another, whose worths have the largest sum."""
    if not len(pairs.rows):
        return pairs
    count, others = int(pairs.rows[-1]) + 1, int(pairs.columns.max()) + 1
    starts, mates = pairs.rows.searchsorted(np.arange(count + 1)), np.empty(count, np.int64)
    lists = np.ascontiguousarray(pairs.columns), np.ascontiguousarray(pairs.worth)
    _function("track_assign")(starts, *lists, mates, *_work(count, others))
    return pairs.where(mates.take(pairs.rows) == pairs.columns)


def _typed(boxes: Boxes) -> Boxes:
    """Copies in the types that kernels take."""
    corners, classes, weights = boxes
    return np.array(corners, np.float32, order="C"), np.array(classes, np.int64), np.array(weights, np.float32)


def _work(count: int, others: int) -> tuple[Array, Array, Array]:
    """Scratch of an assignment."""
    return np.empty(count), np.empty((INTS, others), np.int32), np.empty((FLOATS, others))


def _lists(room: int) -> tuple[Array, Array]:
    """Columns and worths of at least so many pairs, this thread's."""
    return _scratch.get("track columns", (room,), np.int64), _scratch.get("track worths", (room,), np.float64)
