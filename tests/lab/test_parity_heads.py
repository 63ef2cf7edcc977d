"""Parity certificates and lowered models of networks that find masks, keypoints or oriented boxes, or leave their
decoding to us."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from framefuse.kernels.masks.instances import mask_runs
from framefuse.lab.evaluation import validate
from framefuse.lab.lowering import build_model
from framefuse.lab.parity import certify
from framefuse.lab.parity.compare import LIMITS, BoxDifference
from framefuse.lab.parity.report import verdict
from framefuse.prediction import Detections
from known_models import anchors, model

DISC = (5 - np.hypot(*(np.mgrid[:16, :16] - 7.5))).astype(np.float32)
TWO = (32, 32, 48, 48, 0.9, 0), (16, 40, 20, 30, 0, 0.8)


def known(folder: Path, task: str) -> Path:
    if task == "segment":
        raw = anchors(*((*row, 1, 0.5) for row in TWO), extra=2)
        return model(folder / "seg.onnx", raw, np.stack((DISC, -DISC))[None], task=task)
    if task == "pose":
        raw = anchors(*((*row, 20, 30, 0.9, 40, 44, 0.1) for row in TWO), extra=6)
        return model(folder / "pose.onnx", raw, task=task, kpt_shape=[2, 3])
    if task == "obb":
        return model(folder / "obb.onnx", anchors(*((*row, 0.5) for row in TWO), extra=1), task=task)
    raw = np.zeros((1, 84, 7), np.float32)
    raw[0, :20] = 0.3, -0.2, 1.2, 1.5, 0.9, 0.1, 0.8
    return model(folder / "yolox.onnx", raw, task="detect")


@pytest.mark.parametrize(
    "task", ["segment", *(pytest.param(task, marks=pytest.mark.slow) for task in ("pose", "obb", "yolox"))]
)
def test_every_engine_is_certified(tmp_path: Path, task: str) -> None:
    found = certify(known(tmp_path, task), frames=2, engines=("openvino", "onnxruntime"), iou=0.7)
    assert verdict(found) == "CERTIFIED" and found.boxes >= 4
    wanted = {"segment": "masks IoU 1.000", "pose": "points 0 px", "obb": "points 0 px"}.get(task, "IoU 1.000")
    whole = [engine.steps[-1].found for engine in found.engines]
    assert all(wanted in text or "identical" in text for text in whole), whole


def objects(**more: Any) -> Detections:
    boxes = np.array([(10, 10, 60, 60), (70, 20, 120, 90)], np.float32)
    return Detections(boxes, np.array((0.9, 0.8), np.float32), np.array((0, 1)), **more)


def compared(one: Detections, other: Detections) -> BoxDifference:
    difference = BoxDifference(LIMITS["fp32"], 0.25, 0.7)
    difference.add(one, other)
    return difference


def test_a_mask_that_differs_is_outside() -> None:
    masks = np.zeros((2, 100, 130), np.bool_)
    masks[0, 10:60, 10:60] = masks[1, 20:90, 70:120] = True
    same = objects(runs=mask_runs(masks))
    assert compared(same, same).verdict == "exact"
    masks[1, 20:40] = False
    other = compared(same, objects(runs=mask_runs(masks)))
    assert other.verdict == "outside" and "masks IoU" in str(other) and "masks IoU >= 0.98" in other.check("x").limit


def test_a_keypoint_that_moved_is_outside_if_the_model_is_sure_of_it() -> None:
    points = np.full((2, 3, 3), 40, np.float32)
    points[..., 2] = 0.9, 0.9, 0.2
    moved = points.copy()
    moved[0, 2, :2] += 30
    assert compared(objects(keypoints=points), objects(keypoints=moved)).verdict == "exact"
    moved[0, 1, 0] += 2
    assert compared(objects(keypoints=points), objects(keypoints=moved)).verdict == "outside"


def test_an_oriented_box_is_the_same_a_quarter_turn_further() -> None:
    boxes = np.array([(35, 35, 50, 20, 0.2), (95, 55, 30, 60, -0.4)], np.float32)
    turned = boxes[:, [0, 1, 3, 2, 4]] + np.array((0, 0, 0, 0, np.pi / 2), np.float32)
    assert compared(objects(xywhr=boxes), objects(xywhr=turned)).verdict == "exact"
    turned[0, 4] += 0.1
    assert compared(objects(xywhr=boxes), objects(xywhr=turned)).verdict == "outside"


@pytest.mark.slow
def test_the_shipped_scout_in_fp16_keeps_the_masks_that_it_finds(tmp_path: Path) -> None:
    clip = "synthetic://street?seed=3&complexity=0.6&frames=24&size=640x360&split=val"
    report = build_model("scout-n-seg", precision="fp16", calib=clip, frames=8, out=tmp_path / "low.onnx")
    assert report.accuracy is not None and report.accuracy.loss < 1
    assert report.accuracy.measure == "mAP50 of masks"


def test_the_shipped_scout_finds_masks() -> None:
    data = "synthetic://street?split=test&frames=900&size=640x360"
    scores = validate("scout-n-seg", data, limit=12, precision="fp32").boxes
    assert scores is not None and scores.shape_map50 is not None and scores.shape_map50 > 0.3


def test_frames_without_an_object_have_no_keypoints(tmp_path: Path) -> None:
    """Nothing above the confidence in any frame: scored as such."""
    raw = anchors((*TWO[0][:4], 0.001, 0, 20, 30, 0.9, 40, 44, 0.1), extra=6)
    network = model(tmp_path / "pose.onnx", raw, task="pose", kpt_shape=[2, 3], names={0: "person", 1: "car"})
    scores = validate(network, "synthetic://street?split=test&frames=2&size=320x180", conf=0.5).boxes
    assert scores is not None and scores.map50 == 0
