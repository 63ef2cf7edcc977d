"""Evaluation: the accuracy of a model, through the real pipeline, on data with known ground truth.

open_data("annotations.json") -> Dataset        validate("yolov8n.onnx", data) -> Scores
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from framefuse.common.text import counted
from framefuse.config import Settings, settings_from
from framefuse.engines import Engine
from framefuse.errors import FramefuseError, SourceError, UsageError
from framefuse.lab.evaluation.counters import BoxCounter, ImageCounter, PixelCounter, Shape, TrackCounter, confusion
from framefuse.lab.evaluation.data import open_data
from framefuse.lab.evaluation.dataset import UNKNOWN, BoxClasses, Dataset, Labels
from framefuse.lab.evaluation.scores import BoxScores, Row, Scores, TrackScores
from framefuse.models.card import Card
from framefuse.pipeline import Pipeline
from framefuse.prediction import Result

__all__ = ["Dataset", "Labels", "Objects", "Score", "Scores", "open_data", "scored", "validate"]

DEFAULTS: dict[str, Any] = {"conf": 0.001, "iou": 0.7, "max_det": 300}
"""Keeps nearly all detections, because average precision needs every confidence."""
TRACK_DEFAULTS: dict[str, Any] = {"conf": Settings.model_fields["conf"].default}
"""With `track`: scored are the boxes that a run shows."""


def validate(
    model: str | Path,
    data: Dataset | str | Path | Sequence[str | Path],
    *,
    images: str | Path | None = None,
    limit: int | None = None,
    engine: str | Engine = "auto",
    settings: Settings | None = None,
    on_frame: Callable[[int, int], None] = lambda done, frames: None,
    **options: Any,
) -> Scores:
    """Run a model over data and score its results.

        scores = validate("scout-n", "synthetic://street?split=test&frames=300", precision="fp32")

    Classes of model and data are matched by name. Classes that only one of them has are left out and listed in
    `Scores.notes`.

    Args:
        model: path of an ONNX file, or the name of a shipped model.
        data, images: as for `open_data`.
        limit: maximum number of frames, evenly spread; with `track` the first ones.
        engine: name of an engine, or an open engine.
        settings: all options as one object; default: `Settings` with DEFAULTS, with `track` also TRACK_DEFAULTS.
        on_frame: called after each frame with the numbers of frames done and in all.
        options: fields of `Settings`.

    Raises:
        UsageError: model and data share no class, or the data have no masks for a segmenter, no identities for tracks.
        SourceError: an image cannot be read, or its size differs from that in the data.
        CapabilityError: the extra `val` is not installed.
    """
    opened = open_data(data, images)
    defaults = DEFAULTS | (TRACK_DEFAULTS if options.get("track") else {})
    chosen = settings_from(options if settings else {**defaults, **options}, base=settings)
    spread = opened.spread(limit)
    keys = opened.keys[: len(spread)] if chosen.track or chosen.adaptive else spread
    with Pipeline(opened.open(keys), model, settings=chosen, engine=engine) as pipeline:
        card = pipeline.card
        if opened.whole and card.task != "classify":
            what = f"{opened.uri} says the class of each image, but {card.path.name} has the task {card.task}"
            raise UsageError(what, remedy="score a classifier, or use data with boxes or masks")
        counters: dict[str, Any] = {"semantic": PixelCounter, "classify": ImageCounter}
        counter = counters[card.task](card, opened) if card.task in counters else Objects(card, opened, chosen)
        done = set()
        for result in pipeline:
            key = opened.key_of(result.frame)
            labels = opened.labels(key)
            _check_size(result, labels)
            counter.add(result, labels)
            done.add(key)
            on_frame(len(done), len(keys))
        report = pipeline.report
    if lost := [f"frame {key}" if isinstance(key, int) else str(key) for key in keys if key not in done]:
        why = f"{len(lost)} of {len(keys)} images of {opened.uri} could not be read: {', '.join(lost[:3])}"
        raise SourceError(why, remedy="repair them, or remove them from the data")
    kinds = {"semantic": "pixels", "classify": "images"}
    kind = kinds.get(card.task, "tracks" if chosen.track else "boxes")
    ran = report.model
    notes = [*opened.notes, *counter.notes]
    if ran and chosen.precision not in ("auto", ran.precision):
        notes.append(f"{chosen.precision} was requested; engine {ran.engine} multiplies in {ran.precision}")
    if chosen.track:
        notes.append(f"tracked by {chosen.track}; scored are its boxes with confidence above {chosen.conf:g}")
    if calibration := card.calibration:
        notes.append(f"{card.path.stem} is calibrated with {calibration}")
    facts: dict[str, Any] = {name: getattr(ran, name, "") for name in ("engine", "precision", "input")}
    facts |= {"frames": len(done), "names": counter.names, "tracker": chosen.track, kind: counter.scores()}
    cpu_ms = {stage.name: stage.cpu_ms for stage in report.stages}.get("inference")
    size = card.path.stat().st_size / 1e6
    return Scores(card.path.stem, opened.uri, card.task, file_mb=size, cpu_ms=cpu_ms, notes=notes, **facts)


def scored(row: Row, data: Dataset, **options: Any) -> Row:
    """The row with what `validate` returns, or raises."""
    try:
        return replace(row, scores=validate(row.wanted.model, data, **options))
    except FramefuseError as error:
        return replace(row, error=error)


class Objects:
    """Boxes or tracks, of the classes that model and data share."""

    def __init__(self, card: Card, data: Dataset, settings: Settings) -> None:
        self._classes = BoxClasses(data, card, settings.classes)
        self.names, self.notes = self._classes.names, self._classes.notes
        self._tracked, names = bool(settings.track), self.names
        shapes: dict[str, Shape] = {"segment": "segm", "pose": "keypoints", "obb": "segm"}
        oriented = card.task == "obb"
        boxes = BoxCounter(names, max_det=settings.max_det, shape=shapes.get(card.task), oriented=oriented)
        self._counter: Any = TrackCounter(names) if self._tracked else boxes
        if oriented:
            self.notes.append("boxes are the upright ones around oriented ones, which count by the pixels inside")
        self.scores: Callable[[], BoxScores | TrackScores] = self._counter.scores

    def add(self, result: Result, labels: Labels) -> None:
        known, found = self._classes.labels(labels), self._classes.shared(result.detections)
        if not self._tracked:
            self._counter.add(known, found)
            return
        if labels.track_id is None:
            why = f"{result.frame.source_id} has boxes without identities, so no track is right or wrong"
            raise UsageError(why, remedy="use synthetic://street or a MOTChallenge folder, or leave --track out")
        self._counter.add(result.frame.source_id, known, found)


class Score:
    """Compares boxes with the ground truth. One is correct if its class is, with an IoU of at least 0.5."""

    def __init__(self, data: Dataset, card: Card) -> None:
        self._data, self._shared = data, BoxClasses(data, card)
        classes = len(self._shared.names) + 1
        self._table = np.zeros((classes, classes), np.int64)
        """[ground truth][detected]; the last row counts false positives, the last column missed objects."""

    def add(self, result: Result) -> None:
        labels = self._shared.labels(self._data.labels(self._data.key_of(result.frame)))
        self._table += confusion(labels, self._shared.shared(result.detections), len(self._table) - 1)

    def counts(self) -> tuple[int, int, int]:
        """Objects, detections, and how many of these are correct."""
        return int(self._table[:-1].sum()), int(self._table[:, :-1].sum()), int(self._table[:-1, :-1].trace())

    def rates(self) -> dict[str, float]:
        objects, detections, correct = self.counts()
        return {"precision": correct / max(detections, 1), "recall": correct / max(objects, 1)}

    def in_words(self) -> str:
        return ", ".join(f"{name} {rate:.3f}" for name, rate in self.rates().items())

    def sentence(self) -> str:
        objects, detections, correct = self.counts()
        found = f"{counted(objects, 'object')}, {counted(detections, 'detection')}"
        return f"truth    {found}, {correct:,} of them correct: {self.in_words()}; hardly visible ones do not count"


def _check_size(result: Result, labels: Labels) -> None:
    width, height = shown = result.frame.width, result.frame.height
    if labels.size in (shown, UNKNOWN):
        return
    remedy = "use annotations of this very image, at this size"
    if shown == labels.size[::-1]:
        remedy = "its EXIF tag rotates it, but the annotations are not rotated: save it upright"
    where, wanted = f"{result.frame.source_id}, frame {result.frame.index}", "x".join(map(str, labels.size))
    raise SourceError(f"{where}, is {width}x{height}, but the data give {wanted}", remedy=remedy)
