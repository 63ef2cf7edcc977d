"""Launch plans: the kernel launches of one call, recorded to be repeated without its checks; and their memory.

Title: who keeps the memory that a launch reads
    A launch holds addresses, not arrays. A plain call needs no more than that: the memory it allocates returns to the
    pool of its stream, where CUDA reuses it in order. Launches that run again later need their memory kept:
    - a `LaunchPlan` keeps the arguments of its call and everything that the call allocated or took from a cache;
    - a `Workspace` and a `PreprocessTable` keep their own memory; the caller keeps them;
    - `graph_memory` collects what calls captured in a CUDA graph use, for the owner of the graph.
    A call that is captured without one of these, and needs memory that nobody would keep, raises UsageError.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np

from framefuse.cuda import device, kernel
from framefuse.errors import UsageError

R = TypeVar("R")


def keep(memory: R) -> R:
    """Memory that launches of this thread read: the plan being recorded, or the owner of `graph_memory`, keeps it."""
    if kernel.recording.kept is not None:
        kernel.recording.kept.append(memory)
    return memory


def keep_cached(memory: R, stream: int | None) -> R:
    """`keep` for memory of a bounded cache, which may drop it before a captured graph runs.

    Args:
        stream: pointer of the CUDA stream on which the launch goes; None: CuPy's current one.

    Raises:
        UsageError: the stream is being captured and nothing would keep the memory.
    """
    if kernel.recording.kept is None and device.capturing(stream):
        raise UsageError("this call reads a cached table, which a CUDA graph does not keep", remedy=device.PLAN_FIRST)
    return keep(memory)


@contextmanager
def graph_memory() -> Iterator[list[Any]]:
    """Collect the memory that calls inside the block read besides their arguments.

        with graph_memory() as kept:
            stream.begin_capture()
            ...
            graph = stream.end_capture()

    Keep the list as long as the graph. It belongs to the thread that entered the block.
    """
    outer, kept = kernel.recording.kept, list[Any]()
    kernel.recording.kept = kept
    try:
        yield kept
    finally:
        kernel.recording.kept = outer


class LaunchPlan:
    """The launches of one call, which `record_launches` returns.

    A plan keeps the memory that its launches read. It may itself be captured in a CUDA graph; keep the plan as long as
    the graph.

    Attributes:
        result: what the recorded call returned.
    """

    def __init__(self, launches: Sequence[kernel.Bound], kept: Any, result: Any) -> None:
        self._launches, self._kept, self.result = tuple(launches), kept, result

    def __call__(self, stream: int | None = None) -> None:
        """Start the launches again.

        Args:
            stream: pointer of a CUDA stream; None: CuPy's current one. If it is not the stream of the recorded call,
                the caller orders it after that call.
        """
        keep(self._kept)
        pointer = device.current_stream() if stream is None else stream
        for launch in self._launches:
            launch(pointer)


def record_launches(function: Callable[..., Any], *args: Any, **options: Any) -> LaunchPlan:
    """Call a public function of `framefuse.kernels` on arrays of a GPU and record its launches.

        plan = kernels.record_launches(preprocess, frame, out, content=..., ...)
        while new_image_in(frame):
            plan(stream.ptr)

    The plan repeats the launches on the same arrays: their contents may change, their addresses may not. A launch costs
    a few microseconds of the CPU, where the call itself checks its arguments and may allocate and upload tables.

    Raises:
        UsageError: the call launched nothing.
    """
    outer = kernel.recording.launches
    kernel.recording.launches = launches = list[kernel.Bound]()
    try:
        with graph_memory() as kept:
            result = function(*args, **options)
    finally:
        kernel.recording.launches = outer
    if not launches:
        raise UsageError("the recorded call started no kernel", remedy="record a call on arrays of a GPU")
    plan = LaunchPlan(launches, (kept, function, args, options), result)
    if outer is not None:
        outer.extend(launches)
    return keep(plan)


class Workspace:
    """Scratch memory that a caller keeps, so that repeated calls need not allocate.

    What calls return may lie in it and is overwritten by the next one. Use a workspace on one stream at a time. For a
    call that is captured in a CUDA graph, give the graph a workspace of its own that lives as long, and make the same
    call with it before the capture.
    """

    def __init__(self) -> None:
        self._kept: dict[str, tuple[Hashable, Any]] = {}

    def get(self, name: str, shape: tuple[int, ...], dtype: Any) -> Any:
        """The array of that name and shape, allocated at its first use.

        Raises:
            UsageError: it would have to be allocated during a capture.
        """
        return self.once(name, (shape, np.dtype(dtype)), lambda: device.cupy().empty(shape, dtype))

    def once(self, name: str, key: Hashable, make: Callable[[], R]) -> R:
        """The result of `make` that is stored under a name, made anew if `key` has changed.

        Raises:
            UsageError: it would have to be made during a capture.
        """
        found: R | None
        known, found = self._kept.get(name, (None, None))
        if found is None or known != key:
            if device.capturing(None):
                message = "memory cannot be allocated during the capture of a CUDA graph"
                raise UsageError(message, remedy="make the same call with the same Workspace before the capture")
            found = make()
            self._kept[name] = key, found
        return keep(found)
