"""Tables for `_tir_window.py`: which bytes of a row a block of output pixels reads, and their weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Form(NamedTuple):
    """Sizes of the nest for a CPU, as in the form of the same name in `tir_cpu_<name>.py`."""

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


WIDE = Form("wide", 16, 128, (1, 2), True)
SHORT = Form("short", 8, 16, (2,), False)

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
    """Windows of all axes as the kernel reads them; with 0 blocks another kernel is used."""

    blocks: int
    halves: int
    """Windows of a block: 2 if its pixels are too far apart for one."""
    tables: tuple[NDArray[np.int32], NDArray[np.uint8], NDArray[np.int16]]
    """First bytes of the windows, two for each block; bytes to pick; weights."""


NONE = Windows(0, 0, (np.zeros(2, np.int32), np.zeros(64, np.uint8), np.zeros(32, np.int16)))


def windows(form: Form, axes: Sequence[Axis]) -> Windows:
    """Windows of all axes, or NONE if the image is too narrow, the output too wide, or pixels lie too far apart."""
    count, block = len(axes[0].first), form.block
    narrow = count < block or min(axis.row for axis in axes) < form.window
    packed = axes[0].components == 3
    if narrow or max(axis.unit for axis in axes) > MAX_UNIT or (packed and not form.packed):
        return NONE
    starts = np.minimum(np.arange(0, count, block), count - block)
    pixels = starts[:, None] + np.arange(block)
    for halves in form.halves if packed else form.halves[:1]:
        found = [_axis(form, axis, pixels, halves) for axis in axes]
        if None not in found:
            parts = [part for part in found if part is not None]
            firsts, picks, weights = (np.concatenate([part[n].ravel() for part in parts]) for n in range(3))
            return Windows(len(starts), halves, (firsts, picks, weights))
    return NONE


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
    # The second byte of a word must be zero: WIDE masks it, SHORT picks zero for 128.
    picks = np.full((axis.components, len(pixels), 2 * form.block, 2), 128, np.uint8)
    picks[..., 0] = offsets + np.arange(axis.components)[:, None, None]
    second = axis.weight[pixels]
    weights = np.stack([axis.unit - second, second], axis=-1)
    return np.repeat(first, 2 // halves, axis=1).astype(np.int32), picks, weights.astype(np.int16)
