"""A frame decoded by FFmpeg as a `Frame`: its planes in place, and what their samples mean."""

from __future__ import annotations

import struct
from fractions import Fraction
from functools import lru_cache
from typing import Any, NamedTuple

import av
import numpy as np
from av.video.reformatter import Colorspace
from numpy.typing import NDArray

from framefuse.errors import SourceError
from framefuse.frame import PIXEL_FORMATS, Frame, Matrix, PixelFormat, Rotation
from framefuse.sources.source import SourceInfo, note

MAX_SIDE = 16384
"""Pixels; a larger side is treated as a damaged header."""
# AVColorSpace, AVColorRange and AVColorTransferCharacteristic of FFmpeg; the numbers are those of ITU-T H.273.
MATRICES: dict[int, tuple[Matrix, str]] = {
    1: ("bt709", ""),
    2: ("bt601", "colour matrix not stated: BT.601 assumed"),
    4: ("bt601", "colour matrix FCC is read as bt601"),
    5: ("bt601", ""),
    6: ("bt601", ""),
    7: ("bt709", "colour matrix SMPTE 240M is read as bt709"),
    9: ("bt2020", ""),
    10: ("bt2020", "colour matrix BT.2020 constant luminance is read as bt2020"),
}
"""Colour matrix, and what the user should know about it."""
SWS_MATRIX = dict.fromkeys(("bt709", "rgb"), Colorspace.ITU709) | {
    "bt601": Colorspace.ITU601,
    "bt2020": Colorspace.BT2020,
}
"""Colour matrix -> that of swscale; RGB is converted to and from BT.709."""
LIMITED, FULL = 1, 2
HDR_TRANSFER = {16: "PQ", 18: "HLG"}
CONVERSIONS = {"yuyv422": "yuv422p", "uyvy422": "yuv422p", "yvyu422": "yuv422p", "ya8": "gray"}
"""Formats outside PIXEL_FORMATS with a lossless equivalent in it, besides big-endian ones; all others become rgb24."""


class Meaning(NamedTuple):
    """What the samples of a frame mean, and what the user should know about it."""

    format: PixelFormat
    convert: bool
    """Whether FFmpeg has to convert the frame to `format` first."""
    matrix: Matrix
    full_range: bool
    notes: tuple[str, ...]


def wrap(
    av_frame: av.VideoFrame, info: SourceInfo, *, index: int, sample_aspect_ratio: Fraction = Fraction(1), **facts: Any
) -> Frame:
    """A Frame over the planes of a decoded frame, without a copy if the pixel format is in PIXEL_FORMATS.

    The arrays are writable because DLPack demands it, yet the decoder may still read them: never draw into them.
    Assumptions and conversions are added to `info.notes`. `facts` are further fields of the Frame.

    Raises:
        SourceError: the frame has no pixels, or a side longer than MAX_SIDE.
    """
    check_size(av_frame.width, av_frame.height, info.uri)
    colour = av_frame.colorspace, av_frame.color_range, av_frame.color_trc
    meaning = _meaning(av_frame.format.name, *colour, av_frame.interlaced_frame, sample_aspect_ratio)
    for text in meaning.notes:
        note(info, text)
    packed = meaning.format.layout == "packed"
    if meaning.convert:
        # As in the kernels, an unspecified matrix means BT.601.
        av_frame = av_frame.reformat(
            format=meaning.format.name,
            src_colorspace=None if meaning.matrix == "rgb" else SWS_MATRIX[meaning.matrix],
            src_color_range=FULL if meaning.full_range else LIMITED,
            dst_color_range=FULL if packed or meaning.full_range else LIMITED,
        )
    shapes = meaning.format.plane_shapes(av_frame.width, av_frame.height)
    pairs = zip(av_frame.planes, shapes, strict=False)
    planes = tuple(_plane(plane, shape, meaning.format.dtype, info) for plane, shape in pairs)
    return Frame(
        planes,
        meaning.format,
        index=index,
        matrix="rgb" if packed else meaning.matrix,
        full_range=packed or meaning.full_range,
        rotation=_rotation(av_frame, info, first=index == 0),
        sample_aspect_ratio=sample_aspect_ratio,
        owner=av_frame,
        **facts,
    )


