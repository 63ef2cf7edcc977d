"""Every kernel in plain numpy float64: the executable specification. Slow and obvious on purpose."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from framefuse.frame import Frame
from framefuse.kernels.plan import ChannelOrder, Content, Interpolation, Request, Triple

Array = NDArray[np.float64]


def preprocess(
    frame: Frame,
    out: NDArray[Any],
    *,
    content: Content,
    interpolation: Interpolation,
    pad_value: float,
    mean: Triple,
    std: Triple,
    channel_order: ChannelOrder,
    rows: tuple[int, int] | None = None,
) -> None:
    """out[c, y, x] = (clip(RGB of resized frame, 0, 255)[c] - mean[c]) / std[c]; around it (pad_value - mean) / std.

    Steps: resize each component (Y, U, V or R, G, B) to the content's size, convert to RGB, turn upright, place,
    normalise. Resizing comes before colour conversion, since planes are what is read; they commute but for the clip.

    Resize: output i of n sits at (i + 1/2) * source / n pixels (half-pixel centres). linear: between the two nearest
    samples, clamped at the ends (OpenCV's INTER_LINEAR; no low-pass filter when shrinking). nearest: pixel
    floor((i + 1/2) * source / n). It happens in the coded orientation, before rotation.

    Chroma: taken as centred over the pixels that it covers, that is, stretched over the same picture, as OpenCV and
    swscale take untagged video. With a subsampling of s, p pixels from the edge is p / s - 1/2 in samples. A plane has
    ceil(size / s) samples: with odd sizes the last one covers pixels beyond the edge. nearest takes the sample that
    covers the chosen pixel.

    Colour (ITU-T H.273): with K_R, K_B of BT.601, BT.709 or BT.2020 (non-constant luminance), K_G = 1 - K_R - K_B,
        R = Y + 2 (1 - K_R) Cr
        G = Y - 2 K_B (1 - K_B) / K_G Cb - 2 K_R (1 - K_R) / K_G Cr
        B = Y + 2 (1 - K_B) Cb
    where, for samples v of n bits, limited range has Y = (v / 2^(n-8) - 16) / 219 and C = (v / 2^(n-8) - 128) / 224,
    and full range Y = v / (2^n - 1) and C = (v - 2^(n-1)) / (2^n - 1). Gray is Y alone. Packed and gbrp formats, and
    any format whose matrix is "rgb", are R, G, B at full range. RGB is clipped to 0..255 before normalisation.

    Args:
        frame: the picture; any format of frame.PIXEL_FORMATS.
        out: (3, H, W) C-contiguous float32, float16 or uint8, filled entirely (or within `rows`). uint8 rounds to
            nearest, halves up, and saturates; mean 0 and std 1 give plain grey levels.
        content: left, top, width, height of the picture in `out`, as shown (after rotation). It may be smaller than
            `out` (the rest is padding) or reach beyond it (that part is cut off).
        interpolation: "nearest" or "linear".
        pad_value: grey level 0..255 of the padding, normalised like the picture.
        mean, std: per output channel, in grey levels 0..255.
        channel_order: "rgb" or "bgr", of the output.
        rows: fill only the rows first..last - 1 of `out`; the others are left alone.

    Raises:
        UsageError: an argument has a wrong value.
    """
    first, last = Request.of(frame, out, content, interpolation, pad_value, mean, std, channel_order, rows).rows
    left, top, width, height = content
    coded_size = (width, height) if frame.rotation in (0, 180) else (height, width)
    upright = np.rot90(_rgb(frame, coded_size, interpolation), -frame.rotation // 90)
    canvas = np.full((*out.shape[1:], 3), float(pad_value))
    box = canvas[max(top, 0) : max(top + height, 0), max(left, 0) : max(left + width, 0)]
    box[:] = upright[max(-top, 0) :, max(-left, 0) :][: box.shape[0], : box.shape[1]]
    ordered = canvas if channel_order == "rgb" else canvas[:, :, ::-1]
    value = ((ordered - np.array(mean)) / np.array(std)).transpose(2, 0, 1)
    if out.dtype == np.uint8:
        value = np.floor(value + 0.5).clip(0, 255)
    out[:, first:last] = value[:, first:last]


def _rgb(frame: Frame, size: tuple[int, int], interpolation: Interpolation) -> Array:
    """The frame resized to (width, height), in the coded orientation, as (height, width, 3) RGB in 0..255."""
    kind = frame.format
    sub_x, sub_y = kind.subsample
    unit, top = 2.0**kind.shift, 2.0**kind.bits - 1

    def component(samples: NDArray[Any], subsampled: bool) -> Array:
        across = _taps(frame.coded_width, size[0], sub_x if subsampled else 1, interpolation)
        down = _taps(frame.coded_height, size[1], sub_y if subsampled else 1, interpolation)
        return _resize(_resize(samples / unit, down, 0), across, 1)

    if kind.layout == "gray":
        return np.repeat(_luma(component(frame.planes[0], False), frame)[:, :, None], 3, axis=2).clip(0, 255)
    if kind.layout == "packed":
        place = [kind.channels.index(name) for name in "rgb"]
        return np.stack([component(frame.planes[0][:, :, k], False) for k in place], axis=2) * 255 / top
    if kind.layout == "planar":
        y, u, v = frame.planes
    else:
        y, (u, v) = frame.planes[0], np.moveaxis(frame.planes[1], 2, 0)
        u, v = (v, u) if kind.channels == "vu" else (u, v)
    if kind.name.startswith("gbrp") or frame.matrix == "rgb":
        green, blue, red = component(y, False), component(u, True), component(v, True)
        return np.stack([red, green, blue], axis=2) * 255 / top
    luma, cb, cr = (
        _luma(component(y, False), frame),
        _chroma(component(u, True), frame),
        _chroma(component(v, True), frame),
    )
    k_r, k_b = {"bt601": (0.299, 0.114), "bt709": (0.2126, 0.0722), "bt2020": (0.2627, 0.0593)}[frame.matrix]
    k_g = 1 - k_r - k_b
    red = luma + 2 * (1 - k_r) * cr
    green = luma - 2 * k_b * (1 - k_b) / k_g * cb - 2 * k_r * (1 - k_r) / k_g * cr
    blue = luma + 2 * (1 - k_b) * cb
    return np.stack([red, green, blue], axis=2).clip(0, 255)


def _luma(value: Array, frame: Frame) -> Array:
    """Samples to grey levels 0..255."""
    bits = frame.format.bits
    return 255 * (value / (2.0**bits - 1) if frame.full_range else (value / 2.0 ** (bits - 8) - 16) / 219)


def _chroma(value: Array, frame: Frame) -> Array:
    """Samples to colour differences -127.5..127.5."""
    bits = frame.format.bits
    centred = value - 2.0 ** (bits - 1)
    return 255 * (centred / (2.0**bits - 1) if frame.full_range else centred / 2.0 ** (bits - 8) / 224)


def _taps(pixels: int, target: int, subsample: int, interpolation: Interpolation) -> list[tuple[int, int, float]]:
    """(lower sample, upper sample, weight of the upper) for each output position of one axis, in exact integers."""
    last = -(-pixels // subsample) - 1
    taps = []
    for i in range(target):
        if interpolation == "nearest":
            pixel = (2 * i + 1) * pixels // (2 * target)
            taps.append((pixel // subsample, pixel // subsample, 0.0))
            continue
        # ((2i + 1) pixels / (2 target)) / subsample - 1/2 as a fraction
        numerator, denominator = (2 * i + 1) * pixels - subsample * target, 2 * subsample * target
        lower, rest = divmod(numerator, denominator)
        taps.append((min(max(lower, 0), last), min(max(lower + 1, 0), last), rest / denominator))
    return taps


def _resize(samples: NDArray[Any], taps: list[tuple[int, int, float]], axis: int) -> Array:
    lower, upper, weight = (np.array(part) for part in zip(*taps, strict=True))
    weight = weight[:, None] if axis == 0 else weight[None, :]
    resized: Array = np.take(samples, lower, axis) * (1 - weight) + np.take(samples, upper, axis) * weight
    return resized
