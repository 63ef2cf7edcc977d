"""Colour conversion, channel-wise normalisation and layout change in plain numpy float64: their specification."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import DTypeLike, NDArray

from framefuse.frame import PIXEL_FORMATS, Frame, Matrix

ImageLayout = Literal["HWC", "CHW"]
Chroma = Literal["nearest", "linear"]
Array = NDArray[np.float64]

TIE = 1e-9
"""Added before rounding, so that exact halves go up in spite of the rounding of float64."""

LUMA_WEIGHTS = {"bt601": (0.299, 0.114), "bt709": (0.2126, 0.0722), "bt2020": (0.2627, 0.0593)}
"""K_R and K_B of ITU-R BT.601, BT.709 and BT.2020 (non-constant luminance)."""


def yuv_to_rgb(
    frame: Frame,
    out: NDArray[Any] | None = None,
    *,
    dtype: DTypeLike = np.uint8,
    layout: ImageLayout = "HWC",
    channel_order: Literal["rgb", "bgr"] = "rgb",
    chroma: Chroma = "nearest",
    scale: float = 1.0,
) -> NDArray[Any]:
    """out[y, x] = scale * clip(RGB of the frame's samples at (x, y), 0, 255), at the frame's own size.

    Colour (ITU-T H.273): with K_R, K_B of the frame's matrix and K_G = 1 - K_R - K_B,
        R = Y + 2 (1 - K_R) Cr
        G = Y - 2 K_B (1 - K_B) / K_G Cb - 2 K_R (1 - K_R) / K_G Cr
        B = Y + 2 (1 - K_B) Cb
    where, for samples v of n bits, limited range has Y = (v / 2^(n-8) - 16) / 219 and C = (v / 2^(n-8) - 128) / 224,
    and full range Y = v / (2^n - 1) and C = (v - 2^(n-1)) / (2^n - 1). Gray is Y alone. Packed and gbrp formats, and
    any format whose matrix is "rgb", are R, G, B at full range already.
    The image stays in the coded orientation: np.rot90(out, -frame.rotation // 90) is the upright view.

    Args:
        frame: the image, of any format of frame.PIXEL_FORMATS.
        out: (height, width, 3) or (3, height, width) of the coded size, by `layout`; None allocates it.
        dtype: of a new `out`: uint8 (rounds to nearest, halves up, saturates), float32 or float16.
        layout: of `out`.
        channel_order: of `out`.
        chroma: "nearest": each pixel takes the chroma sample that covers it, as OpenCV and swscale's unscaled path do.
            "linear": interpolated between samples sited in the centre of the pixels that they cover, clamped at the
            edges, as `preprocess` does.
        scale: 1 gives grey levels 0..255, 1 / 255 gives 0..1.

    Returns:
        `out`.
    """
    rgb = _rgb(frame, chroma) * scale
    return write(rgb if channel_order == "rgb" else rgb[::-1], out, dtype, layout)


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
    """Y = K_R R + K_G G + K_B B, Cb = (B - Y) / (2 (1 - K_B)), Cr = (R - Y) / (2 (1 - K_R)), then 8-bit codes.

    Codes (ITU-T H.273): limited range 16 + 219 Y and 128 + 224 C, full range 255 Y and 128 + 255 C, for R, G, B in
    0..1; rounded to nearest, halves up, and saturated.

    Chroma siting: centred. A 4:2:0 sample is the mean of the (up to) four pixels that it covers, computed before
    rounding; with odd sizes the last column or row averages the pixels that exist.

    Args:
        image: (height, width, 3 or 4) or (3 or 4, height, width), uint8, or float32 in 0..255. A fourth channel is
            ignored.
        out: the planes of `format`, as frame.PixelFormat.plane_shapes gives them; None allocates them.
        layout: of `image`.
        channel_order: of `image`.

    Returns:
        The planes.
    """
    planar = (image if layout == "CHW" else np.moveaxis(image, 2, 0))[:3].astype(np.float64) / 255
    red, green, blue = planar if channel_order == "rgb" else planar[::-1]
    height, width = red.shape
    k_r, k_b = LUMA_WEIGHTS[matrix]
    y = k_r * red + (1 - k_r - k_b) * green + k_b * blue
    pair = (blue - y) / (2 * (1 - k_b)), (red - y) / (2 * (1 - k_r))
    if format != "yuv444p":
        pair = _mean_of_pixels(pair[0]), _mean_of_pixels(pair[1])
    luma = 255 * y if full_range else 16 + 219 * y
    u, v = (128 + (255 if full_range else 224) * c for c in pair)
    kind = PIXEL_FORMATS[format]
    planes = tuple(np.empty(shape, np.uint8) for shape in kind.plane_shapes(width, height)) if out is None else out
    values = (luma, np.stack((u, v), axis=2)) if format == "nv12" else (luma, u, v)
    for plane, value in zip(planes, values, strict=True):
        plane[:] = np.floor(value + 0.5 + TIE).clip(0, 255)
    return tuple(planes)


def normalize(
    image: NDArray[Any],
    mean: Sequence[float],
    std: Sequence[float],
    out: NDArray[Any] | None = None,
    *,
    dtype: DTypeLike = np.float32,
    layout: ImageLayout = "HWC",
    out_layout: ImageLayout | None = None,
) -> NDArray[Any]:
    """out[c, y, x] = (image[c, y, x] - mean[c]) / std[c], in another layout if `out_layout` differs.

    Args:
        image: (height, width, C) or (C, height, width) by `layout`; uint8, float32 or float16, with C = 1, 3 or 4.
            A leading axis of images is allowed.
        mean, std: one number per channel, in the units of `image`.
        out: float32 or float16, in `out_layout`; None allocates it.
        dtype: of a new `out`.
        out_layout: of `out`; None keeps `layout`.

    Returns:
        `out`.
    """
    planar = (image if layout == "CHW" else np.moveaxis(image, -1, -3)).astype(np.float64)
    column = (-1, 1, 1)
    value = (planar - np.reshape(mean, column)) / np.reshape(std, column)
    return write(value, out, dtype, out_layout or layout)


def change_layout(image: NDArray[Any], out: NDArray[Any] | None = None, *, layout: ImageLayout = "HWC") -> NDArray[Any]:
    """out[c, y, x] = image[y, x, c] for `layout` "HWC", out[y, x, c] = image[c, y, x] for "CHW"; always a copy.

    If a strided view is enough, np.moveaxis(image, -1, -3) costs nothing.

    Args:
        image: (height, width, C) or (C, height, width) by `layout`; uint8, float32 or float16, with C = 1, 3 or 4.
            A leading axis of images is allowed.
        layout: of `image`.

    Returns:
        `out`, of the dtype of `image`, in the other layout.
    """
    planar = image if layout == "CHW" else np.moveaxis(image, -1, -3)
    return write(planar, out, image.dtype, "HWC" if layout == "CHW" else "CHW")


def write(planar: NDArray[Any], out: NDArray[Any] | None, dtype: DTypeLike, layout: ImageLayout) -> NDArray[Any]:
    """Store (..., C, H, W) values in `layout`; uint8 rounds to nearest, halves up, and saturates."""
    value = planar if layout == "CHW" else np.moveaxis(planar, -3, -1)
    if out is None:
        out = np.zeros(value.shape, dtype)
    if out.dtype == np.uint8 and value.dtype != np.uint8:
        value = np.floor(value + 0.5 + TIE).clip(0, 255)
    out[...] = value
    return out


def _mean_of_pixels(samples: Array) -> Array:
    """Mean of each 2x2 block; blocks at odd edges hold the samples that exist."""
    height, width = samples.shape
    edged = np.pad(samples, ((0, height % 2), (0, width % 2)), mode="edge")
    mean: Array = edged.reshape(edged.shape[0] // 2, 2, edged.shape[1] // 2, 2).mean(axis=(1, 3))
    return mean


def _rgb(frame: Frame, chroma: Chroma) -> Array:
    """R, G, B of a frame as (3, height, width) in 0..255, in the coded orientation."""
    y, *differences = components(frame)
    return rgb_of(frame, [y, *(_upsample(plane, y.shape, frame.format.subsample, chroma) for plane in differences)])


def components(frame: Frame) -> list[Array]:
    """Y, U and V of a frame, or G, B and R, or Y alone, or R, G and B of a packed one, each as a plane of its own."""
    kind = frame.format
    planes = [plane / 2.0**kind.shift for plane in frame.planes]
    if kind.layout == "packed":
        return [planes[0][:, :, kind.channels.index(name)] for name in "rgb"]
    if kind.layout == "semiplanar":
        u, v = np.moveaxis(planes[1], 2, 0)
        return [planes[0], v, u] if kind.channels == "vu" else [planes[0], u, v]
    return planes


def rgb_of(frame: Frame, parts: Sequence[Array]) -> Array:
    """R, G, B in 0..255 along a new first axis, from the `components` of a frame at one size; see `yuv_to_rgb`."""
    kind = frame.format
    top, unit = 2.0**kind.bits - 1, 2.0 ** (kind.bits - 8)
    if kind.layout == "packed":
        return np.stack(parts) * 255 / top
    if kind.name.startswith("gbrp") or (frame.matrix == "rgb" and kind.layout != "gray"):
        green, blue, red = parts
        return np.stack([red, green, blue]) * 255 / top
    luma = parts[0] / top if frame.full_range else (parts[0] / unit - 16) / 219
    if kind.layout == "gray":
        return np.stack([luma] * 3).clip(0, 1) * 255
    cb, cr = ((c - 128 * unit) / top if frame.full_range else (c / unit - 128) / 224 for c in parts[1:])
    k_r, k_b = LUMA_WEIGHTS[frame.matrix]
    k_g = 1 - k_r - k_b
    red = luma + 2 * (1 - k_r) * cr
    green = luma - 2 * k_b * (1 - k_b) / k_g * cb - 2 * k_r * (1 - k_r) / k_g * cr
    blue = luma + 2 * (1 - k_b) * cb
    return np.stack([red, green, blue]).clip(0, 1) * 255


def _upsample(plane: Array, shape: tuple[int, ...], subsample: tuple[int, int], chroma: Chroma) -> Array:
    """A chroma plane at the size of luma; see `yuv_to_rgb` for the siting."""
    for axis, step in ((0, subsample[1]), (1, subsample[0])):
        pixels, last = np.arange(shape[axis]), plane.shape[axis] - 1
        if chroma == "nearest":
            plane = np.take(plane, pixels // step, axis)
            continue
        position = ((pixels + 0.5) / step - 0.5).clip(0, last)
        lower = np.floor(position).astype(int)
        weight = (position - lower).reshape((-1, 1) if axis == 0 else (1, -1))
        plane = np.take(plane, lower, axis) * (1 - weight) + np.take(plane, np.minimum(lower + 1, last), axis) * weight
    return plane
