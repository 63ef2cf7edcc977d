"""Merge: what several views of one frame show becomes one list of objects.

Each view has had its own suppression, so two boxes of one view never suppress each other here. Across views:

- boxes that overlap by more than DUPLICATE (IoU) are one object: the better one stays;
- a box that ends at an edge inside the frame is probably cut there. It yields to a whole box that covers more than PART
  of it, and two cut boxes that continue each other become their union.

A view that contains another sees whole what that sees in parts, a wheel of a bus or the half of one. So a box of the
inner view that lies within a much larger box, of whatever class, counts only if the larger view shows it too; and so
does a cut box that no other one continues.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from framefuse.frame import Region, View
from framefuse.prediction import Detections

Boxes = NDArray[np.float32]

DUPLICATE = 0.5
PART = 0.6
EDGE = 0.01
"""A box within this share of the view's side from its edge ends there."""
CONTINUES = 0.6
"""Overlap (IoU) along the common edge of two cut boxes that are parts of one object."""
WITHIN, LARGER = 0.8, 2.0
"""A box lies within a much larger one if that covers more than WITHIN of it and has more than LARGER times its area."""
SURE = 0.5
"""A box says nothing about another unless it has more than this share of its confidence."""
SEEN = 1 / 24
"""A view shows what is this long, as a share of its longer side: 27 pixels of an input of 640."""


def merge(
    found: Sequence[Detections],
    views: Sequence[View],
    size: tuple[int, int],
    *,
    max_det: int,
    agnostic: bool = False,
) -> Detections:
    """The objects of a frame, by descending confidence, with `view` set.

    A view of the whole frame alone changes nothing: same rows, same order.

    Args:
        found: objects of each view, in pixels of the frame.
        size: width and height of the frame.
        max_det: maximum number of objects.
        agnostic: whether boxes of different classes may be one object.
    """
    parts, cuts = [], []
    for number, (objects, view) in enumerate(zip(found, views, strict=True)):
        part = replace(objects, view=np.full(len(objects), number, np.int64))
        part, cut = _inside(part, view, size)
        parts.append(part)
        cuts.append(cut)
    if len(parts) == 1:
        return parts[0][:max_det]
    columns = ([getattr(part, name) for part in parts] for name in ("xyxy", "confidence", "class_id", "view"))
    xyxy, confidence, class_id, indexes = map(np.concatenate, columns)
    everything = Detections(xyxy, confidence, class_id, found[0].names, view=indexes)
    cut = np.concatenate(cuts)
    regions = [view.region or (0, 0, *size) for view in views]
    counts, doubtful = _credible(everything, np.any(cut, axis=1), regions, agnostic)
    everything = everything[counts]
    everything = everything[_kept(everything, cut[counts], doubtful[counts], agnostic)]
    return everything[np.argsort(-everything.confidence, kind="stable")][:max_det]


def _inside(found: Detections, view: View, size: tuple[int, int]) -> tuple[Detections, NDArray[np.bool_]]:
    """The objects that count, clipped to the view, and which of their sides (left, top, right, bottom) are cut."""
    boxes = found.xyxy
    if view.region is not None:
        x, y, width, height = view.region
        edges = np.array((x, y, x + width, y + height), np.float32)
        boxes = boxes.clip(edges[[0, 1, 0, 1]], edges[[2, 3, 2, 3]])
        inner = (edges > 0) & (edges < np.array((np.inf, np.inf, *size), np.float32))
        cut = inner & (np.abs(boxes - edges) <= EDGE * np.array((width, height) * 2, np.float32))
    else:
        cut = np.zeros(boxes.shape, np.bool_)
    counts: NDArray[np.bool_] = np.all(boxes[:, 2:] > boxes[:, :2], axis=1)
    if view.outline:
        counts &= within((boxes[:, :2] + boxes[:, 2:]) / 2, view.outline)
    if counts.all() and boxes is found.xyxy:
        return found, cut
    return replace(found, xyxy=boxes)[counts], cut[counts]


def within(points: NDArray[Any], outline: Sequence[tuple[float, float]]) -> NDArray[np.bool_]:
    """Which points (n, 2) lie inside a polygon: those from which a ray to the right crosses its sides an odd number of
    times."""
    inside = np.zeros(len(points), np.bool_)
    x, y = points[:, 0], points[:, 1]
    for (x1, y1), (x2, y2) in zip(outline, (*outline[1:], outline[0]), strict=True):
        if y1 != y2:
            inside ^= ((y1 > y) != (y2 > y)) & (x < (x2 - x1) * (y - y1) / (y2 - y1) + x1)
    return inside


