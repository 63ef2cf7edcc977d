"""Video files: planes in place, what the samples mean, and closing at any time."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

import media
from framefuse.frame import PIXEL_FORMATS, Frame
from framefuse.sources import Source, SourceInfo, SourceOptions, open_source
from framefuse.sources.ffmpeg import wrap
from reading import decoded, read

CODED = [
    ("libx264", "yuv420p", "mp4", "yuv420p"),
    ("libx264", "yuvj420p", "mp4", "yuv420p"),
    ("libx264", "yuv420p10le", "mp4", "yuv420p10"),
    ("libx264", "yuv422p", "mkv", "yuv422p"),
    ("libx264", "yuv444p", "mp4", "yuv444p"),
    ("libx265", "gray", "mkv", "gray"),
    ("libx264rgb", "rgb24", "mkv", "gbrp"),
    ("libvpx-vp9", "yuv420p", "webm", "yuv420p"),
    ("mpeg4", "yuv420p", "avi", "yuv420p"),
    ("mjpeg", "yuvj444p", "avi", "yuv444p"),
    ("huffyuv", "yuv422p", "avi", "yuv422p"),
    ("prores_ks", "yuv422p10le", "mov", "yuv422p10"),
    ("ffv1", "yuva420p", "mkv", "yuv420p"),
    ("ffv1", "yuv411p", "mkv", "yuv411p"),
    ("ffv1", "gray16le", "mkv", "gray16"),
    ("ffv1", "gbrp10le", "mkv", "gbrp10"),
    ("rawvideo", "nv12", "nut", "nv12"),
    ("rawvideo", "rgb24", "nut", "rgb24"),
    ("qtrle", "rgb24", "mov", "rgb24"),
]


def notes_of(path: Path, **options: Any) -> str:
    return "; ".join(read(path, **options)[1].notes)


class TestPlanes:
    @pytest.mark.parametrize(("codec", "pixel_format", "suffix", "name"), CODED)
    def test_planes_of_a_file_are_those_of_the_decoder(
        self, tmp_path: Path, codec: str, pixel_format: str, suffix: str, name: str
    ) -> None:
        path = media.video(tmp_path / f"clip.{suffix}", codec=codec, pixel_format=pixel_format, size=(62, 46), frames=3)
        frames, info = read(path)
        av_frames = decoded(path)
        assert len(frames) == len(av_frames) == 3
        assert (info.width, info.height) == (62, 46)
        assert info.fps == 25
        for index, (frame, av_frame) in enumerate(zip(frames, av_frames, strict=True)):
            assert frame.format.name == name
            assert frame.index == index
            assert frame.full_range == (
                pixel_format.startswith("yuvj") or name in ("gbrp", "gbrp10", "rgb24", "gray16")
            )
            assert_same_samples(frame, av_frame)

    @pytest.mark.parametrize("name", sorted(PIXEL_FORMATS))
    @pytest.mark.parametrize("size", [(64, 48), (37, 21), (1, 1)])
    def test_every_format_is_read_in_place(self, name: str, size: tuple[int, int]) -> None:
        width, height = size
        try:
            av_frame = av.VideoFrame(width, height, name)
        except ValueError:
            pytest.skip(f"this FFmpeg has no {name}")
        generator = np.random.default_rng(3)
        for plane in av_frame.planes:
            plane.update(generator.integers(0, 256, plane.buffer_size, dtype=np.uint8).tobytes())
        frame = wrapped(av_frame)
        assert frame.format.name == name
        assert frame.owner is av_frame
        assert (frame.width, frame.height) == size
        for array, plane in zip(frame.planes, av_frame.planes, strict=True):
            assert array.ctypes.data == plane.buffer_ptr
            assert array.strides[0] == plane.line_size
        assert_same_samples(frame, av_frame)

    @pytest.mark.parametrize(
        ("name", "becomes"),
        [("yuyv422", "yuv422p"), ("uyvy422", "yuv422p"), ("yuv420p10be", "yuv420p10"), ("gray16be", "gray16")],
    )
    def test_other_layouts_are_converted_without_loss(self, name: str, becomes: str) -> None:
        original = av.VideoFrame.from_ndarray(media.rgb_image(1), format="rgb24").reformat(format=f"{becomes}")
        info = SourceInfo("clip", "file")
        frame = wrapped(original.reformat(format=name), info)
        assert frame.format.name == becomes
        assert f"pixel format {name} is converted to {becomes} by FFmpeg, one copy per frame" in info.notes
        assert_same_samples(frame, original)

    def test_other_formats_become_rgb(self) -> None:
        info = SourceInfo("clip", "file")
        av_frame = av.VideoFrame.from_ndarray(media.rgb_image(1), format="rgb24").reformat(format="rgb565le")
        frame = wrapped(av_frame, info)
        assert frame.format.name == "rgb24"
        assert frame.full_range and frame.matrix == "rgb"
        assert "rgb565le is converted to rgb24" in info.notes[0]
        assert np.abs(frame.planes[0].astype(int) - media.rgb_image(1)).mean() < 4

    def test_rows_stored_bottom_up(self, tmp_path: Path) -> None:
        path = media.video(tmp_path / "clip.avi", codec="rawvideo", pixel_format="bgr24", frames=1, size=(60, 20))
        (frame,), _ = read(path)
        np.testing.assert_array_equal(frame.planes[0][:, :, ::-1], media.rgb_image(0, 60, 20))

    def test_frames_outlive_the_source(self, tmp_path: Path) -> None:
        path = media.clip(tmp_path / "clip.mp4")
        source = open_source(path)
        frames = [next(iter(source)) for _ in range(20)]
        source.close()
        for frame, av_frame in zip(frames, decoded(path), strict=False):
            assert_same_samples(frame, av_frame)

    def test_dropped_frames_give_their_memory_back_at_once(self, tmp_path: Path) -> None:
        path = media.with_display_matrix(media.clip(tmp_path / "clip.mp4", frames=150), 0, 1, -1, 0)
        gc.disable()
        try:
            addresses = {frame.planes[0].ctypes.data for frame in open_source(path)}
        finally:
            gc.enable()
        assert len(addresses) < 50


class TestMeaning:
    @pytest.mark.parametrize(
        ("code", "matrix", "said"),
        [
            (1, "bt709", ""),
            (5, "bt601", ""),
            (6, "bt601", ""),
            (9, "bt2020", ""),
            (7, "bt709", "SMPTE 240M"),
            (2, "bt601", "colour matrix not stated: BT.601 assumed"),
            (8, "bt601", "not supported"),
        ],
    )
    @pytest.mark.parametrize("full", [False, True])
    def test_colour(self, tmp_path: Path, code: int, matrix: str, said: str, full: bool) -> None:
        colour = {"colorspace": code, "color_range": 2 if full else 1}
        (frame,), info = read(media.video(tmp_path / "clip.mkv", frames=1, colour=colour))
        assert (frame.matrix, frame.full_range) == (matrix, full)
        assert said in "; ".join(info.notes)
        assert bool(info.notes) == bool(said)

    def test_unstated_range_is_limited_and_said(self, tmp_path: Path) -> None:
        (frame,), info = read(media.video(tmp_path / "clip.mp4", frames=1))
        assert not frame.full_range
        assert "colour range not stated: limited (16-235) assumed" in info.notes

    @pytest.mark.parametrize(
        ("matrix", "rotation"),
        [((1, 0, 0, 1), 0), ((0, 1, -1, 0), 90), ((-1, 0, 0, -1), 180), ((0, -1, 1, 0), 270)],
    )
    def test_rotation(self, tmp_path: Path, matrix: tuple[int, int, int, int], rotation: int) -> None:
        path = media.with_display_matrix(media.video(tmp_path / "clip.mp4", frames=3), *matrix)
        frames, _ = read(path)
        assert [frame.rotation for frame in frames] == [rotation] * 3
        assert (frames[0].width, frames[0].height) == ((48, 64) if rotation in (90, 270) else (64, 48))
        assert (frames[0].coded_width, frames[0].coded_height) == (64, 48)
        # (a, b) is where the matrix maps the neighbour to the right, with y downwards.
        a, b, _, _ = matrix
        turned = {0: (1, 0), 90: (0, 1), 180: (-1, 0), 270: (0, -1)}[frames[0].rotation]
        assert turned == (a, b)

    @pytest.mark.parametrize("matrix", [(-1, 0, 0, 1), (1, 0, 0, -1)])
    def test_mirroring_is_said(self, tmp_path: Path, matrix: tuple[int, int, int, int]) -> None:
        path = media.with_display_matrix(media.video(tmp_path / "clip.mp4", frames=2), *matrix)
        frames, info = read(path)
        assert [frame.rotation for frame in frames] == [0, 0]
        assert "mirrors the video" in "; ".join(info.notes)

    def test_anamorphic(self, tmp_path: Path) -> None:
        frames, info = read(media.video(tmp_path / "clip.mp4", frames=1, aspect=Fraction(4, 3)))
        assert frames[0].sample_aspect_ratio == Fraction(4, 3)
        assert (frames[0].width, frames[0].height) == (64, 48)
        assert "anamorphic video (pixel aspect 4/3): used as coded" in "; ".join(info.notes)

    def test_interlaced(self, tmp_path: Path) -> None:
        path = media.video(tmp_path / "clip.mp4", frames=2, options={"flags": "+ildct+ilme"})
        assert "interlaced video: used as coded" in notes_of(path)

    @pytest.mark.parametrize(("transfer", "name"), [(16, "PQ"), (18, "HLG")])
    def test_hdr(self, tmp_path: Path, transfer: int, name: str) -> None:
        colour = {"colorspace": 9, "color_range": 1, "color_trc": transfer, "color_primaries": 9}
        path = media.video(tmp_path / "clip.mkv", pixel_format="yuv420p10le", frames=1, colour=colour)
        (frame,), info = read(path)
        assert (frame.format.name, frame.matrix) == ("yuv420p10", "bt2020")
        assert info.notes == [f"HDR video ({name}): used as coded, without tone mapping"]


class TestClosing:
    def test_any_number_of_times(self, tmp_path: Path) -> None:
        source = open_source(media.clip(tmp_path / "clip.mp4", frames=10))
        next(iter(source))
        for _ in range(3):
            source.close()
        assert list(source) == []

    def test_before_the_first_frame(self, tmp_path: Path) -> None:
        source = open_source(media.clip(tmp_path / "clip.mp4", frames=10))
        source.close()
        assert list(source) == []

    def test_from_another_thread_while_decoding(self, tmp_path: Path) -> None:
        path = media.clip(tmp_path / "clip.mp4", frames=100, size=(320, 240))
        for delay in range(20):
            source = open_source(path)
            reached, finished = threading.Event(), threading.Event()
            thread = threading.Thread(target=consume, args=(source, delay, reached, finished))
            thread.start()
            assert reached.wait(30)
            source.close()
            assert finished.wait(30)
            thread.join()
            assert list(source) == []

    def test_while_skipping_to_start(self, tmp_path: Path) -> None:
        # Without a duration there is no seeking: all frames before `start` are decoded and skipped.
        path = media.clip(tmp_path / "clip.h264", frames=400)
        source = open_source(path, SourceOptions(start=1000.0))
        thread = threading.Thread(target=list, args=(source,))
        thread.start()
        source.close()
        thread.join(30)
        assert not thread.is_alive()

    @pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
    def test_no_file_or_thread_is_left_open(self, tmp_path: Path) -> None:
        """Runs in its own process, as threads of other tests may end at any time."""
        path = media.clip(tmp_path / "clip.mp4", frames=3)
        bad = media.audio_only(tmp_path / "sound.m4a")
        done = subprocess.run([sys.executable, "-c", OPENED_AND_CLOSED, path, bad], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        before, after = done.stdout.splitlines()
        assert after == before


OPENED_AND_CLOSED = """
import os, sys, time
from contextlib import suppress
from framefuse.errors import SourceError
from framefuse.sources import open_source

