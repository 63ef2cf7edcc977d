"""Pools of streams and handles on a GPU, which are reused instead of destroyed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from framefuse.cuda import device


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
