"""Post-processing: a model's raw outputs to Predictions in source pixels, in plain numpy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from framefuse.errors import NonFiniteError, UsageError
from framefuse.postprocess.candidates import READERS, Candidates
from framefuse.postprocess.nms import nms
from framefuse.prediction import Predictions
from framefuse.preprocess import Placement

MAX_CANDIDATES = 30_000
"""Boxes that NMS looks at, those with the highest scores; bounds its time and memory."""


def postprocess(
    outputs: Sequence[NDArray[Any]],
    layout: str,
    placements: Sequence[Placement],
    *,
    conf: float,
    iou: float,
    max_det: int,
    classes: Sequence[int] | None = None,
    agnostic: bool = False,
    activation: str | None = None,
    box_units: str | None = None,
    check_finite: bool = True,
) -> Predictions:
    """Keep the boxes above `conf`, drop duplicates, map the rest back to the pictures.

    Each anchor or query gives its best class only (the lowest class number wins a tie), except sigmoid detr models,
    where every (query, class) pair competes, as in RT-DETR. Boxes leave by descending score, equal scores in the order
    of their anchors.

    Args:
        outputs: arrays (batch, ...) in the order of the layout; their shapes are drawn in `models.card.Card`. Batch
            rows beyond `placements` are padding and ignored.
        layout: yolov5, yolov8, end2end or detr.
        placements: one per picture of the batch: where it lies in the model input.
        conf: confidence that a box must exceed, 0..1.
        iou: overlap (intersection over union) above which the weaker of two boxes is dropped; yolov5 and yolov8 only.
        max_det: boxes a picture at most (K of Predictions).
        classes: class numbers to keep, before everything else is counted; None keeps all.
        agnostic: a box suppresses those of other classes too.
        activation: detr: sigmoid, softmax (the last class is "no object") or none; None: sigmoid for two outputs.
        box_units: pixels or relative (0..1 of the model input); None: relative for detr, else pixels.
        check_finite: look at every value of the outputs once for NaN and infinity.

    Raises:
        NonFiniteError: NaN or infinity anywhere in a row of `outputs` that belongs to a picture.
        UsageError: unknown layout.
    """
    if layout not in READERS:
        raise UsageError(f"unknown output layout {layout!r}", remedy=f"choose one of {', '.join(READERS)}")
    arrays = [np.asarray(output[: len(placements)]) for output in outputs]
    arrays = [array.astype(np.float32, copy=False) for array in arrays]
    if check_finite:
        _check_finite(arrays)
    wanted = None if classes is None else np.asarray(classes, np.int32)
    predictions = Predictions(
        np.zeros((len(placements), max_det, 4), np.float32),
        np.zeros((len(placements), max_det), np.float32),
        np.zeros((len(placements), max_det), np.int32),
        np.zeros(len(placements), np.int32),
    )
    for row, placement in enumerate(placements):
        found = READERS[layout]([array[row] for array in arrays], conf, activation)
        if wanted is not None:
            found = found.take(np.flatnonzero(np.isin(found.classes, wanted)))
        found = found.take(np.argsort(-found.scores, kind="stable")[:MAX_CANDIDATES])
        if layout in ("yolov5", "yolov8"):
            kept = nms(found.boxes, None if agnostic else found.classes, iou, max_det)
        else:
            kept = np.arange(min(len(found.scores), max_det))
        boxes, scores, class_ids = found.take(kept)
        if (box_units or ("relative" if layout == "detr" else "pixels")) == "relative":
            boxes = boxes * np.array(placement.size * 2, np.float32)
        count = len(kept)
        predictions.boxes[row, :count] = placement.unmap(boxes)
        predictions.scores[row, :count] = scores
        predictions.classes[row, :count] = class_ids
        predictions.counts[row] = count
    return predictions


def _check_finite(arrays: Sequence[NDArray[np.float32]]) -> None:
    """Raise where a value is NaN or infinite."""
    # A sum is finite only if all its terms are, and needs no temporary array; where it overflows, each value is asked.
    with np.errstate(over="ignore", invalid="ignore"):
        if all(np.isfinite(array.sum()) for array in arrays):
            return
    for row in range(len(arrays[0])):
        bad = sum(int(np.count_nonzero(~np.isfinite(array[row]))) for array in arrays)
        if bad:
            raise NonFiniteError(
                f"the model put out {bad} NaN or infinite values for frame {row} of a batch of {len(arrays[0])}",
                remedy="run it with --precision fp32; if they are still there, the model file is damaged",
            )


__all__ = ["MAX_CANDIDATES", "Candidates", "nms", "postprocess"]
