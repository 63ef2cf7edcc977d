"""Images, arrays, cameras, and lists of sources."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image, ImageOps

import media
from framefuse.errors import DecodeError, SourceError, StreamError, UsageError
from framefuse.frame import Frame
from framefuse.sources import SourceInfo, SourceOptions, open_source
from framefuse.sources.camera import _pictures, open_device
from framefuse.sources.paths import sorted_naturally


def read(source: Any, **options: Any) -> tuple[list[Frame], SourceInfo]:
    opened = open_source(source, SourceOptions(**options))
    return list(opened), opened.info


def shown(frame: Frame) -> NDArray[Any]:
    """The pixels as they are to be seen: turned clockwise by `rotation`."""
    return np.rot90(frame.planes[0], -frame.rotation // 90)


class TestImages:
    @pytest.mark.parametrize("suffix", ["png", "bmp", "tif", "ppm", "tga"])
    def test_pixels(self, tmp_path: Path, suffix: str) -> None:
        path = media.image(tmp_path / f"a.{suffix}", 2)
        (frame,), info = read(path)
        assert frame.format.name == "rgb24"
        assert (frame.matrix, frame.full_range, frame.pts, frame.source_id) == ("rgb", True, None, str(path))
        assert (info.width, info.height, info.frames, info.kind) == (64, 48, 1, "images")
        np.testing.assert_array_equal(frame.planes[0], media.picture(2))

    @pytest.mark.parametrize("suffix", ["jpg", "webp"])
    def test_lossy(self, tmp_path: Path, suffix: str) -> None:
        (frame,), _ = read(media.image(tmp_path / f"a.{suffix}", quality=95))
        assert np.abs(frame.planes[0].astype(int) - media.picture(0)).mean() < 6

    @pytest.mark.parametrize("orientation", range(1, 9))
    def test_exif_orientation(self, tmp_path: Path, orientation: int) -> None:
        exif = Image.Exif()
        exif[0x0112] = orientation
        for suffix in ("png", "tif"):
            path = media.image(tmp_path / f"a.{suffix}", exif=exif)
            (frame,), info = read(path)
            # What the orientations mean, in numpy (EXIF 2.32, 4.6.4 A): where row 0 and column 0 of the file are seen.
            upright = {
                1: lambda a: a,
                2: lambda a: a[:, ::-1],
                3: lambda a: a[::-1, ::-1],
                4: lambda a: a[::-1],
                5: lambda a: a.swapaxes(0, 1),
                6: lambda a: np.rot90(a, -1),
                7: lambda a: np.rot90(a.swapaxes(0, 1), 2),
                8: lambda a: np.rot90(a, 1),
            }[orientation](media.picture(0))
            np.testing.assert_array_equal(shown(frame), upright)
            assert (frame.height, frame.width) == upright.shape[:2]
            assert ("mirrored" in "; ".join(info.notes)) == (orientation in (2, 4, 5, 7) and suffix == "png")
        assert frame.rotation in (0, 90, 180, 270)

    def test_pure_turns_leave_the_pixels_where_they_are(self, tmp_path: Path) -> None:
        exif = Image.Exif()
        exif[0x0112] = 6
        (frame,), _ = read(media.image(tmp_path / "a.png", exif=exif))
        assert frame.rotation == 90
        np.testing.assert_array_equal(frame.planes[0], media.picture(0))

    def test_gray(self, tmp_path: Path) -> None:
        (frame,), _ = read(media.image(tmp_path / "a.png", mode="L"))
        assert frame.format.name == "gray"
        assert frame.full_range

    def test_gray_of_16_bits(self, tmp_path: Path) -> None:
        pixels = np.arange(48 * 64, dtype=np.uint16).reshape(48, 64) * 21
        for suffix in ("png", "tif"):
            Image.fromarray(pixels).save(tmp_path / f"a.{suffix}")
            (frame,), _ = read(tmp_path / f"a.{suffix}")
            assert frame.format.name == "gray16"
            np.testing.assert_array_equal(frame.planes[0], pixels)

    def test_bilevel(self, tmp_path: Path) -> None:
        (frame,), _ = read(media.image(tmp_path / "a.png", mode="1"))
        assert frame.format.name == "gray"
        assert set(np.unique(frame.planes[0])) == {0, 255}

    def test_transparency_is_ignored_and_said(self, tmp_path: Path) -> None:
        rgba = np.dstack([media.picture(0), np.full((48, 64), 7, np.uint8)])
        Image.fromarray(rgba).save(tmp_path / "a.png")
        (frame,), info = read(tmp_path / "a.png")
        assert frame.format.name == "rgba"
        np.testing.assert_array_equal(frame.planes[0][:, :, :3], media.picture(0))
        assert info.notes == ["transparency is ignored"]

    @pytest.mark.parametrize("mode", ["P", "LA", "CMYK"])
    def test_other_modes(self, tmp_path: Path, mode: str) -> None:
        path = media.image(tmp_path / ("a.tif" if mode == "CMYK" else "a.png"), mode=mode)
        (frame,), info = read(path)
        with Image.open(path) as image:
            expected = np.array(image.convert("L" if mode == "LA" else "RGB"))
        np.testing.assert_array_equal(frame.planes[0], expected)
        assert info.notes == ["transparency is ignored" if mode == "LA" else f"{mode} images are converted to RGB"]

    def test_palette_with_transparency(self, tmp_path: Path) -> None:
        image = Image.fromarray(media.picture(0)).quantize(16)
        image.save(tmp_path / "a.png", transparency=bytes(range(16)))
        (frame,), _ = read(tmp_path / "a.png")
        np.testing.assert_array_equal(frame.planes[0][:, :, :3], np.array(image.convert("RGB")))

    def test_floating_point_is_refused(self, tmp_path: Path) -> None:
        Image.fromarray(np.ones((8, 8), np.float32)).save(tmp_path / "a.tif")
        with pytest.raises(SourceError, match=r"a\.tif: floating point pixels"):
            read(tmp_path / "a.tif")

    @pytest.mark.parametrize("suffix", ["gif", "webp", "png"])
    def test_animation(self, tmp_path: Path, suffix: str) -> None:
        path = media.animation(tmp_path / f"a.{suffix}", [100, 250, 40, 60])
        frames, info = read(path)
        assert [frame.pts for frame in frames] == [0, 100, 350, 390]
        assert frames[0].time_base == Fraction(1, 1000)
        assert [frame.index for frame in frames] == [0, 1, 2, 3]
        assert {frame.source_id for frame in frames} == {str(path)}
        assert info.frames is None
        for number, frame in enumerate(frames):
            assert np.abs(frame.planes[0].astype(int) - media.picture(number)).mean() < 20
        assert [frame.pts for frame in read(path, start=0.1, end=0.39)[0]] == [100, 350]

    @pytest.mark.parametrize("suffix", ["gif", "png"])
    @pytest.mark.parametrize("part", [0.9, 0.7, 0.5])
    def test_an_animation_that_is_cut_off(self, tmp_path: Path, suffix: str, part: float) -> None:
        path = media.truncate(media.animation(tmp_path / f"a.{suffix}", [100] * 8), part)
        frames, info = read(path)
        assert 1 < len(frames) < 8
        assert info.drops == {"corrupt": 1}

    def test_pages(self, tmp_path: Path) -> None:
        path = tmp_path / "a.tif"
        first, second = (Image.fromarray(media.picture(number)) for number in range(2))
        first.save(path, save_all=True, append_images=[second])
        frames, _ = read(path)
        assert [frame.pts for frame in frames] == [None, None]
        np.testing.assert_array_equal(frames[1].planes[0], media.picture(1))

    def test_not_an_image(self, tmp_path: Path) -> None:
        path = tmp_path / "a.jpg"
        path.write_text("no image")
        with pytest.raises(DecodeError, match="no image, or damaged"):
            open_source(path)

    def test_truncated(self, tmp_path: Path) -> None:
        path = media.truncate(media.image(tmp_path / "a.jpg", size=(320, 240)), 0.8)
        source = open_source(path)
        with pytest.raises(DecodeError, match=r"(?i)truncated"):
            list(source)
        assert list(source) == []

    @pytest.mark.parametrize("size", [(20000, 1), (1, 17000)])
    def test_absurd_size(self, tmp_path: Path, size: tuple[int, int]) -> None:
        with pytest.raises(SourceError, match=f"{size[0]}x{size[1]} is beyond 16384"):
            open_source(media.image(tmp_path / "a.png", size=size))

    def test_decompression_bomb(self, tmp_path: Path) -> None:
        path = tmp_path / "a.png"
        Image.new("1", (16000, 16000)).save(path)
        with pytest.raises(DecodeError, match="decompression bomb"):
            open_source(path)


class TestFolders:
    def folder(self, path: Path) -> Path:
        for number in (10, 2, 1):
            media.image(path / f"frame{number}.png", number)
        (path / "labels.txt").write_text("0 0 0 0 0")
        return path

    def test_natural_order(self, tmp_path: Path) -> None:
        frames, info = read(self.folder(tmp_path))
        assert [Path(frame.source_id).name for frame in frames] == ["frame1.png", "frame2.png", "frame10.png"]
        assert [frame.index for frame in frames] == [0, 1, 2]
        assert (info.kind, info.frames, info.uri) == ("images", 3, "3 images")

    def test_sorting(self) -> None:
        assert sorted_naturally(["b", "a10", "A9", "a10b", "01", "1", "a9"]) == [
            "01",
            "1",
            "A9",
            "a9",
            "a10",
            "a10b",
            "b",
        ]

    def test_globs(self, tmp_path: Path) -> None:
        self.folder(tmp_path)
        (tmp_path / "deep" / "er").mkdir(parents=True)
        media.image(tmp_path / "deep" / "er" / "x.jpg")
        assert len(read(f"{tmp_path}/*.png")[0]) == 3
        assert len(read(f"{tmp_path}/frame?.png")[0]) == 2
        assert len(read(f"{tmp_path}/**/*")[0]) == 4

    def test_a_name_with_the_characters_of_a_glob(self, tmp_path: Path) -> None:
        assert len(read(str(media.image(tmp_path / "a[1].png")))[0]) == 1

    def test_stride(self, tmp_path: Path) -> None:
        frames, info = read(self.folder(tmp_path), vid_stride=2)
        assert [frame.index for frame in frames] == [0, 2]
        assert info.frames == 2

    def test_nothing_there(self, tmp_path: Path) -> None:
        (tmp_path / "labels.txt").write_text("")
        with pytest.raises(SourceError, match="no image or video") as caught:
            open_source(tmp_path)
        assert "/**/*" in str(caught.value)
        with pytest.raises(SourceError, match="no image or video"):
            open_source(f"{tmp_path}/*.png")
        with pytest.raises(SourceError, match="File name too long"):
            open_source("a" * 5000)

    def test_bad_images_are_skipped_and_reported(self, tmp_path: Path) -> None:
        self.folder(tmp_path)
        media.truncate(tmp_path / "frame2.png", 0.5)
        (tmp_path / "frame3.jpg").write_bytes(b"")
        frames, info = read(tmp_path)
        assert [Path(frame.source_id).name for frame in frames] == ["frame1.png", "frame10.png"]
        assert info.drops == {"corrupt": 2}
        assert "frame2.png" in info.notes[0] and "frame3.jpg" in info.notes[1]

    def test_only_bad_images(self, tmp_path: Path) -> None:
        for number in range(15):
            (tmp_path / f"{number}.png").write_text("no image")
        source = open_source(tmp_path)
        with pytest.raises(DecodeError, match="none of 15 images can be read"):
            list(source)
        assert len(source.info.notes) == 11
        assert source.info.drops == {"corrupt": 15}

    def test_images_and_videos_in_one_folder(self, tmp_path: Path) -> None:
        media.image(tmp_path / "a1.png")
        media.image(tmp_path / "a2.png")
        media.video(tmp_path / "b.mp4", frames=3)
        media.image(tmp_path / "c.png")
        frames, info = read(tmp_path)
        assert [Path(frame.source_id).name for frame in frames] == ["a1.png", "a2.png", *["b.mp4"] * 3, "c.png"]
        assert info.parts[str(tmp_path / "b.mp4")].fps == 25
        assert info.parts[str(tmp_path / "b.mp4")].path == tmp_path / "b.mp4"
        assert info.parts[str(tmp_path / "a1.png")].kind == "images"


class TestArrays:
    def test_bgr_in_place(self) -> None:
        image = media.picture(0)
        (frame,), info = read(image)
        assert frame.format.name == "bgr24"
        assert frame.planes[0].ctypes.data == image.ctypes.data
        assert (info.kind, info.width, info.height, info.frames) == ("array", 64, 48, 1)

    @pytest.mark.parametrize(
        ("shape", "dtype", "name"),
        [
            ((5, 7), np.uint8, "gray"),
            ((5, 7, 1), np.uint8, "gray"),
            ((5, 7), np.uint16, "gray16"),
            ((5, 7, 4), np.uint8, "bgra"),
        ],
    )
    def test_kinds(self, shape: tuple[int, ...], dtype: Any, name: str) -> None:
        (frame,), _ = read(np.zeros(shape, dtype))
        assert (frame.format.name, frame.width, frame.height) == (name, 7, 5)

    def test_stack(self) -> None:
        stack = np.stack([media.picture(number) for number in range(5)])
        frames, info = read(stack, vid_stride=2)
        assert [frame.index for frame in frames] == [0, 2, 4]
        assert info.frames == 3
        np.testing.assert_array_equal(frames[2].planes[0], stack[4])

    def test_mixed_sizes_in_a_list(self) -> None:
        frames, _ = read([media.picture(0, 20, 10), Image.fromarray(media.picture(1, 30, 15)), media.picture(2)])
        assert [(frame.width, frame.format.name) for frame in frames] == [(20, "bgr24"), (30, "rgb24"), (64, "bgr24")]

    def test_views_and_read_only_arrays(self) -> None:
        image = media.picture(0)
        np.testing.assert_array_equal(read(image[:, ::-1])[0][0].planes[0], image[:, ::-1])
        image.flags.writeable = False
        plane = read(image)[0][0].planes[0]
        assert np.shares_memory(plane, image)
        np.testing.assert_array_equal(plane, image)

    def test_generators_are_pulled_lazily(self) -> None:
        pulled = []

        def pictures() -> Iterator[NDArray[Any]]:
            for number in range(100):
                pulled.append(number)
                yield media.picture(number)

        source = open_source(pictures())
        assert pulled == []
        assert source.info.frames is None
        iterator = iter(source)
        assert [next(iterator).index for _ in range(3)] == [0, 1, 2]
        assert pulled == [0, 1, 2]
        source.close()
        assert list(source) == []

    def test_errors_of_the_generator_come_through(self) -> None:
        def pictures() -> Iterator[NDArray[Any]]:
            yield media.picture(0)
            raise KeyError("mine")

        source = open_source(pictures())
        next(iter(source))
        with pytest.raises(KeyError, match="mine"):
            next(iter(source))
        assert list(source) == []

    @pytest.mark.parametrize(
        "source",
        [np.zeros((4, 4, 3), np.float32), np.zeros((4, 4, 5), np.uint8), [1, 2], {"a": 1}, iter([Path("a.png")])],
    )
    def test_not_pictures(self, source: Any) -> None:
        with pytest.raises(UsageError):
            read(source)

    @pytest.mark.parametrize("source", [None, 3.5, True, object()])
    def test_not_sources(self, source: Any) -> None:
        with pytest.raises(UsageError, match="no source of frames"):
            open_source(source)

    @pytest.mark.parametrize("source", [[], np.zeros((0, 4, 4, 3), np.uint8)])
    def test_nothing(self, source: Any) -> None:
        with pytest.raises(SourceError, match="no pictures"):
            open_source(source)

    def test_times_do_not_apply_and_it_says_so(self) -> None:
        frames, info = read([media.picture(0)], start=1.0)
        assert len(frames) == 1
        assert info.notes == ["start and end are ignored: arrays have no time"]


class TestLists:
    def test_one_after_the_other(self, tmp_path: Path) -> None:
        first = media.video(tmp_path / "a.mp4", frames=2)
        second = media.video(tmp_path / "b.mkv", frames=3, size=(32, 32))
        frames, info = read([first, str(second), media.picture(0)])
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
        frames, _ = read([open_source(path), media.picture(0), open_source([media.picture(1)] * 2)])
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
        source = open_source(media.picture(0))
        assert open_source(source) is source

    def test_file_addresses(self, tmp_path: Path) -> None:
        path = media.image(tmp_path / "with space.png")
        assert len(read(path.as_uri())[0]) == 1

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
            open_source(media.picture(0), options)
        assert "SourceOptions(...)" in (caught.value.remedy or "")


class TestCamera:
    @pytest.mark.parametrize("camera", [97, "97", "/dev/video97"])
    def test_no_such_camera(self, camera: int | str) -> None:
        with pytest.raises(SourceError, match=r"no camera /dev/video97; present: "):
            open_source(camera)

    def test_frames_of_a_device(self) -> None:
        # FFmpeg's test picture is a capture device to FFmpeg, as a camera is.
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
        with pytest.raises(StreamError, match="went away"):
            list(source)

    def test_a_silent_device(self) -> None:
        with pytest.raises(StreamError, match=r"gave no frame for 0\.05 s"):
            list(_pictures(Silent(), None, SourceInfo("cam", "camera"), 0.05, threading.Event()))

    def test_closing_while_a_device_is_silent(self) -> None:
        silent, closed = Silent(), threading.Event()
        wait = threading.Thread(target=list, args=(_pictures(silent, None, SourceInfo("", "camera"), 60, closed),))
        wait.start()
        assert silent.asked.wait(30)
        closed.set()
        wait.join(30)
        assert not wait.is_alive()

    def test_a_device_that_cannot_be_opened(self) -> None:
        with pytest.raises(SourceError, match="cannot open camera"):
            open_device("nosuchfilter", "lavfi", SourceOptions())


class Silent:
    """A device that is open and has no frame: what FFmpeg says then."""

    def __init__(self) -> None:
        self.asked = threading.Event()

    def demux(self, stream: object) -> Iterator[Any]:
        self.asked.set()
        raise av.error.BlockingIOError(11, "Resource temporarily unavailable")
        yield


def test_transposed_pixels_match_pillow(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 7
    path = media.image(tmp_path / "a.png", exif=exif)
    with Image.open(path) as image:
        expected = np.array(ImageOps.exif_transpose(image))
    np.testing.assert_array_equal(shown(read(path)[0][0]), expected)
