"""An engineer: a job of a thousand files that is killed, shards, logs for machines, settings from everywhere."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import media
from command_line import COMMAND, spawn, wait_for
from pages import DOCS, block, blocks
from servers import Server
from test_wheel import recipe

pytestmark = pytest.mark.slow

COUNT, UNREADABLE = 1000, (7, 256, 503, 750)
JOB = ["predict", "clips/**/*.mp4", "squares", "--imgsz", "64", "--project", "jobs", "--save-json", "--log-json"]


@pytest.fixture(scope="module")
def clips(home: Path) -> set[str]:
    """A thousand small files in ten folders: hard links of two clips, and four that are no videos.

    Returns:
        the stems of those that are.
    """
    seeds = [media.clip(home / f"seed{frames}.mp4", frames) for frames in (2, 3)]
    for number in range(COUNT):
        path = home / "clips" / f"day{number % 10}" / f"{number:04}.mp4"
        path.parent.mkdir(parents=True, exist_ok=True)
        if number in UNREADABLE:
            path.write_text("no video")
        else:
            os.link(seeds[number % 2], path)
    return {f"{number:04}" for number in range(COUNT) if number not in UNREADABLE}


def events(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def outputs(name: str) -> dict[str, bytes]:
    """What is of the inputs rather than of the run."""
    paths = Path("jobs", name).iterdir()
    return {path.name: path.read_bytes() for path in paths if path.stem not in ("report", "manifest")}


def done(name: str) -> int:
    path = Path("jobs", name, "manifest.jsonl")
    return path.read_bytes().count(b"\n") if path.exists() else 0


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_thousand_files_and_two_kills(clips: set[str]) -> None:
    """Every readable file once, complete, and byte for byte as without the kills."""
    whole = subprocess.run([*COMMAND, *JOB, "--name", "whole"], capture_output=True, text=True)
    *warnings, end = events(whole.stderr)
    assert whole.returncode == 5
    assert (end["event"], end["unreadable"], end["frames"]) == ("end", 4, sum(2 + int(stem) % 2 for stem in clips))
    skipped = [line["message"].split()[0] for line in warnings if line["level"] == "warning"]
    assert sorted(Path(path).stem for path in skipped) == [f"{number:04}" for number in UNREADABLE]

    for _ in range(2):
        before = done("killed")
        with subprocess.Popen([*COMMAND, *JOB, "--name", "killed", "--resume"], stderr=subprocess.DEVNULL) as process:
            wait_for(lambda before=before: done("killed") > before + 200, 120)
            process.send_signal(signal.SIGKILL)
    left = len(clips) - done("killed")
    assert 0 < left < 600
    last = subprocess.run([*COMMAND, *JOB, "--name", "killed", "--resume"], capture_output=True, text=True)
    end = events(last.stderr)[-1]
    assert (last.returncode, end["unreadable"]) == (5, 4) and end["frames"] < 3 * left + 3

    assert outputs("killed") == outputs("whole")
    assert {Path(name).stem for name in outputs("whole")} == clips
    listed = [json.loads(line) for line in Path("jobs/killed/manifest.jsonl").read_text().splitlines()]
    assert sorted(row["stem"] for row in listed) == sorted(clips)


@pytest.mark.slow
def test_shards_are_the_whole(clips: set[str]) -> None:
    """Three machines share a tenth of the files."""
    job = [word.replace("**", "day3") for word in JOB]
    stems: list[str] = []
    frames = 0
    for number in (1, 2, 3):
        ran = subprocess.run(
            [*COMMAND, *job, "--name", "part", "--shard", f"{number}/3"], capture_output=True, text=True
        )
        end = events(ran.stderr)[-1]
        assert end["folder"] == f"jobs/part-{number}of3" and ran.returncode == (5 if end["unreadable"] else 0)
        frames += end["frames"]
        stems += [path.stem for path in Path(end["folder"]).glob("0*.jsonl")]
    expected = sorted(stem for stem in clips if stem.endswith("3"))
    assert sorted(stems) == expected and frames == sum(2 + int(stem) % 2 for stem in expected)


def test_settings_from_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lowest first: default, preset, file, environment, command line; and the run obeys."""
    Path("run.yaml").write_text("source: video.mp4\nmodel: squares\nconf: 0.2\niou: 0.5\nqueue: 6\nname: settings\n")
    monkeypatch.setenv("FRAMEFUSE_IOU", "0.6")
    monkeypatch.setenv("FRAMEFUSE_MODEL", "model.onnx")
    monkeypatch.setenv("FRAMEFUSE_CLASSES", "car,person")
    monkeypatch.setenv("FRAMEFUSE_CONF", "0.3")
    words = "--config", "run.yaml", "--preset", "latency", "--conf", "0.4"
    shown = json.loads(spawn("config", "show", *words, "--json").stdout)["settings"]
    wanted = {
        "max_det": (300, "default"),
        "low_latency": (True, "preset latency"),
        "queue": (6, "file run.yaml, line 5"),
        "iou": (0.6, "variable FRAMEFUSE_IOU"),
        "conf": (0.4, "command line"),
    }
    assert {name: (shown[name]["value"], shown[name]["from"]) for name in wanted} == wanted
    ran = spawn("predict", *words, "--log-json")
    assert ran.returncode == 0, ran.stderr
    rows = [json.loads(line) for line in Path("runs/predict/settings/video.jsonl").read_text().splitlines()]
    boxes = [one for row in rows for one in row["detections"]]
    assert {one["class"] for one in boxes} == {"car", "person"} and min(one["confidence"] for one in boxes) >= 0.4

    monkeypatch.setenv("FRAMEFUSE_CONFF", "0.3")
    (error,) = events(spawn("predict", *words, "--log-json").stderr)
    assert "FRAMEFUSE_CONFF" in error["message"] and "FRAMEFUSE_CONF?" in error["remedy"]


