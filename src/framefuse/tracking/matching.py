"""Matching: which boxes may continue which tracks, and the best choice among these pairs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import lap
import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


class Pairs(NamedTuple):
    """Candidates: track `rows[k]` and box `columns[k]` with an overlap, or a worth made of it, above 0."""

    rows: Array
    columns: Array
    worth: Array

    def where(self, chosen: Array) -> Pairs:
        """Those of a mask or of indices."""
        at = chosen.nonzero()[0] if chosen.dtype == np.bool_ else chosen
        return Pairs(self.rows.take(at), self.columns.take(at), self.worth.take(at))


def overlapping(tracks: Array, boxes: Array, minimum: float, margins: Array) -> Pairs:
    """Pairs with IoU >= minimum, ordered by row, from corners (4, m) and (4, n), neither empty.

    Only boxes that begin near a track from left to right are compared with it.

    Args:
        margins: (m,) pixels by which both boxes of a pair are extended on every side: wide for a track whose place is
            uncertain (buffered IoU: Yang et al., 2023, arXiv:2211.14317).
    """
    order = boxes[0].argsort()
    starts, twice = boxes[0].take(order), 2 * margins
    first = starts.searchsorted(tracks[0] - twice - (boxes[2] - boxes[0]).max())
    near = starts.searchsorted(tracks[2] + twice) - first
    rows = np.arange(len(near)).repeat(near)
    columns = order.take(np.arange(len(rows)) - (near.cumsum() - near - first).take(rows))
    ones, others, twice = tracks.take(rows, 1), boxes.take(columns, 1), twice.take(rows)
    sides = np.minimum(ones[2:], others[2:]) - np.maximum(ones[:2], others[:2]) + twice
    np.maximum(sides, 0, out=sides)
    common = sides[0] * sides[1]
    ones, others = ones[2:] - ones[:2] + twice, others[2:] - others[:2] + twice
    iou = common / (ones[0] * ones[1] + others[0] * others[1] - common)
    return Pairs(rows, columns, iou).where(iou >= minimum)


def assign(pairs: Pairs, weigh: Callable[[Pairs], Pairs] = lambda pairs: pairs) -> Pairs:
    """The pairs, none sharing a track or a box, whose worths have the largest sum.

    Args:
        weigh: gives pairs another worth; called for those that share a track or a box with another pair.
    """
    if not len(pairs.rows):
        return pairs
    in_row, in_column = np.bincount(pairs.rows), np.bincount(pairs.columns)
    if in_row.max() == in_column.max() == 1:
        return pairs
    alone = (in_row.take(pairs.rows) == 1) & (in_column.take(pairs.columns) == 1)
    rest = (~alone).nonzero()[0]
    rows, columns, worth = weigh(pairs.where(rest))
    row_of, column_of = _numbered(rows), _numbered(columns)
    shape = row_of[-1] + 1, column_of.max() + 1
    grid = np.zeros(shape)
    grid[row_of, column_of] = worth
    best = grid.argmax(1)
    if np.bincount(best).max() > 1:  # two tracks want the same box
        some, found = lap.lapjvx(-grid, extend_cost=True, return_cost=False)
        best = np.full(shape[0], -1)
        best[some] = found
    kept = best[row_of] == column_of
    alone[rest[kept]] = True
    return pairs.where(alone)


def _numbered(values: Array) -> Array:
    """The values as 0, 1, 2, ... in their order, without gaps."""
    used = np.bincount(values) > 0
    found: Array = (np.cumsum(used) - 1)[values]
    return found
