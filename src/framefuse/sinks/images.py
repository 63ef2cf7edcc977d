"""Frames as images: in the two formats that are drawn on and encoded, 8-bit 4:2:0 for video and RGB for still images;
and the sinks of still images: annotated ones, frames for labelling and training, and every object as an image.

8-bit 4:2:0 and gray are used as they are. FFmpeg's swscale converts every other pixel format once, with the frame's own
colour matrix and range.
"""

import io
import re
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple, cast

import av
import numpy as np
from av.video.reformatter import ColorRange, VideoReformatter
from numpy.typing import NDArray
from PIL import Image

from framefuse.frame import PIXEL_FORMATS, Frame, Matrix
from framefuse.prediction import Result, cut
from framefuse.sinks import USUAL, FolderSink, SinkContext, Style
from framefuse.sinks.draw import Annotator, Trails
from framefuse.sinks.run_folder import save, shorten, sink_errors
from framefuse.sources.ffmpeg import SWS_MATRIX

JPEG_SUFFIXES, QUALITY = {".jpg", ".jpeg"}, 92
Plane = NDArray[Any]


class Meaning(NamedTuple):
    """What the values of a frame mean."""

    matrix: Matrix
    full_range: bool


def upright(plane: Plane, rotation: int) -> Plane:
    """The plane rotated clockwise by `rotation` degrees, as a view."""
    return np.rot90(plane, -rotation // 90)


def planes_of(av_frame: av.VideoFrame) -> tuple[Plane, ...]:
    """Writable (rows, bytes of a row without padding) uint8 views of the planes of an 8-bit planar frame."""
    return tuple(
        np.frombuffer(cast(Any, plane), np.uint8).reshape(plane.height, plane.line_size)[:, : plane.width]
        for plane in av_frame.planes
    )


def to_av(frame: Frame) -> av.VideoFrame:
    """A copy of the frame as PyAV's, in the same pixel format and the coded orientation."""
    suffix = "le" if frame.format.bits > 8 else ""
    av_frame = av.VideoFrame(frame.coded_width, frame.coded_height, frame.format.name + suffix)
    for source, target in zip(frame.planes, av_frame.planes, strict=True):
        rows = np.frombuffer(cast(Any, target), np.uint8).reshape(-1, target.line_size)
        flat = source.reshape(source.shape[0], -1)
        rows.view(source.dtype)[: len(flat), : flat.shape[1]] = flat
    return av_frame


def _luma(frame: Frame) -> Plane:
    """The first plane, 8 bits."""
    luma, pixels = frame.planes[0], frame.format
    return luma if pixels.bits == 8 else (luma >> (pixels.bits + pixels.shift - 8)).astype(np.uint8)


class FrameConverter:
    """Converts frames to 8-bit 4:2:0 or RGB; keeps swscale's tables between frames."""

    def __init__(self) -> None:
        self._scaler = VideoReformatter()

    def yuv420p(self, frame: Frame) -> tuple[tuple[Plane, ...], Meaning]:
        """The frame as 8-bit 4:2:0 in the coded orientation, without a copy if it is that already. RGB becomes BT.709,
        limited range."""
        pixels = frame.format
        if pixels.name == "yuv420p":
            return frame.planes, Meaning(frame.matrix, frame.full_range)
        if pixels.layout == "gray":
            luma = _luma(frame)
            neutral = np.broadcast_to(np.uint8(128), (-(-luma.shape[0] // 2), -(-luma.shape[1] // 2)))
            matrix: Matrix = "bt709" if frame.matrix == "rgb" else frame.matrix
            return (luma, neutral, neutral), Meaning(matrix, frame.full_range)
        rgb = pixels.layout == "packed" or frame.matrix == "rgb"
        wanted = Meaning("bt709", False) if rgb else Meaning(frame.matrix, frame.full_range)
        meaning = wanted._replace(full_range=rgb or frame.full_range)
        return planes_of(self._reformat(to_av(frame), "yuv420p", meaning, wanted)), wanted

    def luma(self, frame: Frame) -> Plane:
        """(height, width) uint8 of the frame as displayed: of its own luma if it has one, without a copy of 8 bits."""
        rgb = frame.format.layout == "packed" or frame.matrix == "rgb"
        return upright(self.yuv420p(frame)[0][0] if rgb else _luma(frame), frame.rotation)

    def fit(self, source: av.VideoFrame, meaning: Meaning, target: tuple[Plane, ...], wanted: Meaning) -> None:
        """Scale 8-bit 4:2:0 of even size into the planes of another size, with black bars where the shapes differ."""
        height, width = target[0].shape
        scale = min(Fraction(width, source.width), Fraction(height, source.height))
        across, along = (max(2, int(side * scale) // 2 * 2) for side in (source.width, source.height))
        scaled = self._reformat(source, source.format.name, meaning, wanted, width=across, height=along)
        left, top = (width - across) // 4, (height - along) // 4
        black = (0 if wanted.full_range else 16, 128, 128, 0)
        for plane, into, value, step in zip(planes_of(scaled), target, black, (2, 1, 1, 2), strict=False):
            into[:] = value
            rows, columns = plane.shape
            into[top * step : top * step + rows, left * step : left * step + columns] = plane

    def rgb(self, frame: Frame) -> NDArray[np.uint8]:
        """An upright copy of the frame as RGB, (height, width, 3) in 0..255; transparency is dropped."""
        if frame.format.layout == "gray":
            # swscale treats all gray input as full range; as 4:2:0, the stated range is used.
            planes, (matrix, _) = self.yuv420p(frame)
            frame = replace(frame, planes=planes, format=PIXEL_FORMATS["yuv420p"], matrix=matrix)
        meaning = Meaning(frame.matrix, frame.full_range)
        converted = self._reformat(to_av(frame), "rgb24", meaning, meaning._replace(full_range=True))
        return np.array(upright(converted.to_ndarray(), frame.rotation), order="C")

    def _reformat(
        self, source: av.VideoFrame, format: str, meaning: Meaning, wanted: Meaning, **size: int
    ) -> av.VideoFrame:
        options: dict[str, Any] = {"format": format, **size}
        for end, (matrix, full_range) in (("src", meaning), ("dst", wanted)):
            options[f"{end}_colorspace"] = SWS_MATRIX[matrix]
            options[f"{end}_color_range"] = ColorRange.JPEG if full_range else ColorRange.MPEG
        return self._scaler.reformat(source, **options)


class RgbAnnotator:
    """Converts frames to upright RGB images and draws their results."""

    def __init__(self, style: Style) -> None:
        self._trails, self._views = Trails(style.trail), style.views
        self._converter = FrameConverter()
        rgb: dict[str, Any] = {"format": PIXEL_FORMATS["rgb24"], "matrix": "rgb"}
        self._annotator_of = lru_cache(1)(partial(Annotator, **rgb, style=style))

    def draw(self, frame: Frame, result: Result) -> NDArray[np.uint8]:
        """The annotated frame, (height, width, 3) RGB."""
        image = self._converter.rgb(frame)
        drawn = result.detections, result.masks, self._trails.after(result), result.views if self._views else ()
        self._annotator_of(frame.width, frame.height).draw((image,), *drawn, result.classification)
        return image


def draw(result: Result, frame: Frame | None = None, *, views: bool = False) -> NDArray[np.uint8]:
    """A frame with all that its result shows: (height, width, 3) uint8 RGB.

    Args:
        frame: where `result.pixels` is None: the frame that a callback gets, see `CallbackSink`.
        views: outline the views of the frame.

    Raises:
        UsageError: there is no frame.
    """
    return RgbAnnotator(Style(views=views)).draw(result.pixels_or(frame), result)


class StillsSink(FolderSink):
    """Writes images."""

    needs_frame = True

    def __init__(self) -> None:
        super().__init__()
        self._converter = FrameConverter()

    def _save(self, name: str, image: NDArray[np.uint8]) -> None:
        """Write (height, width, 3) RGB as PNG or JPEG, by the suffix."""
        data, kind = io.BytesIO(), "PNG" if name.endswith(".png") else "JPEG"
        Image.fromarray(image).save(data, kind, quality=QUALITY, subsampling=0, compress_level=1)
        save(self._context.output(name), data.getvalue())


class ImagesSink(StillsSink):
    """Writes one annotated image per image, named after it: JPEG for JPEG, PNG for everything else.

    Frames that do not come from image files are named <stem>_<frame>.png.
    """

    name = "images"

    def __init__(self, *, style: Style = USUAL) -> None:
        super().__init__()
        self._annotator = RgbAnnotator(style)

    def open(self, context: SinkContext) -> None:
        self._context = context
        with sink_errors(context.folder):
            self._folders[context.folder] = context.folder.stat()
        self.paths.append(context.folder)

    def write(self, result: Result, frame: Frame | None) -> None:
        suffix = Path(result.frame.source_id).suffix.lower()
        if self._context.source.kind != "images" or suffix not in JPEG_SUFFIXES:
            suffix = ".png"
        name = self._context.taken[self.name].take(self._context.frame_stem(result.frame)) + suffix
        self._save(name, self._annotator.draw(result.pixels_or(frame), result))


class FramesSink(StillsSink):
    """Writes images/<stem>_<frame>.jpg, or images/<image>.jpg for images: what the labels of the sink yolo_txt
    describe, so that both together are a data set.

    Args:
        hits: only frames with detections.
    """

    name = "frames"
    folder = "images"

    def __init__(self, *, hits: bool = False) -> None:
        super().__init__()
        self._hits = hits

    def write(self, result: Result, frame: Frame | None) -> None:
        if len(result.detections) or not self._hits:
            image = self._converter.rgb(result.pixels_or(frame))
            self._save(f"images/{self._context.image_name(self.name, result.frame)}.jpg", image)


class CropsSink(StillsSink):
    """Writes crops/<class>/<stem>_<frame>_<number>.jpg, where the number counts the objects of a frame from 0.

    A crop covers every pixel that the box touches. Tools that train classifiers read such folders.
    """

    name = "crops"
    folder = "crops"

    def write(self, result: Result, frame: Frame | None) -> None:
        if not len(result.detections):
            return
        image, stem = self._converter.rgb(result.pixels_or(frame)), self._context.frame_stem(result.frame)
        for number, found in enumerate(result.detections):
            folder = f"crops/{folder_of(found.name)}"
            self._folder(folder)
            name = self._context.taken[f"{self.name} {folder}"].take(f"{stem}_{number}")
            self._save(f"{folder}/{name}.jpg", cut(image, found.xyxy))


def folder_of(name: str) -> str:
    """A class name as the name of a folder."""
    return shorten(re.sub(r"[^\w .+-]", "_", name).strip(". ")) or "_"
