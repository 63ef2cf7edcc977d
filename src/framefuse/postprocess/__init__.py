"""Post-processing of detections: raw outputs -> `Predictions` in source pixels."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from framefuse.errors import NonFiniteError
from framefuse.kernels.boxes.call import HEAD, MAX_CANDIDATES, detections
from framefuse.prediction import Predictions
from framefuse.preprocess import Placement


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
    """Select boxes above `conf`, suppress duplicates, and map the rest to source pixels.

    Each anchor or query yields only its best class (the lowest class number wins a tie), except in sigmoid detr models,
    where every (query, class) pair competes, as in RT-DETR. Boxes are sorted by descending score, ties by anchor;
    suppression considers the MAX_CANDIDATES best.

    Args:
        outputs: arrays (batch, ...) in the order of the layout, with the shapes in `models.card.Card`. Batch rows
            beyond `placements` are padding. float32 and float16 are read in place if their last axis is contiguous;
            others are copied.
        layout: yolov5, yolov8, end2end or detr; or yolov8_head, the logits of a YOLOv8 head.
        placements: where each image of the batch lies in the model input.
        conf: confidence that a box must exceed, 0..1.
        iou: intersection over union above which the weaker of two boxes is dropped; yolov5 and yolov8 only.
        max_det: maximum boxes per image (K of Predictions).
        classes: class numbers to keep, applied before all limits; None keeps all.
        agnostic: suppress across classes.
        activation: detr: sigmoid, softmax (the last class is "no object") or none; None: sigmoid for two outputs.
        box_units: pixels or relative (0..1 of the model input); None: relative for detr, else pixels.
        check_finite: raise if an anchor or query has a NaN or infinite value; otherwise skip it.

    Raises:
        NonFiniteError: NaN or infinity in the outputs of an image.
        UsageError: the layout is unknown, or the shape of an output does not fit it.
    """
    relative = (box_units or ("relative" if layout == "detr" else "pixels")) == "relative"
    found = detections(
        outputs if layout == HEAD else [_readable(output) for output in outputs],
        layout,
        maps(tuple(placements), relative),
        conf=conf,
        iou=iou,
        max_det=max_det,
        classes=classes,
        agnostic=agnostic,
        activation=activation,
    )
    if check_finite and any(found.non_finite.tolist()):
        row = int(np.flatnonzero(found.non_finite)[0])
        raise NonFiniteError(
            f"the model returned NaN or infinity in {found.non_finite[row]} of its anchors or queries for frame {row} "
            f"of a batch of {len(placements)}",
            remedy="run it with --precision fp32; if that does not help, the model file is damaged",
        )
    return Predictions(*found[:4])


@lru_cache(maxsize=64)
def maps(placements: tuple[Placement, ...], relative: bool) -> NDArray[np.float32]:
    """`maps` of `kernels.reference.detections`: model boxes -> source pixels.

    Args:
        relative: whether boxes are in 0..1 of the model input.
    """
    rows = np.empty((len(placements), 8), np.float32)
    for row, placement in zip(rows, placements, strict=True):
        (left, top), (scale_x, scale_y) = placement.offset, placement.scale
        units = placement.size if relative else (1, 1)
        row[:] = *units, left, top, 1 / scale_x, 1 / scale_y, *placement.source
    return rows


def _readable(output: NDArray[Any]) -> NDArray[Any]:
    """The output as the kernels read it; copied only if its dtype or strides require it."""
    output = np.asarray(output)
    if output.dtype not in (np.float32, np.float16):
        output = output.astype(np.float32)
    return output if output.strides[-1] == output.itemsize else np.ascontiguousarray(output)


__all__ = ["MAX_CANDIDATES", "maps", "postprocess"]
