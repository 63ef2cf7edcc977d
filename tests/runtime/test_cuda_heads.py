"""Masks, keypoints, oriented boxes and classes on an NVIDIA GPU are those of the host."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from framefuse import Pipeline, Result
from known_models import SIZE, anchors, model

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        "CUDAExecutionProvider" not in onnxruntime.get_available_providers(), reason="ONNX Runtime is that for CPUs"
    ),
]
KEYPOINTS = (5, 3)


@pytest.fixture(scope="module")
def images() -> list[np.ndarray[Any, Any]]:
    random = np.random.default_rng(0)
    return [
        random.integers(0, 255, (height, width, 3), np.uint8) for height, width in ((360, 640), (360, 640), (97, 61))
    ]


def outputs(task: str, layout: str) -> list[np.ndarray[Any, Any]]:
    """Thirty objects that overlap, and what the anchors say after the classes."""
    random, extra = np.random.default_rng(7), {"segment": 8, "pose": KEYPOINTS[0] * KEYPOINTS[1], "obb": 1}[task]
    count = 18 if layout == "end2end" else 30
    sides = np.concatenate((random.uniform(5, 59, (count, 2)), random.uniform(4, 30, (count, 2))), 1)
    if layout == "end2end" and task != "obb":
        sides = np.concatenate((sides[:, :2] - sides[:, 2:] / 2, sides[:, :2] + sides[:, 2:] / 2), 1)
    more = random.uniform(0, 3, (count, extra)) if task == "obb" else random.uniform(-1, SIZE, (count, extra))
    more = random.normal(size=(count, extra)) if task == "segment" else more
    rows = np.concatenate((sides, random.uniform(0.1, 0.9, (count, 2)), more), 1)
    found = [anchors(*map(tuple, rows), extra=extra, layout=layout)]
    return [*found, random.normal(size=(1, 8, 16, 16))] if task == "segment" else found


def both(network: Path, images: list[Any], **options: Any) -> list[tuple[Result, Result]]:
    cpu, gpu = (list(Pipeline(images, network, device=device, engine="onnxruntime", precision="fp32", **options))
                for device in ("cpu", "cuda"))  # fmt: skip
    return list(zip(cpu, gpu, strict=True))


@pytest.mark.parametrize("layout", ["yolov8", "yolov5", "end2end"])
@pytest.mark.parametrize("task", ["segment", "pose", "obb"])
def test_objects(tmp_path: Path, images: list[Any], task: str, layout: str) -> None:
    about = {"kpt_shape": list(KEYPOINTS)} if task == "pose" else {}
    end = {"end2end": True} if layout == "end2end" else {}
    network = model(tmp_path / "known.onnx", *outputs(task, layout), task=task, **about, **end)
    if layout == "yolov5":
        network.with_suffix(".yaml").write_text("layout: yolov5\n")
    for expected, found in both(network, images, conf=0.2, iou=0.5):
        here, there = found.detections, expected.detections
        assert 2 < len(here) == len(there)
        assert here.class_id.tolist() == there.class_id.tolist()
        np.testing.assert_allclose(here.xyxy, there.xyxy, atol=1e-2)
        for name in ("keypoints", "xywhr"):
            one, other = getattr(here, name), getattr(there, name)
            assert (one is None) == (other is None)
            if one is not None:
                np.testing.assert_allclose(one, other, atol=1e-2)
        if task == "segment":
            assert here.mask is not None and there.mask is not None
            assert (here.mask == there.mask).mean() > 0.9999


def test_classes(tmp_path: Path, images: list[Any]) -> None:
    network = model(tmp_path / "known.onnx", np.array([[1.5, 0.3]]), task="classify")
    for expected, found in both(network, images):
        assert expected.classification is not None and found.classification is not None
        np.testing.assert_allclose(found.classification.confidence, expected.classification.confidence, atol=1e-6)


def test_mattes(tmp_path: Path, images: list[Any]) -> None:
    network = model(tmp_path / "known.onnx", np.random.default_rng(3).normal(size=(1, 3, 32, 32)), task="semantic")
    network.with_suffix(".yaml").write_text("names: [background, cat, dog]\n")
    for expected, found in both(network, images, save_matte="png", project=tmp_path / "runs"):
        assert expected.matte is not None and found.matte is not None
        apart = np.abs(expected.matte.alpha().astype(int) - found.matte.alpha())
        assert apart.mean() < 0.5 and (apart > 8).mean() < 1e-3


@pytest.mark.parametrize("layout", ["yolox", "nanodet"])
def test_undecoded_layouts(tmp_path: Path, images: list[Any], layout: str) -> None:
    values = 7 if layout == "yolox" else 2 + 4 * 8
    raw = np.random.default_rng(4).uniform(0.2, 0.9, (1, 84, values))
    network = model(tmp_path / "known.onnx", raw, task="detect")
    network.with_suffix(".yaml").write_text(f"layout: {layout}\n")
    for expected, found in both(network, images, conf=0.4):
        assert 0 < len(found.detections) == len(expected.detections)
        np.testing.assert_allclose(found.detections.xyxy, expected.detections.xyxy, atol=1e-2)
