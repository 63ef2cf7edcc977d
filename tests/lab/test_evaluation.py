"""Evaluation: average precision against hand-counted cases and pycocotools, the real pipeline, and bad data."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from framefuse.errors import DecodeError, SourceError, UsageError
from framefuse.lab.evaluation import Dataset, Labels, open_data, validate
from framefuse.lab.evaluation.counters import BoxCounter, confusion
from framefuse.prediction import Detections
from training.squares import NAMES, write_squares
from training.squares_clip import squares_scene

Coco = dict[str, Any]


def labels(boxes: list[list[float]], classes: list[int], crowd: list[int] | None = None, **more: Any) -> Labels:
    xyxy = np.array(boxes, np.float64).reshape(-1, 4)
    area = (xyxy[:, 2:] - xyxy[:, :2]).prod(axis=1)
    crowds = np.array(crowd or [0] * len(boxes), bool)
    return Labels(xyxy, np.array(classes, np.int64), crowds, area, (640, 480), **more)


def found(rows: list[tuple[list[float], float, int]]) -> Detections:
    boxes, scores, classes = zip(*rows, strict=True) if rows else ([], [], [])
    xyxy = np.array(boxes, np.float32).reshape(-1, 4)
    return Detections(xyxy, np.array(scores, np.float32), np.array(classes, np.int64))


A, B, C = [10, 10, 50, 50], [100, 100, 140, 140], [300, 300, 500, 450]
FAR = [200, 10, 240, 50]


def test_perfect_detections_score_1() -> None:
    counter = BoxCounter(["a", "b"], max_det=300)
    counter.add(labels([A, B], [0, 1]), found([(A, 0.9, 0), (B, 0.8, 1)]))
    scores = counter.scores()
    assert (scores.map50_95, scores.map50, scores.precision, scores.recall) == (1, 1, 1, 1)
    assert scores.by_size == {"small": None, "medium": 1, "large": None}


def test_average_precision_by_hand() -> None:
    """Found: A, then a ghost, then B; C is missed. Precision at recall 1/3 is 1, at 2/3 it is 2/3, above it is 0."""
    counter = BoxCounter(["a"], max_det=300)
    counter.add(labels([A, B, C], [0, 0, 0]), found([(A, 0.9, 0), (FAR, 0.8, 0), (B, 0.7, 0)]))
    scores = counter.scores()
    expected = (34 * 1 + 33 * 2 / 3) / 101  # recalls 0..0.33, 0.34..0.66, 0.67..1 in steps of 0.01
    assert scores.map50 == pytest.approx(expected, abs=1e-12)
    assert scores.by_class["a"].objects == 3
    assert scores.confusion == [[2, 1], [1, 0]]
    assert (scores.precision, scores.recall) == (pytest.approx(2 / 3), pytest.approx(2 / 3))


def test_overlap_decides_which_thresholds_count() -> None:
    """A box of IoU 0.8 is right at 0.50, ..., 0.80: 7 of the 10 overlaps."""
    counter = BoxCounter(["a"], max_det=300)
    counter.add(labels([[0, 0, 100, 100]], [0]), found([([0, 0, 100, 80], 0.9, 0)]))
    scores = counter.scores()
    assert scores.map50_95 == pytest.approx(0.7)
    assert scores.map75 == pytest.approx(1)


def test_what_lies_in_a_crowd_counts_neither_way() -> None:
    counter = BoxCounter(["a"], max_det=300)
    crowd = labels([A, C], [0, 0], [0, 1])
    counter.add(crowd, found([([310, 310, 350, 350], 0.95, 0), (A, 0.9, 0)]))
    scores = counter.scores()
    assert (scores.map50_95, scores.objects) == (1, 1)
    assert scores.confusion == [[1, 0], [0, 0]]


def test_confusion_names_the_wrong_class() -> None:
    table = confusion(labels([A, B], [0, 1]), found([(A, 0.9, 1), (FAR, 0.9, 0)]), 2)
    assert table.tolist() == [[0, 1, 0], [0, 0, 1], [1, 0, 0]]


def test_calm_and_crowded_frames_are_scored_apart() -> None:
    counter = BoxCounter(["a"], max_det=300)
    counter.add(labels([A], [0], complexity=0.1), found([(A, 0.9, 0)]))
    counter.add(labels([A, B], [0, 0], complexity=1.0), found([]))
    split = counter.scores().by_complexity
    assert (split["calm"].map50_95, split["calm"].frames, split["calm"].objects) == (1, 1, 1)
    assert (split["busy"].map50_95, split["busy"].frames) == (None, 0)
    assert (split["crowded"].map50_95, split["crowded"].objects, split["crowded"].detections) == (0, 2, 0)


def noisy(seed: int, classes: int = 3, frames: int = 12) -> list[tuple[Labels, tuple[Any, Any, Any]]]:
    random = np.random.default_rng(seed)
    rows = []
    for _ in range(frames):
        n = int(random.integers(0, 9))
        corner = random.uniform(0, 400, (n, 2))
        boxes = np.hstack((corner, corner + random.uniform(4, 200, (n, 2))))
        kinds = random.integers(0, classes, n)
        crowd = (random.random(n) < 0.15).astype(int)
        keep = random.random(n) < 0.8
        shaken = boxes[keep] + random.normal(0, 4, (int(keep.sum()), 4))
        ghosts = random.uniform(0, 300, (4, 2))
        all_boxes = np.vstack((shaken, np.hstack((ghosts, ghosts + 60))))
        all_boxes[:, 2:] = np.maximum(all_boxes[:, 2:], all_boxes[:, :2] + 1)
        ids = np.concatenate((kinds[keep], random.integers(0, classes, 4)))
        scores = random.random(len(all_boxes)).astype(np.float32)
        rows.append(
            (labels(boxes.tolist(), kinds.tolist(), crowd.tolist()), (all_boxes.astype(np.float32), scores, ids))
        )
    return rows


@pytest.mark.parametrize("seed", range(3))
def test_numbers_equal_those_of_pycocotools(seed: int) -> None:
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    counter = BoxCounter(["a", "b", "c"], max_det=100)
    truth: Coco = {"images": [], "annotations": [], "categories": [{"id": i, "name": str(i)} for i in range(3)]}
    results = []
    for image, (known, (boxes, scores, ids)) in enumerate(noisy(seed), 1):
        counter.add(known, Detections(boxes, scores, ids))
        truth["images"].append({"id": image})
        for box, area, kind, crowd in zip(known.xyxy, known.area, known.class_id, known.crowd, strict=True):
            row = {"id": len(truth["annotations"]) + 1, "image_id": image, "category_id": int(kind), "area": area}
            x1, y1, x2, y2 = box.tolist()
            truth["annotations"].append({**row, "bbox": [x1, y1, x2 - x1, y2 - y1], "iscrowd": int(crowd)})
        for box, score, kind in zip(boxes.astype(float).tolist(), scores.tolist(), ids.tolist(), strict=True):
            corner = [box[0], box[1], box[2] - box[0], box[3] - box[1]]
            results.append({"image_id": image, "category_id": kind, "bbox": corner, "score": score})
    with contextlib.redirect_stdout(io.StringIO()):
        known_truth = COCO()
        known_truth.dataset = truth
        known_truth.createIndex()
        peer = COCOeval(known_truth, known_truth.loadRes(results), "bbox")
        peer.evaluate()
        peer.accumulate()
        peer.summarize()
    ours = counter.scores()
    sizes = [-1 if value is None else value for value in ours.by_size.values()]
    assert [ours.map50_95, ours.map50, ours.map75, *sizes] == pytest.approx(peer.stats[:6].tolist(), abs=1e-12)
    assert 0.1 < ours.map50_95 < 0.9


# -- COCO folders through the real pipeline ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def squares(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Coco]:
    """A COCO folder of squares; category ids have gaps and are in another order than the model's classes."""
    folder = tmp_path_factory.mktemp("coco")
    (folder / "images").mkdir()
    category = {0: 40, 1: 7, 2: 90}
    content: Coco = {"images": [], "annotations": [], "categories": []}
    content["categories"] = [{"id": category[number], "name": name.upper()} for number, name in NAMES.items()]
    for index, (image, truth) in enumerate(squares_scene(6, (640, 384), seed=3)):
        name = f"frame {index}.png"
        Image.fromarray(image).save(folder / "images" / name, compress_level=1)
        content["images"].append({"id": 10 + index, "file_name": name, "width": 640, "height": 384})
        for kind, x1, y1, x2, y2 in truth:
            row = {"id": len(content["annotations"]), "image_id": 10 + index, "category_id": category[kind]}
            content["annotations"].append({**row, "bbox": [x1, y1, x2 - x1, y2 - y1], "iscrowd": 0})
    (folder / "annotations.json").write_text(json.dumps(content))
    return folder, content


