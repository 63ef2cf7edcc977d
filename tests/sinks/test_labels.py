"""Labels for CVAT and Label Studio, parsed back as these tools read them."""

from __future__ import annotations

import json
import os
import shutil
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from framefuse import Pipeline
from framefuse.errors import SinkError
from framefuse.prediction import Detections, FrameInfo, Result
from framefuse.sinks import open_sink
from framefuse.sinks.parquet import read_boxes
from framefuse.sinks.repair import repair_folder
from framefuse.sources import SourceInfo
from sink_frames import MS, NAMES, context, fill

DISK_KB = 256
SUFFIX = {"cvat": ".cvat.xml", "label_studio": ".label_studio.json"}
Box = tuple[int, int]
"""Track (-1: none) and class."""


def place(index: int, track: int) -> list[float]:
    return [10 * track + index, 2 * index, 10 * track + index + 20.25, 2 * index + 10]


def result(index: int, boxes: list[Box], *, tracked: bool = True, name: str = "clip.mp4", width: int = 200) -> Result:
    found = Detections(
        np.array([place(index, abs(track)) for track, _ in boxes], np.float32).reshape(-1, 4),
        np.full(len(boxes), 0.5, np.float32),
        np.array([kind for _, kind in boxes], np.int64),
        NAMES,
        tracker_id=np.array([track for track, _ in boxes], np.int64) if tracked else None,
    )
    return Result(FrameInfo(index, index * 40, MS, width, 100, name), found)


GAP = [[(7, 1), (3, 2)], [(7, 1)], [], [(7, 0), (-1, 2)], [(7, 1)], [(7, 1)]]
"""Track 7 pauses in frame 2, track 3 ends with frame 0, and one box of frame 3 has no track."""


def write(folder: Path, name: str, results: list[Result], *, close: bool = True, **facts: Any) -> Path:
    fill(open_sink(name), replace(context(folder, path=Path("videos/clip.mp4")), **facts), results, close=close)
    return folder / f"clip{SUFFIX[name]}"


def gap(**options: Any) -> list[Result]:
    return [result(index, boxes, **options) for index, boxes in enumerate(GAP)]


def shown_by_cvat(path: Path, frames: int) -> dict[str, list[int]]:
    """Label and first frame of each track -> frames in which CVAT shows it: from a keyframe on until one is outside."""
    found = {}
    root = ElementTree.parse(path).getroot()
    assert root.tag == "annotations" and root.findtext("version") == "1.1"
    assert root.findtext("meta/task/mode") == "interpolation"
    labels = {one.text for one in root.findall("meta/task/labels/label/name")}
    assert labels == set(NAMES.values())
    assert not root.findall("image")
    for number, track in enumerate(root.findall("track")):
        assert track.get("id") == str(number) and track.get("source") == "auto" and track.get("label") in labels
        keys: dict[int, bool] = {}
        for box in track:
            assert box.tag == "box" and box.get("keyframe") == "1" and box.get("occluded") == "0"
            left, top, right, bottom = (float(box.get(side, "nan")) for side in ("xtl", "ytl", "xbr", "ybr"))
            assert left < right and top < bottom
            assert int(box.get("frame", "")) not in keys
            keys[int(box.get("frame", ""))] = box.get("outside") == "0"
        assert list(keys) == sorted(keys) and all(key < frames for key in keys)
        state, shown = False, []
        for frame in range(frames):
            state = keys.get(frame, state)
            shown += [frame] if state else []
        found[f"{track.get('label')} {min(keys)}"] = shown
    return found


def test_cvat_tracks_have_gaps(tmp_path: Path) -> None:
    path = write(tmp_path, "cvat", gap())
    expected = {"bicycle 0": [0, 1, 3, 4, 5], f"{NAMES[2]} 0": [0], f"{NAMES[2]} 3": [3]}
    assert shown_by_cvat(path, 6) == expected
    first = ElementTree.parse(path).getroot().find("track/box[@frame='3']")
    assert first is not None
    assert [float(first.get(side, "")) for side in ("xtl", "ytl", "xbr", "ybr")] == place(3, 7)
    assert os.listdir(tmp_path) == [path.name]


