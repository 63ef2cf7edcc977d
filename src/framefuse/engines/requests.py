"""Requests: memory that preprocessing writes and an engine reads in place, and pools of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray


@dataclass(eq=False)
class Slot:
    """One request in flight."""

    input: NDArray[Any]
    """(batch, 3, height, width), or (batch, height, width, 3): preprocess writes it, the engine reads it in place.
    uint16 holds the bits of bfloat16."""
    outputs: tuple[NDArray[Any], ...] = ()
    """The model's raw outputs in the order of the ONNX, or those of `layout`; valid from `RequestPool.wait` to
    `RequestPool.release`."""
    handle: Any = None
    """The engine's own request object."""
    memory_format: Literal["nchw", "nhwc"] = "nchw"
    """Of `input`."""
    layout: str | None = None
    """What `outputs` hold, if not the model's own outputs: "yolov8_head"."""

    def write(self, images: NDArray[Any]) -> None:
        """Write images (batch, 3, height, width), float32 in 0..1, in the order and number format of `input`."""
        values = images.transpose(0, 2, 3, 1) if self.memory_format == "nhwc" else images
        if self.input.dtype == np.uint16:  # bfloat16: the upper half of float32, rounded to nearest
            bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
            self.input[...] = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
        elif self.input.dtype == np.uint8:
            self.input[...] = np.rint(values * 255)
        else:
            self.input[...] = values


class RequestPool(Protocol):
    """A fixed set of requests of one input shape."""

    shape: tuple[int, int, int, int]
    """Batch, channels, height, width."""

    def acquire(self) -> Slot | None:
        """A free slot; None if all are in flight. Never blocks on the model."""

    def submit(self, slot: Slot) -> None: ...
    def wait(self, slot: Slot, timeout: float | None = None) -> bool:
        """Wait for the outputs of a submitted slot; False after `timeout` seconds without them."""

    def release(self, slot: Slot) -> None: ...
    def close(self) -> None: ...


class SlotPool:
    """A request pool over given slots.

    Args:
        start: starts a slot's request.
        wait: waits for it, at most so many seconds, and sets `Slot.outputs`; False if that was not enough. By default
            `start` has done all of it.
    """

    def __init__(
        self,
        shape: tuple[int, int, int, int],
        slots: list[Slot],
        *,
        start: Callable[[Slot], None],
        wait: Callable[[Slot, float | None], bool] = lambda slot, timeout: True,
    ) -> None:
        self.shape, self._free, self._start, self._wait = shape, slots, start, wait

    def acquire(self) -> Slot | None:
        return self._free.pop() if self._free else None

    def submit(self, slot: Slot) -> None:
        self._start(slot)

    def wait(self, slot: Slot, timeout: float | None = None) -> bool:
        return self._wait(slot, timeout)

    def release(self, slot: Slot) -> None:
        slot.outputs = ()
        self._free.append(slot)

    def close(self) -> None:
        self._free.clear()
