"""Requests: memory that preprocessing writes and an engine reads in place, and pools of them.

On the GPU an execution is a model with its own memory; a request pool over executions is in pinned host memory.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from framefuse.cuda import device
from framefuse.errors import EngineError

Shape = tuple[int, int, int, int]
"""Batch, channels, height, width."""
POLL = 0.0005
"""Seconds between checks of a request that may time out."""
CHANNELS = 3
"""Of an image; an execution may read more, which stay 0."""


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


class SlotPool:
    """A fixed set of requests of one input shape.

    Args:
        start: starts a slot's request.
        wait: waits for it, at most so many seconds, and sets `Slot.outputs`; False if that was not enough. By default
            `start` has done all of it.
    """

    def __init__(
        self,
        shape: Shape,
        slots: list[Slot],
        *,
        start: Callable[[Slot], None],
        wait: Callable[[Slot, float | None], bool] = lambda slot, timeout: True,
    ) -> None:
        self.shape, self._free, self._start, self._wait = shape, slots, start, wait

    def acquire(self) -> Slot | None:
        """A free slot; None if all are in flight. Never blocks on the model."""
        return self._free.pop() if self._free else None

    def submit(self, slot: Slot) -> None:
        self._start(slot)

    def wait(self, slot: Slot, timeout: float | None = None) -> bool:
        """Wait for the outputs of a submitted slot; False after `timeout` seconds without them."""
        return self._wait(slot, timeout)

    def release(self, slot: Slot) -> None:
        slot.outputs = ()
        self._free.append(slot)

    def close(self) -> None:
        self._free.clear()


RequestPool = SlotPool


class DeviceExecution:
    """A model of one batch and input size with its own memory on the GPU. It only launches.

    Attributes:
        input: (batch, height, width, 3 or more) on the GPU; the channels after the third are 0 and stay so. With the
            memory format "nchw": (batch, 3, height, width).
        results: the model's outputs, or those of `layout`, on the GPU.
        layout: what `results` hold, if not the model's own outputs: "yolov8_head".
        memory_format: of `input`.
        version: grows when `start` comes to launch other, faster kernels. A graph that was captured before stays right.
        capturable: whether `start` and `finish` can be recorded into a CUDA graph. If not, they run between two graphs.
    """

    input: Any
    results: Sequence[Any]
    layout: str | None = None
    memory_format: Literal["nchw", "nhwc"] = "nhwc"
    version: int = 0
    capturable: bool = True

    def start(self, stream: Any) -> None:
        """Start the model on a stream of CuPy."""
        raise NotImplementedError

    def finish(self, stream: Any) -> None:
        """Start the work that completes `results`; nothing, if the model itself writes them."""


def capture(stream: Any, work: Callable[[], None]) -> Any:
    """What `work` launches on a stream, as a CUDA graph of CuPy. Run `work` once before, so that nothing loads here.

    Raises:
        Exception: what `work` or CUDA raise if something in it cannot be captured; the stream stays usable.
    """
    runtime = device.cupy().cuda.runtime
    stream.begin_capture(runtime.streamCaptureModeThreadLocal)
    try:
        work()
    except BaseException as error:
        try:
            stream.end_capture()
        except runtime.CUDARuntimeError as invalid:  # a note, since another thread may have caused it
            error.add_note(str(invalid))
        raise
    return stream.end_capture()


def launcher(execution: DeviceExecution, stream: Any) -> Callable[[], None]:
    """Run an execution once on a stream, and return what starts it again: its CUDA graph, if it can be captured.

    Raises:
        Exception: as `capture`.
    """

    def launch() -> None:
        execution.start(stream)
        execution.finish(stream)

    launch()
    stream.synchronize()
    return partial(capture(stream, launch).launch, stream) if execution.capturable else launch


def fork_join(outside: Any, inside: Any, work: Callable[[], None]) -> None:
    """Order `work`, which launches on the stream `inside`, as if it launched on the stream `outside`."""
    event = device.cupy().cuda.Event
    before, after = event(disable_timing=True), event(disable_timing=True)
    before.record(outside)
    inside.wait_event(before)
    work()
    after.record(inside)
    outside.wait_event(after)


class Request:
    """A slot's pinned memory, and the work that copies in, runs and copies out: one CUDA graph where possible.

    An execution whose images have more than 3 channels still gets 3 over the bus; they are padded on the GPU.
    """

    def __init__(self, execution: DeviceExecution) -> None:
        cp = device.cupy()
        self.execution = execution
        self.stream = cp.cuda.Stream(non_blocking=True)
        self._ended = cp.cuda.Event(block=True, disable_timing=True)
        shape = tuple(execution.input.shape)
        self._padded = execution.memory_format == "nhwc" and shape[-1] > CHANNELS
        if self._padded:
            shape = *shape[:-1], CHANNELS
        self._images = cp.empty(shape, execution.input.dtype) if self._padded else execution.input
        self.input = device.pinned(shape, execution.input.dtype)
        self.outputs = tuple(device.pinned(result.shape, result.dtype) for result in execution.results)
        self._prepare()

    def start(self) -> None:
        if self._graph is not None and self._version != self.execution.version:
            self._prepare()
        graph = self._graph
        self._checked(self._launch if graph is None else lambda: graph.launch(self.stream))
        self._checked(lambda: self._ended.record(self.stream))

    def _prepare(self) -> None:
        self._version, self._graph = self.execution.version, None
        self._launch()  # loads what a capture cannot
        self.stream.synchronize()
        if self.execution.capturable:
            self._graph = capture(self.stream, self._launch)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for `outputs`; False after `timeout` seconds without them."""
        if timeout is None:
            self._checked(self._ended.synchronize)
            return True
        end = time.monotonic() + timeout
        while not self._checked(lambda: self._ended.done):
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
        runtime, stream = device.cupy().cuda.runtime, self.stream
        runtime.memcpyAsync(device.address(self._images), self.input.ctypes.data, self.input.nbytes,
                            runtime.memcpyHostToDevice, stream.ptr)  # fmt: skip
        if self._padded:
            with stream:
                self.execution.input[..., :CHANNELS] = self._images
        self.execution.start(stream)
        self.execution.finish(stream)
        for result, output in zip(self.execution.results, self.outputs, strict=True):
            runtime.memcpyAsync(output.ctypes.data, device.address(result), output.nbytes,
                                runtime.memcpyDeviceToHost, stream.ptr)  # fmt: skip


def device_request_pool(shape: Shape, executions: Sequence[DeviceExecution]) -> SlotPool:
    """A request pool with one slot for each execution. `Slot.input` has the memory format of the execution.

    Raises:
        EngineError: CUDA fails, or the GPU has no room.
    """

    def wait(slot: Slot, timeout: float | None) -> bool:
        if not slot.handle.wait(timeout):
            return False
        slot.outputs = slot.handle.outputs
        return True

    slots = [
        Slot(made.input, handle=made, memory_format=made.execution.memory_format, layout=made.execution.layout)
        for made in map(Request, executions)
    ]
    return SlotPool(shape, slots, start=lambda slot: slot.handle.start(), wait=wait)