def count():
    # A thread that has been joined stays in /proc for a moment.
    lowest = {"fd": 1_000, "task": 1_000}
    for _ in range(50):
        lowest = {folder: min(few, len(os.listdir(f"/proc/self/{folder}"))) for folder, few in lowest.items()}
        time.sleep(0.01)
    print(*lowest.values())

path, bad = sys.argv[1:]
list(open_source(path))
count()
for number in range(200):
    source = open_source(path)
    if number % 3:
        next(iter(source))
    if number % 2:
        source.close()
    else:
        list(source)
    with suppress(SourceError):
        open_source(bad)
        sys.exit("sound was taken for video")
del source
count()
"""


def consume(source: Source, delay: int, reached: threading.Event, finished: threading.Event) -> None:
    for number, _ in enumerate(source):
        if number == delay:
            reached.set()
    finished.set()


def wrapped(av_frame: av.VideoFrame, info: SourceInfo | None = None) -> Frame:
    return wrap(
        av_frame,
        info or SourceInfo("clip", "file"),
        index=0,
        source_id="clip",
        pts=None,
        time_base=Fraction(1, 25),
    )


def assert_same_samples(frame: Frame, av_frame: av.VideoFrame) -> None:
    """Compare with an independent reading of the planes, row by row."""
    for array, plane in zip(frame.planes, av_frame.planes, strict=False):
        rows = bytes(plane)
        used = int(np.prod(array.shape[1:])) * array.itemsize
        for number in range(array.shape[0]):
            start = number * plane.line_size
            assert array[number].tobytes() == rows[start : start + used]
