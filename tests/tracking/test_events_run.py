"""Events in whole runs: counts that equal the exact truth, files that end with whole lines, and what is said."""

from __future__ import annotations

import io
import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from framefuse import Pipeline, Report, Result, Settings
from framefuse.cli.app import main
from framefuse.errors import ConfigError, SinkError, UsageError
from framefuse.frame import Frame
from framefuse.prediction import Change, Detections, Event, FrameInfo
from framefuse.runtime.program import FrameResult
from framefuse.runtime.tracking import Events, Tracks
from framefuse.sinks import open_sink
from framefuse.sinks.records import EventsSink, thumbnail
from framefuse.sinks.repair import repair_folder
from framefuse.sources import SourceInfo
from framefuse.tracking.events import Watch
from framefuse.tracking.tally import Tally
from framefuse.tracking.zones import Line, Places, Zone
from framefuse.world import World
from sink_frames import context, frame
from sink_frames import result as result_of

HALF = "zones: {right: {points: '0.5,0,0.5,1'}}\nlines: {middle: {from: [0.5, 1], to: [0.5, 0]}}"
SIZE = (320, 240)
Array = np.ndarray[Any, Any]


def drive(frames: int = 40, still: int = 0) -> list[Array]:
    """A red square that crosses a grey frame from left to right, then stands still; (240, 320, 3) BGR."""
    xs = [*np.linspace(20, 240, frames).astype(int).tolist(), *[240] * still]
    images = np.full((len(xs), SIZE[1], SIZE[0], 3), 90, np.uint8)
    for image, x in zip(images, xs, strict=True):
        image[80:140, x : x + 60] = (52, 60, 228)
    return list(images)


@pytest.fixture
def zones(tmp_path: Path) -> Path:
    path = tmp_path / "zones.yaml"
    path.write_text(HALF)
    return path


def lines(path: Path) -> list[dict[str, Any]]:
    text = path.read_text()
    assert text.endswith("\n")
    return [json.loads(line) for line in text.splitlines()]


def said(events: Sequence[Event]) -> list[str]:
    return [f"{event.kind}: " + ", ".join(map(str, event.changes)) for event in events]


def test_zones_are_drawn_in_what_is_saved(zones: Path, tmp_path: Path) -> None:
    Pipeline(drive(2), "squares", zones=zones, save=True, project=tmp_path, name="run").run()
    paths = list((tmp_path / "run").glob("*.png"))
    assert len(paths) == 2
    for path in paths:
        image = np.asarray(Image.open(path))
        assert 0.2 < (image[20:220, 158:164] == 255).all(axis=2).any(axis=1).mean() < 0.9
        assert (image[20:220, 100:150] != 255).any(axis=2).all()


def test_events_come_in_the_loop(zones: Path) -> None:
    pipeline = Pipeline(drive(), "squares", zones=zones)
    results = list(pipeline)
    events = [event for result in results for event in result.events]
    assert said(events) == ["new: ", "update: entered right, crossed middle in"]
    assert said(pipeline.ended) == ["end: source ended"]
    (end,) = pipeline.ended
    assert end.name == "red" and end.thumbnail is None and end.frame == 39
    assert events[1].seconds == results[events[1].frame].frame.index / 30
    report = pipeline.report
    assert "track bytetrack: needed for zones" in report.choices
    assert report.events is not None and report.events.lines == {"middle": {"in": {"red": 1}, "out": {}}}
    assert any("frames have no time" in text for text in report.warnings)
    table = report.table()
    assert "tracks   1 red" in table and "line     middle: 1 in (1 red), 0 out" in table
    assert "zone     right: 1 visit" in table


@pytest.mark.slow
@pytest.mark.parametrize("tiles", [None, "1x2"])
def test_what_both_eyes_show_is_one_event(tmp_path: Path, tiles: str | None) -> None:
    zones = tmp_path / "zones.yaml"
    zones.write_text("zones: {right: {points: '0.25,0,0.25,1'}}\nlines: {middle: {from: [0.25, 1], to: [0.25, 0]}}")
    both = [np.hstack((image, np.roll(image, -6, 1))) for image in drive()]
    pipeline = Pipeline(both, "squares", zones=zones, stereo="sbs", tiles=tiles)
    results = list(pipeline)
    assert all(len(result.detections) == 2 for result in results)
    events = [event for result in results for event in result.events]
    assert said(events) == ["new: ", "update: entered right, crossed middle in"]
    assert len(pipeline.ended) == 1 and pipeline.ended[0].xyxy[2] <= SIZE[0]


