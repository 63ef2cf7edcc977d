"""Arguments of a preprocess kernel other than addresses: taps, the colour matrix, and the order of the output.

A Plan depends on sizes and options only, so it is computed once for a video.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from framefuse.errors import UsageError
from framefuse.frame import Frame, Matrix, PixelFormat, Region, Rotation
from framefuse.kernels.cpu import byte_level
from framefuse.kernels.preprocess import filters
from framefuse.kernels.preprocess.filters import Interpolation, Taps, axis_taps, upper

ChannelOrder = Literal["rgb", "bgr"]
MemoryFormat = Literal["nchw", "nhwc"]
Content = tuple[int, int, int, int]
Triple = tuple[float, float, float]

STRIP = 16
"""Rows that are rotated together for a rotation by 90 degrees: a cache line of float32."""

OUTPUTS = {"float32": "f32", "float16": "f16", "bfloat16": "bf16", "uint16": "bf16", "uint8": "u8", "int8": "i8"}
"""Names of the output dtypes and how kernels abbreviate them. uint16 holds the bits of a bfloat16."""

LEVELS = {"u8": (0.0, 255.0), "i8": (-128.0, 127.0)}
"""Smallest and largest value of the integer outputs."""

STORES = {"f32": (0, 0), "f16": (1, 0), "bf16": (2, 0), "u8": (3, 0), "i8": (3, 128)}
"""Arguments `store` and `flip` of `tir_cpu.py`."""

MAX_ELEMENTS = 2**31 - 1
"""Elements of an output or of a plane with its padding, at most: the kernels count in 32 bits."""

LUMA_WEIGHTS = {"bt601": (0.299, 0.114), "bt709": (0.2126, 0.0722), "bt2020": (0.2627, 0.0593)}
"""K_R and K_B of ITU-R BT.601, BT.709 and BT.2020 (non-constant luminance)."""


class Request(NamedTuple):
    """The arguments of `preprocess` that determine a Plan; all are hashable."""

    format: PixelFormat
    coded: tuple[int, int]
    """Width and height of the coded image."""
    rotation: Rotation
    matrix: Matrix
    full_range: bool
    size: tuple[int, int]
    """Width and height of the whole output."""
    channels: int
    """Channels of the output: 3, or more with memory format nhwc."""
    dtype: np.dtype[Any]
    content: Content
    interpolation: Interpolation
    pad_value: float | None
    """None: the padding is not written."""
    mean: Triple
    std: Triple
    channel_order: ChannelOrder
    memory_format: MemoryFormat
    roi: Region
    rows: tuple[int, int]

    @classmethod
    def of(
        cls,
        frame: Frame,
        out: NDArray[Any],
        content: Content,
        interpolation: Interpolation,
        pad_value: float | None,
        mean: Triple,
        std: Triple,
        channel_order: ChannelOrder,
        memory_format: MemoryFormat = "nchw",
        roi: Region | None = None,
        rows: tuple[int, int] | None = None,
    ) -> Request:
        """Raise UsageError if an argument of `preprocess` has a wrong value; the message says which."""
        for name, value, valid in (
            ("interpolation", interpolation, get_args(Interpolation)),
            ("channel_order", channel_order, get_args(ChannelOrder)),
            ("memory_format", memory_format, get_args(MemoryFormat)),
        ):
            if value not in valid:
                raise UsageError(f"{name} {value!r} is not one of {', '.join(valid)}")
        shape = tuple(getattr(out, "shape", ()))
        planar = memory_format == "nchw"
        if len(shape) != 3 or 0 in shape or (shape[0] != 3 if planar else shape[2] < 3):
            wanted = "(3, height, width)" if planar else "(height, width, channels) array of at least 3 channels"
            raise UsageError(f"out has shape {shape or type(out)}", remedy=f"pass a {wanted} for {memory_format}")
        height, width = shape[1:] if planar else shape[:2]
        usable = not isinstance(out, np.ndarray) or (out.flags.c_contiguous and out.flags.writeable)
        if str(out.dtype) not in OUTPUTS or not usable:
            raise UsageError(
                f"out is {out.dtype}, strides {out.strides}, writeable {getattr(out.flags, 'writeable', True)}",
                remedy=f"pass a writeable C-contiguous array of {', '.join(OUTPUTS)}",
            )
        if math.prod(shape) > MAX_ELEMENTS:
            raise UsageError(f"out has {math.prod(shape)} elements, more than {MAX_ELEMENTS}")
        if len(content) != 4 or min(content[2:]) < 1:
            raise UsageError(f"content {content} is not (left, top, width, height) with at least one pixel")
        if len(mean) != 3 or len(std) != 3 or 0.0 in std:
            raise UsageError(f"mean {mean} and std {std} are not three numbers each, std without a zero")
        rows = (0, height) if rows is None else rows
        if not 0 <= rows[0] < rows[1] <= height:
            raise UsageError(f"rows {rows} are not a range within 0..{height}")
        x, y, w, h = roi or (0, 0, frame.width, frame.height)
        if min(x, y) < 0 or min(w, h) < 1 or x + w > frame.width or y + h > frame.height:
            raise UsageError(
                f"roi {roi} does not lie in the {frame.width}x{frame.height} image",
                remedy="pass (x, y, width, height) in shown pixels, at least one of each",
            )
        coded = frame.coded_width, frame.coded_height
        shown = frame.format, coded, frame.rotation, frame.matrix, frame.full_range
        dtype = np.dtype(str(out.dtype)) if str(out.dtype) != "bfloat16" else np.dtype(np.uint16)
        target = (width, height), 3 if planar else shape[2], dtype
        place = (content[0], content[1], content[2], content[3]), interpolation, pad_value
        levels = (mean[0], mean[1], mean[2]), (std[0], std[1], std[2]), channel_order
        return cls(*shown, *target, *place, *levels, memory_format, (x, y, w, h), rows)

    @property
    def output(self) -> str:
        """The output's type as kernels abbreviate it."""
        return OUTPUTS[self.dtype.name]


