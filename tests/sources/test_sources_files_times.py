"""Timestamps of video files: exact, filled if missing; and `start`, `end` and `vid_stride`."""

from __future__ import annotations

import math
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest

import media
from framefuse.errors import SourceError, UsageError
from framefuse.sources import SourceOptions, open_source
from reading import decoded, read, seconds


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
        frames, info = read(media.clip(tmp_path / "clip.h264", frames=12))
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
        # `start` and `end` count from the first frame.
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
        assert [frame.pts for frame in frames] == [one.pts for one in decoded(scrambled)]
        assert np.diff([frame.pts or 0 for frame in frames]).min() < 0
        assert "frames whose pts does not increase, kept: 2" in info.notes

    def test_frames_that_an_edit_list_hides_are_not_missed(self, tmp_path: Path) -> None:
        path = media.video(
            tmp_path / "clip.mp4", pts=[-5, -3, 0, 2, 4], container_options={"avoid_negative_ts": "disabled"}
        )
        frames, info = read(path)
        assert seconds(frames) == [0.0, 0.08, 0.16]
        assert "header states" not in "; ".join(info.notes)


class TestRange:
    @pytest.mark.parametrize("suffix", media.CONTAINERS)
    def test_start_and_end_are_exact_everywhere(self, tmp_path: Path, suffix: str) -> None:
        path = media.clip(tmp_path / f"clip.{suffix}", frames=100, **media.CONTAINERS[suffix])
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
        path = media.clip(tmp_path / "clip.mp4")
        frames, info = read(path, vid_stride=7)
        assert [frame.index for frame in frames] == list(range(0, 50, 7))
        assert seconds(frames) == [round(index / 25, 6) for index in range(0, 50, 7)]
        assert info.frames == len(frames)
        frames, info = read(path, vid_stride=7, start=1.2, end=1.8)
        assert [frame.index for frame in frames] == [0, 7, 14]
        assert seconds(frames) == [1.2, 1.48, 1.76]
        assert info.frames == 3

    def test_start_beyond_the_end(self, tmp_path: Path) -> None:
        path = media.clip(tmp_path / "clip.mp4", frames=10)
        with pytest.raises(SourceError, match=r"start 9.0 s is beyond the end .*0\.400 s"):
            open_source(path, SourceOptions(start=9.0))

    def test_empty_range(self, tmp_path: Path) -> None:
        path = media.clip(tmp_path / "clip.mp4", frames=10)
        for start, end in ((2.0, 1.0), (-1.0, None), (1.0, 1.0), (float("nan"), None), (None, float("inf"))):
            with pytest.raises(UsageError, match=r"start .* end"):
                open_source(path, SourceOptions(start=start, end=end))

    def test_low_latency_and_thread_counts_give_the_same_frames(self, tmp_path: Path) -> None:
        path = media.clip(tmp_path / "clip.mp4")
        expected = [frame.planes[0].copy() for frame in read(path)[0]]
        for options in ({"low_latency": True}, {"decode_threads": 1}, {"decode_threads": 4}):
            frames, _ = read(path, **options)
            assert len(frames) == 50
            assert all(np.array_equal(a.planes[0], b) for a, b in zip(frames, expected, strict=True))
