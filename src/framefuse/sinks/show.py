"""Annotated frames in a window."""

from __future__ import annotations

from framefuse.errors import CapabilityError
from framefuse.frame import Frame
from framefuse.prediction import Result
from framefuse.sinks import SinkContext
from framefuse.sinks._base import BaseSink
from framefuse.sinks.images import RgbAnnotator
from framefuse.sinks.window import REMEDY

LARGEST = (1280, 720)
"""Maximum initial size of the window, which can be resized."""
CLOSE_KEYS = (ord("q"), 27)
"""q and Escape."""


class ShowSink(BaseSink):
    """Shows each frame in an OpenCV window; q or Escape closes the window, and the run continues.

    Args:
        views: outline the views of each frame.

    All calls must come from the main thread, as windows belong to it.

    Raises:
        CapabilityError: OpenCV is missing or built without windows, or there is no display.
    """

    name = "show"
    needs_frame = True

    def __init__(self, *, trail: float = 0.0, views: bool = False) -> None:
        super().__init__()
        self._annotator = RgbAnnotator(trail, views=views)
        self._title = ""

    def open(self, context: SinkContext) -> None:
        import cv2

        try:
            cv2.namedWindow(context.stem, cv2.WINDOW_NORMAL | cv2.WINDOW_KEEPRATIO)
        except cv2.error as error:
            raise CapabilityError("cannot open a window: OpenCV lacks windows or a display", remedy=REMEDY) from error
        width, height = context.source.width or LARGEST[0], context.source.height or LARGEST[1]
        scale = min(1.0, LARGEST[0] / width, LARGEST[1] / height)
        cv2.resizeWindow(context.stem, round(width * scale), round(height * scale))
        self._title = context.stem

    def write(self, result: Result, frame: Frame | None) -> None:
        import cv2

        if not self._title:
            return
        assert frame is not None, "the sink show needs the frame"
        cv2.imshow(self._title, self._annotator.draw(frame, result)[..., ::-1])
        if cv2.waitKey(1) & 0xFF in CLOSE_KEYS:
            self.close()

    def close(self) -> None:
        title, self._title = self._title, ""
        if title:
            import cv2

            cv2.destroyWindow(title)
            cv2.waitKey(1)  # lets the window system process it
