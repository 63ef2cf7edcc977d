"""Memory pools: several arrays in one allocation, and memory that is cached returned to the GPU."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from framefuse.cuda import device

GRAIN = 256
"""Bytes to which arrays of one allocation are aligned."""


def packed_allocation(
    shapes: Sequence[tuple[tuple[int, ...], Any]], allocate: Callable[[int], Any]
) -> tuple[list[Any], Any]:
    """Arrays one behind the other in one allocation of bytes, so that one copy moves them all; and that allocation.

    Args:
        shapes: shape and dtype of each.
        allocate: number of bytes -> array of so many uint8.
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
    """Return what CuPy's pools keep to the GPU and the system, where other sizes and other processes may use it."""
    cp = device.cupy()
    gc.collect()  # what could not be made hangs in the frames of the error that says so, often in a cycle
    cp.get_default_memory_pool().free_all_blocks()
    cp.get_default_pinned_memory_pool().free_all_blocks()
