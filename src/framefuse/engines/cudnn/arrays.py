"""Runs of an `ArrayProgram` on the GPU: in memory of their own, which every run uses alike, so they can be captured."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from framefuse.cuda import device
from framefuse.engines.cudnn.network import General
from framefuse.errors import EngineError

ALIGNMENT = 512
"""Bytes."""


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
