"""Models that find more than boxes: masks, keypoints, oriented boxes, classes; from known outputs to files."""

from __future__ import annotations

import csv
import json
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import onnx
import pytest
from PIL import Image

import framefuse
from framefuse import Pipeline
from framefuse.config import Settings
from framefuse.errors import CapabilityError, CardError, DecodeError, NonFiniteError, UsageError
from framefuse.kernels.boxes import call as boxes
from framefuse.kernels.boxes import reference
from framefuse.kernels.masks.instances import Runs, mask_runs
from framefuse.lab.evaluation import validate
from framefuse.lab.evaluation.scores import Row, Wanted, table
from framefuse.models.card import read_card
from framefuse.postprocess.heads import classify
from framefuse.prediction import Classification, Detections, corners
from framefuse.runtime.plan import RunPlan
from framefuse.runtime.views import Viewer
from framefuse.sinks.outlines import outline
from framefuse.sources import SourceInfo
from known_models import NAMES, SIZE, anchors, model, only


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines()


DISC = (5 - np.hypot(*(np.mgrid[:16, :16] - 7.5))).astype(np.float32)


@pytest.mark.parametrize("layout", ["yolov8", "yolov5", "end2end"])
def test_masks(tmp_path: Path, picture: Path, layout: str) -> None:
    """A disc in the middle, of which the second object's box cuts off the right half; the third object has no pixel."""
    prototypes = np.stack((DISC, -DISC))[None]
    sides = [(32, 32, 48, 48), (16, 32, 32, 48), (60, 60, 6, 6)]
    if layout == "end2end":
        sides = [(x - w / 2, y - h / 2, x + w / 2, y + h / 2) for x, y, w, h in sides]
    rows = [(*sides[0], 0.9, 0, 1, 0), (*sides[1], 0, 0.8, 3, 1), (*sides[2], 0.7, 0, 1, 0)]
    raw = anchors(*rows, extra=2, layout=layout)
    network = model(tmp_path / "seg.onnx", raw, prototypes, task="segment", end2end=layout == "end2end")
    out = tmp_path / "out"
    flags = {name: True for name in ("save", "save_jsonl", "save_csv", "save_json", "save_txt", "save_crop")}
    found = only(picture, network, project=out, name="run", **flags).detections
    assert [one.name for one in found] == ["cat", "dog"] and found.mask is not None
    y, x = np.mgrid[: 2 * SIZE, : 2 * SIZE] + 0.5
    disc = np.hypot(y - 64, x - 64) < 5 * 8
    for mask, truth in zip(found.mask, (disc, disc & (x < 64)), strict=True):
        assert (mask & truth).sum() / (mask | truth).sum() > 0.95
    assert isinstance(found.runs, Runs) and found.runs.areas.tolist() == found.mask.sum((1, 2)).tolist()
    written = out / "run"
    (line,) = map(
        json.loads,
        lines(written / "images.jsonl" if (written / "images.jsonl").exists() else next(written.glob("*.jsonl"))),
    )
    assert line["detections"][0]["segmentation"] == found.segmentations()[0]
    coco = json.loads(next(path for path in written.glob("*.json") if path.name != "report.json").read_text())
    assert [row["segmentation"] for row in coco["annotations"]] == found.segmentations()
    assert [row["area"] for row in coco["annotations"]] == found.runs.areas.tolist()
    first, second = (np.array(row.split(), float) for row in lines(written / "labels" / "picture.txt"))
    assert (first[0], second[0]) == (0, 1)
    ends = first[1:].reshape(-1, 2) * 2 * SIZE
    assert np.abs(np.hypot(*(ends - 64).T) - 40).max() < 3 and second[1::2].max() <= 0.5
    drawn = np.asarray(Image.open(written / "picture.png"))
    changed = (drawn != 90).any(axis=2)
    assert changed[60:68, 70:90].all() and not changed[20:24, 90:100].any()


