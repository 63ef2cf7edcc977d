"""Preprocess: how a model expects its input, where an image is placed in it, and the call that fills it."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, get_args

from numpy.typing import NDArray

from framefuse import kernels
from framefuse.errors import UsageError
from framefuse.frame import Frame, Region, View
from framefuse.kernels.preprocess.filters import Interpolation
from framefuse.kernels.preprocess.plan import MemoryFormat

Fit = Literal["letterbox", "corner", "stretch", "crop"]


@dataclass(frozen=True)
class Placement:
    """Where an image lies in the model input: model position = source position * scale + offset, at pixel edges."""

    source: tuple[int, int]
    """Width and height of the image as displayed."""
    size: tuple[int, int]
    """Width and height of the model input."""
    content: tuple[int, int, int, int]
    """left, top, width, height of the resized image in the model input; with fit "crop" it extends beyond the input."""
    roi: Region | None = None
    """x, y, width, height of the part of the displayed image that is used; None: all of it."""

    @property
    def shown(self) -> tuple[int, int]:
        """Width and height of the part of the displayed image that is used."""
        return self.roi[2:] if self.roi else self.source

    @property
    def scale(self) -> tuple[float, float]:
        """Model pixels per source pixel, in x and in y."""
        width, height = self.shown
        return self.content[2] / width, self.content[3] / height

    @property
    def offset(self) -> tuple[float, float]:
        """Model position of the image's top left corner, which lies outside the input where only a part is used."""
        (left, top, _, _), (scale_x, scale_y) = self.content, self.scale
        x, y = self.roi[:2] if self.roi else (0, 0)
        return left - x * scale_x, top - y * scale_y


@dataclass(frozen=True)
class Preprocess:
    """How the model's training framework converts an image to the model's input; part of the model's card.

    output = (resized RGB in 0..255 - mean) / std, padded with `pad_value` (0..255, normalised the same way).
    """

    width: int = 640
    height: int = 640
    fit: Fit = "letterbox"
    """letterbox: scale to fit, centre, pad. corner: the same in the upper left corner. stretch: scale each axis
    independently. crop: scale to cover, crop."""
    rectangular: bool = False
    """With padding only: shrink the padded axis to the next multiple of `stride` (1080p at 640 becomes 640x384)."""
    stride: int = 32
    interpolation: Interpolation = "linear"
    """linear: as cv2.INTER_LINEAR. asymmetric: linear as ONNX's coordinate transformation of this name, as in
    TensorFlow 1 and mediapipe: pixel i shows what is at i times the scale. area: as cv2.INTER_AREA. antialias: as
    Pillow's BILINEAR. nearest: nearest pixel."""
    pad_value: float = 114.0
    mean: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """Per output channel, in pixel values 0..255."""
    std: tuple[float, float, float] = (255.0, 255.0, 255.0)
    channel_order: Literal["rgb", "bgr"] = "rgb"

    def __post_init__(self) -> None:
        if min(self.width, self.height) < 1 or max(self.width, self.height) > 16384:
            message = f"model input size {self.width}x{self.height} is not between 1 and 16384"
            raise UsageError(message, remedy="choose another imgsz")
        if self.interpolation not in get_args(Interpolation):
            raise UsageError(f"interpolation {self.interpolation!r} is not one of {', '.join(get_args(Interpolation))}")
        if 0.0 in self.std:
            raise UsageError(f"std {self.std} has a zero")

    def place(self, width: int, height: int, roi: Region | None = None) -> Placement:
        """Placement of a displayed image of width x height pixels, or of its part `roi`.

        Letterbox follows the YOLO training frameworks: content rounds half to even, an odd pixel of padding goes to the
        right or bottom; with `rectangular`, padding is the remainder modulo the stride.
        """
        source = width, height
        if roi is not None:
            width, height = roi[2:]
        if self.fit == "stretch":
            return Placement(source, (self.width, self.height), (0, 0, self.width, self.height), roi)
        ratios = self.width / width, self.height / height
        ratio = max(ratios) if self.fit == "crop" else min(ratios)
        content_width, content_height = max(1, round(width * ratio)), max(1, round(height * ratio))
        pad_x, pad_y = self.width - content_width, self.height - content_height
        if self.rectangular and self.fit in ("letterbox", "corner"):
            pad_x, pad_y = pad_x % self.stride, pad_y % self.stride
        left, top = (0, 0) if self.fit == "corner" else (round(pad_x / 2 - 0.1), round(pad_y / 2 - 0.1))
        size = (content_width + pad_x, content_height + pad_y)
        return Placement(source, size, (left, top, content_width, content_height), roi)

    def place_view(self, width: int, height: int, view: View | None) -> Placement:
        """Placement of a view of a displayed image of width x height pixels; None: of the whole image."""
        view = view or View()
        spec = self if view.size is None else replace(self, width=view.size[0], height=view.size[1], rectangular=False)
        return spec.place(width, height, view.region)

    def __call__(
        self,
        frame: Frame,
        out: NDArray[Any],
        placement: Placement | None = None,
        *,
        memory_format: MemoryFormat = "nchw",
    ) -> Placement:
        """Fill `out` from the frame's planes in one pass; returns the placement.

        Args:
            out: (3, height, width), or (height, width, channels) with memory format nhwc; see `kernels.preprocess`.
            placement: default: that of the frame's view, which is all of it unless the frame says otherwise.
        """
        placement = placement or self.place_view(frame.width, frame.height, frame.view)
        kernels.preprocess(frame, out, memory_format=memory_format, **self.arguments(placement))
        return placement

    def arguments(self, placement: Placement) -> dict[str, Any]:
        """The arguments of `kernels.preprocess` that say what becomes of a frame with this placement."""
        return {"content": placement.content, "roi": placement.roi, **self._shared}

    @cached_property
    def _shared(self) -> dict[str, Any]:
        """Those of all frames."""
        return {name: getattr(self, name) for name in ("interpolation", "pad_value", "mean", "std", "channel_order")}


__all__ = ["Fit", "Interpolation", "Placement", "Preprocess"]
