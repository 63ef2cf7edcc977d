"""Engine cudnn: a graph compiler over cuDNN's fused convolutions and our kernels, with one CUDA graph per batch."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np

from framefuse.cuda import device
from framefuse.cuda.errors import translate_cuda_error
from framefuse.engines import EngineOptions, Slot, SlotPool
from framefuse.engines.cudnn.compiled import Compiled, compile_network
from framefuse.engines.cudnn.convolutions import Builder, frontend
from framefuse.engines.cudnn.execution import Execution, Weights, capture
from framefuse.engines.cudnn.network import LOW_PRECISIONS, Conv
from framefuse.engines.cudnn.plans import Plans
from framefuse.engines.cudnn.precisions import Precisions
from framefuse.errors import CapabilityError, EngineError, UsageError

STREAMS = 4
"""Steps that may run concurrently, such as the branches of a detection head."""

POLL = 0.0005
"""Seconds between looks at a slot that may time out."""


class CudnnEngine:
    """A model on the current GPU, in float16; layer by layer in 8 bits where that was asked for and is faster.

    Its slots are in pinned host memory: a launch copies images in and results out. `execution` gives the same network
    without copies, for programs whose images are on the GPU already.
    """

    name = "cudnn"
    capturable = True
    streams = 1
    input_dtype: np.dtype[Any] = np.dtype(np.float16)

    def __init__(self, model: Path, options: EngineOptions) -> None:
        if options.device == "cpu":
            raise CapabilityError("engine cudnn runs on NVIDIA GPUs only", remedy="use --device cuda or another engine")
        if options.precision not in ("auto", "fp16", *LOW_PRECISIONS):
            raise CapabilityError(
                f"engine cudnn has no {options.precision}",
                remedy=f"use --precision fp16, {', '.join(LOW_PRECISIONS)} or another engine",
            )
        if options.streams > 1 or options.threads:
            raise UsageError(
                f"engine cudnn has no streams and threads ({options.streams}, {options.threads})", remedy="leave both 0"
            )
        device.cupy()
        self._precisions = Precisions(model, options)
        self._model, self._fold = model, options.layout == "yolov8"
        self._builder = Builder(max_workspace=(options.workspace_mb or 64) << 20)
        self._plans = Plans(self._builder)
        self._weights: Weights | None = None
        version = frontend().backend_version()
        self.reasons = [
            self._precisions.reason,
            f"cuDNN {version // 10000}.{version // 100 % 100}.{version % 100}, autotuned kernels",
        ]

    def execution(self, batch: int, height: int, width: int) -> Execution:
        """The network of one shape with memory of its own: `input`, `start`, `finish`, `results`.

        Where the caller told the layout "yolov8" and the model has that head, its decoding is left to post-processing.

        Raises:
            ModelError: the model has operators that are not known, or takes another size.
            EngineError: there is not enough memory on the GPU, or cuDNN has no kernel.
        """
        return self._executions(self._compiled(batch, height, width), 1, fold=self._fold)[0]

    def lane(self, batch: int, height: int, width: int, slots: int) -> SlotPool:
        compiled = self._compiled(batch, height, width)
        requests = [Request(execution) for execution in self._executions(compiled, slots or 2)]
        return SlotPool(
            (batch, 3, height, width),
            [Slot(request.input, handle=request) for request in requests],
            start=lambda slot: slot.handle.start(),
            wait=_wait,
        )

    def close(self) -> None:
        self._weights = None

    @property
    def precision(self) -> str:
        """Of the last compiled network: "fp16", or all precisions of its layers, such as "fp16+int8"."""
        return self._precisions.precision

    @property
    def layers(self) -> list[dict[str, Any]]:
        """Of the last network that was tuned layer by layer, as `TuningResult.layers`."""
        return self._precisions.layers

    def _compiled(self, batch: int, height: int, width: int) -> Compiled:
        compiled = compile_network(self._model, batch, height, width, streams=STREAMS)
        if self._weights is None:  # the same for every batch and size
            self._weights = Weights([step for step in compiled.placement.steps if isinstance(step, Conv)])
        compiled, reasons = self._precisions.apply(compiled, self._plans, self._weights)
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


class Request:
    """A slot's memory on the host, and the graph that copies in, runs and copies out."""

    def __init__(self, execution: Execution) -> None:
        cp = device.cupy()
        compiled = execution.compiled
        self.execution = execution
        self.stream = cp.cuda.Stream(non_blocking=True)
        self.ended = cp.cuda.Event(block=True, disable_timing=True)
        shape = (compiled.batch, 3, compiled.height, compiled.width)
        self.input = _pinned(shape, np.float16)
        self.outputs = tuple(_pinned(result.shape, np.float32) for result in execution.results)
        self._images = cp.empty(shape, np.float16)
        with self.stream:
            self._graph = capture(self.stream, self._launch)

    def start(self) -> None:
        try:
            self._graph.launch(self.stream)
            self.ended.record(self.stream)
        except device.cupy().cuda.runtime.CUDARuntimeError as error:
            raise EngineError(f"CUDA failed: {error}") from error

    def done(self) -> bool:
        try:
            return bool(self.ended.done)
        except device.cupy().cuda.runtime.CUDARuntimeError as error:
            raise EngineError(f"CUDA failed: {error}") from error

    def wait(self) -> None:
        try:
            self.ended.synchronize()
        except device.cupy().cuda.runtime.CUDARuntimeError as error:
            raise EngineError(f"CUDA failed: {error}") from error

    def _launch(self) -> None:
        runtime = device.cupy().cuda.runtime
        runtime.memcpyAsync(self._images.data.ptr, self.input.ctypes.data, self.input.nbytes,
                            runtime.memcpyHostToDevice, self.stream.ptr)  # fmt: skip
        self.execution.pack(self._images, self.stream)
        self.execution.start(self.stream)
        self.execution.finish(self.stream)
        for result, output in zip(self.execution.results, self.outputs, strict=True):
            runtime.memcpyAsync(output.ctypes.data, result.data.ptr, output.nbytes,
                                runtime.memcpyDeviceToHost, self.stream.ptr)  # fmt: skip


def _wait(slot: Slot, timeout: float | None) -> bool:
    request: Request = slot.handle
    if timeout is None:
        request.wait()
    else:
        end = time.monotonic() + timeout
        while not request.done():
            if time.monotonic() >= end:
                return False
            time.sleep(POLL)
    slot.outputs = request.outputs
    return True


def _pinned(shape: tuple[int, ...], dtype: Any) -> np.ndarray[Any, Any]:
    count = int(np.prod(shape))
    memory = device.cupy().cuda.alloc_pinned_memory(count * np.dtype(dtype).itemsize)
    array = np.frombuffer(memory, dtype, count).reshape(shape)
    array[...] = 0
    return array


def open_engine(model: Path, options: EngineOptions) -> CudnnEngine:
    """Load an ONNX model for an NVIDIA GPU."""
    return CudnnEngine(model, options)
