"""Null: an engine that computes nothing. It measures everything around the model, and is the double that tests use."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from framefuse.engines import EngineOptions, Slot, SlotLane

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

    def lane(self, batch: int, height: int, width: int, slots: int) -> SlotLane:
        shape = (batch, 3, height, width)

        def start(slot: Slot) -> None:
            slot.outputs = tuple(self._answer(slot.input))

        return SlotLane(
            shape,
            [Slot(np.zeros(shape, self.input_dtype)) for _ in range(slots or 2)],
            start=start,
            wait=lambda slot, timeout: True,
        )

    def close(self) -> None:
        pass


def open_engine(model: Path, options: EngineOptions) -> NullEngine:
    """Zeros in the shapes that the ONNX states; a free axis has as many rows as strides 8, 16 and 32 have anchors."""
    import onnx

    graph = onnx.load(model, load_external_data=False).graph
    shapes = [[axis.dim_value for axis in value.type.tensor_type.shape.dim] for value in graph.output]
    cache: dict[tuple[int, ...], tuple[NDArray[Any], ...]] = {}

    def answer(batch: NDArray[Any]) -> Sequence[NDArray[Any]]:
        count, _, height, width = batch.shape
        if batch.shape not in cache:
            anchors = sum((height // stride) * (width // stride) for stride in (8, 16, 32))
            cache[batch.shape] = tuple(
                np.zeros([count, *(size or anchors for size in shape[1:])], np.float32) for shape in shapes
            )
        return cache[batch.shape]

    return NullEngine(answer)