def test_masks_in_views(tmp_path: Path, picture: Path) -> None:
    """Each tile has its own disc, in pixels of the frame."""
    raw = anchors((32, 32, 48, 48, 0.9, 0, 1), extra=1)
    network = model(tmp_path / "seg.onnx", raw, DISC[None, None], task="segment")
    result = only(picture, network, tiles="2x2:0", tiles_whole=False)
    found = result.detections
    assert len(found) == 4 and found.mask is not None
    for mask, box in zip(found.mask, found.xyxy, strict=True):
        rows, columns = np.nonzero(mask)
        assert abs(columns.mean() + 0.5 - (box[0] + box[2]) / 2) < 0.6
        assert abs(rows.mean() + 0.5 - (box[1] + box[3]) / 2) < 0.6


@pytest.mark.parametrize(("values", "layout"), [(3, "yolov8"), (2, "yolov8"), (3, "yolov5"), (3, "end2end")])
def test_keypoints(tmp_path: Path, picture: Path, values: int, layout: str) -> None:
    points = [(10, 20, 0.9), (50, 70, 0.6), (30, 40, 0.1)]
    flat = [value for point in points for value in point[:values]]
    sides = (20, 20, 40, 60) if layout == "end2end" else (30, 40, 20, 40)
    raw = anchors((*sides, 0.9, 0, *flat), extra=len(flat), layout=layout)
    skeleton = {"skeleton": [[0, 1], [1, 2]]}
    network = model(tmp_path / "pose.onnx", raw, task="pose", kpt_shape=[3, values], end2end=layout == "end2end")
    network.with_suffix(".yaml").write_text(json.dumps(skeleton))
    flags = {name: True for name in ("save", "save_jsonl", "save_csv", "save_json", "save_txt")}
    found = only(picture, network, project=tmp_path / "out", name="run", **flags).detections
    assert found.keypoints is not None and found.skeleton == ((0, 1), (1, 2))
    expected = np.array(points, np.float32)
    expected[:, :2] = (expected[:, :2] * 2).clip(0, 2 * SIZE)
    if values == 2:
        expected[:, 2] = 1
    np.testing.assert_allclose(found.keypoints, expected[None], atol=1e-4)
    folder = tmp_path / "out" / "run"
    (line,) = map(json.loads, lines(next(folder.glob("*.jsonl"))))
    np.testing.assert_allclose(line["detections"][0]["keypoints"], expected, atol=1e-3)
    (row,) = csv.DictReader(lines(next(folder.glob("*.csv"))))
    np.testing.assert_allclose(np.array(row["keypoints"].split(), float).reshape(3, 3), expected, atol=1e-3)
    coco = json.loads(next(path for path in folder.glob("*.json") if path.name != "report.json").read_text())
    assert coco["annotations"][0]["num_keypoints"] == (3 if values == 2 else 2)
    label = np.array(lines(folder / "labels" / "picture.txt")[0].split(), float)
    assert len(label) == 5 + 9 and label[7] == 2 and label[13] == (2 if values == 2 else 0)
    drawn = (np.asarray(Image.open(folder / "picture.png")) != 90).any(axis=2)
    assert drawn[40, 20] and drawn[90, 65], "a dot, and the line between the first two"


