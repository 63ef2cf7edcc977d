"""Video files: planes in place, exact times, and every kind of damaged or odd file."""

from __future__ import annotations

import gc
import math
import os
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
from framefuse.errors import DecodeError, SourceError, UsageError
from framefuse.frame import PIXEL_FORMATS, Frame
from framefuse.sources import Source, SourceInfo, SourceOptions, open_source
from framefuse.sources.planes import wrap

FASTSTART = {"movflags": "faststart"}
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


def read(path: Path | str, **options: Any) -> tuple[list[Frame], SourceInfo]:
    source = open_source(path, SourceOptions(**options))
    return list(source), source.info


def decoded(path: Path) -> list[av.VideoFrame]:
    with av.open(str(path)) as container:
        return list(container.decode(video=0))


def seconds(frames: list[Frame]) -> list[float]:
    return [round(frame.seconds or 0.0, 6) for frame in frames]


def notes_of(path: Path, **options: Any) -> str:
    return "; ".join(read(path, **options)[1].notes)


def clip(path: Path, frames: int = 50, **options: Any) -> Path:
    """25 frames a second, a key frame every 10, reordered."""
    encoder = {"g": "10", "bf": "2"} if options.get("codec", "libx264") == "libx264" else {"g": "10"}
    return media.video(path, frames=frames, options=encoder, **options)


def damage_packet(path: Path, number: int) -> Path:
    with av.open(str(path)) as container:
        packets = [(packet.pos, packet.size) for packet in container.demux(video=0) if packet.size]
    data = bytearray(path.read_bytes())
    position, size = packets[number]
    data[position : position + size] = b"\xff" * size
    path.write_bytes(data)
    return path


class TestPlanes:
    @pytest.mark.parametrize(("codec", "pixel_format", "suffix", "name"), CODED)
    def test_planes_of_a_file_are_those_of_the_decoder(
        self, tmp_path: Path, codec: str, pixel_format: str, suffix: str, name: str
    ) -> None:
        path = media.video(tmp_path / f"clip.{suffix}", codec=codec, pixel_format=pixel_format, size=(62, 46), frames=3)
        frames, info = read(path)
        pictures = decoded(path)
        assert len(frames) == len(pictures) == 3
        assert (info.width, info.height) == (62, 46)
        assert info.fps == 25
        for index, (frame, picture) in enumerate(zip(frames, pictures, strict=True)):
            assert frame.format.name == name
            assert frame.index == index
            assert frame.full_range == (
                pixel_format.startswith("yuvj") or name in ("gbrp", "gbrp10", "rgb24", "gray16")
            )
            assert_same_samples(frame, picture)

    @pytest.mark.parametrize("name", sorted(PIXEL_FORMATS))
    @pytest.mark.parametrize("size", [(64, 48), (37, 21), (1, 1)])
    def test_every_format_is_read_in_place(self, name: str, size: tuple[int, int]) -> None:
        width, height = size
        try:
            picture = av.VideoFrame(width, height, name)
        except ValueError:
            pytest.skip(f"this FFmpeg has no {name}")
        generator = np.random.default_rng(3)
        for plane in picture.planes:
            plane.update(generator.integers(0, 256, plane.buffer_size, dtype=np.uint8).tobytes())
        frame = wrapped(picture)
        assert frame.format.name == name
        assert frame.owner is picture
        assert (frame.width, frame.height) == size
        for array, plane in zip(frame.planes, picture.planes, strict=True):
            assert array.ctypes.data == plane.buffer_ptr
            assert array.strides[0] == plane.line_size
        assert_same_samples(frame, picture)

    @pytest.mark.parametrize(
        ("name", "becomes"),
        [("yuyv422", "yuv422p"), ("uyvy422", "yuv422p"), ("yuv420p10be", "yuv420p10"), ("gray16be", "gray16")],
    )
    def test_other_layouts_are_converted_without_loss(self, name: str, becomes: str) -> None:
        original = av.VideoFrame.from_ndarray(media.picture(1), format="rgb24").reformat(format=f"{becomes}")
        info = SourceInfo("clip", "file")
        frame = wrapped(original.reformat(format=name), info)
        assert frame.format.name == becomes
        assert f"pixel format {name} is converted to {becomes} by FFmpeg, one copy a frame" in info.notes
        assert_same_samples(frame, original)

    def test_other_formats_become_rgb(self) -> None:
        info = SourceInfo("clip", "file")
        picture = av.VideoFrame.from_ndarray(media.picture(1), format="rgb24").reformat(format="rgb565le")
        frame = wrapped(picture, info)
        assert frame.format.name == "rgb24"
        assert frame.full_range and frame.matrix == "rgb"
        assert "rgb565le is converted to rgb24" in info.notes[0]
        assert np.abs(frame.planes[0].astype(int) - media.picture(1)).mean() < 4

    def test_rows_stored_bottom_up(self, tmp_path: Path) -> None:
        path = media.video(tmp_path / "clip.avi", codec="rawvideo", pixel_format="bgr24", frames=1, size=(60, 20))
        (frame,), _ = read(path)
        np.testing.assert_array_equal(frame.planes[0][:, :, ::-1], media.picture(0, 60, 20))

    def test_frames_outlive_the_source(self, tmp_path: Path) -> None:
        path = clip(tmp_path / "clip.mp4")
        source = open_source(path)
        frames = [next(iter(source)) for _ in range(20)]
        source.close()
        for frame, picture in zip(frames, decoded(path), strict=False):
            assert_same_samples(frame, picture)

    def test_dropped_frames_give_their_memory_back_at_once(self, tmp_path: Path) -> None:
        path = media.with_display_matrix(clip(tmp_path / "clip.mp4", frames=150), 0, 1, -1, 0)
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
        # What the matrix itself says: where the neighbour to the right comes to lie, with y downwards.
        a, b, _, _ = matrix
        turned = {0: (1, 0), 90: (0, 1), 180: (-1, 0), 270: (0, -1)}[frames[0].rotation]
        assert turned == (a, b)

    @pytest.mark.parametrize("matrix", [(-1, 0, 0, 1), (1, 0, 0, -1)])
    def test_mirroring_is_said(self, tmp_path: Path, matrix: tuple[int, int, int, int]) -> None:
        path = media.with_display_matrix(media.video(tmp_path / "clip.mp4", frames=2), *matrix)
        frames, info = read(path)
        assert [frame.rotation for frame in frames] == [0, 0]
        assert "mirrors the picture" in "; ".join(info.notes)

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


