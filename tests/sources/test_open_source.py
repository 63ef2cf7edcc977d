"""open_source: lists of sources, addresses, and options that are refused."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import media
from framefuse.errors import SourceError, UsageError
from framefuse.frame import Frame
from framefuse.sources import SourceInfo, SourceOptions, open_source, videos_in
from reading import read


class TestLists:
    def test_one_after_the_other(self, tmp_path: Path) -> None:
        first = media.video(tmp_path / "a.mp4", frames=2)
        second = media.video(tmp_path / "b.mkv", frames=3, size=(32, 32))
        frames, info = read([first, str(second), media.rgb_image(0)])
        assert [(frame.source_id, frame.index) for frame in frames] == [
            *((str(first), index) for index in range(2)),
            *((str(second), index) for index in range(3)),
            ("array", 0),
        ]
        assert info.uri == "3 sources"
        assert (info.kind, info.width, info.height, info.fps) == ("file", 64, 48, 25)
        assert info.parts[str(second)].width == 32
        assert f"{first}: colour matrix not stated: BT.601 assumed" in info.notes

    def test_sources_in_a_list(self, tmp_path: Path) -> None:
        path = media.video(tmp_path / "a.mp4", frames=2)
        frames, _ = read([open_source(path), media.rgb_image(0), open_source([media.rgb_image(1)] * 2)])
        assert [frame.source_id for frame in frames] == [str(path), str(path), "array", "array#2", "array#2"]

    def test_a_list_of_one_is_that_one(self, tmp_path: Path) -> None:
        path = media.video(tmp_path / "a.mp4", frames=2)
        assert read([path])[1].uri == str(path)
        with pytest.raises(SourceError, match="no such file"):
            open_source([tmp_path / "missing.mp4"])

    def test_the_same_file_twice_has_two_names(self, tmp_path: Path) -> None:
        path = str(media.video(tmp_path / "a.mp4", frames=2))
        frames, info = read([path, path, path])
        assert [frame.source_id for frame in frames] == [path] * 2 + [f"{path}#2"] * 2 + [f"{path}#3"] * 2
        assert set(info.parts) == {path, f"{path}#2", f"{path}#3"}

    def test_failures_are_passed_over(self, tmp_path: Path) -> None:
        good = media.video(tmp_path / "good.mp4", frames=2)
        broken = media.video(tmp_path / "broken.mov", codec="prores_ks", pixel_format="yuv422p10le", frames=1)
        data = broken.read_bytes()
        start = data.index(b"icpf")
        broken.write_bytes(data[:start] + b"\xff" * 200 + data[start + 200 :])
        frames, info = read([tmp_path / "missing.mp4", broken, good])
        assert {frame.source_id for frame in frames} == {str(good)}
        assert len(frames) == 2
        assert info.drops == {"unreadable": 2, "corrupt": 1}
        assert info.notes[0].startswith(f"{tmp_path}/missing.mp4 skipped: no such file")
        assert any(text.startswith(f"{broken} skipped: nothing in") for text in info.notes)

    def test_all_fail(self, tmp_path: Path) -> None:
        (tmp_path / "b.mp4").touch()
        with pytest.raises(SourceError, match=r"none of 2 sources could be read: no such file.*empty"):
            open_source([tmp_path / "a.mp4", tmp_path / "b.mp4"])

    def test_nothing_after_a_live_source(self) -> None:
        for live in ("0", 0, "/dev/video1", "rtsp://host/stream"):
            with pytest.raises(UsageError, match="never ends"):
                open_source([live, "a.mp4"])

    def test_close_reaches_the_source_in_turn(self, tmp_path: Path) -> None:
        blocked, free = threading.Event(), threading.Event()

        class Waiting:
            """A source that waits until it is closed."""

            info = SourceInfo("waiting", "synthetic")

            def __iter__(self) -> Iterator[Frame]:
                blocked.set()
                assert free.wait(30)
                return iter(())

            def close(self) -> None:
                free.set()

        source = open_source([str(media.video(tmp_path / "a.mp4", frames=2)), Waiting()])
        thread = threading.Thread(target=list, args=(source,))
        thread.start()
        assert blocked.wait(30)
        source.close()
        thread.join(30)
        assert not thread.is_alive()


class TestDispatch:
    def test_a_source_is_passed_through(self) -> None:
        source = open_source(media.rgb_image(0))
        assert open_source(source) is source

    def test_file_addresses(self, tmp_path: Path) -> None:
        path = media.image(tmp_path / "with space.png")
        assert len(read(path.as_uri())[0]) == 1

    def test_file_addresses_of_names_that_are_not_utf8(self, tmp_path: Path) -> None:
        path = media.image(tmp_path / "a.png").rename(tmp_path / os.fsdecode(b"\xff.png"))
        assert len(read(path.as_uri())[0]) == 1

    @pytest.mark.parametrize("address", ["file://[", "file://", "file://\u2100/a.png", "file:///\ud800.png"])
    def test_file_addresses_that_name_no_file(self, address: str) -> None:
        with pytest.raises(UsageError, match="names no file"):
            open_source(address)

    @pytest.mark.parametrize(
        ("source", "message"),
        [
            ("a\0b.jpg", "no such file"),
            ("a\0b/*.jpg", "embedded null byte"),
            ("\ud800/*", "surrogates not allowed"),
            ("//[", "no image or video"),
            ("*/" * 1000, "recursion depth"),
            ("9" * 5000, "File name too long"),
            ("/dev/video" + "9" * 200, "no such file"),
            ("rtsp://[", "invalid host or port"),
            ("tcp://host:1\0", "control characters"),
        ],
    )
    def test_names_that_nothing_can_have(self, source: str, message: str) -> None:
        with pytest.raises(SourceError, match=message):
            open_source(source)
        if "://" not in source:
            with pytest.raises(SourceError, match=message):
                videos_in(source)

    def test_a_number_that_no_camera_has(self) -> None:
        with pytest.raises(UsageError, match="a int is not a source"):
            open_source(10**5000)

    def test_unknown_scheme(self) -> None:
        with pytest.raises(UsageError, match="no source reads gopher://") as caught:
            open_source("gopher://host/clip")
        assert "rtsp" in (caught.value.remedy or "")

    @pytest.mark.parametrize(
        ("options", "message", "remedy"),
        [
            ({"vid_stride": 0}, "vid_stride is 0", "a whole number from 1"),
            ({"vid_stride": "x"}, "vid_stride is 'x'", "a whole number from 1"),
            ({"vid_stride": 1.5}, "vid_stride is 1.5", "a whole number from 1"),
            ({"vid_stride": True}, "vid_stride is True", "a whole number from 1"),
            ({"decode_threads": None}, "decode_threads is None", "a whole number from 1"),
            ({"held": 0}, "held is 0", "a whole number from 1"),
            ({"max_pixels": 0}, "max_pixels is 0", "a whole number from 1"),
            ({"reconnect": -2}, "reconnect is -2", "a whole number from -1"),
            ({"start": -1.0}, "start -1.0 and end None", "from 0"),
            ({"start": "1.5"}, "start '1.5'", "from 0"),
            ({"end": [1]}, "end [1]", "from 0"),
            ({"timeout": float("inf")}, "timeout is inf", "above 0"),
            ({"max_age": "x"}, "max_age is 'x'", "above 0"),
            ({"reconnect_max_delay": 0}, "reconnect_max_delay is 0", "above 0"),
            ({"low_latency": "no"}, "low_latency is 'no'", "True or False"),
            ({"device": "gpu"}, "device is 'gpu'", "cpu or cuda"),
        ],
    )
    def test_options_are_checked(self, options: dict[str, Any], message: str, remedy: str) -> None:
        with pytest.raises(UsageError) as caught:
            SourceOptions(**options)
        assert message in caught.value.message and remedy in (caught.value.remedy or "")

    def test_numbers_of_numpy_are_numbers(self) -> None:
        assert SourceOptions(vid_stride=np.int64(2), start=np.float32(0.5)).span[0] == Fraction(1, 2)  # type: ignore[arg-type]

    @pytest.mark.parametrize("options", [{}, {"vid_stride": 2}, [], 3, SourceOptions])
    def test_options_of_another_kind_are_refused(self, options: Any) -> None:
        with pytest.raises(UsageError, match="options is ") as caught:
            open_source(media.rgb_image(0), options)
        assert "SourceOptions(...)" in (caught.value.remedy or "")
