"""The compiler: ONNX file -> scheduled steps over planned memory. Plain Python, needs no GPU.

Values are placed in buffers: concatenation inputs are written to slices, and splits are views, without copies. A buffer
is a dense NHWC feature map, a value a view of one, whose channels may be part of a wider buffer. Rows and images are
contiguous; otherwise cuDNN falls back to kernels that are 30 times slower.

Streams run concurrently. So two buffers may share memory only if the order that streams and waits impose puts every
step that touches the one before every step that touches the other.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

from framefuse.engines.backend import Doubt
from framefuse.engines.cudnn import network as ir
from framefuse.engines.cudnn.array_program import counted
from framefuse.engines.cudnn.importer import import_network
from framefuse.engines.cudnn.network import (
    BYTES,
    ComputeOp,
    Concat,
    Conv,
    Flatten,
    Network,
    Shape,
    Split,
    Type,
    Upsample,
)
from framefuse.engines.cudnn.rewrites import rewrite
from framefuse.errors import FramefuseError, ModelError

ALIGNMENT = 128
"""Elements; 256 bytes of float16, 512 of float32."""


@dataclass(frozen=True)
class View:
    """A value in a buffer. Element (c, y, x) of image b is at `b * image + offset + y * row + x * column + c`."""

    buffer: int
    offset: int
    shape: Shape
    row: int
    column: int

    def channels(self, start: int, count: int) -> View:
        return replace(self, offset=self.offset + start, shape=(count, *self.shape[1:]))


@dataclass
class Placement:
    """Compute operations in order, and where their values lie."""

    steps: list[ComputeOp]
    views: dict[str, View]
    sizes: list[int] = field(default_factory=list)
    """Elements of each buffer, for one image."""
    producers: dict[str, frozenset[int]] = field(default_factory=dict)
    """Steps that write a value or a part of it; empty for the network's input."""


def place(network: Network) -> Placement:
    """Place every value. A value that is input to two concatenations is copied for the second of them."""
    views: dict[str, View] = {}
    sizes: list[int] = []
    copies: dict[int, list[Upsample]] = defaultdict(list)
    """By the index of the concatenation that they precede."""

    def new_buffer(name: str) -> None:
        channels, height, width = network.shapes[name]
        views[name] = View(len(sizes), 0, network.shapes[name], width * channels, channels)
        sizes.append(channels * height * width)

    parts = {y for op in network.operations if isinstance(op, Split | ir.Subsample) for y in op.writes}
    # In reverse order, so that the consumer that decides where a value lies comes before its producer.
    for index in range(len(network.operations) - 1, -1, -1):
        op = network.operations[index]
        assert not isinstance(op, Flatten)
        if isinstance(op, Split | ir.Pairs | ir.Subsample):
            continue  # its outputs are views of its input
        for name in op.writes:
            if name not in views:
                new_buffer(name)
        if isinstance(op, Concat):
            for x, start, count in network.spans(op.xs):
                target = views[op.y].channels(start, count)
                if x in views or x in parts or x == network.input:
                    copy = Upsample(f"copy {x}", x, f"{x} in {op.y} at {start}", 1)
                    views[copy.y] = target
                    copies[index].append(copy)
                else:
                    views[x] = target
    if network.input not in views:
        new_buffer(network.input)

    placement = Placement([], views, sizes, {network.input: frozenset()})
    producers = placement.producers
    for index, op in enumerate(network.operations):
        for copy in copies[index]:
            producers[copy.y] = frozenset({len(placement.steps)})
            placement.steps.append(copy)
        if isinstance(op, Concat):
            written = [*op.xs, *(copy.y for copy in copies[index])]
            producers[op.y] = frozenset[int]().union(*(producers[name] for name in written))
        elif isinstance(op, Split):
            for y, start, count in network.spans(op.ys):
                views[y] = views[op.x].channels(start, count)
                producers[y] = producers[op.x]
        elif isinstance(op, ir.Pairs | ir.Subsample):
            whole, (down, across) = views[op.x], op.stride
            views[op.y] = replace(whole, shape=network.shapes[op.y], row=down * whole.row, column=across * whole.column)
            producers[op.y] = producers[op.x]
        elif not isinstance(op, Flatten):
            producers |= dict.fromkeys(op.writes, frozenset({len(placement.steps)}))
            placement.steps.append(op)
    return placement


