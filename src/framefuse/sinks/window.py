"""OpenCV must be loaded before PyAV where a window is to be shown."""

from __future__ import annotations

import sys

from framefuse.errors import CapabilityError

REMEDY = "pip install opencv-python (not -headless) and run with a display, or leave show out"


def load_opencv() -> None:
    """Import OpenCV, before PyAV is.

    PyAV's wheel brings libraries of the X window system of its own; when they are loaded first, OpenCV's windows wait
    for ever (PyAV issues 978 and 1050).

    Raises:
        CapabilityError: OpenCV is not installed, or PyAV is already loaded without it.
    """
    if "av" in sys.modules and "cv2" not in sys.modules and sys.platform == "linux":
        raise CapabilityError(
            "no window can be shown: PyAV was imported before OpenCV, whose windows would then hang",
            remedy="import cv2 at the top of the program",
        )
    try:
        import cv2  # noqa: F401
    except ImportError as error:
        raise CapabilityError("no window can be shown: OpenCV is not installed", remedy=REMEDY) from error
