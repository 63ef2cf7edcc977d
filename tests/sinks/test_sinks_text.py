"""Sinks of text - JSONL, CSV, COCO, YOLO labels: what they write is read back by json and csv."""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from framefuse import Pipeline
from framefuse.prediction import Detections
from framefuse.sinks import open_sink
from sink_frames import NAMES, NONE, ONE, context, detections, frame, result, run
from training.squares_clip import squares_clip


def test_jsonl_is_the_documented_object(tmp_path: Path) -> None:
    found = detections((1.005, 2, 30.12345, 40, 0.98766, 2), (0, 0, 5, 5, 0.25, 7))
    frames = [frame(0), frame(3, pts=None)]
    sink = open_sink("jsonl")
    sink.open(context(tmp_path))
    sink.write(result(frames[0], found), None)
    first = (tmp_path / "clip.jsonl.part").read_text()
    assert first.endswith("\n"), "each line is on disk when write returns"
    sink.write(result(frames[1], NONE), None)
    sink.close()
    lines = [json.loads(line) for line in (tmp_path / "clip.jsonl").read_text().splitlines()]
    assert lines == [
        {
            "schema": 2,
            "frame": 0,
            "seconds": 0.0,
            "pts": 0,
            "time_base": "1/1000",
            "width": 96,
            "height": 64,
            "detections": [
                {"xyxy": [1.0, 2.0, 30.12, 40.0], "confidence": 0.9877, "class_id": 2, "class": NAMES[2]},
                {"xyxy": [0.0, 0.0, 5.0, 5.0], "confidence": 0.25, "class_id": 7, "class": "7"},
            ],
        },
        {
            "schema": 2,
            "frame": 3,
            "seconds": None,
            "pts": None,
            "time_base": "1/1000",
            "width": 96,
            "height": 64,
            "detections": [],
        },
    ]
    assert list(lines[0]) == ["schema", "frame", "seconds", "pts", "time_base", "width", "height", "detections"]


def test_csv_holds_no_formula(tmp_path: Path) -> None:
    """A spreadsheet runs a cell that begins with one of these characters."""
    names = {0: "=HYPERLINK(1)", 1: "+1", 2: "@sum", 3: "-x", 4: "a=b"}
    table = np.array([(1, 2, 30, 40, 0.5, number) for number in names], np.float32)
    found = Detections(table[:, :4], table[:, 4], table[:, 5].astype(np.int64), names)
    run(open_sink("csv"), context(tmp_path), [frame()], found)
    rows = csv.DictReader((tmp_path / "clip.csv").read_text().splitlines())
    assert [row["class"] for row in rows] == ["'=HYPERLINK(1)", "'+1", "'@sum", "'-x", "a=b"]


def test_csv_has_a_row_for_each_detection(tmp_path: Path) -> None:
    found = detections((1, 2, 30.12345, 40, 0.98766, 2), (0, 0, 5, 5, 0.25, 0))
    run(open_sink("csv"), context(tmp_path), [frame(2), frame(3, pts=None)], found)
    rows = list(csv.DictReader((tmp_path / "clip.csv").read_text().splitlines()))
    assert len(rows) == 4
    assert rows[0] == {
        "frame": "2", "seconds": "0.08", "pts": "80", "time_base": "1/1000",
        "class_id": "2", "class": NAMES[2], "confidence": "0.9877",
        "x1": "1.0", "y1": "2.0", "x2": "30.12", "y2": "40.0", "source": "clip.mp4", "tracker_id": "",
        "inferred": "true", "xywhr": "", "keypoints": "",
    }  # fmt: skip
    assert rows[2]["seconds"] == rows[2]["pts"] == ""


def test_coco_loads_and_is_complete(tmp_path: Path) -> None:
    sink = open_sink("coco")
    sink.open(context(tmp_path))
    for i, found in enumerate([ONE, NONE, detections((0, 0, 10, 20, 0.5, 0), (1, 1, 3, 4, 0.4, 2))]):
        sink.write(result(frame(i), found), None)
    assert not (tmp_path / "clip.json").exists()
    sink.close()
    sink.close()
    data = json.loads((tmp_path / "clip.json").read_text())
    # CVAT reads the category 0 as no label, and wants the key segmentation.
    assert data["categories"] == [{"id": number + 1, "name": name} for number, name in NAMES.items()]
    assert [image["id"] for image in data["images"]] == [1, 2, 3]
    assert data["images"][1] | {"width": 96, "height": 64, "frame": 1, "seconds": 0.04} == data["images"][1]
    assert data["annotations"][0] == {
        "id": 1, "image_id": 1, "category_id": 2, "bbox": [10.0, 20.0, 50.0, 30.0], "score": 0.875,
        "area": 1500.0, "segmentation": [], "iscrowd": 0,
    }  # fmt: skip
    assert [(row["id"], row["image_id"]) for row in data["annotations"]] == [(1, 1), (2, 3), (3, 3)]
    assert os.listdir(tmp_path) == ["clip.json"]


def test_coco_of_nothing_leaves_no_file(tmp_path: Path) -> None:
    run(open_sink("coco"), context(tmp_path), [])
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("confidence", [False, True])
def test_yolo_labels_are_normalised(tmp_path: Path, confidence: bool) -> None:
    sink = open_sink("yolo_txt", confidence=confidence)
    sink.open(context(tmp_path))
    sink.write(result(frame(4)), None)
    sink.write(result(frame(5), NONE), None)
    sink.close()
    numbers = [float(word) for word in (tmp_path / "labels/clip_4.txt").read_text().split()]
    expected = [1, 35 / 96, 35 / 64, 50 / 96, 30 / 64] + [0.875] * confidence
    assert numbers == pytest.approx(expected, abs=1e-6)
    assert (tmp_path / "labels/clip_5.txt").read_text() == ""


@pytest.mark.parametrize("order", [("clip.mp4", "clip_1.png"), ("clip_1.png", "clip.mp4")])
def test_labels_of_a_video_and_of_an_image_named_like_one_of_its_frames(tmp_path: Path, order: tuple[str, str]) -> None:
    squares_clip(tmp_path / "clip.mp4", frames=3, size=(96, 64))
    Image.new("RGB", (96, 64)).save(tmp_path / "clip_1.png")
    sources = [tmp_path / name for name in order]
    Pipeline(sources, "squares", engine="null", save_txt=True, project=tmp_path, name="run").run()
    names = sorted(path.stem for path in (tmp_path / "run" / "labels").iterdir())
    other = "clip_1_image" if order[0] == "clip.mp4" else "clip_1_2"
    assert names == sorted(["clip_0", "clip_1", "clip_2", other])