def test_cvat_of_every_third_frame(tmp_path: Path) -> None:
    """Frames that the run skipped are no gap; CVAT interpolates there."""
    results = [result(index, [(1, 0)] if index != 6 else []) for index in range(0, 15, 3)]
    assert shown_by_cvat(write(tmp_path, "cvat", results), 13) == {"person 0": [0, 1, 2, 3, 4, 5, 9, 10, 11, 12]}


def test_cvat_interpolates_what_the_model_has_not_seen(tmp_path: Path) -> None:
    """A box of a frame that was not inferred is a keyframe only where its track begins or ends."""
    inferred = [True, False, False, True, False, False]
    results = [
        replace(result(index, [(1, 0)] if index > 1 or not index else []), inferred=seen)
        for index, seen in enumerate(inferred)
    ]
    boxes = ElementTree.parse(write(tmp_path, "cvat", results)).getroot().findall("track/box")
    keys = [(box.get("frame"), box.get("keyframe"), box.get("outside")) for box in boxes]
    assert keys == [
        ("0", "1", "0"), ("1", "1", "1"), ("2", "1", "0"), ("3", "1", "0"), ("4", "0", "0"), ("5", "1", "0"),
    ]  # fmt: skip


@pytest.mark.parametrize("tracked", [False, None])
def test_cvat_without_tracks_has_shapes_of_frames(tmp_path: Path, tracked: bool | None) -> None:
    boxes = [[(-1, kind) for _, kind in frame] for frame in GAP]
    sink = open_sink("cvat")
    sink.open(context(tmp_path))
    for index, one in enumerate(boxes):
        sink.write(result(index * 2, one, tracked=tracked is None), None)
    sink.close()
    assert sink.notes == ["clip.cvat.xml has boxes of single frames, since nothing was tracked"]
    root = ElementTree.parse(tmp_path / "clip.cvat.xml").getroot()
    assert root.findtext("meta/task/mode") == "annotation" and root.findtext("meta/task/size") == "6"
    assert not root.findall("track")
    images = root.findall("image")
    assert [(image.get("id"), image.get("name")) for image in images[:2]] == [
        ("0", "frame_000000"),
        ("2", "frame_000002"),
    ]
    assert [len(image) for image in images] == [2, 1, 0, 2, 1, 1]
    assert {image.get("width") for image in images} == {"200"}
    assert [box.get("label") for box in images[0]] == ["bicycle", NAMES[2]]


@pytest.mark.parametrize("name", SUFFIX)
def test_images_keep_their_names(tmp_path: Path, name: str) -> None:
    files = [tmp_path / "in" / "a b.jpg", tmp_path / "in" / "more" / "c&<ü>.jpg"]
    info = SourceInfo("in", "images", files=files)
    results = [result(0, [(-1, 1)], tracked=False, name=str(file)) for file in files]
    sink = open_sink(name)
    sink.open(replace(context(tmp_path), source=info, stem="images"))
    for one in results:
        sink.write(one, None)
    sink.close()
    assert sink.notes == []
    path = tmp_path / f"images{SUFFIX[name]}"
    if name == "cvat":
        images = ElementTree.parse(path).getroot().findall("image")
        assert [(one.get("id"), one.get("name")) for one in images] == [("0", "a b.jpg"), ("1", "more/c&<ü>.jpg")]
    else:
        tasks = json.loads(path.read_text())
        assert [task["data"]["image"].partition("?d=")[2] for task in tasks] == [
            "a%20b.jpg",
            "more/c%26%3C%C3%BC%3E.jpg",
        ]


def test_names_that_xml_cannot_hold(tmp_path: Path) -> None:
    names = {0: 'a"<b>&\x00c\udce9', 1: "d"}
    sink = open_sink("cvat")
    sink.open(replace(context(tmp_path), names=names))
    sink.write(result(0, [(1, 0)]), None)
    sink.close()
    track = ElementTree.parse(tmp_path / "clip.cvat.xml").getroot().find("track")
    assert track is not None and track.get("label") == 'a"<b>&?c?'


