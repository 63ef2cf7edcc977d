"""Detections: raw outputs of a model to boxes in source pixels, and non-maximum suppression.

Scores and overlaps are computed in float32, as the training frameworks do, since thresholds and ties are decided by
the last bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Floats = NDArray[np.float32]


class Found(NamedTuple):
    """Boxes of a batch of images, padded to K = max_det rows; rows at and beyond counts[b] are undefined."""

    boxes: Any
    """(batch, K, 4) float32: x1, y1, x2, y2 in source pixels."""
    scores: Any
    """(batch, K) float32, descending."""
    classes: Any
    """(batch, K) int32."""
    counts: Any
    """(batch,) int32."""
    non_finite: Any
    """(batch,) int32: anchors or queries left out because one of their values is NaN or infinite."""
    anchors: Any
    """(batch, K) int32: the anchor or query of each box; of sigmoid detr models query * nc + class."""

    @classmethod
    def make(cls, batch: int, max_det: int, new: Callable[..., Any], sides: int = 4) -> Found:
        """Arrays made by `new(shape, dtype)`; `sides`: numbers of a box."""
        rows = (batch, max_det)
        floats = new((*rows, sides), np.float32), new(rows, np.float32)
        integers = [new(shape, np.int32) for shape in (rows, (batch,), (batch,), rows)]
        return cls(*floats, *integers)


class Candidates(NamedTuple):
    """Boxes above the confidence threshold, in the order of the model's anchors or queries."""

    boxes: Floats
    """(n, 4) x1 y1 x2 y2 in the units of the model."""
    scores: Floats
    """(n,)"""
    classes: NDArray[np.int32]
    """(n,)"""
    rows: NDArray[Any]
    """(n,) the anchor or query of each."""
    non_finite: int
    """Anchors or queries with a NaN or infinite value, which are left out."""

    def take(self, index: NDArray[Any]) -> Candidates:
        return Candidates(self.boxes[index], self.scores[index], self.classes[index], self.rows[index], self.non_finite)


