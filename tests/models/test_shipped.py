"""The models that come with framefuse: unchanged, of the size that is promised, and what their cards say."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from framefuse import Pipeline, models
from framefuse.errors import ModelError
from framefuse.lab import doctor
from framefuse.models import DATA, REINSTALL, SHA256, SHIPPED, find_model
from framefuse.models.card import read_card
from framefuse.models.cardfile import read_card_file

LARGEST = {"scout-n": 3.1e6, "scout-s": 10e6, "scout-n-int8": 1e6, "body-n": 3e6, "body-n-2": 3e6}
LARGEST |= {"scout-n-seg": 4e6, "scout-n-pose": 4e6}
"""Bytes of the file, whatever its precision."""
TRAINED = [name for name in SHIPPED if name != "squares"]


@pytest.mark.parametrize("name", TRAINED)
def test_a_shipped_model_is_found_by_name_and_says_what_it_is(name: str) -> None:
    path = find_model(name)
    assert path.stat().st_size <= LARGEST[name]
    card = read_card(path)
    assert card.dynamic_batch and card.dynamic_size
    assert (card.preprocess.height, card.preprocess.width) == ((384 if name == "body-n" else 640), 640)
    about = read_card_file(path.with_suffix(".yaml")).about
    assert about is not None and about["licence"] == "Apache-2.0" and about["scores"] and about["world"] >= 1
    assert all(isinstance(seed, int) for seed in about["seeds"]) and about["seeds"]


@pytest.mark.parametrize("name", TRAINED)
@pytest.mark.parametrize("size", [(64, 96), (160, 32)])
def test_a_shipped_model_runs_at_any_multiple_of_32(name: str, size: tuple[int, int]) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    session = onnxruntime.InferenceSession(str(find_model(name)), providers=["CPUExecutionProvider"])
    found, *planes = session.run(None, {"images": np.zeros((2, 3, *size), np.float32)})
    cells = sum((size[0] // stride) * (size[1] // stride) for stride in (8, 16, 32))
    card = read_card(find_model(name))
    classes, semantic = card.class_count, name.startswith("body")
    values = 4 + classes + card.extra
    assert found.shape == ((2, classes, size[0] // 2, size[1] // 2) if semantic else (2, values, cells))
    assert [plane.shape for plane in planes] == [(2, 16, size[0] // 4, size[1] // 4)] * (card.task == "segment")
    assert np.isfinite(found).all()


@pytest.mark.parametrize("name", TRAINED)
def test_a_shipped_model_is_valid_where_its_shapes_are_known(name: str) -> None:
    """As engines that are built for one shape read it: ONNX Runtime on CUDA, TensorRT."""
    import onnx

    from framefuse.engines.onnx_shapes import at_shape
    from framefuse.models.onnx_file import load_onnx

    onnxruntime = pytest.importorskip("onnxruntime")
    model = at_shape(load_onnx(find_model(name)), (1, 3, 64, 96))
    onnx.checker.check_model(model, full_check=True)
    onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("engine", ["openvino", "onnxruntime"])
@pytest.mark.parametrize("name", TRAINED)
def test_a_shipped_model_sees_the_world(name: str, engine: str) -> None:
    pytest.importorskip(engine)
    scene = "bodies" if name.startswith("body") else "street"
    source = f"synthetic://{scene}?split=test&frames=2&size=640x384&complexity=1&seed=2"
    for precision in ("auto", "fp32"):
        if name.endswith("int8") and precision == "fp32":
            continue  # refused: it is quantised
        results = list(Pipeline(source, name, engine=engine, precision=precision, conf=0.4))
        assert len(results) == 2
        if scene == "bodies":
            masks = [result.masks for result in results]
            assert all(mask is not None and 0.02 < (mask.class_id > 0).mean() < 0.98 for mask in masks)
        else:
            least = 1 if name.endswith("pose") else 5  # it finds people only
            assert all(len(result.detections) >= least for result in results)


def test_a_changed_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copy(DATA / "scout-n.onnx", tmp_path)
    path = tmp_path / "scout-n.onnx"
    monkeypatch.setattr(models, "DATA", tmp_path)
    assert find_model("scout-n") == path
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(
        ModelError, match=r"scout-n\.onnx is not the model scout-n: its SHA-256 is \w{64}, not "
    ) as caught:
        find_model("scout-n")
    assert SHA256["scout-n"] in caught.value.message and "install framefuse again" in str(caught.value.remedy)
    path.unlink()
    with pytest.raises(ModelError, match=r"scout-n\.onnx, the model scout-n, cannot be read"):
        find_model("scout-n")


def test_a_name_that_is_nearly_right_is_suggested() -> None:
    with pytest.raises(ModelError) as caught:
        find_model("scout-m")
    assert "scout-" in str(caught.value.remedy)


def test_the_doctor_looks_at_the_files(monkeypatch: pytest.MonkeyPatch) -> None:
    def check() -> doctor.Check:
        return doctor._try("shipped models", doctor._shipped_models, remedy=REINSTALL)

    assert check().status == "PASS"
    monkeypatch.setitem(SHA256, "scout-s", "0" * 64)
    found = check()
    assert found.status == "FAIL" and "scout-s.onnx is not the model scout-s" in found.detail
    assert "install framefuse again" in found.remedy
