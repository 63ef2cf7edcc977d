"""The samples of the views of frames on a GPU, one view after the other: a kernel takes all of them at once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from framefuse.kernels.arrays import device_table, new
from framefuse.kernels.masks.call import taps

TOGETHER = 4
"""Most frames of a launch: kernels take so many addresses of each kind."""


class Grid(NamedTuple):
    """The samples of one view."""

    region: tuple[int, int, int, int]
    """x, y, width and height in pixels of the frame."""
    shape: tuple[int, int]
    """Rows and columns."""


def grids_of(shapes: Iterable[tuple[int, int]]) -> list[Grid]:
    """Grids wherever they lie, for kernels that look at samples alone."""
    return [Grid((0, 0, columns, rows), (rows, columns)) for rows, columns in shapes]


def table(grids: Sequence[Grid]) -> tuple[Any, Any, Any]:
    """On the current GPU: the facts of each grid, and the lower sample of each of its columns and rows of pixels with
    the weight of the upper one (`call.taps`)."""
    facts, lower, weights = device_table(_table, *grids)
    return facts, lower, weights


def most(grids: Sequence[Grid]) -> dict[str, int]:
    """The sizes of a launch."""
    rows, columns = (max(sides) for sides in zip(*(grid.shape for grid in grids), strict=True))
    return {"views": len(grids), "most_rows": rows, "most_columns": columns}


def follow(parts: Sequence[Any]) -> bool:
    """Whether arrays follow each other in memory."""
    return all(part.data.ptr + part.nbytes == after.data.ptr for part, after in pairwise(parts))


def new_samples(grids: Sequence[Grid]) -> list[Any]:
    """(rows, columns) float32 of each grid, not initialised, one after the other."""
    if len({grid.shape for grid in grids}) == 1:
        return list(new(True, (len(grids), *grids[0].shape), np.float32))
    sizes = [prod(grid.shape) for grid in grids]
    memory = new(True, (sum(sizes),), np.float32)
    ends = accumulate(sizes)
    return [memory[end - size : end].reshape(grid.shape) for grid, size, end in zip(grids, sizes, ends, strict=True)]


def joined(samples: Sequence[Any]) -> Any:
    """Where the samples of all views begin: those of the first, if the others follow it, or of a copy."""
    if follow(samples):
        return samples[0]
    copies = new_samples(grids_of(part.shape for part in samples))
    for copy, part in zip(copies, samples, strict=True):
        copy[...] = part
    return copies[0]


def _table(*grids: Grid) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.float32]]:
    facts, lower, weights = list[tuple[int, ...]](), list[Any](), list[Any]()
    sample = tap = 0
    for region, shape in grids:
        facts.append((*region, *shape, sample, tap))
        _, _, width, height = region
        for count, samples in ((width, shape[1]), (height, shape[0])):
            index, weight = taps(count, 0, samples, samples)
            lower.append(index)
            weights.append(weight)
        sample, tap = sample + prod(shape), tap + width + height
    return np.array(facts, np.int32), np.concatenate(lower), np.concatenate(weights)