def detections(
    outputs: Sequence[NDArray[Any]],
    layout: str,
    maps: NDArray[np.float32],
    *,
    conf: float,
    iou: float,
    max_det: int,
    max_candidates: int = 30_000,
    classes: Sequence[int] | None = None,
    agnostic: bool = False,
    activation: str | None = None,
    extra: int = 0,
    oriented: bool = False,
) -> Found:
    """Keep the boxes above `conf`, drop duplicates, map the rest back to the images.

    Each anchor or query gives its best class only (the lowest class number wins a tie), except sigmoid detr models,
    where every (query, class) pair competes, as in RT-DETR. Boxes leave by descending score, equal scores in the order
    of their anchors. An anchor with a NaN or infinite value is counted and left out.

    Args:
        outputs: arrays (batch, ...) of float32 or float16 in the order of the layout:
            yolov8: (batch, 4 + nc, N): cx cy w h, then a score per class;
            yolov5: (batch, N, 5 + nc): cx cy w h, objectness, then a score per class; an anchor counts only if its
            objectness alone exceeds `conf`, and its confidence is objectness * class score;
            end2end: (batch, K, 6): x1 y1 x2 y2 score class, without duplicates;
            detr: (batch, Q, 4 + nc); or boxes (batch, Q, 4) and logits (batch, Q, nc); or labels (batch, Q), boxes
            (batch, Q, 4) and scores (batch, Q). Boxes are cx cy w h, with three outputs x1 y1 x2 y2;
            yolov8_head: for each level (batch, rows, columns, 4 * bins) logits of the distances from the anchor to the
            left, top, right and bottom side, then (batch, rows, columns, nc) logits of the classes; float32, or the
            bits of bfloat16 as uint16. Boxes are in units of the model input. The distances of an anchor are looked at
            only if it is above `conf`, also for values that are not finite.
        maps: (batch, 8) float32: units in x and y, left, top, inverse scale in x and y, width, height. A position p of
            the model becomes clip((p * unit - left) * inverse, 0, width), and so in y.
        conf: confidence that a box must exceed.
        iou: overlap above which the weaker of two boxes is dropped (`nms`); yolov layouts only.
        max_det: boxes an image at most.
        max_candidates: boxes that suppression looks at, those with the highest scores.
        classes: class numbers to keep, before anything else is counted; None keeps all.
        agnostic: a box suppresses those of other classes too.
        activation: detr: sigmoid, softmax (the last class is "no object") or none; None: sigmoid for two outputs.
        extra: values of an anchor after its classes, which are not looked at; of oriented boxes all but the last.
        oriented: the last value of an anchor is an angle in radians, and an anchor whose angle is not finite is left
            out, too. Layouts yolov8, yolov5 and end2end. A box is dropped if any box with a higher score, kept or not,
            overlaps it by more than `iou`, as Fast NMS does (arXiv:1904.02689), where the overlap is `probiou`: the
            rule of the YOLO frameworks. end2end drops none.

    Returns:
        `Found`; of oriented boxes with boxes (batch, K, 5): centre x and y, width, height, angle, not clipped.
    """
    found = Found.make(len(maps), max_det, np.zeros, sides=5 if oriented else 4)
    extra = max(extra, int(oriented))
    for image, row in enumerate(maps):
        values = [floats(output[image]) for output in outputs]
        if extra:
            anchors = values[0].T if layout == "yolov8" else values[0]
            plain = anchors[:, :-extra]
            values = [plain.T if layout == "yolov8" else plain]
        candidates = READERS[layout](values, conf, activation)
        if classes is not None:
            candidates = candidates.take(np.flatnonzero(np.isin(candidates.classes, classes)))
        broken = candidates.non_finite
        if oriented:
            candidates = candidates._replace(boxes=anchors[candidates.rows][:, [0, 1, 2, 3, -1]])
            turned = np.isfinite(candidates.boxes[:, -1])
            candidates, broken = candidates.take(np.flatnonzero(turned)), broken + (~turned).sum()
        candidates = candidates.take(np.argsort(-candidates.scores, kind="stable")[:max_candidates])
        if layout.startswith("yolov"):
            groups = np.zeros_like(candidates.classes) if agnostic else candidates.classes
            if oriented:
                overlaps = (probiou(candidates.boxes, candidates.boxes) > iou) & (groups[:, None] == groups)
                candidates = candidates.take(np.flatnonzero(~np.triu(overlaps, 1).any(axis=0)))
            else:
                candidates = candidates.take(nms(candidates.boxes, candidates.scores, groups, iou=iou, max_det=max_det))
        boxes, *columns, _ = candidates.take(np.arange(min(max_det, len(candidates.scores))))
        count = found.counts[image] = len(boxes)
        found.boxes[image, :count] = placed_oriented(boxes, row) if oriented else _placed(boxes, row)
        for to, part in zip((found.scores, found.classes, found.anchors), columns, strict=True):
            to[image, :count] = part
        found.non_finite[image] = broken
    return found


def _placed(boxes: Floats, row: Floats) -> Floats:
    """Boxes (n, 4) of the model in source pixels, by a row of `maps` of `detections`."""
    unit, start, inverse, size = (np.tile(row[k : k + 2], 2) for k in range(0, 8, 2))
    with np.errstate(over="ignore"):
        return ((boxes * unit - start) * inverse).clip(0, size)


def placed_oriented(boxes: Floats, row: Floats) -> Floats:
    """Boxes (n, 5) of the model in source pixels, by a row of `maps` of `detections`. If the scales of x and y differ,
    width and height are those of the two middle lines, which are no longer perpendicular then."""
    units, start, inverse = row[0:2], row[2:4], row[4:6]
    placed = np.empty_like(boxes)
    placed[:, :2] = (boxes[:, :2] * units - start) * inverse
    scale, (cos, sin) = units * inverse, (np.cos(boxes[:, 4]), np.sin(boxes[:, 4]))
    placed[:, 2] = boxes[:, 2] * np.hypot(cos * scale[0], sin * scale[1])
    placed[:, 3] = boxes[:, 3] * np.hypot(sin * scale[0], cos * scale[1])
    placed[:, 4] = boxes[:, 4] if scale[0] == scale[1] else np.arctan2(sin * scale[1], cos * scale[0])
    return placed


