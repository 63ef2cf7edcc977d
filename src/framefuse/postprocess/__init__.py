"""Post-processing: raw outputs of a model -> boxes or class masks in source pixels."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from framefuse.errors import CardError, NonFiniteError
from framefuse.kernels.boxes.call import HEAD, MAX_CANDIDATES, detections, take_rows
from framefuse.kernels.masks import call as kernels
from framefuse.prediction import Detections, Predictions
from framefuse.preprocess import Placement

ROUNDING = 1e-3
"""How far a confidence may exceed 1: one step of float16. Such a one becomes 1."""


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

    Raises:
        NonFiniteError: NaN or infinity in the outputs of an image.
        UsageError: the layout is unknown, or the shape of an output does not fit it.
    """
    relative = (box_units or ("relative" if layout == "detr" else "pixels")) == "relative"
    readable = outputs if layout == HEAD else [_readable(output) for output in outputs]
    table = maps(tuple(placements), relative)
    chosen: dict[str, Any] = {"conf": conf, "iou": iou, "max_det": max_det, "classes": classes, "agnostic": agnostic}
    found = detections(readable, layout, table, activation=activation, **chosen)
    raise_non_finite(found.non_finite, "of its anchors or queries")
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


def raise_non_finite(counts: NDArray[Any], of_what: str) -> None:
    """Raise NonFiniteError if a frame of a batch has NaN or infinity; `counts` (batch,): how many."""
    if np.count_nonzero(counts):
        bad = np.flatnonzero(counts)
        raise NonFiniteError(
            f"the model returned NaN or infinity in {counts[bad[0]]} {of_what} for frame {bad[0]} of a batch of "
            f"{len(counts)}",
            remedy="run it with --precision fp32; if that does not help, the model file is damaged",
        )


class BoxCheck:
    """Drops boxes that contradict the card or the frame, and counts them by reason.

    A file may state anything, so a model may return class -1, or confidences that are logits.

    Args:
        names: class number -> name, from 0; empty: any class from 0 is plausible.
        card: file name of the model's card, for the warning.
    """

    def __init__(self, names: Mapping[int, str], card: str) -> None:
        self._names, self._card = names, card
        self._class_count = len(names) or 1 << 31
        self._classes = f"a class number {f'outside 0..{len(names) - 1}' if names else 'below 0'}"
        self._counts = np.zeros(4, np.int64)

    def __call__(
        self, boxes: NDArray[Any], scores: NDArray[Any], classes: NDArray[Any], counts: NDArray[Any]
    ) -> list[Detections]:
        """Copies of the rows that are plausible, for each frame of a batch. Those of a batch share their memory.

        Args:
            boxes: (batch, max_det, 4) float32: x1, y1, x2, y2 in source pixels, clipped to the frame; C-contiguous.
            scores: (batch, max_det) float32, descending.
            classes: (batch, max_det) int32.
            counts: (batch,) integers, how many rows of each frame are boxes.
        """
        if len(counts) == 1:
            frame = slice(int(counts[0]))
            return [self.one(boxes[0, frame], scores[0, frame], classes[0, frame])]
        boxes, scores, classes, plausible = take_rows(boxes, scores, classes, counts, self._class_count)
        frames = [slice(*ends) for ends in pairwise([0, *accumulate(counts.tolist())])]
        if plausible:
            return [Detections(boxes[frame], scores[frame], classes[frame], self._names) for frame in frames]
        return [self.one(boxes[frame], scores[frame], classes[frame]) for frame in frames]

    def one(self, boxes: NDArray[Any], scores: NDArray[Any], classes: NDArray[Any], **more: Any) -> Detections:
        """Copies of the plausible rows of one frame.

        Args:
            more: other fields of `Detections` with as many rows, which are not copied.
        """
        if len(scores) and not self._all_plausible(boxes, scores, classes):
            kept = self._kept(boxes, scores, classes)
            boxes, scores, classes = boxes[kept], np.minimum(scores[kept], np.float32(1)), classes[kept]
            more = {name: part[kept] for name, part in more.items()}
        return Detections(boxes.copy(), scores.copy(), classes.astype(np.int64), self._names, **more)

    @property
    def warnings(self) -> list[str]:
        """One line for the report; nothing if every box was plausible."""
        reasons = (self._classes, "a confidence outside 0..1", "crossed corners", "no area inside the frame")
        counts = self._counts.tolist()
        found = [f"{count:,} with {reason}" for count, reason in zip(counts, reasons, strict=True) if count]
        hint = f"; check layout, activation and names in the card {self._card}" if any(counts[:3]) else ""
        return [f"boxes dropped: {', '.join(found)}{hint}"] if found else []

    def _all_plausible(self, boxes: NDArray[Any], scores: NDArray[Any], classes: NDArray[Any]) -> bool:
        """Few passes over the rows, since nearly every frame is, and counts, which take less time than `all` does: as
        uint32, a negative class is a large one."""
        words = classes.view(np.uint32)
        return bool(
            np.count_nonzero(words < self._class_count) == words.size
            and scores[0] <= 1
            and scores[-1] >= 0
            and np.count_nonzero(boxes[:, 2:] > boxes[:, :2]) == 2 * len(boxes)
        )

    def _kept(self, boxes: NDArray[Any], scores: NDArray[Any], classes: NDArray[Any]) -> NDArray[np.bool_]:
        start, end = boxes[:, :2], boxes[:, 2:]
        kept = np.ones(len(scores), np.bool_)
        faults = (
            (classes < 0) | (classes >= self._class_count),
            ~((scores >= 0) & (scores <= 1 + ROUNDING)),
            (end < start).any(axis=1),
            ~(end > start).all(axis=1),
        )
        for reason, fault in enumerate(faults):  # a box counts for its first fault
            self._counts[reason] += np.count_nonzero(fault & kept)
            kept &= ~fault
        return kept


