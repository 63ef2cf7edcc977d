"""Annotated still images."""

from __future__ import annotations

import io
from functools import lru_cache, partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from framefuse.frame import PIXEL_FORMATS, Frame
from framefuse.prediction import Result
from framefuse.sinks import SinkContext
from framefuse.sinks._base import FolderSink
from framefuse.sinks._lines import write_error, write_whole
from framefuse.sinks.canvas import FrameConverter
from framefuse.sinks.draw import Annotator
from framefuse.sinks.trails import Trails

JPEG_SUFFIXES = {".jpg", ".jpeg"}


class RgbAnnotator:
    """Converts frames to upright RGB images and draws their results, and of tracks the last `trail` seconds."""

    def __init__(self, trail: float = 0.0) -> None:
        self._trails = Trails(trail)
        self._converter = FrameConverter()
        annotator = partial(Annotator, format=PIXEL_FORMATS["rgb24"], matrix="rgb", full_range=True)
        self._annotator_of = lru_cache(1)(annotator)

    def draw(self, frame: Frame, result: Result) -> NDArray[np.uint8]:
        """The annotated frame, (height, width, 3) RGB."""
        image = self._converter.rgb(frame)
        self._annotator_of(frame.width, frame.height).draw(
            (image,), result.detections, result.masks, self._trails.after(result)
        )
        return image


def draw(result: Result, frame: Frame | None = None) -> NDArray[np.uint8]:
    """A frame with the boxes and masks of its result: (height, width, 3) uint8 RGB.

    Args:
        frame: where `result.pixels` is None: the frame that a callback gets, see `CallbackSink`.

    Raises:
        UsageError: there is no frame.
    """
    return RgbAnnotator().draw(result.pixels_or(frame), result)


class ImagesSink(FolderSink):
    """Writes one annotated image per image, named after it: JPEG for JPEG, PNG for everything else.

    Frames that do not come from image files are named <stem>_<frame>.png. A file gets its name once it is complete.

    Args:
        quality: of JPEG, 1..95.
        trail: see `RgbAnnotator`.
    """

    name = "images"
    needs_frame = True

    def __init__(self, *, quality: int = 92, trail: float = 0.0) -> None:
        super().__init__()
        self._quality = quality
        self._annotator = RgbAnnotator(trail)

    def open(self, context: SinkContext) -> None:
        self._context = context
        try:
            self._folders[context.folder] = context.folder.stat()
        except OSError as error:
            raise write_error(context.folder, error) from error
        self.paths.append(context.folder)

    def write(self, result: Result, frame: Frame | None) -> None:
        assert frame is not None, "the sink images needs the frame"
        image = self._annotator.draw(frame, result)
        suffix = Path(frame.source_id).suffix.lower()
        if self._context.source.kind != "images" or suffix not in JPEG_SUFFIXES:
            suffix = ".png"
        stem = self._context.taken[self.name].take(self._context.frame_stem(frame))
        path = self._context.output(stem + suffix)
        save_image(path, image, self._quality)


def save_image(path: Path, image: NDArray[np.uint8], quality: int) -> None:
    """Write (height, width, 3) RGB as PNG or JPEG, by the suffix. The file gets its name once it is complete.

    Raises:
        SinkError: it cannot be written.
    """
    file, kind = io.BytesIO(), "PNG" if path.suffix == ".png" else "JPEG"
    Image.fromarray(image).save(file, kind, quality=quality, subsampling=0, compress_level=1)
    write_whole(path, file.getvalue())
