"""Runs of an `ArrayProgram` on the GPU: in memory of their own, which every run uses alike, so they can be captured."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

from framefuse.cuda import device
from framefuse.engines.cudnn.array_program import OPERATORS, Call
from framefuse.engines.cudnn.network import General
from framefuse.errors import EngineError

ALIGNMENT = 512
"""Bytes."""
THREADS = 16
"""That compile kernels, at most."""


class Arena:
    """Memory for the arrays of a run, which are made and freed in the same order each time.

    Until `fix` it comes from CuPy's pool, and the arena only counts. From then on it is one block, where each array
    lies at the same place in every run.
    """

    def __init__(self) -> None:
        self.size = 0
        """Bytes needed so far."""
        self._block: Any = None
        self._taken: list[tuple[int, int]] = []
        """Where arrays begin and end, in order."""

    def fix(self) -> None:
        """Take the memory that runs so far needed."""
        self._block = device.cupy().cuda.alloc(max(self.size, ALIGNMENT))

    def malloc(self, size: int) -> Any:
        """Memory of CuPy, as its allocators return it."""
        memory = device.cupy().cuda.memory
        size, start = -(-max(size, 1) // ALIGNMENT) * ALIGNMENT, 0
        for begin, end in self._taken:
            if start + size <= begin:
                break
            start = end
        if self._block is not None and start + size > self.size:
            raise EngineError(f"a run needs {start + size} bytes where those before it needed {self.size}")
        self.size = max(self.size, start + size)
        lies = self._block if self._block is not None else device.cupy().get_default_memory_pool().malloc(size)
        address = lies.ptr + (start if self._block is not None else 0)
        piece = _Piece(self._taken, (start, start + size), lies)
        self._taken.append(piece.place)
        self._taken.sort()
        return memory.MemoryPointer(memory.UnownedMemory(address, size, piece), 0)


class _Piece:
    """What an array keeps while it lives."""

    def __init__(self, taken: list[tuple[int, int]], place: tuple[int, int], memory: Any) -> None:
        self.place, self._taken, self._memory = place, taken, memory

    def __del__(self) -> None:
        self._taken.remove(self.place)


class ArrayStep:
    """A `General` for images that lie on the GPU.

    Args:
        images: of the batch.
        values: what it reads, by name, (images, channels, height, width) float16 or float32; called in each run.
    """

    def __init__(self, step: General, images: int, values: Callable[[], Mapping[str, Any]]) -> None:
        self._step, self._images, self._values, self._arena = step, images, values, Arena()
        stream = device.new_stream()
        self.made: list[tuple[tuple[int, ...], Any]] = []
        """Shape and type of each value that it makes, for all images."""
        compile_ahead(step, {name: value.shape[1:] for name, value in values().items()}, step.images or images, stream)
        for _ in range(2):  # the first compiles kernels
            self.made = []
            self.run(stream, self._note)
            stream.synchronize()
        self._arena.fix()

    def _note(self, number: int, images: slice, value: Any) -> None:
        if not images.start:
            times = self._images // (self._step.images or self._images)
            self.made.append(((value.shape[0] * times, *value.shape[1:]), value.dtype))

    def run(self, stream: Any, write: Callable[[int, slice, Any], None]) -> None:
        """Launch on a stream of CuPy.

        Args:
            write: called with the number of one of `ys`, images of the batch, and their values, which it copies. Where
                the model takes fewer images at once, that is several times.
        """
        cp, step = device.cupy(), self._step
        count = step.images or self._images
        with stream, cp.cuda.using_allocator(self._arena.malloc):
            values = self._values()
            for first in range(0, self._images, count):
                place = slice(first, first + count)
                given = {name: value[place].astype(cp.float32) for name, value in values.items()}
                for number, value in enumerate(step.program.run(cp, given, step.ys)):
                    write(number, place, value)
                del given, value
            del values


def compile_ahead(step: General, shapes: Mapping[str, tuple[int, ...]], images: int, stream: Any) -> None:
    """Compile the kernels of a step in several threads. CuPy compiles each of them when it is first called, one after
    another, so each node is called on arrays like those that it will get. Which they are, a run on the host tells.

    Args:
        shapes: of the values that it reads, without the images.
        images: of a run.
        stream: of CuPy.
    """
    calls: dict[Hashable, tuple[Call, Mapping[str, Any], list[Any]]] = {}

    def watch(call: Call, given: Mapping[str, Any], arguments: Sequence[Any]) -> None:
        host = OPERATORS[call.kind][1]
        likes = [
            value if value is None or place in host else _Like(value.shape, value.strides, value.dtype.str)
            for place, value in enumerate(arguments)
        ]
        key = [like.tobytes() if isinstance(like, np.ndarray) else like for like in likes]
        calls.setdefault((call.kind, str(call.attributes), *key), (call, given, likes))

    # More images than one change no kernel.
    zeros = {name: np.zeros((min(images, 2), *shape), np.float32) for name, shape in shapes.items()}
    with np.errstate(all="ignore"):
        step.program.run(np, zeros, step.ys, watch)
    gpu = device.current_gpu()

    def compiled(item: tuple[Call, Mapping[str, Any], list[Any]]) -> None:
        call, given, likes = item
        cp, function = device.cupy(), OPERATORS[call.kind][0]
        with device.current(gpu), stream, suppress(Exception):  # the run itself says what is wrong
            function(cp, given, *(like.array() if isinstance(like, _Like) else like for like in likes))

    with ThreadPoolExecutor(min(THREADS, os.cpu_count() or 1), "ff-compile") as pool:
        deque(pool.map(compiled, calls.values()), maxlen=0)


class _Like(NamedTuple):
    """What a kernel depends on."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str

    def array(self) -> Any:
        """An array of zeros on the GPU."""
        cp, dtype = device.cupy(), np.dtype(self.dtype)
        if min(self.strides, default=0) < 0:
            return cp.zeros(self.shape, dtype)
        last = sum((side - 1) * stride for side, stride in zip(self.shape, self.strides, strict=True))
        memory = cp.zeros(max(1, last // dtype.itemsize + 1), dtype)
        return cp.lib.stride_tricks.as_strided(memory, self.shape, self.strides)
