"""BoxCheck: the boxes of one frame become Detections, without those that no object can have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from framefuse.prediction import Detections

ROUNDING = 1e-3
"""How far a confidence may exceed 1: one step of float16. Such a one becomes 1."""


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

    def __call__(self, boxes: NDArray[Any], scores: NDArray[Any], classes: NDArray[Any]) -> Detections:
        """Copies of the rows that are plausible.

        Args:
            boxes: (n, 4) float32: x1, y1, x2, y2 in source pixels, clipped to the frame.
            scores: (n,) float32, descending.
            classes: (n,) int32.
        """
        if not self._all_plausible(boxes, scores, classes):
            kept = self._kept(boxes, scores, classes)
            boxes, scores, classes = boxes[kept], np.minimum(scores[kept], np.float32(1)), classes[kept]
        return Detections(boxes.copy(), scores.copy(), classes.astype(np.int64), self._names)

    @property
    def warnings(self) -> list[str]:
        """One line for the report; nothing if every box was plausible."""
        reasons = (self._classes, "a confidence outside 0..1", "crossed corners", "no area inside the frame")
        counts = self._counts.tolist()
        found = [f"{count:,} with {reason}" for count, reason in zip(counts, reasons, strict=True) if count]
        hint = f"; check layout, activation and names in the card {self._card}" if any(counts[:3]) else ""
        return [f"boxes dropped: {', '.join(found)}{hint}"] if found else []

    def _all_plausible(self, boxes: NDArray[Any], scores: NDArray[Any], classes: NDArray[Any]) -> bool:
        """Three passes over the rows, since nearly every frame is: as uint32, a negative class is a large one."""
        return not len(scores) or bool(
            classes.view(np.uint32).max() < self._class_count
            and scores[0] <= 1
            and scores[-1] >= 0
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
