"""Pools on a GPU: streams and handles that are reused, several arrays in one allocation, CuPy's cached memory."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from functools import partial
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


class StreamPool:
    """Hands out objects to one user at a time and keeps all of them until the process ends.

    The pool also references objects that are in use. Otherwise a user and its CuPy stream could be garbage of one
    cycle: Python would finalize the stream, which destroys it, and the user's finalizer would release a dead stream.

    Args:
        make: creates an object on the current device.
    """

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._all: list[Any] = []
        self._free: dict[int, list[Any]] = {}

    def acquire(self) -> tuple[Any, Callable[[], None]]:
        """An object of the current device and the function that releases it, which any thread may call."""
        free = self._free.setdefault(device.current_gpu(), [])
        try:
            found = free.pop()
        except IndexError:
            found = self._make()
            self._all.append(found)
        return found, partial(free.append, found)


def new_stream() -> Any:
    """A stream that does not synchronise with the default stream."""
    return device.cupy().cuda.Stream(non_blocking=True)
