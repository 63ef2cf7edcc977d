"""Annotated still images."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from framefuse.frame import PIXEL_FORMATS, Frame
from framefuse.prediction import Result
from framefuse.sinks import SinkContext
from framefuse.sinks._lines import check_unmoved, make_folder_durable, open_output, write_error
from framefuse.sinks.canvas import FrameConverter
from framefuse.sinks.draw import Annotator
from framefuse.sinks.run_folder import shorten

JPEG_SUFFIXES = {".jpg", ".jpeg"}


class RgbAnnotator:
    """Converts frames to upright RGB images and draws their results."""

    def __init__(self) -> None:
        self._converter = FrameConverter()
        self._annotator: tuple[tuple[int, int], Annotator] | None = None

    def draw(self, frame: Frame, result: Result) -> NDArray[np.uint8]:
        """The annotated frame, (height, width, 3) RGB."""
        image = self._converter.rgb(frame)
        size = frame.width, frame.height
        if self._annotator is None or self._annotator[0] != size:
            self._annotator = size, Annotator(*size, PIXEL_FORMATS["rgb24"], matrix="rgb", full_range=True)
        self._annotator[1].draw((image,), result.detections, result.masks)
        return image


class ImagesSink:
    """Writes one annotated image per image, named after it: JPEG for JPEG, PNG for everything else.

    Frames that do not come from image files are named <stem>_<frame>.png. A file gets its name once it is complete.

    Args:
        quality: of JPEG, 1..95.
    """

    name = "images"
    needs_frame = True

    def __init__(self, *, quality: int = 92) -> None:
        self.paths: list[Path] = []
        self.notes: list[str] = []
        self._quality = quality
        self._annotator = RgbAnnotator()

    def open(self, context: SinkContext) -> None:
        self._context = context
        try:
            self._opened = context.folder.stat()
        except OSError as error:
            raise write_error(context.folder, error) from error
        self.paths.append(context.folder)

    def write(self, result: Result, frame: Frame | None) -> None:
        assert frame is not None, "the sink images needs the frame"
        image = self._annotator.draw(frame, result)
        source = Path(frame.source_id)
        still = self._context.source.kind == "images"
        stem = shorten(source.stem) if still else f"{self._context.stem}_{frame.index}"
        suffix = source.suffix.lower() if still and source.suffix.lower() in JPEG_SUFFIXES else ".png"
        path = self._context.output(f"{self._context.taken[self.name].take(stem)}{suffix}")
        part = path.with_name(path.name + ".part")
        try:
            with os.fdopen(open_output(part), "wb") as file:
                Image.fromarray(image).save(
                    file, "PNG" if suffix == ".png" else "JPEG", quality=self._quality, subsampling=0, compress_level=1
                )
            os.replace(part, path)
        except OSError as error:
            with suppress(OSError):
                part.unlink()
            raise write_error(path, error) from error

    def close(self) -> None:
        for folder in self.paths:
            check_unmoved(folder, self._opened)
            make_folder_durable(folder)
