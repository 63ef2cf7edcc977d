"""Compiled steps that cuDNN does not run, as calls of `kernels.network`. They only launch, so they may be captured.

`arena` is the address of the planned memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from framefuse.engines.cudnn.compiled import Compiled
from framefuse.engines.cudnn.convolutions import BIAS, WEIGHT
from framefuse.engines.cudnn.network import AnchorHead, Attention, Conv, Head, Pool, Upsample
from framefuse.kernels.boxes import head_cuda
from framefuse.kernels.network import call as network

BYTES = 2
"""Of an element of the arena."""


def block(compiled: Compiled, name: str, arena: int) -> network.Block:
    """Where a value lies, with the channels that pad it."""
    view = compiled.view(name)
    itemsize = 2 if compiled.type(name) == "fp16" else 1
    address, image = arena + compiled.byte(name), compiled.image(name)
    return network.Block(address, compiled.batch, *view.shape, image, view.row, view.column, itemsize)


def depthwise(compiled: Compiled, step: Conv, weights: Mapping[int, int], arena: int, stream: int) -> None:
    """`weights` are the addresses of WEIGHT, (rows, columns, channels), and BIAS."""
    rows, columns = step.weight.shape[2:]
    network.depthwise(
        block(compiled, step.x, arena),
        weights[WEIGHT],
        weights[BIAS],
        block(compiled, step.y, arena),
        kernel_size=(rows, columns),
        stride=step.stride,
        pads=step.pads[:2],
        dilation=step.dilation,
        activation=step.activation,
        residual=None if step.residual is None else block(compiled, step.residual, arena),
        stream=stream,
    )


def other(compiled: Compiled, step: Attention | Pool | Upsample, arena: int, stream: int) -> None:
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


def decode_anchors(compiled: Compiled, *, sizes: Sequence[int], output: int, arena: int, stream: int) -> None:
    """(batch, anchors, 5 + classes) float32 at address `output`: a launch for each level.

    Args:
        sizes: for each level the address of width and height of its anchors, float32.
    """
    head = compiled.network.head
    assert isinstance(head, AnchorHead)
    first = 0
    for name, anchors, table, (rows, columns) in zip(head.rows, head.sizes, sizes, head.levels, strict=True):
        network.decode_anchors(
            block(compiled, name, arena)._replace(height=rows, width=columns),
            table,
            output,
            per_cell=len(anchors),
            fields=head.fields,
            first=first,
            anchors=head.anchors,
            stride=(compiled.width / columns, compiled.height / rows),
            stream=stream,
        )
        first += len(anchors) * rows * columns
