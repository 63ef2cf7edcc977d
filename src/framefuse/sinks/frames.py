"""The frames themselves as images, for labelling and training."""

from __future__ import annotations

from framefuse.frame import Frame
from framefuse.prediction import Result
from framefuse.sinks._base import FolderSink
from framefuse.sinks.canvas import FrameConverter
from framefuse.sinks.images import save_image


class FramesSink(FolderSink):
    """Writes images/<stem>_<frame>.jpg, or images/<image>.jpg for images: what the labels of the sink yolo_txt
    describe, so that both together are a data set.

    Args:
        hits: only frames with detections.
        quality: of the JPEG, 1..95.
    """

    name = "frames"
    folder = "images"
    needs_frame = True

    def __init__(self, *, hits: bool = False, quality: int = 92) -> None:
        super().__init__()
        self._hits, self._quality = hits, quality
        self._converter = FrameConverter()

    def write(self, result: Result, frame: Frame | None) -> None:
        assert frame is not None, "the sink frames needs the frame"
        if self._hits and not len(result.detections):
            return
        path = self._context.output(f"images/{self._context.image_name(self.name, frame)}.jpg")
        save_image(path, self._converter.rgb(frame), self._quality)