def covariances(boxes: Array) -> Array:
    """(3, n): variances in x and in y and the covariance of an even spread over boxes (n, 5) cx cy w h angle."""
    wide, high, angle = boxes[:, 2] ** 2 / 12, boxes[:, 3] ** 2 / 12, boxes[:, 4]
    cos, sin = np.cos(angle), np.sin(angle)
    return np.stack((wide * cos**2 + high * sin**2, wide * sin**2 + high * cos**2, (wide - high) * cos * sin))


EPSILON = 1e-7
"""Keeps `probiou` finite, as in the YOLO frameworks, whose decisions depend on it for boxes without area."""


def probiou(a: Array, b: Array) -> Array:
    """(n, m): 1 - the Hellinger distance of the Gaussians with the moments of oriented boxes (n, 5) and (m, 5).

    The distance is sqrt(1 - exp(-B)), B that of Bhattacharyya; formula and constants of arXiv:2106.06072.
    """
    (ax, ay, ac), (bx, by, bc) = covariances(a.astype(np.float64))[..., None], covariances(b.astype(np.float64))
    x, y = (a[:, None, axis].astype(np.float64) - b[:, axis] for axis in (0, 1))
    sx, sy, sc = ax + bx, ay + by, ac + bc
    area = sx * sy - sc**2
    far = (sx * y**2 + sy * x**2 - 2 * sc * x * y) / (area + EPSILON) / 4
    product = (ax * ay - ac**2).clip(0) * (bx * by - bc**2).clip(0)
    spread = np.log(area / (4 * np.sqrt(product) + EPSILON) + EPSILON) / 2
    overlap: Array = 1 - np.sqrt(1 - np.exp(-(far + spread).clip(EPSILON, 100)) + EPSILON)
    return overlap


def distance_below(iou: float) -> float:
    """The distance of Bhattacharyya below which `probiou` exceeds `iou`."""
    left = 1 + EPSILON - (1 - iou) ** 2
    return -math.log(left) if left > 0 else 100.0


