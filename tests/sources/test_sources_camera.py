"""Cameras: FFmpeg's test pattern as a device, one that ends, and one that is silent."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import av
import pytest

from framefuse.errors import SourceError, StreamError
from framefuse.sources import SourceInfo, SourceOptions, open_source
from framefuse.sources.live import _decoded_frames, open_device


class TestCamera:
    @pytest.mark.parametrize("camera", [97, "97", "/dev/video97"])
    def test_no_such_camera(self, camera: int | str) -> None:
        with pytest.raises(SourceError, match=r"no camera /dev/video97; present: "):
            open_source(camera)

    def test_frames_of_a_device(self) -> None:
        # To FFmpeg, its test pattern is a capture device like a camera.
        source = open_device("testsrc=size=64x48:rate=30", "lavfi", SourceOptions(vid_stride=3))
        assert (source.info.kind, source.info.live, source.info.width, source.info.fps) == ("camera", True, 64, 30)
        before = time.monotonic()
        frames = [next(source) for _ in range(4)]
        source.close()
        assert [frame.index for frame in frames] == [0, 3, 6, 9]
        assert [frame.seconds for frame in frames] == pytest.approx([0, 0.1, 0.2, 0.3])
        arrivals = [frame.arrival for frame in frames]
        assert all(arrival is not None and before <= arrival <= time.monotonic() for arrival in arrivals)
        assert list(source) == []

    def test_a_device_that_ends(self) -> None:
        source = open_device("testsrc=size=64x48:rate=30:duration=0.1", "lavfi", SourceOptions())
        with pytest.raises(StreamError, match="was disconnected"):
            list(source)

    def test_a_silent_device(self) -> None:
        with pytest.raises(StreamError, match=r"delivered no frame for 0\.05 s"):
            list(_decoded_frames(Silent(), None, SourceInfo("cam", "camera"), 0.05, threading.Event()))

    def test_closing_while_a_device_is_silent(self) -> None:
        silent, closed = Silent(), threading.Event()
        frames = _decoded_frames(silent, None, SourceInfo("", "camera"), 60, closed)
        wait = threading.Thread(target=list, args=(frames,))
        wait.start()
        assert silent.asked.wait(30)
        closed.set()
        wait.join(30)
        assert not wait.is_alive()

    def test_a_device_that_cannot_be_opened(self) -> None:
        with pytest.raises(SourceError, match="cannot open"):
            open_device("nosuchfilter", "lavfi", SourceOptions())


class Silent:
    """An open device without a frame, as FFmpeg reports it."""

    def __init__(self) -> None:
        self.asked = threading.Event()

    def demux(self, stream: object) -> Iterator[Any]:
        self.asked.set()
        raise av.error.BlockingIOError(11, "Resource temporarily unavailable")
        yield
