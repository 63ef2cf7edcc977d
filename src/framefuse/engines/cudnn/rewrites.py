"""Rewrites that keep what a network computes, before `compiled.py` plans it: convolutions merged that are added up or
read the same, channels padded, no split before a concat, an image of few channels read two pixels at a time."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from framefuse.engines.cudnn import network as ir
from framefuse.engines.cudnn.import_state import CHANNEL_MULTIPLE
from framefuse.engines.cudnn.network import Concat, Conv, Flatten, Network, Shape, Split, Upsample
from framefuse.errors import ModelError

PAIRED = 4
"""Channels of a pixel of an image that is read in pairs."""


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
    # Their place is given already, so a concatenation copies them.
    elsewhere = {network.input, *_joined(network)}.union(*(op.ys for op in network.operations if isinstance(op, Split)))
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
    pair = other, op
    copied = sum(shapes[conv.x][0] for conv in pair if conv.stride != (1, 1) or conv.x in elsewhere)
    if any(conv.weight.shape[2:] != (1, 1) or any(conv.pads) for conv in pair) or copied >= len(op.weight):
        return []  # instead of what is copied, a result is written and read
    xs, steps = list[str](), list[ir.Operation]()
    for conv in pair:
        x = conv.x
        if conv.stride != (1, 1):
            x = f"{conv.x} of {conv.name}"
            shapes[x] = (shapes[conv.x][0], *shapes[op.y][1:])
            steps.append(ir.Subsample(x, conv.x, x, conv.stride))
        xs.append(x)
    elsewhere.update(xs)
    both = f"{op.y}/inputs"
    shapes[both] = (sum(shapes[x][0] for x in xs), *shapes[op.y][1:])
    weight = np.concatenate([conv.weight for conv in pair], 1)
    return [*steps, Concat(both, (*xs,), both, "channels"), replace(op, x=both, weight=weight, stride=(1, 1))]


def merge_siblings(network: Network) -> Network:
    """Merge convolutions of one input that differ only in their weights, and split the result.

    The two branches of a detection head begin this way: one kernel of 144 channels is faster than two of 64 and 80.
    """
    groups: dict[tuple[object, ...], list[Conv]] = defaultdict(list)
    joined = _joined(network)
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


def _joined(network: Network) -> set[str]:
    """Inputs of concatenations."""
    return {name for op in network.operations if isinstance(op, Concat) for name in op.xs}


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