@pytest.mark.parametrize("layout", ["yolov8", "yolov5", "end2end"])
def test_oriented_boxes(tmp_path: Path, picture: Path, layout: str) -> None:
    box = (32, 32, 40, 10, 0.9, 0, np.pi / 6)
    rows = [box] if layout == "end2end" else [box, (33, 32, 40, 10, 0.8, 0, np.pi / 6), (32, 32, 40, 10, 0, 0.8, -1.0)]
    network = model(
        tmp_path / "obb.onnx", anchors(*rows, extra=1, layout=layout), task="obb", end2end=layout == "end2end"
    )
    flags = {name: True for name in ("save", "save_jsonl", "save_csv", "save_json", "save_txt")}
    found = only(picture, network, project=tmp_path / "out", name="run", iou=0.5, **flags).detections
    assert len(found) == len(rows) - (layout != "end2end") and found.xywhr is not None and found.obb is not None
    np.testing.assert_allclose(found.xywhr[0], (64, 64, 80, 20, np.pi / 6), rtol=1e-6)
    np.testing.assert_allclose(found.obb[0].mean(axis=0), (64, 64), atol=1e-4)
    around = np.concatenate((found.obb[0].min(axis=0), found.obb[0].max(axis=0)))
    np.testing.assert_allclose(found.xyxy[0], around, atol=1e-4)
    folder = tmp_path / "out" / "run"
    (line,) = map(json.loads, lines(next(folder.glob("*.jsonl"))))
    np.testing.assert_allclose(line["detections"][0]["xywhr"], found.xywhr[0], atol=1e-3)
    row = next(csv.DictReader(lines(next(folder.glob("*.csv")))))
    np.testing.assert_allclose(np.array(row["xywhr"].split(), float), found.xywhr[0], atol=1e-3)
    label = np.array(lines(folder / "labels" / "picture.txt")[0].split(), float)
    np.testing.assert_allclose(label[1:].reshape(4, 2) * 128, found.obb[0], atol=1e-3)
    drawn = (np.asarray(Image.open(folder / "picture.png")) != 90).any(axis=2)
    for x, y in (found.obb[0] + np.roll(found.obb[0], 1, axis=0)) / 2:
        assert drawn[round(float(y)) - 1 : round(float(y)) + 2, round(float(x)) - 1 : round(float(x)) + 2].any()


@pytest.mark.parametrize("count", [0, 1, 5, 32, 33, 1000, 2000])
def test_the_best_classes_are_those_of_the_whole_order(count: int) -> None:
    """Also where classes have the same score, of which the first is the best."""
    scores = (np.random.default_rng(count).integers(0, 60, 1000) / 60).astype(np.float32)
    names = {number: f"class {number}" for number in range(0, 1000, 2)}
    found = Classification(scores, names)
    order = found.class_id[:count].tolist()
    assert found.top(count) == [(names.get(number, str(number)), float(scores[number])) for number in order]


def test_the_best_classes_of_scores_that_are_not_finite() -> None:
    scores = np.array([-np.inf, 1, np.nan, -np.inf, 0.5], np.float32)
    found = Classification(scores, dict(enumerate("abcde")))
    for count in (1, 3, 5, 40):
        assert [name for name, _ in found.top(count)] == [found.names[number] for number in found.class_id[:count]]


def test_the_classes_of_a_batch_are_ranked_together() -> None:
    """One that is kept or sent elsewhere leaves the others behind."""
    scores = (np.random.default_rng(0).integers(0, 60, (32, 1000)) / 60).astype(np.float32)
    names = {number: f"class {number}" for number in range(0, 1000, 2)}
    for row, found in zip(scores, classify(scores, names, "none"), strict=True):
        alone, sent = Classification(row, names), pickle.loads(pickle.dumps(found))
        for count in (1, 5, 6):
            assert found.top(count) == alone.top(count) == sent.top(count)
    assert len(pickle.dumps(found)) < 1.1 * len(pickle.dumps(alone))


