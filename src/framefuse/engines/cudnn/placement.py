"""Placement of values in buffers: concatenation inputs are written to slices, and splits are views, without copies.

A buffer is a dense NHWC feature map. A value is a view of one buffer, whose channels may be part of a wider buffer.
Rows and images are contiguous; otherwise cuDNN falls back to kernels that are 30 times slower.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from framefuse.engines.cudnn.network import ComputeOp, Concat, Flatten, Network, Shape, Split, Upsample


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
    copies: dict[int, list[Upsample]] = {}
    """By the index of the concatenation that they precede."""

    def new_buffer(name: str) -> None:
        channels, height, width = network.shapes[name]
        views[name] = View(len(sizes), 0, network.shapes[name], width * channels, channels)
        sizes.append(channels * height * width)

    parts = {y for op in network.operations if isinstance(op, Split) for y in op.ys}
    # In reverse order, so that the consumer that decides where a value lies comes before its producer.
    for index in range(len(network.operations) - 1, -1, -1):
        op = network.operations[index]
        assert not isinstance(op, Flatten)
        if isinstance(op, Split):
            continue  # its outputs are views of its input
        for name in op.writes:
            if name not in views:
                new_buffer(name)
        if isinstance(op, Concat):
            start = 0
            for x in op.xs:
                count = network.shapes[x][0]
                target = views[op.y].channels(start, count)
                if x in views or x in parts or x == network.input:
                    copy = Upsample(f"copy {x}", x, f"{x} in {op.y} at {start}", 1)
                    views[copy.y] = target
                    copies.setdefault(index, []).append(copy)
                else:
                    views[x] = target
                start += count
    if network.input not in views:
        new_buffer(network.input)

    placement = Placement([], views, sizes, {network.input: frozenset()})
    producers = placement.producers
    for index, op in enumerate(network.operations):
        for copy in copies.get(index, ()):
            producers[copy.y] = frozenset({len(placement.steps)})
            placement.steps.append(copy)
        if isinstance(op, Concat):
            parts_of = [*op.xs, *(copy.y for copy in copies.get(index, ()))]
            producers[op.y] = frozenset[int]().union(*(producers[name] for name in parts_of))
        elif isinstance(op, Split):
            start = 0
            for y in op.ys:
                views[y] = views[op.x].channels(start, network.shapes[y][0])
                producers[y] = producers[op.x]
                start += network.shapes[y][0]
        elif not isinstance(op, Flatten):
            producers |= dict.fromkeys(op.writes, frozenset({len(placement.steps)}))
            placement.steps.append(op)
    return placement
