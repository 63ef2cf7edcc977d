"""The kernels between a network's convolutions, on float16 or float32 images in NHWC that may be slices of wider ones.

A call only launches, so it may be captured in a CUDA graph; `prepare` compiles every kernel before. Addresses are those
of device memory that the caller keeps. Channels come in groups of 8: pitches and numbers of channels are multiples of a
group, and addresses of 16 bytes, unless a function says otherwise. All images of a call, and weights, have one type.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

from framefuse.cuda import kernel
from framefuse.errors import UsageError
from framefuse.kernels.boxes.head_cuda import Head

REACH = 6
"""Pixels on each side that the chained windows of one `pool` launch may see, as in `tir_cuda.py`."""
POOLS = 3
"""Results of one `pool` launch at most."""
MAX_WINDOW = 2 * REACH + 1
"""Side of a pooling window at most."""

MAX_KEYS, MAX_VALUES = 64, 128
"""Channels of a head's queries and keys, and of its values, in `attention`; both are multiples of 8."""

MAX_BINS = 64
"""Logits of a side of a box, in `decode`."""

TENSOR_CORES, CLUSTERS = 80, 90
"""Compute capabilities from which on `convolve` may use tensor cores, and several `parts` of a `Tile`."""

Activation = Literal["none", "silu", "relu"]
_ACTIVATIONS = {"none": 0, "silu": 1, "relu": 2}


class Block(NamedTuple):
    """A batch of images in device memory: element (c, y, x) of image b lies `b * image + y * row + x * column + c`
    elements after `address`."""

    address: int
    batch: int
    channels: int
    height: int
    width: int
    image: int
    row: int
    column: int
    itemsize: int = 2
    """Bytes of an element: 2 of float16, 4 of float32; only `upsample` takes elements of 1 byte."""

    @property
    def kind(self) -> str:
        """Of the elements, in the names of kernels."""
        return "f32" if self.itemsize == 4 else "f16"

    @property
    def pitches(self) -> tuple[int, int, int]:
        return self.image, self.row, self.column

    @property
    def size(self) -> dict[str, int]:
        return {"batch": self.batch, "height": self.height, "width": self.width}

    @property
    def area(self) -> dict[str, int]:
        return {"batch": self.batch, "pixels": self.height * self.width}


WIDE, SMALL, PATCH = 1, 2, 3
"""Kinds of tiles."""


class Tile(NamedTuple):
    """What a block of threads makes of a convolution on tensor cores."""

    rows: int
    """Pixels of the result."""
    columns: int
    """Channels of the result."""
    parts: int
    """Blocks that share the sums, each a part of the channels under the filter."""
    kind: int = 0
    """WIDE: four warps multiply together, which only compute capability HOPPER can. SMALL: little is copied ahead, so
    that more blocks run side by side, which is faster where there is little to sum. PATCH: for images of
    eight channels: what windows share is copied once."""

    @property
    def symbol(self) -> str:
        """The kernel's."""
        return f"network_tensor_{self.rows}x{self.columns}x{self.parts}{('', '_wide', '_small', '_patch')[self.kind]}"


TILES = tuple(
    Tile(rows, columns, 1 << k)
    for (rows, columns), kinds in {(64, 64): 4, (64, 32): 3, (128, 64): 2, (128, 32): 1, (128, 128): 4}.items()
    for k in range(kinds)
) + tuple(
    Tile(rows, columns, 1 << k, kind)
    for kind, sizes in {
        WIDE: {(128, 128): 4, (128, 256): 4, (256, 128): 2},
        SMALL: {(64, 64): 1, (64, 32): 1},
        PATCH: {(128, 64): 1, (128, 32): 1, (128, 16): 1},
    }.items()
    for (rows, columns), kinds in sizes.items()
    for k in range(kinds)
)
"""Those that there are kernels for."""


PATCH_HEIGHT, PATCH_WIDTH = 8, 16
"""Pixels of a tile of kind PATCH."""
PATCHES_AT_ONCE = 3
"""Blocks that make such tiles on a multiprocessor."""
PATCH_MEMORY = 65536
"""Bytes of shared memory of such a block."""