def test_a_coco_folder_through_the_pipeline(squares: tuple[Path, Coco]) -> None:
    seen: list[tuple[int, int]] = []
    scores = validate("squares", squares[0] / "annotations.json", on_frame=lambda *at: seen.append(at))
    assert seen == [(n, 6) for n in range(1, 7)]
    assert (scores.frames, scores.task, scores.model) == (6, "detect", "squares")
    assert scores.names == ["GREEN", "RED", "BLUE"]  # by ascending category id
    assert scores.map50 == pytest.approx(1, abs=0.01)
    assert scores.map50_95 is not None and scores.map50_95 > 0.85
    assert scores.boxes is not None and scores.boxes.objects == 36
    assert scores.boxes.recall == 1
    assert json.loads(json.dumps(scores.to_dict()))["boxes"]["map50"] == scores.map50


def test_engines_agree(squares: tuple[Path, Coco]) -> None:
    data = open_data(squares[0] / "annotations.json")
    first, second = (validate("squares", data, engine=name, precision="fp32") for name in ("openvino", "onnxruntime"))
    assert first.map50_95 == pytest.approx(second.map50_95, abs=0.005)


def test_limit_spreads_over_all_images(squares: tuple[Path, Coco]) -> None:
    data = open_data(squares[0] / "annotations.json")
    assert [Path(str(key)).stem for key in data.spread(2)] == ["frame 1", "frame 4"]
    assert validate("squares", data, limit=2).frames == 2
    wrong: Any
    for wrong in (0, -1, "x", 1.5, True):
        with pytest.raises(UsageError, match=f"limit is {wrong!r}"):
            data.spread(wrong)


