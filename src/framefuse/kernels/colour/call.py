"""Colour conversion, YUV to RGB and back. `reference.yuv_to_rgb` and `reference.rgb_to_yuv` specify the kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from numpy.typing import DTypeLike, NDArray

from framefuse.cuda.launch_plan import keep
from framefuse.errors import UsageError
from framefuse.frame import PIXEL_FORMATS, Frame, Matrix, PixelFormat
from framefuse.kernels import cpu
from framefuse.kernels.colour.image import Image, check_target, checked_rows, new, on_gpu
from framefuse.kernels.colour.reference import Chroma, ImageLayout
from framefuse.kernels.preprocess.plan import LUMA_WEIGHTS, to_rgb

OUTPUTS = {np.dtype(np.uint8): "u8", np.dtype(np.float32): "f32", np.dtype(np.float16): "f16"}
LAYOUT_CODES = {"planar": 0, "semiplanar": 1, "packed3": 2, "packed4": 3, "gray": 4}
"""As in `tir_cpu.py`."""

TIE = 1e-4
"""Grey levels that are added before rounding to uint8, so that exact halves, which the formulas produce, go up although
float32 is off by up to half of this."""


def yuv_to_rgb(
    frame: Frame | Sequence[Frame],
    out: NDArray[Any] | None = None,
    *,
    dtype: DTypeLike = np.uint8,
    layout: ImageLayout = "HWC",
    channel_order: Literal["rgb", "bgr"] = "rgb",
    chroma: Chroma = "nearest",
    scale: float = 1.0,
    rows: tuple[int, int] | None = None,
) -> NDArray[Any]:
    """RGB of a frame of any pixel format, at its own size. `reference.yuv_to_rgb` states formula and arguments.

    Several frames of one format, size, matrix and range fill a batch, (frames, height, width, 3) or
    (frames, 3, height, width). On a GPU that is one launch, for which each call uploads their addresses; to capture it
    in a CUDA graph, record it with `record_launches` first and capture the plan.

    Raises:
        UsageError: an argument or a plane cannot be used; the message says which and why.
    """
    frames = [frame] if isinstance(frame, Frame) else list(frame)
    if channel_order not in ("rgb", "bgr") or chroma not in ("nearest", "linear"):
        raise UsageError(
            f"channel_order {channel_order!r} is not rgb or bgr, or chroma {chroma!r} not nearest or linear"
        )
    if not 0 < scale < np.inf:
        raise UsageError(f"scale {scale} is not a positive number")
    kinds = {(f.format, f.coded_width, f.coded_height, f.matrix, f.full_range) for f in frames}
    if len(kinds) != 1:
        raise UsageError(f"{len(frames)} frames differ in format, size, matrix or range, or there is none")
    kind, width, height, matrix, full_range = kinds.pop()
    if out is None:
        shape = (height, width, 3) if layout == "HWC" else (3, height, width)
        out = new(frames[0].planes[0], shape if isinstance(frame, Frame) else (len(frames), *shape), dtype)
    target = Image.of("out", out, layout)
    wanted = (len(frames), *((1, 3) if layout == "HWC" else (3, 1)), height, width)
    if (target.images, target.planes, target.channels, target.height, target.width) != wanted:
        raise UsageError(f"out has shape {tuple(out.shape)}, which does not fit {len(frames)} of {width}x{height}")
    if target.dtype not in OUTPUTS:
        raise UsageError(f"out is {out.dtype}", remedy="pass uint8, float32 or float16")
    for plane in (plane for f in frames for plane in f.planes):
        check_target(plane, out)
    name = f"yuv_to_rgb_{'u8' if kind.bits == 8 else 'u16'}_{OUTPUTS[target.dtype]}"
    code = LAYOUT_CODES[kind.layout + (str(len(kind.channels)) if kind.layout == "packed" else "")]
    tie = TIE if target.dtype == np.uint8 else 0.0
    coefficients = _coefficients(kind, matrix, full_range, channel_order, scale, tie)
    part = checked_rows(rows, height)
    if on_gpu(out):
        if part != (0, height):
            raise UsageError(f"rows {rows}: on a GPU all rows are made in one launch")
        _yuv_to_rgb_cuda(name, frames, out, target, code, chroma == "linear", coefficients)
        return out
    sub_x, sub_y = kind.subsample
    for number, one in enumerate(frames):
        addresses, pitches = _planes(one, cpu._address)
        cpu._function(name)(
            *addresses,
            *pitches,
            code,
            sub_x,
            sub_y,
            int(chroma == "linear"),
            height,
            width,
            *part,
            cpu._address(out) + number * target.image_pitch * target.dtype.itemsize,
            target.row_pitch,
            target.plane_pitch,
            int(layout == "HWC"),
            _row_weights(sub_y),
            coefficients,
            cpu._scratch.get("rgb_tints", (3, width + 4)),
            cpu._scratch.get("rgb_pair", (2, width + 4)),
            cpu._scratch.get("rgb_edged", (width + 2,)),
        )
    return out


def _planes(frame: Frame, address: Callable[[Any], int]) -> tuple[list[int], list[int]]:
    """Address and pitch in elements of each plane, padded to three."""
    addresses = [address(plane) for plane in frame.planes]
    pitches = [Image.of(f"plane {number}", plane, "HWC").row_pitch for number, plane in enumerate(frame.planes)]
    spare = 3 - len(addresses)
    return addresses + addresses[:1] * spare, pitches + pitches[:1] * spare


def _yuv_to_rgb_cuda(
    name: str,
    frames: list[Frame],
    out: Any,
    target: Image,
    code: int,
    linear: bool,
    coefficients: NDArray[np.float32],
) -> None:
    from framefuse.cuda import device, kernel

    written, size = device.address(out), target.dtype.itemsize
    lists = [_planes(frame, device.address) for frame in frames]
    if any(pitches != lists[0][1] for _, pitches in lists):
        raise UsageError("the planes of the frames differ in pitch")
    table: Any = 0
    if len(frames) > 1:
        rows = [
            (*addresses, written + number * target.image_pitch * size) for number, (addresses, _) in enumerate(lists)
        ]
        table = keep(device.upload(np.array(rows, np.int64), None))
    (address0, address1, address2), (pitch0, pitch1, pitch2) = lists[0]
    shift_x, shift_y = (step.bit_length() - 1 for step in frames[0].format.subsample)
    pitches = (target.row_pitch, target.plane_pitch, target.image_pitch)
    whole = target.width % 4 == 0 and all(pitch % 4 == 0 for pitch in pitches) and written % (4 * size) == 0
    # Four luma samples, and the two chroma pairs that belong to them, are whole words.
    sample = 1 if frames[0].format.bits == 8 else 2
    offsets = [pitch0 * sample, pitch1 * sample, *(number for addresses, _ in lists for number in addresses[:2])]
    paired = (
        code == LAYOUT_CODES["semiplanar"]
        and not linear
        and shift_x == 1
        and target.width % 4 == 0
        and not any(offset % 4 for offset in offsets)
    )
    numbers = [float(number) for number in coefficients]
    matrix: dict[str, Any] = {f"m{k}": numbers[k] for k in range(9)}
    matrix |= {f"o{k}": numbers[9 + k] for k in range(3)}
    kernel.launch(
        name,
        table=table,
        address0=address0,
        address1=address1,
        address2=address2,
        target=written,
        pitch0=pitch0,
        pitch1=pitch1,
        pitch2=pitch2,
        layout=code,
        shift_x=shift_x,
        shift_y=shift_y,
        linear=int(linear),
        height=target.height,
        width=target.width,
        frames=len(frames),
        row_pitch=target.row_pitch,
        channel_pitch=target.plane_pitch,
        interleaved=int(target.planes == 1),
        vectors=int(whole),
        paired=int(paired),
        **matrix,
        low=numbers[12],
        high=numbers[15],
    )


def rgb_to_yuv(
    image: NDArray[Any],
    out: Sequence[NDArray[np.uint8]] | None = None,
    *,
    format: Literal["yuv420p", "nv12", "yuv444p"] = "yuv420p",
    matrix: Matrix = "bt601",
    full_range: bool = False,
    layout: ImageLayout = "HWC",
    channel_order: Literal["rgb", "bgr"] = "rgb",
    rows: tuple[int, int] | None = None,
) -> tuple[NDArray[np.uint8], ...]:
    """The planes of an RGB image. `reference.rgb_to_yuv` states formula, chroma siting and arguments.

    Raises:
        UsageError: an argument cannot be used; the message says which and why.
    """
    if format not in ("yuv420p", "nv12", "yuv444p") or matrix not in LUMA_WEIGHTS:
        raise UsageError(f"format {format!r} or matrix {matrix!r} is not one of yuv420p, nv12, yuv444p; bt601 ...")
    if channel_order not in ("rgb", "bgr"):
        raise UsageError(f"channel_order {channel_order!r} is not 'rgb' or 'bgr'")
    source = Image.of("image", image, layout)
    if (
        source.dtype not in (np.uint8, np.float32)
        or source.images != 1
        or source.planes * source.channels not in (3, 4)
    ):
        raise UsageError(f"image is {image.dtype} {image.shape}", remedy="pass uint8 or float32 with 3 or 4 channels")
    kind = PIXEL_FORMATS[format]
    shapes = kind.plane_shapes(source.width, source.height)
    planes = tuple(new(image, shape, np.uint8) for shape in shapes) if out is None else tuple(out)
    if tuple(tuple(plane.shape) for plane in planes) != shapes:
        raise UsageError(f"out has planes of {[plane.shape for plane in planes]}, expected {list(shapes)}")
    views = [Image.of(f"plane {number} of out", plane, "HWC") for number, plane in enumerate(planes)]
    if any(view.dtype != np.uint8 for view in views):
        raise UsageError(f"planes of out are {[str(view.dtype) for view in views]}, expected uint8")
    for plane in planes:
        check_target(image, plane)
    first, last = checked_rows(rows, source.height)
    subsample = kind.subsample[1]
    if first % subsample or (last % subsample and last != source.height):
        raise UsageError(f"rows {rows} cut a chroma sample of {format} in two", remedy="use even rows")
    pitches = [view.row_pitch for view in views]
    addresses = [_address(plane) for plane in planes]
    if kind.layout == "semiplanar":  # V begins one sample after U
        addresses.append(addresses[1] + 1)
        pitches.append(pitches[1])
    name = f"rgb_to_yuv_{OUTPUTS[source.dtype]}"
    channel_pitch = source.plane_pitch or 1
    chroma_step = 2 if kind.layout == "semiplanar" else 1
    weights = _yuv_coefficients(matrix, full_range, channel_order)
    if on_gpu(image):
        if (first, last) != (0, source.height):
            raise UsageError(f"rows {rows}: on a GPU all rows are made in one launch")
        from framefuse.cuda import device, kernel

        numbers: dict[str, Any] = {f"w{k}": float(weight) for k, weight in enumerate(weights)}
        kernel.launch(
            name,
            image=device.address(image),
            image_pitch=source.row_pitch,
            channel_pitch=channel_pitch,
            step=source.channels,
            height=source.height,
            width=source.width,
            **{f"address{k}": address for k, address in enumerate(addresses)},
            **{f"pitch{k}": pitch for k, pitch in enumerate(pitches)},
            chroma_step=chroma_step,
            subsample=subsample,
            **numbers,
        )
        return planes
    cpu._function(name)(
        cpu._address(image),
        source.row_pitch,
        channel_pitch,
        source.channels,
        source.height,
        source.width,
        first,
        last,
        *addresses,
        *pitches,
        chroma_step,
        subsample,
        weights,
        cpu._scratch.get("yuv_rows", (9, source.width + 1)),
    )
    return planes


def _address(array: Any) -> int:
    if not on_gpu(array):
        return cpu._address(array)
    from framefuse.cuda import device

    return device.address(array)


@lru_cache(maxsize=32)
def _yuv_coefficients(matrix: Matrix, full_range: bool, channel_order: str) -> NDArray[np.float32]:
    """Three weights, in the order of the channels, and an offset, for each of Y, Cb and Cr."""
    red, blue = LUMA_WEIGHTS[matrix]
    weights = np.array((red, 1 - red - blue, blue))
    luma, chroma, black = (1.0, 1.0, 0.0) if full_range else (219 / 255, 224 / 255, 16.0)
    parts = np.stack([weights, (np.eye(3)[2] - weights) / (2 * (1 - blue)), (np.eye(3)[0] - weights) / (2 * (1 - red))])
    parts *= np.array((luma, chroma, chroma))[:, None]
    ordered = parts if channel_order == "rgb" else parts[:, ::-1]
    return np.hstack([ordered, np.array([[black], [128.0], [128.0]]) + TIE]).astype(np.float32).ravel()


@lru_cache(maxsize=8)
def _row_weights(sub_y: int) -> NDArray[np.float32]:
    """Weight of the neighbouring chroma row, for each luma row that a sample covers."""
    return np.abs((2 * np.arange(sub_y) + 1 - sub_y) / (2 * sub_y)).astype(np.float32)


@lru_cache(maxsize=64)
def _coefficients(
    kind: PixelFormat, matrix: Matrix, full_range: bool, channel_order: str, scale: float, tie: float
) -> NDArray[np.float32]:
    """M (9), o (3), lo (3), hi (3): one output channel = clip(M @ components + o, lo, hi)."""
    rows, offset = to_rgb(kind, matrix, full_range)
    if channel_order == "bgr":
        rows, offset = rows[::-1], offset[::-1]
    square = np.zeros((3, 3))
    square[:, : rows.shape[1]] = rows * scale
    parts = (square.ravel(), offset * scale + tie, np.zeros(3), np.full(3, 255 * scale))
    return np.concatenate(parts).astype(np.float32)