def fits_patch(tile: Tile, x: int, window: Window) -> bool:
    """Whether a tile of kind PATCH can be made of images of x channels under that window."""
    rows, columns = window.size
    height = (PATCH_HEIGHT - 1) * window.stride[0] + rows
    width = (PATCH_WIDTH - 1) * window.stride[1] + columns
    chunks = tile.columns * (rows * columns + 2) + tile.rows * tile.columns // 8 + 2 * height * width
    return x == 8 and window.dilation == (1, 1) and 16 * chunks <= PATCH_MEMORY


def prepare(kind: Literal["f16", "f32"] = "f16", tiles: Iterable[Tile] = ()) -> None:
    """Compile and load every kernel of this module for the current device, for images of float16 or float32; of those
    that convolve on tensor cores the ones for `tiles`.

    Raises:
        CapabilityError: no GPU, no CuPy, no NVRTC, or the GPU is one that NVRTC does not know.
    """
    names = "pool", "decode", "unpack", "depthwise", "convolve", "attention", "anchors"
    alone = "network_pack_f16", "network_pack_f32", "network_upsample", "network_smallest"
    wide = "network_pack_f16_f32", "network_pack_f32_f32"
    packing = wide if kind == "f32" else alone[:2]
    symbols = *packing, *alone[2:], *(f"network_{name}_{kind}" for name in names), *(tile.symbol for tile in tiles)
    kernel.prepare(symbols)