@pytest.mark.parametrize("shape", [(1, 3), (1, 3, 1, 1)])
def test_classes(tmp_path: Path, picture: Path, shape: tuple[int, ...]) -> None:
    scores = np.array([0.1, 0.7, 0.2], np.float32).reshape(shape)
    network = model(
        tmp_path / "cls.onnx", scores, task="classify", names={0: "cat", 1: "dog", 2: "cow"}, imgsz=[64, 64]
    )
    flags = {name: True for name in ("save", "save_jsonl", "save_csv", "save_txt")}
    result = only(picture, network, project=tmp_path / "out", name="run", **flags)
    found = result.classification
    assert found is not None and len(result.detections) == 0
    assert found.top(2) == [("dog", pytest.approx(0.7)), ("cow", pytest.approx(0.2))]
    assert "dog" in result._repr_html_()
    folder = tmp_path / "out" / "run"
    (line,) = map(json.loads, lines(next(folder.glob("*.jsonl"))))
    assert [row["class"] for row in line["classes"]] == ["dog", "cow", "cat"]
    assert [row["class"] for row in csv.DictReader(lines(next(folder.glob("*.csv"))))] == ["dog", "cow", "cat"]
    assert lines(folder / "labels" / "picture.txt")[0] == "0.7000 dog"
    assert (np.asarray(Image.open(folder / "picture.png"))[:12, :30] != 90).any(), "the classes are drawn"


def test_a_classifier_without_metadata_gives_logits(tmp_path: Path, picture: Path) -> None:
    network = model(tmp_path / "cls.onnx", np.array([[1.0, 3.0]], np.float32), task="")
    built = onnx.load(network)
    del built.metadata_props[:]
    onnx.save(built, network)
    network.with_suffix(".yaml").write_text("names: [cat, dog]\n")
    found = only(picture, network).classification
    assert found is not None and found.confidence.tolist() == pytest.approx([0.8808, 0.1192], abs=1e-4)
    card = framefuse.models.card.read_card(network)
    assert card.origin["mean"].startswith("assumed") and card.preprocess.std[0] == pytest.approx(58.395)


@pytest.mark.parametrize("option", ["save_json", "track", "save_mot", "classes", "tiles"])
def test_what_a_classifier_cannot_give(tmp_path: Path, picture: Path, option: str) -> None:
    network = model(tmp_path / "cls.onnx", np.eye(2, dtype=np.float32)[:1], task="classify", imgsz=[64, 64])
    value: Any = {"track": "bytetrack", "classes": [0], "tiles": "2x2"}.get(option, True)
    with pytest.raises(UsageError, match=r"classes to whole frames|nothing is tracked"):
        Pipeline(picture, network, **{option: value})


@pytest.mark.parametrize("task", ["segment", "pose", "obb"])
def test_values_that_are_not_finite_in_one_head_only(tmp_path: Path, picture: Path, task: str) -> None:
    extra = {"segment": 1, "pose": 2, "obb": 1}[task]
    raw = anchors((32, 32, 20, 20, 0.9, 0, *[np.nan] * extra), (10, 10, 8, 8, 0.8, 0, *[1.0] * extra), extra=extra)
    more = [DISC[None, None]] if task == "segment" else []
    network = model(tmp_path / "m.onnx", raw, *more, task=task, kpt_shape=[1, 2])
    with pytest.raises(NonFiniteError):
        only(picture, network)


def test_an_empty_frame(tmp_path: Path, picture: Path) -> None:
    for task, extra, more in (("segment", 1, [DISC[None, None]]), ("pose", 2, []), ("obb", 1, [])):
        network = model(tmp_path / f"{task}.onnx", anchors(extra=extra), *more, task=task, kpt_shape=[1, 2])
        found = only(picture, network).detections
        assert len(found) == 0 and sum(part is not None for part in (found.runs, found.keypoints, found.xywhr)) == 1


def test_outputs_in_another_order(tmp_path: Path, picture: Path) -> None:
    raw = anchors((32, 32, 48, 48, 0.9, 0, 1), extra=1)
    found = only(picture, model(tmp_path / "seg.onnx", DISC[None, None], raw, task="segment")).detections
    assert len(found) == 1 and found.runs is not None and found.runs.areas[0] > 1000


def test_the_task_is_seen_from_the_outputs(tmp_path: Path) -> None:
    raw = anchors(extra=1)
    network = model(tmp_path / "seg.onnx", raw, DISC[None, None], task="segment")
    built = onnx.load(network)
    del built.metadata_props[:]
    onnx.save(built, network)
    card = framefuse.models.card.read_card(network)
    assert card.task == "segment" and card.class_count == 2 and "shapes" in card.origin["task"]