def to_rgb(format: PixelFormat, matrix: Matrix, full_range: bool) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """M (3, components) and o (3,): R, G, B in 0..255 = M @ components + o, where components are raw sample values.

    ITU-T H.273: limited range has luma 16..235 and chroma 16..240 around 128, all times 2^(bits-8); full range has
    0..2^bits - 1. Unused low bits (`shift`) only scale the samples. Components are in memory order.
    """
    top = float((1 << format.bits) - 1)
    raw = 1.0 / (1 << format.shift)
    # G, B, R (as FFmpeg's gbrp, H.273 matrix 0) and packed pixels are always full range.
    gbr = format.name.startswith("gbrp") or (matrix == "rgb" and format.layout != "gray")
    if format.layout == "packed" or gbr:
        names = format.channels[:3] if format.layout == "packed" else "gbr"
        return np.array([[255 / top * raw if name == row else 0.0 for name in names] for row in "rgb"]), np.zeros(3)
    unit = float(1 << (format.bits - 8))
    black, luma, chroma = (0.0, top, top) if full_range else (16 * unit, 219 * unit, 224 * unit)
    if format.layout == "gray":
        return np.full((3, 1), 255 / luma * raw), np.full(3, -255 / luma * black)
    red, blue = LUMA_WEIGHTS[matrix]
    green = 1 - red - blue
    to_green = -2 * blue * (1 - blue) / green, -2 * red * (1 - red) / green
    from_ycc = 255 * np.array([(1, 0, 2 * (1 - red)), (1, *to_green), (1, 2 * (1 - blue), 0)])
    from_ycc /= (luma, chroma, chroma)
    offset = -from_ycc @ np.array((black, 128 * unit, 128 * unit))
    if format.channels == "vu":
        from_ycc = from_ycc[:, (0, 2, 1)]
    return from_ycc * raw, offset


