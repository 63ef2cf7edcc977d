"""Live sources on the command line."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

import pytest

from command_line import COMMAND, wait_for
from servers import Server


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_the_normal_end(tmp_path: Path, number: signal.Signals) -> None:
    with Server() as server:
        words = [*COMMAND, "predict", server.url(), "squares", "--project", str(tmp_path), "--save-jsonl"]
        process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
        try:
            lines = tmp_path / "predict"
            wait_for(lambda: sum(path.read_bytes().count(b"\n") for path in lines.glob("*.jsonl")) > 5)
            process.send_signal(number)
            err = process.communicate(timeout=30)[1]
        finally:
            process.kill()
    assert process.returncode == 130
    assert "model    squares" in err and "error" not in err and "interrupted" not in err
    report = json.loads((lines / "report.json").read_text())
    assert report["error"] is None and report["frames"] > 5
    assert "stopped by the user" not in (lines / "report.html").read_text()


def test_a_camera_that_is_not_there_leaves_no_empty_folder(tmp_path: Path) -> None:
    words = ["predict", "tcp://127.0.0.1:9", "squares", "--project", str(tmp_path), "--save", "--reconnect", "0"]
    done = subprocess.run([*COMMAND, *words], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "Connection refused" in done.stderr
    assert all((folder / "report.html").exists() for folder in tmp_path.iterdir())
