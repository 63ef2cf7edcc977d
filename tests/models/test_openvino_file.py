"""Models as OpenVINO and TensorFlow Lite write them: the same boxes as from ONNX."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import openvino
import pytest

import framefuse
from framefuse import Pipeline
from framefuse.errors import CapabilityError, CardError, ModelError
from framefuse.models import find_model
from framefuse.models.card import read_card

SQUARES = find_model("squares")


def converted(folder: Path, *, channels_last: bool = False, **metadata: Any) -> Path:
    """`squares` as files of OpenVINO."""
    network = openvino.Core().read_model(SQUARES)
    if channels_last:
        changes = openvino.preprocess.PrePostProcessor(network)
        changes.input(0).model().set_layout(openvino.Layout("NCHW"))
        changes.input(0).tensor().set_layout(openvino.Layout("NHWC"))
        network = changes.build()
    openvino.save_model(network, folder / "squares.xml", compress_to_fp16=False)
    card = read_card(SQUARES)
    known = {"names": dict(card.names), "imgsz": [card.preprocess.height, card.preprocess.width], "task": "detect"}
    lines = (f"{key}: {json.dumps(value)}" for key, value in {**known, "stride": 32, **metadata}.items())
    (folder / "metadata.yaml").write_text("\n".join(lines) + "\n")
    return folder / "squares.xml"


def boxes(model: Path | str, clip: Any, **options: Any) -> list[np.ndarray[Any, Any]]:
    return [result.detections.xyxy for result in Pipeline(clip, model, precision="fp32", end=0.3, **options)]


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from training.squares_clip import squares_clip

    path = tmp_path_factory.mktemp("clip") / "squares.mp4"
    squares_clip(path)
    return path


@pytest.mark.parametrize("channels_last", [False, True])
def test_the_same_boxes(tmp_path: Path, clip: Path, channels_last: bool) -> None:
    model = converted(tmp_path, channels_last=channels_last)
    card = read_card(model)
    assert card.names == read_card(SQUARES).names and card.origin["names"] == "metadata.yaml names"
    found, expected = boxes(model, clip), boxes("squares", clip)
    assert len(found) == len(expected) and sum(map(len, expected)) > 0
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, atol=0.05)


def test_other_engines_say_so(tmp_path: Path, clip: Path) -> None:
    with pytest.raises(CapabilityError, match=r"engine onnxruntime does not read \.xml"):
        boxes(converted(tmp_path), clip, engine="onnxruntime")


def test_files_that_are_no_models(tmp_path: Path) -> None:
    model = converted(tmp_path)
    model.with_suffix(".bin").unlink()
    with pytest.raises((ModelError, framefuse.FramefuseError), match=r"cannot read|cannot be read"):
        read_card(model)
    for name in ("text.xml", "text.tflite"):
        (tmp_path / name).write_text("no model")
        with pytest.raises(ModelError, match="OpenVINO cannot read"):
            read_card(tmp_path / name)
    with pytest.raises(ModelError):
        read_card(tmp_path / "missing.xml")


def test_broken_metadata(tmp_path: Path) -> None:
    model = converted(tmp_path)
    (tmp_path / "metadata.yaml").write_text("names: [")
    with pytest.raises(CardError, match=r"metadata\.yaml cannot be read"):
        read_card(model)
