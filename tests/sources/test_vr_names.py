"""What names and metadata say about VR videos."""

from __future__ import annotations

from pathlib import Path

import pytest

from framefuse.sinks.mp4 import add_boxes, cut_to_whole_boxes
from framefuse.sources import SourceInfo
from framefuse.sources.stereo import Stereo, find, said_by_file, said_by_name
from reading import decoded
from sink_frames import audio_packets, context, frame, make_clip
from sink_frames import run as write


def box(kind: bytes, body: bytes = b"") -> bytes:
    return (len(body) + 8).to_bytes(4, "big") + kind + body


def spherical(mode: int, cropped: int = 0x3FFFFFFF) -> bytes:
    """The boxes st3d and sv3d of Spherical Video V2; `cropped`: bounds left and right, of 2**32."""
    bounds = (0, 0, cropped, cropped)
    equi = box(b"equi", bytes(4) + b"".join(value.to_bytes(4, "big") for value in bounds))
    projection = box(b"proj", box(b"prhd", bytes(16)) + equi)
    return box(b"st3d", bytes(4) + bytes([mode])) + box(b"sv3d", box(b"svhd", bytes(4) + b"x\0") + projection)


@pytest.fixture
def clip(tmp_path: Path) -> Path:
    """A plain MP4 with sound and its index in front."""
    source = make_clip(tmp_path / "tone.mp4")
    (tmp_path / "out").mkdir()
    from framefuse.sinks import open_sink

    where = context(tmp_path / "out", path=source)
    return write(open_sink("video"), where, [frame(i) for i in range(20)]).paths[0]


@pytest.mark.parametrize(
    ("stem", "arrangement", "projection", "parts"),
    [
        ("party_180_LR", "sbs", "equirect180", ("party", "_180_LR")),
        ("party_180x180_3dh_LR", "sbs", "equirect180", ("party", "_180x180_3dh_LR")),
        ("party-sbs", "sbs", None, ("party", "-sbs")),
        ("party_TB", "tb", None, ("party", "_TB")),
        ("party_MKX200", "sbs", "fisheye200", ("party", "_MKX200")),
        ("party_4000p_FISHEYE190", "sbs", "fisheye190", ("party_4000p", "_FISHEYE190")),
        ("party_mono_360", "mono", "equirect360", ("party", "_mono_360")),
        ("my LR party", None, None, ("my LR party", "")),
        ("180", None, None, ("180", "")),
        ("", None, None, ("", "")),
    ],
)
def test_names(stem: str, arrangement: str | None, projection: str | None, parts: tuple[str, str]) -> None:
    found = said_by_name(stem)
    assert (found.arrangement, found.projection, found.parts) == (arrangement, projection, parts)


@pytest.mark.parametrize(
    "content", [b"\0\0\0\1\x67\x42\0\x1e" + bytes(range(256)), b"", b"\0" * 40, b"\0\0\0\x08free" * 3]
)
def test_files_that_are_no_mp4_say_nothing(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "clip.h264"
    path.write_bytes(content)
    assert said_by_file(path) == Stereo()


def test_an_unfinished_mp4_is_cut_at_a_box_of_any_size(tmp_path: Path) -> None:
    whole = box(b"moof", b"") + box(b"mdat", b"frame")
    path = tmp_path / "clip.mp4"
    for tail in (b"\0\0\0\1mdat" + b"\xff" * 8, b"\0\0\x10\0mdat", bytes(16), b"moo"):
        path.write_bytes(whole + tail)
        cut_to_whole_boxes(path)
        assert path.read_bytes() == whole


@pytest.mark.parametrize(("mode", "arrangement"), [(0, "mono"), (1, "tb"), (2, "sbs"), (9, None)])
def test_boxes_are_added_and_read(clip: Path, mode: int, arrangement: str | None) -> None:
    before, sound = [one.to_ndarray() for one in decoded(clip)], audio_packets(clip)
    assert said_by_file(clip) == Stereo()
    boxes = spherical(mode)
    assert add_boxes(clip, boxes)
    found = said_by_file(clip)
    assert (found.arrangement, found.projection, found.boxes) == (arrangement, "equirect180", boxes)
    assert [(one.to_ndarray() == other).all() for one, other in zip(decoded(clip), before, strict=True)] == [True] * 20
    assert audio_packets(clip) == sound
    assert [path.name for path in clip.parent.iterdir()] == [clip.name]


def test_a_whole_panorama(clip: Path) -> None:
    assert add_boxes(clip, spherical(1, cropped=0))
    assert said_by_file(clip).projection == "equirect360"


def test_metadata_counts_more_than_a_name(clip: Path) -> None:
    add_boxes(clip, spherical(1))
    named = clip.rename(clip.with_name("clip_180_LR.mp4"))
    info = SourceInfo(str(named), "file", path=named)
    assert find(info).arrangement == "tb"
    assert info.notes == ["its metadata says tb, and its name sbs: the metadata counts"]


@pytest.mark.parametrize("data", [b"", b"\0\0\0", b"\0\0\0\0ftyp", box(b"moov", b"\0\0\0\4trak"), b"\xff" * 64])
def test_files_that_are_no_mp4(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "clip.mp4"
    path.write_bytes(data)
    assert said_by_file(path) == Stereo()
    assert not add_boxes(path, spherical(2)) or data.startswith(b"\0\0\0\x10moov")
    assert said_by_file(tmp_path / "none.mp4") == Stereo()


def test_metadata_and_name_complete_each_other(clip: Path) -> None:
    """The boxes say how the eyes are arranged, the name how they are projected."""
    add_boxes(clip, spherical(2)[:13])
    named = clip.rename(clip.with_name("clip_180_LR.mp4"))
    found = find(SourceInfo(str(named), "file", path=named))
    assert (found.arrangement, found.projection, found.source) == ("sbs", "equirect180", "its metadata")


def test_a_video_whose_entry_is_unknown_stays_as_it_is(tmp_path: Path) -> None:
    data = box(b"ftyp", b"isom") + box(b"moov", box(b"trak", box(b"mdia"))) + box(b"mdat", b"frames")
    path = tmp_path / "clip.mp4"
    path.write_bytes(data)
    assert not add_boxes(path, spherical(2))
    assert path.read_bytes() == data and [one.name for one in tmp_path.iterdir()] == ["clip.mp4"]
