"""Bilinear taps of a region of a plane that is stretched over an image."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from framefuse.kernels.arrays import device_table

Region = tuple[float, float, float, float]
"""left, top, width, height in samples: the part of a plane that is stretched over an image."""


@lru_cache(maxsize=64)
def taps(count: int, start: float, length: float, samples: int) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Lower sample and weight of the upper one for each of `count` pixels of one axis; read-only.

    Pixel i sits at u = start + (i + 1/2) length / count - 1/2 samples (half-pixel centres), clamped to the samples that
    the region start .. start + length touches. The upper sample is the next one; its weight is 0 where it is outside.
    """
    lowest = min(max(int(np.floor(start)), 0), samples - 1)
    highest = max(min(int(np.ceil(start + length)), samples) - 1, lowest)
    position = (start + (np.arange(count) + 0.5) * (length / count) - 0.5).clip(lowest, highest)
    lower = np.floor(position)
    index, weight = lower.astype(np.int32), (position - lower).astype(np.float32)
    # A weight that rounds up to 1 is the next sample's 0.
    index += weight == 1
    weight[weight == 1] = 0
    found: tuple[NDArray[Any], NDArray[Any]] = (index, weight)
    return found


def device_taps(size: tuple[int, int], content: Region, samples: tuple[int, int]) -> dict[str, Any]:
    """Taps of both axes on the current GPU as the arguments of kernels. `size`, `samples`: heights and widths."""
    left, top, width, height = content
    xi, xw = device_table(taps, size[1], left, width, samples[1])
    yi, yw = device_table(taps, size[0], top, height, samples[0])
    return {"across_index": xi, "across_weight": xw, "down_index": yi, "down_weight": yw}
