"""Null: an engine that computes nothing. It measures everything around the model, and is the double that tests use."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from framefuse.engines import EngineOptions, Slot, SlotPool
from framefuse.errors import CapabilityError

Answer = Callable[[NDArray[Any]], Sequence[NDArray[Any]]]


class NullEngine:
    """Answers at once.

    Args:
        answer: input (batch, 3, height, width) -> outputs; called when a slot is submitted.
    """

    name = "null"
    precision = "none"
    capturable = False
    streams = 1

    def __init__(self, answer: Answer, input_dtype: Any = np.float32) -> None:
        self._answer = answer
        self.input_dtype = np.dtype(input_dtype)
        self.reasons = ["engine null: no model runs, outputs are empty"]

    def lane(self, batch: int, height: int, width: int, slots: int) -> SlotPool:
        shape = (batch, 3, height, width)

        def start(slot: Slot) -> None:
            slot.outputs = tuple(self._answer(slot.input))

        return SlotPool(
            shape,
            [Slot(np.zeros(shape, self.input_dtype)) for _ in range(slots or 2)],
            start=start,
            wait=lambda slot, timeout: True,
        )

    def close(self) -> None:
        pass


class NullExecution:
    """A model on the GPU that is not there: its results are what they were made of.

    Args:
        results: NumPy arrays (batch, ...).
    """

    def __init__(self, batch: int, height: int, width: int, results: Sequence[NDArray[Any]]) -> None:
        from framefuse.cuda import device

        self.input = device.cupy().zeros((batch, height, width, 8), np.float16)
        self.results = [device.cupy().asarray(result) for result in results]
        self.layout: str | None = None

    def start(self, stream: Any) -> None:
        """Nothing to start."""

    def finish(self, stream: Any) -> None:
        """Nothing to write."""


class CudaNullEngine:
    """`NullEngine` for images on a GPU.

    Args:
        answer: batch, height, width -> outputs; called once for each execution.
    """

    name = "null"
    precision = "none"
    capturable = True
    streams = 1
    input_dtype = np.dtype(np.float16)

    def __init__(self, answer: Callable[[int, int, int], Sequence[NDArray[Any]]]) -> None:
        self._answer = answer
        self.reasons = ["engine null: no model runs, outputs are empty"]

    def execution(self, batch: int, height: int, width: int) -> NullExecution:
        return NullExecution(batch, height, width, self._answer(batch, height, width))

    def lane(self, batch: int, height: int, width: int, slots: int) -> SlotPool:
        """
        Raises:
            CapabilityError: always: its images never come to the host.
        """
        raise CapabilityError("engine null on cuda has no slots on the host", remedy="use --device cpu")

    def close(self) -> None:
        pass


def open_engine(model: Path, options: EngineOptions) -> NullEngine | CudaNullEngine:
    """Zeros in the shapes that the ONNX states. A free axis has as many rows as strides 8, 16 and 32 have anchors; of a
    image (four axes) the sides of the input."""
    from framefuse.engines.onnx_shapes import load

    graph = load(model, weights=False).graph
    shapes = [[axis.dim_value for axis in value.type.tensor_type.shape.dim] for value in graph.output]

    def outputs(count: int, height: int, width: int) -> tuple[NDArray[Any], ...]:
        anchors = sum((height // stride) * (width // stride) for stride in (8, 16, 32))
        sides = (anchors, height, width)
        sizes = [
            [size or (sides[axis] if len(shape) == 4 else anchors) for axis, size in enumerate(shape[1:])]
            for shape in shapes
        ]
        return tuple(np.zeros([count, *size], np.float32) for size in sizes)

    if options.device == "cuda":
        return CudaNullEngine(outputs)
    cache: dict[tuple[int, ...], tuple[NDArray[Any], ...]] = {}

    def answer(batch: NDArray[Any]) -> Sequence[NDArray[Any]]:
        count, _, height, width = batch.shape
        if batch.shape not in cache:
            cache[batch.shape] = outputs(count, height, width)
        return cache[batch.shape]

    return NullEngine(answer)
