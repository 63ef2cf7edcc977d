"""Which GPU: CUDA has a current one in each thread, and threads of a run on `--device cuda:1` are given theirs here.

Everything on CUDA works on the current GPU of its thread and asks for no number.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import TypeVar

T = TypeVar("T")


def number(asked: int | None) -> int:
    """The GPU that was asked for; None: this thread's current one."""
    from framefuse.kernels import cuda

    return int(cuda.cupy().cuda.runtime.getDevice()) if asked is None else asked


def current(gpu: int | None) -> AbstractContextManager[object]:
    """Makes a GPU this thread's current one for a while; None: nothing changes."""
    if gpu is None:
        return nullcontext()
    from framefuse.kernels import cuda

    found: AbstractContextManager[object] = cuda.cupy().cuda.Device(gpu)
    return found


def on(gpu: int | None, items: Iterator[T]) -> Iterator[T]:
    """The same items, made on a GPU; for a thread that does nothing else."""
    with current(gpu):
        yield from items