def test_without_the_setting_there_are_no_events() -> None:
    pipeline = Pipeline(drive(5), "squares", track="bytetrack")
    assert all(result.events == () for result in pipeline) and pipeline.ended == [] and pipeline.report.events is None


def test_files_and_report(zones: Path, tmp_path: Path) -> None:
    clip = tmp_path / "clip.mp4"
    write_clip(clip, drive(40, still=30))
    settings: dict[str, Any] = {"project": tmp_path, "name": "run", "stationary": 0.5, "recheck": 0.3}
    pipeline = Pipeline(str(clip), "squares", zones=zones, save_events=True, **settings)
    report = pipeline.run()
    found = lines(tmp_path / "run/clip.events.jsonl")
    assert [line["kind"] for line in found] == ["new", *["update"] * (len(found) - 2), "end"]
    changes = [change["what"] for line in found for change in line["changes"]]
    assert changes == ["entered", "crossed", "stationary", "recheck", "source ended"]
    end = found[-1]
    assert end["thumbnail"] == "events/clip_1.jpg" and "thumbnail" not in found[0]
    assert end["crossings"][0]["direction"] == "in" and end["visits"][0]["left"] is None
    assert end["dwell"] == {"right": pytest.approx(end["last_seconds"] - end["visits"][0]["entered"], abs=0.002)}
    assert end["class"] == "red" and end["source"] == str(clip) and end["schema"] == 1
    assert end["state"] == "stationary" and 0.5 < end["stationary_seconds"] < 1.1
    with Image.open(tmp_path / "run/events/clip_1.jpg") as picture:
        assert max(picture.size) <= 192
        pixels = np.asarray(picture).astype(int)
        red = (pixels[..., 0] > 150) & (pixels[..., 1] < 110)
    assert 0.4 < red.mean() < 0.9, "the square, and some of what is around it"
    saved = Report.from_json((tmp_path / "run/report.json").read_text())
    assert saved.events == report.events and saved.events is not None
    assert saved.events.stationary == 1 and saved.events.timeline[0].thumbnail == "events/clip_1.jpg"
    (heat,) = saved.events.heat.values()
    assert len({len(row) for row in heat.rows}) == 1 and sum(cell != "." for row in heat.rows for cell in row) > 20
    page = (tmp_path / "run/report.html").read_text()
    assert "data:image/jpeg;base64," in page and "crossed middle in" in page and "Where tracks went" in page
    assert "The last" not in page  # no track is left out
    assert not re.search(r"(src|href)=.https?:", page)
    assert str(tmp_path / "run/events") in report.outputs


def write_clip(path: Path, images: Sequence[Array]) -> None:
    import av

    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream("libx264", rate=30, options={"preset": "ultrafast", "crf": "18"})
        stream.width, stream.height = SIZE
        for image in images:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="bgr24")))
        container.mux(stream.encode())


def test_each_source_of_a_list_has_its_file_and_ends(tmp_path: Path) -> None:
    clips = [tmp_path / name for name in ("a.mp4", "b.mp4")]
    for clip in clips:
        write_clip(clip, drive(12))
    options: dict[str, Any] = {"project": tmp_path, "name": "run", "thumbnails": False}
    pipeline = Pipeline([str(clip) for clip in clips], "squares", save_events=True, **options)
    pipeline.run()
    for clip in clips:
        found = lines(tmp_path / f"run/{clip.stem}.events.jsonl")
        assert [line["kind"] for line in found] == ["new", "end"]
        assert found[1]["changes"] == [{"what": "source ended"}] and found[1]["source"] == str(clip)
    assert len({event.track_id for event in pipeline.ended}) == 2
    assert not (tmp_path / "run/events").exists()


