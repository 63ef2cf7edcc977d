"""Where values lie: concatenation by writing into slices, splits as views, nothing copied that need not be.

A buffer is a dense picture in NHWC. A value is a view of one: its rows and channels may be part of a wider buffer.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from framefuse.engines.cudnn.network import Computed, Concat, Flatten, Network, Shape, Split, Upsample


@dataclass(frozen=True)
class View:
    """A value in a buffer. Element (c, y, x) of picture b is at `b * picture + offset + y * row + x * column + c`."""

    buffer: int
    offset: int
    shape: Shape
    row: int
    column: int

    def channels(self, start: int, count: int) -> View:
        return replace(self, offset=self.offset + start, shape=(count, *self.shape[1:]))

    def rows(self, start: int, count: int) -> View:
        return replace(self, offset=self.offset + start * self.row, shape=(self.shape[0], count, self.shape[2]))

    def flat(self) -> View:
        """As a list of anchors; the rows must follow each other without a gap."""
        channels, height, width = self.shape
        assert self.row == width * self.column
        return replace(self, shape=(channels, height * width, 1), row=self.column)

    def unflat(self, height: int, width: int) -> View:
        return replace(self, shape=(self.shape[0], height, width), row=width * self.row, column=self.row)


@dataclass
class Placement:
    """Operations that compute, in order, and where their values lie."""

    steps: list[Computed]
    views: dict[str, View]
    sizes: list[int] = field(default_factory=list)
    """Elements of each buffer, for one picture."""
    producers: dict[str, frozenset[int]] = field(default_factory=dict)
    """Steps that write a value, whole or in parts; none for the network's input."""


def place(network: Network) -> Placement:
    """Find a place for every value. A value that two concatenations want is copied for the second of them."""
    views: dict[str, View] = {}
    sizes: list[int] = []
    copies: dict[int, list[Upsample]] = {}
    """By the index of the concatenation before which they run."""

    def new(name: str) -> None:
        channels, height, width = network.shapes[name]
        views[name] = View(len(sizes), 0, network.shapes[name], width * channels, channels)
        sizes.append(channels * height * width)

    parts = {y for op in network.operations if isinstance(op, Split) for y in op.ys}
    # From the end: whoever wants a value somewhere is met before the one that makes it.
    for index in range(len(network.operations) - 1, -1, -1):
        op = network.operations[index]
        if isinstance(op, Split):
            continue  # its parts lie in its input
        for name in op.writes:
            if name not in views:
                new(name)
        if isinstance(op, Concat):
            start = 0
            for x in op.xs:
                count = network.shapes[x][0 if op.along == "channels" else 1]
                target = (
                    views[op.y].channels(start, count) if op.along == "channels" else views[op.y].rows(start, count)
                )
                if x in views or x in parts or x == network.input:
                    copy = Upsample(f"copy {x}", x, f"{x} in {op.y}", 1)
                    views[copy.y] = target
                    copies.setdefault(index, []).append(copy)
                else:
                    views[x] = target
                start += count
        elif isinstance(op, Flatten) and op.x not in views and op.x not in parts and op.x != network.input:
            views[op.x] = views[op.y].unflat(*network.shapes[op.x][1:])
    if network.input not in views:
        new(network.input)

    placement = Placement([], views, sizes, {network.input: frozenset()})
    made = placement.producers
    for index, op in enumerate(network.operations):
        for copy in copies.get(index, ()):
            made[copy.y] = frozenset({len(placement.steps)})
            placement.steps.append(copy)
        if isinstance(op, Concat):
            copied = {copy.x: copy.y for copy in copies.get(index, ())}
            made[op.y] = frozenset().union(*(made[copied.get(x, x)] for x in op.xs))
        elif isinstance(op, Split):
            start = 0
            for y in op.ys:
                views[y] = views[op.x].channels(start, network.shapes[y][0])
                made[y] = made[op.x]
                start += network.shapes[y][0]
        elif isinstance(op, Flatten):
            made[op.y] = made[op.x]
            _flattened(op, placement)
        else:
            made |= dict.fromkeys(op.writes, frozenset({len(placement.steps)}))
            placement.steps.append(op)
    return placement


def _flattened(op: Flatten, placement: Placement) -> None:
    """A flat value that lies elsewhere than its picture: the picture was wanted in two places."""
    views, target = placement.views, placement.views[op.y]
    if views[op.x].flat() == target:
        return
    _, height, width = views[op.x].shape
    copy = Upsample(f"copy {op.x}", op.x, f"{op.x} in {op.y}", 1)
    views[copy.y] = target.unflat(height, width)
    placement.producers[op.y] = placement.producers[copy.y] = frozenset({len(placement.steps)})
    placement.steps.append(copy)