def check_size(width: int, height: int, source_id: str, max_pixels: int | None = None) -> None:
    """Refuse sizes that no camera produces, and frames larger than the option `max_pixels`.

    Raises:
        SourceError: a side is zero or larger than MAX_SIDE, or there are too many pixels.
    """
    if min(width, height) < 1:
        raise SourceError(f"{source_id}: the frame size is {width}x{height}", remedy="check that the file is complete")
    if max(width, height) > MAX_SIDE:
        raise SourceError(
            f"{source_id}: the frame size {width}x{height} exceeds {MAX_SIDE} pixels per side",
            remedy="check that the file is not damaged, or scale it down first",
        )
    if max_pixels is not None and width * height > max_pixels:
        raise SourceError(
            f"{source_id}: the frame size {width}x{height} ({width * height} pixels) exceeds max_pixels ({max_pixels})",
            remedy="check that the file is not damaged, scale it down first, or raise the option max_pixels",
        )


@lru_cache(maxsize=64)
def _meaning(
    name: str, colorspace: int, color_range: int, transfer: int, interlaced: bool, aspect: Fraction
) -> Meaning:
    notes = []
    plain = name.removesuffix("le")
    full_range = color_range == FULL
    if plain.startswith("yuvj"):
        plain, full_range = "yuv" + plain.removeprefix("yuvj"), True
    if plain.startswith(("yuva", "gbrap")):
        # The colour planes come first and are those of the format without alpha.
        plain = plain.replace("yuva", "yuv", 1).replace("gbrap", "gbrp", 1)
        notes.append("transparency is ignored")
    if plain == "p012":
        plain = "p016"  # same code values: both use the high bits of the sample
    convert = plain not in PIXEL_FORMATS
    target = CONVERSIONS.get(plain, plain.removesuffix("be"))
    found = PIXEL_FORMATS.get(target, PIXEL_FORMATS["rgb24"])
    if convert:
        notes.append(f"pixel format {name} is converted to {found.name} by FFmpeg, one copy per frame")

    rgb = av.VideoFormat(name).is_rgb
    if rgb:
        matrix: Matrix = "rgb"
        full_range = True
    elif plain.startswith(("gray", "ya")):
        # As in swscale, untagged gray is full range: it mostly comes from cameras and images.
        matrix, full_range = "bt601", color_range != LIMITED
    else:
        unsupported = f"colour matrix {colorspace} (H.273) is not supported: read as BT.601, colours are wrong"
        matrix, remark = MATRICES.get(colorspace, ("bt601", unsupported))
        notes += [remark] if remark else []
        if color_range not in (LIMITED, FULL) and not full_range:
            notes.append("colour range not stated: limited (16-235) assumed")
    if transfer in HDR_TRANSFER:
        notes.append(f"HDR video ({HDR_TRANSFER[transfer]}): used as coded, without tone mapping")
    if interlaced:
        notes.append("interlaced video: used as coded, not deinterlaced")
    if aspect != 1:
        notes.append(f"anamorphic video (pixel aspect {aspect}): used as coded, boxes are in coded pixels")
    return Meaning(found, convert, matrix, full_range, tuple(notes))


def _plane(plane: Any, shape: tuple[int, ...], dtype: np.dtype[Any], info: SourceInfo) -> NDArray[Any]:
    pitch = plane.line_size
    samples = (dtype.itemsize,) if len(shape) == 2 else (shape[2] * dtype.itemsize, dtype.itemsize)
    if pitch > 0:
        return np.ndarray(shape, dtype, plane, 0, (pitch, *samples))
    note(info, "rows are stored bottom-up: one copy per frame")
    return np.ndarray(shape, dtype, plane, -pitch * (shape[0] - 1), (pitch, *samples)).copy()


_MIRRORED = "the display matrix mirrors the video: ignored, used as coded"


def _rotation(av_frame: av.VideoFrame, info: SourceInfo, first: bool) -> Rotation:
    """Clockwise rotation in the display matrix."""
    # Only of the first frame: PyAV's side data create cycles that keep a frame until the garbage collector runs.
    side_data: Any = av_frame.side_data.get("DISPLAYMATRIX") if first else None
    if side_data is not None:
        # It maps (1, 0) to (a, b) and (0, 1) to (c, d), with y downwards.
        a, b, _, c, d = struct.unpack_from("=5i", side_data)
        if a * d - b * c < 0:
            note(info, _MIRRORED)
    degrees = -av_frame.rotation
    if not degrees or _MIRRORED in info.notes:
        return 0
    quarter = round(degrees / 90) % 4
    if degrees % 90 not in (0, 1, 89):
        note(info, f"the display matrix rotates by {degrees} degrees: {90 * quarter} used")
    rotations: tuple[Rotation, ...] = (0, 90, 180, 270)
    return rotations[quarter]