def test_a_video_with_numbered_frames(tmp_path: Path) -> None:
    from training.squares_clip import squares_clip

    video = tmp_path / "clip.mp4"
    truth = squares_clip(video, frames=8, size=(640, 384), seed=3)
    content: Coco = {"images": [], "annotations": [], "categories": [{"id": i + 1, "name": NAMES[i]} for i in NAMES]}
    for frame in (1, 4, 6):
        content["images"].append(
            {"id": frame, "file_name": f"{frame}.jpg", "frame": frame, "width": 640, "height": 384}
        )
        for kind, x1, y1, x2, y2 in truth[frame]:
            box = [x1, y1, x2 - x1, y2 - y1]
            content["annotations"].append({"image_id": frame, "category_id": kind + 1, "bbox": box})
    path = tmp_path / "truth.json"
    path.write_text(json.dumps(content))
    scores = validate("squares", path, images=video)
    assert scores.frames == 3
    assert scores.map50 == pytest.approx(1, abs=0.01)
    for frame, message in (
        (-1, "image '4.jpg' has the frame -1"),
        (None, "image '4.jpg' has the frame None"),
        (4.0, r"has the frame 4\.0"),
        (6, "two images are frame 6"),
        (99, r"1 of 3 images of .* could not be read: frame 99"),
    ):
        content["images"][1]["frame"] = frame
        path.write_text(json.dumps(content))
        with pytest.raises(SourceError, match=message) as caught:
            validate("squares", path, images=video)
        assert caught.value.remedy


