"""What a preprocess kernel is told besides pixels: taps in exact integers, colour as one matrix, the way it walks.

A Plan depends on sizes and options only, never on pixels or addresses, so a video computes it once.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from framefuse.errors import UsageError
from framefuse.frame import Frame, Matrix, PixelFormat, Rotation

Interpolation = Literal["nearest", "linear"]
ChannelOrder = Literal["rgb", "bgr"]
Content = tuple[int, int, int, int]
Triple = tuple[float, float, float]

STRIP = 16
"""Rows that are turned together when the rotation is by 90 degrees: a cache line of float32."""

OUTPUTS = {np.dtype(np.float32): "f32", np.dtype(np.float16): "f16", np.dtype(np.uint8): "u8"}
"""Output dtypes, and how the names of the kernels abbreviate them."""

MAX_ELEMENTS = 2**31 - 1
"""Elements of an output or of a plane, its pitch included: the kernels count in 32 bits."""

LUMA_WEIGHTS: dict[str, tuple[float, float]] = {
    "bt601": (0.299, 0.114),
    "bt709": (0.2126, 0.0722),
    "bt2020": (0.2627, 0.0593),
}
"""K_R and K_B of ITU-R BT.601, BT.709 and BT.2020 (non-constant luminance)."""


class Request(NamedTuple):
    """The arguments of `preprocess` that decide a Plan; all of them hashable."""

    format: PixelFormat
    coded: tuple[int, int]
    """Width and height of the coded picture."""
    rotation: Rotation
    matrix: Matrix
    full_range: bool
    size: tuple[int, int]
    """Width and height of the whole output."""
    dtype: np.dtype[Any]
    content: Content
    interpolation: Interpolation
    pad_value: float
    mean: Triple
    std: Triple
    channel_order: ChannelOrder
    rows: tuple[int, int]

    @classmethod
    def of(
        cls,
        frame: Frame,
        out: NDArray[Any],
        content: Content,
        interpolation: Interpolation,
        pad_value: float,
        mean: Triple,
        std: Triple,
        channel_order: ChannelOrder,
        rows: tuple[int, int] | None,
    ) -> Request:
        """Collect and check the arguments of `preprocess`.

        Raises:
            UsageError: an argument has a wrong value; the message says which.
        """
        if not isinstance(out, np.ndarray) or out.ndim != 3 or out.shape[0] != 3 or 0 in out.shape:
            raise UsageError(
                f"out has shape {getattr(out, 'shape', type(out))}", remedy="pass a (3, height, width) array"
            )
        if out.dtype not in OUTPUTS or not out.flags.c_contiguous or not out.flags.writeable:
            raise UsageError(
                f"out is {out.dtype}, strides {out.strides}, writeable {out.flags.writeable}",
                remedy=f"pass a writeable C-contiguous array of {', '.join(map(str, OUTPUTS))}",
            )
        if out.size > MAX_ELEMENTS:
            raise UsageError(f"out has {out.size} elements, more than {MAX_ELEMENTS}")
        if interpolation not in ("nearest", "linear"):
            raise UsageError(f"interpolation {interpolation!r} is not 'nearest' or 'linear'")
        if channel_order not in ("rgb", "bgr"):
            raise UsageError(f"channel_order {channel_order!r} is not 'rgb' or 'bgr'")
        if len(content) != 4 or min(content[2:]) < 1:
            raise UsageError(f"content {content} is not (left, top, width, height) with at least one pixel")
        if len(mean) != 3 or len(std) != 3 or 0.0 in std:
            raise UsageError(f"mean {mean} and std {std} are not three numbers each, std without a zero")
        _, height, width = out.shape
        rows = (0, height) if rows is None else rows
        if not 0 <= rows[0] < rows[1] <= height:
            raise UsageError(f"rows {rows} are not a range within 0..{height}")
        return cls(
            frame.format,
            (frame.coded_width, frame.coded_height),
            frame.rotation,
            frame.matrix,
            frame.full_range,
            (width, height),
            out.dtype,
            (content[0], content[1], content[2], content[3]),
            interpolation,
            pad_value,
            (mean[0], mean[1], mean[2]),
            (std[0], std[1], std[2]),
            channel_order,
            rows,
        )


@dataclass(frozen=True)
class Taps:
    """Per output sample along one axis: value = source[lower] * (1 - weight) + source[upper] * weight."""

    lower: NDArray[np.int32]
    upper: NDArray[np.int32]
    weight: NDArray[np.float32]

    def __getitem__(self, part: slice) -> Taps:
        return Taps(self.lower[part], self.upper[part], self.weight[part])


@lru_cache(maxsize=256)
def axis_taps(source: int, target: int, subsample: int, interpolation: Interpolation) -> Taps:
    """Taps that resize `source` pixels to `target`, for a plane with one sample for every `subsample` pixels.

    linear: output i sits at (i + 1/2) * source / target in pixels (half-pixel centres), so at that / subsample - 1/2 in
    samples, clamped to the outermost ones. Numerator and denominator stay integers, so positions are exact at any size.
    nearest: pixel floor((2i + 1) * source / (2 * target)), and the sample that covers it. `reference.preprocess` says
    where chroma sits.
    """
    samples = -(-source // subsample)
    odd = 2 * np.arange(target, dtype=np.int64) + 1
    if interpolation == "nearest":
        lower = odd * source // (2 * target) // subsample
        weight = np.zeros(target)
    else:
        numerator, denominator = odd * source - subsample * target, 2 * subsample * target
        lower = numerator // denominator
        inside = (lower >= 0) & (lower < samples - 1)
        weight = np.where(inside, (numerator - lower * denominator) / denominator, 0.0)
        lower = lower.clip(0, samples - 1)
    upper = np.minimum(lower + 1, samples - 1)
    return Taps(lower.astype(np.int32), upper.astype(np.int32), weight.astype(np.float32))


def is_rgb(format: PixelFormat, matrix: Matrix) -> bool:
    """Whether the components are G, B, R (as FFmpeg's gbrp, H.273 matrix 0) or packed, and so always full range."""
    return format.layout == "packed" or format.name.startswith("gbrp") or (matrix == "rgb" and format.layout != "gray")


def to_rgb(format: PixelFormat, matrix: Matrix, full_range: bool) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """M (3, components) and o (3,): R, G, B in 0..255 = M @ components + o, where components are raw sample values.

    ITU-T H.273: limited range has luma 16..235 and chroma 16..240 around 128, all times 2^(bits-8); full range has
    0..2^bits - 1. Unused low bits (`shift`) only scale the samples. Components are in memory order.
    """
    top = float((1 << format.bits) - 1)
    raw = 1.0 / (1 << format.shift)
    if is_rgb(format, matrix):
        names = format.channels[:3] if format.layout == "packed" else "gbr"
        return np.array([[255 / top * raw if name == row else 0.0 for name in names] for row in "rgb"]), np.zeros(3)
    unit = float(1 << (format.bits - 8))
    black, luma, chroma = (0.0, top, top) if full_range else (16 * unit, 219 * unit, 224 * unit)
    if format.layout == "gray":
        return np.full((3, 1), 255 / luma * raw), np.full(3, -255 / luma * black)
    red, blue = LUMA_WEIGHTS[matrix]
    green = 1 - red - blue
    from_ycc = 255 * np.array(
        [
            [1, 0, 2 * (1 - red)],
            [1, -2 * blue * (1 - blue) / green, -2 * red * (1 - red) / green],
            [1, 2 * (1 - blue), 0],
        ]
    )
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
    pad = request.pad_value * scale + bias
    if request.dtype == np.uint8:
        ends, pad = ends.clip(0, 255), pad.clip(0, 255)
    parts = (square * scale[:, None], offset * scale + bias, ends[0], ends[1], pad)
    return np.concatenate([part.ravel() for part in parts]).astype(np.float32)


@dataclass(frozen=True)
class Plan:
    """Arguments of a kernel, in its order, between the addresses of the planes and the scratch."""

    name: str
    """Name of the compiled variant."""
    offset: int
    """Elements from the start of `out` to the first element written."""
    walk: tuple[int, ...]
    """Everything from `channel_pitch` to `stop1` in `tir/preprocess.py`."""
    tables: tuple[NDArray[Any], ...]
    """Column index and weight, row index and weight, coefficients."""
    row_elements: int
    """Floats of scratch for a blended row of one plane."""
    columns: int
    """Content columns (at least 1), each of which needs 4 floats of scratch a plane."""
    strip_elements: int
    """Output elements of scratch in which rows are turned; 0 unless the rotation is by 90 or 270 degrees."""


@lru_cache(maxsize=64)
def plan(request: Request) -> Plan:
    """The Plan of a request.

    The kernel walks the output in the coded orientation. Rotation is therefore a matter of which output axis is walked
    as rows, and of reading a table of taps backwards: no pixel is moved for it.
    """
    (width, height), (left, top, content_width, content_height) = request.size, request.content
    first, last = request.rows
    across, down = (width, left, content_width), (last - first, top - first, content_height)
    turned = request.rotation in (90, 270)
    columns, rows = (down, across) if turned else (across, down)
    sub_x, sub_y = request.format.subsample
    coded_width, coded_height = request.coded
    mirror_columns, mirror_rows = request.rotation in (180, 270), request.rotation in (90, 180)

    def visible(extent: int, start: int, size: int) -> tuple[int, slice]:
        """First output position of the content, and the part of the content that lies on the output."""
        begin, end = max(0, start), min(extent, start + size)
        return begin, slice(begin - start, end - start)

    def pair(source: int, size: int, subsample: int, mirrored: bool, part: slice) -> tuple[Taps, Taps]:
        both = [axis_taps(source, size, s, request.interpolation) for s in (1, subsample)]
        luma, chroma = (taps[::-1][part] if mirrored else taps[part] for taps in both)
        return luma, chroma

    column_at, column_part = visible(*columns)
    row_at, row_part = visible(*rows)
    content = (row_part.stop - row_part.start, column_part.stop - column_part.start)
    if min(content) <= 0:  # all padding; tables keep one entry, since an array of none has no strides to check
        row_at, column_at, row_part, column_part, content = 0, 0, slice(0, 1), slice(0, 1), (0, 0)
    x_taps = pair(coded_width, columns[2], sub_x, mirror_columns, column_part)
    y_taps = pair(coded_height, rows[2], sub_y, mirror_rows, row_part)

    layout = request.format.layout + (str(len(request.format.channels)) if request.format.layout == "packed" else "")
    strides = (len(request.format.channels) if request.format.layout == "packed" else 1, 1 + (layout == "semiplanar"))
    spans = [
        (int(taps.lower.min()) * stride, (int(taps.upper.max()) + 1) * stride)
        for taps, stride in zip(x_taps, strides, strict=True)
    ]
    tables = (
        np.stack([taps.lower * stride for taps, stride in zip(x_taps, strides, strict=True)]).astype(np.int32),
        np.stack([taps.weight for taps in x_taps]),
        np.stack([index for taps in y_taps for index in (taps.lower, taps.upper)]),
        np.stack([taps.weight for taps in y_taps]),
        coefficients(request),
    )
    # A little longer than a row: rows at a power of two from each other would all share one cache set.
    strip_pitch = columns[0] + STRIP
    pitches = (
        (STRIP * strip_pitch, strip_pitch, STRIP, width * height, width)
        if turned
        else (width * height, width, rows[0], 0, 0)
    )
    sample = "u8" if request.format.dtype == np.uint8 else "u16"
    return Plan(
        f"preprocess_{layout}_{sample}_{OUTPUTS[request.dtype]}",
        first * width,
        (*pitches, rows[0], columns[0], row_at, column_at, *content, *spans[0], *spans[1]),
        tables,
        max(stop for _, stop in spans),
        max(content[1], 1),
        3 * STRIP * strip_pitch if turned else 0,
    )
