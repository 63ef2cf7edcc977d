"""Parquet: rows, null rows of empty frames, metadata, reading back, kills, full disks, and a missing package."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pyarrow")

import pyarrow.parquet

from framefuse import Pipeline
from framefuse.errors import CapabilityError, DecodeError, SinkError, SourceError
from framefuse.frame import View
from framefuse.prediction import Detections, FrameInfo, Result
from framefuse.sinks import open_sink, parquet
from framefuse.sinks.parquet import ABOUT, COLUMNS, FRAMES, SCHEMA, SHAPES, read_boxes
from framefuse.sinks.repair import repair_folder
from sink_frames import NAMES, NONE, context, detections, fill, frame, result

DISK_KB = 256
TWO = detections((1, 2, 30.5, 40, 0.5, 0), (5, 6, 50, 60, 0.25, 2))


def written(folder: Path, results: list[Result], *, close: bool = True, **facts: Any) -> Path:
    fill(open_sink("parquet"), replace(context(folder), **facts), results, close=close)
    return folder / "clip.parquet"


def clip(count: int) -> list[Result]:
    return [result(frame(index), NONE if index % 3 == 2 else TWO) for index in range(count)]


def test_rows_and_metadata(tmp_path: Path) -> None:
    run = {"model": "tiny", "options": {"conf": 0.01}}
    path = written(tmp_path, clip(4), run=run)
    assert os.listdir(tmp_path) == ["clip.parquet"]
    table = pyarrow.parquet.read_table(path)
    assert {name: str(kind) for name, kind in zip(table.schema.names, table.schema.types, strict=True)} == {
        name: {"float64": "double", "float32": "float", "bool_": "bool"}.get(kind, kind)
        for name, kind in COLUMNS.items()
    }
    rows = table.to_pylist()
    assert [row["frame"] for row in rows] == [0, 0, 1, 1, 2, 3, 3]
    facts = {
        "source": "clip.mp4",
        "frame": 0,
        "seconds": 0.0,
        "pts": 0,
        "time_base": "1/1000",
        "width": 96,
        "height": 64,
        "inferred": True,
    }
    box = {"class_id": 2, "class": NAMES[2], "confidence": 0.25, "x1": 5.0, "y1": 6.0, "x2": 50.0, "y2": 60.0}
    assert rows[1] == {**facts, **box, **dict.fromkeys(("tracker_id", "view", *SHAPES))}
    assert rows[4]["seconds"] == 0.08 and {rows[4][name] for name in list(COLUMNS)[8:]} == {None}
    about = json.loads(table.schema.metadata[ABOUT])
    assert about | run == about and about["schema"] == SCHEMA and about["source"] == "clip.mp4"
    assert read_boxes(path).about == about


def test_pandas_reads_it(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    table = pandas.read_parquet(written(tmp_path, clip(3)))
    assert table.dropna(subset="class_id")["class"].tolist() == ["person", NAMES[2]] * 2


@pytest.mark.parametrize("count", [1, 2, FRAMES - 1, FRAMES, 3 * FRAMES + 7])
def test_reading_gives_what_was_written(tmp_path: Path, count: int) -> None:
    rng = np.random.default_rng(count)
    results = []
    for index in range(count):
        number = int(rng.integers(0, 4))
        views = (View((0, 0, 48, 64), "left"), View((48, 0, 48, 64), "rïght"))
        found = Detections(
            rng.random((number, 4), np.float32) * 100,
            rng.random(number, np.float32),
            rng.integers(0, 3, number),
            NAMES,
            tracker_id=rng.integers(-1, 5, number),
            view=rng.integers(0, 2, number),
        )
        info = FrameInfo(index * 2, None if index % 5 == 4 else index * 512, Fraction(1, 12800), 96, 64, "a/clip.mp4")
        results.append(Result(info, found, views=views))
    table = read_boxes(written(tmp_path, results))
    assert table.frames == [one.frame for one in results]
    assert len(table) == count and table.starts[-1] == len(table.detections)
    tracked = any((one.detections.tracker_id >= 0).any() for one in results)  # type: ignore[operator]
    for one, back in zip(results, table, strict=True):
        found, again = one.detections, back.detections
        np.testing.assert_array_equal(found.xyxy, again.xyxy)
        np.testing.assert_array_equal(found.confidence, again.confidence)
        np.testing.assert_array_equal(found.class_id, again.class_id)
        assert again.names == NAMES
        if tracked:
            np.testing.assert_array_equal(found.tracker_id, again.tracker_id)
    tags = [one.views[number].tag for one in results for number in one.detections.view]  # type: ignore[union-attr]
    if tags:
        assert [table.tags[number] for number in table.detections.view] == tags  # type: ignore[union-attr]
    assert table[-1].frame == results[-1].frame
    with pytest.raises(IndexError):
        table[count]


def test_sources_that_count_alike_stay_apart(tmp_path: Path) -> None:
    """Images of a folder; the name of one is not text."""
    infos = [FrameInfo(0, None, Fraction(1, 1000), 96, 64, name) for name in ("a.png", "b.png", "c\udce9.png")]
    table = read_boxes(
        written(tmp_path, [Result(info, found) for info, found in zip(infos, (TWO, TWO, NONE), strict=True)])
    )
    assert [one.source_id for one in table.frames] == ["a.png", "b.png", "c\\udce9.png"]
    assert table.starts.tolist() == [0, 2, 4, 4]
    assert table.detections.tracker_id is None and table.detections.view is None


def test_many_boxes_are_written_as_they_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "ROWS", 1000)
    monkeypatch.setattr(parquet, "GROUP", 3000)
    crowd = detections(*[(10, 20, 60, 50, 0.875, 1)] * 300)
    sink = open_sink("parquet")
    sink.open(context(tmp_path))
    sizes = []
    for index in range(40):
        sink.write(result(frame(index), crowd), None)
        sizes.append((tmp_path / "clip.arrows.part").stat().st_size)
    assert len(set(sizes)) == 11
    sink.close()
    groups = pyarrow.parquet.ParquetFile(tmp_path / "clip.parquet").metadata.num_row_groups
    assert groups == 4
    assert len(read_boxes(tmp_path / "clip.parquet").detections) == 12_000


def test_run_without_frames_leaves_no_file(tmp_path: Path) -> None:
    written(tmp_path, [])
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("beside", [False, True])
def test_killed_run_is_repaired(tmp_path: Path, beside: bool) -> None:
    written(tmp_path, clip(3 * FRAMES + 5), close=False)
    part = tmp_path / "clip.arrows.part"
    assert [one.frame.index for one in read_boxes(part)] == list(range(3 * FRAMES))
    if beside:  # the kill came while the file was completed
        (tmp_path / "clip.parquet.part").write_bytes(b"PAR1")
    (done,) = repair_folder(tmp_path)
    assert str(done) == f"{part}: completed as clip.parquet, 150 rows"
    assert os.listdir(tmp_path) == ["clip.parquet"]
    assert [one.frame.index for one in read_boxes(tmp_path / "clip.parquet")] == list(range(3 * FRAMES))
    assert list(repair_folder(tmp_path)) == []


def test_stream_that_ends_anywhere(tmp_path: Path) -> None:
    """What is whole before the cut is kept."""
    written(tmp_path, clip(3 * FRAMES), close=False)
    part = tmp_path / "clip.arrows.part"
    content = part.read_bytes()
    for end in [*range(0, len(content), 211), len(content)]:
        part.write_bytes(content[:end])
        done = list(repair_folder(tmp_path))
        if done:
            table = read_boxes(tmp_path / "clip.parquet")
            assert len(table) in (FRAMES, 2 * FRAMES, 3 * FRAMES)
            (tmp_path / "clip.parquet").unlink()
    assert len(table) == 3 * FRAMES


def test_files_of_others_stay(tmp_path: Path) -> None:
    table = pyarrow.table({"a": [1]})
    with pyarrow.ipc.new_stream(str(tmp_path / "theirs.arrows.part"), table.schema) as writer:
        writer.write_table(table)
    (tmp_path / "text.arrows.part").write_text("notes")
    (tmp_path / "theirs.parquet.part").write_text("notes")
    assert list(repair_folder(tmp_path)) == []
    assert len(os.listdir(tmp_path)) == 3


def test_full_disk_keeps_what_was_written(full_disk: Path) -> None:
    sink = open_sink("parquet")
    sink.open(context(full_disk))
    rng = np.random.default_rng(0)
    with pytest.raises(SinkError, match="No space left on device"):
        for index in range(10_000):
            noise = rng.random((200, 4), np.float32) * 60
            found = Detections(noise, noise[:, 0], np.zeros(200, np.int64), NAMES)
            sink.write(result(frame(index), found), None)
    with pytest.raises(SinkError, match="framefuse repair"):
        sink.close()
    assert os.listdir(full_disk) == ["clip.arrows.part"]
    kept = len(read_boxes(full_disk / "clip.arrows.part"))
    assert 0 < kept <= index
    (again,) = repair_folder(full_disk)
    assert again.failed and os.listdir(full_disk) == ["clip.arrows.part"]


def test_disk_without_room_for_the_last_rows(full_disk: Path) -> None:
    """They are lost, and nothing before them."""
    sink = open_sink("parquet")
    sink.open(context(full_disk))
    for one in clip(FRAMES + 1):
        sink.write(one, None)
    space = os.statvfs(full_disk)
    (full_disk / "others").write_bytes(bytes(space.f_bavail * space.f_bsize))
    with pytest.raises(SinkError, match="No space left"):
        sink.close()
    assert len(read_boxes(full_disk / "clip.arrows.part")) in (FRAMES, FRAMES + 1)
    (full_disk / "others").unlink()
    assert [one.failed for one in repair_folder(full_disk)] == [False]
    assert len(read_boxes(full_disk / "clip.parquet")) in (FRAMES, FRAMES + 1)


def test_unwritable_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SinkError, match="Not a directory"):
        written(tmp_path / "file" / "run", clip(1))


def test_without_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(CapabilityError, match=r"pyarrow is not installed\n.*framefuse\[parquet\]"):
        Pipeline("synthetic://street?frames=3", "squares", engine="null", save_parquet=True, project=tmp_path)
    assert os.listdir(tmp_path) == []


def test_files_that_are_not_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "other.parquet"
    with pytest.raises(SourceError, match="No such file"):
        read_boxes(path)
    path.write_bytes(b"")
    with pytest.raises(DecodeError, match="not a whole Parquet file of framefuse"):
        read_boxes(path)
    pyarrow.parquet.write_table(pyarrow.table({"frame": [1]}), path)
    with pytest.raises(DecodeError, match="not a whole Parquet file of framefuse"):
        read_boxes(path)
    whole = written(tmp_path, clip(3)).read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DecodeError, match="not a whole Parquet file"):
        read_boxes(path)
    path.write_bytes(whole[:8] + bytes(200) + whole[208:])
    with pytest.raises(DecodeError, match="not a whole Parquet file"):
        read_boxes(path)
    with pytest.raises(SourceError, match="Is a directory"):
        read_boxes(tmp_path)
    monkeypatch.setattr(parquet, "SCHEMA", SCHEMA + 1)
    path.write_bytes(whole)
    with pytest.raises(DecodeError, match="schema 2"):
        read_boxes(path)


def test_pipeline_names_model_and_options(tmp_path: Path) -> None:
    options = {"engine": "null", "conf": 0.125, "project": tmp_path, "name": "run"}
    pipeline = Pipeline("synthetic://street?frames=40&size=160x96", "squares", save_parquet=True, **options)
    results = list(pipeline)
    (path,) = (path for path in pipeline.report.outputs if str(path).endswith(".parquet"))
    table = read_boxes(path)
    assert table.frames == [one.frame for one in results]
    assert table.about["model"] == "squares" and table.about["options"]["conf"] == 0.125
    assert table.about["source"].startswith("synthetic://street")
