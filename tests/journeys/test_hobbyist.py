"""A hobbyist who knows ultralytics and supervision: own clip, photos, a camera, crops, labels to correct."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from PIL import Image

import framefuse
from command_line import run_python, spawn
from pages import block
from servers import RtspServer

pytestmark = pytest.mark.slow


def lines(path: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def size(path: Path) -> tuple[int, int]:
    with Image.open(path) as image:
        return image.size


def predict(*words: str, code: int = 0) -> str:
    """`framefuse predict`, whose exit code is as expected; what it said."""
    done = spawn("predict", *words)
    assert done.returncode == code, done.stderr
    return done.stderr


def score(*words: str) -> dict[str, Any]:
    """The boxes in the scores of `framefuse val`."""
    done = spawn("val", "model.onnx", *words, "--json", "--quiet")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)["runs"][0]["scores"]["boxes"]
    return found


def test_boxes_on_my_clip() -> None:
    """The command and the library find the same, and the video shows it."""
    said = predict("video.mp4", "model.onnx", "--save", "--conf", "0.4")
    assert "runs/predict/predict/report.html" in said
    rows = lines("runs/predict/predict/video.jsonl")
    with av.open("runs/predict/predict/video.mp4") as video:
        shown = [frame.to_ndarray(format="rgb24").astype(int) for frame in video.decode(video=0)]
    with av.open("video.mp4") as video:
        plain = [frame.to_ndarray(format="rgb24").astype(int) for frame in video.decode(video=0)]
    changed = [np.abs(drawn - frame).max() > 100 for drawn, frame in zip(shown, plain, strict=True)]
    assert changed == [bool(row["detections"]) for row in rows] and any(changed)

    results = list(framefuse.Pipeline("video.mp4", "model.onnx", conf=0.4))
    assert [result.frame.index for result in results] == [row["frame"] for row in rows]
    for result, row in zip(results, rows, strict=True):
        assert [one.name for one in result.detections] == [found["class"] for found in row["detections"]]
        np.testing.assert_allclose(
            result.detections.xyxy, np.reshape([found["xyxy"] for found in row["detections"]], (-1, 4)), atol=0.01
        )


def test_crops_of_classes_by_name() -> None:
    predict("video.mp4", "model.onnx", "--save-crop", "--classes", "car,person", "--name", "crops")
    found = [one for row in lines("runs/predict/crops/video.jsonl") for one in row["detections"]]
    crops = Counter(path.parent.name for path in Path("runs/predict/crops/crops").glob("*/*.jpg"))
    assert crops == Counter(one["class"] for one in found) and set(crops) == {"car", "person"}
    report = framefuse.Pipeline("video.mp4", "model.onnx", classes=["car", "person"]).run()
    assert report.detections_per_class == dict(crops)


def test_a_folder_of_photos() -> None:
    """One of which is damaged: the others are done, and the exit code says so."""
    shutil.copytree("photos", "album")
    Path("album/broken.jpg").write_bytes(b"\xff\xd8 no photo")
    said = predict("album", "model.onnx", "--save", "--save-crop", "--name", "album", code=5)
    assert "broken.jpg" in said
    rows = lines("runs/predict/album/images.jsonl")
    assert [Path(row["source"]).name for row in rows] == ["0.png", "1.png", "2.png"]
    for row in rows:
        name = Path(row["source"]).name
        assert size(Path("runs/predict/album", name)) == size(Path("photos", name))
    model = framefuse.Model("model.onnx")
    for row in rows:
        assert [one.name for one in model(row["source"]).detections] == [one["class"] for one in row["detections"]]


def test_a_camera() -> None:
    """RTSP with a password, which nothing repeats."""
    with RtspServer(login="me:secret") as server:
        address = f"rtsp://me:secret@127.0.0.1:{server.port}/stream"
        said = predict(address, "squares", "--imgsz", "64", "--save", "--end", "1", "--name", "camera")
        seen = []
        for result in framefuse.Pipeline(address, "squares", imgsz=64):
            seen.append(result.frame.index)
            if len(seen) == 5:
                break
    (video,) = Path("runs/predict/camera").glob("*.mp4")
    with av.open(str(video)) as opened:
        frames = sum(1 for _ in opened.decode(video=0))
    assert frames == len(lines(f"runs/predict/camera/{video.stem}.jsonl")) > 5
    assert seen == sorted(seen)
    files = [path for path in Path("runs/predict/camera").iterdir() if path.suffix != ".mp4"]
    assert not any("secret" in text for text in [said, *map(str, files), *(path.read_text() for path in files)])


def test_supervision() -> None:
    supervision = pytest.importorskip("supervision")
    found = framefuse.Model("model.onnx")("photos/0.png").detections
    theirs = found.to_supervision()
    image = np.zeros((360, 640, 3), np.uint8)
    assert supervision.BoxAnnotator().annotate(image.copy(), theirs).any()
    whole = supervision.PolygonZone(np.array([[0, 0], [640, 0], [640, 360], [0, 360]]))
    assert whole.trigger(theirs).all() and len(theirs) == len(found) > 0
    ours = framefuse.Detections.from_supervision(theirs)
    assert (ours.xyxy == found.xyxy).all() and [one.name for one in ours] == [one.name for one in found]


def labelled(path: str) -> dict[str, Any]:
    """What a labelling tool exports after it was given this file and someone has corrected it.

    The first box is deleted, the second is smaller, and one is new. Ids are those of the tool, keys are COCO's own.
    """
    given = json.loads(Path(path).read_text())
    for row in given["images"]:
        row["id"] += 100
    _, smaller, *others = given["annotations"]
    x, y, width, height = smaller["bbox"]
    smaller["bbox"] = [x, y, width / 2, height / 2]
    keys = "category_id", "bbox", "area", "segmentation", "iscrowd"
    rows = [{"image_id": row["image_id"] + 100, **{key: row[key] for key in keys}} for row in (smaller, *others)]
    rows.append(rows[0] | {"bbox": [5, 5, 40, 30], "area": 1200})
    annotations = [{"id": number, **row} for number, row in enumerate(rows, 1)]
    images = [{key: row[key] for key in ("id", "file_name", "width", "height")} for row in given["images"]]
    return {"images": images, "annotations": annotations, "categories": given["categories"]}


@pytest.mark.slow
def test_cvat_and_back() -> None:
    """Frames and boxes go out as COCO, come back corrected, and are the truth that scores the model."""
    words = "--conf", "0.4", "--save-json", "--save-frames", "--name", "labels"
    predict("video.mp4", "model.onnx", *words)
    out = json.loads(Path("runs/predict/labels/video.json").read_text())
    for row in out["images"]:
        assert size(Path("runs/predict/labels/images", row["file_name"])) == (row["width"], row["height"])
    # What the importer of CVAT demands: 0 is no label, and boxes have an empty outline.
    assert min(row["id"] for row in out["categories"]) == 1
    assert {row["category_id"] for row in out["annotations"]} <= {row["id"] for row in out["categories"]}
    assert all(row["segmentation"] == [] and row["iscrowd"] == 0 for row in out["annotations"])
    names = [row["name"] for row in json.loads(run_python(block("labels.md", "attributes")))]
    assert names == [row["name"] for row in out["categories"]]

    back = labelled("runs/predict/labels/video.json")
    Path("instances_default.json").write_text(json.dumps(back))
    images = "--images", "runs/predict/labels/images"
    corrected = score("--data", "instances_default.json", *images)
    own = score("--data", "runs/predict/labels/video.json")
    assert corrected["objects"] == own["objects"] == len(back["annotations"])
    assert corrected["map50_95"] < own["map50_95"]
    assert own["map50_95"] > 0.95  # JPEG has changed the frames a little


def test_label_studio_and_back() -> None:
    predict("video.mp4", "model.onnx", "--conf", "0.4", "--save-label-studio", "--save-frames", "--name", "studio")
    folder = Path("runs/predict/studio")
    tasks = json.loads((folder / "video.label_studio.json").read_text())
    rows = lines(str(folder / "video.jsonl"))
    for task, row in zip(tasks, rows, strict=True):
        image = task["data"]["image"].removeprefix("/data/local-files/?d=")
        assert size(folder / image) == (row["width"], row["height"])
        for label, found in zip(task["predictions"][0]["result"], row["detections"], strict=True):
            value = label["value"]
            sides = [value[key] for key in ("x", "y", "width", "height")]
            assert min(sides) >= 0
            assert max(value["x"] + value["width"], value["y"] + value["height"]) <= 100.001
            assert value["rectanglelabels"] == [found["class"]] and label["score"] == found["confidence"]

    export = [{"data": task["data"], "annotations": [{"result": task["predictions"][0]["result"]}]} for task in tasks]
    Path("export.json").write_text(json.dumps(export))
    run_python(block("labels.md", "export.json"))
    corrected = json.loads(Path("corrected.json").read_text())
    boxes = [(x, y, x + width, y + height) for x, y, width, height in (row["bbox"] for row in corrected["annotations"])]
    np.testing.assert_allclose(boxes, [one["xyxy"] for row in rows for one in row["detections"]], atol=1e-3)
    assert score("--data", "corrected.json", "--images", str(folder / "images"))["map50_95"] > 0.95