def shown_by_label_studio(value: dict[str, Any]) -> list[int]:
    """Frames, from 1, in which Label Studio shows a region: a keyframe always, and those after an enabled one."""
    keys = {one["frame"]: one["enabled"] for one in value["sequence"]}
    assert list(keys) == sorted(keys) and len(keys) == len(value["sequence"])
    state, shown = False, []
    for frame in range(1, value["framesCount"] + 1):
        if state or frame in keys:
            shown.append(frame)
        state = keys.get(frame, state)
    return shown


def test_label_studio_tracks_have_gaps(tmp_path: Path) -> None:
    path = write(tmp_path, "label_studio", gap(), run={"model": "tiny"})
    (task,) = json.loads(path.read_text())
    assert task["data"] == {"video": "/data/local-files/?d=clip.mp4"}
    (prediction,) = task["predictions"]
    assert prediction["model_version"] == "tiny"
    regions = prediction["result"]
    assert {(one["type"], one["from_name"], one["to_name"], one["score"]) for one in regions} == {
        ("videorectangle", "box", "video", 0.5)
    }
    assert len({one["id"] for one in regions}) == 3
    assert [(one["value"]["labels"], shown_by_label_studio(one["value"])) for one in regions] == [
        (["bicycle"], [1, 2, 4, 5, 6]),
        ([NAMES[2]], [1]),
        ([NAMES[2]], [4]),
    ]
    key = regions[0]["value"]["sequence"][2]
    left, top, right, bottom = place(3, 7)
    assert key == {
        "frame": 4,
        "enabled": True,
        "time": 0.12,
        "rotation": 0,
        "x": left / 2,
        "y": top,
        "width": (right - left) / 2,
        "height": bottom - top,
    }
    assert regions[0]["value"]["framesCount"] == 6 and regions[0]["value"]["duration"] == 0.2


def test_label_studio_without_tracks_has_a_task_for_each_frame(tmp_path: Path) -> None:
    tasks = json.loads(write(tmp_path, "label_studio", gap(tracked=False)).read_text())
    assert len(tasks) == 6
    assert tasks[1]["data"] == {"image": "/data/local-files/?d=images/clip_1.jpg"}
    assert [len(task["predictions"][0]["result"]) for task in tasks] == [2, 1, 0, 2, 1, 1]
    found = tasks[0]["predictions"][0]["result"][0]
    assert found["type"] == "rectanglelabels" and found["original_width"] == 200 and found["score"] == 0.5
    assert found["value"] == {
        "x": 35.0,
        "y": 0.0,
        "width": 10.125,
        "height": 10.0,
        "rotation": 0,
        "rectanglelabels": ["bicycle"],
    }


@pytest.mark.parametrize("name", SUFFIX)
def test_many_objects(tmp_path: Path, name: str) -> None:
    rng = np.random.default_rng(0)
    results = []
    for index in range(40):
        ids = rng.permutation(300)[: int(rng.integers(0, 300))]
        results.append(result(index, [(int(track) + 1, int(track) % 3) for track in ids], width=4001))
    present = {(int(track), one.frame.index) for one in results for track in one.detections.tracker_id}  # type: ignore[union-attr]
    path = write(tmp_path, name, results)
    if name == "cvat":
        shown = shown_by_cvat(path, 40)
        assert len(ElementTree.parse(path).getroot().findall("track")) == len({track for track, _ in present})
        assert shown
        total = sum(
            box.get("outside") == "0" for track in ElementTree.parse(path).getroot().findall("track") for box in track
        )
        assert total == len(present)
    else:
        (task,) = json.loads(path.read_text())
        regions = task["predictions"][0]["result"]
        found = {(int(one["id"][5:]), frame - 1) for one in regions for frame in shown_by_label_studio(one["value"])}
        assert found == present


