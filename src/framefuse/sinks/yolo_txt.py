"""YOLO labels: one text file per frame or image."""

from __future__ import annotations

import errno
from pathlib import Path

import numpy as np

from framefuse.frame import Frame
from framefuse.prediction import FrameInfo, Result
from framefuse.sinks import SinkContext
from framefuse.sinks._lines import RecordFile, check_unmoved, make_folder_durable, write_error
from framefuse.sinks.run_folder import shorten


class YoloTxtSink:
    """Writes labels/<stem>_<frame>.txt, or labels/<image>.txt for images: `class cx cy w h` in 0..1 of the frame size.

    A frame without objects gets an empty file, which training tools read as a background image.

    Args:
        confidence: add the confidence as a sixth column.
    """

    name = "yolo_txt"
    needs_frame = False

    def __init__(self, *, confidence: bool = False) -> None:
        self.paths: list[Path] = []
        self.notes: list[str] = []
        self._confidence = confidence

    def open(self, context: SinkContext) -> None:
        self._context = context
        folder = context.folder / "labels"
        try:
            folder.mkdir(exist_ok=True)
            if folder.is_symlink():
                raise OSError(errno.ELOOP, "Is a symbolic link")
            self._opened = folder.stat()
        except OSError as error:
            raise write_error(folder, error) from error
        self.paths.append(folder)

    def write(self, result: Result, frame: Frame | None) -> None:
        found, info = result.detections, result.frame
        size = np.array((info.width, info.height) * 2, np.float64)
        x1, y1, x2, y2 = (found.xyxy / size).T
        columns = [(x1 + x2) / 2, (y1 + y2) / 2, x2 - x1, y2 - y1]
        if self._confidence:
            columns.append(found.confidence)
        rows = np.stack(columns, axis=1).tolist()
        lines = [
            f"{class_id} " + " ".join(f"{value:.6f}" for value in row) + "\n"
            for class_id, row in zip(found.class_id.tolist(), rows, strict=True)
        ]
        file = RecordFile(self._context.output(f"labels/{self._unique(info)}.txt"))
        try:
            file.append("".join(lines).encode())
        finally:
            file.close(durable=False)

    def _unique(self, info: FrameInfo) -> str:
        """A unique file name. All names of images are stored, but only the stem of a video, which may be endless."""
        stems, images = self._context.taken["stem"], self._context.taken[self.name]
        if self._context.source.kind != "images":
            name = f"{self._context.stem}_{info.index}"
            return images.take(name) if name in images else name
        name = shorten(Path(info.source_id).stem)
        video, _, number = name.rpartition("_")
        return images.take(f"{name}_image" if number.isdecimal() and video in stems else name)

    def close(self) -> None:
        for folder in self.paths:
            check_unmoved(folder, self._opened)
            make_folder_durable(folder)
