"""How far pixels and boxes are apart, and how far they may be."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

Verdict = Literal["exact", "within", "outside", "not compared"]

EXACT_PIXELS = 0.01
"""Grey levels below which a difference is the rounding of float32 arithmetic."""
EXACT_BOXES = 0.01
"""The same in pixels of the image."""
EXACT_SCORES = 1e-4


class Boxes(NamedTuple):
    """What was found in one frame."""

    xyxy: NDArray[np.float32]
    """(n, 4), pixels of the shown image."""
    scores: NDArray[np.float32]
    classes: NDArray[Any]


@dataclass(frozen=True)
class Limits:
    """How far the boxes of an engine may be from those of FP32.

    A box whose score is within `score` of the confidence threshold may be missing or surplus: any rounding decides it.
    """

    iou: float
    """Of every pair."""
    score: float
    edge: float = 0.0
    """Pixels of the model's input. A box with a side below `SMALL` may overlap less, where all edges are this close."""
    most: float = 0.0
    """IoU of 99 % of the boxes whose sides are `SMALL` or more."""
    median: float = 0.0
    """IoU of half of them."""

    def __str__(self) -> str:
        parts = [f"IoU >= {self.iou:g}" + (f" or edges +-{self.edge:g} px of the input" if self.edge else "")]
        if self.most:
            parts.append(f"99 % >= {self.most:g}, median >= {self.median:g}")
        return ", ".join([*parts, f"score +-{self.score:g}"])


