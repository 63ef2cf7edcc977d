"""Statistics of repeated runs."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np


@dataclass(frozen=True)
class Timing:
    """Statistics of several runs, in milliseconds."""

    runs: int
    min: float
    median: float
    mean: float
    p95: float
    p99: float
    max: float
    std: float

    @classmethod
    def of(cls, milliseconds: Sequence[float]) -> Self:
        values = np.asarray(milliseconds, np.float64)
        median, p95, p99 = np.percentile(values, (50, 95, 99)).tolist()
        std = float(values.std(ddof=1)) if len(values) > 1 else 0.0
        return cls(len(values), float(values.min()), median, float(values.mean()), p95, p99, float(values.max()), std)

    @property
    def fps(self) -> float:
        """Runs a second at the mean time: what a loop of them reaches."""
        return 1e3 / self.mean
