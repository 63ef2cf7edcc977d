"""Ledger: bytes copied between host and device, by stage and kind. It makes "zero-copy" a number."""

import threading
from collections import Counter
from typing import Literal, NamedTuple

Direction = Literal["h2d", "d2h", "d2d"]
Kind = Literal["pixels", "control", "results"]
"""pixels: frames; control: tables of addresses and positions; results: boxes, scores and counts."""


class Copy(NamedTuple):
    """One row of the ledger: which stage copies what, and in which direction."""

    stage: str
    direction: Direction
    kind: Kind


class Ledger:
    """Bytes copied by each stage, as declared by the code that copies; nothing is measured. Thread-safe."""

    def __init__(self) -> None:
        self._bytes: Counter[Copy] = Counter()
        self.frames = 0
        self._lock = threading.Lock()

    def add(self, stage: str, direction: Direction, kind: Kind, size: int) -> None:
        with self._lock:
            self._bytes[Copy(stage, direction, kind)] += size

    def frame(self, count: int = 1) -> None:
        with self._lock:
            self.frames += count

    def totals(self) -> dict[Copy, int]:
        with self._lock:
            return dict(self._bytes)

    def crossed(self, kind: Kind) -> int:
        """Bytes of one kind that crossed the bus, in either direction."""
        return sum(size for copy, size in self.totals().items() if copy.kind == kind and copy.direction != "d2d")