def test_a_folder_of_images_is_one_source(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for number, image in enumerate(drive(8)):
        Image.fromarray(image[..., ::-1]).save(tmp_path / f"in/{number:03}.png")
    Pipeline(str(tmp_path / "in"), "squares", save_events=True, project=tmp_path, name="run").run()
    (path,) = (tmp_path / "run").glob("*.events.jsonl")
    assert [line["kind"] for line in lines(path)] == ["new", "end"]
    assert len(list((tmp_path / "run/events").iterdir())) == 1


def test_a_run_that_is_left_early_ends_its_tracks(tmp_path: Path) -> None:
    pipeline = Pipeline(drive(), "squares", save_events=True, project=tmp_path, name="run")
    for result in pipeline:
        if result.frame.index == 5:
            break
    pipeline.close()
    (path,) = (tmp_path / "run").glob("*.events.jsonl")
    assert lines(path)[-1]["changes"] == [{"what": "stopped"}]


def test_wrong_files_are_refused_before_anything_runs(tmp_path: Path, zones: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        Pipeline(drive(2), "squares", zones=tmp_path / "zone.yaml")
    zones.write_text("zones: {bow: {points: [[0, 0], [9, 9], [9, 0], [0, 9]]}}")
    with pytest.raises(ConfigError, match=r"zone 'bow' in .* crosses itself"):
        Pipeline(drive(2), "squares", zones=zones)
    zones.write_text("zones: {a: {points: '0,0,1,1', classes: [green squares]}}")
    with pytest.raises(UsageError, match=r"class 'green squares' was asked for(.|\n)*1 green"):
        Pipeline(drive(2), "squares", zones=zones)


def test_the_command_line(tmp_path: Path, zones: Path, capsys: pytest.CaptureFixture[str]) -> None:
    clip = tmp_path / "clip.mp4"
    write_clip(clip, drive(12))
    words = ["predict", str(clip), "squares", "--zones", str(zones), "--save-events", "--project", str(tmp_path)]
    assert main([*words, "--name", "run", "--no-thumbnails"]) == 0
    assert "choice   track bytetrack: needed for zones" in capsys.readouterr().err
    assert (tmp_path / "run/clip.events.jsonl").exists() and not (tmp_path / "run/events").exists()
    assert main([*words, "--stationary", "0"]) == 2
    assert "stationary takes a number above 0" in capsys.readouterr().err


def with_events(index: int, count: int = 1) -> Result:
    """A result with an event that has a thumbnail."""
    picture = thumbnail(np.zeros((50, 50, 3), np.uint8), (10, 10, 40, 40))
    watch, found = Watch(), replace(result_of(frame(index)).detections, tracker_id=np.array([index + 1]))
    for number in range(2):
        watch.update(found, FrameInfo.of(frame(number)), number / 30)
        watch.keep(index + 1, picture)
    return Result(FrameInfo.of(frame(index)), found, events=tuple(watch.end("not seen") * count))


def test_a_full_disk_leaves_whole_lines(full_disk: Path) -> None:
    sink = open_sink("events", rest=lambda key: list(with_events(9999).events))
    sink.open(context(full_disk))
    with pytest.raises(SinkError, match="No space left") as error:
        for index in range(10_000):
            sink.write(with_events(index), None)
    sink.close()
    (path,) = full_disk.glob("*.events.jsonl")
    assert error.value.remedy and "free some space" in error.value.remedy
    found = lines(path)
    assert len(found) > 5 and not list((full_disk / "events").glob("*.part"))
    for line in found:
        with Image.open(full_disk / line["thumbnail"]) as picture:
            picture.load()


DISK_KB = 64


def test_a_disk_that_is_full_from_the_start_leaves_nothing(full_disk: Path) -> None:
    (full_disk / "others").write_bytes(bytes(DISK_KB * 1024 - 8192))
    sink = open_sink("events", rest=lambda key: list(with_events(9999, 100).events))
    sink.open(context(full_disk))
    sink.write(result_of(frame(0)), None)
    with pytest.raises(SinkError, match="No space left"):
        sink.close()


def test_a_killed_run_is_repaired(tmp_path: Path) -> None:
    sink = open_sink("events")
    sink.open(context(tmp_path))
    for index in range(3):
        sink.write(with_events(index), None)
    sink._file._file.close()  # type: ignore[attr-defined]
    part = tmp_path / "clip.events.jsonl.part"
    part.write_bytes(part.read_bytes()[:-20])
    assert [done.path.name for done in repair_folder(tmp_path)] == ["clip.events.jsonl.part"]
    assert len(lines(tmp_path / "clip.events.jsonl")) == 2


def test_thumbnails_of_odd_boxes() -> None:
    image = np.arange(90 * 160 * 3, dtype=np.uint32).reshape(90, 160, 3).astype(np.uint8)
    for box, size in (
        ((0.0, 0.0, 160.0, 90.0), (160, 90)),
        ((150.2, 80.1, 160.0, 90.0), (12, 12)),
        ((5.2, 5.2, 5.7, 5.7), (1, 1)),
        ((0.0, 40.0, 160.0, 40.4), (160, 2)),
    ):
        with Image.open(io.BytesIO(thumbnail(image, box))) as picture:
            assert picture.size == size
    with Image.open(io.BytesIO(thumbnail(np.zeros((2000, 1000, 3), np.uint8), (0, 0, 1000, 2000)))) as picture:
        assert picture.size == (96, 192)


def detections(*rows: tuple[float, ...]) -> Detections:
    table = np.array(rows, np.float32).reshape(-1, 5)
    return Detections(table[:, :4], table[:, 4], np.zeros(len(table), np.int64), {0: "car"})


def run_by_hand(
    settings: Settings, frames: Sequence[tuple[FrameInfo, Detections]], info: SourceInfo, zones: Places | None = None
) -> tuple[list[Event], Events]:
    tracks, events = Tracks(settings, lambda source: info), Events(zones or Places(), settings, lambda source: info)

    def results() -> Iterator[FrameResult]:
        for frame_info, found in frames:
            yield tracks.follow(FrameResult(Result(frame_info, found), None))

    followed = events.follow(results(), lambda source: None, stopped=lambda: False)
    return [event for found in followed for event in found.result.events], events


def test_a_stream_that_reconnects_ends_its_tracks_and_begins_new_ones() -> None:
    info = SourceInfo("rtsp://camera", "live", 640, 480)
    box = detections((100, 100, 200, 200, 0.9))
    frames = []
    for index in range(20):
        of = frame(index)
        known = FrameInfo(index, index * 40, of.time_base, 640, 480, "rtsp://camera", connection=index // 10)
        frames.append((known, box))
    events, run = run_by_hand(Settings(track="bytetrack", events=True), frames, info)
    assert said(events) == ["new: ", "end: reconnected", "new: "]
    assert events[1].frame == 9 and events[1].track_id == events[0].track_id != events[2].track_id
    assert list(run.notes) == ["rtsp://camera: tracks ended where the source was reconnected, and new ones began"]
    assert said(run.ended) == ["end: source ended"]


def test_a_track_that_is_too_weak_to_be_shown_goes_on_but_none_begins() -> None:
    info = SourceInfo("clip", "file", 640, 480)
    scores = [0.9] * 5 + [0.15] * 60 + [0.9] * 5
    known = [FrameInfo(n, n * 40, frame(0).time_base, 640, 480, "clip") for n in range(len(scores))]
    rows = [(100 + n, 100, 200 + n, 200, score) for n, score in enumerate(scores)]
    weak = [(x, 300, x + 90, 400, 0.7) for x in range(100, 100 + len(scores))]
    frames = [(info, detections(row, other)) for info, row, other in zip(known, rows, weak, strict=True)]
    settings = Settings(track="bytetrack", events=True, conf=0.8, track_new=0.6)
    events, run = run_by_hand(settings, frames, info)
    assert said(events) == ["new: "] and len(run.ended) == 1
    assert run.ended[0].last_seconds == pytest.approx(69 * 0.04)


def truth_of(world: World) -> Iterator[tuple[FrameInfo, Detections]]:
    for shot in world:
        truth = shot.truth
        found = Detections(
            truth.boxes, truth.visibility, truth.class_id, world.names, tracker_id=truth.track_id.astype(np.int64)
        )
        yield FrameInfo(shot.index, shot.index, 1 / world.fps, *world.size, "world"), found


def test_net_counts_of_a_crowded_street_are_exact() -> None:
    """With the true boxes: what crossed in minus out is what changed sides, whatever trembled or was hidden."""
    world = World(frames=90, size=(320, 180), fps=15, seed=5, complexity=0.6, split="test")  # type: ignore[arg-type]
    places = Places((Zone("right", ((0.5, 0), (1, 0), (1, 1), (0.5, 1))),), (Line("middle", ((0.5, 1), (0.5, 0))),))
    watch, tally, events = Watch(places), Tally(places), []
    where: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for info, found in truth_of(world):
        events += watch.update(found, info, info.seconds)
        for track, (x1, y1, x2, y2) in zip(found.tracker_id.tolist(), found.xyxy.tolist(), strict=True):  # type: ignore[union-attr]
            where[track].append(((x1 + x2) / 2 - 160, 0.06 * float(np.hypot(x2 - x1, y2 - y1))))
    events += watch.end("source ended")
    for event in events:
        tally.add(event, world.size, watch.places)
    ends = [event for event in events if event.kind == "end" and not event.jumps]
    assert len(ends) > 20
    checked = 0
    net = Counter[int]()
    for event in ends:
        net[event.track_id] += sum(1 if way == "in" else -1 for _, way, _ in event.crossings)
        inside = [visit.left is None for visit in event.visits]
        assert not any(inside[:-1]), "it left before it came back"
    for track, total in net.items():
        (start, one), (stop, other) = where[track][0], where[track][-1]
        if abs(start) > one and abs(stop) > other and sum(event.track_id == track for event in ends) == 1:
            assert total == (stop > 0) - (start > 0), track
            checked += 1
    assert checked > 15
    facts = tally.facts()
    assert sum(facts.tracks_per_class.values()) == sum(event.kind == "end" for event in events)
    assert {change for event in events for change in event.changes} >= {
        *(Change("crossed", "middle", way) for way in ("in", "out")),
        *(Change(what, "right") for what in ("entered", "left")),
    }


@pytest.mark.slow
def test_a_model_counts_a_calm_street_as_the_truth_does(zones: Path) -> None:
    address = "synthetic://street?frames=90&size=640x360&fps=15&split=test&seed=2&complexity=0"
    sides: dict[int, list[bool]] = defaultdict(list)
    for info, found in truth_of(World.parse(address)):
        for track, box in zip(found.tracker_id.tolist(), found.xyxy.tolist(), strict=True):  # type: ignore[union-attr]
            sides[track].append(box[0] + box[2] > info.width)
    steps = [step for row in sides.values() for step in pairwise(row)]
    true = {"in": steps.count((False, True)), "out": steps.count((True, False))}
    visits = sum(row[0] for row in sides.values()) + true["in"]
    options: dict[str, Any] = {"conf": 0.3, "agnostic_nms": True, "track_agnostic": True, "precision": "fp32"}
    facts = Pipeline(address, "scout-n", zones=zones, **options).run().events
    assert facts is not None and true["in"] > 1
    assert {way: sum(counts.values()) for way, counts in facts.lines["middle"].items()} == true
    assert sum(facts.zones["right"].values()) == visits


def test_the_sink_alone_writes_what_results_carry(tmp_path: Path) -> None:
    sink = EventsSink()
    sink.open(context(tmp_path))
    sink.write(with_events(3), None)
    sink.close()
    sink.close()
    assert lines(tmp_path / "clip.events.jsonl")[0]["track_id"] == 4
    empty = EventsSink()
    empty.open(context(tmp_path, stem="other"))
    empty.write(result_of(frame(0)), None)
    empty.close()
    assert not (tmp_path / "other.events.jsonl").exists()
    assert isinstance(frame(0), Frame)
