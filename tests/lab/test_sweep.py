"""framefuse sweep: what is recorded once and replayed equals what the pipeline finds with each setting."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from test_tracks import write_mot

from framefuse import Pipeline, Settings
from framefuse.cli.app import main
from framefuse.cli.synth import write_clip
from framefuse.config import settings_from
from framefuse.errors import ConfigError, FramefuseError, SinkError, SourceError, UsageError
from framefuse.lab.evaluation import validate
from framefuse.lab.sweep import page
from framefuse.lab.sweep.record import COMMON, Choice, Recording, choices, read_grid, record
from framefuse.lab.sweep.replay import Tracks, kept, replay, track, unmatched
from framefuse.models import find_model
from framefuse.models.card import read_card
from framefuse.prediction import Detections, FrameInfo, Result
from framefuse.sinks import SinkContext
from framefuse.sinks.parquet import ParquetSink
from framefuse.sources import SourceInfo
from framefuse.world import World
from training.squares_clip import squares_clip

pytest.importorskip("pyarrow")

CARD = read_card(find_model("scout-n"))
BASE = Settings(imgsz=[320], device="cpu")
SIZE = (480, 288)


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    world = World("street", frames=30, size=SIZE, seed=5, complexity=0.8)
    return write_clip(world, tmp_path_factory.mktemp("sweep"))[0]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def recording(clip: Path, cache: Path) -> Recording:
    return record(str(clip), CARD, BASE, [0.3, 0.7], cache=cache)


def rows_of(results: Iterator[Result] | Pipeline) -> list[Any]:
    found = []
    for result in results:
        one = result.detections
        ids = [None] * len(one) if one.tracker_id is None else one.tracker_id.tolist()
        found += zip(
            [result.frame.index] * len(one), map(tuple, one.xyxy.tolist()), one.confidence.tolist(),
            one.class_id.tolist(), ids, strict=True,
        )  # fmt: skip
    return found


@pytest.mark.parametrize(
    "values",
    [
        {"conf": 0.2, "iou": 0.3},
        {"conf": 0.01, "iou": 0.5},
        {"conf": 0.05, "iou": 0.8, "classes": ["car", "person"], "max_det": 3},
        {"conf": 0.1, "iou": 0.7, "min_area": 0.01},
        {"conf": 0.3, "iou": 0.6, "min_area": 900.0, "track": "bytetrack"},
        {"conf": 0.05, "iou": 0.7, "track": "ocsort", "track_buffer": 0.2, "track_low": 0.15},
        {"conf": 0.55, "iou": 0.4, "track": "bytetrack", "track_new": 0.4, "track_confirm": 1, "classes": ["car"]},
        {"conf": 0.25, "iou": 0.7, "track": "ocsort", "max_det": 4, "track_agnostic": True},
    ],
)
def test_replay_equals_the_pipeline(values: dict[str, Any], recording: Recording, clip: Path) -> None:
    (choice,) = choices({field: [value] for field, value in values.items()}, BASE, CARD)
    table, rows, ids = tracking(recording, choice)
    shown = table.found.confidence[rows] > np.float32(choice.settings.conf)
    rows, ids = rows[shown], ids[shown]
    one = table.found[rows]
    frames = [table.frames[k].index for k in table.frame[rows]]
    tracked = ids.tolist() if choice.settings.track else [None] * len(ids)
    ours = list(
        zip(frames, map(tuple, one.xyxy.tolist()), one.confidence.tolist(), one.class_id.tolist(), tracked, strict=True)
    )
    with Pipeline(clip, "scout-n", settings=settings_from(values, base=BASE)) as pipeline:
        theirs = rows_of(pipeline)
    assert ours and ours == theirs

    counted = replay([recording], [choice], CARD)[0][0]
    assert counted["boxes"] == len(theirs)
    if choice.settings.track:
        assert counted["tracks"] == len({row[4] for row in theirs} - {-1})


def test_a_recording_is_made_once(tmp_path: Path) -> None:
    clip, base = tmp_path / "clip.mp4", settings_from({"engine": "null"}, base=BASE)
    squares_clip(clip, frames=6, size=SIZE, seed=1)
    again = partial(record, str(clip), CARD, cache=tmp_path / "cache")
    first = again(base, [0.7])
    assert first.inferred and first.frames == 6 and first.ious == {*COMMON}
    second = again(settings_from({"conf": 0.9, "track": "ocsort", "save_csv": True}, base=base), COMMON)
    assert not second.inferred and second.seconds == first.seconds and second.folder == first.folder
    more = again(base, [0.55])
    assert more.inferred and more.folder == first.folder and more.ious == {*COMMON, 0.55}
    assert again(settings_from({"vid_stride": 2}, base=base), [0.7]).frames == 3
    other = read_card(find_model("scout-n-int8"))
    assert record(str(clip), other, base, [0.7], cache=tmp_path / "cache").folder != first.folder
    os.utime(clip, ns=(1, 1))
    touched = again(base, [0.7])
    assert touched.inferred and touched.folder != first.folder
    (touched.folder / "about.json").write_text("{")
    assert again(base, [0.7]).inferred
    touched.boxes(0.7).unlink()
    assert again(base, [0.7]).inferred and touched.boxes(0.7).exists()


def test_what_cannot_be_recorded(tmp_path: Path) -> None:
    for source, error in (
        ("rtsp://localhost/x", UsageError), ("0", UsageError), ("image.png", UsageError), ("gone.mp4", SourceError)
    ):  # fmt: skip
        with pytest.raises(error):
            record(source, CARD, BASE, [0.7], cache=tmp_path / "cache")
    broken = tmp_path / "broken.mp4"
    broken.write_bytes(b"")
    with pytest.raises(SourceError):
        record(str(broken), CARD, BASE, [0.7], cache=tmp_path / "cache")
    (tmp_path / "file").write_text("")
    with pytest.raises(SinkError, match="cannot write the recording"):
        record("synthetic://street?frames=1", CARD, BASE, [0.7], cache=tmp_path / "file")


def written(tmp_path: Path, frames: int, rows: list[tuple[int, float, float]]) -> Recording:
    """A recording of boxes (frame, left, confidence) of 20x20 pixels and class 0 in frames of 100x100 at 10 fps."""
    sink = ParquetSink()
    sink.open(SinkContext(tmp_path, SourceInfo("x", "file"), {0: "car"}, "iou-0.7"))
    for number in range(frames):
        mine = sorted((row for row in rows if row[0] == number), key=lambda row: -row[2])
        found = Detections(
            np.array([(left, 40, left + 20, 60) for _, left, _ in mine], np.float32).reshape(-1, 4),
            np.array([confidence for *_, confidence in mine], np.float32),
            np.zeros(len(mine), np.int64),
            {0: "car"},
        )
        sink.write(Result(FrameInfo(number, number, Fraction(1, 10), 100, 100, "x"), found), None)
    sink.close()
    return Recording("x", tmp_path, frames)


@pytest.mark.slow
def test_false_starts_and_fragments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A car for 2 s, gone for 1.5 s, back at the same place; a ghost of three frames; one that begins at the end."""
    rows = [(n, 10.0, 0.9) for n in (*range(20), *range(35, 60))]
    rows += [(n, 70.0, 0.9) for n in (24, 25, 26)] + [(n, 75.0, 0.8) for n in (58, 59)]
    recording = written(tmp_path, 60, rows)
    grid = {"conf": [0.5, 0.95], "track": ["bytetrack"], "track_confirm": [1], "track_buffer": [0.5, 2.0]}
    every = choices(grid, BASE, CARD)
    numbers, trackings = replay([recording], every, CARD)
    monkeypatch.setattr("framefuse.lab.sweep.replay.SMALL", 0)
    assert replay([recording], every, CARD)[0] == numbers  # in several processes
    assert [one["tracks"] for one in numbers] == [4, 3, 0, 0]
    assert [one["false_starts"] for one in numbers] == [1, 1, 0, 0]
    assert [one["fragments"] for one in numbers] == [1, 0, 0, 0]
    assert len(trackings) == 2
    old, new = (Tracks.of(*tracking(recording, choice), 0.5) for choice in every[:2])
    assert len(unmatched(old, new)) == len(unmatched(new, old)) == 0
    assert unmatched(old, Tracks.of(old.table, old.rows, np.full(len(old.rows), -1), 0.5)).tolist() == [0, 1, 2, 3]