@dataclass(frozen=True)
class Schedule:
    """Order of the steps."""

    streams: tuple[int, ...]
    """Stream of each step; the graph begins and ends on stream 0."""
    waits: tuple[tuple[int, ...], ...]
    """Steps of other streams that each step waits for."""
    before: tuple[int, ...]
    """For each step the bit set of all steps that have finished when it starts."""

    def largest(self, sizes: Mapping[int, int]) -> list[int]:
        """The largest size of each stream, at least 1, where `sizes` has those of some steps."""
        found = [1] * (max(self.streams, default=0) + 1)
        for step, size in sizes.items():
            found[self.streams[step]] = max(found[self.streams[step]], size)
        return found


@dataclass(frozen=True)
class Memory:
    """Offsets of the buffers in one arena, for a batch."""

    offsets: tuple[int, ...]
    """Of each buffer, in elements."""
    size: int
    """Of the arena, in elements."""


def schedule(placement: Placement, streams: int) -> Schedule:
    """Assign steps to at most `streams` streams, so that independent steps run concurrently.

    A step takes the stream of a dependency if that is the stream's last step, else a stream whose last step has
    finished by then, else a new stream, else the stream that was used least recently. Of several dependencies it takes
    the one before which most steps have to run, which probably ends last.
    """
    needs = [
        sorted({producer for name in step.reads for producer in placement.producers[name]}) for step in placement.steps
    ]
    before: list[int] = []
    chosen: list[int] = []
    waits: list[tuple[int, ...]] = []
    last: list[int] = []
    """The last step of each stream so far."""
    for index, needed in enumerate(needs):
        ended = 0
        for other in needed:
            ended |= before[other] | 1 << other
        here = [stream for stream, end in enumerate(last) if end in needed]
        free = [stream for stream, end in enumerate(last) if ended >> end & 1]
        if here:
            stream = max(here, key=lambda stream: (before[last[stream]].bit_count(), last[stream]))
        elif free:
            stream = free[0]
        elif len(last) < streams:
            stream = len(last)
            last.append(-1)
        else:
            stream = min(range(len(last)), key=last.__getitem__)
        covered = before[last[stream]] | 1 << last[stream] if last[stream] >= 0 else 0
        ended |= covered
        waited: list[int] = []
        for other in reversed(needed):
            if not covered >> other & 1:
                waited.append(other)
                covered |= before[other] | 1 << other
        last[stream] = index
        chosen.append(stream)
        waits.append(tuple(waited))
        before.append(ended)
    return Schedule(tuple(chosen), tuple(waits), tuple(before))


