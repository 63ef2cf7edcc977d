"""Holes in mattes at the resolution of a model.

As in `masks.call`, numpy arrays go to the CPU, others to the GPU on which they lie, in order with CuPy's current
stream.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from framefuse.cuda import kernel
from framefuse.kernels.arrays import checked, on_gpu

SIDE = 32
"""Samples, across and down, of the window in which a hole is looked for: its rows are words of as many bits."""
MIDDLE = SIDE // 2
"""Column of the window in which the first sample of a hole lies, in its row 1."""


def fill_holes(alpha: Any, most: int) -> None:
    """Make holes foreground, in place, and the samples around them, which are soft.

    A hole is an area of less than 1/2 that is connected, also diagonally, and that foreground encloses: what touches
    the border is none. It has at most `most` samples, and lies in a window of SIDE - 2 samples, down from the first of
    its samples (from left to right in its uppermost row), to both sides of it.

    Args:
        alpha: (rows, columns) float32 in 0..1, contiguous.
        most: samples of the largest hole.
    """
    if on_gpu(alpha):
        rows, columns = alpha.shape
        place = checked("alpha", alpha, True, (rows, columns), "float32", dense=2)
        kernel.launch("matte_holes", alpha_address=place, rows=rows, columns=columns, most=most)
        return
    # Beyond the border there is background.
    background = np.pad(alpha < 0.5, ((1, SIDE - 2), (MIDDLE, MIDDLE)), constant_values=True)
    before = background[:-1, :-2] | background[:-1, 1:-1] | background[:-1, 2:] | background[1:, :-2]
    first = (background[1:, 1:-1] & ~before)[: alpha.shape[0], MIDDLE - 1 : MIDDLE - 1 + alpha.shape[1]]
    y, x = np.nonzero(first)
    windows = sliding_window_view(background, (SIDE, SIDE))[y, x]
    around, which = _around(np.packbits(windows, axis=-1, bitorder="little").view("<u4")[..., 0], most)
    hole, row, column = np.nonzero(np.unpackbits(around[..., None].view(np.uint8), axis=-1, bitorder="little"))
    alpha[y[which][hole] + row - 1, x[which][hole] + column - MIDDLE] = 1


def _around(background: NDArray[Any], most: int) -> tuple[NDArray[Any], NDArray[np.intp]]:
    """The holes in windows (n, SIDE), a word for each row, with the samples around them, and the numbers of their
    windows."""
    ends = np.array([-1, *[1 + (1 << SIDE - 1)] * (SIDE - 2), -1], np.int64).astype(np.uint32)
    holes, which, grows = np.zeros_like(background), np.arange(len(background)), True
    holes[:, 1] = 1 << MIDDLE
    while grows:
        grown = _along(_neighbours(holes) & background, background)
        inside = ~(grown & ends).any(1) & (np.bitwise_count(grown).sum(1) <= most)
        grows = bool((grown != holes)[inside].any())
        holes, background, which = grown[inside], background[inside], which[inside]
    return _neighbours(holes), which


def _neighbours(rows: NDArray[Any]) -> NDArray[Any]:
    """The samples of a set, and those beside, above and below them, also diagonally."""
    wide = rows | rows << 1 | rows >> 1
    grown: NDArray[Any] = wide.copy()
    grown[:, 1:] |= wide[:, :-1]
    grown[:, :-1] |= wide[:, 1:]
    return grown


def _along(rows: NDArray[Any], background: NDArray[Any]) -> NDArray[Any]:
    """The samples of a set, and those that background in the same row joins with them (Kogge and Stone 1973)."""
    left, right, up, down = rows, rows, background, background
    for by in (1, 2, 4, 8, 16):
        left, right = left | up & left << by, right | down & right >> by
        up, down = up & up << by, down & down >> by
    joined: NDArray[Any] = left | right
    return joined