class TestTime:
    def test_ntsc_is_exact(self, tmp_path: Path) -> None:
        frames, info = read(media.video(tmp_path / "clip.mp4", rate=Fraction(30000, 1001), frames=5))
        assert [frame.pts * frame.time_base for frame in frames if frame.pts is not None] == [
            Fraction(1001 * number, 30000) for number in range(5)
        ]
        assert info.fps == Fraction(30000, 1001)

    def test_variable_rate_is_exact(self, tmp_path: Path) -> None:
        times = [0, 100, 150, 400, 401, 1000]
        path = media.video(tmp_path / "clip.mp4", pts=times, time_base=Fraction(1, 1000))
        frames, _ = read(path)
        assert [frame.pts * frame.time_base for frame in frames if frame.pts is not None] == [
            Fraction(time, 1000) for time in times
        ]

    def test_missing_pts_are_filled_from_the_rate(self, tmp_path: Path) -> None:
        frames, info = read(clip(tmp_path / "clip.h264", frames=12))
        assert seconds(frames) == [round(number / 25, 6) for number in range(12)]
        assert "frames without pts, filled from the frame rate: 12" in info.notes

    def test_negative_pts_are_kept_and_said(self, tmp_path: Path) -> None:
        path = media.video(
            tmp_path / "clip.mkv",
            codec="mjpeg",
            pixel_format="yuvj420p",
            pts=range(-5, 5),
            container_options={"avoid_negative_ts": "disabled"},
        )
        frames, info = read(path)
        assert seconds(frames) == [round(number / 25, 6) for number in range(-5, 5)]
        assert info.notes == ["frames with a negative pts, kept: 5"]
        assert info.frames == 10
        # The seconds of a range count from the first frame.
        assert seconds(read(path, start=0.16, end=0.28)[0]) == [-0.04, 0.0, 0.04]

    def test_backward_pts_are_kept_and_said(self, tmp_path: Path) -> None:
        times = [0, 3, 2, 5, 4]
        path = media.video(tmp_path / "plain.mkv", codec="mjpeg", pixel_format="yuvj420p", frames=len(times))
        scrambled = tmp_path / "clip.mkv"
        with av.open(str(path)) as source, av.open(str(scrambled), "w") as output:
            stream = output.add_stream_from_template(source.streams.video[0])
            packets = [packet for packet in source.demux(video=0) if packet.size]
            for number, (packet, time) in enumerate(zip(packets, times, strict=True)):
                packet.pts, packet.dts = 40 * time, 40 * (number - 2)
                packet.stream = stream
                output.mux(packet)
        frames, info = read(scrambled)
        assert [frame.pts for frame in frames] == [picture.pts for picture in decoded(scrambled)]
        assert np.diff([frame.pts or 0 for frame in frames]).min() < 0
        assert "frames whose pts is not after the one before, kept: 2" in info.notes

    def test_frames_that_an_edit_list_hides_are_not_missed(self, tmp_path: Path) -> None:
        path = media.video(
            tmp_path / "clip.mp4", pts=[-5, -3, 0, 2, 4], container_options={"avoid_negative_ts": "disabled"}
        )
        frames, info = read(path)
        assert seconds(frames) == [0.0, 0.08, 0.16]
        assert "announces" not in "; ".join(info.notes)


