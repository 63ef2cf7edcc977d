"""Tables for `tir/_preprocess_window.py`: which bytes of a row a block of output pixels reads, and their weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Form(NamedTuple):
    """How the nest works on a CPU: as the form of this name in `tir/`."""

    name: str
    block: int
    """Output pixels that are made at once."""
    window: int
    """Bytes of a row that are read at once."""
    halves: tuple[int, ...]
    """Windows of a block: as few of these as hold all of its pixels. Only packed images may have the larger one."""
    packed: bool
    """Whether it is for packed images too."""


WIDE = Form("wide", 16, 128, (1, 2), True)
SHORT = Form("short", 8, 16, (2,), False)

MAX_UNIT = 32767
"""Largest sum of two weights that are 16 bits each."""


class Axis(NamedTuple):
    """Horizontal taps of one kind of plane."""

    first: NDArray[np.int32]
    """Byte of the first tap of each output pixel's first component, from the start of a row."""
    second: NDArray[np.int32]
    """Of the second tap."""
    weight: NDArray[np.int64]
    """Of the second tap, in whole parts of `unit`: no weight is rounded."""
    unit: int
    components: int
    """That lie side by side."""
    row: int
    """Bytes of a row."""


class Windows(NamedTuple):
    """What the kernel is told of windows; no blocks: it does without."""

    blocks: int
    halves: int
    """Windows of a block: 2 where the pixels of one are too far apart for one."""
    tables: tuple[NDArray[np.int32], NDArray[np.uint8], NDArray[np.int16]]
    """First bytes of the windows, two for a block; bytes to pick; weights."""


NONE = Windows(0, 0, (np.zeros(2, np.int32), np.zeros(64, np.uint8), np.zeros(32, np.int16)))


def windows(form: Form, axes: Sequence[Axis]) -> Windows:
    """Windows of all axes, or NONE: the image is too narrow, the output too wide, or pixels lie too far apart."""
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
    None: too far apart."""
    taps = np.stack([axis.first[pixels], axis.second[pixels]], axis=-1)  # (blocks, pixels, taps)
    parts = taps.reshape(len(pixels), halves, -1)
    first = np.minimum(parts.min(axis=2), axis.row - form.window)
    if (parts.max(axis=2) + axis.components - 1 - first).max() >= form.window:
        return None
    offsets = (parts - first[:, :, None]).reshape(len(pixels), -1)
    # The second byte of a word is to be zero: WIDE masks it, SHORT takes this number for that.
    picks = np.full((axis.components, len(pixels), 2 * form.block, 2), 128, np.uint8)
    picks[..., 0] = offsets + np.arange(axis.components)[:, None, None]
    second = axis.weight[pixels]
    weights = np.stack([axis.unit - second, second], axis=-1)
    return np.repeat(first, 2 // halves, axis=1).astype(np.int32), picks, weights.astype(np.int16)
