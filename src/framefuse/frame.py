"""Frame: one decoded image in the decoder's own planes.

Nothing here converts pixels. A Frame describes its bytes (format, colour matrix, range, rotation, time), and
`kernels.preprocess` reads them in place.
"""

from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property, lru_cache
from importlib import import_module
from typing import Any, Literal, Protocol, TypeVar

import numpy as np

from framefuse.errors import SourceError, UsageError

Layout = Literal["planar", "semiplanar", "packed", "gray"]
Matrix = Literal["bt601", "bt709", "bt2020", "rgb"]
Rotation = Literal[0, 90, 180, 270]
Made = TypeVar("Made")
Region = tuple[int, int, int, int]
"""x, y, width and height in pixels of the frame as displayed."""


@dataclass(frozen=True)
class PixelFormat:
    """Layout and depth of the samples. Names are FFmpeg's, without the endianness suffix."""

    name: str
    layout: Layout
    """planar: Y, U, V (or G, B, R) each in its own plane. semiplanar: Y, then interleaved UV. packed: one (h, w, c)."""
    bits: int = 8
    """Significant bits of a sample; more than 8 means uint16 samples, little endian."""
    subsample: tuple[int, int] = (1, 1)
    """Luma samples per chroma sample, horizontally and vertically: (2, 2) is 4:2:0."""
    channels: str = ""
    """Packed formats: the order of the channels in memory, one letter each (x: ignored)."""
    shift: int = 0
    """Unused low bits of a sample (6 for P010, which uses the high 10 of 16 bits)."""

    @cached_property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(np.uint8 if self.bits == 8 else np.uint16)

    @property
    def plane_count(self) -> int:
        return {"planar": 3, "semiplanar": 2, "packed": 1, "gray": 1}[self.layout]

    def plane_shapes(self, width: int, height: int) -> tuple[tuple[int, ...], ...]:
        """Shape of each plane's array for a coded frame of width x height pixels."""
        sx, sy = self.subsample
        chroma = (-(-height // sy), -(-width // sx))
        return {
            "planar": ((height, width), chroma, chroma),
            "semiplanar": ((height, width), (*chroma, 2)),
            "packed": ((height, width, len(self.channels)),),
            "gray": ((height, width),),
        }[self.layout]


def _table() -> dict[str, PixelFormat]:
    rows = [
        PixelFormat("nv12", "semiplanar", 8, (2, 2)),
        PixelFormat("nv21", "semiplanar", 8, (2, 2), "vu"),
        PixelFormat("nv16", "semiplanar", 8, (2, 1)),
        PixelFormat("nv24", "semiplanar", 8, (1, 1)),
        PixelFormat("p010", "semiplanar", 10, (2, 2), shift=6),
        PixelFormat("p016", "semiplanar", 16, (2, 2)),
        PixelFormat("gray", "gray", 8),
        *(PixelFormat(f"gray{bits}", "gray", bits) for bits in (10, 12, 14, 16)),
        *(PixelFormat(order, "packed", 8, (1, 1), order[:-2]) for order in ("rgb24", "bgr24")),
        *(PixelFormat(order, "packed", 8, (1, 1), order) for order in ("rgba", "bgra", "rgb0", "bgr0")),
        PixelFormat("rgb48", "packed", 16, (1, 1), "rgb"),
    ]
    ratios = {"420": (2, 2), "422": (2, 1), "444": (1, 1), "411": (4, 1), "410": (4, 4), "440": (1, 2)}
    rows += [PixelFormat(f"yuv{ratio}p", "planar", 8, subsample) for ratio, subsample in ratios.items()]
    for ratio in ("420", "422", "444", "440"):
        rows += [PixelFormat(f"yuv{ratio}p{bits}", "planar", bits, ratios[ratio]) for bits in (9, 10, 12, 14, 16)]
    rows += [PixelFormat(f"gbrp{'' if bits == 8 else bits}", "planar", bits) for bits in (8, 9, 10, 12, 14, 16)]
    return {row.name: row for row in rows}


PIXEL_FORMATS: dict[str, PixelFormat] = _table()
"""Every pixel format that framefuse reads in place, by FFmpeg's name without 'le'."""


def unchecked(kind: type[Made], **facts: Any) -> Made:
    """An object of a frozen dataclass, not validated; what is left out must have a default that is no factory.

    This takes a quarter of the time of the constructor, which matters at thousands of frames a second.
    """
    made = object.__new__(kind)
    vars(made).update(facts)
    return made


class Lease(Protocol):
    """The right to read planes whose memory the source reuses, as NVDEC's surfaces."""

    def release(self, after: Any = None) -> None:
        """Allow the source to overwrite the memory.

        Args:
            after: CUDA event after which the reader is done; None: it is done now.
        """


@dataclass(frozen=True)
class View:
    """One look at a frame: the part of it that fills one row of a batch. Nothing is cropped or copied for it."""

    region: Region | None = None
    """None: the whole frame. Edges may be odd, in 4:2:0 too."""
    tag: str = "whole"
    """What it is: whole, left, right, top, bottom, "tile 3", "roi 1"."""
    outline: tuple[tuple[float, float], ...] = ()
    """Corners of a polygon in pixels of the frame: objects whose centre lies outside do not count. Empty: all count."""
    size: tuple[int, int] | None = None
    """Width and height of the model input, which the views of a frame share; None: that of a whole frame."""

    def __hash__(self) -> int:  # of all fields it would take longer than what is looked up by it
        return hash(self.region or ())


@dataclass(frozen=True, eq=False)
class Frame:
    """An immutable decoded image in the decoder's own planes.

    `width` and `height` are those of the frame as displayed, after `rotation`; the planes keep the coded orientation
    (`coded_width`, `coded_height`). Boxes in results are in display pixels.

    Raises:
        UsageError: the planes do not fit the pixel format.
        SourceError: the frame has no pixels.
    """

    planes: tuple[np.ndarray[Any, Any], ...]
    """One array per plane: (h, w), (h, w, 2) for interleaved chroma, (h, w, c) for packed. The samples of a row are
    adjacent; rows may have any pitch. NumPy arrays on the host, CuPy arrays on a GPU."""
    format: PixelFormat
    index: int = 0
    """Position among the frames that the source delivered or skipped, from 0."""
    pts: int | None = None
    """Presentation time in units of time_base; None: unknown."""
    time_base: Fraction = Fraction(1, 1000)
    source_id: str = ""
    """Name of the source, without passwords."""
    matrix: Matrix = "bt601"
    """Colour matrix. Unspecified means BT.601, as in OpenCV and the training frameworks."""
    full_range: bool = False
    """False: luma 16..235 (limited); True: 0..255. RGB formats, packed or planar, are always full range."""
    rotation: Rotation = 0
    """Clockwise rotation in degrees that displays the coded frame upright."""
    sample_aspect_ratio: Fraction = Fraction(1)
    """Width of a pixel over its height. Frames are not rescaled for it, and boxes are in coded pixels."""
    arrival: float | None = None
    """time.monotonic() at which the frame was received or decoded; None: the pipeline sets it. The age limit of live
    sources counts from it."""
    owner: object = field(default=None, repr=False)
    """Keeps the memory of the planes alive as long as this Frame."""
    ready: Any = field(default=None, repr=False)
    """Planes on a GPU: the CUDA event after which they may be read; None: now."""
    lease: Lease | None = field(default=None, repr=False)
    """None: the planes are valid as long as this Frame. Otherwise the last stage that reads them releases the lease."""
    view: View | None = None
    """What the model sees of it; None: all."""
    connection: int = 0
    """Live sources: how many connections were lost before the one that brought it."""
    aside: bool = False
    """It was made of another frame, for the model alone: no output needs its pixels."""
    joined: int = 0
    """Rows of a batch, with this one, that show this frame and whose objects the program merges; 0: it merges none."""

    def replace_unchecked(self, **facts: Any) -> "Frame":
        """A copy with other attributes, not validated; new planes must have the same shapes, and the rotation stays."""
        return unchecked(Frame, **{**vars(self), **facts})

    def __post_init__(self) -> None:
        if not self.planes or 0 in self.planes[0].shape:
            raise SourceError(f"frame {self.index} of {self.source_id or 'the source'} has no pixels")
        shapes = self.format.plane_shapes(self.coded_width, self.coded_height)
        found = tuple(plane.shape for plane in self.planes)
        if found != shapes:
            raise UsageError(f"planes of a {self.format.name} frame have shapes {found}, expected {shapes}")
        for number, plane in enumerate(self.planes):
            if plane.dtype != self.format.dtype:
                raise UsageError(f"plane {number} of {self.format.name} is {plane.dtype}, expected {self.format.dtype}")
        if self.rotation not in (0, 90, 180, 270):
            raise UsageError(f"rotation {self.rotation} is not one of 0, 90, 180, 270 degrees")

    @property
    def coded_height(self) -> int:
        return int(self.planes[0].shape[0])

    @property
    def coded_width(self) -> int:
        return int(self.planes[0].shape[1])

    @cached_property
    def height(self) -> int:
        return self.coded_height if self.rotation in (0, 180) else self.coded_width

    @cached_property
    def width(self) -> int:
        return self.coded_width if self.rotation in (0, 180) else self.coded_height

    @property
    def seconds(self) -> float | None:
        """Presentation time in seconds, computed from the exact pts."""
        return None if self.pts is None else float(self.pts * self.time_base)

    def to_rgb(self) -> np.ndarray[Any, Any]:
        """The frame as displayed, (height, width, 3) uint8 RGB on the host: a copy, with matrix, range and rotation
        applied."""
        return self._to_packed("rgb")

    def to_bgr(self) -> np.ndarray[Any, Any]:
        """As `to_rgb`, in the order BGR of OpenCV."""
        return self._to_packed("bgr")

    def _to_packed(self, channels: str) -> np.ndarray[Any, Any]:
        kernels = import_module("framefuse.kernels")  # by name: kernels are built on frames
        if self.ready is not None:
            self.ready.synchronize()
        pixels = kernels.yuv_to_rgb(self, channel_order=channels)
        if not isinstance(pixels, np.ndarray):  # a CuPy array
            pixels = pixels.get()
        return np.ascontiguousarray(np.rot90(pixels, -self.rotation // 90))

    @classmethod
    def from_array(
        cls, image: np.ndarray[Any, Any], *, channels: str = "bgr", index: int = 0, source_id: str = "array"
    ) -> "Frame":
        """Wrap a packed (h, w, 3|4) uint8 image, or a gray (h, w) one of uint8 or uint16, without a copy if rows are
        contiguous.

        Args:
            channels: order of the colour channels, "bgr" (as in OpenCV) or "rgb".

        Raises:
            UsageError: the dtype or shape is not supported.
        """
        if not isinstance(image, np.ndarray):
            raise UsageError(f"image is a {type(image).__name__}", remedy="pass a NumPy array")
        if image.dtype not in (np.uint8, np.uint16) or image.ndim not in (2, 3):
            remedy = "pass uint8 of shape (height, width[, 3 or 4]), or uint16 of shape (height, width)"
            raise UsageError(f"image has dtype {image.dtype} and shape {image.shape}", remedy=remedy)
        if image.ndim == 3 and image.shape[2] == 1:
            image = image[:, :, 0]
        packed = image.strides[-1] == image.itemsize and (image.ndim == 2 or image.strides[1] == image.shape[2])
        plane = image if packed and image.strides[0] > 0 else np.ascontiguousarray(image)
        template = _image_like(image.shape, image.dtype, channels)
        return template.replace_unchecked(planes=(plane,), index=index, source_id=source_id, owner=image)


@lru_cache(maxsize=64)
def _image_like(shape: tuple[int, ...], dtype: np.dtype[Any], channels: str) -> Frame:
    """A validated frame of a packed or gray image of this shape; UsageError, SourceError."""
    formats: dict[tuple[Any, ...], str] = {
        ("uint8",): "gray", ("uint8", 3, "rgb"): "rgb24", ("uint8", 3, "bgr"): "bgr24",
        ("uint16",): "gray16", ("uint8", 4, "rgb"): "rgba", ("uint8", 4, "bgr"): "bgra",
    }  # fmt: skip
    name = formats.get((dtype.name,) if len(shape) == 2 else (dtype.name, shape[2], channels))
    if name is None:
        message = f"image of shape {shape}, dtype {dtype} with channels={channels!r} is not supported"
        remedy = "use uint8 with 3 or 4 channels in 'bgr' or 'rgb' order, or one gray channel of uint8 or uint16"
        raise UsageError(message, remedy=remedy)
    plane = np.broadcast_to(np.zeros((), dtype), shape)
    return Frame((plane,), PIXEL_FORMATS[name], matrix="rgb", full_range=True)
