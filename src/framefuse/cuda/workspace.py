"""Memory on a GPU that a call needs between its launches, and whose it is."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, TypeVar

import numpy as np

from framefuse.cuda import device
from framefuse.cuda import launch_plan as calls
from framefuse.errors import UsageError

Made = TypeVar("Made")


class Workspace:
    """Memory for what kernels hand to each other, so that calls need not allocate.

    A call that is captured in a CUDA graph needs one that lives as long as the graph and has served the same call
    before the capture. What calls return lies in it too, and is overwritten by the next one.
    """

    def __init__(self) -> None:
        self._kept: dict[str, tuple[Hashable, Any]] = {}

    def get(self, name: str, shape: tuple[int, ...], dtype: Any) -> Any:
        """An array of that shape, the same one each time.

        Raises:
            UsageError: it would have to be allocated during a capture.
        """
        return self.once(name, (shape, np.dtype(dtype)), lambda: device.cupy().empty(shape, dtype))

    def once(self, name: str, key: Hashable, make: Callable[[], Made]) -> Made:
        """What `make` gave when it was last asked for under that name, if the key was the same; else made anew.

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
        return calls.keep(found)
