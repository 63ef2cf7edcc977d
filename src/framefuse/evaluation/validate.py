"""validate: the real pipeline over data whose truth is known."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from framefuse.config import Settings, settings_from
from framefuse.engines import Engine
from framefuse.errors import SourceError, UsageError
from framefuse.evaluation.boxes import BoxCounter
from framefuse.evaluation.data import Dataset, Labels, open_data
from framefuse.evaluation.pixels import OTHER, PixelCounter
from framefuse.evaluation.scores import BoxScores, PixelScores, Scores
from framefuse.models.card import Card
from framefuse.pipeline import Pipeline
from framefuse.prediction import Result

DEFAULTS: dict[str, Any] = {"conf": 0.001, "iou": 0.7, "max_det": 300}
"""How detections are kept here: nearly all of them, because average precision looks at every confidence."""


def validate(
    model: str | Path,
    data: Dataset | str | Path,
    *,
    images: str | Path | None = None,
    limit: int | None = None,
    engine: str | Engine = "auto",
    settings: Settings | None = None,
    on_frame: Callable[[int, int], None] = lambda done, frames: None,
    **options: Any,
) -> Scores:
    """Run a model over data and count what it got right.

        scores = validate("scout-n", "synthetic://street?split=test&frames=300", precision="fp32")

    Classes of model and data are matched by their names. Those that only one of them has are left out, and named in
    `Scores.notes`.

    Args:
        model: path of an ONNX file, or the name of a shipped model.
        data, images: what `open_data` takes.
        limit: frames at most, evenly spread.
        engine: name of an engine, or one that is already open.
        settings: all options as one object; else the defaults of Settings with DEFAULTS.
        on_frame: called after each frame with the frames done and those there are.
        options: fields of `Settings`.

    Raises:
        UsageError: model and data have no class in common, or the data have no masks for a segmenter.
        SourceError: a picture cannot be read, or is not of the size that the data say.
        CapabilityError: the extra `val` is not installed.
    """
    opened = open_data(data, images)
    keys = opened.spread(limit)
    chosen = settings_from(options if settings else {**DEFAULTS, **options}, base=settings)
    with Pipeline(opened.open(keys), model, settings=chosen, engine=engine) as pipeline:
        counter = (
            _Pixels(pipeline.card, opened)
            if pipeline.card.task == "semantic"
            else _Boxes(pipeline.card, opened, chosen)
        )
        done = set()
        for result in pipeline:
            key = opened.key_of(result.frame)
            labels = opened.labels(key)
            _check_size(result, labels)
            counter.add(result, labels)
            done.add(key)
            on_frame(len(done), len(keys))
        report = pipeline.report
    if lost := [str(key) for key in keys if key not in done]:
        raise SourceError(
            f"{len(lost)} of {len(keys)} pictures of {opened.uri} could not be read: {', '.join(lost[:3])}",
            remedy="repair them, or take them out of the data",
        )
    scores = counter.scores()
    inference = next((stage.busy_ms.p50 for stage in report.stages if stage.name == "inference"), 0.0)
    ran = report.model
    return Scores(
        model=pipeline.card.path.stem,
        data=opened.uri,
        task=pipeline.card.task,
        engine=ran.engine if ran else "",
        precision=ran.precision if ran else "",
        input=ran.input if ran else "",
        frames=len(done),
        names=counter.names,
        boxes=scores if isinstance(scores, BoxScores) else None,
        pixels=scores if isinstance(scores, PixelScores) else None,
        file_mb=pipeline.card.path.stat().st_size / 1e6,
        inference_ms=inference,
        notes=[*opened.notes, *counter.notes],
    )


class _Boxes:
    """Detections and labels in the classes that both have."""

    def __init__(self, card: Card, data: Dataset, settings: Settings) -> None:
        found = {number: name for number, name in card.names.items() if number in (settings.classes or card.names)}
        self.names, model_to, data_to, self.notes = match_names(found, data.names, card)
        self._model_to, self._data_to = _table(model_to), _table(data_to)
        self._counter = BoxCounter(self.names, max_det=settings.max_det)

    def add(self, result: Result, labels: Labels) -> None:
        here = self._data_to[labels.class_id]
        known = here >= 0
        shown = replace(
            labels,
            xyxy=labels.xyxy[known],
            class_id=here[known],
            crowd=labels.crowd[known],
            area=labels.area[known],
        )
        found = result.detections
        number = self._model_to[found.class_id]
        kept = number >= 0
        self._counter.add(shown, found.xyxy[kept], found.confidence[kept], number[kept])

    def scores(self) -> BoxScores:
        return self._counter.scores()


class _Pixels:
    """Class masks in the classes that both have; a class of the truth that the model lacks is left out of the count."""

    def __init__(self, card: Card, data: Dataset) -> None:
        if not data.mask_names:
            raise UsageError(
                f"{card.path.name} is a segmenter (task: semantic), but {data.uri} has no masks",
                remedy="use data with a segmentation for each annotation, or synthetic://bodies",
            )
        known = {_plain(name) for name in card.names.values()}
        names, inner = dict(data.mask_names), {}
        for group, members in data.mask_groups.items():
            if _plain(group) in known and not known & {_plain(data.mask_names[number]) for number in members}:
                first = min(members)
                inner = dict.fromkeys(members, first)
                names = {number: name for number, name in names.items() if number not in inner} | {first: group}
        self.names, model_to, data_to, self.notes = match_names(card.names, names, card)
        data_to |= {number: data_to[first] for number, first in inner.items() if first in data_to}
        self._model_to, self._data_to = (
            _table(numbers, OTHER)[:256].astype(np.uint8) for numbers in (model_to, data_to)
        )
        self._counter = PixelCounter(self.names)

    def add(self, result: Result, labels: Labels) -> None:
        if labels.class_mask is None or result.masks is None:
            raise SourceError(f"{result.frame.source_id}, frame {result.frame.index}, has no mask to compare with")
        self._counter.add(self._data_to[labels.class_mask()], self._model_to[result.masks.class_id])

    def scores(self) -> PixelScores:
        return self._counter.scores()


def match_names(
    model: Mapping[int, str], data: Mapping[int, str], card: Card
) -> tuple[list[str], dict[int, int], dict[int, int], list[str]]:
    """The classes that model and data share, by their names.

    Case and the difference between blank, - and _ do not count.

    Returns:
        their names in the order of the data; number in the model -> position there; number in the data -> position
        there; notes.

    Raises:
        UsageError: there are none.
    """
    by_name = {_plain(name): number for number, name in model.items()}
    shared = {number: by_name[_plain(name)] for number, name in data.items() if _plain(name) in by_name}
    if not shared:
        raise UsageError(
            f"{card.path.name} and the data have no class in common: "
            f"the model has {_some(model)}, the data {_some(data)}",
            remedy=f"correct names in the card {card.path.with_suffix('.yaml')}, or use other data",
        )
    notes = []
    if unknown := {number: name for number, name in data.items() if number not in shared}:
        notes.append(f"not scored, as the model does not know them: {_some(unknown)}")
    if extra := {number: name for number, name in model.items() if number not in shared.values()}:
        notes.append(f"not scored, as the data do not have them: {_some(extra)}")
    return (
        [data[number] for number in shared],
        {theirs: position for position, theirs in enumerate(shared.values())},
        {ours: position for position, ours in enumerate(shared)},
        notes,
    )


def _plain(name: str) -> str:
    return " ".join(name.casefold().replace("_", " ").replace("-", " ").split())


def _some(names: Mapping[int, str]) -> str:
    listed = list(names.values())
    return ", ".join(listed[:8]) + (f", ... ({len(listed)} in all)" if len(listed) > 8 else "")


def _table(numbers: Mapping[int, int], other: int = -1) -> NDArray[np.int64]:
    """numbers[i] for any class number i; `other` where there is none."""
    table = np.full(65536, other, np.int64)
    for number, position in numbers.items():
        table[number] = position
    return table


def _check_size(result: Result, labels: Labels) -> None:
    shown = result.frame.width, result.frame.height
    if shown == labels.size:
        return
    turned = shown == labels.size[::-1]
    raise SourceError(
        f"{result.frame.source_id}, frame {result.frame.index}, is {shown[0]}x{shown[1]}, but the data say "
        f"{labels.size[0]}x{labels.size[1]}",
        remedy="it is turned by its EXIF tag, and the annotations are not: save it upright"
        if turned
        else "the annotations are of another picture or of another size of it",
    )
