"""Outputs where the world is in the way: full disks, odd names, files of the user, folders that vanish, other runs."""

from __future__ import annotations

import csv
import errno
import json
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import av
import pytest

import media
from framefuse import Pipeline
from framefuse.cli import main
from framefuse.errors import SinkError
from framefuse.frame import Frame
from framefuse.prediction import Detections, FrameInfo, Result
from framefuse.report import Report, build_report
from framefuse.sinks import SinkContext, open_sink
from framefuse.sinks.mp4 import remux
from framefuse.sinks.run_folder import FolderLock, make_run_folder
from framefuse.sinks.sink_set import SinkSet
from framefuse.sources import SourceInfo, open_source
from test_report import measurements
from test_sinks import (
    MS,
    NAMES,
    audio_packets,
    boxes_of,
    context,
    decoded,
    detections,
    frame,
    frames_of,
    make_clip,
    result,
    run,
    times,
)

DISK_KB = 256
WRITERS = ["video", "images", "jsonl", "csv", "coco", "yolo_txt"]

# Disks that are full, folders that are none


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
        assert {len(row) for row in csv.reader(lines)} == {10}


@pytest.mark.parametrize("crowd", [0, 1, 40])
def test_coco_on_a_full_disk_is_still_whole(full_disk: Path, crowd: int) -> None:
    sink = open_sink("coco")
    sink.open(context(full_disk))
    found = detections(*[(10, 20, 60, 50, 0.875, 1)] * crowd)
    with pytest.raises(SinkError, match="No space left on device"):
        for i in range(10_000):
            sink.write(result(frame(i), found), None)
    sink.close()
    data = json.loads((full_disk / "clip.json").read_text())
    assert len(data["images"]) in (i, i + 1)
    assert len(data["annotations"]) == i * crowd
    assert os.listdir(full_disk) == ["clip.json"]


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


