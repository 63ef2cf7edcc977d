"""Sinks by name, run folders, file names, and several sinks at once."""

from __future__ import annotations

import threading
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from framefuse.errors import SinkError, UsageError
from framefuse.frame import Frame
from framefuse.prediction import FrameInfo, Result
from framefuse.sinks import SINKS, Sink, SinkSet, open_sink, stem_of
from framefuse.sinks.run_folder import UniqueNames, make_run_folder
from framefuse.sources import SourceInfo
from sink_frames import MS, NAMES, ONE, context, frame, result, run


def test_open_sink_by_name() -> None:
    for name in set(SINKS) - (set() if find_spec("pyarrow") else {"parquet"}):
        options = {"function": print} if name == "callback" else {}
        sink = open_sink(name, **options)
        assert sink.name == name
    with pytest.raises(UsageError, match="no sink is called 'mp3'") as caught:
        open_sink("mp3")
    assert "jsonl" in str(caught.value)


def test_callback_and_null(tmp_path: Path) -> None:
    seen: list[tuple[int, bool]] = []

    def note(one: Result, of: Frame | None) -> None:
        seen.append((one.frame.index, of is not None))

    for needs_frame in (False, True):
        run(open_sink("callback", function=note, needs_frame=needs_frame), context(tmp_path), [frame(0), frame(1)])
    assert seen == [(0, False), (1, False), (0, True), (1, True)]
    null: Any = run(open_sink("null"), context(tmp_path), [frame(0), frame(1)])
    assert (null.frames, null.detections) == (2, 2)


def test_run_folders_are_numbered(tmp_path: Path) -> None:
    project = tmp_path / "runs" / "predict"
    assert [make_run_folder(project).name for _ in range(3)] == ["predict", "predict2", "predict3"]
    assert [make_run_folder(project, "night").name for _ in range(2)] == ["night", "night2"]
    assert make_run_folder(project, "night", exist_ok=True).name == "night"


def test_run_folders_are_never_shared(tmp_path: Path) -> None:
    start = threading.Barrier(8)
    found: list[Path] = []

    def make() -> None:
        start.wait()
        found.extend(make_run_folder(tmp_path) for _ in range(10))

    threads = [threading.Thread(target=make) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 80


@pytest.mark.parametrize("exist_ok", [False, True])
def test_run_folder_that_cannot_be_made(tmp_path: Path, exist_ok: bool) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SinkError, match=r"cannot create the run folder .*file"):
        make_run_folder(tmp_path / "file", exist_ok=exist_ok)
    with pytest.raises(SinkError, match="cannot create the run folder /proc/"):
        make_run_folder(Path("/proc/runs"), exist_ok=exist_ok)


def test_unique_names() -> None:
    names = UniqueNames()
    assert [names.take(name) for name in ("a", "a", "A", "a_2", "b")] == ["a", "a_2", "A_3", "a_2_2", "b"]


@pytest.mark.parametrize(
    "uri,kind,path,stem",
    [
        ("/data/My clip.v2.mp4", "file", "/data/My clip.v2.mp4", "My_clip.v2"),
        ("rtsp://cam-1.local:554/live/main?x=1", "live", None, "cam-1.local_554_live_main_x_1"),
        ("0", "camera", None, "camera_0"),
        ("/dev/video2", "camera", None, "dev_video2"),
        ("photos/*.jpg", "images", None, "images"),
        ("array", "array", None, "array"),
        ("...", "file", "...", "file"),
    ],
)
def test_stems_are_safe_file_names(uri: str, kind: str, path: str | None, stem: str) -> None:
    assert stem_of(SourceInfo(uri, kind, path=None if path is None else Path(path))) == stem


def test_sink_set_gives_each_source_its_own_files(tmp_path: Path) -> None:
    sources = [SourceInfo(f"{folder}/clip.mp4", "file", path=Path(f"{folder}/clip.mp4")) for folder in "ab"]
    images = SourceInfo("photos", "images")
    made: list[str] = []

    def make(source: SourceInfo) -> list[Sink]:
        made.append(source.uri)
        return [open_sink("jsonl"), open_sink("null")]

    with closing(SinkSet(make, tmp_path, NAMES)) as sinks:
        for i in range(3):
            for source in sources:
                info = FrameInfo(i, i, MS, 96, 64, source.uri)
                sinks.write(Result(info, ONE), None, source)
        for i in range(3):
            sinks.write(Result(FrameInfo(i, None, MS, 96, 64, f"photos/{i}.jpg"), ONE), None, images)
        sinks.end(sources[0].uri)
    assert made == ["a/clip.mp4", "b/clip.mp4", "photos"]
    assert sinks.paths == [tmp_path / "clip.jsonl", tmp_path / "clip_2.jsonl", tmp_path / "images.jsonl"]
    assert [len(path.read_text().splitlines()) for path in sinks.paths] == [3, 3, 3]


def test_sink_set_goes_on_without_a_sink_that_fails(tmp_path: Path) -> None:
    def fail(one: Result, _: Frame | None) -> None:
        if one.frame.index == 2:
            raise ValueError("the callback's own")

    source = SourceInfo("clip.mp4", "file", path=Path("clip.mp4"))
    sinks = SinkSet(lambda _: [open_sink("callback", function=fail), open_sink("jsonl")], tmp_path, NAMES)
    errors = []
    for i in range(4):
        try:
            sinks.write(result(frame(i)), None, source)
        except ValueError as error:
            errors.append((i, str(error)))
    sinks.close()
    sinks.close()
    assert errors == [(2, "the callback's own")]
    assert len((tmp_path / "clip.jsonl").read_text().splitlines()) == 4


def test_sink_set_reports_an_output_that_cannot_be_opened_and_writes_the_others(tmp_path: Path) -> None:
    (tmp_path / "clip.csv").mkdir()
    source = SourceInfo("clip.mp4", "file", path=Path("clip.mp4"))
    sinks = SinkSet(lambda _: [open_sink("csv"), open_sink("jsonl")], tmp_path, NAMES)
    with pytest.raises(SinkError, match=r"clip\.csv"):
        sinks.write(result(frame(0)), None, source)
    sinks.write(result(frame(1)), None, source)
    sinks.close()
    assert (tmp_path / "clip.jsonl").read_text().count("\n") >= 1