def tracking(recording: Recording, choice: Choice) -> tuple[Any, ...]:
    """Table, rows and their ids."""
    table, rows = kept(recording, choice.settings)
    return table, rows, track(table, rows, choice.settings)


def test_no_boxes_and_no_frames(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    empty = Recording("y", tmp_path)
    every = choices({"conf": [0.2, 0.5], "track": ["ocsort"]}, BASE, CARD)
    nothing = {"boxes": 0, "tracks": 0, "false_starts": 0, "fragments": 0}
    recording = written(tmp_path / "a", 5, [])
    assert replay([recording, empty], every, CARD)[0] == [nothing] * 2
    assert replay([empty], every, CARD)[0] == [nothing] * 2
    assert [one.tracks for one in page.compare([recording, empty], *every)] == [0, 0]


@pytest.mark.slow
def test_visits_are_the_events_of_the_pipeline(recording: Recording, clip: Path, tmp_path: Path) -> None:
    zones = tmp_path / "zones.yaml"
    zones.write_text(
        "zones:\n  left: {points: '0,0,0.5,1'}\n  low: {points: '0.2,0.6,0.6,0.3', anchor: centre, classes: [car]}\n"
        "lines:\n  middle: {from: [0.5, 0], to: [0.5, 1]}\n  edge: {from: [0, 0.7], to: [1, 0.6], classes: [person]}\n"
    )
    grid = {"track_new": [0.4], "track": ["bytetrack", "ocsort"], "conf": [0.2, 0.7], "zones": [zones, None]}
    every = choices(grid, BASE, CARD)
    numbers, trackings = replay([recording], every, CARD)
    assert len(trackings) == 2
    for choice, counted in zip(every, numbers, strict=True):
        if choice.settings.zones is None:
            assert "entered" not in counted
            continue
        with Pipeline(clip, "scout-n", settings=choice.settings) as pipeline:
            ends = [event for result in pipeline for event in result.events if event.kind == "end"]
        assert pipeline._events is not None
        ends += [event for event in pipeline._events.ended if event.kind == "end"]
        visited = sum(len(event.visits) for event in ends), sum(len(event.crossings) for event in ends)
        assert sum(visited) > 4
        assert (counted["entered"], counted["crossed"]) == visited
    with pytest.raises(UsageError, match="nothing is tracked"):
        replay([recording], choices({"zones": [zones]}, BASE, CARD), CARD)
    zones.write_text("zones: 3\n")
    with pytest.raises(ConfigError):
        replay([recording], every, CARD)


@pytest.mark.slow
def test_truth_gives_the_scores_of_val(cache: Path) -> None:
    pytest.importorskip("trackeval")
    uri = "synthetic://street?seed=4&frames=16&size=480x288&complexity=0.8"
    found = record(uri, CARD, BASE, [0.7], cache=cache)
    grid = {"conf": [0.3, 0.6], "track": ["bytetrack"], "classes": [["car", "person"]]}
    every = choices(grid, BASE, CARD)
    numbers, _ = replay([found], every, CARD)
    for choice, counted in zip(every, numbers, strict=True):
        scores = validate("scout-n", uri, settings=choice.settings).tracks
        assert scores is not None and scores.hota > 0.05
        assert (counted["hota"], counted["idf1"]) == pytest.approx((100 * scores.hota, 100 * scores.idf1))
    gained, lost = page.compare([found], *choices({"track": [None, "bytetrack"]}, BASE, CARD))
    assert gained.tracks == len(gained.shown) > 0 == lost.tracks
    assert "data:image/jpeg;base64," in gained.shown[0]


@pytest.mark.parametrize(
    ("field", "text", "message"),
    [
        ("conf", "0.2,high", "--conf is 'high'"),
        ("conf", "0.2,", "--conf is ''"),
        ("conf", "0.001", "conf is 0.001"),
        ("iou", "1.5", "--iou is '1.5'"),
        ("track", "bytetrak", "--track is 'bytetrak'"),
        ("min_area", "-1", "--min-area is '-1'"),
    ],
)
def test_bad_values(field: str, text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        read_grid(None, {field: text})
    assert message in caught.value.message and caught.value.remedy
    path = tmp_path / "grid.yaml"
    path.write_text(yaml.safe_dump({field: text.split(",")}))
    with pytest.raises(ConfigError) as found:
        read_grid(path, {})
    assert "grid.yaml, line 1" in found.value.message


def test_grids(tmp_path: Path) -> None:
    path = tmp_path / "grid.yaml"
    path.write_text("conf: [0.2, 0.2, 0.4]\nclasses: [[car, person], car, all]\ntrack: [none, ocsort]\n")
    grid = read_grid(path, {"conf": "0.3,0.5"})
    assert grid == {"conf": [0.3, 0.5], "classes": [["car", "person"], ["car"], None], "track": [None, "ocsort"]}
    every = choices(grid, BASE, CARD)
    assert [choice.number for choice in every] == list(range(1, 13))
    assert every[0].settings.classes == [
        number for name in ("car", "person") for number, known in CARD.names.items() if known == name
    ]
    assert len({choice.key for choice in every}) == 6
    for wrong, message in (
        ({"conf": [0.3] * 400, "iou": [0.5] * 400}, "160,000 settings"),
        ({"classes": [["unicorn"]]}, "unicorn"),
    ):
        with pytest.raises(UsageError, match=message):
            choices(wrong, BASE, CARD)
    with pytest.raises(UsageError, match="tiles, roi or stereo"):
        choices({}, settings_from({"tiles": "2x2"}, base=BASE), CARD)
    suppressed = replace(CARD, layout="yolox")
    assert len(choices({"iou": [0.3, 0.5]}, BASE, suppressed)) == 2
    with pytest.raises(UsageError, match="needs no NMS"):
        choices({"iou": [0.3, 0.5]}, BASE, replace(CARD, layout="end2end"))
    with pytest.raises(UsageError, match=r"conf is 0\.001"):
        choices({}, settings_from({"conf": 0.001}, base=BASE), CARD)
    with pytest.raises(UsageError, match="agnostic_nms and classes"):
        choices(grid, settings_from({"agnostic_nms": True}, base=BASE), CARD)
    path.write_text("conff: 1\n")
    with pytest.raises(ConfigError, match=r"conff is no field of a grid \(file .*, line 1"):
        read_grid(path, {})
    for broken in ("- 1\n", "conf: [\n"):
        path.write_text(broken)
        with pytest.raises(FramefuseError):
            read_grid(path, {})
    with pytest.raises(ConfigError, match="cannot use the grid"):
        read_grid(tmp_path / "gone.yaml", {})


def test_the_command(
    clip: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    words = ["sweep", str(clip), "scout-n", "--imgsz", "320", "--conf", "0.1,0.3,0.95", "--track", "bytetrack,ocsort"]
    assert main([*words, "--track-new", "0.3", "--compare", "1", "5", "--choose", "3", "--rows", "4"]) == 0
    out, err = capsys.readouterr()
    head, *rows = out.splitlines()
    assert head.split() == ["setting", "conf", "track", "boxes", "tracks", "false", "starts", "fragments"]
    assert len(rows) == 4 and "2 more rows" in err and "30 frames, inferred in" in err and "2 trackings computed" in err
    folder = tmp_path / "runs/sweep/sweep"
    table = list(csv.DictReader((folder / "sweep.csv").read_text().splitlines()))
    assert [row["conf"] for row in table] == ["0.1", "0.1", "0.3", "0.3", "0.95", "0.95"]
    html = (folder / "sweep.html").read_text()
    assert (
        "Setting 1 has them, setting 5 has not" in html
        and "data:image/jpeg;base64," in html
        and "cannot be read" not in html
    )

    assert main([*words, "--json", "--by", "fragments"]) == 0
    out, err = capsys.readouterr()
    assert "nothing inferred" in err
    found = [row["fragments"] for row in json.loads(out)["settings"]]
    assert found == sorted(found)

    assert main(["predict", str(clip), "--config", str(folder / "chosen.yaml"), "--save-csv", "--name", "p"]) == 0
    lines = next(Path("runs/predict/p").glob("*.csv")).read_text().splitlines()
    assert len(lines) - 1 == int(table[2]["boxes"])
    capsys.readouterr()
    for wrong in (["--choose", "9"], ["--by", "beauty"], ["--compare", "0", "1"]):
        assert main([*words, *wrong]) == 2
        assert capsys.readouterr().err.count("->") == 1
    assert main(["sweep", "scout-n"]) == 2


@pytest.mark.slow
def test_a_sequence_of_motchallenge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("trackeval")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for seed in (3, 4):
        world = World("street", frames=12, size=(320, 192), seed=seed, complexity=0.9)
        write_mot(tmp_path / "MOT" / f"MOT17-0{seed}", world)
    words = ["sweep", "MOT", "scout-n", "--imgsz", "320", "--conf", "0.2,0.7", "--track", "none,ocsort", "--json"]
    assert main([*words, "--classes", "person", "--track-new", "0.2"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert all("12 frames, inferred in" in note for note in found["notes"][:2])
    rows = found["settings"]
    assert "hota" in rows[0] and rows[0]["hota"] >= rows[1]["hota"] >= 0 and "hota" not in rows[3]
    settings = settings_from({**BASE.model_dump(exclude_unset=True), "conf": 0.2, "track": "ocsort", "track_new": 0.2})
    scores = validate("scout-n", "MOT", settings=settings).tracks
    assert scores is not None
    (same,) = (row["hota"] for row in rows if row["track"] and row["conf"] == 0.2)
    assert same == pytest.approx(100 * scores.hota)
    assert yaml.safe_load(Path("runs/sweep/sweep/chosen.yaml").read_text())["track"] == "ocsort"


def test_without_a_tracker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    words = ["sweep", "synthetic://street?frames=4&size=320x192", "scout-n", "--imgsz", "320"]
    assert main([*words, "--by", "boxes", "--conf", "0.2,0.1"]) == 0
    assert capsys.readouterr().out.splitlines()[0].split() == ["setting", "conf", "boxes"]
    assert yaml.safe_load(Path("runs/sweep/sweep/chosen.yaml").read_text())["conf"] == 0.1
