"""Tracks in TVM TensorIR, CPU nests: motion, overlap, and which box continues which track.

    track_move       Kalman filters, any time on
    track_observe    Kalman filters after an observation
    track_pairs      which boxes of two sets overlap
    track_assign     the best of such pairs, none sharing a box with another
    track_match      the steps of ByteTrack and OC-SORT: the box of each track

`rows.py` says what the rows of `tracks` and `boxes` hold. Pairs are lists by track: those of track i are
starts[i]..starts[i + 1] of `columns` (the box) and `worth`. Where they do not fit, they are counted only, and the caller
comes again with more room.
"""

from __future__ import annotations

import math

from tvm import tirx
from tvm.script import tirx as T

from .rows import (
    BOX_CLASS,
    BOX_CONFIDENCE,
    CENTRES,
    CLASS,
    CONFIDENCE,
    CORNERS,
    DIRECTION,
    FILTER,
    HITS,
    ID,
    LAST,
    REMEMBERED,
    SAVED,
    SEEN,
    TIMES,
    VARIANCE,
    VELOCITY,
)

OF_POSITION, OF_VELOCITY = 1 / 20**2, 1 / 160**2
"""Variances of the noise, in shares of the object's area."""
UNCERTAIN = 2.0
"""Standard deviations of a predicted place by which boxes are extended before they are compared."""
WEAK_MATCH = 0.5
"""IoU that a weak box needs at least with its track."""
INERTIA = 0.2
"""Weight of the direction beside the overlap."""
LEAST = 1e-6
"""Worth of a pair at least."""
STRONG, WEAK, AGAIN, NEW = range(4)
"""Steps of matching: see `tracking/bytetrack.py`; AGAIN is OC-SORT's recovery."""

OWNER, WAY, STATE, TOUCHED = range(4)
"""Rows of the integers of an assignment, by box: its track, the track from which the search reached it, whether the
search has not met it (0), has met it (1) or is done with it (2); then the boxes that it has met, as a list."""
PRICE, DISTANCE, SHARED = range(3)
"""Rows of the floats of an assignment, by box. SHARED: area that a track has in common with it."""
COUNT, ROW, COLUMN, BEFORE, END = range(5)

HUGE = 1e300
ONE, ZERO = tirx.const(1.0, "float64"), tirx.const(0.0, "float64")


def f64(value):
    return tirx.const(value, "float64")


def area(states, i):
    """The square of an object's size: its area, at least one pixel."""
    return tirx.max(states[2, i] * states[3, i], ONE)


def side(place, others, first, axis, j, grow):
    """Length along an axis that a box and box j of others share when both grow on every side."""
    return (
        tirx.min(place[2 + axis], others[first + 2 + axis, j])
        - tirx.max(place[axis], others[first + axis, j])
        + f64(2) * grow
    )


def overlap(place, others, first, j, grow, both):
    """IoU of boxes that share the area `both`."""
    one = (place[2] - place[0] + f64(2) * grow) * (place[3] - place[1] + f64(2) * grow)
    other = (others[first + 2, j] - others[first, j] + f64(2) * grow) * (
        others[first + 3, j] - others[first + 1, j] + f64(2) * grow
    )
    return both / (one + other - both)


@T.inline
def share(place, others, first, count, grow, floats):
    """floats[SHARED]: areas that a box shares with all others, in a loop that can be vectors."""
    for j in T.serial(count):
        floats[SHARED, j] = T.max(side(place, others, first, 0, j, grow), ZERO) * T.max(
            side(place, others, first, 1, j, grow), ZERO
        )


@T.inline
def append(columns, worth, total, room, j, value):
    if total[0] < room:
        columns[total[0]] = T.Cast("int64", j)
        worth[total[0]] = value
    total[0] = total[0] + 1


