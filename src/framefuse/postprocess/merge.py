"""What several views of one frame show becomes one list of objects (`merge`), or one mask (`join`).

Each view has had its own suppression, so two boxes of one view never suppress each other here. Whole boxes come first,
then those that an edge cuts, each by descending confidence. One hides a later one of another view and the same class if

- they overlap by more than DUPLICATE (IoU), or
- the later one ends at an edge inside the frame, where it is probably cut, and more than PART of it is covered, or
- both are cut and continue each other across their common edge; the first then grows around the other.

A view that contains another sees whole what that sees in parts, a wheel of a bus or the half of one. So a box of the
inner view that lies within a much larger box, of whatever class, counts only if the larger view shows it too; and so
do a cut box that no other one continues and a box so long that the larger view would show it clearly.

`kernels/boxes/merge.cu` does the same on a GPU.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from framefuse.common.polygons import within
from framefuse.frame import Region, View
from framefuse.prediction import Detections, Masks

DUPLICATE = 0.5
PART = np.float32(0.6)
EDGE = np.float32(0.01)
"""A box within this share of the view's side from its edge ends there."""
CONTINUES = np.float32(0.6)
"""Overlap (IoU) along the common edge of two cut boxes that are parts of one object."""
WITHIN, LARGER = 0.8, 2.0
"""A box lies within a much larger one if that covers more than WITHIN of it and has more than LARGER times its area."""
SURE = 0.5
"""A box says nothing about another unless it has more than this share of its confidence."""
SEEN = 1 / 24
"""A view shows what is this long, as a share of its longer side: 27 pixels of an input of 640."""
CLEAR = 1 / 16
"""A view shows clearly what is this long: 40 pixels of an input of 640."""
SIDES = np.array((1, 2, 4, 8), np.int32)
"""Bit of each side (left, top, right, bottom) in the inner sides of a view and in the cuts of a box."""

NOTHING = 0
"""Class of the pixels that no view shows: the background, if the model has one."""
FAR = 2**20
"""Depth, in pixels, where no edge counts."""


@lru_cache(maxsize=1024)
def edges(view: View, size: tuple[int, int]) -> tuple[int, int, int, int, int]:
    """Left, top, right and bottom of a view in a frame of that size, and the bits of the SIDES that lie inside it."""
    x, y, width, height = view.region or (0, 0, *size)
    right, bottom = x + width, y + height
    inner = (x > 0, y > 0, right < size[0], bottom < size[1])
    return x, y, right, bottom, int(SIDES @ np.array(inner, np.int32))


def merge(
    found: Sequence[Detections], views: Sequence[View], size: tuple[int, int], *, max_det: int, agnostic: bool = False
) -> Detections:
    """The objects of a frame, by descending confidence and then in the order of `found`, with `view` set.

    A view of the whole frame alone changes nothing: same rows, same order.

    Args:
        found: objects of each view, in pixels of the frame.
        size: width and height of the frame.
        max_det: maximum number of objects.
        agnostic: whether boxes of different classes may be one object.
    """
    if not any(map(len, found)):
        return replace(found[0], view=np.zeros(0, np.int64))
    parts, cuts = [], []
    for number, (objects, view) in enumerate(zip(found, views, strict=True)):
        part = replace(objects, view=np.full(len(objects), number, np.int64))
        part, cut = _inside(part, view, size)
        parts.append(part)
        cuts.append(cut)
    if len(parts) == 1:
        return parts[0][:max_det]
    everything, cut = Detections.concatenate(parts), np.concatenate(cuts)
    order = np.lexsort((-everything.confidence, cut > 0))  # whole boxes first
    everything, cut = everything[order], cut[order]
    regions = [view.region or (0, 0, *size) for view in views]
    counts, doubtful = _credible(everything, cut > 0, regions, agnostic)
    everything, order = everything[counts], order[counts]
    kept = _kept(everything, cut[counts], doubtful[counts], agnostic)
    everything, order = everything[kept], order[kept]
    return everything[np.lexsort((order, -everything.confidence))][:max_det]


