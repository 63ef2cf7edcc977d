"""The synthetic world as data: its truth is exact, so nothing but the model can be wrong."""

from __future__ import annotations

from framefuse.errors import CapabilityError
from framefuse.evaluation.data import Dataset


def open_world(uri: str) -> Dataset:
    """The world of an address `synthetic://scene?seed=...&frames=...`.

    Raises:
        UsageError: the address says something that the world does not know.
    """
    raise CapabilityError(f"{uri} cannot be drawn by this version", remedy="pass a COCO file")
