"""framefuse predict: what it writes, what it prints where, and readers of its output that go away."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
from pathlib import Path
from typing import Any

import av
import pytest

from command_line import COMMAND, spawn


def test_predict_writes_lines_and_a_report(run: Any, clip: Path) -> None:
    code, out, err = run("predict", clip, "squares")
    folder = Path("runs/predict/predict")
    assert (code, out) == (0, "")
    assert "12 frames" in err and str(folder / "report.html") in err
    assert len((folder / "clip.jsonl").read_text().splitlines()) == 12
    assert json.loads((folder / "report.json").read_text())["frames"] == 12
    assert not list(folder.glob("*.mp4"))


def test_options_reach_the_run(run: Any, clip: Path) -> None:
    words = ["--vid_stride", "3", "--classes", "0", "2", "--max-det", "1", "--save", "--no-save-jsonl", "--name", "x"]
    code, out, _ = run("predict", "--source", clip, "-m", "squares", *words, "--json", "--quiet")
    report = json.loads(out)
    assert (code, report["frames"]) == (0, 4)
    assert set(report["detections_per_class"]) <= {"red", "blue"}
    assert report["detections"] <= 4
    assert [path.name for path in Path("runs/predict/x").glob("clip*")] == ["clip.mp4"]


def test_the_model_may_stand_alone_beside_sources(run: Any, clip: Path) -> None:
    code, out, err = run("predict", "--source", clip, "scout-n", "--json")
    assert code == 0 and json.loads(out)["model"]["name"] == "scout-n" and "skipped" not in err
    code, _, err = run("predict", "-s", clip, "none.onnx")
    assert code == 1 and "there is no model 'none.onnx'" in err
    code, _, err = run("predict", "-s", clip, "scout-n", "-m", "squares")
    assert code == 2 and "two models are given: scout-n and squares" in err
    code, _, err = run("predict", "-s", clip, "x" * 300, "-m", "squares")
    assert "bug" not in err and "x" * 20 in err
    code, out, _ = run("predict", "-s", clip, clip, "-m", "squares", "--json")
    assert code == 0 and len(json.loads(out)["sources"]) == 2


def test_one_file_holds_a_whole_run(run: Any, clip: Path) -> None:
    Path("run.yaml").write_text(f"source: {clip}\nmodel: squares\npreset: vr\nend: 0.2\nproject: out\nname: a\n")
    code, _, err = run("predict", "--config", "run.yaml", "--quiet")
    assert (code, err) == (0, "")
    assert 1 <= len(Path("out/a/clip.jsonl").read_text().splitlines()) < 12


def test_stdout_holds_nothing_but_lines(clip: Path) -> None:
    done = spawn("predict", clip, "squares", "--stdout")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0
    assert [row["frame"] for row in rows] == list(range(12))
    assert "12 frames" in done.stderr
    assert not Path("runs").exists()


def test_options_that_do_nothing_are_named(run: Any) -> None:
    address = "synthetic://street?frames=2&size=320x192"
    code, _, err = run("predict", address, "scout-n", "--track", "--trail", "30")
    assert code == 0 and err.count("\nwarning  trail without effect: add save or show\n") == 1
    code, _, err = run("predict", address, "scout-n", "--events", "--trail", "30", "--save")
    assert code == 0 and "without effect" not in err


def test_quiet_prints_nothing(clip: Path) -> None:
    done = spawn("predict", clip, "squares", "--quiet")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        pytest.param("predict {long} squares --stdout", "", marks=pytest.mark.slow),
        pytest.param("predict {long} squares --stdout --debug", "", marks=pytest.mark.slow),
        ("predict {long} squares --stdout --save-csv --save", "runs/predict/predict/long.csv"),
        pytest.param("predict {long} squares --json", "400 frames", marks=pytest.mark.slow),
        ("--help", ""),
        ("config reference", ""),
        pytest.param("doctor --json", "", marks=pytest.mark.slow),
    ],
)
def test_a_reader_that_goes_away_ends_the_run_without_a_word(long: Path, words: str, said: str) -> None:
    reading, writing = os.pipe()
    command = [*COMMAND, *words.format(long=long).split()]
    own = os.environ | {"XDG_CACHE_HOME": str(long.parent / "cache")}  # of what is stale there, doctor says so
    with subprocess.Popen(command, stdout=writing, stderr=-1, env=own) as process:
        os.close(writing)
        if "--stdout" in words:
            assert os.read(reading, 1) == b"{"
        os.close(reading)
        assert process.stderr is not None
        err = process.stderr.read().decode()
    assert process.returncode == 128 + signal.SIGPIPE
    assert said in err and bool(said) == bool(err)
    assert "error" not in err and "Traceback" not in err and "ended" not in err
    if "--save" in words:
        rows = Path("runs/predict/predict/long.csv").read_text().splitlines()
        frames = {row.partition(",")[0] for row in rows[1:]}
        with av.open("runs/predict/predict/long.mp4") as video:
            assert len(frames) == sum(1 for _ in video.decode(video=0)) < 400


@pytest.mark.parametrize(
    ("redirection", "words", "code", "message"),
    [
        (">&-", "predict {clip} squares", 0, ""),
        pytest.param(">&- 2>&- <&-", "predict {clip} squares --save", 0, "", marks=pytest.mark.slow),
        ("2>&-", "predict missing.mp4 squares", 1, ""),
        pytest.param(
            *(">&-", "predict {clip} squares --stdout", 1, "cannot write to stdout: Bad file descriptor"),
            marks=pytest.mark.slow,
        ),
        pytest.param(">/dev/full", "predict {clip} squares", 0, "", marks=pytest.mark.slow),
        (">/dev/full", "predict {clip} squares --stdout", 1, "cannot write to stdout: No space left on device"),
        (">/dev/full", "--help", 1, "cannot write to stdout: No space left on device"),
        ("2>/dev/full", "predict {clip} squares", 0, ""),
        ("2>/dev/full", "predict {clip} squares --conf 2", 2, ""),
    ],
)
def test_standard_streams_that_are_closed_or_full(
    clip: Path, redirection: str, words: str, code: int, message: str
) -> None:
    line = shlex.join([*COMMAND, *words.format(clip=clip).split()])
    done = subprocess.run(["sh", "-c", f"{line} {redirection}"], capture_output=True, text=True, timeout=60)
    assert done.returncode == code
    assert message in done.stderr
    assert "Traceback" not in done.stderr and "bug" not in done.stderr
    if "--save" in words:  # no message went into the file that got the number of a closed stream
        with av.open("runs/predict/predict/clip.mp4") as video:
            assert sum(1 for _ in video.decode(video=0)) == 12