CONTAINERS = {
    "mp4": {},
    "mkv": {},
    "ts": {},
    "flv": {},
    "h264": {},
    "avi": {"codec": "mpeg4"},
    "webm": {"codec": "libvpx-vp9"},
    "mjpeg": {"codec": "mjpeg", "pixel_format": "yuvj420p"},
}


class TestRange:
    @pytest.mark.parametrize("suffix", CONTAINERS)
    def test_start_and_end_are_exact_everywhere(self, tmp_path: Path, suffix: str) -> None:
        path = clip(tmp_path / f"clip.{suffix}", frames=100, **CONTAINERS[suffix])
        everything, _ = read(path)
        assert len(everything) == 100
        # 2.76: just before a key frame, where the index of reordered files leads to the key frame after.
        for start, end in ((3.0, 3.2), (2.76, 2.84), (0.4, 0.44), (3.9, None), (None, 0.2), (0.0, 5.0)):
            frames, info = read(path, start=start, end=end)
            first = math.ceil(25 * Fraction(str(start or 0)))
            expected = everything[first : None if end is None else round(end * 25)]
            assert [frame.pts for frame in frames] == [frame.pts for frame in expected], (start, end)
            assert [frame.index for frame in frames] == list(range(len(expected)))
            np.testing.assert_array_equal(frames[0].planes[0], expected[0].planes[0])
            if info.frames is not None:
                assert abs(info.frames - len(frames)) <= 2

    def test_stride_counts_from_start(self, tmp_path: Path) -> None:
        path = clip(tmp_path / "clip.mp4")
        frames, info = read(path, vid_stride=7)
        assert [frame.index for frame in frames] == list(range(0, 50, 7))
        assert seconds(frames) == [round(index / 25, 6) for index in range(0, 50, 7)]
        assert info.frames == len(frames)
        frames, info = read(path, vid_stride=7, start=1.2, end=1.8)
        assert [frame.index for frame in frames] == [0, 7, 14]
        assert seconds(frames) == [1.2, 1.48, 1.76]
        assert info.frames == 3

    def test_start_beyond_the_end(self, tmp_path: Path) -> None:
        path = clip(tmp_path / "clip.mp4", frames=10)
        with pytest.raises(SourceError, match=r"start 9.0 s is beyond the end .*0\.400 s"):
            open_source(path, SourceOptions(start=9.0))

    def test_empty_range(self, tmp_path: Path) -> None:
        path = clip(tmp_path / "clip.mp4", frames=10)
        for start, end in ((2.0, 1.0), (-1.0, None), (1.0, 1.0), (float("nan"), None), (None, float("inf"))):
            with pytest.raises(UsageError, match=r"start .* end"):
                open_source(path, SourceOptions(start=start, end=end))

    def test_low_latency_and_thread_counts_give_the_same_frames(self, tmp_path: Path) -> None:
        path = clip(tmp_path / "clip.mp4")
        expected = [frame.planes[0].copy() for frame in read(path)[0]]
        for options in ({"low_latency": True}, {"decode_threads": 1}, {"decode_threads": 4}):
            frames, _ = read(path, **options)
            assert len(frames) == 50
            assert all(np.array_equal(a.planes[0], b) for a, b in zip(frames, expected, strict=True))