@pytest.mark.parametrize("name", SUFFIX)
@pytest.mark.parametrize("cut", [0, 1, 9])
def test_killed_run_is_repaired(tmp_path: Path, name: str, cut: int) -> None:
    part = write(tmp_path, name, gap(), close=False).with_name(f"clip.{name}.part")
    part.write_bytes(part.read_bytes()[: part.stat().st_size - cut])
    (done,) = repair_folder(tmp_path)
    assert done.done == f"completed, {6 if cut < 2 else 5} frames"
    assert os.listdir(tmp_path) == [f"clip{SUFFIX[name]}"]
    if name == "cvat":
        ElementTree.parse(tmp_path / "clip.cvat.xml")
    else:
        json.loads((tmp_path / "clip.label_studio.json").read_text())
    assert list(repair_folder(tmp_path)) == []


@pytest.mark.parametrize("name", SUFFIX)
def test_run_without_frames_leaves_no_file(tmp_path: Path, name: str) -> None:
    write(tmp_path, name, [])
    assert os.listdir(tmp_path) == []


def test_files_of_others_stay(tmp_path: Path) -> None:
    for number, text in enumerate(("notes", "[1]\n[2]\n", '{"labels": "theirs"}\n{}\n', "")):
        (tmp_path / f"{number}.cvat.part").write_text(text)
    assert list(repair_folder(tmp_path)) == []
    assert len(os.listdir(tmp_path)) == 4


@pytest.mark.parametrize("name", SUFFIX)
def test_full_disk_keeps_what_was_written(full_disk: Path, tmp_path: Path, name: str) -> None:
    sink = open_sink(name)
    sink.open(context(full_disk))
    with pytest.raises(SinkError, match="No space left on device"):
        for index in range(10_000):
            sink.write(result(index, [(track, 0) for track in range(1, 20)]), None)
    with pytest.raises(SinkError, match="framefuse repair"):
        sink.close()
    assert os.listdir(full_disk) == [f"clip.{name}.part"]
    shutil.copy(full_disk / f"clip.{name}.part", tmp_path)
    (done,) = repair_folder(tmp_path)
    assert done.done == f"completed, {index} frames"


@pytest.mark.slow
def test_tracks_of_a_run_are_the_same_everywhere(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    saves = ("save_cvat", "save_label_studio", "save_parquet")
    source = "synthetic://street?frames=30&size=320x192&complexity=0.9&split=test"
    pipeline = Pipeline(source, "scout-n", track="bytetrack", project=tmp_path, **dict.fromkeys(saves, True))  # type: ignore[arg-type]
    boxes = [len(one.detections) for one in pipeline]
    folder = pipeline.folder
    assert folder is not None and not any("nothing was tracked" in text for text in pipeline.report.warnings)
    table = read_boxes(folder / "synthetic.parquet")
    ids = table.detections.tracker_id
    assert ids is not None and len(table.detections) == sum(boxes)
    tracks, lone = set(ids[ids >= 0].tolist()), int((ids < 0).sum())
    assert len(tracks) > 1
    assert len(tracks_in(folder / "synthetic.cvat.xml")) == len(tracks) + lone
    (task,) = json.loads((folder / "synthetic.label_studio.json").read_text())
    names = {one["id"] for one in task["predictions"][0]["result"]}
    assert {f"track{number}" for number in tracks} <= names and len(names) == len(tracks) + lone


def tracks_in(path: Path) -> list[ElementTree.Element]:
    return ElementTree.parse(path).getroot().findall("track")


def test_a_run_writes_both(tmp_path: Path) -> None:
    options = {"engine": "null", "project": tmp_path, "save_cvat": True, "save_label_studio": True}
    pipeline = Pipeline("synthetic://street?frames=12&size=160x96", "squares", **options)
    pipeline.run()
    assert pipeline.folder is not None
    assert {path.name for path in pipeline.folder.glob("synthetic.*")} == {f"synthetic{one}" for one in SUFFIX.values()}
    images = ElementTree.parse(pipeline.folder / "synthetic.cvat.xml").getroot().findall("image")
    assert [image.get("id") for image in images] == list(map(str, range(12)))
    assert len(json.loads((pipeline.folder / "synthetic.label_studio.json").read_text())) == 12
