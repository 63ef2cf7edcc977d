"""Tracks in TVM TensorIR, CPU nests: motion, overlap, and which box continues which track.

    track_move       Kalman filters, any time on
    track_follow     a frame of ByteTrack or OC-SORT: which box continues which track, and the tracks after it
    track_pairs      the boxes of two sets that belong together
    track_assign     the best of any pairs, none sharing a box with another
    track_bridge     the objects of two frames, paired, and how much they differ

`_tir_rows.py` says what the rows of `tracks` and `boxes` hold. Pairs are lists by track: those of track i are
starts[i]..starts[i + 1] of `columns` (the box) and `worth`. Where they do not fit, they are only counted, and the
caller comes again with more room.
"""

from __future__ import annotations

import math

from tvm import tirx
from tvm.script import tirx as T

from ..tir.base import lets, variables
from ._tir_rows import (
    BOX_CLASS,
    BOX_CONFIDENCE,
    BOX_ROWS,
    CENTRES,
    CHANGED,
    CLASS,
    CONFIDENCE,
    CORNERS,
    DIRECTION,
    FILTER,
    FLOATS,
    HITS,
    ID,
    INTS,
    LAST,
    MOVED,
    OBJECTS,
    REMEMBERED,
    SAVED,
    SEEN,
    SHOWN,
    TIMES,
    TOLD,
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
LARGEST = 1e6
"""Pixels; a box with a longer side is none."""
SPAN = 0.1 + 1e-6
"""Seconds over which a direction is measured."""
MOST_STEPS = 30
"""Of a re-update."""
STEPS = 30.0
"""Of the filter in a second, as in `call.py`."""
STRONG, WEAK, AGAIN, NEW = range(4)
"""Steps of matching: see `tracking/bytetrack.py`; AGAIN is OC-SORT's recovery."""

OWNER, WAY, STATE, TOUCHED, OF = range(INTS)
"""Rows of the integers of an assignment, by box: its track, the track from which the search reached it, whether the
search has not met it (0), has met it (1) or is done with it (2); then the boxes that it has met, as a list; and its row
among the detections."""
PRICE, DISTANCE, SHARED = range(FLOATS)
"""Rows of the floats of an assignment, by box. SHARED: area that a track has in common with it."""
COUNT, ROW, COLUMN, BEFORE, END = range(5)
NEXT, TRACKS, ROOM = range(3)

ASIN = 1.570796305, -0.2145988016, 0.0889789874, -0.0501743046, 0.030891881, -0.0170881256, 0.0066700901, -0.0012624911
HUGE = 1e300
ONE, ZERO = tirx.const(1.0, "float64"), tirx.const(0.0, "float64")


def f64(value):
    return tirx.const(value, "float64")


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


@T.inline
def move(tracks, i, steps):
    """x += n v, and P = F P F' + Q of n single steps, in closed form, so that a fractional n has a meaning too."""
    size: T.let = T.max(tracks[i, 2] * tracks[i, 3], ONE)
    twice: T.let = T.max(ZERO, steps * (steps - ONE) / f64(2)) * f64(OF_VELOCITY)
    thrice: T.let = T.max(ZERO, steps * (steps - ONE) * (f64(2) * steps - ONE) / f64(6)) * f64(OF_VELOCITY)
    tracks[i, VARIANCE] = (
        tracks[i, VARIANCE]
        + steps * (f64(2) * tracks[i, VARIANCE + 1] + steps * tracks[i, VARIANCE + 2])
        + size * (steps * f64(OF_POSITION) + thrice)
    )
    tracks[i, VARIANCE + 1] = tracks[i, VARIANCE + 1] + steps * tracks[i, VARIANCE + 2] + size * twice
    tracks[i, VARIANCE + 2] = tracks[i, VARIANCE + 2] + size * steps * f64(OF_VELOCITY)
    for axis in T.unroll(4):
        tracks[i, axis] = tracks[i, axis] + steps * tracks[i, VELOCITY + axis]


@T.inline
def correct(tracks, i, seen):
    """The filter after an observation: K = P H' / (H P H' + R)."""
    noise: T.let = tracks[i, VARIANCE] + f64(OF_POSITION) * T.max(seen[2] * seen[3], ONE)
    for axis in T.unroll(4):
        missed: T.let = (seen[axis] - tracks[i, axis]) / noise
        tracks[i, VELOCITY + axis] = tracks[i, VELOCITY + axis] + tracks[i, VARIANCE + 1] * missed
        tracks[i, axis] = tracks[i, axis] + tracks[i, VARIANCE] * missed
    tracks[i, VARIANCE + 2] = tracks[i, VARIANCE + 2] - tracks[i, VARIANCE + 1] * tracks[i, VARIANCE + 1] / noise
    tracks[i, VARIANCE + 1] = tracks[i, VARIANCE + 1] * (ONE - tracks[i, VARIANCE] / noise)
    tracks[i, VARIANCE] = tracks[i, VARIANCE] * (ONE - tracks[i, VARIANCE] / noise)


@T.inline
def update_again(tracks, i, boxes, j, gap, step, seen):
    """The filter runs again from its last observation, along a straight line to box j, `gap` seconds later."""
    steps: T.let = T.Cast("int32", T.min(T.max(T.round(gap / step), ONE), f64(MOST_STEPS)))
    for row in T.unroll(FILTER):
        tracks[i, row] = tracks[i, SAVED + row]
    for number in T.serial(1, steps + 1):
        move(tracks, i, gap * f64(STEPS) / T.Cast("float64", steps))
        if number < steps:
            for row in T.unroll(4):
                part: T.let = T.Cast("float64", number) / T.Cast("float64", steps)
                seen[row] = tracks[i, LAST + row] + (boxes[row, j] - tracks[i, LAST + row]) * part
            correct(tracks, i, seen)


def reference(tracks, i, earliest, axis):
    """The centre from which a direction counts: that of the oldest observation since `earliest`, or the newest one."""
    number = sum((tracks[i, TIMES + k] >= earliest).astype("int32") for k in range(1, REMEMBERED))
    return tracks[i, CENTRES + REMEMBERED * axis + number]


def arcsine(x):
    """Within 2e-8 (Abramowitz and Stegun, 4.4.46); a call of libm's would have to be linked."""
    size, total = tirx.max(x, -x), ZERO
    for term in reversed(ASIN):
        total = total * size + f64(term)
    angle = f64(math.pi / 2) - tirx.sqrt(ONE - size) * total
    return tirx.Select(x < ZERO, -angle, angle)


def length_of(x, y):
    return tirx.max(tirx.sqrt(x * x + y * y), f64(1e-9))


@T.inline
def point(tracks, i, boxes, j, earliest, way):
    """The direction from where a track was to box j."""
    for axis in T.unroll(2):
        way[axis] = boxes[axis, j] - reference(tracks, i, earliest, axis)
    for axis in T.unroll(2):
        tracks[i, DIRECTION + axis] = way[axis] / length_of(way[0], way[1])


@T.inline
def remember(tracks, i, boxes, j, now):
    """The observation, and the filter after it."""
    for row in T.unroll(4):
        tracks[i, LAST + row] = boxes[row, j]
    for row in T.unroll(FILTER):
        tracks[i, SAVED + row] = tracks[i, row]
    for back in T.unroll(REMEMBERED - 1):
        for row in T.unroll(3):
            at: T.let = TIMES + REMEMBERED * row + REMEMBERED - 1 - back
            tracks[i, at] = tracks[i, at - 1]
    tracks[i, TIMES] = now
    tracks[i, CENTRES] = boxes[0, j]
    tracks[i, CENTRES + REMEMBERED] = boxes[1, j]


@T.inline
def note(tracks, i, boxes, j, now):
    """What a box says beside its place."""
    tracks[i, CLASS] = boxes[BOX_CLASS, j]
    tracks[i, CONFIDENCE] = boxes[BOX_CONFIDENCE, j]
    tracks[i, SEEN] = now
    tracks[i, HITS] = tracks[i, HITS] + ONE


@T.inline
def name(tracks, i, ids, row, tally, needed):
    """ids of the box: that of its track, which gets one when it has been seen often enough."""
    if T.And(tracks[i, ID] < ZERO, tracks[i, HITS] >= needed):
        tracks[i, ID] = T.Cast("float64", tally[NEXT])
        tally[NEXT] = tally[NEXT] + T.int64(1)
    ids[row] = T.Cast("int64", tracks[i, ID])


@T.prim_func(s_tir=True)
def track_move(steps: T.float64, tracks: T.Buffer(("count", "rows"), "float64", align=8)):
    """Kalman filters, any time on."""
    T.func_attr({"tirx.noalias": True, "global_symbol": "track_move"})
    count = T.int32()
    for i in T.serial(count):
        move(tracks, i, steps)


@T.inline
def join(
    floor, zero, full, drift, ones, others, classes, other_classes, weights, other_weights, rooted,
    mates, worths, starts, columns, worth, offers, ints, floats, corners, count, boxes_count, room,
    place, length, grow, at, total,
):  # fmt: skip
    """mates: the best pairs of one class, and their worths; starts[count]: the room that they need. A pair is worth its
    weights, or with `rooted` their square roots, by how far its IoU is from zero to full."""
    clear(count, boxes_count, mates, ints)
    total[0] = 0
    for j in T.serial(boxes_count):
        for axis in T.unroll(4):
            corners[axis, j] = T.Cast("float64", others[j, axis])
    for i in T.serial(count):
        starts[i] = T.Cast("int64", total[0])
        for axis in T.unroll(4):
            place[axis] = T.Cast("float64", ones[i, axis])
        grow[0] = drift * T.sqrt(T.max((place[2] - place[0]) * (place[3] - place[1]), ZERO))
        share(place, corners, 0, boxes_count, grow[0], floats)
        for j in T.serial(boxes_count):
            if T.And(floats[SHARED, j] > ZERO, classes[i] == other_classes[j]):
                value: T.let = overlap(place, corners, 0, j, grow[0], floats[SHARED, j])
                if value >= floor:
                    both: T.let = T.Cast("float64", weights[i] * other_weights[j])
                    weight: T.let = T.sqrt(both) if rooted else both
                    append(columns, worth, total, room, j, weight * T.min((value - zero) / (full - zero), ONE))
    starts[count] = T.Cast("int64", total[0])
    if total[0] <= room:
        assign(count, starts, columns, worth, mates, offers, ints, floats, at, length)
        for i in T.serial(count):
            for k in T.serial(starts[i], starts[i + 1]):
                if columns[k] == mates[i]:
                    worths[i] = worth[k]


@T.prim_func(s_tir=True)
def track_pairs(
    floor: T.float64, zero: T.float64, full: T.float64, drift: T.float64,
    ones: T.Buffer(("count", 4), "float32", align=4), others: T.Buffer(("boxes_count", 4), "float32", align=4),
    classes: T.Buffer(("count",), "int64", align=8), other_classes: T.Buffer(("boxes_count",), "int64", align=8),
    weights: T.Buffer(("count",), "float32", align=4), other_weights: T.Buffer(("boxes_count",), "float32", align=4),
    mates: T.Buffer(("count",), "int64", align=8), worths: T.Buffer(("count",), "float64", align=8),
    starts: T.Buffer(("ends",), "int64", align=8), columns: T.Buffer(("room",), "int64", align=8),
    worth: T.Buffer(("room",), "float64", align=8), offers: T.Buffer(("count",), "float64", align=8),
    ints: T.Buffer((INTS, "boxes_count"), "int32", align=4),
    floats: T.Buffer((FLOATS, "boxes_count"), "float64", align=8),
    corners: T.Buffer((4, "boxes_count"), "float64", align=8),
):  # fmt: skip
    """The best pairs of one class; one is worth its weights, by how far its IoU is from zero to full."""
    T.func_attr({"tirx.noalias": True, "global_symbol": "track_pairs"})
    count, boxes_count, room = T.int32(), T.int32(), T.int32()
    place, length, grow = variables("float64", 4, 2, 1)
    at, total = variables("int32", 5, 1)
    join(
        floor, zero, full, drift, ones, others, classes, other_classes, weights, other_weights, False,
        mates, worths, starts, columns, worth, offers, ints, floats, corners, count, boxes_count, room,
        place, length, grow, at, total,
    )  # fmt: skip


@T.prim_func(s_tir=True)
def track_assign(
    starts: T.Buffer(("ends",), "int64", align=8), columns: T.Buffer(("room",), "int64", align=8),
    worth: T.Buffer(("room",), "float64", align=8), mates: T.Buffer(("count",), "int64", align=8),
    offers: T.Buffer(("count",), "float64", align=8), ints: T.Buffer((INTS, "boxes_count"), "int32", align=4),
    floats: T.Buffer((FLOATS, "boxes_count"), "float64", align=8),
):  # fmt: skip
    """mates: the box of each track, -1 without one."""
    T.func_attr({"tirx.noalias": True, "global_symbol": "track_assign"})
    count, boxes_count = T.int32(), T.int32()
    at = T.alloc_buffer((5,), "int32")
    length = T.alloc_buffer((2,), "float64")
    clear(count, boxes_count, mates, ints)
    assign(count, starts, columns, worth, mates, offers, ints, floats, at, length)


@T.inline
def put(ends, facts, labels, total, first, i, last, j, class_id, begin, end):
    """One more object: where it is in the first frame and in the last, and how sure each is of it."""
    for axis in T.unroll(4):
        ends[0, total[0], axis] = first[i, axis]
        ends[1, total[0], axis] = last[j, axis]
    facts[0, total[0]] = begin
    facts[1, total[0]] = end
    labels[total[0]] = class_id
    total[0] = total[0] + 1


@T.prim_func(s_tir=True)
def track_bridge(
    floor: T.float64, drift: T.float64,
    ones: T.Buffer(("count", 4), "float32", align=4), others: T.Buffer(("boxes_count", 4), "float32", align=4),
    classes: T.Buffer(("count",), "int64", align=8), other_classes: T.Buffer(("boxes_count",), "int64", align=8),
    weights: T.Buffer(("count",), "float32", align=4), other_weights: T.Buffer(("boxes_count",), "float32", align=4),
    ends: T.Buffer((2, "most", 4), "float32", align=4), facts: T.Buffer((2, "most"), "float32", align=4),
    labels: T.Buffer(("most",), "int64", align=8), told: T.Buffer((TOLD,), "float64", align=8),
    mates: T.Buffer(("count",), "int64", align=8), worths: T.Buffer(("count",), "float64", align=8),
    starts: T.Buffer(("lists",), "int64", align=8), columns: T.Buffer(("room",), "int64", align=8),
    worth: T.Buffer(("room",), "float64", align=8), offers: T.Buffer(("count",), "float64", align=8),
    ints: T.Buffer((INTS, "boxes_count"), "int32", align=4),
    floats: T.Buffer((FLOATS, "boxes_count"), "float64", align=8),
    corners: T.Buffer((4, "boxes_count"), "float64", align=8),
):  # fmt: skip
    """The objects of two frames: pairs by rows, then those of one frame alone, with what they are in both."""
    T.func_attr({"tirx.noalias": True, "global_symbol": "track_bridge"})
    count, boxes_count, room = T.int32(), T.int32(), T.int32()
    place, length, grow = variables("float64", 4, 2, 1)
    at, total = variables("int32", 5, 1)
    join(
        floor, ZERO, ONE, drift, ones, others, classes, other_classes, weights, other_weights, True,
        mates, worths, starts, columns, worth, offers, ints, floats, corners, count, boxes_count, room,
        place, length, grow, at, total,
    )  # fmt: skip
    for number in T.unroll(TOLD):
        told[number] = ZERO
    if starts[count] <= T.Cast("int64", room):
        total[0] = 0
        for i in T.serial(count):
            if mates[i] >= T.int64(0):
                j: T.let = T.Cast("int32", mates[i])
                both: T.let = T.Cast("float64", weights[i]) + T.Cast("float64", other_weights[j])
                length[0] = ZERO
                for axis in T.unroll(4):
                    length[0] = length[0] + T.abs(T.Cast("float64", others[j, axis] - ones[i, axis]))
                area: T.let = T.Cast("float64", ones[i, 2] - ones[i, 0]) * T.Cast("float64", ones[i, 3] - ones[i, 1])
                told[SHOWN] = told[SHOWN] + both
                told[MOVED] = told[MOVED] + both * length[0] / T.sqrt(T.max(area, ONE))
                told[CHANGED] = told[CHANGED] + T.Cast("float64", T.abs(weights[i] - other_weights[j]))
                put(ends, facts, labels, total, ones, i, others, j, classes[i], weights[i], other_weights[j])
        for i in T.serial(count):
            if mates[i] < T.int64(0):
                put(ends, facts, labels, total, ones, i, ones, i, classes[i], weights[i], T.float32(0))
        for j in T.serial(boxes_count):
            if ints[OWNER, j] < 0:
                put(ends, facts, labels, total, others, j, others, j, other_classes[j], T.float32(0), other_weights[j])
        told[OBJECTS] = T.Cast("float64", total[0])


def may_continue(step, tracks, i, before):
    """Whether a track takes part in a step."""
    counts = tracks[i, ID] >= ZERO
    return tirx.all(
        tirx.Select(step == NEW, tirx.Not(counts), counts), tirx.any(step != WEAK, tracks[i, SEEN] == before)
    )


@T.prim_func(s_tir=True)
def track_follow(
    now: T.float64, before: T.float64, interval: T.float64, low: T.float64, high: T.float64, new: T.float64,
    floor: T.float64, buffer: T.float64, confirm: T.float64, agnostic: T.int32, momentum: T.int32,
    xyxy: T.Buffer(("found", 4), "float32", align=4), class_id: T.Buffer(("found",), "int64", align=8),
    confidence: T.Buffer(("found",), "float32", align=4), tracks: T.Buffer(("count", "rows"), "float64", align=8),
    after: T.Buffer(("most", "rows"), "float64", align=8), ids: T.Buffer(("found",), "int64", align=8),
    tally: T.Buffer((3,), "int64", align=8), mates: T.Buffer(("count",), "int64", align=8),
    starts: T.Buffer(("ends",), "int64", align=8), columns: T.Buffer(("room",), "int64", align=8),
    worth: T.Buffer(("room",), "float64", align=8), offers: T.Buffer(("count",), "float64", align=8),
    boxes: T.Buffer((BOX_ROWS, "wide"), "float64", align=8), ints: T.Buffer((INTS, "wide"), "int32", align=4),
    floats: T.Buffer((FLOATS, "wide"), "float64", align=8),
):  # fmt: skip
    """The tracks `after` a frame, and the ids of its boxes. tally: the next id; tracks after; room that pairs need."""
    T.func_attr({"tirx.noalias": True, "global_symbol": "track_follow"})
    found, count, room, rows = T.int32(), T.int32(), T.int32(), T.int32()
    place, centre, length, grow = variables("float64", 4, 2, 2, 1)
    at, total, usable = variables("int32", 5, 1, 1)
    usable[0] = 0
    for r in T.serial(found):
        ids[r] = T.int64(-1)
        for axis in T.unroll(4):
            place[axis] = T.Cast("float64", xyxy[r, axis])
        width, height = lets(place[2] - place[0], place[3] - place[1])
        if T.And(
            T.And(T.And(width > ZERO, width < f64(LARGEST)), T.And(height > ZERO, height < f64(LARGEST))),
            T.Cast("float64", confidence[r]) >= low,
        ):
            j: T.let = usable[0]
            boxes[0, j] = (place[0] + place[2]) / f64(2)
            boxes[1, j] = (place[1] + place[3]) / f64(2)
            boxes[2, j] = width
            boxes[3, j] = height
            boxes[BOX_CLASS, j] = T.Cast("float64", class_id[r])
            boxes[BOX_CONFIDENCE, j] = T.Cast("float64", confidence[r])
            for axis in T.unroll(4):
                boxes[CORNERS + axis, j] = place[axis]
            ints[OF, j] = r
            usable[0] = j + 1
    clear(count, usable[0], mates, ints)
    tally[ROOM] = T.int64(0)
    for step in T.serial(4):
        if T.Or(step != AGAIN, momentum != 0):
            total[0] = 0
            for i in T.serial(count):
                starts[i] = T.Cast("int64", total[0])
                if T.And(mates[i] < T.int64(0), may_continue(step, tracks, i, before)):
                    grow[0] = f64(UNCERTAIN) * T.sqrt(tracks[i, VARIANCE])
                    top: T.let = T.Select(step == AGAIN, LAST, 0)
                    for axis in T.unroll(2):
                        half: T.let = T.max(tracks[i, top + 2 + axis], ZERO) / f64(2)
                        place[axis] = tracks[i, top + axis] - half
                        place[2 + axis] = tracks[i, top + axis] + half
                    if momentum != 0:
                        for axis in T.unroll(2):
                            centre[axis] = reference(tracks, i, now - f64(SPAN), axis)
                    share(place, boxes, CORNERS, usable[0], grow[0], floats)
                    for j in T.serial(usable[0]):
                        if T.And(floats[SHARED, j] > ZERO, ints[OWNER, j] < 0):
                            value: T.let = overlap(place, boxes, CORNERS, j, grow[0], floats[SHARED, j])
                            strong: T.let = T.Select(boxes[BOX_CONFIDENCE, j] >= high, 1, 0)
                            alike: T.let = T.Or(agnostic != 0, tracks[i, CLASS] == boxes[BOX_CLASS, j])
                            least: T.let = T.Select(step == WEAK, T.max(floor, f64(WEAK_MATCH)), floor)
                            if T.And(T.And(alike, value >= least), strong == T.Select(step == WEAK, 0, 1)):
                                if step != STRONG:
                                    append(columns, worth, total, room, j, value)
                                elif momentum == 0:
                                    append(columns, worth, total, room, j, value * boxes[BOX_CONFIDENCE, j])
                                else:
                                    x, y = lets(boxes[0, j] - centre[0], boxes[1, j] - centre[1])
                                    along: T.let = tracks[i, DIRECTION] * x + tracks[i, DIRECTION + 1] * y
                                    angle: T.let = arcsine(T.max(T.min(along / length_of(x, y), ONE), -ONE))
                                    both: T.let = value + angle * f64(INERTIA / math.pi) * boxes[BOX_CONFIDENCE, j]
                                    append(columns, worth, total, room, j, T.max(both, f64(LEAST)))
            starts[count] = T.Cast("int64", total[0])
            tally[ROOM] = T.max(tally[ROOM], starts[count])
            if total[0] <= room:
                assign(count, starts, columns, worth, mates, offers, ints, floats, at, length)
    if tally[ROOM] <= T.Cast("int64", room):
        total[0] = 0
        for i in T.serial(count):
            mate: T.let = T.Cast("int32", mates[i])
            if T.Or(mate >= 0, T.And(tracks[i, ID] >= ZERO, tracks[i, SEEN] >= now - buffer)):
                k: T.let = total[0]
                for row in T.serial(rows):
                    after[k, row] = tracks[i, row]
                if mate >= 0:
                    if momentum != 0:
                        if after[k, SEEN] < before:
                            update_again(after, k, boxes, mate, now - after[k, SEEN], interval, place)
                        point(after, k, boxes, mate, now - f64(SPAN), centre)
                    for row in T.unroll(4):
                        place[row] = boxes[row, mate]
                    correct(after, k, place)
                    note(after, k, boxes, mate, now)
                    if momentum != 0:
                        remember(after, k, boxes, mate, now)
                    name(after, k, ids, ints[OF, mate], tally, confirm)
                else:
                    for row in T.unroll(2):
                        after[k, VELOCITY + 2 + row] = ZERO
                total[0] = k + 1
        for j in T.serial(usable[0]):
            if T.And(ints[OWNER, j] < 0, boxes[BOX_CONFIDENCE, j] >= T.max(high, new)):
                k: T.let = total[0]
                for row in T.serial(rows):
                    after[k, row] = ZERO
                for row in T.unroll(4):
                    after[k, row] = boxes[row, j]
                after[k, VARIANCE] = T.max(boxes[2, j] * boxes[3, j], ONE) * f64(4 * OF_POSITION)
                after[k, VARIANCE + 2] = T.max(boxes[2, j] * boxes[3, j], ONE) * f64(400 * OF_VELOCITY)
                after[k, ID] = -ONE
                note(after, k, boxes, j, now)
                if momentum != 0:
                    for row in T.unroll(REMEMBERED):
                        after[k, TIMES + row] = f64(-HUGE)
                    remember(after, k, boxes, j, now)
                name(after, k, ids, ints[OF, j], tally, confirm)
                total[0] = k + 1
        tally[TRACKS] = T.Cast("int64", total[0])


def variants():
    """Every variant: {global symbol: PrimFunc}."""
    kernels = track_move, track_pairs, track_assign, track_follow, track_bridge
    return {kernel.attrs["global_symbol"]: kernel for kernel in kernels}
