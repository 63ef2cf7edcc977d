"""Several arrays in one allocation, and release of the memory that CuPy's pools cache."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from framefuse.cuda import device

GRAIN = 256
"""Alignment in bytes of arrays within one allocation."""


def packed_allocation(
    shapes: Sequence[tuple[tuple[int, ...], Any]], allocate: Callable[[int], Any]
) -> tuple[list[Any], Any]:
    """Arrays one after the other in a single allocation, so that one copy moves all of them, and the allocation.

    Args:
        shapes: shape and dtype of each array.
        allocate: number of bytes -> uint8 array of that size.
    """
    sizes = [-(-int(np.prod(shape)) * np.dtype(dtype).itemsize // GRAIN) * GRAIN for shape, dtype in shapes]
    memory = allocate(sum(sizes))
    arrays, start = [], 0
    for (shape, dtype), size in zip(shapes, sizes, strict=True):
        used = int(np.prod(shape)) * np.dtype(dtype).itemsize
        arrays.append(memory[start : start + used].view(dtype).reshape(shape))
        start += size
    return arrays, memory


def free_cached_memory() -> None:
    """Return the memory that CuPy's pools cache, so that other sizes and other processes can use it."""
    cp = device.cupy()
    gc.collect()  # the traceback of a failed allocation often holds arrays in a cycle
    cp.get_default_memory_pool().free_all_blocks()
    cp.get_default_pinned_memory_pool().free_all_blocks()
