"""Ledger: bytes copied between host and device, by stage and kind. "Zero-copy" is a number here."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Literal, NamedTuple

Direction = Literal["h2d", "d2h", "d2d"]
Kind = Literal["pixels", "control", "results"]
"""pixels: pictures; control: tables of addresses and positions; results: boxes, scores and counts."""


class Copy(NamedTuple):
    """One row of the ledger: a way on which bytes go, and who sends them."""

    stage: str
    direction: Direction
    kind: Kind


class Ledger:
    """Bytes copied by each stage. Whoever copies says so here; nothing is measured.

    Threads may share it.
    """

    def __init__(self) -> None:
        self._bytes: Counter[Copy] = Counter()
        self._frames = 0
        self._lock = threading.Lock()

    def add(self, stage: str, direction: Direction, kind: Kind, size: int) -> None:
        """A copy of `size` bytes."""
        with self._lock:
            self._bytes[Copy(stage, direction, kind)] += size

    def frame(self, count: int = 1) -> None:
        """Frames went through."""
        with self._lock:
            self._frames += count

    @property
    def frames(self) -> int:
        return self._frames

    def totals(self) -> dict[Copy, int]:
        """Bytes of each row so far."""
        with self._lock:
            return dict(self._bytes)

    def crossed(self, kind: Kind) -> int:
        """Bytes of one kind that went over the bus, in either direction."""
        return sum(size for copy, size in self.totals().items() if copy.kind == kind and copy.direction != "d2d")
