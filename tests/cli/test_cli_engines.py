"""framefuse engines show: the steps that engine cudnn makes of a model. framefuse engines check: the outputs of any."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cudnn_nets import Net, mixed
from framefuse.cli.app import main
from framefuse.runtime.output_check import LIMITS


def shown(capsys: pytest.CaptureFixture[str], *words: str) -> list[dict[str, Any]]:
    assert main(["engines", "show", *words, "--device", "cpu", "--json"]) == 0
    rows: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
    return rows


def test_steps_of_a_detector(capsys: pytest.CaptureFixture[str]) -> None:
    rows = shown(capsys, "scout-n", "--imgsz", "384", "640", "--batch", "2")
    assert rows[0] == {
        "step": "0", "runs as": "cuDNN or kernel", "nodes": "Conv, Sigmoid, Mul",
        "channels x height x width": "3x384x640 -> 16x192x320",
    }  # fmt: skip
    assert rows[-1]["nodes"] == "the detection head"
    assert {"cuDNN or kernel", "kernel"} == {row["runs as"] for row in rows}
    assert any("Add" in row["nodes"] and " + " in row["channels x height x width"] for row in rows)


def test_steps_without_kernels(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    net = Net()
    path = net.save(tmp_path / "net.onnx", *mixed(net, 64, 96))
    rows = shown(capsys, str(path), "--imgsz", "64", "96")
    assert [row["runs as"] for row in rows] == [*["cuDNN or kernel", "fused"] * 3]
    assert rows[2]["nodes"] == "Conv, Add, Relu" and "MatMul x2" in rows[3]["nodes"]


def test_what_cannot_be_shown(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["engines", "show", "scout-n", "--device", "tpu"]) == 2
    assert "device tpu is not one of auto, cpu, cuda" in capsys.readouterr().err
    net = Net()
    path = net.save(tmp_path / "net.onnx", net.node("LRN", net.conv("images", 8), size=3))
    assert main(["engines", "show", str(path), "--imgsz", "64", "--device", "cpu"]) == 1
    assert "does not know the operators LRN x1" in capsys.readouterr().err


def test_outputs_are_checked(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    words = ["engines", "check", "scout-n", "--device", "cpu", "--imgsz", "96", "160"]
    assert main([*words, "--precision", "fp32", "--json"]) == 0
    found = capsys.readouterr()
    rows = json.loads(found.out)
    assert [row["output"] for row in rows] == ["output0 (boxes)", "output0 (scores)"]
    assert all(0 <= float(row["relative distance"]) < float(row["limit"]) == 0.00024 for row in rows)
    assert found.err == ""

    monkeypatch.setitem(LIMITS, "fp32", 0.0)
    assert main([*words, "--precision", "fp32", "--again"]) == 0
    assert "warning: engine openvino in fp32 differs from onnxruntime" in capsys.readouterr().err


def test_outputs_that_cannot_be_checked(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["engines", "check", "scout-n-int8", "--engine", "onnxruntime", "--device", "cpu"]) == 3
    assert "no other engine is installed" in capsys.readouterr().err


def test_frames_are_for_an_engine_that_calibrates(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["engines", "check", "scout-n", "--device", "cpu", "--engine", "openvino"]
    assert main([*words, "--calib", "synthetic://street?frames=20"]) == 2
    assert "engine openvino has no use for calibration frames" in capsys.readouterr().err
