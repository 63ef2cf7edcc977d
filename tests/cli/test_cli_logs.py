"""Log lines of the command line, as text and as JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pytest

import media
from command_line import spawn
from framefuse.cli import console
from framefuse.cli.app import main
from framefuse.fleet.report import FleetReport, WorkerFacts
from framefuse.report import bar


@pytest.fixture(autouse=True)
def clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    media.clip(Path("clip.mp4"), 30)
    Path("bad.mp4").write_text("no video")


def objects(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_a_job_in_json() -> None:
    done = spawn("predict", "-s", "clip.mp4", "-s", "bad.mp4", "-m", "squares", "--log-json")
    warning, end = objects(done.stderr)
    assert (done.returncode, done.stdout) == (5, "")
    assert warning["level"] == "warning" and warning["message"].startswith("bad.mp4 skipped: ")
    assert (end["level"], end["event"], end["frames"], end["unreadable"]) == ("info", "end", 30, 1)
    assert Path(end["folder"], "clip.jsonl").exists() and end["time"].endswith("+00:00")


@pytest.mark.parametrize(
    ("words", "message", "remedy"),
    [
        (["predict", "none.mp4", "squares"], "no such file", "check the path"),
        (["predict", "clip.mp4", "squares", "many"], "unexpected extra argument", "framefuse predict --help"),
        (["predict", "rtsp://me:secret@[x", "squares"], "malformed rtsp address", "write scheme"),
    ],
)
def test_errors_in_json(words: list[str], message: str, remedy: str) -> None:
    done = spawn(*words, "--log-json")
    (error,) = objects(done.stderr)
    assert error["level"] == "error" and message in error["message"].lower() and remedy in error["remedy"]
    assert "secret" not in done.stderr


def test_levels(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", "clip.mp4", "squares", "--log-json", "--log-level", "warning"]) == 0
    assert capfd.readouterr().err == ""
    assert main(["predict", "clip.mp4", "squares", "--log-level", "loud"]) == 2
    assert "not one of debug, info, warning, error" in capfd.readouterr().err
    assert main(["predict", "clip.mp4", "squares", "--quiet"]) == 0
    assert capfd.readouterr().err == ""


def test_a_long_command_in_a_pipe_says_how_far_it_is(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bar, "LINE_SECONDS", 0.0)
    assert main(["predict", "clip.mp4", "squares"]) == 0
    assert "30 frames, " in capfd.readouterr().err
    assert main(["predict", "clip.mp4", "squares", "--log-json"]) == 0
    *progress, end = objects(capfd.readouterr().err)
    assert [line["frames"] for line in progress] == list(range(1, 31))
    assert progress[-1]["event"] == "progress" and end["event"] == "end"


def test_a_fleet_in_json(capfd: pytest.CaptureFixture[str]) -> None:
    workers = [WorkerFacts("cuda:0", ["a.mp4", "bad.mp4"], 20, skipped=["bad.mp4 skipped: no video"])]

    class Ended:
        """A fleet that has run."""

        folder = Path("runs/predict/predict")
        report = FleetReport(20, 2.0, 1.0, workers)

        def run(self, on_frames: Any) -> FleetReport:
            on_frames(20)
            return self.report

    console.set_up_logs(json_lines=True)
    try:
        assert console.run_fleet(cast(Any, Ended())) == 5
    finally:
        console.set_up_logs()
    *_, warning, end = objects(capfd.readouterr().err)
    assert (warning["level"], warning["message"]) == ("warning", "bad.mp4 skipped: no video")
    assert (end["event"], end["frames"], end["unreadable"], end["folder"]) == ("end", 20, 1, "runs/predict/predict")
