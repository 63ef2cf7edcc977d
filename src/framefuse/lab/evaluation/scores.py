"""Scores: the accuracy of one model on one data set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

CONF = 0.25
"""Confidence threshold of precision, recall and the confusion matrix: the default of `predict`."""
IOU = 0.5
"""IoU threshold of precision, recall and the confusion matrix."""


@dataclass(frozen=True)
class ClassScore:
    """One class."""

    objects: int
    """In the ground truth."""
    map50_95: float | None
    map50: float | None
    """None if the data have no object of this class."""


@dataclass(frozen=True)
class Split:
    """A subset of the frames."""

    frames: int
    objects: int
    detections: int
    """With confidence >= CONF."""
    map50_95: float | None
    map50: float | None


@dataclass(frozen=True)
class BoxScores:
    """Average precision as COCO defines it: mean over classes and over the IoU thresholds 0.50, 0.55, ..., 0.95."""

    map50_95: float
    map50: float
    map75: float
    objects: int
    """In the ground truth, without crowd regions."""
    precision: float
    """Share of the detections with confidence >= CONF that match an object: same class, IoU >= IOU."""
    recall: float
    """Share of the objects that those detections find."""
    by_size: Mapping[str, float | None]
    """map50_95 of small (< 32 x 32 pixels), medium and large (> 96 x 96) objects; None if there are none."""
    by_class: Mapping[str, ClassScore]
    by_complexity: Mapping[str, Split]
    """Crowded (complexity >= 2/3), busy and calm (< 1/3) frames; empty if the data have no complexity."""
    confusion: Sequence[Sequence[int]]
    """[truth][found] counts at CONF; the last row counts false detections, the last column missed objects."""
    curves: Mapping[str, Sequence[float]]
    """Precision of each class at recall 0, 0.01, ..., 1, with IoU threshold IOU."""


@dataclass(frozen=True)
class PixelScores:
    """Intersection over union by class, over the pixels of all frames together."""

    miou: float
    """Mean over the classes that occur in the ground truth."""
    accuracy: float
    """Share of the pixels whose class is right."""
    by_class: Mapping[str, float | None]
    """None if neither the ground truth nor the model has a pixel of the class."""
    confusion: Sequence[Sequence[int]]
    """[truth][found] pixels; the last column is predictions of classes that are not compared."""


@dataclass(frozen=True)
class TrackScores:
    """Tracks as trackeval scores them; all shares are 0..1, and MOTA may be negative."""

    hota: float
    """Geometric mean of deta and assa, mean over the IoU thresholds 0.05, 0.10, ..., 0.95."""
    deta: float
    """How well the objects are found."""
    assa: float
    """How well the boxes of an object have one id."""
    mota: float
    """1 - (missed objects + false boxes + id_switches) / objects, with IoU >= IOU."""
    idf1: float
    """F1 score of the boxes whose id is that of their object, with IoU >= IOU."""
    id_switches: int
    fragments: int
    """Interruptions of objects that were followed."""
    objects: int
    """Boxes in the ground truth that count."""
    identities: int
    """Objects in the ground truth."""
    by_class: Mapping[str, tuple[int, float | None]]
    """Boxes in the ground truth, and HOTA, which is None without any."""
    curves: Mapping[str, Sequence[float]]
    """HOTA, DetA and AssA at the IoU thresholds 0.05, 0.10, ..., 0.95."""


@dataclass(frozen=True)
class Scores:
    """One model, engine and precision on one data set."""

    model: str
    data: str
    task: str
    engine: str
    precision: str
    """The precision that ran."""
    input: str
    """Width x height of the model input."""
    frames: int
    names: Sequence[str]
    """The classes that were compared, in the order of the confusion matrix."""
    boxes: BoxScores | None = None
    pixels: PixelScores | None = None
    tracks: TrackScores | None = None
    """With `track`, in place of boxes."""
    tracker: str | None = None
    file_mb: float = 0.0
    """Size of the model file in 10^6 bytes."""
    cpu_ms: float | None = None
    """Processor time of the engine per frame in milliseconds, a hint only; None if unknown."""
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
        """The main score of the task, 0..1: map50_95 of a detector, mean IoU of a segmenter, HOTA of tracks."""
        if self.tracks:
            return self.tracks.hota
        return self.pixels.miou if self.pixels else self.boxes.map50_95 if self.boxes else 0.0

    def of_class(self, name: str) -> tuple[int | None, float | None]:
        """Objects of a class in the ground truth, and its map50_95, IoU or HOTA; None: not counted, or no object."""
        if self.boxes and name in self.boxes.by_class:
            found = self.boxes.by_class[name]
            return found.objects, found.map50_95
        if self.tracks:
            return self.tracks.by_class.get(name, (0, None))
        return None, self.pixels.by_class.get(name) if self.pixels else None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)
