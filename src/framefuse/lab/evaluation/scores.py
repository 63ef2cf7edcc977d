"""Scores: what one model got right on one set of data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

CONF = 0.25
"""Confidence at which precision, recall and the confusion matrix are taken: what `predict` keeps."""
IOU = 0.5
"""Overlap that they ask for."""


@dataclass(frozen=True)
class ClassScore:
    """One class."""

    objects: int
    """In the truth."""
    map50_95: float | None
    map50: float | None
    """None where the data have no object of it."""


@dataclass(frozen=True)
class Split:
    """A part of the frames."""

    frames: int
    objects: int
    detections: int
    """With confidence >= CONF."""
    map50_95: float | None
    map50: float | None


@dataclass(frozen=True)
class BoxScores:
    """Average precision as COCO defines it: mean over classes and over the overlaps 0.50, 0.55, ..., 0.95."""

    map50_95: float
    map50: float
    map75: float
    objects: int
    """In the truth, crowds left out."""
    precision: float
    """Of the detections with confidence >= CONF, the part that is right: its class, at an overlap >= IOU."""
    recall: float
    """The part of the objects that those detections find."""
    by_size: Mapping[str, float | None]
    """map50_95 of small (< 32 x 32 pixels), medium and large (> 96 x 96) objects; None where there are none."""
    by_class: Mapping[str, ClassScore]
    by_complexity: Mapping[str, Split]
    """Frames that are crowded (complexity >= 2/3), busy, calm (< 1/3); empty where the data do not say it."""
    confusion: Sequence[Sequence[int]]
    """[truth][found] counts at CONF; the last row is found but not there, the last column there but not found."""
    curves: Mapping[str, Sequence[float]]
    """Precision of each class at recall 0, 0.01, ..., 1, at IOU."""


@dataclass(frozen=True)
class PixelScores:
    """Intersection over union of each class, over all pixels of all frames together."""

    miou: float
    """Mean over the classes that are in the truth."""
    accuracy: float
    """Part of the pixels whose class is right."""
    by_class: Mapping[str, float | None]
    """None where neither truth nor model has a pixel of it."""
    confusion: Sequence[Sequence[int]]
    """[truth][found] pixels; the last column is classes that are not compared."""


@dataclass(frozen=True)
class Scores:
    """One model, engine and precision on one set of data."""

    model: str
    data: str
    task: str
    engine: str
    precision: str
    """What really ran."""
    input: str
    """Width x height of the model input."""
    frames: int
    names: Sequence[str]
    """The classes that were compared, in the order of the confusion matrix."""
    boxes: BoxScores | None = None
    pixels: PixelScores | None = None
    file_mb: float = 0.0
    """Size of the model file, 10^6 bytes."""
    cpu_ms: float | None = None
    """Processor time of the engine a frame, milliseconds; a hint, not a benchmark. None where it is not known."""
    notes: Sequence[str] = field(default_factory=list)
    """What was left out, and why."""

    @property
    def map50_95(self) -> float | None:
        return self.boxes.map50_95 if self.boxes else None

    @property
    def map50(self) -> float | None:
        return self.boxes.map50 if self.boxes else None

    @property
    def miou(self) -> float | None:
        return self.pixels.miou if self.pixels else None

    @property
    def value(self) -> float:
        """The one number of the task, 0..1: map50_95 of a detector, mean IoU of a segmenter."""
        return self.pixels.miou if self.pixels else self.boxes.map50_95 if self.boxes else 0.0

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)
