"""Images: formats, orientations, animations, folders, and damaged ones."""

from __future__ import annotations

import os
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import EpsImagePlugin, Image, ImageOps

import media
from framefuse.errors import DecodeError, SourceError
from framefuse.frame import Frame
from framefuse.sources import SourceOptions, open_source, sorted_naturally
from reading import read


def shown(frame: Frame) -> NDArray[Any]:
    """The pixels as displayed, rotated clockwise by `rotation`."""
    return np.rot90(frame.planes[0], -frame.rotation // 90)


class TestImages:
    @pytest.mark.parametrize("suffix", ["png", "bmp", "tif", "ppm", "tga"])
    def test_pixels(self, tmp_path: Path, suffix: str) -> None:
        path = media.image(tmp_path / f"a.{suffix}", 2)
        (frame,), info = read(path)
        assert frame.format.name == "rgb24"
        assert (frame.matrix, frame.full_range, frame.pts, frame.source_id) == ("rgb", True, None, str(path))
        assert (info.width, info.height, info.frames, info.kind) == (64, 48, 1, "images")
        np.testing.assert_array_equal(frame.planes[0], media.rgb_image(2))

    @pytest.mark.parametrize("suffix", ["jpg", "webp"])
    def test_lossy(self, tmp_path: Path, suffix: str) -> None:
        (frame,), _ = read(media.image(tmp_path / f"a.{suffix}", quality=95))
        assert np.abs(frame.planes[0].astype(int) - media.rgb_image(0)).mean() < 6

    @pytest.mark.parametrize("orientation", range(1, 9))
    def test_exif_orientation(self, tmp_path: Path, orientation: int) -> None:
        exif = Image.Exif()
        exif[0x0112] = orientation
        for suffix in ("png", "tif"):
            path = media.image(tmp_path / f"a.{suffix}", exif=exif)
            (frame,), info = read(path)
            # The orientations in NumPy (EXIF 2.32, 4.6.4 A): where row 0 and column 0 of the file are displayed.
            upright = {
                1: lambda a: a,
                2: lambda a: a[:, ::-1],
                3: lambda a: a[::-1, ::-1],
                4: lambda a: a[::-1],
                5: lambda a: a.swapaxes(0, 1),
                6: lambda a: np.rot90(a, -1),
                7: lambda a: np.rot90(a.swapaxes(0, 1), 2),
                8: lambda a: np.rot90(a, 1),
            }[orientation](media.rgb_image(0))
            np.testing.assert_array_equal(shown(frame), upright)
            assert (frame.height, frame.width) == upright.shape[:2]
            assert ("mirrored" in "; ".join(info.notes)) == (orientation in (2, 4, 5, 7) and suffix == "png")
        assert frame.rotation in (0, 90, 180, 270)

    def test_pure_turns_leave_the_pixels_where_they_are(self, tmp_path: Path) -> None:
        exif = Image.Exif()
        exif[0x0112] = 6
        (frame,), _ = read(media.image(tmp_path / "a.png", exif=exif))
        assert frame.rotation == 90
        np.testing.assert_array_equal(frame.planes[0], media.rgb_image(0))

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
        rgba = np.dstack([media.rgb_image(0), np.full((48, 64), 7, np.uint8)])
        Image.fromarray(rgba).save(tmp_path / "a.png")
        (frame,), info = read(tmp_path / "a.png")
        assert frame.format.name == "rgba"
        np.testing.assert_array_equal(frame.planes[0][:, :, :3], media.rgb_image(0))
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
        image = Image.fromarray(media.rgb_image(0)).quantize(16)
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
            assert np.abs(frame.planes[0].astype(int) - media.rgb_image(number)).mean() < 20
        assert [frame.pts for frame in read(path, start=0.1, end=0.39)[0]] == [100, 350]

    @pytest.mark.parametrize("suffix", ["gif", "png"])
    @pytest.mark.parametrize("part", [0.9, 0.7, 0.5])
    def test_an_animation_that_is_cut_off(self, tmp_path: Path, suffix: str, part: float) -> None:
        path = media.truncate(media.animation(tmp_path / f"a.{suffix}", [100] * 8), part)
        frames, info = read(path)
        assert 1 < len(frames) < 8
        assert info.drops == {"unreadable": 1}

    def test_pages(self, tmp_path: Path) -> None:
        path = tmp_path / "a.tif"
        first, second = (Image.fromarray(media.rgb_image(number)) for number in range(2))
        first.save(path, save_all=True, append_images=[second])
        frames, _ = read(path)
        assert [frame.pts for frame in frames] == [None, None]
        np.testing.assert_array_equal(frames[1].planes[0], media.rgb_image(1))

    def test_not_an_image(self, tmp_path: Path) -> None:
        path = tmp_path / "a.jpg"
        path.write_text("no image")
        with pytest.raises(DecodeError, match="not an image of a supported format, or damaged"):
            open_source(path)

    def test_threads_that_read_images_leave_the_filters_of_warnings_as_they_were(self, tmp_path: Path) -> None:
        path, before, interval = media.image(tmp_path / "one.png"), list(warnings.filters), sys.getswitchinterval()

        def read_often(_: int) -> None:
            for _ in range(100):
                open_source(path).close()

        sys.setswitchinterval(1e-6)
        try:
            with ThreadPoolExecutor(8) as threads:
                list(threads.map(read_often, range(8)))
        finally:
            sys.setswitchinterval(interval)
        assert warnings.filters == before

    def test_no_other_program_reads_an_image(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Pillow alone would open this file, and Ghostscript would run what is in it."""
        marker, program, path = tmp_path / "ran", tmp_path / "gs", tmp_path / "photo.jpg"
        program.write_text(f"#!/bin/sh\ntouch {marker}\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
        monkeypatch.setattr(EpsImagePlugin, "gs_binary", None)  # where it was found before
        media.image(tmp_path / "a.eps").rename(path)
        with pytest.raises(DecodeError, match=r"photo\.jpg: not an image of a supported format") as caught:
            read(path)
        assert "save it as one of JPEG, PNG" in (caught.value.remedy or "")
        assert not marker.exists()

    def test_truncated(self, tmp_path: Path) -> None:
        path = media.truncate(media.image(tmp_path / "a.jpg", size=(320, 240)), 0.8)
        source = open_source(path)
        with pytest.raises(DecodeError, match=r"(?i)truncated"):
            list(source)
        assert list(source) == []

    @pytest.mark.parametrize("size", [(20000, 1), (1, 17000)])
    def test_absurd_size(self, tmp_path: Path, size: tuple[int, int]) -> None:
        with pytest.raises(SourceError, match=f"{size[0]}x{size[1]} exceeds 16384"):
            open_source(media.image(tmp_path / "a.png", size=size))

    def test_decompression_bomb(self, tmp_path: Path) -> None:
        path = tmp_path / "a.png"
        Image.new("1", (16000, 16000)).save(path)
        with pytest.raises(SourceError, match=r"a\.png: more than 178956970 pixels") as caught:
            open_source(path)
        assert "MAX_IMAGE_PIXELS" in (caught.value.remedy or "")

    def test_max_pixels(self, tmp_path: Path) -> None:
        path = tmp_path / "a.png"
        Image.new("1", (13000, 13000)).save(path)
        size = r"a\.png: the frame size 13000x13000 \(169000000 pixels\) exceeds max_pixels \(160000000\)"
        with pytest.raises(SourceError, match=size) as caught:
            open_source(path)
        assert "raise the option max_pixels" in (caught.value.remedy or "")
        # A warning of Pillow would be an error here.
        assert open_source(path, SourceOptions(max_pixels=169_000_000)).info.width == 13000

    def test_max_pixels_holds_for_every_page(self, tmp_path: Path) -> None:
        path = tmp_path / "a.tif"
        Image.new("L", (40, 30)).save(path, save_all=True, append_images=[Image.new("L", (60, 50))])
        frames, info = read(path, max_pixels=1200)
        assert [frame.width for frame in frames] == [40]
        assert info.notes == [f"skipped {path}: the frame size 60x50 (3000 pixels) exceeds max_pixels (1200)"]


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
        assert info.drops == {"unreadable": 2}
        assert "frame2.png" in info.notes[0] and "frame3.jpg" in info.notes[1]

    def test_only_bad_images(self, tmp_path: Path) -> None:
        for number in range(15):
            (tmp_path / f"{number}.png").write_text("no image")
        source = open_source(tmp_path)
        with pytest.raises(DecodeError, match="none of 15 images can be read"):
            list(source)
        assert len(source.info.notes) == 11
        assert source.info.drops == {"unreadable": 15}

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


def test_transposed_pixels_match_pillow(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 7
    path = media.image(tmp_path / "a.png", exif=exif)
    with Image.open(path) as image:
        expected = np.array(ImageOps.exif_transpose(image))
    np.testing.assert_array_equal(shown(read(path)[0][0]), expected)
