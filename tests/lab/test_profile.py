"""framefuse profile: rungs measured with real models, and runs that take the ladder in place of a model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from framefuse import Model, Pipeline
from framefuse.adaptive.ladder import Ladder, read_ladder
from framefuse.cli.app import main
from framefuse.errors import ConfigError, UsageError
from framefuse.lab.ladder import Candidate, measure, table

STREET = "synthetic://street?seed=5&frames=40&size=480x270&split=test&complexity=0.7"


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ladder") / "ladder.json"
    command = ["profile", "scout-n", "--data", STREET, "--sizes", "160,320", "--frames", "20", "--out", str(path)]
    assert main([*command, "--quiet"]) == 0
    return path


def test_rungs_are_measured_and_the_better_one_costs_more(written: Path) -> None:
    found = read_ladder(written)
    cheap, best = sorted(found.rungs, key=lambda rung: rung.size)  # a busy machine may measure another order
    assert (cheap.size, best.size) == (160, 320) and found.frames == 20 and found.measure == "mAP50-95"
    assert best.score > cheap.score + 0.05 and not best.verdict
    assert best.agreement == pytest.approx(1) and best.f1 == 1 and best.confidence == pytest.approx(1)
    assert 0 < cheap.agreement < 1 and 0 < cheap.f1 < 1 and cheap.p50_ms <= cheap.p95_ms
    assert min(cheap.cpu_ms, best.cpu_ms) > 0


def test_footage_without_truth_is_judged_by_the_slowest() -> None:
    candidates = [
        Candidate("scout-n", 160, "auto"),
        Candidate("scout-n", 480, "auto"),
        Candidate("scout-n", 320, "fp8"),
    ]
    done: list[int] = []
    ladder, notes = measure(candidates, STREET, limit=20, options={"device": "cpu"}, on_frame=done.append)
    assert ladder.measure == "agreement" and done == [10, 20]
    assert [one.score for one in ladder.rungs] == [one.agreement for one in ladder.rungs]
    assert ladder.rungs[-1].size == 480 and ladder.rungs[-1].score == pytest.approx(1)
    (note,) = notes
    assert note.startswith("scout-n 320 fp8 cannot run")
    assert table(ladder)[0].count("agreement") == 1 and len({len(line) for line in table(ladder)}) == 1


@pytest.mark.slow
def test_a_run_takes_the_rung_that_its_rate_leaves_time_for(written: Path, tmp_path: Path) -> None:
    content: dict[str, Any] = json.loads(written.read_text())
    content["rungs"].sort(key=lambda rung: rung["size"])
    for one, time in zip(content["rungs"], (1.0, 40.0), strict=True):
        one |= {"p50_ms": time, "p95_ms": time, "verdict": ""}
    path = tmp_path / "ladder.json"
    path.write_text(json.dumps(content))
    for given, size, said in (
        ({}, "320", "the best one"), ({"target_fps": 60}, "160", "is too slow"),
        ({"target_fps": 60, "adaptive": True}, "320", "on 25% of the frames"),
    ):  # fmt: skip
        with Pipeline(STREET, path, end=0.2, **given) as pipeline:
            report = pipeline.run()
        assert report.model is not None and report.model.name == "scout-n" and report.model.input.startswith(size)
        assert any(said in text for text in report.choices)
    with Model(path) as model:
        assert model.card.path.stem == "scout-n"


def test_the_ladder_of_another_machine_is_refused(written: Path, tmp_path: Path) -> None:
    path = tmp_path / "ladder.json"
    path.write_text(json.dumps({**json.loads(written.read_text()), "machine": "a Jetson"}))
    with pytest.raises(ConfigError, match="was measured on a Jetson, and this is") as caught:
        Pipeline(STREET, path, end=0.1)
    assert caught.value.remedy == "measure again: framefuse profile scout-n"


def test_bad_input(written: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigError, match="cannot read the ladder"):
        Pipeline(STREET, tmp_path / "none.json")
    with pytest.raises(UsageError, match=r"imgsz is .* beside a ladder"):
        Pipeline(STREET, written, imgsz=320)
    with pytest.raises(UsageError, match="device is 'cuda' beside a ladder"):
        Pipeline(STREET, written, device="cuda")
    for words, said in (
        (["scout-n", "--sizes", "12"], "--sizes is '12'"), (["scout-n", "--sizes", "big"], "--sizes is 'big'"),
        (["scout-n", "--precision", "fp7"], "fp7"), (["none.onnx"], "none.onnx"), (["body-n"], "has the task semantic"),
        (["scout-n", "--source", "a.mp4", "--data", STREET], "choose one"),
        (["scout-n", "--source", "none.mp4"], "none"),
        (["scout-n", "--out", str(tmp_path)], "it is a folder"),
    ):  # fmt: skip
        assert main(["profile", *words]) != 0
        assert said in capsys.readouterr().err
    assert not Path("ladder.json").exists()


def test_json(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "own.json"
    command = [
        "profile",
        "scout-n",
        "--sizes",
        "160",
        "--frames",
        "20",
        "--source",
        STREET,
        "--out",
        str(path),
        "--json",
    ]
    assert main(command) == 0
    said = capsys.readouterr()
    assert json.loads(said.out) == json.loads(path.read_text()) and "--target-fps" in said.err
    assert isinstance(read_ladder(path), Ladder)
