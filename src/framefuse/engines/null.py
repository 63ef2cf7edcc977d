"""Null: an engine that computes nothing. It measures everything around the model, and is the double that tests use."""

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from framefuse.cuda import device
from framefuse.engines.backend import Backend
from framefuse.engines.engine import Capabilities, Engine, EngineOptions, Precision
from framefuse.engines.requests import DeviceExecution, Slot, SlotPool
from framefuse.models.onnx_file import load_onnx

BACKEND = Backend(
    "null",
    Capabilities(dict.fromkeys(("cpu", "cuda"), get_args(Precision)[1:]), capturable=True),
    opener="framefuse.engines.null:open_engine",
)


class NullEngine(Engine):
    """Answers at once, with `answer`: input (batch, 3, height, width) -> outputs; called when a slot is submitted."""

    name = BACKEND.name
    capabilities = BACKEND.capabilities
    precision = "none"
    input_dtype = np.dtype(np.float32)

    def __init__(self, answer: Callable[..., Sequence[NDArray[Any]]]) -> None:
        self._answer = answer
        self.reasons = ["engine null: no model runs, outputs are empty"]

    def _make_request_pool(self, batch: int, height: int, width: int, slots: int) -> SlotPool:
        shape = (batch, 3, height, width)

        def start(slot: Slot) -> None:
            slot.outputs = tuple(self._answer(slot.input))

        return SlotPool(shape, [Slot(np.zeros(shape, self.input_dtype)) for _ in range(slots or 2)], start=start)


class NullExecution(DeviceExecution):
    """No model on the GPU: the results never change."""

    def start(self, stream: Any) -> None:
        """Nothing to start."""


class CudaNullEngine(NullEngine):
    """`NullEngine` for images on a GPU; `answer`: batch, height, width -> outputs; called once for each execution."""

    device = "cuda"
    input_dtype = np.dtype(np.float16)

    def _make_execution(self, batch: int, height: int, width: int) -> NullExecution:
        made, cp = NullExecution(), device.cupy()
        made.input = cp.zeros((batch, height, width, 8), self.input_dtype)
        made.results = [cp.asarray(result) for result in self._answer(batch, height, width)]
        return made


def open_engine(model: Path, options: EngineOptions) -> Engine:
    """Zeros in the shapes that the ONNX states. A free axis has as many rows as strides 8, 16 and 32 have anchors;
    in an output of four axes, the size of the input."""
    graph = load_onnx(model, weights=False).graph
    shapes = [[axis.dim_value for axis in value.type.tensor_type.shape.dim] for value in graph.output]

    @cache
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
    return NullEngine(lambda images: outputs(len(images), *images.shape[2:]))
