"""Separable filters of `preprocess`: taps of an axis in exact integers, and their tables for the kernels."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Interpolation = Literal["nearest", "linear", "area", "antialias"]


@dataclass(frozen=True)
class Taps:
    """Filter of one axis: output[i] = sum over t < count[i] of weight[i, t] * source[first[i] + t].

    Weights past the count are 0; the weights of an output sum to 1.
    """

    first: NDArray[np.int32]
    count: NDArray[np.int32]
    weight: NDArray[np.float32]

    def __getitem__(self, part: slice) -> Taps:
        count = self.count[part]
        return Taps(self.first[part], count, self.weight[part, : count.max(initial=1)])


@lru_cache(maxsize=256)
def axis_taps(start: int, length: int, target: int, subsample: int, interpolation: Interpolation) -> Taps:
    """Taps that resize the pixels start .. start + length - 1 to `target` pixels.

    The plane has one sample for every `subsample` pixels; only samples that cover the pixels are used.
    `reference.preprocess` defines the interpolations and the chroma siting. Positions and overlaps are in units of
    1 / (2 subsample target) sample, so they are exact integers at any size.
    """
    unit = 2 * subsample * target
    lowest, highest = start // subsample, -(-(start + length) // subsample) - 1
    centre = (2 * np.arange(target, dtype=np.int64) + 1) * length + 2 * target * start
    if interpolation == "nearest":
        first = last = centre // (2 * target) // subsample
    elif interpolation == "area":
        first, last = (centre - length) // unit, (centre + length - 1) // unit
    else:
        reach = max(unit, 2 * length) if interpolation == "antialias" else unit
        first = (centre - reach - unit // 2) // unit + 1
        last = -((unit // 2 - centre - reach) // unit) - 1
    first, last = first.clip(lowest, highest), last.clip(lowest, highest)
    samples = first[:, None] + np.arange((last - first).max() + 1)
    if interpolation == "nearest":
        share = np.ones_like(samples)
    elif interpolation == "area":
        edges = (np.minimum((centre + length)[:, None], (samples + 1) * unit), (centre - length)[:, None])
        share = edges[0] - np.maximum(edges[1], samples * unit)
    else:
        share = reach - np.abs(samples * unit + unit // 2 - centre[:, None])
    share = np.where(samples <= last[:, None], share, 0)
    weight = share / share.sum(axis=1, keepdims=True)
    return Taps(first.astype(np.int32), (last - first + 1).astype(np.int32), weight.astype(np.float32))


def upper(weights: NDArray[np.float32]) -> NDArray[np.float32]:
    """The weights that the kernel reads: of up to two taps, only that of the second."""
    return weights[:, 1:] if weights.shape[1] == 2 else weights if weights.shape[1] > 2 else weights * 0


def widened(weights: NDArray[np.float32], count: int) -> NDArray[np.float32]:
    return np.pad(weights, ((0, 0), (0, count - weights.shape[1])))


def stacked(rows: list[NDArray[np.float32]]) -> NDArray[np.float32]:
    return np.stack([np.pad(row, (0, max(map(len, rows)) - len(row))) for row in rows])


def column_weights(taps: Taps, stride: int, packed: int) -> NDArray[np.float32]:
    """(columns, taps) as the kernel reads them: filters of more than two taps take four elements of a row at once."""
    weights = taps.weight
    if weights.shape[1] <= 2 or packed:
        return weights
    beside = np.repeat(weights, stride, axis=1)  # interleaved chroma: each weight serves U and V
    return widened(beside, -(-beside.shape[1] // 4) * 4)


def byte_pairs(taps: Taps, channels: int, width: int) -> tuple[int, int, NDArray[np.int16]]:
    """For two taps of packed bytes: the range of columns from whose pixel 16 bytes can be read, and their weights.

    The number of columns is even. A column has four pairs of weights, of its pixel and the next, times -32768.
    """
    if taps.weight.shape[1] > 2:
        return 0, 0, np.zeros(1, np.int16)
    inside = np.flatnonzero(taps.first * channels + 16 <= width * channels)
    begin, end = (int(inside[0]), int(inside[-1]) + 1) if inside.size else (0, 0)
    second = np.rint(upper(taps.weight)[:, 0] * np.float64(32768))
    pairs = -np.stack([32768 - second, second], axis=1)
    return begin, end - (end - begin) % 2, np.tile(pairs, 4).astype(np.int16).ravel()
