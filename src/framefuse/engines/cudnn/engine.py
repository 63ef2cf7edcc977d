"""Engine cudnn: a graph compiler over cuDNN's fused convolutions and our kernels, with one CUDA graph per batch."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np

from framefuse.cuda import device
from framefuse.cuda.device import translate_cuda_error
from framefuse.engines.cudnn import BACKEND
from framefuse.engines.cudnn.compiled import Compiled, compile_network
from framefuse.engines.cudnn.convolutions import Builder, frontend
from framefuse.engines.cudnn.execution import Execution
from framefuse.engines.cudnn.network import Conv
from framefuse.engines.cudnn.plans import Plans
from framefuse.engines.cudnn.precisions import Precisions
from framefuse.engines.cudnn.weights import Weights
from framefuse.engines.engine import Engine, EngineOptions
from framefuse.errors import UsageError

STREAMS = 4
"""Steps that may run concurrently, such as the branches of a detection head."""


class CudnnEngine(Engine):
    """A model on the current GPU, in float16; layer by layer in 8 bits where that was asked for and is faster.

    Its precision is that of the last network made, such as "fp16+int8". If the caller states the layout "yolov8" and
    the model has that head, `execution` leaves the decoding of boxes to post-processing.
    """

    name = BACKEND.name
    capabilities = BACKEND.capabilities
    device = "cuda"
    input_dtype = np.dtype(np.float16)

    def __init__(self, model: Path, options: EngineOptions) -> None:
        if options.streams > 1 or options.threads:
            raise UsageError(
                f"engine cudnn has no streams and threads ({options.streams}, {options.threads})", remedy="leave both 0"
            )
        device.cupy()
        self._precisions = Precisions(model, options)
        self.precision = self._precisions.precision
        self._model, self._fold = model, options.layout == "yolov8"
        self._builder = Builder(max_workspace=(options.workspace_mb or 64) << 20)
        self._plans = Plans(self._builder)
        self._weights: Weights | None = None
        version = frontend().backend_version()
        self.reasons = [
            self._precisions.reason,
            f"cuDNN {version // 10000}.{version // 100 % 100}.{version % 100}, autotuned kernels",
        ]

    def _make_execution(self, batch: int, height: int, width: int) -> Execution:
        return self._executions(self._compiled(batch, height, width), 1, fold=self._fold)[0]

    def _make_host_executions(self, batch: int, height: int, width: int, count: int) -> list[Execution]:
        return self._executions(self._compiled(batch, height, width), count)

    def close(self) -> None:
        self._weights = None

    @property
    def layers(self) -> list[dict[str, Any]]:
        """Of the last network that was tuned layer by layer, as `TuningResult.layers`."""
        return self._precisions.layers

    def _compiled(self, batch: int, height: int, width: int) -> Compiled:
        compiled = compile_network(self._model, batch, height, width, streams=STREAMS)
        if self._weights is None:  # the same for every batch and size
            self._weights = Weights([step for step in compiled.placement.steps if isinstance(step, Conv)])
        compiled, reasons = self._precisions.apply(compiled, self._plans, self._weights)
        self.precision = self._precisions.precision
        self.reasons += [reason for reason in reasons if reason not in self.reasons]
        return compiled

    def _executions(self, compiled: Compiled, count: int, *, fold: bool = False) -> list[Execution]:
        started = time.perf_counter()
        plans = self._plans
        before = plans.measured, plans.cached, plans.rebuilt
        size = compiled.memory.size * 2 * count
        try:
            assert self._weights is not None
            made = [Execution(compiled, self._builder, self._weights, plans, fold=fold) for _ in range(count)]
        except device.cupy().cuda.memory.OutOfMemoryError as error:
            what = f"{count} x {compiled.batch} images of {compiled.width}x{compiled.height}"
            raise translate_cuda_error(error, f"hold {what} ({size / 1e6:.0f} MB and workspaces)") from error
        finally:
            plans.save()
        rebuilt = plans.rebuilt - before[2]
        self.reasons.append(
            f"batch {compiled.batch} of {compiled.width}x{compiled.height}: {len(compiled.placement.steps)} steps, "
            f"{plans.measured - before[0]} kernels measured, {plans.cached - before[1]} cached"
            f"{f' ({rebuilt} built again)' if rebuilt else ''}, "
            f"{time.perf_counter() - started:.1f} s"
        )
        if plans.cache.note and plans.cache.note not in self.reasons:
            self.reasons.append(plans.cache.note)
        return made