@T.inline
def search(i0, starts, columns, worth, mates, offers, ints, floats, at, length):
    """One row of the Hungarian method: the shortest augmenting path from track i0, by Dijkstra over its pairs.

    A pair costs minus its worth, a track without a box nothing. `offers` of tracks and prices of boxes make what is
    left of every cost at least 0; the search ends at a free box, or where a track is best left without one.
    """
    at[COUNT] = 0
    at[ROW] = i0
    at[END] = 0
    length[0] = ZERO
    length[1] = f64(HUGE)
    while at[END] == 0:
        i: T.let = at[ROW]
        for k in T.serial(starts[i], starts[i + 1]):
            j: T.let = T.Cast("int32", columns[k])
            if ints[STATE, j] != 2:
                reached: T.let = length[0] - worth[k] - offers[i] - floats[PRICE, j]
                if T.Or(ints[STATE, j] == 0, reached < floats[DISTANCE, j]):
                    if ints[STATE, j] == 0:
                        ints[STATE, j] = 1
                        ints[TOUCHED, at[COUNT]] = j
                        at[COUNT] = at[COUNT] + 1
                    floats[DISTANCE, j] = reached
                    ints[WAY, j] = i
        if length[0] - offers[i] < length[1]:
            length[1] = length[0] - offers[i]
            at[BEFORE] = i
        at[COLUMN] = -1
        length[0] = length[1]
        for t in T.serial(at[COUNT]):
            j: T.let = ints[TOUCHED, t]
            if T.And(ints[STATE, j] == 1, floats[DISTANCE, j] < length[0]):
                length[0] = floats[DISTANCE, j]
                at[COLUMN] = j
        if at[COLUMN] < 0:
            at[END] = 1
        else:
            ints[STATE, at[COLUMN]] = 2
            if ints[OWNER, at[COLUMN]] < 0:
                at[END] = 1
            else:
                at[ROW] = ints[OWNER, at[COLUMN]]
    offers[i0] = offers[i0] + length[0]
    for t in T.serial(at[COUNT]):
        j: T.let = ints[TOUCHED, t]
        if ints[STATE, j] == 2:
            floats[PRICE, j] = floats[PRICE, j] + floats[DISTANCE, j] - length[0]
            if ints[OWNER, j] >= 0:
                offers[ints[OWNER, j]] = offers[ints[OWNER, j]] + length[0] - floats[DISTANCE, j]
        ints[STATE, j] = 0
    if at[COLUMN] < 0:
        at[COLUMN] = T.Cast("int32", mates[at[BEFORE]])
        mates[at[BEFORE]] = T.int64(-1)
    while at[COLUMN] >= 0:
        i: T.let = ints[WAY, at[COLUMN]]
        at[BEFORE] = T.Cast("int32", mates[i])
        mates[i] = T.Cast("int64", at[COLUMN])
        ints[OWNER, at[COLUMN]] = i
        at[COLUMN] = at[BEFORE]


@T.inline
def clear(count, boxes_count, mates, ints):
    """No track has a box."""
    for i in T.serial(count):
        mates[i] = T.int64(-1)
    for j in T.serial(boxes_count):
        ints[OWNER, j] = -1
        ints[STATE, j] = 0


@T.inline
def assign(count, starts, columns, worth, mates, offers, ints, floats, at, length):
    """mates and owners: the pairs with the largest sum of worths. Tracks without a pair keep their mates."""
    for k in T.serial(starts[count]):
        floats[PRICE, T.Cast("int32", columns[k])] = ZERO
    for i0 in T.serial(count):
        if starts[i0] < starts[i0 + 1]:
            offers[i0] = ZERO
            for k in T.serial(starts[i0], starts[i0 + 1]):
                offers[i0] = T.min(offers[i0], -worth[k] - floats[PRICE, T.Cast("int32", columns[k])])
            search(i0, starts, columns, worth, mates, offers, ints, floats, at, length)