def class_masks(scores: NDArray[Any], placements: Sequence[Placement]) -> list[NDArray[np.uint8]]:
    """The class of each pixel, (height, width), of the images, or of the part of each that its placement uses.

    Scores are upsampled to what the model saw, and then the best is taken, as training frameworks do.

    Args:
        scores: (batch, classes, h, w), float32; other types are copied. Batch rows beyond `placements` are padding.
        placements: where each image lies in the model input.

    Raises:
        CardError: h and w are not the same fraction of the input's sides.
        NonFiniteError: NaN or infinity in the scores of an image.
    """
    scores = np.asarray(scores[: len(placements)], np.float32)
    with np.errstate(invalid="ignore", over="ignore"):
        finite = np.isfinite([rows.sum(dtype=np.float64) for rows in scores]).all()
    if not finite:
        raise_non_finite(np.count_nonzero(~np.isfinite(scores), axis=(1, 2, 3)), "of its scores")
    return [
        kernels.classes(rows[None], placement.shown[::-1], content=scored(rows.shape, placement))[0]
        for rows, placement in zip(scores, placements, strict=True)
    ]


def scored(shape: tuple[int, ...], placement: Placement) -> tuple[float, float, float, float]:
    """The content of a placement (left, top, width, height) in scores (classes, height, width) of the model input.

    Raises:
        CardError: height and width are not the same fraction of the input's sides.
    """
    (_, height, width), (wide, high) = shape, placement.size
    if height * wide != width * high:
        remedy = "export it with scores at the size of the input, or at 1/2, 1/4, ... of it"
        raise CardError(f"the model returned {width}x{height} scores for an input of {wide}x{high}", remedy=remedy)
    left, top, across, down = (side * width / wide for side in placement.content)
    return left, top, across, down


__all__ = ["MAX_CANDIDATES", "BoxCheck", "class_masks", "maps", "postprocess"]