# -- bad data ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c.pop("images"), "no list 'images'"),
        (lambda c: c.update(annotations=[]), "has no annotations"),
        (lambda c: c.update(categories=[3]), "no list 'categories'"),
        (lambda c: c["annotations"][0].update(image_id=999), "image_id 999, which does not exist"),
        (lambda c: c["annotations"][0].update(category_id=1), "category_id 1, which does not exist"),
        (lambda c: c["annotations"][1].update(id=0), "two annotations have the id 0"),
        (lambda c: c["images"][1].update(id=10), "2 images have the id 10"),
        (lambda c: c["images"][1].update(file_name="frame 0.png"), "same file_name"),
        (lambda c: c["categories"][1].update(id=40), "2 categories have the id 40"),
        (lambda c: c["categories"][1].update(name="RED"), "two categories are called 'RED'"),
        (lambda c: c["categories"][1].update(name=" "), "no id or no name"),
        (lambda c: c["categories"][1].update(name="\ud800"), r"a name that is not valid text: '\\ud800'"),
        (lambda c: c["images"][1].update(file_name="a\0b"), r"a file_name that is not valid text: 'a\\x00b'"),
        (lambda c: c["images"][1].update(file_name="a" * 5000), r"1 of 6 images of bad\.json are missing: .*aaa\.\."),
        (lambda c: c["images"][0].update(file_name="a" * 5000), r"names 'aaaa.*\.\.\., which is in none of"),
        (lambda c: c["images"][5].pop("height"), "image 'frame 5.png' has width 640 and height None"),
        (lambda c: c["images"][5].update(width=0), "has width 0 and height 384"),
        (lambda c: c["images"][5].update(width="640"), "has width '640' and height 384"),
        (lambda c: c["images"][5].update(complexity=float("nan")), "has the complexity nan"),
        (lambda c: c["images"][5].update(complexity=2), "has the complexity 2"),
        (lambda c: c["annotations"][0].update(bbox=[1, 2, 3]), r"\(id 0\) of image 10 has the bbox \[1, 2, 3\]"),
        (lambda c: c["annotations"][0].update(bbox=[1, 2, 3, float("nan")]), r"has the bbox \[1, 2, 3, nan\]"),
        (lambda c: c["annotations"][0].update(area=float("nan")), "has the area nan"),
        (lambda c: c["annotations"][0].update(area=-4), "has the area -4"),
        (lambda c: c["annotations"][0].update(area="big"), "has the area 'big'"),
        (lambda c: c["annotations"][0].update(iscrowd="0"), "has iscrowd '0'"),
        (lambda c: c["annotations"][0].update(iscrowd=2), "has iscrowd 2"),
        (lambda c: [row.update(bbox=[1, 2, 0, 0]) for row in c["annotations"]], "no annotation has an area"),
        (lambda c: c["images"][2].update(file_name="gone.png"), r"1 of 6 images of bad\.json are missing: .*gone\.png"),
        (
            lambda c: [row.update(file_name="x" + row["file_name"]) for row in c["images"]],
            "'xframe 0.png', which is in",
        ),
        (lambda c: c["images"][0].update(width=100), "is 640x384, but the data give 100x384"),
        (lambda c: c["images"][0].update(width=384, height=640), "640x384, but the data give 384x640"),
        (lambda c: c["images"][0].pop("width"), "has width None and height 384"),
    ],
)
def test_bad_coco_files_say_what_is_wrong(
    squares: tuple[Path, Coco], change: Callable[[Coco], None], message: str
) -> None:
    folder, content = squares
    content = json.loads(json.dumps(content))
    change(content)
    path = folder / "bad.json"
    path.write_text(json.dumps(content))
    with pytest.raises((SourceError, DecodeError), match=message) as caught:
        validate("squares", path)
    assert caught.value.remedy


def test_objects_outside_their_images_are_said(squares: tuple[Path, Coco]) -> None:
    folder, content = squares
    content = json.loads(json.dumps(content))
    for number, box in enumerate(([700, 0, 9, 9], [-9, 0, 9, 9], [0, 384, 9, 9], [630, 0, 99, 9])):
        content["annotations"][number]["bbox"] = box
    (folder / "outside.json").write_text(json.dumps(content))
    assert open_data(folder / "outside.json").notes == [
        "annotations entirely outside their images, which cannot be found: 3"
    ]


