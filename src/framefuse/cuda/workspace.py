"""Scratch memory on a GPU for what kernels of one call hand to each other."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, TypeVar

import numpy as np

from framefuse.cuda import device
from framefuse.cuda.launch_plan import keep
from framefuse.errors import UsageError

Made = TypeVar("Made")


class Workspace:
    """Scratch memory that a caller keeps, so that repeated calls need not allocate.

    What calls return may lie in it and is overwritten by the next one. Use a workspace on one stream at a time. For a
    call that is captured in a CUDA graph, give the graph a workspace of its own that lives as long, and make the same
    call with it before the capture.
    """

    def __init__(self) -> None:
        self._kept: dict[str, tuple[Hashable, Any]] = {}

    def get(self, name: str, shape: tuple[int, ...], dtype: Any) -> Any:
        """The array of that name and shape, allocated at its first use.

        Raises:
            UsageError: it would have to be allocated during a capture.
        """
        return self.once(name, (shape, np.dtype(dtype)), lambda: device.cupy().empty(shape, dtype))

    def once(self, name: str, key: Hashable, make: Callable[[], Made]) -> Made:
        """The result of `make` that is stored under a name, made anew if `key` has changed.

        Raises:
            UsageError: it would have to be made during a capture.
        """
        found: Made | None
        known, found = self._kept.get(name, (None, None))
        if found is None or known != key:
            if device.capturing(None):
                raise UsageError(
                    "memory cannot be allocated during the capture of a CUDA graph",
                    remedy="make the same call with the same Workspace before the capture",
                )
            found = make()
            self._kept[name] = key, found
        return keep(found)
