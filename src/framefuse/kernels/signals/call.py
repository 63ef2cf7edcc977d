"""Signals of scene complexity, from the luma plane, on the host or on the GPU where it lies."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from framefuse.cuda import device
from framefuse.errors import UsageError
from framefuse.kernels.cpu import _address, _function, _scratch
from framefuse.kernels.masks import cuda as masks_cuda

MAX_STEP = 64


class Signals(NamedTuple):
    """What a frame looks like, in few numbers, on the host."""

    edge_density: float
    """Share of the pixels of the small luma whose Sobel magnitude exceeds the threshold; 0 below 3 x 3 pixels."""
    frame_difference: float | None
    """Mean absolute difference to the previous small luma, in grey levels 0..255; None without a previous one."""
    histogram: NDArray[np.int32]
    """(256,) pixels of the small luma at each grey level."""


class SignalCounts(NamedTuple):
    """What a kernel counted, where it ran: on a GPU nothing is read back before `read`."""

    counts: Any
    """(258,) int32: histogram, edge pixels, sum of absolute differences."""
    small: Any
    """(h // step, w // step) uint8, the small luma: pass it as `previous` with the next frame."""
    compared: bool
    """Whether there was a previous one."""

    def read(self) -> Signals:
        """The signals; waits for a GPU, and copies its counts (1 KiB) to the host."""
        counts = self.counts if isinstance(self.counts, np.ndarray) else self.counts.get()
        height, width = self.small.shape
        inner = max(height - 2, 0) * max(width - 2, 0)
        difference = int(counts[257]) / (height * width) if self.compared else None
        return Signals(int(counts[256]) / inner if inner else 0.0, difference, counts[:256])


def signals(
    luma: Any,
    previous: Any | None = None,
    *,
    step: int = 8,
    edge_threshold: int = 96,
    shift: int = 0,
    out: Any | None = None,
    stream: int | None = None,
) -> SignalCounts:
    """Edge density, luminance histogram and difference to the previous frame.

    `kernels.reference.signals` is the formula.

    Args:
        luma: (h, w) uint8 or uint16, any row pitch, at least `step` in both.
        previous: `small` of the frame before; of another shape, as after a change of size, it is an error.
        step: the luma is shrunk to means of step x step pixels, 1..64.
        edge_threshold: Sobel magnitude that an edge must exceed, in grey levels; 0..1442.
        shift: bits by which a sample is above 8 bits: 2 for 10 bits, 8 for P010.
        out: memory for `small`, (h // step, w // step) contiguous.
        stream: pointer of a CUDA stream; None: CuPy's current one.

    Raises:
        UsageError: an argument has a wrong value, shape or dtype.
    """
    if masks_cuda.is_cuda(luma):
        luma = device.as_cupy(luma)
    if luma.ndim != 2 or luma.dtype not in (np.uint8, np.uint16) or luma.strides[1] != luma.itemsize:
        raise UsageError(f"luma is {luma.dtype} {luma.shape}, expected uint8 or uint16 (h, w) with adjacent samples")
    if not 1 <= step <= min(MAX_STEP, *luma.shape):
        raise UsageError(f"step {step} is not between 1 and {min(MAX_STEP, *luma.shape)} for a luma of {luma.shape}")
    if not 0 <= edge_threshold <= 1442:
        raise UsageError(f"edge_threshold {edge_threshold} is not between 0 and 1442")
    if masks_cuda.is_cuda(luma):
        found = masks_cuda.signals(luma, previous, step, edge_threshold, shift, out, stream)
        return SignalCounts(*found, previous is not None)
    shape = luma.shape[0] // step, luma.shape[1] // step
    small = np.empty(shape, np.uint8) if out is None else out
    for name, array in (("out", small), ("previous", small if previous is None else previous)):
        if array.shape != shape or array.dtype != np.uint8 or not array.flags.c_contiguous:
            raise UsageError(f"{name} is {array.dtype} {array.shape}, expected contiguous uint8 {shape}")
    height, width = shape
    sample = "u8" if luma.dtype == np.uint8 else "u16"
    _function(f"signal_shrink_{sample}")(
        _address(luma),
        luma.strides[0] // luma.itemsize,
        _address(small),
        width,
        height,
        width,
        step,
        shift,
        0,
        height,
        _scratch.get("blocks", (width * step,), np.int32),
    )
    counts = np.empty(258, np.int32)
    before = 0 if previous is None else _address(previous)
    _function("signal_count")(
        _address(small),
        width,
        before,
        width,
        height,
        width,
        edge_threshold,
        counts,
        _scratch.get("bins", (1024,), np.int32),
    )
    return SignalCounts(counts, small, previous is not None)
