"""A compiled network on the GPU: its memory, weights and plans, and how to start it or capture it in a CUDA graph.

Weights are in float16, in float32 if the network is, and quantised with their scales for 8-bit layers. 8-bit numbers
are INT8, and FP8 as E4M3 (4 bits of exponent, 3 of mantissa, no infinity; "FP8 formats for deep learning", Micikevicius
et al., 2022). Conversion saturates.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from framefuse.cuda import device
from framefuse.engines.cudnn import convolutions
from framefuse.engines.cudnn.arrays import ArrayStep
from framefuse.engines.cudnn.compiled import Compiled
from framefuse.engines.cudnn.convolutions import BIAS, OUTPUT_SCALE, RESIDUAL, RESIDUAL_SCALE, SCALE, WEIGHT, X, Y
from framefuse.engines.cudnn.network import (
    BYTES,
    LOW_PRECISIONS,
    AnchorHead,
    Attention,
    Conv,
    General,
    Head,
    Pool,
    Type,
    Upsample,
    cells,
)
from framefuse.engines.requests import CHANNELS, DeviceExecution
from framefuse.kernels.boxes import head_cuda
from framefuse.kernels.network import call as network

Array = NDArray[Any]
LARGEST: dict[Type, float] = {"fp8": 448.0, "int8": 127.0}
SMALLEST_EXPONENT = -6
FORMATS: dict[Type, Any] = {"fp8": ml_dtypes.float8_e4m3fn, "int8": np.int8}
ALIGNMENT = 256
"""Bytes."""


def encode(values: Array, kind: Type) -> NDArray[np.uint8]:
    """The nearest 8-bit numbers as bytes; ties go to even."""
    nearest: Array = _nearest(np.asarray(values, np.float32), kind, np)
    return nearest.astype(FORMATS[kind]).view(np.uint8)


def rounded(values: Any, kind: Type, scale: float | Array, xp: Any = np) -> Any:
    """Values quantised with `scale` and dequantised, in float32; `xp` is NumPy or CuPy."""
    return _nearest(values.astype(np.float32) / np.float32(scale), kind, xp) * np.float32(scale)


def weight_scales(weight: Array, kind: Type) -> NDArray[np.float32]:
    """Scale per output channel that maps its largest weight to the largest 8-bit number."""
    size = np.abs(weight).reshape(len(weight), -1).max(1)
    return np.where(size > 0, size / LARGEST[kind], 1).astype(np.float32)


def _nearest(numbers: Any, kind: Type, xp: Any) -> Any:
    """float32 numbers rounded to 8-bit numbers, in float32."""
    if kind == "int8":
        return xp.clip(xp.rint(numbers), -128, 127)
    numbers = xp.clip(numbers, -LARGEST[kind], LARGEST[kind])
    step = xp.ldexp(np.float32(1), xp.maximum(xp.frexp(numbers)[1] - 1, SMALLEST_EXPONENT) - 3)
    return xp.rint(numbers / step) * step


def parameters(compiled: Compiled, conv: Conv) -> dict[int, NDArray[Any]]:
    """Tensors by their unique id in cuDNN's graph; empty if the layer has no 8-bit numbers."""
    found: dict[int, NDArray[Any]] = {}
    kind = compiled.type(conv.x)
    if kind in LOW_PRECISIONS:
        scales = weight_scales(conv.weight, kind)
        found[WEIGHT] = encode(conv.weight / scales[:, None, None, None], kind).transpose(0, 2, 3, 1)
        found[SCALE] = scales * np.float32(compiled.scale(conv.x))
        found[BIAS] = conv.bias.astype(np.float32)
    if conv.residual is not None and compiled.type(conv.residual) in LOW_PRECISIONS:
        found[RESIDUAL_SCALE] = np.array([compiled.scale(conv.residual)], np.float32)
    if compiled.type(conv.y) in LOW_PRECISIONS:
        found[OUTPUT_SCALE] = np.array([1 / compiled.scale(conv.y)], np.float32)
    return found


