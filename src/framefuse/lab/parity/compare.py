"""Differences of pixels and boxes, and the limits on them."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from framefuse.common.text import counted
from framefuse.lab.evaluation.counters import overlaps
from framefuse.prediction import Detections, corners

Verdict = Literal["exact", "within", "outside", "not compared"]

EXACT_PIXELS = 0.01
"""Grey levels; smaller differences are float32 rounding."""
EXACT_BOXES = 0.01
"""The same for box coordinates, in frame pixels."""
EXACT_SCORES = 1e-4


@dataclass(frozen=True)
class Limits:
    """How far the boxes of an engine may differ from those of FP32.

    A box whose score is within `score` of the confidence threshold may be missing or surplus, because rounding decides.
    """

    iou: float
    """Minimum of every pair."""
    score: float
    edge: float = 0.0
    """Pixels of the model input. A box with a side below `SMALL` may overlap less if all its edges are this close."""
    most: float = 0.0
    """Minimum IoU of 99 % of the boxes with both sides `SMALL` or more."""
    median: float = 0.0
    """Minimum median IoU of these boxes."""
    mask: float = 0.9
    """Minimum IoU of the masks of 99 % of these boxes."""
    points: float = 8.0
    """Pixels of the model input that 99 % of the keypoints, or corners of oriented boxes, may be apart at most."""

    def __str__(self) -> str:
        parts = [f"IoU >= {self.iou:g}" + (f" or edges +-{self.edge:g} px of the input" if self.edge else "")]
        if self.most:
            parts.append(f"99 % >= {self.most:g}, median >= {self.median:g}")
        return ", ".join([*parts, f"score +-{self.score:g}"])


SMALL = 16
"""Pixels of the model input. IoU is meaningful for boxes at least this large on both sides; half a pixel on each edge
of a smaller box is more than a tenth of its area."""
HALF = 0.5
"""The step of float16 between 512 and 1024, where edges in an input of 640 pixels may lie: the best resolution of
reduced precision."""
LIMITS = {
    "fp32": Limits(0.98, 0.01, mask=0.98, points=0.5),
    "fp16": Limits(0.90, 0.02, HALF, most=0.95, median=0.99, mask=0.95, points=2.0),
    "bf16": Limits(0.80, 0.10, HALF),
    "int8": Limits(0.75, 0.20, HALF, mask=0.8, points=16.0),
    "fp8": Limits(0.70, 0.25, HALF, mask=0.8, points=16.0),
}
"""By the precision that the engine reports. A file with quantisers counts as INT8 on every engine, because a last-bit
difference in FP32 can move a quantiser to its next step."""
GRID = {"float32": 0.0, "float16": 255 / 2**12, "uint16": 255 / 2**9, "uint8": 0.5}
"""Half a step of the model input's number format near white, in grey levels; uint16 holds bfloat16."""
EDGE = np.array((-0.5, -0.5, 0.5, 0.5), np.float32)
"""Boxes grow by these pixels before they are paired, so that a box cut to nothing at the frame's edge can overlap."""
SURE = 0.5
"""Confidence from which a keypoint is compared."""
PAIR = 0.5
"""Minimum IoU of two boxes of the same object."""
FEW = 0.01
"""Share of the large boxes that may overlap less than `Limits.most`, and of all pairs that may differ in class."""
SUPPRESSION = 0.05
"""An IoU this close to the suppression threshold may be decided either way."""


@dataclass(frozen=True)
class Check:
    """The comparison of one stage with its reference."""

    stage: str
    found: str
    limit: str
    verdict: Verdict
    note: str = ""


@dataclass
class PixelDifference:
    """Absolute differences in grey levels."""

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

    def check(self, stage: str, limit: float, note: str = "") -> Check:
        """With a limit of 0 any difference is outside."""
        exact = self.worst <= min(EXACT_PIXELS, limit)
        verdict: Verdict = "outside" if self.worst > limit else "exact" if exact else "within"
        return Check(stage, str(self), f"<= {limit:.2g} grey levels" if limit else "identical", verdict, note)

    def __str__(self) -> str:
        if not self.worst:
            return "identical"
        return f"{_short(self.worst)} grey levels at most, {_short(self.mean)} on average"


