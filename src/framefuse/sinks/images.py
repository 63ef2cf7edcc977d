"""Still images: annotated ones, the frames for labelling and training, and every object as an image of its own."""

from __future__ import annotations

import io
import re
from functools import lru_cache, partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from framefuse.frame import PIXEL_FORMATS, Frame
from framefuse.prediction import Result, cut
from framefuse.sinks import SinkContext
from framefuse.sinks.base import FolderSink
from framefuse.sinks.canvas import FrameConverter
from framefuse.sinks.draw import Annotator, Trails
from framefuse.sinks.run_folder import shorten, sink_errors, written_whole

JPEG_SUFFIXES, QUALITY = {".jpg", ".jpeg"}, 92


class RgbAnnotator:
    """Converts frames to upright RGB images and draws their results: of tracks also the last `trail` seconds, and the
    outlines of the views if asked to."""

    def __init__(self, trail: float = 0.0, *, views: bool = False) -> None:
        self._trails, self._views = Trails(trail), views
        self._converter = FrameConverter()
        self._annotator_of = lru_cache(1)(partial(Annotator, format=PIXEL_FORMATS["rgb24"], matrix="rgb"))

    def draw(self, frame: Frame, result: Result) -> NDArray[np.uint8]:
        """The annotated frame, (height, width, 3) RGB."""
        image = self._converter.rgb(frame)
        drawn = result.detections, result.masks, self._trails.after(result), result.views if self._views else ()
        self._annotator_of(frame.width, frame.height).draw((image,), *drawn)
        return image


def draw(result: Result, frame: Frame | None = None, *, views: bool = False) -> NDArray[np.uint8]:
    """A frame with the boxes and masks of its result: (height, width, 3) uint8 RGB.

    Args:
        frame: where `result.pixels` is None: the frame that a callback gets, see `CallbackSink`.
        views: outline the views of the frame.

    Raises:
        UsageError: there is no frame.
    """
    return RgbAnnotator(views=views).draw(result.pixels_or(frame), result)


class StillsSink(FolderSink):
    """Writes images."""

    needs_frame = True

    def __init__(self) -> None:
        super().__init__()
        self._converter = FrameConverter()

    def _save(self, name: str, image: NDArray[np.uint8]) -> None:
        """Write (height, width, 3) RGB as PNG or JPEG, by the suffix. The file gets its name once it is complete."""
        path, data = self._context.output(name), io.BytesIO()
        kind = "PNG" if path.suffix == ".png" else "JPEG"
        Image.fromarray(image).save(data, kind, quality=QUALITY, subsampling=0, compress_level=1)
        with written_whole(path) as file:
            file.write(data.getvalue())


class ImagesSink(StillsSink):
    """Writes one annotated image per image, named after it: JPEG for JPEG, PNG for everything else.

    Frames that do not come from image files are named <stem>_<frame>.png.

    Args:
        trail, views: see `RgbAnnotator`.
    """

    name = "images"

    def __init__(self, *, trail: float = 0.0, views: bool = False) -> None:
        super().__init__()
        self._annotator = RgbAnnotator(trail, views=views)

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