@T.prim_func(s_tir=True)
def track_move(steps: T.float64, tracks: T.Buffer(("rows", "count"), "float64", align=8)):
    """x += n v, and P = F P F' + Q of n single steps, in closed form, so that a fractional n has a meaning too."""
    T.func_attr({"tirx.noalias": True, "global_symbol": "track_move"})
    count = T.int32()
    twice: T.let = T.max(ZERO, steps * (steps - ONE) / f64(2))
    thrice: T.let = T.max(ZERO, steps * (steps - ONE) * (f64(2) * steps - ONE) / f64(6))
    for i in T.serial(count):
        size: T.let = area(tracks, i)
        tracks[VARIANCE, i] = (
            tracks[VARIANCE, i]
            + steps * (f64(2) * tracks[VARIANCE + 1, i] + steps * tracks[VARIANCE + 2, i])
            + size * (steps * f64(OF_POSITION) + thrice * f64(OF_VELOCITY))
        )
        tracks[VARIANCE + 1, i] = (
            tracks[VARIANCE + 1, i] + steps * tracks[VARIANCE + 2, i] + size * twice * f64(OF_VELOCITY)
        )
        tracks[VARIANCE + 2, i] = tracks[VARIANCE + 2, i] + size * steps * f64(OF_VELOCITY)
        for axis in T.unroll(4):
            tracks[axis, i] = tracks[axis, i] + steps * tracks[VELOCITY + axis, i]


def reference(tracks, i, earliest, axis):
    """The centre from which a direction counts: that of the oldest observation since `earliest`, or the newest one."""
    number = sum((tracks[TIMES + k, i] >= earliest).astype("int32") for k in range(1, REMEMBERED))
    return tracks[CENTRES + REMEMBERED * axis + number, i]


def length_of(x, y):
    return tirx.max(tirx.sqrt(x * x + y * y), f64(1e-9))


@T.prim_func(s_tir=True)
def track_observe(
    now: T.float64, earliest: T.float64, momentum: T.int32,
    tracks: T.Buffer(("rows", "count"), "float64", align=8),
    boxes: T.Buffer(("box_rows", "boxes_count"), "float64", align=8),
    which: T.Buffer(("seen",), "int64", align=8), by: T.Buffer(("seen",), "int64", align=8),
):  # fmt: skip
    """Track which[k] has been seen as box by[k]."""
    T.func_attr({"tirx.noalias": True, "global_symbol": "track_observe"})
    seen = T.int32()
    way = T.alloc_buffer((2,), "float64")
    for k in T.serial(seen):
        i: T.let = T.Cast("int32", which[k])
        j: T.let = T.Cast("int32", by[k])
        noise: T.let = tracks[VARIANCE, i] + f64(OF_POSITION) * area(boxes, j)
        for axis in T.unroll(4):
            missed: T.let = (boxes[axis, j] - tracks[axis, i]) / noise
            tracks[VELOCITY + axis, i] = tracks[VELOCITY + axis, i] + tracks[VARIANCE + 1, i] * missed
            tracks[axis, i] = tracks[axis, i] + tracks[VARIANCE, i] * missed
        tracks[VARIANCE + 2, i] = tracks[VARIANCE + 2, i] - tracks[VARIANCE + 1, i] * tracks[VARIANCE + 1, i] / noise
        tracks[VARIANCE + 1, i] = tracks[VARIANCE + 1, i] * (ONE - tracks[VARIANCE, i] / noise)
        tracks[VARIANCE, i] = tracks[VARIANCE, i] * (ONE - tracks[VARIANCE, i] / noise)
        tracks[CLASS, i] = boxes[BOX_CLASS, j]
        tracks[CONFIDENCE, i] = boxes[BOX_CONFIDENCE, j]
        tracks[SEEN, i] = now
        tracks[HITS, i] = tracks[HITS, i] + ONE
        if momentum != 0:
            for axis in T.unroll(2):
                way[axis] = boxes[axis, j] - reference(tracks, i, earliest, axis)
            for axis in T.unroll(2):
                tracks[DIRECTION + axis, i] = way[axis] / length_of(way[0], way[1])
            for row in T.unroll(4):
                tracks[LAST + row, i] = boxes[row, j]
            for row in T.unroll(FILTER):
                tracks[SAVED + row, i] = tracks[row, i]
            for back in T.unroll(REMEMBERED - 1):
                for row in T.unroll(3):
                    at: T.let = TIMES + REMEMBERED * row + REMEMBERED - 1 - back
                    tracks[at, i] = tracks[at - 1, i]
            tracks[TIMES, i] = now
            tracks[CENTRES, i] = boxes[0, j]
            tracks[CENTRES + REMEMBERED, i] = boxes[1, j]