@dataclass
class BoxDifference:
    """Differences between two lists of boxes, added up frame by frame."""

    limits: Limits
    conf: float
    """Confidence threshold."""
    nms_iou: float
    """Suppression threshold."""
    matched: int = 0
    missing: int = 0
    """Only in the reference, and not near a threshold."""
    surplus: int = 0
    """Only in the other list, and not near a threshold."""
    unsure: int = 0
    """In one list only, with a score so close to the threshold that rounding decides."""
    tied: int = 0
    """In one list only, with an IoU to a stronger box near the suppression threshold."""
    renamed: int = 0
    """Pairs of similar score but different class: if a network scores two classes alike, rounding decides. Only a few
    are allowed, because an engine that mixes up classes is wrong."""
    fine: int = 0
    """Pairs of small boxes with an IoU below the limit, but edges within theirs."""
    large: list[float] = field(default_factory=list)
    """IoU of each pair with both sides `SMALL` or more."""
    shift: float = 0.0
    """Largest difference of a coordinate in pixels."""
    score: float = 0.0
    """Largest difference of a score."""
    iou: float = 1.0
    """Smallest IoU of a pair that is not `fine`."""
    masks: list[float] = field(default_factory=list)
    """IoU of the masks of each pair in `large`."""
    points: list[float] = field(default_factory=list)
    """Distances of the keypoints that the reference is sure of, or of corners, of all pairs, in pixels of the input."""

    @property
    def exact(self) -> bool:
        apart = self.missing + self.surplus + self.unsure + self.tied + self.renamed
        same = min(self.masks, default=1.0) == 1 and max(self.points, default=0.0) <= EXACT_BOXES
        return not apart and same and self.shift <= EXACT_BOXES and self.score <= EXACT_SCORES

    @property
    def verdict(self) -> Verdict:
        if self.exact:
            return "exact"
        limits = self.limits
        low = sum(iou < limits.most for iou in self.large)
        agree = not self.missing and not self.surplus and self.iou >= limits.iou and self.score <= limits.score
        agree = agree and self.renamed <= self.matched * FEW and low <= len(self.large) * FEW
        agree = agree and sum(iou < limits.mask for iou in self.masks) <= len(self.masks) * FEW
        agree = agree and sum(apart > limits.points for apart in self.points) <= len(self.points) * FEW
        return "within" if agree and np.median(self.large or [1]) >= limits.median else "outside"

    def check(self, stage: str, note: str = "") -> Check:
        limit = str(self.limits) + (f", masks IoU >= {self.limits.mask:g}" if self.masks else "")
        limit += f", points +-{self.limits.points:g} px of the input" if self.points else ""
        return Check(stage, str(self), limit, self.verdict, note)

    def add(self, reference: Detections, other: Detections, pixel: float = 1.0) -> None:
        """Count one frame; `pixel` is the size of a pixel of the model input in frame pixels."""
        limits = self.limits
        shared = overlaps(reference.xyxy + EDGE, other.xyxy + EDGE)[0]
        small = (reference.xyxy[:, 2:] - reference.xyxy[:, :2]).min(axis=1, initial=np.inf) < SMALL * pixel
        apart = np.abs(reference.xyxy[:, None] - other.xyxy[None]).max(axis=-1, initial=0.0)
        near_edges = small[:, None] & (apart <= limits.edge * pixel) & (limits.edge > 0)
        likeness = np.where(near_edges, np.maximum(shared, PAIR), shared)
        same = reference.class_id[:, None] == other.class_id[None, :]
        scored = np.abs(reference.confidence[:, None] - other.confidence[None, :])
        free = set(range(len(other.confidence)))

        def paired(rows: list[int], allowed: NDArray[np.bool_]) -> list[int]:
            """Pair rows with free columns; returns the rows that stay unpaired."""
            alone, rank = [], np.round(likeness * allowed, 2)
            for row in rows:
                # End-to-end models may give boxes that overlap alike: take the one with the nearest score.
                best = max(free, key=lambda column: (rank[row, column], -scored[row, column]), default=None)
                if best is None or not allowed[row, best] or likeness[row, best] < PAIR:
                    alone.append(row)
                    continue
                free.remove(best)
                self.matched += 1
                self.shift = max(self.shift, float(apart[row, best]))
                self.score = max(self.score, float(scored[row, best]))
                if not small[row]:
                    self.large.append(float(shared[row, best]))
                    self.masks += mask_overlaps(reference, other, row, best)
                self.points += (distances(reference, other, row, best) / pixel).tolist()
                if near_edges[row, best] and shared[row, best] < limits.iou:
                    self.fine += 1
                else:
                    self.iou = min(self.iou, float(shared[row, best]))
            return alone

        others = paired(np.argsort(-reference.confidence, kind="stable").tolist(), same)
        alone = paired(others, ~same & (scored <= limits.score))
        self.renamed += len(others) - len(alone)
        self.missing += sum(not self._excused(row, reference) for row in alone)
        self.surplus += sum(not self._excused(column, other) for column in free)

    def _excused(self, row: int, boxes: Detections) -> bool:
        """Whether rounding explains a box that only one list has; counts the reason."""
        unsure = bool(boxes.confidence[row] < self.conf + self.limits.score)
        # Tied: a stronger box of its class overlaps it by nearly the suppression threshold or more.
        stronger = (boxes.confidence >= boxes.confidence[row]) & (boxes.class_id == boxes.class_id[row])
        stronger[row] = False
        shared = overlaps(boxes.xyxy[row : row + 1], boxes.xyxy[stronger])[0]
        tied = not unsure and bool((shared >= self.nms_iou - SUPPRESSION).any())
        self.unsure, self.tied = self.unsure + unsure, self.tied + tied
        return unsure or tied

    def __str__(self) -> str:
        if self.exact and not self.shift and not self.score:
            return f"{counted(self.matched, 'box', 'boxes')}, identical"
        parts = [counted(self.matched, "box", "boxes")]
        if self.matched:
            parts.append(f"{_short(self.shift)} px and {_short(self.score)} of score at most, IoU {self.iou:.3f}")
        if self.masks:
            parts.append(f"masks IoU {np.median(self.masks):.3f}, {min(self.masks):.3f} at least")
        if self.points:
            parts.append(f"points {_short(float(np.median(self.points)))} px, {_short(max(self.points))} px at most")
        counts = (
            (self.fine, "small ones judged by their edges"),
            (self.renamed, "of another class with a similar score"),
            (self.missing, "missing"),
            (self.surplus, "surplus"),
            (self.unsure, "excused: score near the threshold"),
            (self.tied, "excused: overlap near the suppression threshold"),
        )
        return ", ".join([*parts, *(f"{count} {what}" for count, what in counts if count)])


