"""BoxCheck: the boxes of a batch become Detections, without those that no object can have."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from framefuse.prediction import Detections

ROUNDING = 1e-3
"""How far a confidence may exceed 1: one step of float16. Such a one becomes 1."""

TOGETHER = 4
"""From so many frames on, the boxes of a batch are checked together: a NumPy call takes longer than its work on one."""


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
        if len(counts) < TOGETHER:
            spans = [(row, slice(count)) for row, count in enumerate(counts.tolist())]
            return [self.one(boxes[span], scores[span], classes[span]) for span in spans]
        rows = np.flatnonzero(np.arange(scores.shape[1]) < counts[:, None])
        boxes, scores, classes = boxes.reshape(-1, 4).take(rows, 0), scores.take(rows), classes.take(rows)
        frames = [slice(*ends) for ends in pairwise([0, *np.cumsum(counts).tolist()])]
        if len(rows) and not self._all_plausible(boxes, scores.max(), scores.min(), classes):
            return [self.one(boxes[frame], scores[frame], classes[frame]) for frame in frames]
        classes = classes.astype(np.int64)
        return [Detections(boxes[frame], scores[frame], classes[frame], self._names) for frame in frames]

    def one(
        self, boxes: NDArray[Any], scores: NDArray[Any], classes: NDArray[Any], views: NDArray[Any] | None = None
    ) -> Detections:
        """Copies of the plausible rows of one frame; `views` (rows,): the view of each."""
        if len(scores) and not self._all_plausible(boxes, scores[0], scores[-1], classes):
            kept = self._kept(boxes, scores, classes)
            boxes, scores, classes = boxes[kept], np.minimum(scores[kept], np.float32(1)), classes[kept]
            views = None if views is None else views[kept]
        views = None if views is None else views.astype(np.int64)
        return Detections(boxes.copy(), scores.copy(), classes.astype(np.int64), self._names, view=views)

    @property
    def warnings(self) -> list[str]:
        """One line for the report; nothing if every box was plausible."""
        reasons = (self._classes, "a confidence outside 0..1", "crossed corners", "no area inside the frame")
        counts = self._counts.tolist()
        found = [f"{count:,} with {reason}" for count, reason in zip(counts, reasons, strict=True) if count]
        hint = f"; check layout, activation and names in the card {self._card}" if any(counts[:3]) else ""
        return [f"boxes dropped: {', '.join(found)}{hint}"] if found else []

    def _all_plausible(self, boxes: NDArray[Any], highest: float, lowest: float, classes: NDArray[Any]) -> bool:
        """Few passes over the rows, since nearly every frame is: as uint32, a negative class is a large one."""
        return bool(
            classes.view(np.uint32).max() < self._class_count
            and highest <= 1
            and lowest >= 0
            and (boxes[:, 2:] > boxes[:, :2]).all()
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
