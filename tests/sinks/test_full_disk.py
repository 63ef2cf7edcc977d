"""Outputs on a full disk or in a missing folder: finished data stays intact, and the error names the reason."""

from __future__ import annotations

import csv
import errno
import json
import os
import resource
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import av
import pytest

from framefuse.cli.app import main
from framefuse.errors import SinkError
from framefuse.frame import Frame
from framefuse.prediction import Result
from framefuse.report.report import build_report
from framefuse.sinks import SinkSet, open_sink
from framefuse.sinks.mp4 import remux
from framefuse.sinks.records import HEADER
from framefuse.sinks.repair import repair_folder
from framefuse.sources import SourceInfo
from measured import measurements
from reading import decoded
from sink_frames import MS, NAMES, boxes_of, context, detections, frame, make_clip, result, run, times

DISK_KB = 256


def take_space(disk: Path, *, but: int = 0) -> None:
    """Fill the disk with another file, except for some bytes."""
    space = os.statvfs(disk)
    (disk / "others").write_bytes(bytes(space.f_bavail * space.f_bsize - but))


@contextmanager
def file_size_limited(size: int) -> Iterator[None]:
    """Any file that grows beyond the limit fails as on a full disk (EFBIG for ENOSPC).

    No fixture: pytest writes its log before it tears those down, and that may be a long file.
    """
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_video_on_a_full_disk_stays_playable(tmp_path: Path) -> None:
    sink = open_sink("video")
    sink.open(context(tmp_path))
    frames = [frame(i, 320, 240, seed=i) for i in range(10)]
    with file_size_limited(2_000_000):
        with pytest.raises(SinkError, match=r"cannot write .*clip\.mp4: File too large\n.*free some space"):
            for i in range(1000):
                again = frames[i % 10]
                stamped = Frame(again.planes, again.format, index=i, pts=i * 40, time_base=MS, source_id="clip.mp4")
                sink.write(result(stamped), stamped)
        sink.close()
    found = len(decoded(sink.paths[0]))
    assert 0 < found < i
    assert boxes_of(sink.paths[0])[:3] == ["ftyp", "moov", "moof"]


@pytest.mark.parametrize("name", ["jsonl", "csv"])
def test_text_on_a_full_disk_ends_with_a_whole_record(tmp_path: Path, name: str) -> None:
    sink = open_sink(name)
    sink.open(context(tmp_path))
    with file_size_limited(20_001):
        with pytest.raises(SinkError, match="File too large"):
            for i in range(10_000):
                sink.write(result(frame(i)), None)
        sink.close()
    lines = (tmp_path / f"clip.{name}").read_text().splitlines()
    assert len(lines) == i + (name == "csv")
    if name == "jsonl":
        assert [json.loads(line)["frame"] for line in lines] == list(range(i))
    else:
        assert {len(row) for row in csv.reader(lines)} == {len(HEADER)}


@pytest.mark.parametrize("crowd", [0, 1, 40])
def test_coco_on_a_full_disk_is_completed_where_there_is_room(full_disk: Path, tmp_path: Path, crowd: int) -> None:
    sink = open_sink("coco")
    sink.open(context(full_disk))
    found = detections(*[(10, 20, 60, 50, 0.875, 1)] * crowd)
    with pytest.raises(SinkError, match="No space left on device"):
        for i in range(10_000):
            sink.write(result(frame(i), found), None)
    with pytest.raises(SinkError, match=r"clip\.json: No space left on device\n.*framefuse repair"):
        sink.close()
    assert os.listdir(full_disk) == ["clip.coco.part"]
    shutil.copy(full_disk / "clip.coco.part", tmp_path)
    assert [str(repair) for repair in repair_folder(tmp_path)] == [
        f"{tmp_path}/clip.coco.part: completed, {i:,} frames"
    ]
    data = json.loads((tmp_path / "clip.json").read_text())
    assert len(data["images"]) == i
    assert len(data["annotations"]) == i * crowd


