"""Merge: what several views of one frame show becomes one list of objects.

Each view has had its own suppression, so two boxes of one view never suppress each other here. Across views:

- boxes that overlap by more than DUPLICATE (IoU) are one object: the better one stays;
- a box that ends at an edge inside the frame is probably cut there. It yields to a whole box that covers more than PART
  of it, and two cut boxes that continue each other become their union.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from framefuse.common.polygons import within
from framefuse.frame import View
from framefuse.prediction import Detections

Boxes = NDArray[np.float32]

DUPLICATE = 0.5
PART = 0.6
EDGE = 0.01
"""A box within this share of the view's side from its edge ends there."""
CONTINUES = 0.6
"""Overlap (IoU) along the common edge of two cut boxes that are parts of one object."""


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
    everything = everything[_kept(everything, np.concatenate(cuts), agnostic)]
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


def _kept(found: Detections, cut: NDArray[np.bool_], agnostic: bool) -> NDArray[np.intp]:
    """Rows that stay. Boxes that are joined from two parts are changed in place."""
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
            if len(joined):
                boxes[row, :2] = np.minimum(boxes[row, :2], boxes[joined, :2].min(axis=0))
                boxes[row, 2:] = np.maximum(boxes[row, 2:], boxes[joined, 2:].max(axis=0))
        alive[rest[same]] = False
    return np.array(kept, np.intp)
