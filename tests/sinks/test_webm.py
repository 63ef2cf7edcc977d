"""What is said about VR in a WebM, as FFmpeg reads it."""

from __future__ import annotations

import shutil
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from av.sidedata.sidedata import Type

from framefuse.prediction import Matte, MattePart
from framefuse.sinks import open_sink
from framefuse.sinks.mp4 import add_boxes
from framefuse.sinks.repair import repair_folder
from framefuse.sinks.webm import add_vr
from framefuse.sources.stereo import box, said_by_file
from sink_frames import NONE, context, frame, make_clip, result
from sink_frames import run as write

HALF = 0x3FFFFFFF


def said(mode: int = 2, projection: bytes = b"equi", body: bytes = b"", yaw: float = 0.0) -> bytes:
    """The boxes st3d and sv3d, of a half sphere."""
    body = body or bytes(4) + struct.pack(">4I", 0, 0, HALF, HALF)
    turned = box(b"prhd", bytes(4) + struct.pack(">3i", round(yaw * 65536), 0, 0))
    inside = box(b"svhd", bytes(4) + b"x\0") + box(b"proj", turned + box(projection, body))
    return box(b"st3d", bytes(4) + bytes([mode])) + box(b"sv3d", inside)


def written(tmp_path: Path, boxes: bytes) -> Any:
    """The sink that has written clip_alpha.webm of a video with sound that has these boxes."""
    (tmp_path / "source").mkdir()
    where = context(tmp_path / "source", path=make_clip(tmp_path / "tone.mp4"))
    source = write(open_sink("video"), where, [frame(i) for i in range(4)]).paths[0]
    if boxes:
        assert add_boxes(source, boxes)
    sink: Any = open_sink("matte", mode="alpha", encoder="libvpx-vp9", crf=8)
    sink.open(context(tmp_path, path=source, kind="file"))
    for index in range(4):
        one = frame(index)
        part = MattePart((0, 0, one.width, one.height), np.full((8, 12), index / 3, np.float32))
        sink.write(replace(result(one, NONE), matte=Matte((part,), (one.width, one.height), 1.0)), one)
    sink.close()
    return sink


@pytest.mark.parametrize("mode", ["gray", "alpha"])
def test_a_repaired_video_says_what_its_source_says(mode: str, tmp_path: Path) -> None:
    source = write(open_sink("video"), context(tmp_path), [frame(i) for i in range(30)]).paths[0]
    assert add_boxes(source, said())
    sink: Any = open_sink("matte", mode=mode)
    (run := tmp_path / "run").mkdir()
    sink.open(context(run, path=source, kind="file"))
    for index in range(30):
        one = frame(index)
        part = MattePart((0, 0, one.width, one.height), np.full((8, 12), 1, np.float32))
        sink.write(replace(result(one, NONE), matte=Matte((part,), (one.width, one.height), 1.0)), one)
    shutil.copytree(run, tmp_path / "killed")
    sink.close()
    assert [done.done for done in repair_folder(tmp_path / "killed") if not done.failed]
    for folder in (run, tmp_path / "killed"):
        (path,) = folder.iterdir()
        assert said_by_file(path).boxes == said()
        with av.open(path) as container:
            assert "comment" not in container.metadata and next(container.decode(video=0))
            assert container.streams.video[0].codec_context.codec_tag == {"gray": "avc1", "alpha": "ap4h"}[mode]


def seen(path: Path) -> tuple[list[Any], list[Any], dict[Type, bytes]]:
    """The frames, the packets of sound, and what is said about the first frame."""
    with av.open(path) as container:
        sounds = [bytes(packet) for packet in container.demux(audio=0)]
    with av.open(path) as container:
        frames = list(container.decode(video=0))
    facts: Any = list(frames[0].side_data)
    return [one.to_ndarray() for one in frames], sounds, {one.type: bytes(one) for one in facts}


@pytest.mark.parametrize(("mode", "arrangement"), [(0, 0), (1, 2), (2, 1)])
def test_a_web_video_says_what_its_source_says(mode: int, arrangement: int, tmp_path: Path) -> None:
    """Numbers are those of AVStereo3D, where 1 is side by side, and of AVSphericalMapping; degrees are 16.16 bits."""
    sink = written(tmp_path, said(mode, yaw=90))
    frames, _, facts = seen(sink.paths[0])
    assert len(frames) == 4 and sink.paths[0].suffix == ".webm"
    assert not any("VR" in note for note in sink.notes)
    assert struct.unpack("i", facts[Type.STEREO3D][:4])[0] == arrangement
    projection, yaw, _, _, left, top, right, bottom = struct.unpack("i3i4I", facts[Type.SPHERICAL][:32])
    assert (yaw, left, top, right, bottom) == (90 * 65536, HALF, 0, HALF, 0) and projection == 2, "a part of a sphere"


def test_frames_sound_and_index_stay_as_they_are(tmp_path: Path) -> None:
    path = written(tmp_path, b"").paths[0]
    before, size = seen(path), path.stat().st_size
    assert Type.SPHERICAL not in before[2]
    assert add_vr(path, said())
    after = seen(path)
    assert path.stat().st_size == size and after[1] == before[1]
    assert all((one == other).all() for one, other in zip(after[0], before[0], strict=True))
    assert Type.SPHERICAL in after[2]
    with av.open(path) as container:
        container.seek(0)
        assert next(container.decode(video=0)).pts == 0
        assert container.streams.video[0].codec_context.name == "vp9" and container.duration


def test_what_has_no_room_is_noted(tmp_path: Path) -> None:
    sink = written(tmp_path, said(projection=b"mshp", body=bytes(3000)))
    assert any("what its source says about VR could not be carried over" in note for note in sink.notes)
    assert len(seen(sink.paths[0])[0]) == 4


@pytest.mark.parametrize("boxes", [b"", b"\0\0\0\x08st3d", box(b"st3d", bytes(4) + b"\x09"), box(b"sv3d", b"\0" * 40)])
def test_boxes_that_say_nothing(boxes: bytes, tmp_path: Path) -> None:
    path = written(tmp_path, b"").paths[0]
    before = path.read_bytes()
    assert not add_vr(path, boxes) and path.read_bytes() == before


def test_files_that_are_no_web_video(tmp_path: Path) -> None:
    whole = written(tmp_path, b"").paths[0].read_bytes()
    assert not add_vr(tmp_path / "missing.webm", said())
    random = np.random.default_rng(1)
    for end in (0, 1, 4, 36, 48, 60, 111, 130, 220, 300):
        path = tmp_path / f"{end}.webm"
        for rest in (b"", random.bytes(200)):
            path.write_bytes(whole[:end] + rest)
            add_vr(path, said())
            assert path.stat().st_size == end + len(rest)