@pytest.mark.parametrize("words", [(), ("--images",)])
def test_a_world_on_a_full_disk_leaves_whole_files(
    full_disk: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    assert main(["synth", "street?frames=200&size=320x192&complexity=1", "--out", str(full_disk), *words]) == 1
    err = capsys.readouterr().err
    assert "No space left on device" in err and "--out" in err and "--project" not in err
    data = json.loads((full_disk / "street-train-0.json").read_text())
    assert 0 < len(data["images"]) < 200
    assert {row["image_id"] for row in data["annotations"]} <= {row["id"] for row in data["images"]}
    if words:
        assert all((full_disk / row["file_name"]).stat().st_size > 1000 for row in data["images"])


@pytest.mark.slow
def test_a_model_that_does_not_fit_leaves_nothing(full_disk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = full_disk / "model.onnx"
    assert main(["build", "scout-n", "--precision", "fp16", "--out", str(out), "--quiet"]) == 1
    assert f"{out} cannot be written: No space left on device" in capsys.readouterr().err
    assert os.listdir(full_disk) == []


def test_video_on_a_full_disk_whose_space_is_really_gone(full_disk: Path) -> None:
    sink = open_sink("video", crf=35)
    sink.open(context(full_disk))
    with pytest.raises(SinkError, match="No space left on device"):
        for i in range(1000):
            one = frame(i, 160, 120, seed=i)
            sink.write(result(one), one)
    sink.close()
    assert len(decoded(sink.paths[0])) > 0


def test_video_stays_fragmented_where_there_is_no_room_for_the_copy(full_disk: Path) -> None:
    sink = open_sink("video", crf=35)
    sink.open(context(full_disk))
    for i in range(40):
        one = frame(i, 96, 64, seed=i)
        sink.write(result(one), one)
    take_space(full_disk, but=65536)
    sink.close()
    assert "remains a fragmented MP4: No space left on device" in sink.notes[0]
    assert times(sink.paths[0]) == [i * 40 * MS for i in range(40)]
    assert sorted(os.listdir(full_disk)) == ["clip.mp4", "others"]


@pytest.mark.parametrize("name", ["video", "jsonl", "csv", "coco", "yolo_txt", "images"])
def test_unwritable_folder_is_a_sink_error(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    folder = tmp_path / "file" / "run"
    with pytest.raises(SinkError, match=r"cannot write .*run.*: Not a directory\n  -> check that the folder"):
        run(open_sink(name), context(folder), [frame()])


def test_video_that_does_not_fit_at_its_end_is_an_error(full_disk: Path) -> None:
    """All frames are encoded, but `close` writes the last fragment: FFmpeg must not hide that this failed."""
    sink = open_sink("video", crf=35)
    sink.open(context(full_disk))
    for i in range(4):
        one = frame(i, 160, 120, seed=i)
        sink.write(result(one), one)
    take_space(full_disk, but=4096)
    with pytest.raises(SinkError, match=r"clip\.mp4: No space left on device"):
        sink.close()
    sink.close()
    assert os.listdir(full_disk) == ["others"], "not a single fragment fitted"


def test_video_beside_a_sink_that_fills_the_disk_first(full_disk: Path) -> None:
    def fill(one: Result, _: Frame | None) -> None:
        if one.frame.index == 70:
            take_space(full_disk)
            raise OSError(errno.ENOSPC, "first")

    source = SourceInfo("clip.mp4", "file", path=Path("clip.mp4"))
    sinks = SinkSet(lambda _: [open_sink("callback", function=fill), open_sink("video", crf=45)], full_disk, NAMES)
    with pytest.raises(OSError, match="first"):
        for i in range(71):
            one = frame(i, 96, 64, seed=i)
            sinks.write(result(one), one, source)
    with pytest.raises(SinkError, match=r"clip\.mp4: No space left on device"):
        sinks.close()
    assert 0 < len(decoded(full_disk / "clip.mp4")) < 71
    boxes_of(full_disk / "clip.mp4")  # whole ones only


def test_copy_that_is_not_whole_never_takes_the_place_of_the_video(full_disk: Path, tmp_path: Path) -> None:
    clip = make_clip(tmp_path / "clip.mp4", seconds=2)
    size = clip.stat().st_size
    failed = 0
    for room in range(4096, size + 3 * 4096, 4096):
        (full_disk / "others").write_bytes(b"")
        take_space(full_disk, but=room)
        try:
            remux(clip, full_disk / "copy.mp4", 12800)
        except (av.FFmpegError, OSError):
            failed += 1
        else:
            assert len(decoded(full_disk / "copy.mp4")) == 50
        (full_disk / "copy.mp4").unlink(missing_ok=True)
    assert failed


@pytest.mark.parametrize("name", ["jsonl", "csv", "coco", "yolo_txt", "images"])
def test_disk_without_room_for_a_beginning_keeps_no_empty_file(full_disk: Path, name: str) -> None:
    sink = open_sink(name)
    folder = full_disk / "run"
    (folder / "labels").mkdir(parents=True)
    take_space(full_disk)
    one = frame(0)
    with pytest.raises(SinkError, match="No space left on device"):
        sink.open(context(folder))
        sink.write(result(one), one)
    sink.close()
    assert [path for path in folder.rglob("*") if path.is_file()] == []


def test_report_that_does_not_fit_leaves_the_earlier_one(full_disk: Path) -> None:
    report = build_report(measurements())
    before = [path.read_bytes() for path in report.save(full_disk)]
    take_space(full_disk, but=4096)
    with pytest.raises(SinkError, match="No space left on device"):
        build_report(measurements(frames=200)).save(full_disk)
    assert [(full_disk / name).read_bytes() for name in ("report.json", "report.html")] == before
    assert sorted(os.listdir(full_disk)) == ["others", "report.html", "report.json"]
