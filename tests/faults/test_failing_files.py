"""Every file operation of every output and of the engine cache fails, once and from then on, with EIO and ENOSPC.

A failure is a typed error or has no effect; what was said to be written before is there.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from framefuse.common.machine import python_path

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("a C compiler is needed")
    path = tmp_path_factory.mktemp("faults") / "failing_files.so"
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-O2", "-Wall", "-Werror", "-o", path, HERE / "failing_files.c", "-ldl"],
        check=True,
    )
    return path


@pytest.mark.parametrize(
    "name",
    ["jsonl", "csv", "coco", "cvat", "label_studio", "parquet", "yolo_txt", "images", "video", "report", "cache"],
)
def test_every_call_that_can_fail(library: Path, name: str, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    env = {**os.environ, "LD_PRELOAD": str(library), "FAULT_FOLDER": str(folder), "PYTHONPATH": python_path()}
    command = [sys.executable, str(HERE / "every_call.py"), name, str(folder)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    *findings, counts = done.stdout.splitlines()
    assert not findings
    assert json.loads(counts)["cases"] >= 9
