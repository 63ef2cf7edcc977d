"""Signals of scene complexity, from the luma plane, on the host or on the GPU where it lies."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from framefuse.cuda import kernel
from framefuse.errors import UsageError
from framefuse.kernels.arrays import address, checked, kind, new, on, on_gpu, pitch, target
from framefuse.kernels.cpu import _function, _scratch

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
    gpu = on_gpu(luma)
    with on(gpu, stream):
        luma = checked("luma", luma, gpu, luma.shape, "uint8", "uint16")
        if luma.ndim != 2:
            raise UsageError(f"luma has shape {luma.shape}, expected (h, w)")
        if not 1 <= step <= (most := min(MAX_STEP, *luma.shape)):
            raise UsageError(f"step {step} is not between 1 and {most} for a luma of {luma.shape}")
        if not 0 <= edge_threshold <= 1442:
            raise UsageError(f"edge_threshold {edge_threshold} is not between 0 and 1442")
        height, width = shape = luma.shape[0] // step, luma.shape[1] // step
        small, counts = target(out, gpu, shape, "uint8", dense=2), new(gpu, (258,), np.int32)
        before = 0 if previous is None else address(checked("previous", previous, gpu, shape, "uint8", dense=2))
        shrink, threshold = f"signal_shrink_{kind(luma)}", edge_threshold
        if gpu:
            size = {"height": height, "width": width, "counts": counts, "small": small}
            kernel.launch(shrink, luma=luma, pitch=pitch(luma, 0), step=step, shift=shift, **size)
            kernel.launch("signal_count", previous=before, threshold=threshold, **size)
        else:
            blocks, bins = _scratch.get("blocks", (width * step,), np.int32), _scratch.get("bins", (1024,), np.int32)
            _function(shrink)(address(luma), pitch(luma, 0), address(small), height, width, step, shift, blocks)
            _function("signal_count")(address(small), before, height, width, threshold, counts, bins)
    return SignalCounts(counts, small, previous is not None)