def test_what_a_gpu_does_not_read(tmp_path: Path) -> None:
    card, settings = read_card(model(tmp_path / "obb.onnx", anchors(extra=1), task="obb")), Settings(device="cuda")
    masks = RunPlan(replace(card, task="segment"), settings, None, "onnxruntime", 1, 0, {}, card.preprocess)
    with pytest.raises(CapabilityError, match="instance masks of views are found on the CPU only"):
        masks.for_views(cast("Viewer", None), SourceInfo("", "file"))


def test_wrong_number_of_names(tmp_path: Path, picture: Path) -> None:
    with pytest.raises(CardError, match="2 class names are given, but the outputs have 3"):
        only(picture, model(tmp_path / "c.onnx", np.ones((1, 3), np.float32), task="classify", imgsz=[64, 64]))


@pytest.mark.parametrize("layout", ["yolov8", "yolov5", "end2end"])
def test_oriented_suppression_against_the_reference(layout: str) -> None:
    maps = np.array(
        [[1, 1, 0, 0, 1, 1, 640, 640], [1, 1, 3, 140, 3, 3, 1920, 1080], [1, 1, 0, 0, 2, 3, 9, 9]], np.float32
    )
    for seed, count in enumerate((1, 5, 64, 65, 400, 2000)):
        rng = np.random.default_rng(seed)
        classes = int(rng.integers(1, 6))
        values = np.zeros((3, count, 5 + classes), np.float32)
        values[:, :, :2], values[:, :, 2:4] = rng.uniform(0, 300, (3, count, 2)), rng.uniform(0, 90, (3, count, 2))
        values[:, :, 4:-1] = rng.integers(0, 40, (3, count, classes)) / 40
        values[:, :, -1] = rng.uniform(-8, 8, (3, count))
        if count > 3:
            values[0, 2, -1], values[1, 1, 0], values[2, 0, 2:4] = np.nan, np.inf, 0
        if layout == "yolov5":
            values = np.insert(values, 4, 0.9, axis=2)
        elif layout == "end2end":
            labels = rng.integers(0, 3, (3, count, 1)).astype(np.float32)
            values = np.concatenate((values[:, :, :5], labels, values[:, :, -1:]), 2)
        output = np.ascontiguousarray(values.transpose(0, 2, 1)) if layout == "yolov8" else values
        for iou, agnostic, limit in ((0.0, False, 300), (0.3, True, 300), (0.7, False, 7), (1.0, False, 300)):
            asked: dict[str, Any] = {"conf": 0.3, "iou": iou, "max_det": limit, "agnostic": agnostic}
            arguments = [output], layout, maps
            found = boxes.detections(*arguments, **asked, oriented=True, max_candidates=500)
            expected = reference.detections(*arguments, **asked, oriented=True, max_candidates=500)
            assert found.counts.tolist() == expected.counts.tolist()
            assert found.non_finite.tolist() == expected.non_finite.tolist()
            for image, total in enumerate(expected.counts):
                for one, other in ((found.anchors, expected.anchors), (found.classes, expected.classes)):
                    assert one[image, :total].tolist() == other[image, :total].tolist()
                close = {"rtol": 1e-5, "atol": 1e-4}
                np.testing.assert_allclose(found.boxes[image, :total], expected.boxes[image, :total], **close)
    with pytest.raises(UsageError, match="oriented boxes have no layout 'detr'"):
        boxes.detections([output], "detr", maps, conf=0.3, iou=0.5, max_det=10, oriented=True)