def _inside(found: Detections, view: View, size: tuple[int, int]) -> tuple[Detections, NDArray[np.int32]]:
    """The objects that count, clipped to the view, and the bits of the SIDES at which each is cut."""
    boxes = found.xyxy
    if view.region is None:
        cut = np.zeros(len(boxes), np.int32)
    else:
        *sides, inner = edges(view, size)
        limits = np.array(sides, np.float32)
        boxes = boxes.clip(limits[[0, 1, 0, 1]], limits[[2, 3, 2, 3]])
        margin = EDGE * np.array(view.region[2:] * 2, np.float32)
        cut = (np.abs(boxes - limits) <= margin).astype(np.int32) @ SIDES & inner
    counts: NDArray[np.bool_] = np.all(boxes[:, 2:] > boxes[:, :2], axis=1)
    if view.outline:
        centres = (boxes[:, :2] + boxes[:, 2:]) / 2
        counts &= within(centres[:, 0], centres[:, 1], view.outline)
    if counts.all() and boxes is found.xyxy:
        return found, cut
    return replace(found, xyxy=boxes)[counts], cut[counts]


def _credible(
    found: Detections, ends: NDArray[np.bool_], regions: Sequence[Region], agnostic: bool
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Which rows no larger view contradicts; and which of those that are cut it does not show.

    Args:
        ends: which of them an edge of their view cuts.
        regions: of each view.
    """
    counts, doubtful = np.ones(len(found), np.bool_), np.zeros(len(found), np.bool_)
    shows = np.asarray(found.view)
    for number, outer in enumerate(regions):
        inner = [at for at, region in enumerate(regions) if _contains(outer, region)]
        rows, others = np.flatnonzero(np.isin(shows, inner)), np.flatnonzero(shows == number)
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
        share = sides.max(axis=1) / max(outer[2:])
        counts[rows] &= shown | ~(part & (share >= SEEN) | (share >= CLEAR))
        doubtful[rows] |= alone & ~shown
    return counts, doubtful


def _contains(outer: Region, inner: Region) -> bool:
    """Whether a region is larger than another and has all of it."""
    starts = zip(outer[:2], inner[:2], outer[2:], inner[2:], strict=True)
    return outer != inner and all(o <= i and i + size <= o + room for o, i, room, size in starts)


def _kept(found: Detections, cut: NDArray[np.int32], doubtful: NDArray[np.bool_], agnostic: bool) -> NDArray[np.bool_]:
    """Which rows, in their order, stay. Those that are joined from parts grow in place; the doubtful stay only so."""
    boxes, view = found.xyxy, np.asarray(found.view)
    areas = (boxes[:, 2:] - boxes[:, :2]).prod(axis=1)
    first, later, shared = _overlaps(boxes, view, None if agnostic else found.class_id)
    whole = areas[first] + areas[later] - shared
    cut_later = cut[later] > 0
    hides = (shared > np.float32(DUPLICATE) * whole) | (cut_later & (shared > PART * areas[later]))
    facing = cut_later & (cut[first] > 0) & ~hides
    hides[facing] = _continue(boxes[first[facing]], boxes[later[facing]], cut[first[facing]], cut[later[facing]])
    kept = np.ones(len(boxes), np.bool_)
    for i, j in zip(first[hides].tolist(), later[hides].tolist(), strict=True):  # by i: its fate is decided
        if kept[i]:
            kept[j] = False
    joined = hides & cut_later & (cut[first] > 0) & kept[first]
    sure = joined & (found.confidence[later] > SURE * found.confidence[first])
    kept[np.setdiff1d(np.flatnonzero(doubtful), first[sure])] = False
    grown = boxes.copy()
    np.minimum.at(grown[:, :2], first[joined], boxes[later[joined], :2])
    np.maximum.at(grown[:, 2:], first[joined], boxes[later[joined], 2:])
    boxes[:] = grown
    return kept


def _overlaps(
    boxes: NDArray[Any], view: NDArray[Any], labels: NDArray[Any] | None
) -> tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.float32]]:
    """Pairs (i, j), i < j, of different views and equal labels that overlap, by i, and the area that they share."""
    rows = np.arange(len(boxes))
    groups = [rows] if labels is None else [rows[labels == label] for label in np.unique(labels)]
    pairs = []
    for group in groups:
        x1, y1, x2, y2 = boxes[group].T
        meet = (x1 < x2[:, None]) & (x2 > x1[:, None]) & (y1 < y2[:, None]) & (y2 > y1[:, None])
        meet &= view[group] != view[group][:, None]
        pairs.append(group[np.array(np.nonzero(np.triu(meet, 1)))])
    first, later = np.concatenate(pairs, axis=1) if pairs else np.empty((2, 0), np.intp)
    by_first = np.argsort(first, kind="stable")
    first, later = first[by_first], later[by_first]
    sides = np.minimum(boxes[first, 2:], boxes[later, 2:]) - np.maximum(boxes[first, :2], boxes[later, :2])
    return first, later, sides.prod(axis=1)


def _continue(
    a: NDArray[Any], b: NDArray[Any], cut_a: NDArray[np.int32], cut_b: NDArray[np.int32]
) -> NDArray[np.bool_]:
    """Which overlapping pairs are two parts of one object: one ends at the right (or bottom) of its view, the other at
    the left (or top) of its own, and along that edge they are of one length."""
    overlap = np.minimum(a[:, 2:], b[:, 2:]) - np.maximum(a[:, :2], b[:, :2])
    union = np.maximum(a[:, 2:], b[:, 2:]) - np.minimum(a[:, :2], b[:, :2])
    alike = overlap > CONTINUES * union
    left, top, right, bottom = SIDES.tolist()
    across = ((cut_a & left) & (cut_b & right) // 4) | ((cut_b & left) & (cut_a & right) // 4)
    down = ((cut_a & top) & (cut_b & bottom) // 4) | ((cut_b & top) & (cut_a & bottom) // 4)
    found: NDArray[np.bool_] = ((across > 0) & alike[:, 1]) | ((down > 0) & alike[:, 0])
    return found


def join(found: Sequence[Masks], views: Sequence[View], size: tuple[int, int]) -> NDArray[np.uint8]:
    """The class of each pixel of a frame, (height, width).

    A pixel takes the class of the view in which it lies deepest: farthest from the edges that are not the frame's,
    where a model sees least of what is around. A view that lies inside another one wins over it, since it shows more
    detail; of equals the first wins. What is in no view, or outside its polygon, is NOTHING.

    A view of the whole frame alone changes nothing.

    Args:
        found: masks of the size of each view's region.
        size: width and height of the frame.
    """
    if len(found) == 1 and found[0].class_id.shape == size[::-1] and not views[0].outline:
        return found[0].class_id
    joined = np.full(size[::-1], NOTHING, np.uint8)
    for part, ((x, y, width, height), owned) in zip(found, _owned(tuple(views), size), strict=True):
        np.copyto(joined[y : y + height, x : x + width], part.class_id, where=owned)
    return joined


@lru_cache(maxsize=4)
def _owned(views: tuple[View, ...], size: tuple[int, int]) -> list[tuple[Region, NDArray[np.bool_]]]:
    """Region of each view, and which of its pixels it decides."""
    regions = [view.region or (0, 0, *size) for view in views]
    inner = [sum(_contains(other, region) for other in regions) for region in regions]
    best, owner = np.zeros(size[::-1], np.int64), np.full(size[::-1], -1, np.int16)
    for number, (view, region, level) in enumerate(zip(views, regions, inner, strict=True)):
        x, y, width, height = region
        across, down = _depths(x, width, size[0]), _depths(y, height, size[1])
        depth = np.minimum(across, down[:, None]) + level * FAR
        if view.outline:
            centres = np.arange(x, x + width) + 0.5, np.arange(y, y + height)[:, None] + 0.5
            depth[~within(*centres, view.outline)] = 0
        here = slice(y, y + height), slice(x, x + width)
        deeper = depth > best[here]
        best[here][deeper], owner[here][deeper] = depth[deeper], number
    return [
        ((x, y, width, height), owner[y : y + height, x : x + width] == number)
        for number, (x, y, width, height) in enumerate(regions)
    ]


def _depths(start: int, length: int, frame: int) -> NDArray[Any]:
    """Distance of each pixel of a region from its edges along one axis, 1 at an edge; the frame's own do not count."""
    steps, far = np.arange(1, length + 1), np.full(length, FAR)
    before = steps if start > 0 else far
    after = steps[::-1] if start + length < frame else far
    return np.minimum(before, after)
