"""Class masks against the ground truth."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from framefuse.errors import SourceError, UsageError
from framefuse.lab.evaluation.classes import match_names, table_of
from framefuse.lab.evaluation.dataset import Dataset, Labels, plain
from framefuse.lab.evaluation.scores import PixelScores
from framefuse.models.card import Card
from framefuse.prediction import Result

OTHER = 255
"""A class that is not compared: pixels with this truth are ignored, predictions of it are wrong."""


class PixelCounter:
    """Counts the pixels of the classes that a segmenter and the data share, frame by frame.

    Raises:
        UsageError: the data have no masks or share no class with the model.
    """

    def __init__(self, card: Card, data: Dataset) -> None:
        if not data.mask_names:
            raise UsageError(
                f"{card.path.name} is a segmenter (task: semantic), but {data.uri} has {data.no_masks}",
                remedy="use data with few enough categories and a segmentation for each annotation, or synthetic://bodies",
            )
        known = {plain(name) for name in card.names.values()}
        names = dict(data.mask_names)
        for group, members in data.mask_groups.items():
            inside = {plain(data.mask_names[number]) for number in members} - {plain(group)}
            if plain(group) in known and not known & inside:
                names |= dict.fromkeys(members, group)
        self.names, model_to, data_to, self.notes = match_names(card.names, names, card)
        self._truth, self._found = (table_of(to, OTHER)[:256].astype(np.uint8) for to in (data_to, model_to))
        self._table = np.zeros((len(self.names), len(self.names) + 1), np.int64)

    def add(self, result: Result, labels: Labels) -> None:
        if labels.class_mask is None or result.masks is None:
            raise SourceError(f"{result.frame.source_id}, frame {result.frame.index}, has no mask to compare with")
        self.count(self._truth[labels.class_mask()], self._found[result.masks.class_id])

    def count(self, truth: NDArray[np.uint8], found: NDArray[np.uint8]) -> None:
        """Count one frame; both masks are (height, width) indices of `names`, or OTHER."""
        pairs = np.bincount((truth.astype(np.uint16) * 256 + found).ravel(), minlength=65536).reshape(256, 256)
        classes = len(self.names)
        self._table[:, :classes] += pairs[:classes, :classes]
        self._table[:, classes] += pairs[:classes, classes:].sum(axis=1)

    def scores(self) -> PixelScores:
        right = np.diag(self._table)
        true, predicted = self._table.sum(axis=1), self._table[:, :-1].sum(axis=0)
        union = true + predicted - right
        shares: list[Any] = [int(a) / int(b) if b else None for a, b in zip(right, union, strict=True)]
        known = [share for share, count in zip(shares, true, strict=True) if count]
        return PixelScores(
            miou=sum(known) / len(known) if known else 0.0,
            accuracy=float(right.sum() / max(int(true.sum()), 1)),
            by_class=dict(zip(self.names, shares, strict=True)),
            confusion=self._table.tolist(),
        )
