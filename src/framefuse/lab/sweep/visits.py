"""Visits: zones entered and lines crossed by tracks, as `tracking.events` counts them, for all frames at once.

The only difference: a box that jumps counts here.
"""

from __future__ import annotations

import numpy as np

from framefuse.lab.sweep.boxes import Array, Tracks
from framefuse.tracking.events import MARGIN, SMALL
from framefuse.tracking.zones import Line, Places, Zone


def visits(tracks: Tracks, places: Places, buffer: float) -> tuple[Array, Array, Array]:
    """What each appearance of a track, which ends when it has not been seen for `buffer` seconds, has done.

    Args:
        tracks: with all their boxes, also those that are not shown.

    Returns:
        (n,) the highest confidence of its boxes, zones entered and lines crossed.
    """
    table, rows = tracks.table, tracks.rows
    frame = table.frame[rows]
    first = np.zeros(len(rows), np.bool_)
    first[1:] = table.seconds[np.maximum(frame[1:] - 1, 0)] - table.seconds[frame[:-1]] > buffer
    first[tracks.starts] = True
    of = np.cumsum(first) - 1
    several = np.bincount(of)[of] > 1  # seen once: no event
    rows, frame, first = rows[several], frame[several], first[several]
    of, class_id = np.cumsum(first) - 1, table.found.class_id[rows]
    sizes = np.array([(one.width, one.height) for one in table.frames]).reshape(-1, 2)[frame]
    boxes = np.clip(table.found.xyxy[rows].astype(np.float64), 0, np.tile(sizes, 2))
    diagonals = np.hypot(*(boxes[:, 2:] - boxes[:, :2]).T)
    centres = (boxes[:, :2] + boxes[:, 2:]) / 2
    feet = np.stack((centres[:, 0], boxes[:, 3]), 1).clip(0.01, sizes - 0.01)
    best, done = np.zeros(int(first.sum())), np.zeros((2, int(first.sum())), np.int64)
    np.maximum.at(best, of, table.found.confidence[rows])
    for size in {(one.width, one.height) for one in table.frames}:
        at, _ = places.at(*size)
        for place in (*at.zones, *at.lines):
            here = (sizes == size).all(axis=1)
            here &= np.isin(class_id, list(place.classes)) if place.classes else True
            points, diagonal = (centres if place.anchor == "centre" else feet)[here], diagonals[here]
            if isinstance(place, Line):
                np.add.at(done[1], of[here][_crossings(place, points, diagonal, of[here])], 1)
            elif isinstance(place, Zone):
                np.add.at(done[0], of[here][_entries(place, points, diagonal, of[here])], 1)
    return best, *done


def _entries(zone: Zone, points: Array, diagonals: Array, of: Array) -> Array:
    """At which boxes a zone is entered: inside by a margin, except for the first, and before that outside."""
    depth, first = zone.depth(points), np.diff(of, prepend=-1) > 0
    margin = np.where(first, 0, np.minimum(MARGIN * diagonals, SMALL * zone.span))
    clear = np.flatnonzero(first | (np.abs(depth) > margin))
    inside = depth[clear] > margin[clear]
    entered: Array = clear[inside & (first[clear] | ~np.roll(inside, 1))]
    return entered


def _crossings(line: Line, points: Array, diagonals: Array, of: Array) -> Array:
    """At which boxes a line has been crossed since the last one that is clearly on a side of it."""
    side = line.side(points)
    clear = np.flatnonzero(np.abs(side) > MARGIN * diagonals)
    old, new = clear[:-1], clear[1:]
    turned = ((side[old] > 0) != (side[new] > 0)) & (of[old] == of[new])
    crossed = [line.crossed(tuple(points[a]), tuple(points[b])) for a, b in zip(old[turned], new[turned], strict=True)]
    done: Array = new[turned][np.array(crossed, np.bool_)]
    return done
