"""YOLO labels: one text file per frame or image."""

from __future__ import annotations

import numpy as np

from framefuse.frame import Frame
from framefuse.prediction import Result
from framefuse.sinks._base import FolderSink
from framefuse.sinks._lines import RecordFile


class YoloTxtSink(FolderSink):
    """Writes labels/<stem>_<frame>.txt, or labels/<image>.txt for images: `class cx cy w h` in 0..1 of the frame size.

    A frame without objects gets an empty file, which training tools read as a background image.

    Args:
        confidence: add the confidence as a sixth column.
    """

    name = "yolo_txt"
    folder = "labels"

    def __init__(self, *, confidence: bool = False) -> None:
        super().__init__()
        self._confidence = confidence

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
        file = RecordFile(self._context.output(f"labels/{self._context.image_name(self.name, info)}.txt"))
        try:
            file.append("".join(lines).encode())
        finally:
            file.close(durable=False)
