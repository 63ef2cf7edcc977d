"""Separable filters of `preprocess`: taps of an axis in exact integers, and their tables for the kernels.

`tir_cpu_windows.py` reads `Windows`: which bytes of a row a block of output pixels reads, and their weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

Interpolation = Literal["nearest", "linear", "asymmetric", "area", "antialias"]
LINEAR = "linear", "asymmetric"
"""Interpolations between two pixels, which kernels compute without tables."""
LONG = "area", "antialias"
"""Filters of any length, which come as tables."""


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


def corner(length: int, target: int, interpolation: Interpolation) -> int:
    """Where output 0 of an axis is centred, from the edge of the region, in units of 1 / (2 target) pixel."""
    return target if interpolation == "asymmetric" else length


@lru_cache(maxsize=256)
def axis_taps(start: int, length: int, target: int, subsample: int, interpolation: Interpolation) -> Taps:
    """Taps that resize the pixels start .. start + length - 1 to `target` pixels.

    The plane has one sample for every `subsample` pixels; only samples that cover the pixels are used.
    `reference.preprocess` defines the interpolations and the chroma siting. Positions and overlaps are in units of
    1 / (2 subsample target) sample, so they are exact integers at any size.
    """
    unit = 2 * subsample * target
    lowest, highest = start // subsample, -(-(start + length) // subsample) - 1
    centre = 2 * np.arange(target, dtype=np.int64) * length + corner(length, target, interpolation) + 2 * target * start
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


class Form(NamedTuple):
    """Sizes of the nest of `tir_cpu_windows.py` for a CPU."""

    name: str
    block: int
    """Output pixels that are computed at once."""
    window: int
    """Bytes of a row that are read at once."""
    halves: tuple[int, ...]
    """Possible numbers of windows of a block; the smallest that holds all of its pixels is used. Only packed images may
    use the larger one."""
    packed: bool
    """Whether the form supports packed images."""


FORMS = {
    "x86-64-v3": Form("short", 8, 16, (2,), False),
    "x86-64-v4": Form("wide", 16, 128, (1, 2), True),
}
"""By instruction-set level."""

MAX_UNIT = 32767
"""Largest sum of two 16-bit weights."""


class Axis(NamedTuple):
    """Horizontal taps of one kind of plane."""

    first: NDArray[np.int32]
    """Offset in a row, in bytes, of the first tap of each output pixel's first component."""
    second: NDArray[np.int32]
    """The same of the second tap."""
    weight: NDArray[np.int64]
    """Weight of the second tap as an exact integer of 1 / unit."""
    unit: int
    components: int
    """Interleaved components."""
    row: int
    """Bytes of a row."""


class Windows(NamedTuple):
    """Windows of all axes as the kernel reads them."""

    blocks: int
    halves: int
    """Windows of a block: 2 if its pixels are too far apart for one."""
    tables: tuple[NDArray[np.int32], NDArray[np.uint8], NDArray[np.int16]]
    """First bytes of the windows, two for each block; bytes to pick; weights."""


def windows(form: Form, axes: Sequence[Axis]) -> Windows | None:
    """Windows of all axes, or None if the image is too narrow, the output too wide, or pixels lie too far apart."""
    count, block = len(axes[0].first), form.block
    narrow = count < block or min(axis.row for axis in axes) < form.window
    packed = axes[0].components == 3
    if narrow or max(axis.unit for axis in axes) > MAX_UNIT or (packed and not form.packed):
        return None
    starts = np.minimum(np.arange(0, count, block), count - block)
    pixels = starts[:, None] + np.arange(block)
    for halves in form.halves if packed else form.halves[:1]:
        found = [_axis(form, axis, pixels, halves) for axis in axes]
        if None not in found:
            parts = [part for part in found if part is not None]
            firsts, picks, weights = (np.concatenate([part[n].ravel() for part in parts]) for n in range(3))
            return Windows(len(starts), halves, (firsts, picks, weights))
    return None


def _axis(
    form: Form, axis: Axis, pixels: NDArray[np.int64], halves: int
) -> tuple[NDArray[np.int32], NDArray[np.uint8], NDArray[np.int16]] | None:
    """(blocks, 2) first bytes, (components, blocks, pixels, taps, 2) bytes to pick, (blocks, pixels, taps) weights;
    None if they are too far apart."""
    taps = np.stack([axis.first[pixels], axis.second[pixels]], axis=-1)  # (blocks, pixels, taps)
    parts = taps.reshape(len(pixels), halves, -1)
    first = np.minimum(parts.min(axis=2), axis.row - form.window)
    if (parts.max(axis=2) + axis.components - 1 - first).max() >= form.window:
        return None
    offsets = (parts - first[:, :, None]).reshape(len(pixels), -1)
    # The second byte of a word must be zero: wide masks it, short picks zero for 128.
    picks = np.full((axis.components, len(pixels), 2 * form.block, 2), 128, np.uint8)
    picks[..., 0] = offsets + np.arange(axis.components)[:, None, None]
    second = axis.weight[pixels]
    weights = np.stack([axis.unit - second, second], axis=-1)
    return np.repeat(first, 2 // halves, axis=1).astype(np.int32), picks, weights.astype(np.int16)
