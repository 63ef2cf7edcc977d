"""Candidates: the boxes of one picture whose confidence is high enough, read from each output layout."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


class Candidates(NamedTuple):
    """Boxes above the confidence threshold, in the order of the model's anchors or queries."""

    boxes: Floats
    """(n, 4) x1 y1 x2 y2 in the units of the model."""
    scores: Floats
    """(n,)"""
    classes: NDArray[np.int32]
    """(n,)"""

    def take(self, index: NDArray[np.intp]) -> Candidates:
        return Candidates(self.boxes[index], self.scores[index], self.classes[index])


def yolov8(outputs: Sequence[Floats], conf: float, activation: str | None = None) -> Candidates:
    """(4 + nc, N): cx cy w h, then a score per class."""
    (output,) = outputs
    scores = output[4:]
    best = scores.max(axis=0)
    index = np.flatnonzero(best > conf)
    return Candidates(_corners(output[:4, index].T), best[index], scores[:, index].argmax(axis=0).astype(np.int32))


def yolov5(outputs: Sequence[Floats], conf: float, activation: str | None = None) -> Candidates:
    """(N, 5 + nc): cx cy w h, objectness, then a score per class; confidence = objectness * class score.

    As in YOLOv5, an anchor counts only if its objectness alone exceeds `conf`.
    """
    (output,) = outputs
    rows = output[output[:, 4] > conf]
    return _best_class(_corners(rows[:, :4]), rows[:, 5:] * rows[:, 4:5], conf)


def end2end(outputs: Sequence[Floats], conf: float, activation: str | None = None) -> Candidates:
    """(K, 6): x1 y1 x2 y2 score class; duplicates are already gone."""
    (output,) = outputs
    rows = output[output[:, 4] > conf]
    return Candidates(rows[:, :4], rows[:, 4], np.rint(rows[:, 5]).astype(np.int32))


def detr(outputs: Sequence[Floats], conf: float, activation: str | None = None) -> Candidates:
    """One output (K, 4 + nc), two (boxes (K, 4), logits (K, nc)), or three (labels (K,), boxes (K, 4), scores (K,)).

    Boxes are cx cy w h, with three outputs x1 y1 x2 y2. Sigmoid models may give one query several classes.
    """
    if len(outputs) == 3:
        labels, boxes, scores = outputs
        index = np.flatnonzero(scores > conf)
        return Candidates(boxes[index], scores[index], np.rint(labels[index]).astype(np.int32))
    boxes, values = (outputs[0][:, :4], outputs[0][:, 4:]) if len(outputs) == 1 else outputs
    activation = activation or ("sigmoid" if len(outputs) == 2 else "none")
    if activation == "softmax":
        exponents = np.exp(values - values.max(axis=1, keepdims=True))
        values = (exponents / exponents.sum(axis=1, keepdims=True))[:, :-1]
    if activation != "sigmoid":
        return _best_class(_corners(boxes), values, conf)
    with np.errstate(over="ignore"):  # exp of a large negative logit is infinite: the score is 0
        values = np.float32(1) / (np.float32(1) + np.exp(-values))
    query, class_id = np.nonzero(values > conf)
    return Candidates(_corners(boxes[query]), values[query, class_id], class_id.astype(np.int32))


def _best_class(boxes: Floats, scores: Floats, conf: float) -> Candidates:
    """The best class of each row of scores (n, nc), where it exceeds `conf`."""
    classes = scores.argmax(axis=1).astype(np.int32)
    best = scores[np.arange(len(scores)), classes]
    return Candidates(boxes, best, classes).take(np.flatnonzero(best > conf))


def _corners(boxes: Floats) -> Floats:
    """(n, 4) cx cy w h to x1 y1 x2 y2."""
    centre, half = boxes[:, :2], boxes[:, 2:] / 2
    return np.concatenate((centre - half, centre + half), axis=1)


READERS: dict[str, Callable[[Sequence[Floats], float, str | None], Candidates]] = {
    "yolov5": yolov5,
    "yolov8": yolov8,
    "end2end": end2end,
    "detr": detr,
}
