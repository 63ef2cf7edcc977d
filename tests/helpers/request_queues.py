"""Request queues before models that gain from batches, or do not, in simulated time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from framefuse.batching.costs import Costs
from framefuse.batching.queue import RequestQueue

SIZES = [1, 2, 4, 8, 16, 32]


def gpu(size: int) -> float:
    """A model that gains from batches: 1,470 requests a second one by one, 10,000 in batches of 32."""
    return 0.0006 + 0.00008 * size


def cpu(size: int) -> float:
    """A model that gains nothing."""
    return 0.05 * size


def noisy(seconds: Callable[[int], float]) -> Callable[[int], float]:
    chance = np.random.default_rng(1)
    return lambda size: seconds(size) * chance.uniform(1.0, 1.05)


def queue_of(seconds: Callable[[int], float], **options: Any) -> RequestQueue:
    return RequestQueue(Costs(SIZES, {size: seconds(size) for size in SIZES}), **options)


FULL_RATE = 32 / gpu(32)