def _credible(
    found: Detections, ends: NDArray[np.bool_], regions: Sequence[Region], agnostic: bool
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Which rows no larger view contradicts; and which of those that are cut it does not show.

    Args:
        ends: which of them an edge of their view cuts.
        regions: of each view.
    """
    view = np.asarray(found.view)
    counts, doubtful = np.ones(len(found), np.bool_), np.zeros(len(found), np.bool_)
    for number, outer in enumerate(regions):
        inner = [at for at, region in enumerate(regions) if _contains(outer, region)]
        rows, others = np.flatnonzero(np.isin(view, inner)), np.flatnonzero(view == number)
        if not len(rows):
            continue
        a, b = found.xyxy[rows], found.xyxy[others]
        shared = (np.minimum(a[:, None, 2:], b[:, 2:]) - np.maximum(a[:, None, :2], b[:, :2])).clip(0).prod(axis=2)
        sides = a[:, 2:] - a[:, :2]
        own, theirs = sides.prod(axis=1)[:, None], (b[:, 2:] - b[:, :2]).prod(axis=1)
        alike = found.class_id[rows, None] == found.class_id[others]
        alike |= agnostic
        shown = (alike & (shared > DUPLICATE * (own + theirs - shared))).any(axis=1)
        alone = ends[rows] & ~(alike & (shared > PART * own)).any(axis=1)
        sure = found.confidence[others] > SURE * found.confidence[rows, None]
        part = (sure & (shared > WITHIN * own) & (theirs > LARGER * own)).any(axis=1)
        part &= sides.max(axis=1) >= SEEN * max(outer[2:])
        counts[rows] &= shown | ~part
        doubtful[rows] |= alone & ~shown
    return counts, doubtful


def _contains(outer: Region, inner: Region) -> bool:
    """Whether a region is larger than another and has all of it."""
    starts = zip(outer[:2], inner[:2], outer[2:], inner[2:], strict=True)
    return outer != inner and all(o <= i and i + size <= o + room for o, i, room, size in starts)


def _kept(found: Detections, cut: NDArray[np.bool_], doubtful: NDArray[np.bool_], agnostic: bool) -> NDArray[np.intp]:
    """Rows that stay. Boxes that are joined from two parts are changed in place; the doubtful stay only so."""
    boxes: Boxes = found.xyxy
    ends: NDArray[Any] = np.any(cut, axis=1)
    areas = (boxes[:, 2:] - boxes[:, :2]).prod(axis=1)
    order = np.lexsort((-found.confidence, ends))  # whole boxes first
    alive, kept = np.ones(len(order), np.bool_), []
    view = np.asarray(found.view)
    for place, row in enumerate(order.tolist()):
        if not alive[row]:
            continue
        kept.append(row)
        rest = order[place + 1 :]
        rest = rest[alive[rest] & (view[rest] != view[row])]
        if not agnostic:
            rest = rest[found.class_id[rest] == found.class_id[row]]
        overlap = np.minimum(boxes[rest, 2:], boxes[row, 2:]) - np.maximum(boxes[rest, :2], boxes[row, :2])
        shared = overlap.clip(0).prod(axis=1)
        same: NDArray[Any] = np.greater(shared, DUPLICATE * (areas[rest] + areas[row] - shared))
        same |= ends[rest] & (shared > PART * areas[rest])
        if ends[row]:
            along = overlap / np.maximum(
                np.maximum(boxes[rest, 2:], boxes[row, 2:]) - np.minimum(boxes[rest, :2], boxes[row, :2]), 1e-6
            )
            # One ends at the right (or bottom) of its view where the other ends at the left (or top) of its own.
            for axis, other in ((0, 1), (1, 0)):
                facing = (cut[row, axis] & cut[rest, axis + 2]) | (cut[row, axis + 2] & cut[rest, axis])
                same |= facing & (shared > 0) & (along[:, other] > CONTINUES)
            joined = rest[same & ends[rest]]
            if doubtful[row] and not np.any(found.confidence[joined] > SURE * found.confidence[row]):
                kept.pop()
            if len(joined):
                boxes[row, :2] = np.minimum(boxes[row, :2], boxes[joined, :2].min(axis=0))
                boxes[row, 2:] = np.maximum(boxes[row, 2:], boxes[joined, 2:].max(axis=0))
        alive[rest[same]] = False
    return np.array(kept, np.intp)