def plan_memory(placement: Placement, order: Schedule, batch: int, outputs: tuple[str, ...], first: str) -> Memory:
    """Plan the arena of a batch: buffers overlap only if their lifetimes do not. Largest first, at the lowest offset.

    Args:
        outputs: values that are read after the last step; their memory is not reused.
        first: the network's input, which is written before the first step. Its memory is not reused either: a run
            that is repeated finds it as it was, and the channels after an image's own stay 0.
    """
    count = len(placement.sizes)
    touched = [0] * count
    for index, step in enumerate(placement.steps):
        for name in (*step.reads, *step.writes):
            touched[placement.views[name].buffer] |= 1 << index
    live_at_end = {placement.views[name].buffer for name in outputs}
    live_at_start = placement.views[first].buffer

    def earlier(one: int, other: int) -> bool:
        """Whether every step that touches `one` has finished when the first that touches `other` starts."""
        if one in live_at_end or live_at_start in (one, other):
            return False
        common = -1
        for index in range(len(placement.steps)):
            if touched[other] >> index & 1:
                common &= order.before[index]
        return touched[one] & ~common == 0

    offsets = [-1] * count
    sizes = [-(-size * batch // ALIGNMENT) * ALIGNMENT for size in placement.sizes]
    total = 0
    for buffer in sorted(range(count), key=lambda candidate: (-sizes[candidate], candidate)):
        taken = sorted(
            (offsets[other], offsets[other] + sizes[other])
            for other in range(count)
            if offsets[other] >= 0 and not earlier(buffer, other) and not earlier(other, buffer)
        )
        start = 0
        for begin, end in taken:
            if start + sizes[buffer] <= begin:
                break
            start = max(start, end)
        offsets[buffer] = start
        total = max(total, start + sizes[buffer])
    return Memory(tuple(offsets), total)


@dataclass(frozen=True)
class Compiled:
    """A network compiled for one batch and input size."""

    network: Network
    placement: Placement
    schedule: Schedule
    memory: Memory
    batch: int
    height: int
    width: int
    types: tuple[Type, ...] = ()
    """Of each buffer; empty: `wide` everywhere. An 8-bit buffer uses the first half of its memory."""
    scales: tuple[float, ...] = ()
    """Of each buffer: value = 8-bit number * scale."""
    wide: Type = "fp16"
    """Of buffers that are not 8-bit: fp16, fp32 or tf32; only beside fp16 there are `types`."""

    @property
    def itemsize(self) -> int:
        """Bytes of an element of the arena."""
        return BYTES[self.wide]

    def type(self, name: str) -> Type:
        return self.types[self.view(name).buffer] if self.types else self.wide

    def scale(self, name: str) -> float:
        return self.scales[self.view(name).buffer]

    def byte(self, name: str) -> int:
        """Offset of a value in the arena, in bytes."""
        view = self.view(name)
        return self.memory.offsets[view.buffer] * self.itemsize + view.offset * BYTES[self.type(name)]

    def view(self, name: str) -> View:
        return self.placement.views[name]

    def image(self, name: str) -> int:
        """Elements from one image of a batch to the next."""
        return self.placement.sizes[self.view(name).buffer]


def compile_network(path: Path, batch: int, height: int, width: int, *, streams: int = 4) -> Compiled:
    """Import, rewrite and plan a model.

    Args:
        streams: steps that may run concurrently.

    Raises:
        ModelError: as `import_network`, or the channels cannot be padded.
    """
    try:
        status = path.stat()
    except OSError:
        return plan(rewrite(import_network(path, height, width, batch)), batch, height, width, streams)  # says why
    return _compiled(path, status.st_mtime_ns, status.st_size, batch, height, width, streams)


@lru_cache(maxsize=2)
def _compiled(path: Path, changed: int, size: int, batch: int, height: int, width: int, streams: int) -> Compiled:
    """The choice of the engine, the memory plan and each execution ask for the same network."""
    return plan(rewrite(import_network(path, height, width, batch)), batch, height, width, streams)


def forget() -> None:
    """Free the networks that `compile_network` keeps."""
    _compiled.cache_clear()


def check_wide(network: Network, wide: Type) -> None:
    """
    Raises:
        ModelError: a convolution has no kernel in this type.
    """
    for op in network.operations:
        if wide == "fp32" and isinstance(op, Conv) and op.groups > 1 and not op.depthwise:
            message = f"engine cudnn has no kernel in fp32 for {op.name}, a convolution of {op.groups} groups"
            raise ModelError(message, remedy="use --precision tf32, or another engine")


def why_not(path: Path, precision: str, height: int, width: int) -> str | None:
    """Why the engine cannot run a model, or why another may be better."""
    try:
        network = compile_network(path, 1, height, width).network
        if precision == "fp32":
            check_wide(network, "fp32")
            return Doubt("its kernels for fp32 are made to be exact and to start at once, not to be fast")
    except FramefuseError as error:
        return error.message
    kinds = [call.kind for step in network.general for call in step.program.calls]
    return Doubt(f"it would run {len(kinds)} nodes without own kernels ({counted(kinds, 4)}, ...)") if kinds else None


def plan(network: Network, batch: int, height: int, width: int, streams: int) -> Compiled:
    """Placement, schedule and memory plan of a rewritten network."""
    placement = place(network)
    order = schedule(placement, streams)
    memory = plan_memory(placement, order, batch, network.outputs, network.input)
    return Compiled(network, placement, order, memory, batch, height, width)
