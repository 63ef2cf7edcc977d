"""Import of OpenCV, which must precede that of PyAV if a window is to be shown."""

from __future__ import annotations

import os
import sys

from framefuse.errors import CapabilityError

REMEDY = "pip install opencv-python (not -headless) and run with a display, or do not use show"


def load_opencv() -> None:
    """Import OpenCV before PyAV.

    PyAV's wheel bundles X window system libraries; if they are loaded first, OpenCV's windows hang (PyAV issues 978 and
    1050).

    Raises:
        CapabilityError: there is no display, OpenCV is not installed, or PyAV was imported first.
    """
    # Qt, which most builds of OpenCV use, aborts the process without one.
    if sys.platform == "linux" and not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        raise CapabilityError(
            "cannot open a window: there is no display (neither DISPLAY nor WAYLAND_DISPLAY is set)",
            remedy="use --save and play the video afterwards, or log in with ssh -X",
        )
    if "av" in sys.modules and "cv2" not in sys.modules and sys.platform == "linux":
        raise CapabilityError(
            "cannot open a window: PyAV was imported before OpenCV, whose windows would then hang",
            remedy="import cv2 at the top of the program",
        )
    try:
        import cv2  # noqa: F401
    except ImportError as error:
        raise CapabilityError("cannot open a window: OpenCV is not installed", remedy=REMEDY) from error