def containers() -> Iterator[list[str]]:
    """What the page on jobs gives to `docker run framefuse`, after the name of the image."""
    for line in "\n".join(blocks(DOCS / "guide/jobs.md", "console")).splitlines():
        before, found, words = line.partition(' -v "$PWD":/work framefuse ')
        if found:  # as the user whose folder it is
            assert before == '$ docker run --rm --user "$(id -u):$(id -g)"'
            yield shlex.split(words)


def test_the_container_of_the_guide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its entry point with the words of the guide, for a user without a home, as a container has for `--user`.

    test_wheel.py runs the steps that build it.
    """
    (words,) = containers()
    entry = [json.loads(rest) for word, rest in recipe("Dockerfile") if word == "ENTRYPOINT"]
    assert entry == [["framefuse"]]
    (tmp_path / "clips").mkdir()
    for name in ("video.mp4", "model.onnx", "model.yaml"):
        os.link(name, tmp_path / ("clips" if name == "video.mp4" else "") / name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/proc")
    for frames in (12, 0):  # a container that is started again
        ran = subprocess.run([*COMMAND, *words, "--json"], capture_output=True, text=True)
        assert (ran.returncode, json.loads(ran.stdout)["frames"]) == (0, frames), ran.stderr
    assert len((tmp_path / "runs/predict/predict/video.jsonl").read_text().splitlines()) == 12


def test_the_service_of_the_guide(tmp_path: Path) -> None:
    """What systemd starts, in which environment, and what it takes for a normal stop."""
    unit = dict(line.split("=", 1) for line in block("jobs.md", "[Service]").splitlines() if "=" in line)
    program, *words = unit["ExecStart"].split()
    assert Path(program).name == "framefuse"
    given = dict(word.split("=", 1) for word in unit["Environment"].split())
    with Server() as server:
        here = {"FRAMEFUSE_SOURCE": server.url(), "FRAMEFUSE_MODEL": "squares", "FRAMEFUSE_PROJECT": str(tmp_path)}
        assert given.keys() == here.keys()
        environment = os.environ | given | here
        with subprocess.Popen([*COMMAND, *words], env=environment, stderr=subprocess.PIPE, text=True) as process:
            lines = tmp_path / "predict"
            wait_for(lambda: sum(path.read_bytes().count(b"\n") for path in lines.glob("*.jsonl")) > 5)
            process.terminate()
            assert process.stderr is not None
            end = events(process.stderr.read())[-1]
    assert str(process.returncode) == unit["SuccessExitStatus"]
    (path,) = lines.glob("*.jsonl")
    assert end["event"] == "end" and len(path.read_text().splitlines()) == end["frames"] > 5