@T.prim_func(s_tir=True)
def track_pairs(
    floor: T.float64, ones: T.Buffer((4, "count"), "float64", align=8),
    others: T.Buffer((4, "boxes_count"), "float64", align=8), margins: T.Buffer(("count",), "float64", align=8),
    classes: T.Buffer(("count",), "int64", align=8), other_classes: T.Buffer(("boxes_count",), "int64", align=8),
    starts: T.Buffer(("ends",), "int64", align=8), columns: T.Buffer(("room",), "int64", align=8),
    worth: T.Buffer(("room",), "float64", align=8), floats: T.Buffer((3, "boxes_count"), "float64", align=8),
):  # fmt: skip
    """Pairs of one class with IoU >= floor, and that as their worth."""
    T.func_attr({"tirx.noalias": True, "global_symbol": "track_pairs"})
    count = T.int32()
    boxes_count = T.int32()
    room = T.int32()
    place = T.alloc_buffer((4,), "float64")
    total = T.alloc_buffer((1,), "int32")
    total[0] = 0
    for i in T.serial(count):
        starts[i] = T.Cast("int64", total[0])
        for row in T.unroll(4):
            place[row] = ones[row, i]
        share(place, others, 0, boxes_count, margins[i], floats)
        for j in T.serial(boxes_count):
            if T.And(floats[SHARED, j] > ZERO, classes[i] == other_classes[j]):
                value: T.let = overlap(place, others, 0, j, margins[i], floats[SHARED, j])
                if value >= floor:
                    append(columns, worth, total, room, j, value)
    starts[count] = T.Cast("int64", total[0])


@T.prim_func(s_tir=True)
def track_assign(
    starts: T.Buffer(("ends",), "int64", align=8), columns: T.Buffer(("room",), "int64", align=8),
    worth: T.Buffer(("room",), "float64", align=8), mates: T.Buffer(("count",), "int64", align=8),
    offers: T.Buffer(("count",), "float64", align=8), ints: T.Buffer((4, "boxes_count"), "int32", align=4),
    floats: T.Buffer((3, "boxes_count"), "float64", align=8),
):  # fmt: skip
    """mates: the box of each track, -1 without one."""
    T.func_attr({"tirx.noalias": True, "global_symbol": "track_assign"})
    count = T.int32()
    boxes_count = T.int32()
    at = T.alloc_buffer((5,), "int32")
    length = T.alloc_buffer((2,), "float64")
    clear(count, boxes_count, mates, ints)
    assign(count, starts, columns, worth, mates, offers, ints, floats, at, length)


def may_continue(step, tracks, i, before):
    """Whether a track takes part in a step."""
    counts = tracks[ID, i] >= ZERO
    return tirx.all(
        tirx.Select(step == NEW, tirx.Not(counts), counts), tirx.any(step != WEAK, tracks[SEEN, i] == before)
    )


