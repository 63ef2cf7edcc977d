"""Visits: how often tracks enter zones and cross lines, as `tracking.events` counts it, for all frames at once.

The only difference: a box that jumps counts here.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from framefuse.lab.sweep.boxes import ShownTracks
from framefuse.tracking.events import MARGIN, SMALL
from framefuse.tracking.zones import Line, Places, Zone

Array = NDArray[Any]


def count_visits(tracks: ShownTracks, places: Places, buffer: float) -> tuple[int, int]:
    """Zones entered and lines crossed.

    Args:
        buffer: seconds without a box after which a track ends.
    """
    table, rows = tracks.table, tracks.rows
    frame, class_id = table.frame[rows], table.found.class_id[rows]
    first = np.zeros(len(rows), np.bool_)
    first[tracks.starts] = True
    if len(rows):
        lost = table.seconds[np.maximum(frame - 1, 0)] - table.seconds[np.roll(frame, 1)]
        first |= lost > buffer
    starts = np.flatnonzero(first)
    alone = np.diff(starts, append=len(rows)) < 2  # seen once: no event
    first[starts[alone]] = False
    several = np.ones(len(rows), np.bool_)
    several[starts[alone]] = False
    rows, frame, class_id, first = rows[several], frame[several], class_id[several], first[several]
    sizes = np.array([(one.width, one.height) for one in table.frames]).reshape(-1, 2)[frame]
    boxes = np.clip(table.found.xyxy[rows].astype(np.float64), 0, np.tile(sizes, 2))
    diagonals = np.hypot(*(boxes[:, 2:] - boxes[:, :2]).T)
    centres = (boxes[:, :2] + boxes[:, 2:]) / 2
    feet = np.stack((centres[:, 0], boxes[:, 3]), 1).clip(0.01, sizes - 0.01)
    points = {"centre": centres, "bottom": feet}
    entered = crossed = 0
    for size in np.unique(sizes, axis=0).tolist():
        here = (sizes == size).all(axis=1)
        of = np.cumsum(first)[here]
        at, _ = places.at(*size)
        for place in (*at.zones, *at.lines):
            wanted = np.isin(class_id[here], list(place.classes)) if place.classes else np.ones(len(of), np.bool_)
            where, diagonal = points[place.anchor][here], diagonals[here]
            if isinstance(place, Zone):
                entered += _entered(place, where, diagonal, wanted, first[here])
            elif isinstance(place, Line):
                crossed += _crossed(place, where[wanted], diagonal[wanted], of[wanted])
    return entered, crossed


def _entered(zone: Zone, points: Array, diagonals: Array, wanted: Array, first: Array) -> int:
    depth = zone.depth(points)
    margin = np.where(first, 0, np.minimum(MARGIN * diagonals, SMALL * zone.span))
    clear = first | (np.abs(depth) > margin) | ~wanted
    inside = (depth > margin) & wanted
    last = np.maximum.accumulate(np.where(clear, np.arange(len(clear)), 0))
    known = inside[last] if len(inside) else inside
    return int((known & (first | ~np.roll(known, 1))).sum())


def _crossed(line: Line, points: Array, diagonals: Array, of: Array) -> int:
    side = line.side(points)
    clear = np.flatnonzero(np.abs(side) > MARGIN * diagonals)
    right = side[clear] > 0
    turned = np.flatnonzero((right[1:] != right[:-1]) & (of[clear[1:]] == of[clear[:-1]]))
    steps = zip(points[clear[turned]].tolist(), points[clear[turned + 1]].tolist(), strict=True)
    return sum(line.crossed(start, end) for start, end in steps)
