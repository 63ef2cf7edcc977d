"""Heads that a model should not have: no class, very many classes, counts that contradict the card, endless angles."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

from framefuse.errors import CardError
from framefuse.kernels.boxes import call as boxes
from framefuse.kernels.boxes import reference
from framefuse.kernels.boxes.call import HEAD
from known_models import SIZE, anchors, model, only

CLASSES = 10_000
CHOSEN = 0, 9_999, 4_567
EXTRA = {"detect": 0, "segment": 1, "pose": 4, "obb": 1}
"""Task -> values of an anchor after its classes."""
KEYPOINTS = {"kpt_shape": [2, 2]}
PROTOTYPES = np.ones((1, 1, 16, 16), np.float32)
ENGINES = "openvino", "onnxruntime"


def unnamed(path: Path) -> Path:
    """The model without its class names."""
    built = onnx.load(path)
    kept = [entry for entry in built.metadata_props if entry.key != "names"]
    del built.metadata_props[:]
    built.metadata_props.extend(kept)
    onnx.save(built, path)
    return path


def network(path: Path, task: str, raw: NDArray[np.float32], **metadata: Any) -> Path:
    more = [PROTOTYPES] if task == "segment" else []
    return model(path, raw, *more, task=task, **(KEYPOINTS if task == "pose" else {}), **metadata)


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("stated", [True, False])
@pytest.mark.parametrize("layout", ["yolov8", "yolov5"])
@pytest.mark.parametrize("task", EXTRA)
def test_boxes_without_classes(
    tmp_path: Path, picture: Path, task: str, layout: str, stated: bool, named: bool
) -> None:
    """The values of an anchor are those of its box, and what follows the classes."""
    shape = (1, 84, 4 + EXTRA[task]) if layout == "yolov8" else (1, 252, 5 + EXTRA[task])
    raw = np.zeros(shape, np.float32)
    file = network(tmp_path / "none.onnx", task, raw.transpose(0, 2, 1) if layout == "yolov8" else raw)
    file.with_suffix(".yaml").write_text(f"layout: {layout}\n" if stated else "")
    with pytest.raises(CardError, match=r"output0 \(1, .* (does not fit layout|is no known layout)") as caught:
        only(picture, file if named else unnamed(file))
    assert "layout" in (caught.value.remedy or "")


@pytest.mark.parametrize("task", [*EXTRA, "classify"])
def test_an_empty_list_of_names(tmp_path: Path, picture: Path, task: str) -> None:
    raw = np.eye(2, dtype=np.float32)[:1] if task == "classify" else anchors(extra=EXTRA[task])
    with pytest.raises(CardError, match="names in onnx metadata are empty") as caught:
        only(picture, network(tmp_path / "none.onnx", task, raw, names="{}", imgsz=[SIZE, SIZE]))
    assert "add names" in (caught.value.remedy or "")


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("task", "shapes", "card"),
    [
        ("classify", [(1, 0)], ""),
        ("classify", [(1, 0, 1, 1)], ""),
        ("semantic", [(1, 0, 16, 16)], ""),
        ("detect", [(1, 20, 4), (1, 20, 0)], ""),
        ("detect", [(1, 20, 4), (1, 20, 1)], "layout: detr\nactivation: softmax\noutputs: [output0, output1]\n"),
        ("detect", [(1, 0, 16, 16), (1, 2, 16, 16), (1, 2, 16, 16)], ""),
    ],
)
def test_outputs_without_classes(
    tmp_path: Path, picture: Path, task: str, shapes: list[tuple[int, ...]], card: str, engine: str
) -> None:
    """An axis of length 0 counts as free in a file: only the outputs themselves show that there is no class."""
    pytest.importorskip(engine)
    outputs = [np.zeros(shape, np.float32) for shape in shapes]
    file = unnamed(model(tmp_path / "none.onnx", *outputs, task=task, imgsz=[SIZE, SIZE]))
    file.with_suffix(".yaml").write_text(card)
    with pytest.raises(CardError, match=r"needs at least one class, but its outputs have 0") as caught:
        only(picture, file, engine=engine)
    assert "none.yaml" in (caught.value.remedy or "")


def many(layout: str, extra: tuple[float, ...]) -> NDArray[np.float32]:
    """Raw outputs of an image with one object of each of the CHOSEN classes, side by side."""
    lead = {"yolov8": 4, "yolov5": 5, "end2end": 6}[layout]
    table = np.zeros(
        ({"yolov8": 84, "yolov5": 252, "end2end": 20}[layout], lead + (layout != "end2end") * CLASSES + len(extra)),
        np.float32,
    )
    if layout == "yolov5":
        table[:, 4] = 1
    for row, number in enumerate(CHOSEN):
        table[row, :4] = 14 + 16 * row, 20, 12, 20
        table[row, len(table[row]) - len(extra) :] = extra
        if layout == "end2end":
            table[row, 4:6] = 0.9 - 0.1 * row, number
        else:
            table[row, lead + number] = 0.9 - 0.1 * row
    return table.T[None] if layout == "yolov8" else table[None]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("layout", ["yolov8", "yolov5", "end2end"])
@pytest.mark.parametrize("task", EXTRA)
def test_very_many_classes(tmp_path: Path, picture: Path, task: str, layout: str, engine: str) -> None:
    pytest.importorskip(engine)
    names = {number: f"kind {number}" for number in range(CLASSES)}
    values = {"detect": (), "segment": (1.0,), "pose": (10.0, 20.0, 30.0, 40.0), "obb": (0.0,)}[task]
    raw = many(layout, values)
    if layout == "end2end" and task != "obb":  # corners
        raw[0, :, :4] = np.hstack((raw[0, :, :2] - raw[0, :, 2:4] / 2, raw[0, :, :2] + raw[0, :, 2:4] / 2))
    file = network(tmp_path / "many.onnx", task, raw, names=names, end2end=layout == "end2end")
    flags = {name: True for name in ("save", "save_jsonl", "save_csv", "save_json", "save_txt")}
    found = only(picture, file, engine=engine, project=tmp_path / "out", name="run", **flags).detections
    assert found.class_id.tolist() == list(CHOSEN)
    assert [one.name for one in found] == [f"kind {number}" for number in CHOSEN]
    np.testing.assert_allclose(found.confidence, (0.9, 0.8, 0.7), atol=1e-6)
    places = [(16 + 32 * row, 20, 40 + 32 * row, 60) for row in range(3)]
    np.testing.assert_allclose(found.xyxy, places, atol=1e-4)

    folder = tmp_path / "out" / "run"
    (line,) = map(json.loads, next(folder.glob("*.jsonl")).read_text().splitlines())
    assert [row["class_id"] for row in line["detections"]] == list(CHOSEN)
    coco = json.loads(next(path for path in folder.glob("*.json") if path.name != "report.json").read_text())
    assert [row["category_id"] - 1 for row in coco["annotations"]] == list(CHOSEN)
    assert {row["id"]: row["name"] for row in coco["categories"]}[10_000] == "kind 9999"
    labels = (folder / "labels" / "picture.txt").read_text().splitlines()
    assert [int(label.split()[0]) for label in labels] == list(CHOSEN)

    pytest.importorskip("supervision")
    given = found.to_supervision()
    assert given.class_id.tolist() == list(CHOSEN) and given.data["class_name"][1] == "kind 9999"


@pytest.mark.parametrize("engine", ENGINES)
def test_a_classifier_of_very_many_classes(tmp_path: Path, picture: Path, engine: str) -> None:
    pytest.importorskip(engine)
    scores, best = np.zeros((1, CLASSES), np.float32), (9_999, 0, 4_567, 77, 8_000)
    scores[0, best] = 0.3, 0.25, 0.2, 0.1, 0.05
    names = {number: f"kind {number}" for number in range(CLASSES)}
    file = model(tmp_path / "many.onnx", scores, task="classify", names=names, imgsz=[SIZE, SIZE])
    found = only(picture, file, engine=engine, project=tmp_path / "out", name="run", save_jsonl=True)
    assert found.classification is not None
    expected = [(f"kind {number}", pytest.approx(float(scores[0, number]))) for number in best]
    assert found.classification.top() == expected
    (line,) = map(json.loads, next((tmp_path / "out" / "run").glob("*.jsonl")).read_text().splitlines())
    assert [row["class"] for row in line["classes"]] == [f"kind {number}" for number in best]


def test_the_head_of_yolov8_with_very_many_classes() -> None:
    """Where an engine leaves out the decoding, the logits of the classes are read as they are."""
    rng = np.random.default_rng(0)
    outputs = []
    for side in (8, 4, 2):
        outputs.append(rng.normal(0, 1, (1, side, side, 64)).astype(np.float32))
        outputs.append(np.full((1, side, side, CLASSES), -20, np.float32))
    for row, number in enumerate(CHOSEN):
        outputs[1][0, 2 * row, 3, number] = 2 - row / 2
    maps = np.array([[1, 1, 0, 0, 2, 2, 2 * SIZE, 2 * SIZE]], np.float32)
    limits: dict[str, Any] = {"conf": 0.25, "iou": 1.0, "max_det": 10}
    ours, truth = (room.detections(outputs, HEAD, maps, **limits) for room in (boxes, reference))
    assert ours.counts.tolist() == truth.counts.tolist() == [3]
    assert ours.classes[0, :3].tolist() == truth.classes[0, :3].tolist() == list(CHOSEN)
    np.testing.assert_allclose(ours.boxes[0, :3], truth.boxes[0, :3], atol=1e-3)


def test_names_that_leave_another_number_of_keypoints(tmp_path: Path, picture: Path) -> None:
    """The file has two keypoints and two classes; its card says one keypoint, which leaves four classes."""
    file = network(tmp_path / "pose.onnx", "pose", anchors(extra=4))
    file.with_suffix(".yaml").write_text("keypoints: [1, 2]\n")
    with pytest.raises(CardError, match="2 class names are given, but the outputs have 4 classes") as caught:
        only(picture, file)
    assert "correct names or keypoints" in (caught.value.remedy or "")
    file.with_suffix(".yaml").write_text("keypoints: [3, 2]\n")
    with pytest.raises(CardError, match="no known layout"):
        only(picture, file)


def test_prototypes_are_missing(tmp_path: Path, picture: Path) -> None:
    file = model(tmp_path / "seg.onnx", anchors(extra=1), task="segment")
    with pytest.raises(CardError, match="needs boxes with coefficients, and prototypes") as caught:
        only(picture, file)
    assert "export it with both outputs" in (caught.value.remedy or "")


@pytest.mark.parametrize("task", EXTRA)
@pytest.mark.parametrize("count", [1, 3])
def test_class_lists_of_the_wrong_length(tmp_path: Path, picture: Path, task: str, count: int) -> None:
    names = {number: str(number) for number in range(count)}
    with pytest.raises(CardError, match=f"{count} class names are given, but the outputs have 2 classes") as caught:
        only(picture, network(tmp_path / "m.onnx", task, anchors(extra=EXTRA[task]), names=names))
    assert "correct names" in (caught.value.remedy or "")


@pytest.mark.parametrize("turns", [-1000, -3, 1, 7, 1000])
def test_angles_beyond_a_turn(tmp_path: Path, picture: Path, turns: int) -> None:
    """The same corners as within a turn, and the same suppression of a copy."""
    angle = np.pi / 6 + 2 * np.pi * turns
    rows = [(32, 32, 40, 10, 0.9, 0, angle), (32, 32, 40, 10, 0.8, 0, np.pi / 6)]
    file = network(tmp_path / "obb.onnx", "obb", anchors(*rows, extra=1))
    found = only(picture, file, iou=0.5, project=tmp_path / "out", name="run", save=True, save_txt=True).detections
    assert len(found) == 1 and found.obb is not None
    plain = network(tmp_path / "plain.onnx", "obb", anchors(rows[1], extra=1))
    expected = only(picture, plain).detections.obb
    np.testing.assert_allclose(found.obb, expected, atol=0.05)
    (label,) = (tmp_path / "out" / "run" / "labels" / "picture.txt").read_text().splitlines()
    np.testing.assert_allclose(np.array(label.split()[1:], float).reshape(1, 4, 2) * 2 * SIZE, expected, atol=0.05)