@T.prim_func(s_tir=True)
def track_match(
    floor: T.float64, high: T.float64, before: T.float64, earliest: T.float64, agnostic: T.int32, momentum: T.int32,
    tracks: T.Buffer(("rows", "count"), "float64", align=8), boxes: T.Buffer((10, "boxes_count"), "float64", align=8),
    mates: T.Buffer(("count",), "int64", align=8), starts: T.Buffer(("ends",), "int64", align=8),
    columns: T.Buffer(("room",), "int64", align=8), worth: T.Buffer(("room",), "float64", align=8),
    offers: T.Buffer(("count",), "float64", align=8), ints: T.Buffer((4, "boxes_count"), "int32", align=4),
    floats: T.Buffer((3, "boxes_count"), "float64", align=8),
):  # fmt: skip
    """mates: the box of each track, -1 without one. The last of `starts` is the room that the pairs of a step need."""
    T.func_attr({"tirx.noalias": True, "global_symbol": "track_match"})
    count = T.int32()
    boxes_count = T.int32()
    room = T.int32()
    place = T.alloc_buffer((4,), "float64")
    centre = T.alloc_buffer((2,), "float64")
    at = T.alloc_buffer((5,), "int32")
    length = T.alloc_buffer((2,), "float64")
    total = T.alloc_buffer((1,), "int32")
    grow = T.alloc_buffer((1,), "float64")
    clear(count, boxes_count, mates, ints)
    starts[count + 1] = T.int64(0)
    for step in T.serial(4):
        if T.Or(step != AGAIN, momentum != 0):
            total[0] = 0
            for i in T.serial(count):
                starts[i] = T.Cast("int64", total[0])
                if T.And(mates[i] < T.int64(0), may_continue(step, tracks, i, before)):
                    grow[0] = f64(UNCERTAIN) * T.sqrt(tracks[VARIANCE, i])
                    top: T.let = T.Select(step == AGAIN, LAST, 0)
                    for axis in T.unroll(2):
                        half: T.let = T.max(tracks[top + 2 + axis, i], ZERO) / f64(2)
                        place[axis] = tracks[top + axis, i] - half
                        place[2 + axis] = tracks[top + axis, i] + half
                    if momentum != 0:
                        for axis in T.unroll(2):
                            centre[axis] = reference(tracks, i, earliest, axis)
                    share(place, boxes, CORNERS, boxes_count, grow[0], floats)
                    for j in T.serial(boxes_count):
                        if T.And(floats[SHARED, j] > ZERO, ints[OWNER, j] < 0):
                            value: T.let = overlap(place, boxes, CORNERS, j, grow[0], floats[SHARED, j])
                            strong: T.let = T.Select(boxes[BOX_CONFIDENCE, j] >= high, 1, 0)
                            alike: T.let = T.Or(agnostic != 0, tracks[CLASS, i] == boxes[BOX_CLASS, j])
                            least: T.let = T.Select(step == WEAK, T.max(floor, f64(WEAK_MATCH)), floor)
                            if T.And(T.And(alike, value >= least), strong == T.Select(step == WEAK, 0, 1)):
                                if step != STRONG:
                                    append(columns, worth, total, room, j, value)
                                elif momentum == 0:
                                    append(columns, worth, total, room, j, value * boxes[BOX_CONFIDENCE, j])
                                else:
                                    x: T.let = boxes[0, j] - centre[0]
                                    y: T.let = boxes[1, j] - centre[1]
                                    along: T.let = tracks[DIRECTION, i] * x + tracks[DIRECTION + 1, i] * y
                                    agreement: T.let = T.asin(T.max(T.min(along / length_of(x, y), ONE), -ONE)) * f64(
                                        INERTIA / math.pi
                                    )
                                    both: T.let = value + agreement * boxes[BOX_CONFIDENCE, j]
                                    append(columns, worth, total, room, j, T.max(both, f64(LEAST)))
            starts[count] = T.Cast("int64", total[0])
            starts[count + 1] = T.max(starts[count + 1], starts[count])
            if total[0] <= room:
                assign(count, starts, columns, worth, mates, offers, ints, floats, at, length)


def variants():
    """Every variant: {global symbol: PrimFunc}."""
    kernels = track_move, track_observe, track_pairs, track_assign, track_match
    return {kernel.attrs["global_symbol"]: kernel for kernel in kernels}
