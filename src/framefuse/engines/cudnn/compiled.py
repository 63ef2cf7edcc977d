"""The compiler: ONNX file -> scheduled steps over planned memory. Plain Python, needs no GPU.

Rewrites that keep what a network computes come first: convolutions merged that are added up or read the same, channels
padded, no split before a concat, an image of few channels read two pixels at a time.

Values are placed in buffers: concatenation inputs are written to slices, and splits are views, without copies. A buffer
is a dense NHWC feature map, a value a view of one, whose channels may be part of a wider buffer. Rows and images are
contiguous; otherwise cuDNN falls back to kernels that are 30 times slower.

Streams run concurrently. So two buffers may share memory only if the order that streams and waits impose puts every
step that touches the one before every step that touches the other.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from framefuse.engines.backend import Doubt
from framefuse.engines.cudnn import network as ir
from framefuse.engines.cudnn.array_program import counted
from framefuse.engines.cudnn.import_state import CHANNEL_MULTIPLE
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
from framefuse.errors import FramefuseError, ModelError

PAIRED = 4
"""Channels of a pixel of an image that is read in pairs."""
ALIGNMENT = 128
"""Elements; 256 bytes of float16, 512 of float32."""


def rewrite(network: Network) -> Network:
    """Apply all rewrites in order."""
    return remove_split_concat(pad_channels(pair_pixels(merge_siblings(merge_sums(network)))))


def merge_sums(network: Network) -> Network:
    """Merge convolutions whose results are added up, which saves writing one result and reading it again.

    Those of one input become one whose filters are the sums, as in RepVGG. Those of 1x1 become one of the concatenation
    of their inputs, as where a stage of a ResNet begins.
    """
    uses = Counter(name for op in network.operations for name in op.reads) + Counter(network.outputs)
    operations, shapes, made = list[ir.Operation](), dict(network.shapes), dict[str, Conv]()
    elsewhere = {network.input}  # values whose place is that of others: a concatenation copies them
    for op in network.operations:
        elsewhere.update(op.xs if isinstance(op, Concat) else op.ys if isinstance(op, Split) else ())
    for op in network.operations:
        steps: list[ir.Operation] = [op]
        if isinstance(op, Conv):
            other = made.get(op.residual or "")
            plain = other is not None and other.residual is None and other.activation == op.activation == "none"
            if other is not None and plain and uses[other.y] == 1 and op.groups == other.groups == 1:
                merged = replace(op, name=f"{other.name} + {op.name}", bias=other.bias + op.bias,
                                 activation=op.last, residual=None, last="none")  # fmt: skip
                if changed := _sum_of_one_input(merged, other) or _sum_of_two_inputs(merged, other, shapes, elsewhere):
                    operations.remove(other)
                    steps = changed
            made[op.y] = next(step for step in steps if isinstance(step, Conv))
        operations += steps
    return replace(network, operations=operations, shapes=shapes)


def _sum_of_one_input(op: Conv, other: Conv) -> list[ir.Operation]:
    """A convolution like `op`, with the sum of the filters of both; empty if their windows do not fit."""
    if (op.x, op.stride) != (other.x, other.stride):
        return []
    for inner, outer in ((other, op), (op, other)):
        rows, columns = (_places(inner, outer, axis) for axis in (0, 1))
        if rows and columns:
            weight = outer.weight.copy()
            weight[np.ix_(range(len(weight)), range(weight.shape[1]), rows, columns)] += inner.weight
            return [replace(op, weight=weight, pads=outer.pads, dilation=outer.dilation)]
    return []


def _places(inner: Conv, outer: Conv, axis: int) -> list[int]:
    """Where the filters of `inner` lie in those of `outer` along an axis; empty if they do not."""
    size, step = outer.weight.shape[2 + axis], outer.dilation[axis]
    start = outer.pads[axis] - inner.pads[axis]
    found = [divmod(start + at * inner.dilation[axis], step) for at in range(inner.weight.shape[2 + axis])]
    return [at for at, _ in found] if all(0 <= at < size and not rest for at, rest in found) else []


def _sum_of_two_inputs(op: Conv, other: Conv, shapes: dict[str, Shape], elsewhere: set[str]) -> list[ir.Operation]:
    """Operations that end in a convolution like `op`, of the inputs of both; empty if that is not of 1x1, or takes
    longer.

    Args:
        shapes: receives those of new values.
        elsewhere: values that a concatenation copies; receives the inputs.
    """
    pair, far = (other, op), [conv for conv in (other, op) if conv.stride != (1, 1)]
    copied = sum(shapes[conv.x][0] for conv in pair if conv in far or conv.x in elsewhere)
    if any(conv.weight.shape[2:] != (1, 1) or any(conv.pads) for conv in pair) or copied >= len(op.weight):
        return []  # instead of what is copied, a result is written and read
    names = [f"{conv.x} of {conv.name}" if conv in far else conv.x for conv in pair]
    shapes |= {name: (shapes[conv.x][0], *shapes[op.y][1:]) for name, conv in zip(names, pair, strict=True)}
    both = f"{op.y}/inputs"
    shapes[both] = (sum(shapes[name][0] for name in names), *shapes[op.y][1:])
    elsewhere.update(names)
    steps = [
        ir.Subsample(name, conv.x, name, conv.stride) for name, conv in zip(names, pair, strict=True) if conv in far
    ]
    weight = np.concatenate([conv.weight for conv in pair], 1)
    return [*steps, Concat(both, (*names,), both, "channels"), replace(op, x=both, weight=weight, stride=(1, 1))]


def merge_siblings(network: Network) -> Network:
    """Merge convolutions of one input that differ only in their weights, and split the result.

    The two branches of a detection head begin this way: one kernel of 144 channels is faster than two of 64 and 80.
    """
    groups: dict[tuple[object, ...], list[Conv]] = defaultdict(list)
    joined = {name for op in network.operations if isinstance(op, Concat) for name in op.xs}
    for op in network.operations:
        # Channels of a split must begin at multiples of CHANNEL_MULTIPLE; inputs of a concatenation would be copied.
        if isinstance(op, Conv) and op.residual is None and op.groups == 1 and op.y not in joined | {*network.outputs}:
            same = (op.x, op.weight.shape[1:], op.stride, op.pads, op.dilation, op.activation)
            if len(op.weight) % CHANNEL_MULTIPLE == 0:
                groups[same].append(op)
    operations, shapes = list(network.operations), dict(network.shapes)
    for group in groups.values():
        if len(group) == 1:
            continue
        first, y = group[0], f"{group[0].y}+{len(group) - 1}"
        weight, bias = (np.concatenate([getattr(op, part) for op in group]) for part in ("weight", "bias"))
        merged = replace(first, name=" + ".join(op.name for op in group), y=y, weight=weight, bias=bias)
        at = operations.index(first)
        operations[at : at + 1] = [merged, Split(f"{y}/split", y, tuple(op.y for op in group))]
        for op in group[1:]:
            operations.remove(op)
        shapes[y] = (len(merged.weight), *shapes[first.y][1:])
    return replace(network, operations=operations, shapes=shapes)


def pair_pixels(network: Network) -> Network:
    """Let the first convolution read the image two pixels at a time, if it moves by an even number of them.

    A pixel has 3 channels, a kernel reads 8: with pairs of 4 it reads half as much, and multiplies half as much by 0.
    """
    readers = [op for op in network.operations if network.input in op.reads]
    channels, height, width = network.shapes[network.input]
    first = readers[0] if readers else None
    if len(readers) != 1 or not isinstance(first, Conv) or network.input in network.outputs:
        return network
    out, _, rows, columns = first.weight.shape
    top, left, bottom, _ = first.pads
    stride = first.stride[1]
    if channels > PAIRED or first.groups > 1 or first.dilation[1] > 1 or width % 2 or stride % 2 or first.residual:
        return network
    early = left % 2  # the window begins at an even column, with a weight of 0 if need be
    pairs, padded = -(-(columns + early) // 2), (left + early) // 2
    right = (network.shapes[first.y][2] - 1) * (stride // 2) + pairs - padded - width // 2
    if right < 0:
        return network
    weight = np.zeros((out, 2, PAIRED, rows, pairs), np.float32)
    for column in range(columns):
        pair, which = divmod(column + early, 2)
        weight[:, which, :channels, :, pair] = first.weight[..., column]
    read = f"{network.input}/pairs"
    changed = replace(first, x=read, weight=weight.reshape(out, 2 * PAIRED, rows, pairs),
                      stride=(first.stride[0], stride // 2), pads=(top, padded, bottom, right))  # fmt: skip
    operations = [changed if op is first else op for op in network.operations]
    operations.insert(0, ir.Pairs(read, network.input, read))
    return replace(network, operations=operations, shapes=network.shapes | {read: (2 * PAIRED, height, width // 2)})


def pad_channels(network: Network) -> Network:
    """Pad the channels of values, and the weights that read and write them, with zeros to CHANNEL_MULTIPLE.

    Raises:
        ModelError: a padded value is split, grouped, added or concatenated in a way that padding breaks.
    """
    # For each value, the model's channel of each of its channels; -1: padding.
    paired = any(isinstance(op, ir.Pairs) for op in network.operations)
    image = _padded_map(network.shapes[network.input][0], PAIRED if paired else CHANNEL_MULTIPLE)
    maps: dict[str, list[int]] = {network.input: image}
    operations: list[ir.Operation] = []
    for op in network.operations:
        if isinstance(op, Conv):
            count = len(op.weight)
            maps[op.y] = _padded_map(count)
            if op.residual is not None and maps[op.residual] != maps[op.y]:
                raise ModelError(f"engine cudnn cannot add {op.residual} to {op.y}: their padding differs")
            op = _pad_weights(op, maps[op.x], maps[op.y])
        elif isinstance(op, ir.Attention):
            if -1 in maps[op.x] or op.heads * op.values % CHANNEL_MULTIPLE or op.heads * op.keys % CHANNEL_MULTIPLE:
                raise ModelError(f"engine cudnn cannot pad {op.name}: {op.heads} heads of {op.keys} and {op.values}")
            maps[op.y] = _padded_map(op.heads * op.values)
        elif isinstance(op, ir.Pairs):
            maps[op.y] = list(range(2 * PAIRED))  # the weights that read it are 0 for what pads a pixel
        elif isinstance(op, ir.General):
            maps |= {y: _padded_map(network.shapes[y][0]) for y in op.ys}
        elif isinstance(op, (ir.Pool, Upsample, Flatten, ir.Subsample)):
            maps |= dict.fromkeys(op.writes, maps[op.reads[0]])
        elif isinstance(op, Concat) and op.along == "channels":
            maps[op.y] = [
                channel + start if channel >= 0 else -1 for x, start, _ in network.spans(op.xs) for channel in maps[x]
            ]
        elif isinstance(op, Concat):
            maps[op.y] = maps[op.xs[0]]
            if any(maps[x] != maps[op.y] for x in op.xs):
                raise ModelError(f"engine cudnn cannot concatenate {op.xs}: their padding differs")
        else:
            for y, start, width in network.spans(op.ys):
                maps[y] = _part_map(maps[op.x], start, width, op.name)
        operations.append(op)
    shapes = {name: (len(maps[name]), *network.shapes[name][1:]) for name in network.shapes if name in maps}
    padding = {name: found for name, found in maps.items() if -1 in found}
    for name in () if network.tail else network.outputs:
        if maps[name][: network.shapes[name][0]] != list(range(network.shapes[name][0])):
            raise ModelError(f"engine cudnn cannot return {name}: it concatenates padded values")
    return replace(network, operations=operations, shapes=shapes, padding=padding)


def remove_split_concat(network: Network) -> Network:
    """Replace all parts of a split in a concatenation by the value that was split, which saves the copy."""
    sources = {op.ys: op.x for op in network.operations if isinstance(op, Split)}
    operations: list[ir.Operation] = []
    for op in network.operations:
        if isinstance(op, Concat) and op.along == "channels":
            xs = list(op.xs)
            for parts, source in sources.items():
                for at in range(len(xs) - len(parts) + 1):
                    if tuple(xs[at : at + len(parts)]) == parts:
                        xs[at : at + len(parts)] = [source]
                        break
            op = replace(op, xs=tuple(xs))
        operations.append(op)
    return replace(network, operations=operations)


def _padded_map(count: int, multiple: int = CHANNEL_MULTIPLE) -> list[int]:
    return [*range(count), *[-1] * (-count % multiple)]


def _part_map(channels: Sequence[int], start: int, width: int, name: str) -> list[int]:
    """Map of a part: the model's channels start .. start + width - 1 and the padding after them."""
    at = list(channels).index(start)
    end = at + width
    in_order = list(channels[at:end]) == list(range(start, start + width))
    while end < len(channels) and channels[end] == -1:
        end += 1
    if not in_order or at % CHANNEL_MULTIPLE or end % CHANNEL_MULTIPLE:
        reason = f"channels {start} to {start + width} do not begin and end at multiples of {CHANNEL_MULTIPLE}"
        raise ModelError(f"engine cudnn cannot split {name}: {reason}")
    return [*range(width), *[-1] * (end - at - width)]


def _pad_weights(op: Conv, read: Sequence[int], written: Sequence[int]) -> Conv:
    if op.groups > 1 and (-1 in read or -1 in written):
        raise ModelError(f"engine cudnn cannot pad the grouped convolution {op.name}: {len(op.weight)} channels")
    if -1 not in read and -1 not in written:
        return op
    weight = np.zeros((len(written), len(read) // op.groups, *op.weight.shape[2:]), np.float32)
    inputs = [channel for channel, model in enumerate(read) if model >= 0] if op.groups == 1 else slice(None)
    weight[: len(op.weight), inputs] = op.weight
    bias = np.zeros(len(written), np.float32)
    bias[: len(op.bias)] = op.bias
    return replace(op, weight=weight, bias=bias)


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
        elif isinstance(op, ir.Pairs):
            whole = views[op.x]
            views[op.y] = replace(whole, shape=network.shapes[op.y], column=2 * whole.column)
            producers[op.y] = producers[op.x]
        elif isinstance(op, ir.Subsample):
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
