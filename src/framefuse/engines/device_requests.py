"""Slots in pinned host memory over executions on a GPU: what is copied in is what the execution reads."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol, runtime_checkable

from framefuse.cuda import device
from framefuse.engines import Slot, SlotPool
from framefuse.errors import EngineError

POLL = 0.0005
"""Seconds between looks at a slot that may time out."""


@runtime_checkable
class DeviceExecution(Protocol):
    """A model of one shape with memory of its own on the GPU; as `framefuse.runtime.cuda.captured_batch.Execution`."""

    input: Any
    """On the GPU: what a slot's input is copied into."""
    results: list[Any]
    layout: str | None
    memory_format: Literal["nchw", "nhwc"]
    capturable: bool

    def start(self, stream: Any) -> None: ...
    def finish(self, stream: Any) -> None: ...


def capture(stream: Any, work: Callable[[], None]) -> Any:
    """What `work` launches on a stream, as a CUDA graph of CuPy. It must have run before: nothing is loaded here.

    Raises:
        Exception: what `work` or CUDA raise where something in it cannot be captured; the stream can be used again.
    """
    runtime = device.cupy().cuda.runtime
    stream.begin_capture(runtime.streamCaptureModeThreadLocal)
    try:
        work()
    except BaseException:
        with contextlib.suppress(runtime.CUDARuntimeError):  # the capture may be lost already
            stream.end_capture()
        raise
    return stream.end_capture()


def fork_join(outside: Any, inside: Any, work: Callable[[], None]) -> None:
    """Run `work`, which launches on the stream `inside`, as if it launched on the stream `outside`."""
    event = device.cupy().cuda.Event
    begun, ended = event(disable_timing=True), event(disable_timing=True)
    begun.record(outside)
    inside.wait_event(begun)
    work()
    ended.record(inside)
    outside.wait_event(ended)


class Request:
    """A slot's memory on the host, and what copies in, runs and copies out."""

    def __init__(self, execution: DeviceExecution) -> None:
        cp = device.cupy()
        self._execution = execution
        self._stream = cp.cuda.Stream(non_blocking=True)
        self.ended = cp.cuda.Event(block=True, disable_timing=True)
        self.input = device.pinned(execution.input.shape, execution.input.dtype)
        self.outputs = tuple(device.pinned(result.shape, result.dtype) for result in execution.results)
        self._launch()
        self._stream.synchronize()
        self._graph = capture(self._stream, self._launch) if execution.capturable else None

    def start(self) -> None:
        graph = self._graph
        self._checked(self._launch if graph is None else lambda: graph.launch(self._stream))
        self._checked(lambda: self.ended.record(self._stream))

    def wait(self, timeout: float | None) -> bool:
        if timeout is None:
            self._checked(self.ended.synchronize)
            return True
        end = time.monotonic() + timeout
        while not self._checked(lambda: self.ended.done):
            if time.monotonic() >= end:
                return False
            time.sleep(POLL)
        return True

    def _checked(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except device.cupy().cuda.runtime.CUDARuntimeError as error:
            raise EngineError(f"CUDA failed: {error}") from error

    def _launch(self) -> None:
        runtime, stream = device.cupy().cuda.runtime, self._stream.ptr
        there = self._execution.input
        runtime.memcpyAsync(there.data.ptr, self.input.ctypes.data, self.input.nbytes,
                            runtime.memcpyHostToDevice, stream)  # fmt: skip
        self._execution.start(self._stream)
        self._execution.finish(self._stream)
        for result, output in zip(self._execution.results, self.outputs, strict=True):
            runtime.memcpyAsync(output.ctypes.data, result.data.ptr, output.nbytes,
                                runtime.memcpyDeviceToHost, stream)  # fmt: skip


def device_request_pool(shape: tuple[int, int, int, int], executions: Sequence[DeviceExecution]) -> SlotPool:
    """A lane with one slot for each execution. `Slot.input` is what the execution reads, in its memory order."""

    def wait(slot: Slot, timeout: float | None) -> bool:
        if not slot.handle.wait(timeout):
            return False
        slot.outputs = slot.handle.outputs
        return True

    slots = []
    for execution in executions:
        request = Request(execution)
        slots.append(Slot(request.input, handle=request, memory_format=execution.memory_format,
                          layout=execution.layout))  # fmt: skip
    return SlotPool(shape, slots, start=lambda slot: slot.handle.start(), wait=wait)
