"""Post-processing: a model's raw outputs to Predictions in source pixels."""

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
    """Keep the boxes above `conf`, drop duplicates, map the rest back to the images.

    Each anchor or query gives its best class only (the lowest class number wins a tie), except sigmoid detr models,
    where every (query, class) pair competes, as in RT-DETR. Boxes leave by descending score, equal scores in the order
    of their anchors; suppression looks at the MAX_CANDIDATES best.

    Args:
        outputs: arrays (batch, ...) in the order of the layout; their shapes are drawn in `models.card.Card`. Batch
            rows beyond `placements` are padding and ignored. float32 and float16 are read in place where their last
            axis is contiguous; others are copied.
        layout: yolov5, yolov8, end2end or detr; or yolov8_head, the logits that an engine puts out instead of yolov8.
        placements: one per image of the batch: where it lies in the model input.
        conf: confidence that a box must exceed, 0..1.
        iou: overlap (intersection over union) above which the weaker of two boxes is dropped; yolov5 and yolov8 only.
        max_det: boxes an image at most (K of Predictions).
        classes: class numbers to keep, before everything else is counted; None keeps all.
        agnostic: a box suppresses those of other classes too.
        activation: detr: sigmoid, softmax (the last class is "no object") or none; None: sigmoid for two outputs.
        box_units: pixels or relative (0..1 of the model input); None: relative for detr, else pixels.
        check_finite: raise where an anchor or query has a NaN or infinite value; otherwise it is left out.

    Raises:
        NonFiniteError: NaN or infinity anywhere in a row of `outputs` that belongs to an image.
        UsageError: unknown layout, or an output has a shape that is not the layout's.
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
            f"the model put out NaN or infinity in {found.non_finite[row]} of its anchors or queries for frame {row} "
            f"of a batch of {len(placements)}",
            remedy="run it with --precision fp32; if they are still there, the model file is damaged",
        )
    return Predictions(*found[:4])


@lru_cache(maxsize=64)
def maps(placements: tuple[Placement, ...], relative: bool) -> NDArray[np.float32]:
    """`maps` of `kernels.reference.detections`: from boxes of the model to source pixels.

    Args:
        relative: the model's boxes are in 0..1 of its input.
    """
    rows = np.empty((len(placements), 8), np.float32)
    for row, placement in zip(rows, placements, strict=True):
        (left, top, _, _), (scale_x, scale_y) = placement.content, placement.scale
        units = placement.size if relative else (1, 1)
        row[:] = *units, left, top, 1 / scale_x, 1 / scale_y, *placement.source
    return rows


def _readable(output: NDArray[Any]) -> NDArray[Any]:
    """The output as the kernels read it; a copy only where its dtype or layout in memory asks for one."""
    output = np.asarray(output)
    if output.dtype not in (np.float32, np.float16):
        output = output.astype(np.float32)
    return output if output.strides[-1] == output.itemsize else np.ascontiguousarray(output)


__all__ = ["MAX_CANDIDATES", "maps", "postprocess"]
