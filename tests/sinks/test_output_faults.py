"""Outputs under difficult conditions: files of the user, odd names, folders that vanish, other runs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import av
import pytest

import media
from framefuse import Pipeline
from framefuse.cli.app import main
from framefuse.errors import SinkError
from framefuse.prediction import Detections, FrameInfo, Result
from framefuse.report.report import Report, build_report
from framefuse.sinks import SinkContext, SinkSet, open_sink
from framefuse.sinks.run_folder import FolderLock, make_run_folder
from framefuse.sources import SourceInfo, open_source
from measured import measurements
from reading import decoded
from sink_frames import MS, NAMES, audio_packets, context, detections, frame, frames_of, make_clip, result, run
from training.squares import write_squares

WRITERS = ["video", "images", "jsonl", "csv", "coco", "yolo_txt", "cvat", "label_studio"]
WRITERS += ["parquet"] if find_spec("pyarrow") else []


# Files of the user


@pytest.mark.parametrize(
    ("name", "link"),
    [
        ("video", "clip.mp4.part"),
        ("jsonl", "clip.jsonl.part"),
        ("csv", "clip.csv.part"),
        ("coco", "clip.coco.part"),
        ("coco", "clip.json.part"),
        ("images", "clip_0.png.part"),
        ("yolo_txt", "labels/clip_0.txt.part"),
        ("yolo_txt", "labels"),
        ("cvat", "clip.cvat.part"),
        ("cvat", "clip.cvat.xml.part"),
        ("label_studio", "clip.label_studio.part"),
    ],
)
def test_no_sink_follows_a_link_out_of_the_folder(tmp_path: Path, name: str, link: str) -> None:
    folder, outside = tmp_path / "run", tmp_path / "outside"
    (folder / link).parent.mkdir(parents=True)
    if link == "labels":
        outside.mkdir()
    else:
        outside.write_bytes(b"precious")
    (folder / link).symlink_to(outside)
    sink = open_sink(name)
    with pytest.raises(SinkError, match="symbolic link"):
        try:
            run(sink, context(folder), [frame()])
        finally:
            sink.close()
    assert (list(outside.iterdir()) == []) if link == "labels" else (outside.read_bytes() == b"precious")


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
    with pytest.raises(SinkError, match=rf"{file} is an input of this run.*\n.*--name"):
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
        ("coco", "clip.coco.part"),
        ("yolo_txt", "labels/clip_1.txt"),
    ],
)
def test_no_sink_overwrites_a_source_that_comes_later(tmp_path: Path, name: str, taken: str) -> None:
    later = tmp_path / taken
    later.parent.mkdir(exist_ok=True)
    later.write_bytes(b"precious")
    sinks = SinkSet(lambda _: [open_sink(name)], tmp_path, NAMES, inputs=[later, tmp_path / "gone.mp4"])
    source = SourceInfo("clip.mp4", "file", path=Path("clip.mp4"))
    with pytest.raises(SinkError, match="is an input of this run"):
        for one in (frame(0), frame(1, 64, 96)):
            sinks.write(result(one), one, source)
    sinks.close()
    assert later.read_bytes() == b"precious"


def test_outputs_of_one_run_never_meet(tmp_path: Path) -> None:
    """Two groups of images with the same names; a video that continues as clip_2 next to one of that name."""
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
    """Images written next to their source: 1.bmp becomes 1.png, which is a source too."""
    folder = tmp_path / "images"
    folder.mkdir()
    for name in ("1.bmp", "1.png"):
        media.image(folder / name, 1)
    before = {path: path.read_bytes() for path in folder.iterdir()}
    pipeline = Pipeline(folder, "squares", save=True, project=tmp_path, name=folder.name, exist_ok=True)
    with pytest.raises(SinkError, match=r"1\.png is an input of this run"):
        pipeline.run()
    assert {path: path.read_bytes() for path in before} == before


@pytest.mark.parametrize(
    ("output", "kept"),
    [
        ("report.json", "config"),
        ("report.html", "config"),
        ("clip.jsonl", "config"),
        ("clip.csv", "model"),
        ("clip.json", "card"),
        ("labels/clip_0.txt", "card"),
        ("clip.mp4", "source"),
        ("report.json.part", "config"),
    ],
)
def test_no_run_overwrites_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], output: str, kept: str
) -> None:
    """The output is another name of the file, as if it were called so itself."""
    monkeypatch.chdir(tmp_path)
    config, model, clip = Path("run.yaml"), write_squares(Path("m.onnx")), media.video(Path("clip.mp4"))
    config.write_text("source: clip.mp4\nmodel: m.onnx\nexist_ok: true\n")
    model.with_suffix(".yaml").write_text("stride: 32\n")
    files = {"config": config, "model": model, "card": model.with_suffix(".yaml"), "source": clip}
    target = Path("out") / output
    target.parent.mkdir(parents=True)
    target.hardlink_to(files[kept])
    before = {path: path.read_bytes() for path in files.values()}
    saves = ["--save", "--save-csv", "--save-json", "--save-txt"]
    assert main(["predict", "--config", str(config), "--project", ".", "--name", "out", *saves]) == 1
    assert f"out/{output} is an input of this run" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in before} == before
    if output.startswith("report"):
        assert os.listdir("out") == [output]


def test_a_report_that_cannot_be_written_leaves_the_folder_free(tmp_path: Path) -> None:
    clip = media.video(tmp_path / "clip.mp4")
    pipeline = Pipeline(clip, "squares", project=tmp_path, name="out", exist_ok=True, save_jsonl=True)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "report.json").write_text("mine")
    pipeline.inputs.append(tmp_path / "out" / "report.json")
    with pytest.raises(SinkError, match=r"out/report\.json is an input"):
        pipeline.run()
    FolderLock(tmp_path / "out").release()


def test_no_output_is_overwritten_by_the_report(tmp_path: Path) -> None:
    clip = media.video(tmp_path / "report.mp4")
    Pipeline(clip, "squares", project=tmp_path, name="out", save_json=True).run()
    assert len(json.loads((tmp_path / "out" / "report_2.json").read_text())["images"]) > 0
    assert json.loads((tmp_path / "out" / "report.json").read_text())["frames"] > 0


def test_a_world_overwrites_no_image(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept = tmp_path / "street-train-0_1.png"
    kept.write_text("mine")
    assert main(["synth", "street?frames=2&size=320x192", "--out", str(tmp_path), "--images"]) == 1
    assert f"{kept} already exists" in capsys.readouterr().err
    assert os.listdir(tmp_path) == [kept.name] and kept.read_text() == "mine"


def test_audio_without_a_description_is_left_out(tmp_path: Path) -> None:
    """A file whose index is truncated inside the audio track: FFmpeg knows that there is audio, but not which."""
    clip = media.video(tmp_path / "clip.mp4", audio=True)
    whole = clip.read_bytes()
    clip.write_bytes(whole[: whole.index(b"stsd", whole.index(b"soun"))])
    frames = frames_of(clip)
    with av.open(clip) as container:
        assert [stream.type for stream in container.streams if stream.codec_context is None] == ["audio"]
    sink = run(open_sink("video"), context(tmp_path, stem="out", path=clip), frames)
    assert any("audio stream 1 omitted: its description is missing" in note for note in sink.notes)
    assert len(decoded(sink.paths[0])) == len(frames)


# Odd names


@pytest.mark.parametrize("project", ["2024-01-01T12:00:00", "http:", "pipe:1", "100%d", "a?b#c", "caf\udce9"])
def test_folder_may_be_called_like_a_protocol(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, project: str) -> None:
    monkeypatch.chdir(tmp_path)
    folder = make_run_folder(Path(project))
    clip = make_clip(tmp_path / "sound.mp4", seconds=1)
    for name in WRITERS:
        sink = run(open_sink(name), context(folder, path=clip), frames_of(clip))
        assert sink.notes == [] or name in ("cvat", "label_studio")
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
    for name in {*WRITERS} - {"video", "images"}:
        sink = open_sink(name)
        sink.open(where)
        sink.write(found, None)
        sink.close()
    line = json.loads((tmp_path / "clip.jsonl").read_text("utf-8"))
    assert (line["source"], line["detections"][0]["class"]) == ("caf\udce9.png", "\ud800")
    assert json.loads((tmp_path / "clip.json").read_text("utf-8"))["categories"] == [{"id": 2, "name": "\ud800"}]
    assert (tmp_path / "clip.csv").read_text("utf-8").count("\\ud800") == 1


@pytest.mark.parametrize("encoder", ["aac", "srt", "h266", "", "lib\0x264", "\ud800"])
def test_encoder_that_is_no_video_encoder(tmp_path: Path, encoder: str) -> None:
    with pytest.raises(SinkError, match="no video encoder") as caught:
        run(open_sink("video", encoder=encoder), context(tmp_path), [frame()])
    assert "libx264" in str(caught.value)
    assert os.listdir(tmp_path) == []


def test_run_folder_with_a_null_byte(tmp_path: Path) -> None:
    with pytest.raises(SinkError, match="cannot create the run folder"):
        make_run_folder(tmp_path, "a\0b")


# Other runs, and folders that are deleted


def test_two_runs_never_write_into_one_folder(tmp_path: Path) -> None:
    clip = media.video(tmp_path / "clip.mp4", frames=60)
    options: dict[str, Any] = {"project": tmp_path, "name": "run", "exist_ok": True, "save_jsonl": True, "queue": 1}
    first = iter(Pipeline(clip, "squares", **options))
    next(first)
    with pytest.raises(SinkError, match=r"another run is writing into .*run\n.*--name"):
        Pipeline(clip, "squares", **options).run()
    assert sum(1 for _ in first) == 59
    assert len((tmp_path / "run" / "clip.jsonl").read_text().splitlines()) == 60
    for _ in Pipeline(clip, "squares", **options):
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


@pytest.mark.parametrize(
    "name,file", [("video", "clip.mp4.part"), ("jsonl", "clip.jsonl.part"), ("csv", "clip.csv.part")]
)
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
    pipeline = Pipeline(clip, "squares", project=tmp_path, name="run", save_txt=True, queue=1)
    with pytest.raises(SinkError, match="labels"):
        for number, _ in enumerate(pipeline):
            if number == 0:
                (tmp_path / "run").rename(tmp_path / "moved")
    assert not (tmp_path / "run" / "labels").exists()
