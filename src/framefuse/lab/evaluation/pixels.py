"""Class masks against the ground truth."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from framefuse.lab.evaluation.scores import PixelScores

OTHER = 255
"""A class that is not compared: pixels with this truth are ignored, predictions of it are wrong."""


class PixelCounter:
    """Counts pixels frame by frame.

    Args:
        names: the classes that are compared, in order of mask value; at most 255.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names = list(names)
        self._table = np.zeros((len(names), len(names) + 1), np.int64)

    def add(self, truth: NDArray[np.uint8], found: NDArray[np.uint8]) -> None:
        """Count one frame; both masks are (height, width) indices of `names`, or OTHER."""
        pairs = np.bincount((truth.astype(np.uint16) * 256 + found).ravel(), minlength=65536).reshape(256, 256)
        classes = len(self._names)
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
            by_class=dict(zip(self._names, shares, strict=True)),
            confusion=self._table.tolist(),
        )
