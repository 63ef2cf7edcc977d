"""Streams and handles on a GPU that are lent to one user after another instead of being destroyed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from framefuse.cuda import device


class StreamPool:
    """Makes one for each user at a time, and keeps all of them for ever.

    Also what is lent: if only its user held a stream of CuPy, and both were garbage in one cycle, Python would end the
    stream too, which destroys it, and the user's end would give back what is no stream any more.

    Args:
        make: one for the current device.
    """

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._all: list[Any] = []
        self._shelf: dict[int, list[Any]] = {}

    def lend(self) -> tuple[Any, Callable[[], None]]:
        """One for the current device, and what gives it back; from any thread."""
        shelf = self._shelf.setdefault(device.current_gpu(), [])
        try:
            lent = shelf.pop()
        except IndexError:
            lent = self._make()
            self._all.append(lent)
        return lent, partial(shelf.append, lent)


def new_stream() -> Any:
    """A stream that waits for no other."""
    return device.cupy().cuda.Stream(non_blocking=True)
