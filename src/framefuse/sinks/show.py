"""Annotated or composed frames in a window of OpenCV, which must be imported before PyAV."""

import os
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from framefuse.errors import CapabilityError
from framefuse.frame import Frame
from framefuse.prediction import Result
from framefuse.sinks import USUAL, BaseSink, SinkContext, Style

REMEDY = "pip install opencv-python (not -headless) and run with a display, or do not use show"
LARGEST = (1280, 720)
"""Maximum initial size of the window, which can be resized."""
CLOSE_KEYS = (ord("q"), 27)
"""q and Escape."""


def load_opencv() -> None:
    """Import OpenCV before PyAV, whose wheel bundles X window system libraries; if they are loaded first, OpenCV's
    windows hang (PyAV issues 978 and 1050).

    Raises:
        CapabilityError: there is no display, OpenCV is not installed, or PyAV was imported first.
    """
    # Qt, which most builds of OpenCV use, aborts the process without one.
    if sys.platform == "linux" and not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        problem = "cannot open a window: there is no display (neither DISPLAY nor WAYLAND_DISPLAY is set)"
        raise CapabilityError(problem, remedy="use --save and play the video afterwards, or log in with ssh -X")
    if "av" in sys.modules and "cv2" not in sys.modules and sys.platform == "linux":
        problem = "cannot open a window: PyAV was imported before OpenCV, whose windows would then hang"
        raise CapabilityError(problem, remedy="import cv2 at the top of the program")
    try:
        import cv2  # noqa: F401
    except ImportError as error:
        raise CapabilityError("cannot open a window: OpenCV is not installed", remedy=REMEDY) from error


class ShowSink(BaseSink):
    """Shows each frame in an OpenCV window; q or Escape closes the window, and the run continues. All calls must come
    from the main thread, as windows belong to it.

    Args:
        style: how frames are annotated.
        matte: show what `MatteSink` makes of each frame in this mode instead; the matte itself where that is for
            players, which compose it.

    Raises:
        CapabilityError: OpenCV is missing or built without windows, or there is no display.
    """

    name = "show"
    needs_frame = True

    def __init__(self, *, style: Style = USUAL, matte: str | None = None) -> None:
        from framefuse.sinks.images import FrameConverter, RgbAnnotator  # imports PyAV

        super().__init__()
        self._picture: Callable[[Frame, Result], Any] = RgbAnnotator(style).draw
        if matte is not None:
            from framefuse.sinks.matte import COLOURS, image_of

            mode = matte if matte in (*COLOURS, "blur") else "gray"
            self._picture = partial(image_of, mode=mode, converter=FrameConverter())
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
        self._title, self._cv2 = context.stem, cv2

    def write(self, result: Result, frame: Frame | None) -> None:
        if not self._title:
            return
        picture = self._picture(result.pixels_or(frame), result)
        self._cv2.imshow(self._title, picture if picture.ndim == 2 else picture[..., ::-1])
        if self._cv2.waitKey(1) & 0xFF in CLOSE_KEYS:
            self.close()

    def close(self) -> None:
        title, self._title = self._title, ""
        if title:
            self._cv2.destroyWindow(title)
            self._cv2.waitKey(1)  # lets the window system process it