def test_overlap_of_oriented_boxes() -> None:
    same = np.array(
        [[10, 10, 30, 8, 0.3], [10, 10, 30, 8, 0.3 + np.pi], [10, 10, 8, 30, 0.3 + np.pi / 2], [900, 10, 30, 8, 0]]
    )
    found = reference.probiou(same, same)
    assert (found[:3, :3] > 0.999).all() and (found[3, :3] < 1e-3).all()
    assert 0 < reference.probiou(same[:1], same[:1] + np.array((6, 0, 0, 0, 0)))[0, 0] < 0.9


def test_runs_of_many_masks() -> None:
    rng = np.random.default_rng(0)
    masks = rng.random((6, 13, 17)) > rng.random((6, 1, 1))
    masks[2], masks[3] = False, True
    runs = mask_runs(masks)
    assert isinstance(runs, Runs) and (runs.decode() == masks).all()
    assert runs.areas.tolist() == masks.sum((1, 2)).tolist()
    chosen = runs[np.array([4, 0, 3])]
    assert (chosen.decode() == masks[[4, 0, 3]]).all() and chosen.to_coco() == [runs.to_coco()[k] for k in (4, 0, 3)]
    both = Runs.concatenate([chosen, runs[1:2]])
    assert (both.decode() == masks[[4, 0, 3, 1]]).all()
    labels = runs.labels(np.arange(1, 7, dtype=np.uint8))
    first = np.where(masks.any(axis=0), masks.argmax(axis=0) + 1, 0)
    assert (labels == first).all()
    with pytest.raises(UsageError, match="6 masks of 17x13"):
        runs.labels(np.arange(5, dtype=np.uint8))


