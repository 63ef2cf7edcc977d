"""How far pixels and boxes are apart, and how far they may be."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

Verdict = Literal["exact", "within", "outside", "not compared"]

EXACT_PIXELS = 0.01
"""Grey levels below which a difference is the rounding of float32 arithmetic."""
EXACT_BOXES = 0.01
"""The same in pixels of the picture."""
EXACT_SCORES = 1e-4


class Boxes(NamedTuple):
    """What was found in one frame."""

    xyxy: NDArray[np.float32]
    """(n, 4), pixels of the shown picture."""
    scores: NDArray[np.float32]
    classes: NDArray[Any]


@dataclass(frozen=True)
class Limits:
    """How far the boxes of an engine may be from those of FP32.

    A box whose score is within `score` of the confidence threshold may be missing or surplus: any rounding decides it.
    """

    iou: float
    score: float


LIMITS = {
    "fp32": Limits(0.98, 0.01),
    "fp16": Limits(0.90, 0.03),
    "bf16": Limits(0.80, 0.10),
    "int8": Limits(0.75, 0.20),
    "fp8": Limits(0.70, 0.25),
}
"""By the precision that the engine says it runs in. A file with quantisers is INT8 for every engine: where FP32 rounds
in the last bit, a quantiser may take the next step."""
GRID = {"float32": 0.0, "float16": 255 / 2**12, "uint16": 255 / 2**9, "uint8": 0.5}
"""Half a step of a model input's number format near white, grey levels; uint16 holds bfloat16."""
SUPPRESSION = 0.05
"""Overlaps that are this close to the threshold of suppression may be decided either way."""


@dataclass
class PixelDifference:
    """Absolute differences, grey levels."""

    mean: float = 0.0
    worst: float = 0.0
    values: int = 0

    def add(self, one: NDArray[Any], other: NDArray[Any]) -> None:
        apart = np.abs(one.astype(np.float64) - other.astype(np.float64))
        if not apart.size:
            return
        total = self.mean * self.values + float(apart.sum())
        self.values += apart.size
        self.mean, self.worst = total / self.values, max(self.worst, float(apart.max()))

    def __str__(self) -> str:
        if not self.worst:
            return "identical"
        return f"{_short(self.worst)} grey levels at most, {_short(self.mean)} on average"


@dataclass
class BoxDifference:
    """Two lists of boxes, frame by frame."""

    matched: int = 0
    missing: int = 0
    """Found by the reference only, and not near any threshold."""
    surplus: int = 0
    """Found by the other only, and not near any threshold."""
    undecided: int = 0
    """Found by one of them, so close to a threshold that rounding decides."""
    shift: float = 0.0
    """Largest difference of a coordinate, pixels."""
    score: float = 0.0
    """Largest difference of a score."""
    iou: float = 1.0
    """Smallest overlap of a pair."""

    @property
    def exact(self) -> bool:
        apart = self.missing + self.surplus + self.undecided
        return not apart and self.shift <= EXACT_BOXES and self.score <= EXACT_SCORES

    def verdict(self, limits: Limits) -> Verdict:
        if self.exact:
            return "exact"
        agree = not self.missing and not self.surplus and self.iou >= limits.iou and self.score <= limits.score
        return "within" if agree else "outside"

    def add(self, reference: Boxes, other: Boxes, limits: Limits, *, conf: float, iou: float) -> None:
        """Count one frame.

        Args:
            conf, iou: thresholds of confidence and of suppression.
        """
        overlaps = overlap(reference.xyxy, other.xyxy)
        same = reference.classes[:, None] == other.classes[None, :]
        free = set(range(len(other.scores)))
        alone = []
        for row in np.argsort(-reference.scores, kind="stable").tolist():
            score = float(reference.scores[row])
            # Of boxes that overlap alike, as an end-to-end model may have them, the one that scores alike.
            best = max(
                free,
                key=lambda column: (
                    round(overlaps[row, column] * same[row, column], 2),
                    -abs(other.scores[column] - score),
                ),
                default=None,
            )
            if best is None or not same[row, best] or overlaps[row, best] < 0.5:
                alone.append(row)
                continue
            free.remove(best)
            self.matched += 1
            self.shift = max(self.shift, float(np.abs(reference.xyxy[row] - other.xyxy[best]).max()))
            self.score = max(self.score, abs(float(reference.scores[row] - other.scores[best])))
            self.iou = min(self.iou, float(overlaps[row, best]))
        for row in alone:
            near = reference.scores[row] < conf + limits.score or _close(row, reference, iou)
            self.undecided, self.missing = self.undecided + near, self.missing + (not near)
        for column in free:
            near = other.scores[column] < conf + limits.score or _close(column, other, iou)
            self.undecided, self.surplus = self.undecided + near, self.surplus + (not near)

    def __str__(self) -> str:
        if self.exact and not self.shift and not self.score:
            return f"{self.matched} boxes, identical"
        parts = [f"{self.matched} boxes"]
        if self.matched:
            parts.append(f"{_short(self.shift)} px and {_short(self.score)} of score at most, IoU {self.iou:.3f}")
        for count, what in ((self.missing, "missing"), (self.surplus, "surplus"), (self.undecided, "at a threshold")):
            if count:
                parts.append(f"{count} {what}")
        return ", ".join(parts)


@dataclass(frozen=True)
class Check:
    """One stage against what it should give."""

    stage: str
    found: str
    limit: str
    verdict: Verdict
    note: str = ""


def overlap(one: NDArray[Any], other: NDArray[Any]) -> NDArray[np.float64]:
    """(n, m) intersection over union of boxes (n, 4) and (m, 4)."""
    a, b = one.astype(np.float64)[:, None], other.astype(np.float64)[None]
    low, high = np.maximum(a[..., :2], b[..., :2]), np.minimum(a[..., 2:], b[..., 2:])
    shared = np.prod(np.clip(high - low, 0, None), axis=-1)
    union = np.prod(a[..., 2:] - a[..., :2], axis=-1) + np.prod(b[..., 2:] - b[..., :2], axis=-1) - shared
    return np.asarray(shared / np.maximum(union, 1e-12))


def box_check(stage: str, difference: BoxDifference, limits: Limits, note: str = "") -> Check:
    limit = f"IoU >= {limits.iou:g}, score +-{limits.score:g}"
    return Check(stage, str(difference), limit, difference.verdict(limits), note)


def pixel_check(stage: str, difference: PixelDifference, limit: float, note: str = "") -> Check:
    """A check in grey levels; with a limit of 0 every difference is outside."""
    verdict: Verdict = "exact" if difference.worst <= min(EXACT_PIXELS, limit) else "within"
    if difference.worst > limit:
        verdict = "outside"
    return Check(stage, str(difference), f"<= {limit:.2g} grey levels" if limit else "identical", verdict, note)


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    order: Sequence[Verdict] = ("not compared", "exact", "within", "outside")
    return max(verdicts, key=order.index, default="not compared")


def _close(row: int, boxes: Boxes, iou: float) -> bool:
    """Whether a stronger box of its class overlaps this one almost as much as suppression asks for, or more."""
    stronger = (boxes.scores >= boxes.scores[row]) & (boxes.classes == boxes.classes[row])
    stronger[row] = False
    return bool((overlap(boxes.xyxy[row : row + 1], boxes.xyxy[stronger]) >= iou - SUPPRESSION).any())


def _short(value: float) -> str:
    return f"{value:.2g}" if value < 10 else f"{value:.0f}"


__all__ = ["LIMITS", "BoxDifference", "Boxes", "Check", "Limits", "PixelDifference", "Verdict", "overlap", "worst"]
