"""Batching policy: which frames run together. Pure: time is passed in, and nothing waits."""

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Item = TypeVar("Item")


@dataclass
class _Bucket(Generic[Item]):
    items: list[Item] = field(default_factory=list)
    places: int = 0
    readers: set[Hashable] = field(default_factory=set)
    deadline: float = 0.0


class FrameBatcher(Generic[Item]):
    """Collects items of equal shape into batches.

    A batch is ready when it has `size` items, or when its oldest item has waited `timeout` seconds. Items of one reader
    stay in order: when their shape changes, its items of the previous shape are sent first.
    """

    def __init__(self, size: int, timeout: float) -> None:
        self.size = size
        self.timeout = timeout
        self._buckets: dict[Hashable, _Bucket[Item]] = {}

    def add(
        self, *items: Item, shape: Hashable, reader: Hashable, now: float, places: int | None = None
    ) -> list[list[Item]]:
        """Add items that must run together; returns the batches that are ready, oldest first.

        Args:
            places: how much of a batch they take, at most all of it; default: their number.
        """
        places = len(items) if places is None else places
        others = [key for key, bucket in self._buckets.items() if key != shape and reader in bucket.readers]
        if shape in self._buckets and self._buckets[shape].places + places > self.size:
            others.append(shape)
        ready = [self._buckets.pop(key).items for key in others]
        bucket = self._buckets.setdefault(shape, _Bucket(deadline=now + self.timeout))
        bucket.items += items
        bucket.places += places
        bucket.readers.add(reader)
        if bucket.places >= self.size:
            ready.append(self._buckets.pop(shape).items)
        return ready

    @property
    def deadline(self) -> float | None:
        """The time at which `due` returns a batch; None if nothing waits."""
        return min((bucket.deadline for bucket in self._buckets.values()), default=None)

    def due(self, now: float) -> list[list[Item]]:
        """Batches whose deadline has passed."""
        late = [key for key, bucket in self._buckets.items() if bucket.deadline <= now]
        return [self._buckets.pop(key).items for key in late]

    def flush(self) -> list[list[Item]]:
        """All waiting batches, oldest first."""
        buckets, self._buckets = self._buckets, {}
        return [bucket.items for bucket in buckets.values()]


IN_FLIGHT = 2
"""Batches in flight on a GPU unless settings say otherwise: one runs while the results of the other are read."""


def captured_rows(batch: int, slots: int, *, partial: bool) -> list[int]:
    """The rows of each captured batch of an input size, the largest first; they are made in this order.

    Args:
        partial: smaller ones, too, for batches that are not full.
    """
    smaller = [1 << power for power in range(6) if 1 << power < batch] if partial else []
    return [batch] * slots + smaller[::-1]