class TestBadFiles:
    def test_missing(self, tmp_path: Path) -> None:
        clip(tmp_path / "holiday.mp4", frames=1)
        with pytest.raises(SourceError, match="no such file") as caught:
            open_source(tmp_path / "holyday.mp4")
        assert "holiday.mp4" in str(caught.value)

    def test_empty(self, tmp_path: Path) -> None:
        path = tmp_path / "clip.mp4"
        path.touch()
        with pytest.raises(DecodeError, match="empty"):
            open_source(path)

    def test_text(self, tmp_path: Path) -> None:
        path = tmp_path / "notes.mp4"
        path.write_text("not a video\n" * 200)
        with pytest.raises(DecodeError, match="Invalid data found"):
            open_source(path)

    def test_playlists_stay_on_this_machine(self, tmp_path: Path) -> None:
        path = tmp_path / "list.m3u8"
        path.write_text("#EXTM3U\n#EXTINF:1,\nhttp://127.0.0.1:9/a.ts\n#EXT-X-ENDLIST\n")
        with pytest.raises(SourceError):
            list(open_source(path))

    @pytest.mark.skipif(os.name != "posix", reason="POSIX permissions")
    def test_no_permission(self, tmp_path: Path) -> None:
        path = clip(tmp_path / "clip.mp4", frames=1)
        path.chmod(0)
        if os.geteuid() != 0:
            with pytest.raises(SourceError, match="Permission denied"):
                open_source(path)
            return
        for folder in (tmp_path, *tmp_path.parents[:3]):
            folder.chmod(folder.stat().st_mode | 0o055)
        code = (
            "import os, sys\n"
            "from framefuse.errors import SourceError\n"
            "from framefuse.sources.files import open_file\n"
            "from framefuse.sources import SourceOptions\n"
            "from pathlib import Path\n"
            "os.setuid(65534)\n"
            "try:\n    open_file(Path(sys.argv[1]), SourceOptions())\n"
            "except SourceError as error:\n    print(error)\n"
        )
        done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
        assert "Permission denied" in done.stdout

    def test_audio_only(self, tmp_path: Path) -> None:
        with pytest.raises(SourceError, match=r"has no video; streams: audio \(aac\)"):
            open_source(media.audio_only(tmp_path / "sound.m4a"))

    def test_cover_art_is_no_video(self, tmp_path: Path) -> None:
        with pytest.raises(SourceError, match="only cover art"):
            open_source(media.cover_art(tmp_path / "song.mp3"))

    def test_audio_beside_the_video_is_left_alone(self, tmp_path: Path) -> None:
        frames, info = read(media.video(tmp_path / "clip.mp4", audio=True))
        assert len(frames) == 8
        assert info.path == tmp_path / "clip.mp4"

    @pytest.mark.parametrize(("width", "height"), [(20000, 2), (2, 16385)])
    def test_absurd_size(self, tmp_path: Path, width: int, height: int) -> None:
        with pytest.raises(SourceError, match=f"{width}x{height} is beyond 16384"):
            open_source(media.y4m(tmp_path / "clip.y4m", width, height))

    def test_no_size(self, tmp_path: Path) -> None:
        with pytest.raises(SourceError):
            open_source(media.y4m(tmp_path / "clip.y4m", 0, 48))

    def test_size_that_changes(self, tmp_path: Path) -> None:
        first = media.video(tmp_path / "a.h264", frames=4).read_bytes()
        second = media.video(tmp_path / "b.h264", frames=4, size=(96, 32)).read_bytes()
        path = tmp_path / "clip.h264"
        path.write_bytes(first + second)
        frames, info = read(path)
        assert [(frame.width, frame.height) for frame in frames] == [(64, 48)] * 4 + [(96, 32)] * 4
        assert "the frame size changes in the video" in info.notes

    @pytest.mark.parametrize(
        ("suffix", "codec"), [("mp4", "libx264"), ("mkv", "libx264"), ("ts", "libx264"), ("avi", "mpeg4")]
    )
    def test_truncated(self, tmp_path: Path, suffix: str, codec: str) -> None:
        container = FASTSTART if suffix == "mp4" else {}
        path = clip(tmp_path / f"clip.{suffix}", codec=codec, size=(160, 120), container_options=container)
        whole = [frame.planes[0].copy() for frame in read(path)[0]]
        frames, info = read(media.truncate(path, 0.7))
        assert 5 < len(frames) < 50
        same = sum(np.array_equal(frame.planes[0], other) for frame, other in zip(frames, whole, strict=False))
        assert same >= len(frames) - 3
        if suffix != "ts":  # A transport stream announces nothing.
            assert "announces" in "; ".join(info.notes)

    def test_truncated_before_its_index(self, tmp_path: Path) -> None:
        path = media.truncate(clip(tmp_path / "clip.mp4"), 0.6)
        with pytest.raises(DecodeError) as caught:
            open_source(path)
        assert "index" in (caught.value.remedy or "")

    @pytest.mark.parametrize("threads", [1, 2])
    @pytest.mark.parametrize("victim", [0, 5, 10, 11])
    def test_damaged_packets_are_counted_and_all_others_delivered(
        self, tmp_path: Path, victim: int, threads: int
    ) -> None:
        path = media.video(tmp_path / "clip.mov", codec="prores_ks", pixel_format="yuv422p10le", frames=12)
        frames, info = read(damage_packet(path, victim), decode_threads=threads)
        assert [round(25 * (frame.seconds or 0)) for frame in frames] == [n for n in range(12) if n != victim]
        assert info.drops == {"corrupt": 1}
        assert "damaged packets skipped: 1 (Invalid data found when processing input)" in info.notes
        assert "the file announces 12 frames, 11 could be decoded" in info.notes

    @pytest.mark.parametrize("suffix", ["mp4", "mkv", "ts", "avi", "webm"])
    @pytest.mark.parametrize("part", [(0.4, 0.45), (0.3, 1.0), (0.0, 1.0), (0.02, 0.04)])
    def test_noise_is_an_error_or_fewer_frames(self, tmp_path: Path, suffix: str, part: tuple[float, float]) -> None:
        container = FASTSTART if suffix == "mp4" else {}
        path = clip(tmp_path / f"clip.{suffix}", size=(160, 120), container_options=container, **CONTAINERS[suffix])
        media.scramble(path, *part)
        try:
            frames, info = read(path)
        except SourceError as error:
            assert str(path) in error.message
        else:
            assert 0 < len(frames) <= 51
            assert part != (0.3, 1.0) or suffix == "ts" or "; ".join(info.notes).count("announces") == 1

    def test_nothing_decodes(self, tmp_path: Path) -> None:
        path = media.video(tmp_path / "clip.mov", codec="prores_ks", pixel_format="yuv422p10le", frames=2)
        for victim in (0, 1):
            damage_packet(path, victim)
        source = open_source(path)
        with pytest.raises(DecodeError, match=r"nothing in .* could be decoded: Invalid data"):
            next(iter(source))
        assert list(source) == []
        assert source.info.drops == {"corrupt": 2}


