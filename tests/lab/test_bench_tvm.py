"""benchmarks.gpu.tvm_cuda: what it refuses before it takes time on a GPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import source_groups
from benchmarks.gpu import tvm_cuda


def test_programs_that_are_not_there_or_of_other_sources_are_refused(tmp_path: Path) -> None:
    model = tmp_path / "net.onnx"
    with pytest.raises(SystemExit, match=r"lacks net-cudnn\.so, net-cudnn\.cubin, net-alone\.so.*run --compile"):
        tvm_cuda.check([model], tmp_path)
    for name in ("net.onnx", "net-expected.npz", *(f"net-{kind}" for kind in ("cudnn.so", "alone.so"))):
        (tmp_path / name).touch()
    for kind in ("cudnn", "alone"):
        (tmp_path / f"net-{kind}.cubin").touch()
    (tmp_path / tvm_cuda.SOURCES).write_text(json.dumps({"engine tvm": "0" * 12}), encoding="utf-8")
    with pytest.raises(SystemExit, match=r"compiled by sources .*0000.* run --compile again"):
        tvm_cuda.check([model], tmp_path)
    (tmp_path / tvm_cuda.SOURCES).write_text(json.dumps(source_groups.stamp("engine tvm")), encoding="utf-8")
    tvm_cuda.check([model], tmp_path)
