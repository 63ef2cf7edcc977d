"""A compiled network on the GPU: its memory, weights and plans, and how to start it or capture it in a CUDA graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from framefuse.cuda import device
from framefuse.engines.cudnn import launch
from framefuse.engines.cudnn.compiled import Compiled
from framefuse.engines.cudnn.convolutions import RESIDUAL, Builder, Layer, Plan, X, Y
from framefuse.engines.cudnn.network import AnchorHead, Conv, Head, cells
from framefuse.engines.cudnn.weights import Scaled, Weights
from framefuse.engines.device_requests import DeviceExecution
from framefuse.kernels.boxes import head_cuda
from framefuse.kernels.network import call as network


class Execution(DeviceExecution):
    """One compiled network with its memory.

    Attributes:
        arena: the planned memory, float16.
        input: (batch, height, width, 8) float16, in the arena.
        results: float32: (batch, 4 + classes, anchors) of a head without anchors, (batch, anchors, 5 + classes) of one
            with anchors, else the outputs in NCHW. With `fold`, a head without anchors gives its logits as float16
            views of the arena: for each level distances and classes.
        layout: "yolov8_head" if `results` are such logits, else None.
    """

    def __init__(
        self, compiled: Compiled, builder: Builder, weights: Weights, plan_of: Callable[[Layer], Plan], *,
        fold: bool = False,
    ) -> None:  # fmt: skip
        cp = device.cupy()
        self.compiled, self.builder, self.weights = compiled, builder, weights
        network.prepare()
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
        head, batch, image = compiled.network.head, compiled.batch, compiled.network.input
        channels, height, width = compiled.view(image).shape
        whole = self.arena[compiled.address(image) :][: batch * compiled.image(image)]
        # The channels after the image's own stay 0, so writers of the input may leave them out.
        self.input = whole.reshape(batch, height, width, channels)
        self.results: list[Any] = []
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
            self.head = launch.head_of(compiled, self._base)
            self.levels = device.uploaded(self.head.table)
            self.results.append(cp.empty((batch, 4 + head.classes, head.anchors), cp.float32))
        else:
            for name in compiled.network.outputs:
                shape = (batch, compiled.network.channels(name), *compiled.view(name).shape[1:])
                self.results.append(cp.empty(shape, cp.float32))
        cp.cuda.get_current_stream().synchronize()

    def pack(self, images: Any, stream: Any) -> None:
        """Write the input from (batch, 3, height, width) float32 or float16 on the GPU."""
        y = launch.block(self.compiled, self.compiled.network.input, self._base)
        sample: Literal["f16", "f32"] = "f16" if images.dtype == np.float16 else "f32"
        network.pack(int(images.data.ptr), images.shape[1], sample, y, stream=stream.ptr)

    def start(self, stream: Any, *, skip: Callable[[Any], bool] = lambda step: False) -> None:
        """Start every step on `stream` and on side streams that are forked from it and joined to it again.

        This only launches, so it may be captured. `skip` omits steps, for measurements.
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
                    launch.depthwise(self.compiled, step, self.weights.pointers(step.name), self._base, current.ptr)
                elif isinstance(step, Conv):
                    self.convolve(index, step, number, current)
                else:
                    launch.other(self.compiled, step, self._base, current.ptr)
            if index in waited:
                ended[index] = cp.cuda.Event(disable_timing=True)
                ended[index].record(current)
        for number in begun - {0}:
            joined = cp.cuda.Event(disable_timing=True)
            joined.record(streams[number])
            stream.wait_event(joined)

    def step_by_step(self, stream: Any, after: Callable[[Any], None]) -> None:
        """Start the steps one by one and call `after` with each, to inspect values between steps."""
        for step in self.compiled.placement.steps:
            self.start(stream, skip=lambda other, step=step: other is not step)  # type: ignore[misc]
            after(step)

    def values(self, name: str) -> Any:
        """A float16 value in the arena, (batch, channels, rows, columns), until another value overwrites it."""
        cp, view = device.cupy(), self.compiled.view(name)
        strides = (self.compiled.image(name), 1, view.row, view.column)
        whole = self.arena[self.compiled.address(name) :]
        return cp.lib.stride_tricks.as_strided(
            whole, (self.compiled.batch, *view.shape), [count * launch.BYTES for count in strides]
        )

    def convolve(self, index: int, step: Conv, number: int, stream: Any) -> None:
        """Start a convolution on `stream` with the scratch memory of stream `number`."""
        handle = self.builder.handle
        self.builder.cudnn.set_stream(handle=handle, stream=stream.ptr)
        names = {X: step.x, Y: step.y} | ({} if step.residual is None else {RESIDUAL: step.residual})
        pointers = {uid: self._base + self.compiled.byte(name) for uid, name in names.items()}
        pointers |= self.weights.pointers(step.name) | self.scaled.pointers(index)
        try:
            self.plans[index].run(handle, pointers, int(self.workspaces[number].data.ptr))
        finally:
            self.builder.release_handle()

    def finish(self, stream: Any) -> None:
        """Start to write `results` from the raw outputs, unless they are logits in the arena."""
        if self.layout is not None:
            return
        if isinstance(self.compiled.network.head, AnchorHead):
            sizes = [int(table.data.ptr) for table in self.sizes]
            output = int(self.results[0].data.ptr)
            launch.decode_anchors(self.compiled, sizes=sizes, output=output, arena=self._base, stream=stream.ptr)
        elif self.compiled.network.head is not None:
            levels, cells, output = (int(at.data.ptr) for at in (self.levels, self.cells, self.results[0]))
            network.decode(self.head, levels=levels, cells=cells, output=output, stream=stream.ptr)
        else:
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