class TestClosing:
    def test_any_number_of_times(self, tmp_path: Path) -> None:
        source = open_source(clip(tmp_path / "clip.mp4", frames=10))
        next(iter(source))
        for _ in range(3):
            source.close()
        assert list(source) == []

    def test_before_the_first_frame(self, tmp_path: Path) -> None:
        source = open_source(clip(tmp_path / "clip.mp4", frames=10))
        source.close()
        assert list(source) == []

    def test_from_another_thread_while_decoding(self, tmp_path: Path) -> None:
        path = clip(tmp_path / "clip.mp4", frames=100, size=(320, 240))
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
        # Without a duration nothing can be sought: all frames before `start` are decoded and passed over.
        path = clip(tmp_path / "clip.h264", frames=400)
        source = open_source(path, SourceOptions(start=1000.0))
        thread = threading.Thread(target=list, args=(source,))
        thread.start()
        source.close()
        thread.join(30)
        assert not thread.is_alive()

    @pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
    def test_no_file_or_thread_is_left_open(self, tmp_path: Path) -> None:
        path = clip(tmp_path / "clip.mp4", frames=3)
        bad = media.audio_only(tmp_path / "sound.m4a")

        def count() -> tuple[int, int]:
            return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))

        read(path)
        before = count()
        for number in range(200):
            source = open_source(path)
            if number % 3:
                next(iter(source))
            if number % 2:
                source.close()
            else:
                list(source)
            with pytest.raises(SourceError):
                open_source(bad)
        del source
        assert count() == before


def consume(source: Source, delay: int, reached: threading.Event, finished: threading.Event) -> None:
    for number, _ in enumerate(source):
        if number == delay:
            reached.set()
    finished.set()


def wrapped(picture: av.VideoFrame, info: SourceInfo | None = None) -> Frame:
    return wrap(
        picture,
        info or SourceInfo("clip", "file"),
        index=0,
        source_id="clip",
        pts=None,
        time_base=Fraction(1, 25),
    )


def assert_same_samples(frame: Frame, picture: av.VideoFrame) -> None:
    """Compare with a reading of the planes that shares nothing with ours: bytes, row by row."""
    for array, plane in zip(frame.planes, picture.planes, strict=False):
        rows = bytes(plane)
        used = int(np.prod(array.shape[1:])) * array.itemsize
        for number in range(array.shape[0]):
            start = number * plane.line_size
            assert array[number].tobytes() == rows[start : start + used]
