"""Detectors with a second input for the sizes of the images, as the authors of RT-DETR and D-FINE export them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import openvino
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from framefuse import Model
from framefuse.errors import ModelError
from framefuse.models.card import Card, read_card

BOXES = np.array([[[0.1, 0.2, 0.5, 0.6], [0.25, 0.5, 0.75, 1.0]]], np.float32)
"""Two objects: x1, y1, x2, y2 as shares of the image."""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Boxes that only depend on the sizes: shares times (width, height, width, height)."""
    constants = {
        "boxes_of_1": BOXES, "labels_of_1": np.array([[1, 0]]), "scores_of_1": np.array([[0.9, 0.8]], np.float32),
        "twice": np.array([1, 2]), "axis": np.array([1]), "zero": np.float32(0), "all": np.array([1, 2, 3]),
    }  # fmt: skip
    node = helper.make_node
    nodes = [
        node("ReduceMean", ["images", "all"], ["mean"], keepdims=0),
        node("Mul", ["mean", "zero"], ["nothing"]),
        node("Tile", ["orig_target_sizes", "twice"], ["sides"]),
        node("Unsqueeze", ["sides", "axis"], ["sides_of_boxes"]),
        node("Cast", ["sides_of_boxes"], ["factors"], to=TensorProto.FLOAT),
        node("Mul", ["boxes_of_1", "factors"], ["scaled"]),
        node("Add", ["scaled", "nothing"], ["boxes"]),
        node("Identity", ["labels_of_1"], ["labels"]),
        node("Add", ["scores_of_1", "nothing"], ["scores"]),
    ]
    value = helper.make_tensor_value_info
    inputs = [value("images", TensorProto.FLOAT, [1, 3, 64, 64]), value("orig_target_sizes", TensorProto.INT64, [1, 2])]
    outputs = [value("labels", TensorProto.INT64, [1, 2]), value("boxes", TensorProto.FLOAT, [1, 2, 4]),
               value("scores", TensorProto.FLOAT, [1, 2])]  # fmt: skip
    weights = [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()]
    graph = helper.make_graph(nodes, "detector", inputs, outputs, weights)
    path = tmp_path / "rtdetr.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), path)
    path.with_suffix(".yaml").write_text("names: [cat, dog]\n")
    return path


def expected(width: int, height: int) -> NDArray[np.float32]:
    return BOXES[0] * np.array([width, height, width, height], np.float32)


@pytest.mark.parametrize("engine", ["openvino", "onnxruntime"])
@pytest.mark.parametrize(("width", "height"), [(640, 360), (123, 457)])
def test_boxes_are_in_pixels_of_the_image(model: Path, engine: str, width: int, height: int) -> None:
    with Model(model, device="cpu", engine=engine, precision="fp32") as detector:
        found = detector(np.full((height, width, 3), 90, np.uint8)).detections
    np.testing.assert_allclose(found.xyxy, expected(width, height), atol=0.1)
    assert [found.names[number] for number in found.class_id] == ["dog", "cat"]
    np.testing.assert_allclose(found.confidence, [0.9, 0.8], atol=1e-3)


def test_the_card_says_what_was_assumed(model: Path, cache: Path) -> None:
    card = read_card(model)
    assert (card.layout, card.box_units, card.path.name) == ("detr", "relative", "rtdetr.onnx")
    assert "orig_target_sizes" in card.origin["box_units"]
    assert card.path.is_relative_to(cache) and card.path.read_bytes() == read_card(model).path.read_bytes()
    assert [entry.name for entry in onnx.load(card.path).graph.input] == ["images"]


def test_the_copy_is_read_as_the_model(model: Path) -> None:
    """With the model's own card, as where a run is opened by the path of a card."""
    card = read_card(model)
    again = read_card(card.path)
    assert (again.path, again.names, again.layout, again.box_units) == (card.path, *card_facts(card))
    assert again.origin == card.origin
    model.with_suffix(".yaml").write_text("names: [lion, wolf]\n")
    assert read_card(card.path).names == {0: "lion", 1: "wolf"}


def card_facts(card: Card) -> tuple[object, ...]:
    return card.names, card.layout, card.box_units


def test_models_of_openvino_are_not_copied(model: Path, cache: Path, tmp_path: Path) -> None:
    openvino.save_model(openvino.Core().read_model(model), tmp_path / "detector.xml")
    with pytest.raises(ModelError, match=r"has 2 inputs.*orig_target_sizes"):
        read_card(tmp_path / "detector.xml")
    assert not cache.exists()


def test_a_cache_that_cannot_be_written(model: Path, cache: Path) -> None:
    cache.write_text("not a folder")
    with pytest.raises(ModelError, match=r"cannot copy .*rtdetr\.onnx"):
        read_card(model)


def test_a_model_that_changes_is_copied_again(model: Path) -> None:
    before = read_card(model).path
    changed = onnx.load(model)
    changed.doc_string = "another one"
    onnx.save(changed, model)
    assert read_card(model).path != before
