"""Live sources on the command line."""

from __future__ import annotations

import json
import signal
import subprocess
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from command_line import COMMAND, wait_for
from framefuse import Pipeline
from reading import decoded
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


def test_a_matte_of_a_stream_that_was_interrupted(tmp_path: Path) -> None:
    """The video goes on, the gap is as long in it as it was, and the report says that there was one."""
    times, connections = list[float](), list[int]()
    with ExitStack() as servers:
        first = servers.enter_context(Server())
        options: dict[str, Any] = {"save_matte": "gray", "imgsz": [64], "project": tmp_path, "timeout": 2.0}
        with Pipeline(first.url(), "body-n", **options) as pipeline:
            for result in pipeline:
                assert result.frame.seconds is not None
                times.append(result.frame.seconds)
                connections.append(result.frame.connection)
                if len(times) == 8:
                    servers.close()
                    servers.enter_context(Server(port=first.port))
                if connections.count(1) == 8:
                    break
    assert sorted(connections) == connections and set(connections) == {0, 1}
    (path,) = (path for path in map(Path, pipeline.report.outputs) if path.suffix == ".mp4")
    written = [float(frame.pts * frame.time_base) for frame in decoded(path)]
    # Frames before the first result may have been dropped, and count from the beginning of the stream.
    assert [one - written[0] for one in written] == pytest.approx([one - times[0] for one in times], abs=0.002)
    assert max(after - before for before, after in pairwise(written)) < 20
    notes = " ".join(pipeline.report.sources[0].notes)
    assert "loss 1: " in notes and "reconnected (attempt" in notes
