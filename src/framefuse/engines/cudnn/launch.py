"""Starts the kernels of a compiled network that are no convolutions. They only launch, so they may be captured."""

from __future__ import annotations

from collections.abc import Sequence

from framefuse.cuda import kernel
from framefuse.engines.cudnn.compiled import Compiled
from framefuse.engines.cudnn.network import AnchorHead, Attention, Conv, Head, Pool, Upsample
from framefuse.kernels.boxes import head_cuda

BYTES = 2
"""Of an element of the arena."""
REACH = 6
"""Pixels around that a chain of pools of one launch may see; `kernels/network/network.cu`."""
POOLS = 3

SYMBOLS = ("network_pack_f16", "network_pack_f32", "network_upsample", "network_pool", "network_decode",
           "network_unpack", "network_depthwise", "network_attention", "network_anchors")  # fmt: skip

ACTIVATIONS = {"none": 0, "silu": 1, "relu": 2}


def upsample(compiled: Compiled, step: Upsample, arena: int, stream: int) -> None:
    """One step. `arena` is the address of the planned memory."""
    x, y = compiled.view(step.x), compiled.view(step.y)
    channels, height, width = y.shape
    pair = 1 if compiled.type(step.x) == "fp16" else 2  # of 8 bits the kernel moves two channels as one
    kernel.launch(
        "network_upsample",
        stream=stream,
        x_=arena + compiled.byte(step.x),
        x_image=compiled.image(step.x) // pair,
        x_row=x.row // pair,
        x_column=x.column // pair,
        y_=arena + compiled.byte(step.y),
        y_image=compiled.image(step.y) // pair,
        y_row=y.row // pair,
        y_column=y.column // pair,
        batch=compiled.batch,
        height=height,
        width=width,
        groups=channels // 8 // pair,
        scale=step.scale,
    )


def depthwise(compiled: Compiled, step: Conv, weight: int, bias: int, arena: int, stream: int) -> None:
    """One step. `weight` and `bias` are addresses; weights are (rows, columns, channels)."""
    x, y = compiled.view(step.x), compiled.view(step.y)
    channels, height, width = y.shape
    beside = compiled.view(step.residual or step.y)
    rows, columns = step.weight.shape[2:]
    kernel.launch(
        "network_depthwise",
        stream=stream,
        x_=arena + compiled.address(step.x) * BYTES,
        x_image=compiled.image(step.x),
        x_row=x.row,
        x_column=x.column,
        weight_=weight,
        bias_=bias,
        residual_=0 if step.residual is None else arena + compiled.address(step.residual) * BYTES,
        residual_image=compiled.image(step.residual or step.y),
        residual_row=beside.row,
        residual_column=beside.column,
        y_=arena + compiled.address(step.y) * BYTES,
        y_image=compiled.image(step.y),
        y_row=y.row,
        y_column=y.column,
        batch=compiled.batch,
        groups=channels // 8,
        in_height=x.shape[1],
        in_width=x.shape[2],
        height=height,
        width=width,
        rows=rows,
        columns=columns,
        stride_y=step.stride[0],
        stride_x=step.stride[1],
        top=step.pads[0],
        left=step.pads[1],
        dilation_y=step.dilation[0],
        dilation_x=step.dilation[1],
        activation=ACTIVATIONS[step.activation],
    )


def attention(compiled: Compiled, step: Attention, arena: int, stream: int) -> None:
    """One step."""
    x, y = compiled.view(step.x), compiled.view(step.y)
    _, height, width = y.shape
    kernel.launch(
        "network_attention",
        stream=stream,
        x_=arena + compiled.address(step.x) * BYTES,
        x_image=compiled.image(step.x),
        x_column=x.column,
        y_=arena + compiled.address(step.y) * BYTES,
        y_image=compiled.image(step.y),
        y_column=y.column,
        batch=compiled.batch,
        heads=step.heads,
        keys=step.keys,
        values=step.values,
        pixels=height * width,
        scale=step.scale,
    )


