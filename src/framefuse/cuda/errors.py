"""CUDA's errors as typed errors: out of memory, a lost GPU, or anything else."""

from __future__ import annotations

from framefuse.cuda import device
from framefuse.errors import EngineError, GpuLostError, GpuMemoryError

OUT_OF_MEMORY = 2
LESS_MEMORY = "use a smaller batch or --imgsz, fewer --slots, or close what else uses the GPU"
"""Remedy for a GPU that runs out of memory."""
LOST = {
    46: "the GPU is busy or gone",
    214: "its memory has an error that cannot be corrected",
    700: "a kernel read or wrote memory that is not its own",
    702: "a kernel ran too long",
    **dict.fromkeys((710, 714, 715, 716, 717, 718, 719), "a kernel failed"),
    721: "its context is gone",
    999: "the driver does not say why",
}
"""CUDA's error codes after which the process can no longer use the GPU -> what they mean."""


def translate_cuda_error(error: Exception, doing: str) -> EngineError:
    """The typed error to raise in place of one of CUDA's.

    Args:
        error: CUDARuntimeError or OutOfMemoryError of CuPy.
        doing: what CUDA was asked to do, as an infinitive.

    Returns:
        GpuMemoryError: there is not enough memory.
        GpuLostError: the process can no longer use the GPU.
        EngineError: anything else.
    """
    code = getattr(error, "status", None)
    text = str(error).splitlines()[0] if str(error) else type(error).__name__
    if isinstance(error, MemoryError) or code == OUT_OF_MEMORY:
        return GpuMemoryError(f"the GPU has no room to {doing}{_free()}: {text}", remedy=LESS_MEMORY)
    if code in LOST:
        return GpuLostError(
            f"CUDA could not {doing}: {LOST[code]} ({text})",
            remedy="start again; if it comes back, run `framefuse doctor` and look for Xid lines in the kernel's log",
        )
    return EngineError(f"CUDA could not {doing}: {text}")


def _free() -> str:
    """How much memory is free, if the GPU still answers."""
    try:
        free, total = device.cupy().cuda.runtime.memGetInfo()
    except Exception:  # must not hide the error that is being reported
        return ""
    return f" ({free / 1e6:,.0f} of {total / 1e6:,.0f} MB are free)"
