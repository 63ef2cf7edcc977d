"""Colour conversion, YUV to RGB and back. `reference.yuv_to_rgb` and `reference.rgb_to_yuv` specify the kernels."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from numpy.typing import DTypeLike, NDArray

from framefuse.cuda import device, kernel
from framefuse.cuda.launch_plan import keep
from framefuse.errors import UsageError
from framefuse.frame import PIXEL_FORMATS, Frame, Matrix, PixelFormat
from framefuse.kernels import cpu
from framefuse.kernels.arrays import address, new, on_gpu
from framefuse.kernels.colour.layout import OUTPUTS, Image, check_target
from framefuse.kernels.colour.reference import Chroma, ImageLayout
from framefuse.kernels.preprocess.plan import LUMA_WEIGHTS, to_rgb

Planes = tuple[list[int], list[int]]
"""Address and pitch in elements of each plane of a frame, padded to three."""

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
        out = new(on_gpu(frames[0].planes[0]), shape if isinstance(frame, Frame) else (len(frames), *shape), dtype)
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
    lists = [_planes(one) for one in frames]
    # In the order of the kernels for the CPU.
    options = {"layout": code, "linear": int(chroma == "linear"), "height": height, "width": width}
    options |= {"row_pitch": target.row_pitch, "channel_pitch": target.plane_pitch, "interleaved": int(layout == "HWC")}
    if on_gpu(out):
        _launch(name, kind, lists, out, target, options, coefficients.tobytes())
        return out
    scratch = [(3, width + 4), (2, width + 4), (width + 2,)]
    work = [cpu._scratch.get(*named) for named in zip(("rgb_tints", "rgb_pair", "rgb_edged"), scratch, strict=True)]
    weights = _row_weights(kind.subsample[1])
    for number, (addresses, pitches) in enumerate(lists):
        place = *addresses, *pitches, target.address(out, number)
        cpu._function(name)(*place, *options.values(), *kind.subsample, weights, coefficients, *work)
    return out


def _planes(frame: Frame) -> Planes:
    addresses = [address(plane) for plane in frame.planes]
    pitches = [Image.of(f"plane {number}", plane, "HWC").row_pitch for number, plane in enumerate(frame.planes)]
    spare = 3 - len(addresses)
    return addresses + addresses[:1] * spare, pitches + pitches[:1] * spare


def _launch(
    name: str, kind: PixelFormat, lists: list[Planes], out: Any, target: Image, options: dict[str, int], numbers: bytes
) -> None:
    addresses, pitches = lists[0]
    if any(other != pitches for _, other in lists):
        raise UsageError("the planes of the frames differ in pitch")
    rows = [(*planes, target.address(out, number)) for number, (planes, _) in enumerate(lists)]
    table = keep(device.upload(np.array(rows, np.int64), None)) if len(rows) > 1 else 0
    shift_x, shift_y = (step.bit_length() - 1 for step in kind.subsample)
    # Four luma samples, and the two chroma pairs that belong to them, are whole words.
    sample = 1 if kind.bits == 8 else 2
    offsets = [pitches[0] * sample, pitches[1] * sample, *(number for row in rows for number in row[:2])]
    paired = kind.layout == "semiplanar" and not options["linear"] and shift_x == 1 and target.width % 4 == 0
    places: dict[str, Any] = {"table": table, "target": rows[0][3], "frames": len(rows)}
    places |= {f"address{k}": address for k, address in enumerate(addresses)}
    places |= {f"pitch{k}": pitch for k, pitch in enumerate(pitches)} | {"shift_x": shift_x, "shift_y": shift_y}
    places["vectors"] = int(target.whole_vectors(out))
    places["paired"] = int(paired and not any(offset % 4 for offset in offsets))
    kernel.launch(name, **options, **places, numbers=numbers)


def rgb_to_yuv(
    image: NDArray[Any],
    out: Sequence[NDArray[np.uint8]] | None = None,
    *,
    format: Literal["yuv420p", "nv12", "yuv444p"] = "yuv420p",
    matrix: Matrix = "bt601",
    full_range: bool = False,
    layout: ImageLayout = "HWC",
    channel_order: Literal["rgb", "bgr"] = "rgb",
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
    usable = source.dtype in (np.uint8, np.float32) and source.images == 1
    if not usable or source.planes * source.channels not in (3, 4):
        raise UsageError(f"image is {image.dtype} {image.shape}", remedy="pass uint8 or float32 with 3 or 4 channels")
    kind = PIXEL_FORMATS[format]
    shapes = kind.plane_shapes(source.width, source.height)
    planes = tuple(new(on_gpu(image), shape, np.uint8) for shape in shapes) if out is None else tuple(out)
    if tuple(tuple(plane.shape) for plane in planes) != shapes:
        raise UsageError(f"out has planes of {[plane.shape for plane in planes]}, expected {list(shapes)}")
    views = [Image.of(f"plane {number} of out", plane, "HWC") for number, plane in enumerate(planes)]
    if any(view.dtype != np.uint8 for view in views):
        raise UsageError(f"planes of out are {[str(view.dtype) for view in views]}, expected uint8")
    for plane in planes:
        check_target(image, plane)
    pitches = [view.row_pitch for view in views]
    addresses = [address(plane) for plane in planes]
    if kind.layout == "semiplanar":  # V begins one sample after U
        addresses.append(addresses[1] + 1)
        pitches.append(pitches[1])
    name = f"rgb_to_yuv_{OUTPUTS[source.dtype]}"
    weights = _yuv_coefficients(matrix, full_range, channel_order)
    # In the order of the kernels for the CPU.
    places = {"image": address(image), "image_pitch": source.row_pitch, "channel_pitch": source.plane_pitch or 1}
    places |= {"step": source.channels, "height": source.height, "width": source.width}
    places |= {f"address{k}": plane for k, plane in enumerate(addresses)}
    places |= {f"pitch{k}": pitch for k, pitch in enumerate(pitches)}
    places |= {"chroma_step": 2 if kind.layout == "semiplanar" else 1, "subsample": kind.subsample[1]}
    if on_gpu(image):
        kernel.launch(name, **places, numbers=weights.tobytes())
    else:
        cpu._function(name)(*places.values(), weights, cpu._scratch.get("yuv_rows", (9, source.width + 1)))
    return planes


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
    """M (9), o (3), lo (3), hi (3), and two unused: one output channel = clip(M @ components + o, lo, hi)."""
    rows, offset = to_rgb(kind, matrix, full_range)
    if channel_order == "bgr":
        rows, offset = rows[::-1], offset[::-1]
    square = np.zeros((3, 3))
    square[:, : rows.shape[1]] = rows * scale
    parts = (square.ravel(), offset * scale + tie, np.zeros(3), np.full(3, 255 * scale), np.zeros(2))
    return np.concatenate(parts).astype(np.float32)
