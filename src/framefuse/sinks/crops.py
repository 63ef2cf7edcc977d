"""Every object as an image of its own."""

from __future__ import annotations

import re

from framefuse.frame import Frame
from framefuse.prediction import Result, cut
from framefuse.sinks._base import FolderSink
from framefuse.sinks.canvas import FrameConverter
from framefuse.sinks.images import save_image
from framefuse.sinks.run_folder import shorten


class CropsSink(FolderSink):
    """Writes crops/<class>/<stem>_<frame>_<number>.jpg, where the number counts the objects of a frame from 0.

    A crop covers every pixel that the box touches. Tools that train classifiers read such folders.

    Args:
        quality: of the JPEG, 1..95.
    """

    name = "crops"
    folder = "crops"
    needs_frame = True

    def __init__(self, *, quality: int = 92) -> None:
        super().__init__()
        self._quality = quality
        self._converter = FrameConverter()

    def write(self, result: Result, frame: Frame | None) -> None:
        assert frame is not None, "the sink crops needs the frame"
        if not len(result.detections):
            return
        image, stem = self._converter.rgb(frame), self._context.frame_stem(frame)
        for number, found in enumerate(result.detections):
            folder = f"crops/{folder_of(found.name)}"
            self._folder(folder)
            name = self._context.taken[f"{self.name} {folder}"].take(f"{stem}_{number}")
            path = self._context.output(f"{folder}/{name}.jpg")
            save_image(path, cut(image, found.xyxy), self._quality)


def folder_of(name: str) -> str:
    """A class name as the name of a folder."""
    return shorten(re.sub(r"[^\w .+-]", "_", name).strip(". ")) or "_"
