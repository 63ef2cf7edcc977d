"""The fuzzers, for a few seconds each, and every input that once went wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from targets import TARGETS, Target, try_one

from framefuse.common.machine import python_path
from fuzz import Findings, fuzz

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
KEPT = sorted(path for path in (HERE / "kept").glob("*/*"))


@pytest.mark.parametrize("path", KEPT, ids=[f"{path.parent.name}/{path.name}" for path in KEPT])
def test_an_input_that_once_went_wrong(path: Path, tmp_path: Path) -> None:
    assert try_one(TARGETS[path.parent.name], path.read_bytes(), tmp_path) == ""


@pytest.mark.parametrize("name", TARGETS)
def test_damaged_inputs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """FUZZ_SECONDS: for each kind; the seed is fixed, so that a run can be repeated."""
    monkeypatch.setenv("PYTHONPATH", python_path())
    seconds = float(os.environ.get("FUZZ_SECONDS", "1"))
    findings = Findings()
    fuzz(name, seconds, 0, tmp_path, findings)
    assert findings.found == {}
    assert findings.cases[name] > 0


def test_the_program() -> None:
    command = [sys.executable, HERE / "fuzz.py", "config", "--seconds", "1"]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": python_path()})
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["cases"]["config"] > 0


def test_what_counts_as_a_finding(tmp_path: Path) -> None:
    def fails(content: bytes, folder: Path) -> None:
        raise KeyError("red")

    assert try_one(Target(list, fails), b"", tmp_path).startswith("KeyError at test_fuzz.py:")
    assert try_one(TARGETS["config"], b"conf: high", tmp_path) == ""
