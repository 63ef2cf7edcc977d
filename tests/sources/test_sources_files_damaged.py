"""Video files that are damaged, odd, empty, missing or unreadable: a typed error, or all readable frames."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import media
from framefuse.config import Settings
from framefuse.errors import DecodeError, SourceError
from framefuse.runtime.readers import open_sources
from framefuse.sources import open_source
from reading import read

FASTSTART = {"movflags": "faststart"}


class TestBadFiles:
    def test_missing(self, tmp_path: Path) -> None:
        media.clip(tmp_path / "holiday.mp4", frames=1)
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
        path = media.clip(tmp_path / "clip.mp4", frames=1)
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
        with pytest.raises(SourceError, match=f"{width}x{height} exceeds 16384"):
            open_source(media.y4m(tmp_path / "clip.y4m", width, height))

    def test_max_pixels(self, tmp_path: Path) -> None:
        path = media.video(tmp_path / "clip.mp4")
        assert len(read(path, max_pixels=64 * 48)[0]) == 8
        with pytest.raises(SourceError, match=r"64x48 \(3072 pixels\) exceeds max_pixels \(3071\)"):
            read(path, max_pixels=64 * 48 - 1)

    def test_max_pixels_of_a_run(self, tmp_path: Path) -> None:
        path = media.video(tmp_path / "clip.mp4")
        with pytest.raises(SourceError, match="exceeds max_pixels"):
            open_sources(path, Settings(max_pixels=64 * 48 - 1), 1)

    def test_max_pixels_holds_where_the_header_states_no_size(self, tmp_path: Path) -> None:
        """FFmpeg decodes PNG in AVI to find its size."""
        path = media.video(tmp_path / "clip.avi", codec="png", pixel_format="rgb24")
        assert len(read(path, max_pixels=64 * 48)[0]) == 8
        with pytest.raises(DecodeError, match=r"nothing in .* could be decoded") as caught:
            read(path, max_pixels=64 * 48 - 1)
        assert "max_pixels" in (caught.value.remedy or "")

    def test_a_size_that_grows_beyond_max_pixels(self, tmp_path: Path) -> None:
        small = media.video(tmp_path / "a.h264", frames=4).read_bytes()
        large = media.video(tmp_path / "b.h264", frames=4, size=(96, 64)).read_bytes()
        (tmp_path / "clip.h264").write_bytes(small + large)
        frames, info = read(tmp_path / "clip.h264", max_pixels=64 * 48)
        assert {frame.width for frame in frames} == {64}
        assert info.drops["corrupt"] >= 1

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
        path = media.clip(tmp_path / f"clip.{suffix}", codec=codec, size=(160, 120), container_options=container)
        whole = [frame.planes[0].copy() for frame in read(path)[0]]
        frames, info = read(media.truncate(path, 0.7))
        assert 5 < len(frames) < 50
        same = sum(np.array_equal(frame.planes[0], other) for frame, other in zip(frames, whole, strict=False))
        assert same >= len(frames) - 3
        if suffix != "ts":  # a transport stream states no length
            assert "header states" in "; ".join(info.notes)

    def test_truncated_before_its_index(self, tmp_path: Path) -> None:
        path = media.truncate(media.clip(tmp_path / "clip.mp4"), 0.6)
        with pytest.raises(DecodeError) as caught:
            open_source(path)
        assert "index" in (caught.value.remedy or "")

    @pytest.mark.parametrize("threads", [1, 2])
    @pytest.mark.parametrize("victim", [0, 5, 10, 11])
    def test_damaged_packets_are_counted_and_all_others_delivered(
        self, tmp_path: Path, victim: int, threads: int
    ) -> None:
        path = media.video(tmp_path / "clip.mov", codec="prores_ks", pixel_format="yuv422p10le", frames=12)
        frames, info = read(media.damage_packet(path, victim), decode_threads=threads)
        assert [round(25 * (frame.seconds or 0)) for frame in frames] == [n for n in range(12) if n != victim]
        assert info.drops == {"corrupt": 1}
        assert "damaged packets skipped: 1 (Invalid data found when processing input)" in info.notes
        assert "the header states 12 frames, 11 could be decoded" in info.notes

    @pytest.mark.parametrize("suffix", ["mp4", "mkv", "ts", "avi", "webm"])
    @pytest.mark.parametrize("part", [(0.4, 0.45), (0.3, 1.0), (0.0, 1.0), (0.02, 0.04)])
    def test_noise_is_an_error_or_fewer_frames(self, tmp_path: Path, suffix: str, part: tuple[float, float]) -> None:
        container = FASTSTART if suffix == "mp4" else {}
        path = media.clip(
            tmp_path / f"clip.{suffix}", size=(160, 120), container_options=container, **media.CONTAINERS[suffix]
        )
        media.scramble(path, *part)
        try:
            frames, info = read(path)
        except SourceError as error:
            assert str(path) in error.message
        else:
            assert 0 < len(frames) <= 51
            assert part != (0.3, 1.0) or suffix == "ts" or "; ".join(info.notes).count("header states") == 1

    def test_nothing_decodes(self, tmp_path: Path) -> None:
        path = media.video(tmp_path / "clip.mov", codec="prores_ks", pixel_format="yuv422p10le", frames=2)
        for victim in (0, 1):
            media.damage_packet(path, victim)
        source = open_source(path)
        with pytest.raises(DecodeError, match=r"nothing in .* could be decoded: Invalid data"):
            next(iter(source))
        assert list(source) == []
        assert source.info.drops == {"corrupt": 2}