def mask_overlaps(one: Detections, other: Detections, row: int, column: int) -> list[float]:
    """IoU of the masks of two objects; nothing where there are none."""
    if one.runs is None or other.runs is None:
        return []
    first, second = one[row : row + 1].mask, other[column : column + 1].mask
    assert first is not None and second is not None
    return [int((first & second).sum()) / max(int((first | second).sum()), 1)]


def distances(one: Detections, other: Detections, row: int, column: int) -> NDArray[Any]:
    """Distances in pixels of the keypoints of two objects that `one` is sure of, or of the corners of oriented boxes,
    beginning where they are nearest."""
    if one.keypoints is not None and other.keypoints is not None:
        sure = one.keypoints[row, :, 2] >= SURE
        return _apart(one.keypoints[row, sure, :2], other.keypoints[column, sure, :2])
    if one.xywhr is None or other.xywhr is None:
        return np.empty(0)
    first, second = corners(one.xywhr[row : row + 1])[0], corners(other.xywhr[column : column + 1])[0]
    return min((_apart(first, np.roll(second, turn, axis=0)) for turn in range(4)), key=max)


def _apart(one: NDArray[Any], other: NDArray[Any]) -> NDArray[Any]:
    """Distances of points (n, 2)."""
    found: NDArray[Any] = np.hypot(*(one - other).T)
    return found


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    return max(verdicts, key=("not compared", "exact", "within", "outside").index, default="not compared")


def _short(value: float) -> str:
    return f"{value:.2g}" if value < 10 else f"{value:.0f}"
