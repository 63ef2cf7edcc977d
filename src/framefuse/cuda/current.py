"""The current GPU of a thread, which a run on `--device cuda:1` sets for each of its threads.

All other code on CUDA uses the current GPU and takes no number.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar

T = TypeVar("T")


def number(asked: int | None) -> int:
    """The requested GPU, or this thread's current one for None."""
    from framefuse.cuda import device

    return device.current_gpu() if asked is None else asked


@contextmanager
def current(gpu: int | None, doing: str = "go on") -> Iterator[None]:
    """Make a GPU this thread's current one inside the block; None changes nothing.

    Args:
        doing: what the block does, as an infinitive for the messages of CUDA's errors.

    Raises:
        GpuMemoryError: there is not enough memory; CUDA itself takes several hundred MB to start.
        GpuLostError, EngineError: CUDA fails for another reason.
    """
    if gpu is None:
        yield
        return
    from framefuse.cuda import device
    from framefuse.cuda.errors import translate_cuda_error

    cp = device.cupy()
    runtime = cp.cuda.runtime
    before = runtime.getDevice()
    try:
        runtime.setDevice(gpu)
        runtime.free(0)  # frees nothing: starts CUDA on this GPU
    except runtime.CUDARuntimeError as error:
        raise translate_cuda_error(error, f"start CUDA on cuda:{gpu}") from error
    try:
        yield
    except (cp.cuda.memory.OutOfMemoryError, runtime.CUDARuntimeError) as error:
        raise translate_cuda_error(error, doing) from error
    finally:
        with suppress(runtime.CUDARuntimeError):  # the GPU is lost, which another error reports
            runtime.setDevice(before)


def on(gpu: int | None, items: Iterator[T], doing: str) -> Iterator[T]:
    """Iterate with a GPU as the current one; for a thread that does nothing else. Errors as in `current`."""
    with current(gpu, doing):
        yield from items
