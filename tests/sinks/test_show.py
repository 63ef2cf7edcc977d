"""Frames in a window, of an OpenCV that only remembers what it is given."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from framefuse.prediction import Matte, MattePart
from framefuse.sinks import open_sink
from sink_frames import NONE, context, frame, result


class Window(SimpleNamespace):
    """Stands in for the module cv2."""

    WINDOW_NORMAL, WINDOW_KEEPRATIO, error = 0, 0, RuntimeError

    def __init__(self, key: int = -1) -> None:
        self.shown: list[Any] = []
        self.closed = 0
        self.waitKey = lambda delay: key

    def namedWindow(self, title: str, flags: int) -> None:
        self.title = title

    def resizeWindow(self, title: str, width: int, height: int) -> None:
        self.size = width, height

    def imshow(self, title: str, image: Any) -> None:
        self.shown.append(np.array(image))

    def destroyWindow(self, title: str) -> None:
        self.closed += 1


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Window]:
    """The window after three frames whose right half is foreground."""

    def run(key: int = -1, **options: Any) -> Window:
        window = Window(key)
        monkeypatch.setitem(sys.modules, "cv2", window)
        sink: Any = open_sink("show", **options)
        sink.open(context(tmp_path))
        for index in range(3):
            one, alpha = frame(index), np.zeros((8, 12), np.float32)
            alpha[:, 6:] = 1
            part = MattePart((0, 0, one.width, one.height), alpha)
            sink.write(replace(result(one, NONE), matte=Matte((part,), (one.width, one.height), 1.0)), one)
        sink.close()
        return window

    return run


def test_annotated_frames(shown: Callable[..., Window]) -> None:
    window = shown()
    assert len(window.shown) == 3 and window.shown[0].ndim == 3 and window.closed == 1


@pytest.mark.parametrize("mode", ["gray", "alpha", "packed", "png"])
def test_mattes(mode: str, shown: Callable[..., Window]) -> None:
    (first, *_) = shown(matte=mode).shown
    assert first.ndim == 2 and first[:, :20].max() == 0 and first[:, -20:].min() == 255


@pytest.mark.parametrize(
    ("mode", "left", "right"),
    [("green", [0, 255, 0], None), ("blur", None, None), ("overlay", None, [108, 69, 176])],
)
def test_composed_frames_in_the_order_of_opencv(
    mode: str, left: list[int] | None, right: list[int] | None, shown: Callable[..., Window]
) -> None:
    """Blue, green, red; what is no background, or is not tinted, is as it was."""
    plain, found = shown().shown[0], shown(matte=mode).shown[0]
    assert found.shape == plain.shape
    for columns, colour in ((slice(0, 20), left), (slice(-20, None), right)):
        expected = np.median(plain[:, columns], (0, 1)) if colour is None else colour
        assert np.abs(np.median(found[:, columns], (0, 1)) - expected).max() <= 3, mode


def test_a_key_closes_the_window_and_not_the_run(shown: Callable[..., Window]) -> None:
    window = shown(key=ord("q"), matte="green")
    assert len(window.shown) == 1 and window.closed == 1