OUTLINES = [
    "x", 5, True, {}, [[]], [1, 2, 3, 4, 5, 6], [[1, 2, 3, 4]], [[1, 2, 3, 4, 5, 6, 7]], [[float("nan")] * 8],
    [["a"] * 6], {"counts": [1]}, {"size": [0, 0], "counts": []}, {"size": [384, 640], "counts": [5, 5]},
    {"size": [384, 640], "counts": [5, -5, 245760]}, {"size": [384, 640], "counts": "XYZ!!~~"},
]  # fmt: skip


@pytest.mark.parametrize("outline", OUTLINES, ids=str)
def test_an_outline_that_is_none_is_refused_when_it_is_asked_for(squares: tuple[Path, Coco], outline: Any) -> None:
    folder, content = squares
    content = json.loads(json.dumps(content))
    for row in content["annotations"]:
        row["segmentation"] = outline or {"size": [1, 1]}
    (folder / "outlines.json").write_text(json.dumps(content))
    data = open_data(folder / "outlines.json")
    read = data.labels(data.keys[0]).class_mask
    assert read is not None
    with pytest.raises(DecodeError, match=r"image 'frame 0\.png' has a segmentation that cannot be read"):
        read()


def test_a_background_is_no_class_in_common(squares: tuple[Path, Coco]) -> None:
    folder, content = squares
    content = json.loads(json.dumps(content))
    for row in content["annotations"]:
        row["segmentation"] = [[0, 0, 9, 0, 9, 9]]
    (folder / "outlined.json").write_text(json.dumps(content))
    with pytest.raises(UsageError, match="no class in common except the background"):
        validate("body-n", folder / "outlined.json")


def test_what_is_no_data(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="No such file"):
        open_data(tmp_path / "none.json")
    (tmp_path / "half.json").write_text('{"images": [')
    with pytest.raises(DecodeError, match="is not JSON"):
        open_data(tmp_path / "half.json")
    with pytest.raises(UsageError, match="images is 3"):
        open_data(tmp_path / "half.json", 3)  # type: ignore[arg-type]
    with pytest.raises(SourceError, match="File name too long"):
        open_data("a" * 5000)
    for data in ("rtsp://camera", "", 3):
        with pytest.raises(UsageError, match="has no known ground truth"):
            open_data(data)


def test_a_folder_stands_for_its_one_coco_file(squares: tuple[Path, Coco], tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="no JSON file"):
        open_data(tmp_path)
    folder = tmp_path / "data"
    shutil.copytree(squares[0] / "images", folder / "images")
    (folder / "annotations").mkdir()
    shutil.copy(squares[0] / "annotations.json", folder / "annotations" / "instances_val.json")
    assert len(open_data(folder)) == 6
    (folder / "annotations" / "instances_train.json").write_text("{}")
    with pytest.raises(SourceError, match=r"2 JSON files \(annotations/instances_train.json, annotations/inst"):
        open_data(folder)


def test_a_image_that_cannot_be_read_is_an_error(squares: tuple[Path, Coco], tmp_path: Path) -> None:
    folder, content = squares
    for row in content["images"]:
        (tmp_path / row["file_name"]).write_bytes((folder / "images" / row["file_name"]).read_bytes())
    (tmp_path / "frame 3.png").write_bytes(b"not an image")
    with pytest.raises(SourceError, match=r"1 of 6 images .* could not be read: .*frame 3\.png"):
        validate("squares", folder / "annotations.json", images=tmp_path)