def pack(images: int, channels: int, sample: Literal["f16", "f32"], y: Block, *, stream: int) -> None:
    """y[b, :, :, c] = images[b, c] for c < channels, 0 for the other channels of y, which come in fours here.

    Args:
        images: address of dense (batch, channels, height, width), float16 or float32 as `sample` says.
        y: dense.
    """
    arrays = {"x_": images, "y_": y.address, "channels": channels, "groups": y.channels // 4}
    to = "_f32" if y.itemsize == 4 else ""
    kernel.launch(f"network_pack_{sample}{to}", stream=stream, **arrays, **y.area)


def unpack(x: Block, output: int, *, stream: int) -> None:
    """output[b, c] = x[b, :, :, c], dense float32 at an address. The channels of x need not be a multiple of 8."""
    kernel.launch(
        f"network_unpack_{x.kind}", stream=stream, **_strided("x", x), **x.size, y_=output, channels=x.channels
    )


def smallest(keys: int, places: int, *, rows: int, columns: int, count: int, stream: int) -> None:
    """Places of the smallest keys of each row in order; of equal ones the first, NaN last. A block makes a row.

    Args:
        keys: address of (rows, columns) float32.
        places: address of (rows, count) int64.
        count: at most `columns`.
    """
    shape = {"rows": rows, "columns": columns, "count": count}
    kernel.launch("network_smallest", stream=stream, keys_=keys, places_=places, **shape)


def upsample(x: Block, y: Block, scale: int, *, stream: int) -> None:
    """y[b, i, j] = x[b, i // scale, j // scale]; scale 1 copies.

    Elements are moved 16 bytes at a time, whatever they are. Of those of 1 byte, channels, address and pitches are
    multiples of 16.
    """

    def in_halves(count: int) -> int:
        """Elements of 2 bytes."""
        return count * x.itemsize // 2

    source, target = (
        block._replace(image=in_halves(block.image), row=in_halves(block.row), column=in_halves(block.column))
        for block in (x, y)
    )
    places = {**_strided("x", source), **_strided("y", target)}
    groups = in_halves(y.channels) // 8
    kernel.launch("network_upsample", stream=stream, **places, **y.size, groups=groups, scale=scale)


def pool(x: Block, ys: Sequence[Block], window: int, *, stream: int) -> None:
    """ys[0] = the maxima of windows of x, ys[1] = those of ys[0], and so on: a spatial pyramid.

    Up to POOLS results of equal pitches are made in one launch, as long as their windows reach at most REACH pixels;
    further ones take another launch.

    Args:
        window: side of a window; the stride is 1 and the edge is padded with -inf.

    Raises:
        UsageError: `window` is even or not from 3 to MAX_WINDOW.
    """
    radius, rest = window // 2, list(ys)
    if not window % 2 or not 1 <= radius <= REACH:
        raise UsageError(f"pooling windows of {window} pixels are not odd and from 3 to {MAX_WINDOW}")
    most = min(POOLS, REACH // radius)
    while rest:
        y, group = rest[0], rest[:most]
        group = group[: next((k for k, other in enumerate(group) if other.pitches != y.pitches), most)]
        rest = rest[len(group) :]
        places = {f"y{k}_": group[min(k, len(group) - 1)].address for k in range(POOLS)}
        places |= _strided("x", x) | _pitches("y", y)
        counts = {"groups": y.channels // 8, "pools": len(group), "radius": radius}
        kernel.launch(f"network_pool_{y.kind}", stream=stream, **places, **y.size, **counts)
        x = group[-1]


class Window(NamedTuple):
    """What a filter sees of its input; vertical first."""

    size: tuple[int, int]
    stride: tuple[int, int] = (1, 1)
    pads: tuple[int, int] = (0, 0)
    """Top, left; those of the other sides follow from the size of the result."""
    dilation: tuple[int, int] = (1, 1)

    def arguments(self, x: Block, weight: int, bias: int, y: Block, residual: Block | None) -> dict[str, int]:
        """Those that the kernels of filters have in common."""
        beside = residual or y._replace(address=0)
        places = {**_strided("x", x), **_strided("y", y), **_strided("residual", beside)}
        shape = {"in_height": x.height, "in_width": x.width, "rows": self.size[0], "columns": self.size[1]}
        shape |= {"stride_y": self.stride[0], "stride_x": self.stride[1], "top": self.pads[0], "left": self.pads[1]}
        shape |= {"dilation_y": self.dilation[0], "dilation_x": self.dilation[1], "groups": y.channels // 8}
        return {**places, "weight_": weight, "bias_": bias, **y.size, **shape}


def depthwise(
    x: Block, weight: int, bias: int, y: Block, window: Window, *, activation: Activation = "none",
    residual: Block | None = None, stream: int,
) -> None:  # fmt: skip
    """y[b, i, j, c] = f(bias[c] + sum(weight[m, n, c] x[b, si + dm - top, sj + dn - left, c])) + residual[b, i, j, c].

    s, d and f are stride, dilation and activation of the axis; x is 0 outside its edges. Sums are float32.

    Args:
        weight: address of (rows, columns, channels).
        bias: address of (channels,).
        residual: an image of the size of y.
    """
    given = window.arguments(x, weight, bias, y, residual)
    kernel.launch(f"network_depthwise_{x.kind}", stream=stream, **given, activation=_ACTIVATIONS[activation])


def convolve(
    x: Block, weight: int, bias: int, y: Block, window: Window, *, activation: Activation = "none",
    residual: Block | None = None, last: Activation = "none", tile: Tile | None = None, multiprocessors: int = 1,
    stream: int,
) -> None:  # fmt: skip
    """As `depthwise`, but y[..., k] sums over all channels of x: weight[k, m, n, c] x[..., c]; then comes another
    activation, `last`, after the residual.

    Args:
        weight: address of (channels of y, rows, columns, channels of x).
        bias: address of (channels of y,).
        tile: how tensor cores do it, one of TILES, for float16 on a GPU that has them; None: without.
        multiprocessors: of the GPU. As many blocks as these run at once make the tiles of kind PATCH.
    """
    given = window.arguments(x, weight, bias, y, residual) | {"depth_groups": x.channels // 8}
    given |= {"activation": _ACTIVATIONS[activation], "last": _ACTIVATIONS[last]}
    if tile is None:
        kernel.launch(f"network_convolve_{x.kind}", stream=stream, **given)
    else:
        blocks = {"column_blocks": -(-y.channels // tile.columns)}
        if tile.kind == PATCH:
            tiles = y.batch * -(-y.height // PATCH_HEIGHT) * -(-y.width // PATCH_WIDTH)
            blocks["blocks"] = min(tiles, PATCHES_AT_ONCE * multiprocessors)
        else:
            blocks |= {"row_blocks": -(-y.batch * y.height * y.width // tile.rows), "parts": tile.parts}
        kernel.launch(tile.symbol, stream=stream, **given, **blocks)


def attention(x: Block, y: Block, *, heads: int, keys: int, values: int, scale: float, stream: int) -> None:
    """y = softmax(scale q k^T) v over the pixels of an image, for each head. Every sum is float32.

    Args:
        x: the queries of all heads (keys channels each), their keys (as many), their values, in this order. The pixels
            of an image lie `column` elements apart, across rows too.
        y: heads * values channels, the pixels likewise.
        keys: channels of a query and of a key, a multiple of 8, at most MAX_KEYS.
        values: channels of a value, a multiple of 8, at most MAX_VALUES.
    """
    shape = {"heads": heads, "keys": keys, "values": values}
    places = {**_in_line("x", x), **_in_line("y", y)}
    kernel.launch(f"network_attention_{x.kind}", stream=stream, **places, **y.area, **shape, scale=scale)


def decode(
    head: Head, *, levels: int, cells: int, output: int, stream: int, kind: Literal["f16", "f32"] = "f16"
) -> None:
    """Boxes and scores of a head without anchors, as exporters of YOLOv8 write them.

    A side of a box lies sum(k softmax(logits)[k]) cells from the centre of its cell; a score is sigmoid(logit).

    Args:
        head: at most MAX_BINS bins; any number of classes.
        levels: address of `head.table`.
        cells: address of (4, anchors) float32: centre x and y of each cell, in cells; its width and height in pixels
            of the model.
        output: address of (batch, 4 + classes, anchors) float32: centre x, centre y, width, height, scores.
        kind: of the logits, float16 or float32.

    Raises:
        UsageError: the head has more bins.
    """
    if head.bins > MAX_BINS:
        raise UsageError(f"a side of a box has {head.bins} bins, more than {MAX_BINS}")
    arrays = {"levels_": levels, "cells_": cells, "y_": output, "levels": len(head.levels)}
    shape = {"batch": head.batch, "anchors": head.anchors, "bins": head.bins, "classes": head.classes}
    kernel.launch(f"network_decode_{kind}", stream=stream, **arrays, **shape)


def decode_anchors(
    x: Block,
    sizes: int,
    output: int,
    *,
    per_cell: int,
    fields: int,
    first: int,
    anchors: int,
    stride: tuple[float, float],
    stream: int,
) -> None:
    """One level of a head with anchors, as exporters of YOLOv5 write it.

    With s = sigmoid(x): centre = (2 s - 0.5 + cell) * stride, size = (2 s)^2 * anchor, objectness and scores s.

    Args:
        x: per_cell * fields channels, which need not be a multiple of 8. The pixels of an image lie `column` elements
            apart, across rows too.
        sizes: address of (per_cell, 2) float32: width and height of each anchor in pixels of the model.
        output: address of (batch, anchors, fields) float32, of all levels.
        fields: 5 + classes.
        first: index in `output` of the level's first anchor; per_cell * height * width of them follow.
        anchors: of all levels.
        stride: pixels of the model per cell, horizontally and vertically.
    """
    places = {**_in_line("x", x), "table_": sizes, "y_": output}
    shape = {"per_cell": per_cell, "fields": fields, "first": first, "anchors": anchors}
    strides = {"stride_x": stride[0], "stride_y": stride[1]}
    kernel.launch(f"network_anchors_{x.kind}", stream=stream, **places, **x.size, **shape, **strides)


def _strided(name: str, block: Block) -> dict[str, int]:
    return {f"{name}_": block.address, **_pitches(name, block)}


def _in_line(name: str, block: Block) -> dict[str, int]:
    """Of an image whose pixels lie `column` elements apart, across rows too."""
    return {f"{name}_": block.address, f"{name}_image": block.image, f"{name}_column": block.column}


def _pitches(name: str, block: Block) -> dict[str, int]:
    return dict(zip((f"{name}_image", f"{name}_row", f"{name}_column"), block.pitches, strict=True))
