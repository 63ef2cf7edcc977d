"""A frame's picture in one of the two forms that are drawn on and encoded: 8-bit 4:2:0 for video, RGB for still images.

8-bit 4:2:0 and gray are used as they are. Every other pixel format is converted once, by FFmpeg's swscale, with the
frame's own colour matrix and range.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple, cast

import av
import numpy as np
from av.video.reformatter import ColorRange, Colorspace, VideoReformatter
from numpy.typing import NDArray

from framefuse.frame import PIXEL_FORMATS, Frame, Matrix

Plane = NDArray[Any]

SWS_MATRIX = {
    "bt601": Colorspace.ITU601,
    "bt709": Colorspace.ITU709,
    "bt2020": Colorspace.BT2020,
    "rgb": Colorspace.ITU709,
}


class Yuv(NamedTuple):
    """A picture as 8-bit 4:2:0, in the coded orientation, and what its values mean."""

    planes: tuple[Plane, ...]
    matrix: Matrix
    full_range: bool


def upright(plane: Plane, rotation: int) -> Plane:
    """The plane turned clockwise by `rotation` degrees, as a view."""
    return np.rot90(plane, -rotation // 90)


def planes_of(picture: av.VideoFrame) -> tuple[Plane, ...]:
    """Writable (rows, bytes of a row without padding) uint8 views of an 8-bit planar picture's planes."""
    return tuple(
        np.frombuffer(cast(Any, plane), np.uint8).reshape(plane.height, plane.line_size)[:, : plane.width]
        for plane in picture.planes
    )


def to_av(frame: Frame) -> av.VideoFrame:
    """A copy of the frame's planes as FFmpeg's picture of the same pixel format, in the coded orientation."""
    suffix = "le" if frame.format.bits > 8 else ""
    picture = av.VideoFrame(frame.coded_width, frame.coded_height, frame.format.name + suffix)
    for source, target in zip(frame.planes, picture.planes, strict=True):
        rows = np.frombuffer(cast(Any, target), np.uint8).reshape(-1, target.line_size)
        flat = source.reshape(source.shape[0], -1)
        rows.view(source.dtype)[: len(flat), : flat.shape[1]] = flat
    return picture


class PictureReader:
    """Reads frames as 8-bit 4:2:0 or as RGB; keeps swscale's tables from frame to frame."""

    def __init__(self) -> None:
        self._scaler = VideoReformatter()

    def yuv420p(self, frame: Frame) -> Yuv:
        """The frame as 8-bit 4:2:0: its own planes where it is that already. RGB becomes BT.709, limited range."""
        pixels = frame.format
        if pixels.name == "yuv420p":
            return Yuv(frame.planes, frame.matrix, frame.full_range)
        if pixels.layout == "gray":
            luma = frame.planes[0]
            if pixels.bits > 8:
                luma = (luma >> (pixels.bits - 8)).astype(np.uint8)
            neutral = np.broadcast_to(np.uint8(128), (-(-luma.shape[0] // 2), -(-luma.shape[1] // 2)))
            matrix: Matrix = "bt709" if frame.matrix == "rgb" else frame.matrix
            return Yuv((luma, neutral, neutral), matrix, frame.full_range)
        rgb = pixels.layout == "packed" or frame.matrix == "rgb"
        matrix, full_range = ("bt709", False) if rgb else (frame.matrix, frame.full_range)
        picture = self._scaler.reformat(
            to_av(frame),
            format="yuv420p",
            src_colorspace=SWS_MATRIX[matrix],
            dst_colorspace=SWS_MATRIX[matrix],
            src_color_range=ColorRange.JPEG if rgb or full_range else ColorRange.MPEG,
            dst_color_range=ColorRange.JPEG if full_range else ColorRange.MPEG,
        )
        return Yuv(planes_of(picture), matrix, full_range)

    def rgb(self, frame: Frame) -> NDArray[np.uint8]:
        """An own, upright copy of the frame as RGB, (height, width, 3) in 0..255; transparency is left out."""
        if frame.format.layout == "gray":
            # swscale takes every gray picture for full range; as 4:2:0 it is read as what it is.
            planes, matrix, _ = self.yuv420p(frame)
            frame = replace(frame, planes=planes, format=PIXEL_FORMATS["yuv420p"], matrix=matrix)
        converted = self._scaler.reformat(
            to_av(frame),
            format="rgb24",
            src_colorspace=SWS_MATRIX[frame.matrix],
            dst_colorspace=SWS_MATRIX[frame.matrix],
            src_color_range=ColorRange.JPEG if frame.full_range else ColorRange.MPEG,
            dst_color_range=ColorRange.JPEG,
        )
        return np.array(upright(converted.to_ndarray(), frame.rotation), order="C")