@pytest.mark.parametrize("seed", range(20))
def test_outlines_enclose_the_largest_part(seed: int) -> None:
    """A ring and a smaller blot: the outline is that of the ring without its hole, within a pixel."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:90, :120] + 0.5
    cx, cy, radius = rng.uniform(45, 60), rng.uniform(40, 50), rng.uniform(15, 35)
    away = np.hypot(x - cx, y - cy)
    mask = ((away < radius) & (away > radius / 2)) | ((x > 105) & (y < 9))
    found = mask_runs(mask[None])
    assert isinstance(found, Runs)
    ends = outline(found)
    assert np.abs(np.hypot(ends[:, 0] - cx, ends[:, 1] - cy) - radius).max() < 1.5 and len(ends) > 5
    one = mask_runs(np.eye(1, 9, 4, dtype=bool)[None])
    assert isinstance(one, Runs) and outline(one).tolist() == [[4, 0], [4, 1], [5, 1], [5, 0]]


def test_supervision_has_all_of_it_and_gives_it_back() -> None:
    pytest.importorskip("supervision")
    masks = np.zeros((2, 8, 9), bool)
    masks[0, 1:4, 2:5] = masks[1, 5:, 6:] = True
    runs = mask_runs(masks)
    assert isinstance(runs, Runs)
    base = np.array([[2, 1, 5, 4], [6, 5, 9, 8]], np.float32), np.array([0.9, 0.5], np.float32), np.array([1, 0]), NAMES
    points = np.arange(12, dtype=np.float32).reshape(2, 2, 3)
    boxes_ = np.array([[10, 20, 8, 4, 0.5], [30, 40, 6, 9, 2.0]], np.float32)
    back = Detections.from_supervision(Detections(*base, runs=runs, keypoints=points, xywhr=boxes_).to_supervision())
    assert back.mask is not None and (back.mask == masks).all()
    np.testing.assert_array_equal(back.keypoints, points)
    assert back.xywhr is not None
    np.testing.assert_allclose(corners(back.xywhr), corners(boxes_), atol=1e-4)
    found = Classification(np.array([0.2, 0.8], np.float32), NAMES).to_supervision()
    assert found.class_id.tolist() == [1, 0] and found.confidence[0] == pytest.approx(0.8)


def coco_file(folder: Path, *annotations: dict[str, Any]) -> Path:
    """One picture of 128x128 pixels with these objects."""
    (folder / "images").mkdir(exist_ok=True)
    Image.fromarray(np.full((2 * SIZE, 2 * SIZE, 3), 90, np.uint8)).save(folder / "images" / "a.png")
    rows = [
        {"id": number, "image_id": 1, "iscrowd": 0, "area": row["bbox"][2] * row["bbox"][3], **row}
        for number, row in enumerate(annotations, 1)
    ]
    image = {"id": 1, "file_name": "a.png", "width": 2 * SIZE, "height": 2 * SIZE}
    names = [{"id": 1, "name": "cat"}, {"id": 2, "name": "dog"}]
    (folder / "truth.json").write_text(json.dumps({"images": [image], "annotations": rows, "categories": names}))
    return folder / "truth.json"


@pytest.mark.parametrize(("shift", "score"), [(0, 1.0), (60, 0.0)])
def test_masks_are_scored(tmp_path: Path, picture: Path, shift: int, score: float) -> None:
    """The box is right in both cases; the mask is where the truth has it, or beside it."""
    pytest.importorskip("faster_coco_eval")
    y, x = np.mgrid[: 2 * SIZE, : 2 * SIZE] + 0.5
    truth = mask_runs((np.hypot(y - 64, x - 64 - shift) < 40)[None])
    assert isinstance(truth, Runs)
    (outline_,) = truth.to_coco()
    segmentation = {**outline_, "counts": outline_["counts"].decode()}
    data = coco_file(tmp_path, {"category_id": 1, "bbox": [16, 16, 96, 96], "segmentation": segmentation})
    raw = anchors((32, 32, 48, 48, 0.9, 0, 1), extra=1)
    network = model(tmp_path / "seg.onnx", raw, DISC[None, None], task="segment")
    scores = validate(network, data, precision="fp32")
    assert scores.boxes is not None and scores.boxes.map50 == pytest.approx(1)
    assert scores.boxes.shape_map50 == pytest.approx(score)
    columns, row = table([Row(Wanted("seg", "auto", "auto"), scores)])
    assert row[columns.index("masks 50")] == f"{100 * score:.1f}"


@pytest.mark.parametrize(("off", "score"), [(0, 1.0), (40, 0.0)])
def test_keypoints_are_scored(tmp_path: Path, picture: Path, off: int, score: float) -> None:
    pytest.importorskip("faster_coco_eval")
    points = [20 + off, 40, 2, 100 - off, 100, 2]
    truth = {"category_id": 1, "bbox": [16, 16, 96, 96], "keypoints": points, "num_keypoints": 2}
    raw = anchors((32, 32, 48, 48, 0.9, 0, 10, 20, 50, 50), extra=4)
    network = model(tmp_path / "pose.onnx", raw, task="pose", kpt_shape=[2, 2])
    scores = validate(network, coco_file(tmp_path, truth), precision="fp32")
    assert scores.boxes is not None and scores.boxes.shape_map50 == pytest.approx(score)


@pytest.mark.parametrize(("sign", "score"), [(1, 1.0), (-1, 0.0)])
def test_oriented_boxes_are_scored_by_what_is_inside(tmp_path: Path, picture: Path, sign: int, score: float) -> None:
    """The upright box around both angles is the same."""
    pytest.importorskip("faster_coco_eval")
    outline_ = corners(np.array([[64, 64, 96, 24, 0.5]], np.float32))[0]
    (left, top), (right, bottom) = outline_.min(0).tolist(), outline_.max(0).tolist()
    upright = [left, top, right - left, bottom - top]
    data = coco_file(tmp_path, {"category_id": 1, "bbox": upright, "segmentation": [outline_.ravel().tolist()]})
    network = model(tmp_path / "obb.onnx", anchors((32, 32, 48, 12, 0.9, 0, 0.5 * sign), extra=1), task="obb")
    scores = validate(network, data, precision="fp32")
    assert scores.boxes is not None and scores.boxes.map50 == pytest.approx(1)
    assert scores.boxes.shape_map50_95 == pytest.approx(score)
    columns, row = table([Row(Wanted("obb", "auto", "auto"), scores)])
    assert row[columns.index("oriented boxes 50")] == f"{100 * score:.1f}"


def test_data_without_masks_score_boxes_only(tmp_path: Path, picture: Path) -> None:
    pytest.importorskip("faster_coco_eval")
    network = model(
        tmp_path / "s.onnx", anchors((32, 32, 48, 48, 0.9, 0, 1), extra=1), DISC[None, None], task="segment"
    )
    data = coco_file(tmp_path, {"category_id": 1, "bbox": [16, 16, 96, 96]})
    scores = validate(network, data, precision="fp32").boxes
    assert scores is not None and scores.map50 == pytest.approx(1) and scores.shape_map50 is None
    broken = coco_file(tmp_path, {"category_id": 1, "bbox": [16, 16, 96, 96], "segmentation": [[1, 2, 3]]})
    with pytest.raises(DecodeError, match="annotation that cannot be read"):
        validate(network, broken, precision="fp32")


def class_folders(root: Path, **counts: int) -> Path:
    random = np.random.default_rng(0)
    for name, count in counts.items():
        (root / name).mkdir(parents=True)
        for number in range(count):
            size = random.integers(40, 90, 2)
            Image.fromarray(random.integers(0, 255, (*size, 3), np.uint8)).save(root / name / f"{number}.png")
    (root / "README.txt").write_text("not a class")
    return root


@pytest.mark.parametrize("names", [("cat", "dog"), ("n01", "n02")])
def test_classes_are_scored(tmp_path: Path, names: tuple[str, str]) -> None:
    """The model says cat to everything; folders with other names are classes in their order."""
    network = model(tmp_path / "cls.onnx", np.array([[0.7, 0.3]], np.float32), task="classify", imgsz=[64, 64])
    data = class_folders(tmp_path / "data", **dict(zip(names, (3, 1), strict=True)))
    scores = validate(network, data, precision="fp32")
    assert scores.images is not None and scores.frames == 4
    assert (scores.images.top1, scores.images.top5, scores.value) == (0.75, 1.0, 0.75)
    assert scores.images.by_class == {"cat": (3, 1.0), "dog": (1, 0.0)} or names != ("cat", "dog")
    assert any("in this order" in note for note in scores.notes) is (names != ("cat", "dog"))
    columns, row = table([Row(Wanted("cls", "auto", "auto"), scores)])
    assert (row[columns.index("top-1")], row[columns.index("top-5")]) == ("75.0", "100.0")


def test_what_fits_neither_model_nor_data_is_said(tmp_path: Path, picture: Path) -> None:
    classifier = model(tmp_path / "cls.onnx", np.array([[0.7, 0.3]], np.float32), task="classify", imgsz=[64, 64])
    detector = model(tmp_path / "pose.onnx", anchors(extra=4), task="pose", kpt_shape=[2, 2])
    folders = class_folders(tmp_path / "data", cat=1, dog=1)
    with pytest.raises(UsageError, match="does not say the class of each image"):
        validate(classifier, coco_file(tmp_path, {"category_id": 1, "bbox": [16, 16, 96, 96]}))
    with pytest.raises(UsageError, match=r"says the class of each image, but pose\.onnx has the task pose"):
        validate(detector, folders)
    with pytest.raises(UsageError, match="no class in common"):
        validate(classifier, class_folders(tmp_path / "other", apple=1, pear=1, plum=1))


def test_models_show_describes_what_is_not_recognised(tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from framefuse.cli.app import app

    network = model(tmp_path / "odd.onnx", np.arange(24, dtype=np.float32).reshape(1, 2, 3, 4), task="detect")
    done = CliRunner().invoke(app, ["models", "show", str(network)])
    assert "output0" in done.stdout and "1x2x3x4" in done.stdout and "23" in done.stdout
    assert "outputs: [output0]" in done.stdout and isinstance(done.exception, CardError)
