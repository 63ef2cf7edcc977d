"""The classes that a model and the data share, matched by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from framefuse.errors import UsageError
from framefuse.lab.evaluation.dataset import NOTHING, Dataset, Labels, plain
from framefuse.models.card import Card
from framefuse.prediction import Detections


class BoxClasses:
    """Maps labels and detections to the shared classes.

    Args:
        asked: number -> name of the model's classes to compare.

    Raises:
        UsageError: model and data share no class.
    """

    def __init__(self, asked: Mapping[int, str], data: Dataset, card: Card) -> None:
        self.names, model_to, data_to, self.notes = match_names(asked, data.names, card)
        self._model_to, self._data_to = table_of(model_to, -1), table_of(data_to, -1)

    def labels(self, labels: Labels) -> Labels:
        """The objects of shared classes; `class_id` indexes `names`."""
        number = self._data_to[labels.class_id]
        kept = number >= 0
        return replace(
            labels,
            xyxy=labels.xyxy[kept],
            class_id=number[kept],
            crowd=labels.crowd[kept],
            area=labels.area[kept],
            track_id=None if labels.track_id is None else labels.track_id[kept],
        )

    def found(self, found: Detections) -> tuple[NDArray[Any], NDArray[Any], NDArray[np.int64]]:
        """xyxy, confidence and class of the detections of shared classes; classes index `names`."""
        shared = self.shared(found)
        return shared.xyxy, shared.confidence, shared.class_id

    def shared(self, found: Detections) -> Detections:
        """The detections of shared classes; `class_id` indexes `names`."""
        number = self._model_to[found.class_id]
        return replace(found, class_id=number)[number >= 0]


def match_names(
    model: Mapping[int, str], data: Mapping[int, str], card: Card
) -> tuple[list[str], dict[int, int], dict[int, int], list[str]]:
    """The classes that model and data share, matched by name.

    Case is ignored, and blank, - and _ are equal; class numbers with the same name are one class.

    Returns:
        shared names in the order of the data; model class number -> index of the shared name; the same for the data;
        notes.

    Raises:
        UsageError: model and data share no class.
    """
    known = {plain(name) for name in model.values()}
    shared: dict[str, str] = {}
    for name in data.values():
        if plain(name) in known:
            shared.setdefault(plain(name), name)
    position = {name: number for number, name in enumerate(shared)}
    if set(shared) <= {NOTHING}:
        raise UsageError(
            f"{card.path.name} and the data have no class in common{' except the background' if shared else ''}: "
            f"the model has {_some(model)}, the data {_some(data)}",
            remedy=f"correct names in the card {card.path.with_suffix('.yaml')}, or use other data",
        )
    notes = []
    model_to, data_to = (
        {number: position[plain(name)] for number, name in names.items() if plain(name) in position}
        for names in (model, data)
    )
    if unknown := {number: name for number, name in data.items() if number not in data_to}:
        notes.append(f"not scored, because the model does not have them: {_some(unknown)}")
    if extra := {number: name for number, name in model.items() if number not in model_to}:
        notes.append(f"not scored, because the data do not have them: {_some(extra)}")
    return list(shared.values()), model_to, data_to, notes


def _some(names: Mapping[int, str]) -> str:
    listed = list(names.values())
    return ", ".join(listed[:8]) + (f", ... ({len(listed)} in all)" if len(listed) > 8 else "")


def table_of(numbers: Mapping[int, int], other: int) -> NDArray[np.int64]:
    """(65536,) table of `numbers`, `other` for every class number that it lacks."""
    table = np.full(65536, other, np.int64)
    for number, position in numbers.items():
        table[number] = position
    return table
