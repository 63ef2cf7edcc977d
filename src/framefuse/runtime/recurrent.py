"""Recurrent models on the CPU: each stream of frames, and each of its views, has a request of its own, in which the
model keeps what it remembers. It forgets at cuts, gaps and seeks."""

from collections.abc import Hashable
from typing import ClassVar, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from framefuse.engines import Slot
from framefuse.frame import Frame, View
from framefuse.kernels.boxes.reference import floats
from framefuse.kernels.masks.mattes import CUT
from framefuse.prediction import Array
from framefuse.runtime.matting import follows
from framefuse.runtime.program import HostProgram

CELL = 4
"""Samples, across and down, whose mean tells whether the scene has changed; every second pixel is one."""


class _Seen(NamedTuple):
    """The last frame of a stream."""

    seconds: float | None
    sample: Array

    def followed_by(self, other: "_Seen", grey_levels: float) -> bool:
        """Whether a frame shows the same scene, a moment later."""
        if not follows(self.seconds, other.seconds):
            return False
        return bool(np.abs(other.sample - self.sample).mean() * grey_levels <= CUT * 255)


class RecurrentProgram(HostProgram):
    """The `Program` of a recurrent model: a frame waits for the one before it of its stream."""

    kept: ClassVar[int] = 32

    def __post_init__(self) -> None:
        super().__post_init__()
        self.slots = 1
        self._seen: WeakKeyDictionary[Slot, _Seen] = WeakKeyDictionary()
        """Last frame of each request."""
        self._grey_levels = float(np.mean(self.preprocess.std))

    def prepare(self, width: int, height: int, view: View | None = None) -> None:
        """Nothing to do: a stream that is not known yet gets its own request."""

    def _pool_key(self, frame: Frame) -> Hashable:
        return frame.source_id, frame.connection, frame.view, self.input_size(frame)

    def _prepared(self, slot: Slot, frame: Frame) -> None:
        seen = _Seen(frame.seconds, _sample(slot))
        if (before := self._seen.get(slot)) and not before.followed_by(seen, self._grey_levels):
            slot.handle.reset_state()
        self._seen[slot] = seen


def _sample(slot: Slot) -> Array:
    """The image in a request, shrunk, float32."""
    image = slot.input[0] if slot.memory_format == "nchw" else slot.input[0].transpose(2, 0, 1)
    values = floats(image[:, ::2, ::2])
    channels, height, width = values.shape
    rows, columns = height // CELL, width // CELL
    cells = values[:, : rows * CELL, : columns * CELL].reshape(channels, rows, CELL, columns, CELL)
    shrunk: Array = cells.mean((2, 4))
    return shrunk