def coefficients(request: Request) -> NDArray[np.float32]:
    """M (9), o (3), lo (3), hi (3), pad (3) of the kernel, with mean and std folded in, per output channel."""
    matrix, offset = to_rgb(request.format, request.matrix, request.full_range)
    if request.channel_order == "bgr":
        matrix, offset = matrix[::-1], offset[::-1]
    scale = 1 / np.array(request.std, np.float64)
    bias = -np.array(request.mean, np.float64) * scale
    square = np.zeros((3, 3))
    square[:, : matrix.shape[1]] = matrix
    ends = np.sort(np.stack([bias, 255 * scale + bias]), axis=0)
    pad = (request.pad_value or 0.0) * scale + bias
    if request.output in LEVELS:
        ends, pad = ends.clip(*LEVELS[request.output]), pad.clip(*LEVELS[request.output])
    parts = (square * scale[:, None], offset * scale + bias, ends[0], ends[1], pad)
    return np.concatenate([part.ravel() for part in parts]).astype(np.float32)


@dataclass(frozen=True)
class Plan:
    """Arguments of a kernel of `tir_cpu*.py` in its order, between the addresses and the scratch."""

    name: str
    """Name of the compiled variant."""
    offset: int
    """Elements from the start of `out` to the first element written."""
    walk: tuple[int, ...]
    """The arguments from `store` to the first table."""
    tables: tuple[NDArray[Any], ...]
    strip_elements: int
    """Output elements of the scratch strip; 0 if rows are written to the output directly."""
    scratch: tuple[int, int] | None
    """Floats of a blended row of one plane, including those that are read with weight 0, and content columns, at least
    1. None: the kernel needs no scratch."""


@lru_cache(maxsize=64)
def plan(request: Request) -> Plan:
    """The Plan of a request.

    The kernel walks the output in the coded orientation. Rotation only decides which output axis is walked as rows and
    whether a table of taps is read backwards: no pixel is moved for it.
    """
    format = request.format
    (width, height), (left, top, content_width, content_height) = request.size, request.content
    first, last = request.rows
    across, down = (width, left, content_width), (last - first, top - first, content_height)
    skipped = (0, 0)
    if request.pad_value is None:  # only the image is written
        skipped = _visible(*across)[0], _visible(*down)[0]
        across, down = _shown(*across), _shown(*down)
    turned = request.rotation in (90, 270)
    columns, rows = (down, across) if turned else (across, down)
    x_visible, y_visible = _visible(*columns), _visible(*rows)
    content = (y_visible[1], x_visible[1])
    if 0 in content:  # only padding; tables keep one entry, since an empty array has no strides to check
        x_visible = y_visible = (0, 0, slice(0, 1))
        content = (0, 0)

    x, y, roi_width, roi_height = request.roi
    x_roi, y_roi = ((y, roi_height), (x, roi_width)) if turned else ((x, roi_width), (y, roi_height))

    def taps(axis: int, roi: tuple[int, int], size: int, part: slice) -> list[Taps]:
        """Taps of luma and of chroma."""
        start, length = roi
        if mirrored := request.rotation in ((180, 270), (90, 180))[axis]:
            start = request.coded[axis] - start - length
        both = [axis_taps(start, length, size, s, request.interpolation) for s in (1, format.subsample[axis])]
        return [(found[::-1] if mirrored else found)[part] for found in both]

    x_taps = taps(0, x_roi, columns[2], x_visible[2])
    y_taps = taps(1, y_roi, rows[2], y_visible[2])
    packed = len(format.channels) if format.layout == "packed" else 0
    strides = (packed or 1, 2 if format.layout == "semiplanar" else 1)
    form = filters.FORMS.get(byte_level())
    axes = _axes(request, x_taps, strides, columns[2])
    blocks = filters.windows(form, axes) if form and axes else None
    output = request.output
    values = coefficients(request)
    if output in LEVELS:
        values[9:] += 0.5 - LEVELS[output][0]  # the kernel truncates, counting from the smallest value
    tables = (
        np.stack([part for found in y_taps for part in (found.first, found.count)]),
        np.stack([filters.widened(found.weight, max(f.weight.shape[1] for f in y_taps)) for found in y_taps]).ravel(),
        values,
    )
    strip = STRIP if turned else 1
    direct = request.memory_format == "nchw" and not turned
    # Longer than a row: rows whose distance is a power of two would share a cache set.
    strip_pitch = columns[0] + STRIP
    pitches = (width * height, width, max(rows[0], 1)) if direct else (strip * strip_pitch, strip_pitch, strip)
    step = request.channels if request.memory_format == "nhwc" else 1
    across_step, down_step = step, width * step
    steps = (1 if step > 1 else width * height, *((across_step, down_step) if turned else (down_step, across_step)))
    offset = (first + skipped[1]) * down_step + skipped[0] * across_step
    strip_elements = 0 if direct else 3 * strip * strip_pitch
    walk: tuple[int, ...] = (
        *STORES[output],
        format.channels.index(request.channel_order[0]) if packed else 0,
        *pitches,
        *((0, 0, 0) if direct else steps),
        *(rows[0], columns[0], y_visible[0], x_visible[0]),
        *content,
    )
    layout = f"packed{packed}" if packed else format.layout
    if form and blocks:
        for row_weights, axis in zip(np.split(tables[1], 2), axes, strict=False):
            row_weights /= axis.unit
        name, walk = f"preprocess_{form.name}_{layout}", (*walk, blocks.blocks, blocks.halves)
        return Plan(name, offset, walk, (*tables, *blocks.tables), strip_elements, None)
    spans = [
        (int(found.first.min()) * stride, int((found.first + found.count).max()) * stride)
        for found, stride in zip(x_taps, strides, strict=True)
    ]
    x_weights = [filters.column_weights(found, stride, packed) for found, stride in zip(x_taps, strides, strict=True)]
    x_counts = [weights.shape[1] for weights in x_weights]
    if packed == 3 and x_counts[0] == 1 and x_taps[0].first.max() == request.coded[0] - 1:
        x_counts[0] = 2  # four channels are read at once, and no pixel follows the last one
    if packed and format.bits == 8:
        begin, end, pairs = filters.byte_pairs(x_taps[0], packed, request.coded[0])
    else:
        begin, end, pairs = 0, 0, np.zeros(1, np.int16)
    index = np.stack([found.first * stride for found, stride in zip(x_taps, strides, strict=True)])
    weights = filters.stacked([upper(weights).ravel() for weights in x_weights])
    name = f"preprocess_{layout}_{'u8' if format.dtype == np.uint8 else 'u16'}"
    walk = (*walk, _plain(request), *spans[0], *spans[1], *x_counts, begin, end)
    scratch = max(stop for _, stop in spans) + max(x_counts) * max(strides) + 8, max(content[1], 1)
    return Plan(name, offset, walk, (*tables, index, weights, pairs), strip_elements, scratch)


