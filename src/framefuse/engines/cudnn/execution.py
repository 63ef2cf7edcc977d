"""A compiled network on the GPU: memory, weights, plans, and how it is started or captured in a CUDA graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from framefuse.cuda import device, kernel
from framefuse.engines.cudnn import launch
from framefuse.engines.cudnn.compiled import Compiled
from framefuse.engines.cudnn.convolutions import BIAS, RESIDUAL, WEIGHT, Builder, Layer, Plan, X, Y
from framefuse.engines.cudnn.network import AnchorHead, Attention, Conv, Head, Pool, cells
from framefuse.engines.cudnn.scaled_convolution import Scaled
from framefuse.kernels.boxes import head_cuda

GRAIN = 256
"""Bytes to which weights and scratch are aligned."""


class Weights:
    """Weights of all convolutions in one allocation, float16, batches and sizes share it.

    They are (out channels, rows, columns, in channels), of filters for each channel (rows, columns, channels).

    Args:
        convolutions: by name; two that have one name are the same.
    """

    def __init__(self, convolutions: list[Conv]) -> None:
        parts: list[Any] = []
        self.offsets: dict[str, tuple[int, int]] = {}
        size = 0
        for conv in convolutions:
            found = []
            order = (2, 3, 1, 0) if conv.depthwise else (0, 2, 3, 1)
            for value in (conv.weight.transpose(order), conv.bias):
                flat = np.ascontiguousarray(value, np.float16).reshape(-1)
                padded = np.zeros(-(-flat.nbytes // GRAIN) * GRAIN // 2, np.float16)
                padded[: len(flat)] = flat
                parts.append(padded)
                found.append(size)
                size += padded.nbytes
            self.offsets[conv.name] = (found[0], found[1])
        self.memory = device.cupy().asarray(np.concatenate(parts) if parts else np.zeros(1, np.float16))

    def addresses(self, conv: Conv) -> tuple[int, int]:
        """Of weights and bias."""
        start = int(self.memory.data.ptr)
        weight, bias = self.offsets[conv.name]
        return start + weight, start + bias


class Execution:
    """One compiled network with its memory.

    Attributes:
        arena: the planned memory, float16.
        results: of a head (batch, 4 + classes, anchors), with anchors (batch, anchors, 5 + classes), or the outputs in
            NCHW, float32; with `fold` and a head without anchors, its logits as views of the arena, float16: for each
            level distances and classes.
        layout: "yolov8_head" where `results` are such logits.
    """

    memory_format: Literal["nchw", "nhwc"] = "nhwc"
    capturable = True

    def __init__(
        self,
        compiled: Compiled,
        builder: Builder,
        weights: Weights,
        plan_of: Callable[[Layer], Plan],
        *,
        fold: bool = False,
    ) -> None:
        cp = device.cupy()
        self.compiled, self.builder, self.weights = compiled, builder, weights
        kernel.prepare(launch.SYMBOLS)
        self.arena = cp.zeros(compiled.memory.size, cp.float16)
        self.plans: dict[int, Plan] = {}
        for index, step in enumerate(compiled.placement.steps):
            if isinstance(step, Conv) and not step.depthwise:
                self.plans[index] = plan_of(Layer.of(compiled, step))
        self.scaled = Scaled(compiled)
        count = max(compiled.schedule.streams, default=0) + 1
        self.side = [cp.cuda.Stream(non_blocking=True) for _ in range(count - 1)]
        sizes = [1] * count
        for index, plan in self.plans.items():
            stream = compiled.schedule.streams[index]
            sizes[stream] = max(sizes[stream], plan.workspace)
        self.workspaces = [cp.empty(size, cp.uint8) for size in sizes]
        # The channels behind the image's own stay 0: whoever writes the input may leave them out.
        self.results: list[Any] = []
        self.layout: str | None = None
        head, batch = compiled.network.head, compiled.batch
        if isinstance(head, Head) and fold:
            self.layout = head_cuda.LAYOUT
            counts = (4 * head.bins, head.classes) * len(head.levels)
            self.results = [self._logits(name, count) for name, count in zip(head.values, counts, strict=True)]
        elif isinstance(head, AnchorHead):
            self.sizes = [cp.asarray(np.array(sizes, np.float32)) for sizes in head.sizes]
            self.results.append(cp.empty((batch, head.anchors, head.fields), cp.float32))
        elif head is not None:
            table = cells(head.levels, compiled.height, compiled.width).astype(np.float32)
            self.cells = cp.asarray(np.ascontiguousarray(table))
            self.levels = head_cuda.table_on_gpu(launch.head_of(compiled, self._base))
            self.results.append(cp.empty((batch, 4 + head.classes, head.anchors), cp.float32))
        else:
            for name in compiled.network.outputs:
                shape = (batch, compiled.network.channels(name), *compiled.view(name).shape[1:])
                self.results.append(cp.empty(shape, cp.float32))
        cp.cuda.get_current_stream().synchronize()

    @property
    def input(self) -> Any:
        """The network's input as an array (batch, height, width, 8), float16: what preprocessing writes."""
        name = self.compiled.network.input
        channels, height, width = self.compiled.view(name).shape
        start = self.compiled.address(name)
        count = self.compiled.batch * self.compiled.image(name)
        return self.arena[start : start + count].reshape(self.compiled.batch, height, width, channels)

    def pack(self, images: Any, stream: Any) -> None:
        """The input from (batch, 3, height, width) float32 or float16 on the GPU."""
        sample = {"float32": "f32", "float16": "f16"}[str(images.dtype)]
        launch.pack(
            self.compiled,
            images=int(images.data.ptr),
            channels=images.shape[1],
            sample=sample,
            arena=self._base,
            stream=stream.ptr,
        )

    def start(self, stream: Any, *, skip: Callable[[Any], bool] = lambda step: False) -> None:
        """Start every step: on `stream`, which work before and after is ordered with, and on streams of our own.

        It only launches, so it may be captured. `skip` leaves steps out, for measurements.
        """
        cp = device.cupy()
        order = self.compiled.schedule
        streams = [stream, *self.side]
        waited = {other for waits in order.waits for other in waits}
        ended: dict[int, Any] = {}
        begun = {0}
        fork = cp.cuda.Event(disable_timing=True)
        fork.record(stream)
        for index, step in enumerate(self.compiled.placement.steps):
            number = order.streams[index]
            current = streams[number]
            if number not in begun:
                current.wait_event(fork)
                begun.add(number)
            for other in order.waits[index]:
                current.wait_event(ended[other])
            if not skip(step):
                if isinstance(step, Conv) and step.depthwise:
                    launch.depthwise(self.compiled, step, *self.weights.addresses(step), self._base, current.ptr)
                elif isinstance(step, Conv):
                    self.convolve(index, step, number, current)
                elif isinstance(step, Attention):
                    launch.attention(self.compiled, step, self._base, current.ptr)
                elif isinstance(step, Pool):
                    launch.pool(self.compiled, step, self._base, current.ptr)
                else:
                    launch.upsample(self.compiled, step, self._base, current.ptr)
            if index in waited:
                ended[index] = cp.cuda.Event(disable_timing=True)
                ended[index].record(current)
        for number in begun - {0}:
            joined = cp.cuda.Event(disable_timing=True)
            joined.record(streams[number])
            stream.wait_event(joined)

    def step_by_step(self, stream: Any, after: Callable[[Any], None]) -> None:
        """Start every step on its own, and `after` with it: for looks at values between steps."""
        for step in self.compiled.placement.steps:
            self.start(stream, skip=lambda other, step=step: other is not step)  # type: ignore[misc]
            after(step)

    def values(self, name: str) -> Any:
        """A value of float16 in the arena, (batch, channels, rows, columns), until another takes its place."""
        cp, view = device.cupy(), self.compiled.view(name)
        strides = (self.compiled.image(name), 1, view.row, view.column)
        whole = self.arena[self.compiled.address(name) :]
        return cp.lib.stride_tricks.as_strided(
            whole, (self.compiled.batch, *view.shape), [count * launch.BYTES for count in strides]
        )

    def convolve(self, index: int, step: Conv, number: int, stream: Any) -> None:
        """Start one convolution on `stream`, with the scratch memory of stream `number`."""
        handle = self.builder.handle
        self.builder.cudnn.set_stream(handle=handle, stream=stream.ptr)
        pointers = self._pointers(step) | self.scaled.pointers(index)
        try:
            self.plans[index].run(handle, pointers, int(self.workspaces[number].data.ptr))
        finally:
            self.builder.rest()

    def finish(self, stream: Any) -> None:
        """Write `results` from the raw outputs; where they are raw, there is nothing to do."""
        if self.layout is not None:
            return
        if isinstance(self.compiled.network.head, AnchorHead):
            launch.decode_anchors(
                self.compiled,
                sizes=[int(table.data.ptr) for table in self.sizes],
                output=int(self.results[0].data.ptr),
                arena=self._base,
                stream=stream.ptr,
            )
            return
        if self.compiled.network.head is not None:
            launch.decode(
                self.compiled,
                cells=int(self.cells.data.ptr),
                levels=int(self.levels.data.ptr),
                output=int(self.results[0].data.ptr),
                stream=stream.ptr,
            )
            return
        for name, result in zip(self.compiled.network.outputs, self.results, strict=True):
            launch.unpack(self.compiled, name, output=int(result.data.ptr), arena=self._base, stream=stream.ptr)

    def _logits(self, name: str, channels: int) -> Any:
        """A value in the arena, (batch, rows, columns, channels), without padding."""
        compiled, view = self.compiled, self.compiled.view(name)
        start = compiled.memory.offsets[view.buffer]
        whole = self.arena[start : start + compiled.batch * compiled.image(name)]
        images = whole.reshape(compiled.batch, *view.shape[1:], view.column)
        return images[..., view.offset : view.offset + channels]

    @property
    def _base(self) -> int:
        return int(self.arena.data.ptr)

    def _pointers(self, conv: Conv) -> dict[int, int]:
        weight, bias = self.weights.addresses(conv)

        def at(name: str) -> int:
            return self._base + self.compiled.byte(name)

        pointers = {X: at(conv.x), WEIGHT: weight, BIAS: bias, Y: at(conv.y)}
        if conv.residual is not None:
            pointers[RESIDUAL] = at(conv.residual)
        return pointers


def capture(stream: Any, start: Callable[[], None]) -> Any:
    """What `start` launches on `stream`, as a CUDA graph of CuPy."""
    start()  # whatever is loaded at a first launch is loaded here
    stream.synchronize()
    stream.begin_capture()
    try:
        start()
    except BaseException:
        stream.end_capture()
        raise
    return stream.end_capture()
