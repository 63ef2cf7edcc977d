"""Annotated frames in a window."""

from __future__ import annotations

from pathlib import Path

from framefuse.errors import CapabilityError
from framefuse.frame import Frame
from framefuse.prediction import Result
from framefuse.sinks import SinkContext
from framefuse.sinks.images import AnnotatedRgb

CLOSE_KEYS = (ord("q"), 27)
"""q and Escape."""


class ShowSink:
    """Shows each frame in a window of OpenCV; q or Escape closes the window, the run goes on.

    Raises:
        CapabilityError: OpenCV is missing, is the build without windows, or there is no display.
    """

    name = "show"
    needs_frame = True

    def __init__(self) -> None:
        self.paths: list[Path] = []
        self.notes: list[str] = []
        self._pictures = AnnotatedRgb()
        self._title = ""

    def open(self, context: SinkContext) -> None:
        try:
            import cv2

            cv2.namedWindow(context.stem, cv2.WINDOW_NORMAL | cv2.WINDOW_KEEPRATIO)
        except (ImportError, _cv2_error()) as error:
            raise CapabilityError(
                "no window can be shown: OpenCV is missing, was built without windows, or finds no display",
                remedy="pip install opencv-python (not -headless) and run with a display, or leave --show out",
            ) from error
        self._title = context.stem

    def write(self, result: Result, frame: Frame | None) -> None:
        import cv2

        if not self._title:
            return
        assert frame is not None, "the sink show needs the frame"
        cv2.imshow(self._title, self._pictures.draw(frame, result.detections)[..., ::-1])
        if cv2.waitKey(1) & 0xFF in CLOSE_KEYS:
            self.close()

    def close(self) -> None:
        title, self._title = self._title, ""
        if title:
            import cv2

            cv2.destroyWindow(title)


def _cv2_error() -> type[Exception]:
    """OpenCV's exception, where OpenCV is installed."""
    try:
        import cv2
    except ImportError:
        return ImportError
    error: type[Exception] = cv2.error
    return error