def _plain(request: Request) -> int:
    """Whether bytes of packed pixels are stored unchanged."""
    format = request.format
    if format.layout != "packed" or format.bits != 8 or request.output not in LEVELS:
        return 0
    return int(request.std == (1.0,) * 3 and request.mean == (-LEVELS[request.output][0],) * 3)


def _axes(request: Request, taps: list[Taps], strides: tuple[int, int], size: int) -> list[filters.Axis]:
    """The axes for `windows`, if a kernel with windows applies. `size`: columns of the whole content."""
    format = request.format
    if format.bits != 8 or request.interpolation not in ("nearest", "linear"):
        return []
    axes = []
    for kind, (found, stride) in enumerate(zip(taps, strides, strict=True)):
        first = found.first * stride
        unit = 2 * size * (format.subsample[0] if kind else 1)
        weight = np.rint(upper(found.weight)[:, 0] * np.float64(unit)).astype(np.int64)
        row = format.plane_shapes(*request.coded)[min(kind, format.plane_count - 1)][1] * stride
        axes.append(filters.Axis(first, first + (found.count - 1) * stride, weight, unit, min(stride, 3), row))
    return axes[: min(2, format.plane_count)]


def _visible(extent: int, start: int, size: int) -> tuple[int, int, slice]:
    """First output position of the content, positions, and the part of the content inside the output."""
    begin = max(0, start)
    count = max(min(extent, start + size) - begin, 0)
    return begin, count, slice(begin - start, begin + count - start)


def _shown(extent: int, start: int, size: int) -> tuple[int, int, int]:
    """The axis restricted to positions that show content."""
    begin, count, _ = _visible(extent, start, size)
    return count, start - begin, size
