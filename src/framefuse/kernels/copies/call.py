"""Copy many arrays on the host without Python's interpreter lock, several at the same time."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from framefuse.errors import UsageError
from framefuse.kernels.cpu import _function

PARALLEL = 4
"""Copies at the same time: one core uses a fraction of the bandwidth of the memory, and four most of it."""
WORTH = 4_000_000
"""Bytes from which on more than one core copies."""
MAX_ROW = 2**31 - 1


def copy_all(
    sources: Sequence[NDArray[Any]], targets: Sequence[NDArray[Any]], *, threads: Executor | None = None
) -> None:
    """targets[i][...] = sources[i].

    The calling thread takes a share, and waits for the others. The GIL is released while the bytes are copied, once for
    all of them: with many threads, each release costs a wait.

    Args:
        sources, targets: arrays of the same shapes and dtypes in pairs, which do not overlap. The elements of a row
            are adjacent; rows, along the first axis, may have any pitch.
        threads: run the other shares; None: there is one.

    Raises:
        UsageError: the arrays of a pair differ, or the elements of a row are not adjacent.
    """
    table, sizes, total = np.empty((len(sources), 5), np.int64), np.empty(len(sources), np.int64), 0
    for number, (source, target) in enumerate(zip(sources, targets, strict=True)):
        if (source.shape, source.dtype) != (target.shape, target.dtype):
            raise UsageError(f"a copy of {source.dtype} {source.shape} into {target.dtype} {target.shape}")
        rows, size = 1, source.nbytes
        if not (source.flags.c_contiguous and target.flags.c_contiguous):
            rows, size = len(source), source.nbytes // max(1, len(source))
            if not (rows and source[0].flags.c_contiguous and target[0].flags.c_contiguous):
                raise UsageError(f"the elements of a row of {source.shape} are not adjacent")
        if size > MAX_ROW:
            rows, size = len(source), source.nbytes // len(source)
        table[number] = source.ctypes.data, source.strides[0], target.ctypes.data, target.strides[0], rows
        sizes[number] = size
        total += source.nbytes
    run, shares = _function("copy_rows"), PARALLEL if threads is not None and total >= WORTH else 1
    parts = [(table[share::shares], sizes[share::shares]) for share in range(min(shares, len(sources)))]
    parts = [(np.ascontiguousarray(rows), np.ascontiguousarray(bytes_)) for rows, bytes_ in parts]
    others = [threads.submit(run, *part) for part in parts[1:]] if threads is not None else []
    if parts:
        run(*parts[0])
    for other in others:
        other.result()