def pool(compiled: Compiled, step: Pool, arena: int, stream: int) -> None:
    """One step: as many pools as a launch can make, then the rest from the last of them."""
    radius = step.kernel // 2
    at_once = min(POOLS, REACH // radius)
    x, names = step.x, list(step.ys)
    while names:
        group = _alike(compiled, names[:at_once])
        names = names[len(group) :]
        source, target = compiled.view(x), compiled.view(group[0])
        channels, height, width = target.shape
        ys = [arena + compiled.address(name) * BYTES for name in group]
        kernel.launch(
            "network_pool",
            stream=stream,
            x_=arena + compiled.address(x) * BYTES,
            x_image=compiled.image(x),
            x_row=source.row,
            x_column=source.column,
            **{f"y{k}_": ys[min(k, len(ys) - 1)] for k in range(POOLS)},
            y_image=compiled.image(group[0]),
            y_row=target.row,
            y_column=target.column,
            batch=compiled.batch,
            height=height,
            width=width,
            groups=channels // 8,
            pools=len(group),
            radius=radius,
        )
        x = group[-1]


def _alike(compiled: Compiled, names: list[str]) -> list[str]:
    """The first names whose values have the same pitches."""

    def pitches(name: str) -> tuple[int, int, int]:
        return compiled.image(name), compiled.view(name).row, compiled.view(name).column

    count = next((k for k, name in enumerate(names) if pitches(name) != pitches(names[0])), len(names))
    return names[:count]


def pack(compiled: Compiled, *, images: int, channels: int, sample: str, arena: int, stream: int) -> None:
    """The network's input from (batch, channels, height, width) of "f16" or "f32" at address `images`."""
    name = compiled.network.input
    wide, height, width = compiled.view(name).shape
    kernel.launch(
        f"network_pack_{sample}",
        stream=stream,
        x_=images,
        y_=arena + compiled.address(name) * BYTES,
        batch=compiled.batch,
        pixels=height * width,
        channels=channels,
        groups=wide // 8,
    )


def head_of(compiled: Compiled, arena: int) -> head_cuda.Head:
    """Where the logits of the network's head lie."""
    head = compiled.network.head
    assert isinstance(head, Head)

    def places(names: tuple[str, ...]) -> tuple[head_cuda.Place, ...]:
        return tuple(
            head_cuda.Place(arena + compiled.address(name) * BYTES, compiled.image(name), compiled.view(name).column)
            for name in names
        )

    return head_cuda.Head(places(head.sides), places(head.scores), head.levels, compiled.batch, head.bins, head.classes)


def decode(compiled: Compiled, *, cells: int, levels: int, output: int, stream: int) -> None:
    """(batch, 4 + classes, anchors) float32 at address `output`.

    Args:
        cells: address of `network.cells` as float32.
        levels: address of the table of `head_of`.
    """
    head = compiled.network.head
    assert isinstance(head, Head)
    kernel.launch(
        "network_decode",
        stream=stream,
        levels_=levels,
        levels=len(head.levels),
        cells_=cells,
        y_=output,
        batch=compiled.batch,
        anchors=head.anchors,
        bins=head.bins,
        classes=head.classes,
    )


def decode_anchors(compiled: Compiled, *, sizes: Sequence[int], output: int, arena: int, stream: int) -> None:
    """(batch, anchors, 5 + classes) float32 at address `output`: a launch for each level.

    Args:
        sizes: for each level the address of width and height of its anchors, float32.
    """
    head = compiled.network.head
    assert isinstance(head, AnchorHead)
    first = 0
    for name, anchors, table, (rows, columns) in zip(head.rows, head.sizes, sizes, head.levels, strict=True):
        kernel.launch(
            "network_anchors",
            stream=stream,
            x_=arena + compiled.address(name) * BYTES,
            x_image=compiled.image(name),
            x_column=compiled.view(name).column,
            table_=table,
            y_=output,
            batch=compiled.batch,
            per_cell=len(anchors),
            fields=head.fields,
            height=rows,
            width=columns,
            first=first,
            anchors=head.anchors,
            stride_x=compiled.width / columns,
            stride_y=compiled.height / rows,
        )
        first += len(anchors) * rows * columns


def unpack(compiled: Compiled, name: str, *, output: int, arena: int, stream: int) -> None:
    """A value as (batch, channels, height, width) float32 at address `output`, without padding."""
    view = compiled.view(name)
    _, height, width = view.shape
    kernel.launch(
        "network_unpack",
        stream=stream,
        x_=arena + compiled.address(name) * BYTES,
        x_image=compiled.image(name),
        x_row=view.row,
        x_column=view.column,
        y_=output,
        batch=compiled.batch,
        channels=compiled.network.channels(name),
        height=height,
        width=width,
    )