SMALL = 16
"""Pixels of the model's input: of a box this large on both sides, IoU can be asked for; half a pixel on each edge of a
smaller one is more than a tenth of its area."""
HALF = 0.5
"""The step of float16 between 512 and 1024, where the edges of an image of 640 pixels lie: what numbers of reduced
precision can tell apart at best."""
LIMITS = {
    "fp32": Limits(0.98, 0.01),
    "fp16": Limits(0.90, 0.02, HALF, most=0.95, median=0.99),
    "bf16": Limits(0.80, 0.10, HALF),
    "int8": Limits(0.75, 0.20, HALF),
    "fp8": Limits(0.70, 0.25, HALF),
}
"""By the precision that the engine says it runs in. A file with quantisers is INT8 for every engine: where FP32 rounds
in the last bit, a quantiser may take the next step."""
GRID = {"float32": 0.0, "float16": 255 / 2**12, "uint16": 255 / 2**9, "uint8": 0.5}
"""Half a step of a model input's number format near white, grey levels; uint16 holds bfloat16."""
EDGE = np.array((-0.5, -0.5, 0.5, 0.5), np.float32)
"""Pixels that boxes are grown by before they are paired: of one that the image's edge cuts to nothing, something is
left to overlap."""
PAIR = 0.5
"""IoU from which on two boxes are of one object."""
FEW = 0.01
"""Part of the large boxes that may overlap less than `Limits.most`, and of all that may be of another class."""
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
    unsure: int = 0
    """Found by one of them, with a score so close to the threshold that rounding decides."""
    tied: int = 0
    """Found by one of them, and overlapped by a stronger box about as much as suppression asks for."""
    renamed: int = 0
    """Pairs whose classes differ, though scores are alike: a network may give two classes the same score, and then
    rounding decides. Few may be so: classes that an engine mixes up are no rounding."""
    fine: int = 0
    """Pairs of small boxes that overlap too little for the limit, but whose edges are within it."""
    large: list[float] = field(default_factory=list)
    """IoU of each pair whose sides are `SMALL` or more."""
    shift: float = 0.0
    """Largest difference of a coordinate, pixels."""
    score: float = 0.0
    """Largest difference of a score."""
    iou: float = 1.0
    """Smallest overlap of a pair that is not `fine`."""

    @property
    def exact(self) -> bool:
        apart = self.missing + self.surplus + self.unsure + self.tied + self.renamed
        return not apart and self.shift <= EXACT_BOXES and self.score <= EXACT_SCORES

    def verdict(self, limits: Limits) -> Verdict:
        if self.exact:
            return "exact"
        agree = not self.missing and not self.surplus and self.iou >= limits.iou and self.score <= limits.score
        agree = agree and self.renamed <= self.matched * FEW
        if self.large:
            low = sum(iou < limits.most for iou in self.large)
            agree = agree and low <= len(self.large) * FEW and float(np.median(self.large)) >= limits.median
        return "within" if agree else "outside"

    def add(
        self, reference: Boxes, other: Boxes, limits: Limits, *, conf: float, iou: float, pixel: float = 1.0
    ) -> None:
        """Count one frame.

        Args:
            conf, iou: thresholds of confidence and of suppression.
            pixel: size of a pixel of the model's input in pixels of the image.
        """
        overlaps = overlap(reference.xyxy + EDGE, other.xyxy + EDGE)
        small = (reference.xyxy[:, 2:] - reference.xyxy[:, :2]).min(axis=1, initial=np.inf) < SMALL * pixel
        apart = np.abs(reference.xyxy[:, None] - other.xyxy[None]).max(axis=-1, initial=0.0)
        near_edges = small[:, None] & (apart <= limits.edge * pixel) & (limits.edge > 0)
        likeness = np.where(near_edges, np.maximum(overlaps, PAIR), overlaps)
        same = reference.classes[:, None] == other.classes[None, :]
        scored = np.abs(reference.scores[:, None] - other.scores[None, :])
        free = set(range(len(other.scores)))

        def paired(rows: list[int], allowed: NDArray[np.bool_]) -> list[int]:
            """The rows that find no partner; those of the others are free no more."""
            alone = []
            for row in rows:
                # Of boxes that overlap alike, as an end-to-end model may have them, the one that scores alike.
                best = max(
                    free,
                    key=lambda column: (round(likeness[row, column] * allowed[row, column], 2), -scored[row, column]),
                    default=None,
                )
                if best is None or not allowed[row, best] or likeness[row, best] < PAIR:
                    alone.append(row)
                    continue
                free.remove(best)
                self.matched += 1
                self.shift = max(self.shift, float(apart[row, best]))
                self.score = max(self.score, float(scored[row, best]))
                if not small[row]:
                    self.large.append(float(overlaps[row, best]))
                if near_edges[row, best] and overlaps[row, best] < limits.iou:
                    self.fine += 1
                else:
                    self.iou = min(self.iou, float(overlaps[row, best]))
            return alone

        others = paired(np.argsort(-reference.scores, kind="stable").tolist(), same)
        alone = paired(others, ~same & (scored <= limits.score))
        self.renamed += len(others) - len(alone)
        self.missing += sum(not self._excused(row, reference, limits, conf, iou) for row in alone)
        self.surplus += sum(not self._excused(column, other, limits, conf, iou) for column in free)

    def _excused(self, row: int, boxes: Boxes, limits: Limits, conf: float, iou: float) -> bool:
        """Whether rounding decides about a box that only one side has; counts why."""
        unsure = bool(boxes.scores[row] < conf + limits.score)
        tied = not unsure and _close(row, boxes, iou)
        self.unsure, self.tied = self.unsure + unsure, self.tied + tied
        return unsure or tied

    def __str__(self) -> str:
        if self.exact and not self.shift and not self.score:
            return f"{self.matched} boxes, identical"
        parts = [f"{self.matched} boxes"]
        if self.matched:
            parts.append(f"{_short(self.shift)} px and {_short(self.score)} of score at most, IoU {self.iou:.3f}")
        told = (
            (self.fine, "of few pixels judged by their edges"),
            (self.renamed, "of another class that scores alike"),
            (self.missing, "missing"),
            (self.surplus, "surplus"),
            (self.unsure, "excused: score at the threshold"),
            (self.tied, "excused: overlap at that of suppression"),
        )
        for count, what in told:
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
    return Check(stage, str(difference), str(limits), difference.verdict(limits), note)


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