class Packed:
    """Arrays in one allocation on the GPU.

    Args:
        arrays: by owner, then by unique id in cuDNN's graphs.
    """

    def __init__(self, arrays: Mapping[Hashable, Mapping[int, NDArray[Any]]]) -> None:
        parts: list[bytes] = []
        self._offsets: dict[Hashable, dict[int, int]] = {}
        size = 0
        for owner, tensors in arrays.items():
            self._offsets[owner] = {}
            for uid, values in tensors.items():
                content = np.ascontiguousarray(values).tobytes()
                self._offsets[owner][uid] = size
                parts.append(content.ljust(-(-len(content) // ALIGNMENT) * ALIGNMENT, b"\0"))
                size += len(parts[-1])
        self._memory = device.cupy().asarray(np.frombuffer(b"".join(parts) or b"\0", np.uint8))

    def pointers(self, owner: Hashable) -> dict[int, int]:
        """Addresses of the owner's arrays, by unique id; empty if it has none."""
        start = int(self._memory.data.ptr)
        return {uid: start + offset for uid, offset in self._offsets.get(owner, {}).items()}


class Weights(Packed):
    """Weights and biases of all convolutions by name, which batches and sizes share.

    Their layout is (out channels, rows, columns, in channels), that of depthwise filters (rows, columns, channels).

    Args:
        dtype: float16, or float32 for a network of that type.
    """

    def __init__(self, convs: Sequence[Conv], dtype: Any = np.float16) -> None:
        arrays: dict[Hashable, dict[int, NDArray[Any]]] = {}
        for conv in convs:
            order = (2, 3, 1, 0) if conv.depthwise else (0, 2, 3, 1)
            found = {WEIGHT: conv.weight.transpose(order), BIAS: conv.bias}
            arrays[conv.name] = {uid: values.astype(dtype) for uid, values in found.items()}
        super().__init__(arrays)


class Kernels(NamedTuple):
    """What runs the convolutions of an execution."""

    plans: Mapping[int, convolutions.Plan]
    """By the number of the step."""
    workspaces: Sequence[Any]
    """Scratch memory of each stream."""


class Execution(DeviceExecution):
    """One compiled network with its memory.

    Attributes:
        arena: the planned memory, float16, or float32 if `Compiled.wide` says so.
        input: (batch, height, width, 4 or 8) float16, in the arena. Of a network in float32, (batch, 3, height, width)
            beside it, which `start` packs.
        results: float32: (batch, 4 + classes, anchors) of a head without anchors, (batch, anchors, 5 + classes) of one
            with anchors, else the outputs in NCHW. With `fold`, a head without anchors gives its logits as float16
            views of the arena: for each level distances and classes.
        layout: "yolov8_head" if `results` are such logits, else None.
    """

    def __init__(
        self, compiled: Compiled, builder: convolutions.Builder, weights: Weights,
        plan_of: Callable[[convolutions.Layer], convolutions.Plan], *, fold: bool = False,
    ) -> None:  # fmt: skip
        cp = device.cupy()
        self.compiled, self.builder, self.weights = compiled, builder, weights
        self._dtype = np.float16 if compiled.wide == "fp16" else np.float32
        self._kind: Literal["f16", "f32"] = "f16" if compiled.wide == "fp16" else "f32"
        self.arena = cp.zeros(compiled.memory.size, self._dtype)
        convs = {index: step for index, step in enumerate(compiled.placement.steps) if isinstance(step, Conv)}
        self.scaled = Packed({index: parameters(compiled, conv) for index, conv in convs.items()})
        self.kernels = self._kernels(plan_of)
        self._earlier: list[Kernels] = []
        """Their workspaces stay, because graphs that were captured with them may run."""
        self.side = [cp.cuda.Stream(non_blocking=True) for _ in self.kernels.workspaces[1:]]
        head, tail, batch = compiled.network.head, compiled.network.tail, compiled.batch
        image = compiled.network.input
        if compiled.wide == "fp16":
            # The channels after the image's own stay 0, so writers of the input may leave them out.
            self.input = self._channels(image, compiled.view(image).shape[0])
        else:
            self.memory_format = "nchw"  # no kernel writes float32 images with further channels
            self.input = cp.zeros((batch, CHANNELS, compiled.height, compiled.width), np.float32)
        self.results: list[Any] = []
        if isinstance(head, Head) and fold:
            self.layout = head_cuda.LAYOUT
            counts = (4 * head.bins, head.classes) * len(head.levels)
            self.results = [self._channels(name, count) for name, count in zip(head.values, counts, strict=True)]
        elif isinstance(head, AnchorHead):
            self.sizes = [cp.asarray(np.array(sizes, np.float32)) for sizes in head.sizes]
            self.results.append(cp.empty((batch, head.anchors, head.fields), cp.float32))
        elif tail is not None:
            given = tail, batch, self._read(tail), lambda number, *kind: cp.empty(*kind)
            self.tail = ArrayStep(*given, precision=compiled.wide)
            self.results = self.tail.made
        elif head is not None:
            table = cells(head.levels, compiled.height, compiled.width).astype(np.float32)
            self.cells = cp.asarray(np.ascontiguousarray(table))
            self.head = head_of(compiled, self._base)
            self.levels = device.uploaded(self.head.table)
            self.results.append(cp.empty((batch, 4 + head.classes, head.anchors), cp.float32))
        else:
            for name in compiled.network.outputs:
                shape = (batch, compiled.network.channels(name), *compiled.view(name).shape[1:])
                self.results.append(cp.empty(shape, cp.float32))
        self.general = {
            index: ArrayStep(
                step,
                batch,
                self._read(step),
                lambda number, *kind, ys=step.ys: self.values(ys[number]),
                precision=compiled.wide,
            )
            for index, step in enumerate(compiled.placement.steps)
            if isinstance(step, General)
        }
        cp.cuda.get_current_stream().synchronize()

    def _kernels(self, plan_of: Callable[[convolutions.Layer], convolutions.Plan]) -> Kernels:
        plans = {index: plan_of(layer) for index, layer in convolutions.Layer.all_of(self.compiled).items()}
        network.prepare(self._kind, {plan.tile for plan in plans.values() if isinstance(plan, convolutions.TensorPlan)})
        sizes = self.compiled.schedule.largest({index: plan.workspace for index, plan in plans.items()})
        return Kernels(plans, [device.cupy().empty(size, np.uint8) for size in sizes])

    def replace_kernels(self, plan_of: Callable[[convolutions.Layer], convolutions.Plan]) -> None:
        """Take other kernels from now on. Any thread may call it: a `start` at work keeps the kernels it began with.

        Raises:
            OutOfMemoryError: the GPU has no room for their workspaces; nothing has changed.
        """
        found = self._kernels(plan_of)
        if found.plans != self.kernels.plans:
            self._earlier.append(self.kernels)
            self.kernels = found
            self.version += 1

    def pack(self, images: Any, stream: Any) -> None:
        """Write the input from (batch, 3, height, width) float32 or float16 on the GPU."""
        y = block(self.compiled, self.compiled.network.input, self._base)
        sample: Literal["f16", "f32"] = "f16" if images.dtype == np.float16 else "f32"
        network.pack(int(images.data.ptr), images.shape[1], sample, y, stream=stream.ptr)

    def start(self, stream: Any, *, skip: Callable[[Any], bool] = lambda step: False) -> None:
        """Start every step on `stream` and on side streams that are forked from it and joined to it again.

        This only launches, so it may be captured. `skip` omits steps, for measurements.
        """
        cp, kernels = device.cupy(), self.kernels
        order = self.compiled.schedule
        if self.memory_format == "nchw":
            self.pack(self.input, stream)
        streams = [stream, *self.side]
        waited = {other for waits in order.waits for other in waits}
        ended: dict[int, Any] = {}
        begun, latest = {0}, dict[int, int]()
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
                if isinstance(step, Conv) and kernels.plans.get(index, convolutions.OWN) is convolutions.OWN:
                    launch_filter(self.compiled, step, self.weights.pointers(step.name), self._base, current.ptr)
                elif isinstance(step, Conv):
                    plan, workspace = kernels.plans[index], kernels.workspaces[number]
                    if self._reads_too_early(index, kernels.plans, latest.get(number)):
                        workspace.data.memset_async(0, 1, current)  # which begins when all before it has ended
                    self.convolve(plan, index, step, workspace, current)
                elif isinstance(step, General):
                    self.general[index].run(current)
                else:
                    launch_other(self.compiled, step, self._base, current.ptr)
                latest[number] = index
            if index in waited:
                ended[index] = cp.cuda.Event(disable_timing=True)
                ended[index].record(current)
        for number in begun - {0}:
            joined = cp.cuda.Event(disable_timing=True)
            joined.record(streams[number])
            stream.wait_event(joined)

    def _reads_too_early(self, index: int, plans: Mapping[int, convolutions.Plan], before: int | None) -> bool:
        """Whether a kernel of cuDNN may read its residual before that is written. It begins when the kernel before lets
        it, which ours do early, and waits for the end of that with what it multiplies, but not with the residual.

        Args:
            index: of a convolution.
            plans: of all, by their indices.
            before: the last step that was started on the same stream.
        """
        steps, streams = self.compiled.placement.steps, self.compiled.schedule.streams
        step = steps[index]
        assert isinstance(step, Conv)
        if step.residual is None or isinstance(plans[index], convolutions.TensorPlan):
            return False
        return any(
            (other == before or streams[other] != streams[index])
            and (isinstance(steps[other], General) or isinstance(plans.get(other), convolutions.TensorPlan))
            for other in self.compiled.placement.producers[step.residual]
        )

    def step_by_step(self, stream: Any, after: Callable[[Any], None]) -> None:
        """Start the steps one by one and call `after` with each, to inspect values between steps."""
        for step in self.compiled.placement.steps:
            self.start(stream, skip=lambda other, step=step: other is not step)  # type: ignore[misc]
            after(step)

    def values(self, name: str) -> Any:
        """A value in the arena, (batch, channels, rows, columns), until another overwrites it; it is not 8-bit."""
        return self._channels(name, self.compiled.view(name).shape[0]).transpose(0, 3, 1, 2)

    def convolve(self, plan: convolutions.Plan, index: int, step: Conv, workspace: Any, stream: Any) -> None:
        """Start a convolution, with its activation and residual, on `stream`."""
        names = {X: step.x, Y: step.y} | ({} if step.residual is None else {RESIDUAL: step.residual})
        pointers = {uid: self._base + self.compiled.byte(name) for uid, name in names.items()}
        pointers |= self.weights.pointers(step.name) | self.scaled.pointers(index)
        self.builder.launch(plan, pointers, workspace, stream)

    def finish(self, stream: Any) -> None:
        """Start to write `results` from the raw outputs, unless they are logits in the arena."""
        if self.layout is not None:
            return
        if isinstance(self.compiled.network.head, AnchorHead):
            self._decode_anchors(self.compiled.network.head, stream)
        elif self.compiled.network.tail is not None:
            self.tail.run(stream)
        elif self.compiled.network.head is not None:
            levels, cells, output = (int(at.data.ptr) for at in (self.levels, self.cells, self.results[0]))
            network.decode(self.head, levels=levels, cells=cells, output=output, stream=stream.ptr, kind=self._kind)
        else:
            for name, result in zip(self.compiled.network.outputs, self.results, strict=True):
                unpack(self.compiled, name, output=int(result.data.ptr), arena=self._base, stream=stream.ptr)

    def _decode_anchors(self, head: AnchorHead, stream: Any) -> None:
        compiled, first = self.compiled, 0
        for name, anchors, table, (rows, columns) in zip(head.rows, head.sizes, self.sizes, head.levels, strict=True):
            x = block(compiled, name, self._base)._replace(height=rows, width=columns)
            at = int(table.data.ptr), int(self.results[0].data.ptr)
            places = {"per_cell": len(anchors), "fields": head.fields, "first": first, "anchors": head.anchors}
            stride = (compiled.width / columns, compiled.height / rows)
            network.decode_anchors(x, *at, **places, stride=stride, stream=stream.ptr)
            first += len(anchors) * rows * columns

    def _read(self, step: General) -> dict[str, tuple[Any, list[int]]]:
        """The values that a step reads, (batch, channels, rows, columns), with the channels that do not pad them."""
        return {name: (self.values(name), self.compiled.network.kept(name)) for name in step.xs}

    def _channels(self, name: str, channels: int) -> Any:
        """The first channels of a value in the arena, (batch, rows, columns, channels)."""
        compiled, view = self.compiled, self.compiled.view(name)
        start = compiled.memory.offsets[view.buffer]
        whole = self.arena[start : start + compiled.batch * compiled.image(name)]
        images = whole.reshape(compiled.batch, *view.shape[1:], view.column)
        return images[..., view.offset : view.offset + channels]

    @property
    def _base(self) -> int:
        return int(self.arena.data.ptr)


def block(compiled: Compiled, name: str, arena: int) -> network.Block:
    """Where a value lies, with the channels that pad it."""
    view = compiled.view(name)
    itemsize = BYTES[compiled.type(name)]
    address, image = arena + compiled.byte(name), compiled.image(name)
    return network.Block(address, compiled.batch, *view.shape, image, view.row, view.column, itemsize)


def launch_filter(compiled: Compiled, step: Conv, weights: Mapping[int, int], arena: int, stream: int) -> None:
    """A convolution in our kernel. `weights` are the addresses of WEIGHT and BIAS, as `Weights` has them."""
    x, y = (block(compiled, name, arena) for name in (step.x, step.y))
    residual = None if step.residual is None else block(compiled, step.residual, arena)
    rows, columns = step.weight.shape[2:]
    window = network.Window((rows, columns), step.stride, step.pads[:2], step.dilation)
    given = x, weights[WEIGHT], weights[BIAS], y, window
    if step.depthwise:
        network.depthwise(*given, activation=step.activation, residual=residual, stream=stream)
    else:
        network.convolve(*given, activation=step.activation, residual=residual, last=step.last, stream=stream)


def launch_other(compiled: Compiled, step: Attention | Pool | Upsample, arena: int, stream: int) -> None:
    """What is no convolution."""
    x, *ys = (block(compiled, name, arena) for name in (*step.reads, *step.writes))
    if isinstance(step, Attention):
        sizes = {"heads": step.heads, "keys": step.keys, "values": step.values}
        network.attention(x, ys[0], **sizes, scale=step.scale, stream=stream)
    elif isinstance(step, Pool):
        network.pool(x, ys, step.kernel, stream=stream)
    else:
        network.upsample(x, ys[0], step.scale, stream=stream)


def unpack(compiled: Compiled, name: str, *, output: int, arena: int, stream: int) -> None:
    """A value as dense (batch, channels, height, width) float32 at address `output`, without padding."""
    x = block(compiled, name, arena)._replace(channels=compiled.network.channels(name))
    network.unpack(x, output, stream=stream)


def head_of(compiled: Compiled, arena: int) -> head_cuda.Head:
    """Where the logits of the network's head lie."""
    head = compiled.network.head
    assert isinstance(head, Head)

    def places(names: tuple[str, ...]) -> tuple[head_cuda.Place, ...]:
        blocks = (block(compiled, name, arena) for name in names)
        return tuple(head_cuda.Place(one.address, one.image, one.column) for one in blocks)

    return head_cuda.Head(places(head.sides), places(head.scores), head.levels, compiled.batch, head.bins, head.classes)
