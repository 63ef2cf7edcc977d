"""preprocess in plain numpy float64."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from framefuse.frame import Frame, Region
from framefuse.kernels.colour.reference import components, rgb_of
from framefuse.kernels.preprocess.filters import Interpolation
from framefuse.kernels.preprocess.plan import LEVELS, ChannelOrder, Content, MemoryFormat, Request, Triple

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
    memory_format: MemoryFormat = "nchw",
    roi: Region | None = None,
    rows: tuple[int, int] | None = None,
) -> None:
    """out[c, y, x] = (clip(RGB of resized frame, 0, 255)[c] - mean[c]) / std[c]; around it (pad_value - mean) / std.

    Steps: crop to `roi`, resize each component (Y, U, V or R, G, B) to the size of the content, convert to RGB, turn
    upright, place, normalise. Resizing comes before colour conversion, since planes are what is read; they commute but
    for the clip.

    Resize: each axis alone, in the coded orientation, before rotation. With half-pixel centres and source / n = scale,
    output i of n has its centre at (i + 1/2) scale, in pixels from the edge.
        nearest:   the pixel that holds the centre (OpenCV's INTER_NEAREST_EXACT).
        linear:    the two pixels whose centres are nearest, weighted by 1 - distance; at the ends the outermost one.
                   No low-pass filter when shrinking (OpenCV's INTER_LINEAR).
        asymmetric: linear, but output i has its centre at i scale + 1/2, so that output 0 is pixel 0 (ONNX's coordinate
                   transformation of this name; TensorFlow 1; mediapipe).
        area:      mean over the output pixel's footprint, i scale .. (i + 1) scale (OpenCV's INTER_AREA, shrinking).
        antialias: all pixels weighted by 1 - distance / max(scale, 1) where that is positive, normalised: linear with a
                   low-pass filter when shrinking (Pillow's BILINEAR; PyTorch's interpolate(antialias=True)).

    Chroma: taken as centred over the pixels that it covers, that is, stretched over the same image, as OpenCV and
    swscale take untagged video. With a subsampling of s, p pixels from the edge is p / s in samples, and the same
    definitions hold. A plane has ceil(size / s) samples: with odd sizes the last one covers pixels beyond the edge.
    nearest takes the sample that covers the chosen pixel.

    Colour (ITU-T H.273): `yuv_to_rgb` states it, up to 0..255; RGB is clipped to that before normalisation.

    Args:
        frame: the image; any format of frame.PIXEL_FORMATS.
        out: C-contiguous float32, float16, bfloat16 (or its bits as uint16), uint8 or int8, filled entirely (or within
            `rows`). The integers round to nearest, halves up, and saturate; a quantised input has std = its scale and
            mean = -zero point * scale; mean 0 and std 1 give plain grey levels.
        content: left, top, width, height of the image in `out`, as shown (after rotation). It may be smaller than
            `out` (the rest is padding) or reach beyond it (that part is cut off).
        interpolation: "nearest", "linear", "asymmetric", "area" or "antialias", as above.
        pad_value: grey level 0..255 of the padding, normalised like the image.
        mean, std: per output channel, in grey levels 0..255.
        channel_order: "rgb" or "bgr", of the output.
        memory_format: "nchw": out is (3, H, W). "nhwc": (H, W, C), C at least 3, zeros in channels past the third.
        roi: x, y, width, height of the part of the image to use, in shown pixels; nothing beyond it is read, but for
            chroma samples that reach across its edge. None: all of it.
        rows: fill only the rows first..last - 1 of `out`; the others are left alone.

    Raises:
        UsageError: an argument has a wrong value.
    """
    request = Request.of(
        frame, out, content, interpolation, pad_value, mean, std, channel_order, memory_format, roi, rows
    )
    left, top, width, height = content
    coded_size = (width, height) if frame.rotation in (0, 180) else (height, width)
    upright = np.rot90(_rgb(frame, _coded(frame, request.roi), coded_size, interpolation), -frame.rotation // 90)
    canvas = np.full((request.size[1], request.size[0], 3), float(pad_value))
    box = canvas[max(top, 0) : max(top + height, 0), max(left, 0) : max(left + width, 0)]
    box[:] = upright[max(-top, 0) :, max(-left, 0) :][: box.shape[0], : box.shape[1]]
    ordered = canvas if channel_order == "rgb" else canvas[:, :, ::-1]
    value = (ordered - np.array(mean)) / np.array(std)
    if request.output in LEVELS:
        value = np.floor(value + 0.5).clip(*LEVELS[request.output])
    if out.dtype == np.uint16:
        bits = value.astype(np.float32).view(np.uint32)
        value = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    picked = slice(*request.rows)
    if memory_format == "nchw":
        out[:, picked] = value.transpose(2, 0, 1)[:, picked]
    else:
        out[picked, :, :3] = value[picked]
        out[picked, :, 3:] = 0


def _coded(frame: Frame, roi: Region) -> Region:
    """A region of the shown image in the coded orientation."""
    x, y, width, height = roi
    right, bottom = frame.width - x - width, frame.height - y - height
    turned = {90: (y, right, height, width), 180: (right, bottom, width, height), 270: (bottom, x, height, width)}
    return turned.get(frame.rotation, roi)


def _rgb(frame: Frame, roi: Region, size: tuple[int, int], interpolation: Interpolation) -> Array:
    """A region resized to (width, height), in the coded orientation, as (height, width, 3) RGB in 0..255."""
    resized = []
    for number, samples in enumerate(components(frame)):
        sub_x, sub_y = frame.format.subsample if number else (1, 1)
        across = _filter(roi[0], roi[2], size[0], sub_x, samples.shape[1], interpolation)
        down = _filter(roi[1], roi[3], size[1], sub_y, samples.shape[0], interpolation)
        resized.append(down @ samples @ across.T)
    return np.moveaxis(rgb_of(frame, resized), 0, 2)


def _filter(start: int, pixels: int, target: int, subsample: int, samples: int, interpolation: Interpolation) -> Array:
    """(target, samples): what each sample contributes to each output of an axis.

    Pixels start .. start + pixels - 1 are resized to `target`. Positions are counted from the plane's edge, in units of
    1 / grid sample, which makes them exact integers.
    """
    grid = 2 * subsample * target
    sample = np.arange(samples, dtype=np.int64) * grid  # left edge; it ends at + grid
    weights = np.zeros((target, samples))
    for i in range(target):
        begin = 2 * (start * target + i * pixels)
        centre, end = begin + pixels, begin + 2 * pixels
        if interpolation == "asymmetric":
            centre = begin + target
        if interpolation == "nearest":
            weights[i, centre // (2 * target) // subsample] = 1
            continue
        if interpolation == "area":
            weights[i] = np.minimum(sample + grid, end) - np.maximum(sample, begin)
        else:
            reach = max(grid, 2 * pixels) if interpolation == "antialias" else grid
            weights[i] = reach - np.abs(sample + grid // 2 - centre)
    used = slice(start // subsample, -(-(start + pixels) // subsample))
    weights[:, : used.start] = weights[:, used.stop :] = 0
    weights = weights.clip(0)
    normalised: Array = weights / weights.sum(axis=1, keepdims=True)
    return normalised