def nms(
    boxes: Array, scores: Array, classes: Array | None = None, *, iou: float, max_det: int | None = None
) -> NDArray[np.int32]:
    """Greedy NMS: by descending score, keep a box unless one kept before it overlaps it by more than `iou`.

        overlap(a, b) = intersection / (area(a) + area(b) - intersection)

    in float32, compared with `iou` in float64: the arithmetic of torchvision.ops.nms. Two boxes without area overlap
    by 0 / 0, which suppresses nothing. Of rotated boxes, the intersection is a polygon, in float64 here: its area need
    not be the same to the last bit in other implementations.

    Args:
        boxes: (n, 4) x1 y1 x2 y2, or (n, 5) rotated: centre x and y, width, height, angle in radians from x towards y.
        scores: (n,) equal scores are taken in the order of the boxes.
        classes: (n,) only boxes of one class suppress each other; None: all do.
        iou: 0..1.
        max_det: stop after this many.

    Returns:
        (k,) int32: which boxes are kept, by descending score. Boxes with a NaN or infinite value are left out.
    """
    rotated = boxes.shape[1] == 5
    order = np.argsort(-scores, kind="stable")
    order = order[(np.isfinite(boxes).all(axis=1) & np.isfinite(scores))[order]]
    areas = boxes[:, 2] * boxes[:, 3] if rotated else (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    kept: list[int] = []
    for i in order:
        if len(kept) == max_det:
            break
        rivals = [k for k in kept if classes is None or classes[k] == classes[i]]
        if rotated:
            shared = np.array([rotated_intersection(boxes[k], boxes[i]) for k in rivals])
        else:
            x1, y1, x2, y2 = boxes[i]
            width = np.minimum(boxes[rivals, 2], x2) - np.maximum(boxes[rivals, 0], x1)
            height = np.minimum(boxes[rivals, 3], y2) - np.maximum(boxes[rivals, 1], y1)
            shared = np.maximum(width, 0) * np.maximum(height, 0)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            overlap = shared / (areas[rivals] + areas[i] - shared)
        if not (overlap.astype(np.float64) > iou).any():
            kept.append(int(i))
    return np.array(kept, np.int32)


def rotated_intersection(a: NDArray[Any], b: NDArray[Any]) -> float:
    """Area that two rotated boxes share: a, clipped by each side of b in b's frame (Sutherland and Hodgman)."""
    ax, ay, aw, ah, aa = map(float, a)
    bx, by, bw, bh, ba = map(float, b)
    polygon = []
    for across, down in ((-0.5, -0.5), (0.5, -0.5), (0.5, 0.5), (-0.5, 0.5)):
        x = ax - bx + across * aw * math.cos(aa) - down * ah * math.sin(aa)
        y = ay - by + across * aw * math.sin(aa) + down * ah * math.cos(aa)
        polygon.append((x * math.cos(ba) + y * math.sin(ba), y * math.cos(ba) - x * math.sin(ba)))
    for axis, sign, limit in ((0, 1, bw / 2), (0, -1, bw / 2), (1, 1, bh / 2), (1, -1, bh / 2)):
        clipped = []
        for p, q in zip(polygon, polygon[1:] + polygon[:1], strict=True):
            room, next_room = limit - sign * p[axis], limit - sign * q[axis]
            if room >= 0:
                clipped.append(p)
            if (room >= 0) != (next_room >= 0):
                part = room / (room - next_room)
                clipped.append((p[0] + part * (q[0] - p[0]), p[1] + part * (q[1] - p[1])))
        polygon = clipped
    pairs = zip(polygon, polygon[1:] + polygon[:1], strict=True)
    return abs(sum(p[0] * q[1] - q[0] * p[1] for p, q in pairs)) / 2


def yolov8(outputs: Sequence[Floats], conf: float, activation: str | None = None) -> Candidates:
    """(4 + nc, N): cx cy w h, then a score per class."""
    (output,) = outputs
    finite = np.isfinite(output).all(axis=0)
    rows = np.flatnonzero(finite)
    anchors = output[:, rows].T
    return _best_class(_corners(anchors[:, :4]), anchors[:, 4:], conf, rows, int((~finite).sum()))


def yolov5(outputs: Sequence[Floats], conf: float, activation: str | None = None) -> Candidates:
    """(N, 5 + nc): cx cy w h, objectness, then a score per class."""
    (output,) = outputs
    finite = np.isfinite(output).all(axis=1)
    rows = np.flatnonzero(finite & (output[:, 4] > conf))
    anchors = output[rows]
    return _best_class(_corners(anchors[:, :4]), anchors[:, 5:] * anchors[:, 4:5], conf, rows, int((~finite).sum()))


def end2end(outputs: Sequence[Floats], conf: float, activation: str | None = None) -> Candidates:
    """(K, 6 or more): x1 y1 x2 y2 score class, and more that is not looked at; duplicates are already gone."""
    (output,) = outputs
    finite = np.isfinite(output[:, :6]).all(axis=1)
    rows = np.flatnonzero(finite & (output[:, 4] > conf))
    found = output[rows]
    return Candidates(found[:, :4], found[:, 4], _numbers(found[:, 5]), rows, int((~finite).sum()))


def detr(outputs: Sequence[Floats], conf: float, activation: str | None = None) -> Candidates:
    """One output (Q, 4 + nc), two (boxes (Q, 4), logits (Q, nc)), or three (labels (Q,), boxes (Q, 4), scores (Q,))."""
    finite = np.logical_and.reduce([np.isfinite(output.reshape(len(output), -1)).all(axis=1) for output in outputs])
    rows, non_finite = np.flatnonzero(finite), int((~finite).sum())
    outputs = [output[rows] for output in outputs]
    if len(outputs) == 3:
        labels, boxes, scores = outputs
        index = np.flatnonzero(scores > conf)
        return Candidates(boxes[index], scores[index], _numbers(labels[index]), rows[index], non_finite)
    boxes, values = (outputs[0][:, :4], outputs[0][:, 4:]) if len(outputs) == 1 else outputs
    activation = activation or ("sigmoid" if len(outputs) == 2 else "none")
    if activation == "softmax":
        exponents = np.exp(values - values.max(axis=1, keepdims=True))
        values = (exponents / exponents.sum(axis=1, keepdims=True))[:, :-1]
    if activation != "sigmoid":
        return _best_class(_corners(boxes), values, conf, rows, non_finite)
    with np.errstate(over="ignore"):  # exp of a large negative logit is infinite: the score is 0
        values = np.float32(1) / (np.float32(1) + np.exp(-values))
    query, class_id = np.nonzero(values > conf)
    pairs = rows[query] * values.shape[1] + class_id
    return Candidates(_corners(boxes[query]), values[query, class_id], class_id.astype(np.int32), pairs, non_finite)


def yolov8_head(outputs: Sequence[Floats], conf: float, activation: str | None = None) -> Candidates:
    """For each level (rows, columns, 4 * bins) and (rows, columns, nc): logits of distances and of classes.

    A distance is the mean of 0, 1, ... bins - 1 by the softmax of its logits, in cells of its level's grid, from the
    cell's centre.
    """
    levels, before = [], 0
    for distances, logits in zip(outputs[::2], outputs[1::2], strict=True):
        rows, columns, _ = logits.shape
        y, x = np.divmod(np.arange(rows * columns), columns)
        centres = np.stack((x, y, x, y), axis=1).astype(np.float32) + np.float32(0.5)
        logits = logits.reshape(rows * columns, -1)
        finite = np.isfinite(logits).all(axis=1)
        with np.errstate(over="ignore"):
            scores = np.float32(1) / (np.float32(1) + np.exp(-logits))
        asked = np.flatnonzero(finite & (scores.max(axis=1, initial=-1, where=np.isfinite(scores)) > conf))
        bins = distances.reshape(rows * columns, 4, -1)[asked].astype(np.float64)
        broken = ~np.isfinite(bins).all(axis=(1, 2))
        asked, bins = asked[~broken], bins[~broken]
        weights = np.exp(bins - bins.max(axis=2, keepdims=True))
        means = (weights @ np.arange(bins.shape[2])) / weights.sum(axis=2)
        sides = (centres[asked] + means * (-1, -1, 1, 1)) / (columns, rows, columns, rows)
        # The class of the highest logit: sigmoids of different logits may be equal.
        classes = logits[asked].argmax(axis=1)
        best = scores[asked, classes]
        non_finite = int((~finite).sum() + broken.sum())
        levels.append(Candidates(sides.astype(np.float32), best, classes.astype(np.int32), before + asked, non_finite))
        before += rows * columns
    parts = [np.concatenate(part) for part in zip(*(level[:4] for level in levels), strict=True)]
    boxes, points, labels, rows_of_all = parts
    return Candidates(boxes, points, labels, rows_of_all, sum(level.non_finite for level in levels))


def floats(values: NDArray[Any]) -> Floats:
    """The values as float32; uint16 holds the bits of a bfloat16."""
    if values.dtype == np.uint16:
        return (values.astype(np.uint32) << 16).view(np.float32)
    return values.astype(np.float32)


def _numbers(labels: Floats) -> NDArray[np.int32]:
    """Class numbers that a model returns as floats; those beyond int32 become the nearest that it has."""
    return np.rint(labels).clip(-(2.0**31), 2.0**31 - 128).astype(np.int32)


def _best_class(boxes: Floats, scores: Floats, conf: float, rows: Array, non_finite: int) -> Candidates:
    """The best class of each row of scores (n, nc), where it exceeds `conf`."""
    classes = scores.argmax(axis=1).astype(np.int32)
    best = scores[np.arange(len(scores)), classes]
    return Candidates(boxes, best, classes, rows, non_finite).take(np.flatnonzero(best > conf))


def _corners(boxes: Floats) -> Floats:
    """(n, 4) cx cy w h to x1 y1 x2 y2."""
    centre, half = boxes[:, :2], boxes[:, 2:] / 2
    with np.errstate(over="ignore"):
        return np.concatenate((centre - half, centre + half), axis=1)


READERS: dict[str, Callable[[Sequence[Floats], float, str | None], Candidates]] = {
    reader.__name__: reader for reader in (yolov5, yolov8, end2end, detr, yolov8_head)
}
"""Reads each layout's outputs of one image."""
