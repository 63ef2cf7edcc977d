"""Which GPU: CUDA has a current one in each thread, and threads of a run on `--device cuda:1` are given theirs here.

Everything on CUDA works on the current GPU of its thread and asks for no number.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar

T = TypeVar("T")


def number(asked: int | None) -> int:
    """The GPU that was asked for; None: this thread's current one."""
    from framefuse.cuda import device

    return device.current_gpu() if asked is None else asked


@contextmanager
def current(gpu: int | None, doing: str = "go on") -> Iterator[None]:
    """Makes a GPU this thread's current one for a while; None: nothing changes.

    Args:
        doing: what is done there, in the infinitive: CUDA's errors are said in our words.

    Raises:
        GpuMemoryError: there is no room, or CUDA cannot even start there, for which it takes several hundred MB.
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
        runtime.free(0)  # nothing is freed: CUDA starts at a first call, if nobody has started it
    except runtime.CUDARuntimeError as error:
        raise translate_cuda_error(error, f"start CUDA on cuda:{gpu}") from error
    try:
        yield
    except (cp.cuda.memory.OutOfMemoryError, runtime.CUDARuntimeError) as error:
        raise translate_cuda_error(error, doing) from error
    finally:
        with suppress(runtime.CUDARuntimeError):  # of a GPU that is lost, which has been said, or will be
            runtime.setDevice(before)


def on(gpu: int | None, items: Iterator[T], doing: str) -> Iterator[T]:
    """The same items, made on a GPU; for a thread that does nothing else. Errors as in `current`."""
    with current(gpu, doing):
        yield from items