def test_classes_are_matched_by_name(squares: tuple[Path, Coco]) -> None:
    folder, content = squares
    content = json.loads(json.dumps(content))
    for row, name in zip(content["categories"], ("red", "cat", "dog"), strict=True):
        row["name"] = name
    (folder / "other.json").write_text(json.dumps(content))
    scores = validate("squares", folder / "other.json")
    assert scores.names == ["red"]
    assert scores.notes == [
        "not scored, because the model does not have them: cat, dog",
        "not scored, because the data do not have them: green, blue",
    ]
    content["categories"][0]["name"] = "cow"
    (folder / "other.json").write_text(json.dumps(content))
    with pytest.raises(UsageError, match=r"no class in common: the model has red, green, blue, the data cat, cow, dog"):
        validate("squares", folder / "other.json")


# -- the synthetic world -----------------------------------------------------------------------------------------------

STREET = "synthetic://street?seed=5&frames=30&size=320x192&split=test"


def test_the_world_and_its_coco_file_say_the_same(tmp_path: Path) -> None:
    from framefuse.cli.app import main

    assert main(["synth", STREET, "--out", str(tmp_path), "--quiet"]) == 0
    world = open_data(STREET)
    (truth,), (video,) = tmp_path.glob("*.json"), tmp_path.glob("*.mp4")
    coco = open_data(truth, video)
    assert open_data(tmp_path).uri == str(truth)  # the folder alone will do: the video has the file's name
    assert list(open_data(tmp_path).keys) == list(coco.keys)
    assert (list(coco.keys), coco.names, coco.mask_names) == (list(world.keys), world.names, world.mask_names)
    for key in (0, 14, 29):
        drawn, read = world.labels(key), coco.labels(key)
        assert read.complexity == pytest.approx(drawn.complexity, abs=1e-4)
        assert read.size == drawn.size == (320, 192)
        for field in ("xyxy", "class_id", "crowd", "area"):
            np.testing.assert_array_equal(getattr(read, field), getattr(drawn, field), err_msg=field)
        assert read.class_mask is not None
        assert drawn.class_mask is not None
        assert (read.class_mask() != 0).sum() == (drawn.class_mask() != 0).sum()


def test_several_data_follow_each_other(tmp_path: Path, squares: tuple[Path, Coco]) -> None:
    model = write_squares(tmp_path / "model.onnx")
    (tmp_path / "model.yaml").write_text("names: [Person, car, box]\nimgsz: [192, 320]\n")
    both = open_data([STREET, STREET.replace("seed=5", "seed=6")])
    assert len(both) == 60
    scores = validate(model, both, limit=6)
    assert (scores.frames, scores.boxes and scores.boxes.objects) == (6, _count(both, both.spread(6)))
    with pytest.raises(UsageError, match="have different classes"):
        open_data([STREET, str(squares[0] / "annotations.json")])
    with pytest.raises(SourceError, match=r"frame 0\.png is in two of"):
        validate("squares", [squares[0] / "annotations.json"] * 2)


def _count(data: Dataset, keys: Any) -> int:
    known = [data.labels(key) for key in keys]
    return sum(int((~row.crowd & np.isin(row.class_id, (0, 1, 8))).sum()) for row in known)


def test_a_detector_on_the_world(tmp_path: Path) -> None:
    """squares, told that its classes are some of the world's: hardly right, but matched frame by frame."""
    model = write_squares(tmp_path / "model.onnx")
    (tmp_path / "model.yaml").write_text("names: [Person, car, box]\nimgsz: [192, 320]\n")
    scores = validate(model, STREET, limit=9)
    assert (scores.frames, scores.input) == (9, "320x192")
    assert scores.names == ["person", "car", "box"]
    assert scores.boxes is not None
    assert sum(split.frames for split in scores.boxes.by_complexity.values()) == 9
    assert scores.map50_95 is not None and scores.map50_95 < 0.3
    assert "not scored, because the model does not have them: bus, bicycle" in scores.notes[0]


def test_perfect_answers_on_the_world_score_1() -> None:
    world = open_data(STREET)
    counter = BoxCounter(list(world.names.values()), max_det=300)
    for key in world.spread(6):
        known = world.labels(key)
        confidence = np.full(len(known.xyxy), 0.9, np.float32)
        counter.add(known, Detections(known.xyxy, confidence, known.class_id))
    scores = counter.scores()
    assert (scores.map50_95, scores.precision, scores.recall) == (1, 1, 1)
