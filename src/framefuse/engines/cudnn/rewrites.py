"""Graph rewrites that keep what a network computes: merged convolutions, padded channels, no split before a concat."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from framefuse.engines.cudnn.network import Attention, Concat, Conv, Flatten, Network, Operation, Pool, Split, Upsample
from framefuse.errors import ModelError

CHANNEL_MULTIPLE = 8
"""Channels of a value are padded to multiples of this: 16 bytes of float16."""


def rewrite(network: Network) -> Network:
    """Apply all rewrites in order."""
    return remove_split_concat(pad_channels(merge_siblings(network)))


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


def pad_channels(network: Network) -> Network:
    """Pad the channels of values, and the weights that read and write them, with zeros to CHANNEL_MULTIPLE.

    Raises:
        ModelError: a padded value is split, grouped, added or concatenated in a way that padding breaks.
    """
    # For each value, the model's channel of each of its channels; -1: padding.
    maps: dict[str, list[int]] = {network.input: _padded_map(network.shapes[network.input][0])}
    operations: list[Operation] = []
    for op in network.operations:
        if isinstance(op, Conv):
            count = len(op.weight)
            maps[op.y] = _padded_map(count)
            if op.residual is not None and maps[op.residual] != maps[op.y]:
                raise ModelError(f"engine cudnn cannot add {op.residual} to {op.y}: their padding differs")
            op = _pad_weights(op, maps[op.x], maps[op.y])
        elif isinstance(op, Attention):
            if -1 in maps[op.x] or op.heads * op.values % CHANNEL_MULTIPLE or op.heads * op.keys % CHANNEL_MULTIPLE:
                raise ModelError(f"engine cudnn cannot pad {op.name}: {op.heads} heads of {op.keys} and {op.values}")
            maps[op.y] = _padded_map(op.heads * op.values)
        elif isinstance(op, (Pool, Upsample, Flatten)):
            maps |= dict.fromkeys(op.writes, maps[op.reads[0]])
        elif isinstance(op, Concat) and op.along == "channels":
            parts, start = [], 0
            for x in op.xs:
                parts += [channel + start if channel >= 0 else -1 for channel in maps[x]]
                start += network.shapes[x][0]
            maps[op.y] = parts
        elif isinstance(op, Concat):
            maps[op.y] = maps[op.xs[0]]
            if any(maps[x] != maps[op.y] for x in op.xs):
                raise ModelError(f"engine cudnn cannot concatenate {op.xs}: their padding differs")
        else:
            start = 0
            for y in op.ys:
                width = network.shapes[y][0]
                maps[y] = _part_map(maps[op.x], start, width, op.name)
                start += width
        operations.append(op)
    shapes = {name: (len(maps[name]), *network.shapes[name][1:]) for name in network.shapes if name in maps}
    padding = {name: found for name, found in maps.items() if -1 in found}
    for name in network.outputs:
        if maps[name][: network.shapes[name][0]] != list(range(network.shapes[name][0])):
            raise ModelError(f"engine cudnn cannot return {name}: it concatenates padded values")
    return replace(network, operations=operations, shapes=shapes, padding=padding)


def remove_split_concat(network: Network) -> Network:
    """Replace all parts of a split in a concatenation by the value that was split, which saves the copy."""
    sources = {op.ys: op.x for op in network.operations if isinstance(op, Split)}
    operations: list[Operation] = []
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


def _padded_map(count: int) -> list[int]:
    return [*range(count), *[-1] * (-count % CHANNEL_MULTIPLE)]


def _part_map(channels: Sequence[int], start: int, width: int, name: str) -> list[int]:
    """Map of a part: the model's channels start .. start + width - 1 and the padding after them."""
    at = list(channels).index(start)
    end = at + width
    if list(channels[at:end]) != list(range(start, start + width)) or at % CHANNEL_MULTIPLE:
        raise ModelError(f"engine cudnn cannot split at channel {start} ({name}), not a multiple of {CHANNEL_MULTIPLE}")
    while end < len(channels) and channels[end] == -1:
        end += 1
    if end % CHANNEL_MULTIPLE:
        raise ModelError(
            f"engine cudnn cannot split at channel {start + width} ({name}), not a multiple of {CHANNEL_MULTIPLE}"
        )
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