def test_a_model_that_does_not_fit_leaves_nothing(full_disk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = full_disk / "model.onnx"
    assert main(["build", "scout-n", "--precision", "fp16", "--out", str(out), "--quiet"]) == 1
    assert f"{out} cannot be written: No space left on device" in capsys.readouterr().err
    assert os.listdir(full_disk) == []


def test_a_world_writes_over_no_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept = tmp_path / "street-train-0_1.png"
    kept.write_text("mine")
    assert main(["synth", "street?frames=2&size=320x192", "--out", str(tmp_path), "--images"]) == 1
    assert f"{kept} exists already" in capsys.readouterr().err
    assert os.listdir(tmp_path) == [kept.name] and kept.read_text() == "mine"


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
    space = os.statvfs(full_disk)
    (full_disk / "others").write_bytes(bytes(space.f_bavail * space.f_bsize - 65536))
    sink.close()
    assert "stays a fragmented MP4: No space left on device" in sink.notes[0]
    assert times(sink.paths[0]) == [i * 40 * MS for i in range(40)]
    assert sorted(os.listdir(full_disk)) == ["clip.mp4", "others"]


@pytest.mark.parametrize("name", ["video", "jsonl", "csv", "coco", "yolo_txt", "images"])
def test_unwritable_folder_is_a_sink_error(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    folder = tmp_path / "file" / "run"
    with pytest.raises(SinkError, match=r"cannot write .*run.*: Not a directory\n  -> check that the folder"):
        run(open_sink(name), context(folder), [frame()])


def test_video_that_does_not_fit_at_its_end_is_an_error(full_disk: Path) -> None:
    """All pictures were taken, but the last fragment is written by `close`: FFmpeg must not hide that it failed."""
    sink = open_sink("video", crf=35)
    sink.open(context(full_disk))
    for i in range(20):
        one = frame(i, 160, 120, seed=i)
        sink.write(result(one), one)
    space = os.statvfs(full_disk)
    (full_disk / "others").write_bytes(bytes(space.f_bavail * space.f_bsize - 4096))
    with pytest.raises(SinkError, match=r"clip\.mp4: No space left on device"):
        sink.close()
    sink.close()
    assert os.listdir(full_disk) == ["others"], "not a single fragment fitted"


def test_video_beside_a_sink_that_fills_the_disk_first(full_disk: Path) -> None:
    def fill(one: Result, _: Frame | None) -> None:
        if one.frame.index == 70:
            space = os.statvfs(full_disk)
            with open(full_disk / "others", "wb") as file:
                file.write(bytes(space.f_bavail * space.f_bsize))
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
        space = os.statvfs(full_disk)
        (full_disk / "others").write_bytes(bytes(space.f_bavail * space.f_bsize - room))
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
    space = os.statvfs(full_disk)
    (full_disk / "others").write_bytes(bytes(space.f_bavail * space.f_bsize))
    one = frame(0)
    with pytest.raises(SinkError, match="No space left on device"):
        sink.open(context(folder))
        sink.write(result(one), one)
    sink.close()
    assert [path for path in folder.rglob("*") if path.is_file()] == []


def test_report_that_does_not_fit_leaves_the_earlier_one(full_disk: Path) -> None:
    report = build_report(measurements())
    before = [path.read_bytes() for path in report.save(full_disk)]
    space = os.statvfs(full_disk)
    (full_disk / "others").write_bytes(bytes(space.f_bavail * space.f_bsize - 4096))
    with pytest.raises(SinkError, match="No space left on device"):
        build_report(measurements(frames=200)).save(full_disk)
    assert [(full_disk / name).read_bytes() for name in ("report.json", "report.html")] == before
    assert sorted(os.listdir(full_disk)) == ["others", "report.html", "report.json"]


# Files of the user


@pytest.mark.parametrize("link", ["itself", "symlink", "hardlink"])
@pytest.mark.parametrize("name,file", [("video", "clip.mp4"), ("jsonl", "clip.jsonl"), ("csv", "clip.csv")])
def test_no_sink_overwrites_its_source(tmp_path: Path, name: str, file: str, link: str) -> None:
    source, output = tmp_path / file, tmp_path / "run" / file
    output.parent.mkdir()
    source.write_bytes(b"precious")
    if link == "itself":
        source = source.rename(output)
    elif link == "symlink":
        output.symlink_to(source)
    else:
        output.hardlink_to(source)
    sinks = SinkSet(lambda _: [open_sink(name)], output.parent, NAMES)
    one = frame()
    with pytest.raises(SinkError, match=rf"{file} is a source of this run.*\n.*--name"):
        sinks.write(result(one), one, SourceInfo(str(source), "file", path=source))
    sinks.close()
    assert source.read_bytes() == b"precious"
    assert os.listdir(output.parent) == [file]


@pytest.mark.parametrize(
    "name,taken",
    [
        ("video", "clip_2.mp4"),  # begun when the size changes
        ("video", "clip.mp4.part"),
        ("images", "clip_1.png"),
        ("coco", "clip.images.part"),
        ("yolo_txt", "labels/clip_1.txt"),
    ],
)
def test_no_sink_overwrites_a_source_that_comes_later(tmp_path: Path, name: str, taken: str) -> None:
    later = tmp_path / taken
    later.parent.mkdir(exist_ok=True)
    later.write_bytes(b"precious")
    sinks = SinkSet(lambda _: [open_sink(name)], tmp_path, NAMES, inputs=[later, tmp_path / "gone.mp4"])
    source = SourceInfo("clip.mp4", "file", path=Path("clip.mp4"))
    with pytest.raises(SinkError, match="is a source of this run"):
        for one in (frame(0), frame(1, 64, 96)):
            sinks.write(result(one), one, source)
    sinks.close()
    assert later.read_bytes() == b"precious"


def test_outputs_of_one_run_never_meet(tmp_path: Path) -> None:
    """Two groups of images with the same names; a video that goes on as clip_2 beside one that is called so."""
    sinks = SinkSet(lambda _: [open_sink(name) for name in ("images", "yolo_txt", "video")], tmp_path, NAMES)
    for number, shape in enumerate([(96, 64), (64, 96)]):
        one = frame(number, *shape)
        sinks.write(result(one), one, SourceInfo("clip.mp4", "file", path=Path("clip.mp4")))
        beside = replace(one, source_id="clip_2.mp4")
        sinks.write(result(beside), beside, SourceInfo("clip_2.mp4", "file", path=Path("clip_2.mp4")))
        photo = replace(one, source_id=f"{number}/photo.png")
        sinks.write(result(photo), photo, SourceInfo(f"folder {number}", "images"))
    sinks.close()
    assert sorted(path.stem for path in tmp_path.glob("clip*.mp4")) == ["clip", "clip_2", "clip_2_2", "clip_2_2_2"]
    for suffix in ("*.png", "labels/*.txt"):
        assert len([path for path in tmp_path.glob(suffix) if path.stem in ("photo", "photo_2")]) == 2


def test_sources_say_which_files_they_read(tmp_path: Path) -> None:
    images = [media.image(tmp_path / f"{number}.png", number) for number in range(2)]
    with_source(images, tmp_path)
    clip = media.video(tmp_path / "clip.mp4")
    with_source([*images, clip], tmp_path)


def with_source(expected: list[Path], folder: Path) -> None:
    source = open_source(folder)
    assert sorted(source.info.files) == sorted(expected)
    source.close()


def test_pipeline_never_overwrites_what_it_reads(tmp_path: Path) -> None:
    """Pictures written beside themselves: 1.bmp becomes 1.png, which is a source too."""
    folder = tmp_path / "pictures"
    folder.mkdir()
    for name in ("1.bmp", "1.png"):
        media.image(folder / name, 1)
    before = {path: path.read_bytes() for path in folder.iterdir()}
    pipeline = Pipeline(folder, save=True, project=tmp_path, name=folder.name, exist_ok=True)
    with pytest.raises(SinkError, match=r"1\.png is a source of this run"):
        pipeline.run()
    assert {path: path.read_bytes() for path in before} == before


def test_audio_without_a_description_is_left_out(tmp_path: Path) -> None:
    """A file whose index is cut off inside the audio track: FFmpeg knows that there is audio, but not which."""
    clip = media.video(tmp_path / "clip.mp4", audio=True)
    whole = clip.read_bytes()
    clip.write_bytes(whole[: whole.index(b"stsd", whole.index(b"soun"))])
    frames = frames_of(clip)
    with av.open(clip) as container:
        assert [stream.type for stream in container.streams if stream.codec_context is None] == ["audio"]
    sink = run(open_sink("video"), context(tmp_path, stem="out", path=clip), frames)
    assert any("audio stream 1 left out: its description is missing" in note for note in sink.notes)
    assert len(decoded(sink.paths[0])) == len(frames)


# Odd names


@pytest.mark.parametrize("project", ["2024-01-01T12:00:00", "http:", "pipe:1", "100%d", "a?b#c", "caf\udce9"])
def test_folder_may_be_called_like_a_protocol(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, project: str) -> None:
    monkeypatch.chdir(tmp_path)
    folder = make_run_folder(Path(project))
    clip = make_clip(tmp_path / "sound.mp4", seconds=1)
    for name in WRITERS:
        sink = run(open_sink(name), context(folder, path=clip), frames_of(clip))
        assert sink.notes == []
    assert len(audio_packets(tmp_path / folder / "clip.mp4")) > 40
    paths = build_report(measurements(), outputs=[folder / "clip.mp4"]).save(folder)
    assert Report.from_json(paths[0].read_bytes()).frames == 300
    assert sorted(os.listdir()) == sorted([project, "sound.mp4"])


@pytest.mark.parametrize("letter", ["x", "é", "語"])
@pytest.mark.parametrize("kind", ["file", "images"])
def test_longest_file_names(tmp_path: Path, letter: str, kind: str) -> None:
    """Names of 255 bytes, as long as file systems allow."""
    stem = letter * (251 // len(letter.encode()))
    sinks = SinkSet(lambda _: [open_sink(name) for name in WRITERS], tmp_path, NAMES)
    for number in range(2):
        uri = f"{number}/{stem}.png"
        one = replace(frame(123_456_789, pts=0), source_id=uri)
        sinks.write(result(one), one, SourceInfo(uri, kind, path=Path(uri)))
    sinks.close()
    written = [path.name for path in tmp_path.rglob("*") if path.is_file()]
    assert len(written) == 2 * len(WRITERS)
    assert all(name.startswith(letter * (180 // len(letter.encode()))) for name in written)


def test_class_names_and_paths_that_are_no_text(tmp_path: Path) -> None:
    """Lone surrogates have no UTF-8: a class name from a damaged model, a file name in another encoding."""
    names = {1: "\ud800"}
    one = detections((10, 20, 60, 50, 0.5, 1))
    found = Result(
        FrameInfo(0, 0, MS, 96, 64, "caf\udce9.png"), Detections(one.xyxy, one.confidence, one.class_id, names)
    )
    where = SinkContext(tmp_path, SourceInfo("caf\udce9.png", "images"), names, "clip")
    for name in ("jsonl", "csv", "coco", "yolo_txt"):
        sink = open_sink(name)
        sink.open(where)
        sink.write(found, None)
        sink.close()
    line = json.loads((tmp_path / "clip.jsonl").read_text("utf-8"))
    assert (line["source"], line["detections"][0]["class"]) == ("caf\udce9.png", "\ud800")
    assert json.loads((tmp_path / "clip.json").read_text("utf-8"))["categories"] == [{"id": 1, "name": "\ud800"}]
    assert (tmp_path / "clip.csv").read_text("utf-8").count("\\ud800") == 1


@pytest.mark.parametrize("encoder", ["aac", "srt", "h266", "", "lib\0x264", "\ud800"])
def test_encoder_that_is_no_video_encoder(tmp_path: Path, encoder: str) -> None:
    with pytest.raises(SinkError, match="no video encoder") as caught:
        run(open_sink("video", encoder=encoder), context(tmp_path), [frame()])
    assert "libx264" in str(caught.value)
    assert os.listdir(tmp_path) == []


def test_run_folder_with_a_null_byte(tmp_path: Path) -> None:
    with pytest.raises(SinkError, match="cannot make the run folder"):
        make_run_folder(tmp_path, "a\0b")


# Other runs, and people who tidy up


def test_two_runs_never_write_into_one_folder(tmp_path: Path) -> None:
    clip = media.video(tmp_path / "clip.mp4", frames=60)
    options: dict[str, Any] = {"project": tmp_path, "name": "run", "exist_ok": True, "save_jsonl": True, "queue": 1}
    first = iter(Pipeline(clip, **options))
    next(first)
    with pytest.raises(SinkError, match=r"another run is writing into .*run\n.*--name"):
        Pipeline(clip, **options).run()
    assert sum(1 for _ in first) == 59
    assert len((tmp_path / "run" / "clip.jsonl").read_text().splitlines()) == 60
    for _ in Pipeline(clip, **options):
        break  # the folder was free again
    FolderLock(tmp_path / "run").release()


def test_folder_of_a_run_that_was_killed_is_free(tmp_path: Path) -> None:
    code = f"""
import os
from pathlib import Path
from framefuse.sinks.run_folder import FolderLock
lock = FolderLock(Path({str(tmp_path)!r}))
print(flush=True)
input()
"""
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        with pytest.raises(SinkError, match="another run is writing"):
            FolderLock(tmp_path)
        other.kill()
    lock = FolderLock(tmp_path)
    lock.release()
    lock.release()


@pytest.mark.parametrize("name", WRITERS)
def test_folder_deleted_while_it_is_written(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    sink = open_sink(name)
    sink.open(context(folder))
    one = frame(0)
    sink.write(result(one), one)
    shutil.rmtree(folder)
    with pytest.raises(SinkError, match=r"run.* was deleted or replaced while the run was writing it"):
        sink.close()
    assert not folder.exists()


@pytest.mark.parametrize("name", WRITERS)
def test_folder_deleted_is_never_made_again(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    sink = open_sink(name)
    sink.open(context(folder))
    shutil.rmtree(folder)
    with pytest.raises(SinkError):
        for i in range(2):
            one = frame(i)
            sink.write(result(one), one)
        sink.close()
    assert not folder.exists()


@pytest.mark.parametrize("name,file", [("video", "clip.mp4"), ("jsonl", "clip.jsonl"), ("csv", "clip.csv")])
def test_file_replaced_while_it_is_written_stays_as_it_is(tmp_path: Path, name: str, file: str) -> None:
    sink = open_sink(name)
    sink.open(context(tmp_path))
    one = frame(0)
    sink.write(result(one), one)
    (tmp_path / "other").write_bytes(b"somebody else's")
    os.replace(tmp_path / "other", tmp_path / file)
    with pytest.raises(SinkError, match=rf"{file} was deleted or replaced"):
        sink.close()
    assert (tmp_path / file).read_bytes() == b"somebody else's"


def test_folder_moved_away_is_an_error_of_the_run(tmp_path: Path) -> None:
    clip = media.video(tmp_path / "clip.mp4", frames=60)
    pipeline = Pipeline(clip, project=tmp_path, name="run", save_txt=True, queue=1)
    with pytest.raises(SinkError, match="labels"):
        for number, _ in enumerate(pipeline):
            if number == 0:
                (tmp_path / "run").rename(tmp_path / "moved")
    assert not (tmp_path / "run" / "labels").exists()
