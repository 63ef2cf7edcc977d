"""A short storm of live streams, and a few runs that are killed and signalled; the scripts run longer ones."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def run(tmp_path: Path, script: str, *words: str) -> dict[str, dict[str, object]]:
    command = [sys.executable, HERE / script, *words, "--record", tmp_path / "record.json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    found: dict[str, dict[str, object]] = json.loads((tmp_path / "record.json").read_text())
    return found


@pytest.mark.slow
def test_a_storm_of_live_streams(tmp_path: Path) -> None:
    found = run(tmp_path, "chaos.py", "--streams", "4", "--seconds", "6", "--reconnects", "12")
    assert found["storm"]["unaccounted"] == 0 and found["storm"]["happened"]


@pytest.mark.slow
def test_runs_that_are_killed_and_signalled(tmp_path: Path) -> None:
    found = run(tmp_path, "endings.py", "--kills", "3", "--signals", "3")
    assert found["kills"]["findings"] == found["signals"]["findings"] == []
