"""Seeded random numbers. All randomness in a world comes from here, so frames can be rendered in any order.

Style parameters (shape, colour, texture, schedule) are sampled from stripes of their range, and each split owns its own
stripes: the styles of the test split lie between those of the training split and never coincide with them.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Literal, TypeVar

Split = Literal["train", "val", "test"]
T = TypeVar("T")

STRIPES = 48
"""Stripes per range, enough for the hues of each split to cover the whole colour circle."""
OWNER: tuple[Split, ...] = ("train", "train", "test", "train", "train", "train", "val", "train")
"""The split that owns stripe k, by k modulo 8."""


class Chance:
    """A random stream named by a key; `random.Random` guarantees the same stream in every Python version."""

    def __init__(self, split: Split, key: str) -> None:
        self._random = Random(f"framefuse/{split}/{key}")
        self._stripes = [k for k in range(STRIPES) if OWNER[k % len(OWNER)] == split]

    def unit(self) -> float:
        """Uniform in 0..1."""
        return self._random.random()

    def uniform(self, low: float, high: float) -> float:
        return low + (high - low) * self._random.random()

    def style(self, low: float = 0.0, high: float = 1.0) -> float:
        """Uniform over the split's own stripes of low..high."""
        stripe = self._stripes[int(self._random.random() * len(self._stripes))]
        return low + (high - low) * (stripe + self._random.random()) / STRIPES

    def integer(self, low: int, high: int) -> int:
        """low <= value < high."""
        return low + int(self._random.random() * (high - low))

    def pick(self, items: Sequence[T]) -> T:
        return items[int(self._random.random() * len(items))]

    def sign(self) -> int:
        return 1 if self._random.random() < 0.5 else -1

    def happens(self, probability: float) -> bool:
        return self._random.random() < probability
