"""The outputs of an engine against FP32 on the CPU: what is said, what is kept, and that no run waits for it."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from time import monotonic
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from framefuse import Pipeline
from framefuse.common.files import user_cache
from framefuse.common.machine import python_path
from framefuse.engines import EngineOptions
from framefuse.engines.cache import KEYS
from framefuse.errors import CapabilityError
from framefuse.lab.checking import check_outputs
from framefuse.models import find_model
from framefuse.models.card import read_card
from framefuse.runtime import output_check, output_distance
from framefuse.runtime.output_check import LIMITS, MODULE, OutputCheck, Subject, Verdict, limit_of
from framefuse.runtime.output_distance import check, distance, parts

VIDEO = "synthetic://street?seed=3&frames=4000&size=320x180"
ENGINE = """
import os, time
from contextlib import nullcontext
from dataclasses import replace
from framefuse.engines import open_engine as open_any

def open_engine(model, options):
    with open(os.environ["OPENED"], "a") as file:
        file.write(f"{os.getpid()}\\n")
    if os.environ.get("SLOW_BESIDE") not in (None, str(os.getpid())):
        time.sleep(60)
    engine = open_any("openvino", model, replace(options, precision="fp32", layout=None))
    make = engine._make_request_pool

    def make_worse(*size):
        pool = make(*size)
        wait, factor = pool._wait, float(os.environ.get("FACTOR", 1))

        def wait_and_scale(slot, timeout):
            done = wait(slot, timeout)
            slot.outputs = tuple(output * factor for output in slot.outputs)
            return done

        pool._wait = wait_and_scale
        return pool

    engine._make_request_pool = make_worse
    return engine
"""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's cache, empty."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return user_cache() / "checks"


@pytest.fixture
def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Installs engine "scaled", whose outputs are $FACTOR times the right ones: a line for each time it is opened."""
    package = tmp_path / "package"
    facts = package / "scaled-1.0.dist-info"
    facts.mkdir(parents=True)
    (package / "scaled_engine.py").write_text(ENGINE)
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: scaled\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text("[framefuse.engines]\nscaled = scaled_engine:open_engine\n")
    monkeypatch.syspath_prepend(package)
    monkeypatch.setenv("OPENED", str(tmp_path / "opened"))
    return tmp_path / "opened"


def subject(engine: str = "openvino", model: str = "scout-n", **options: Any) -> Subject:
    layout = "yolov8" if engine == "openvino" else None
    asked = EngineOptions("cpu", "fp32" if engine != "onnxruntime" else "auto", layout=layout)
    return Subject(
        read_card(find_model(model)), engine, asked, "fp32", **({"batch": 1, "height": 96, "width": 160} | options)
    )


@pytest.mark.parametrize(("engine", "against"), [("openvino", "onnxruntime"), ("onnxruntime", "openvino")])
@pytest.mark.parametrize("batch", [1, 3])
def test_a_right_engine_is_silent(engine: str, against: str, batch: int) -> None:
    """OpenVINO leaves the decoding of boxes to others; that is part of the comparison."""
    verdict = check(subject(engine, batch=batch))
    assert against in verdict.reference
    assert set(verdict.distances) == {"output0 (boxes)", "output0 (scores)"}
    assert 0 < max(verdict.distances.values()) < LIMITS["fp32"] / 8
    assert verdict.warning == ""


def test_a_model_in_fp16_is_compared_with_fp32() -> None:
    verdict = check(subject("openvino", "scout-s"))
    assert 0 < max(verdict.distances.values()) < LIMITS["fp32"]


def test_it_is_kept(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    first = check(subject())
    assert len(list(cache.glob("*.verdict"))) == 1
    monkeypatch.setattr(output_distance, "compare", lambda *given: pytest.fail("it was known"))
    assert check(subject()) == first


@pytest.mark.usefixtures("opened")
def test_a_wrong_engine_is_said_with_its_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FACTOR", "1.1")
    verdict = check(subject("scaled"))
    assert verdict.distances == pytest.approx(dict.fromkeys(verdict.distances, 0.1), rel=1e-3)
    assert "engine scaled in fp32 differs from onnxruntime in fp32" in verdict.warning
    assert " 0.1, where rounding explains 0.00024" in verdict.warning
    assert "--engine" in verdict.warning


def test_it_can_be_asked_for_at_once(opened: Path) -> None:
    """The engine that tells the precision is also the one that is compared."""
    asked: dict[str, Any] = {"engine": "scaled", "device": "cpu", "imgsz": [96, 160]}
    first = check_outputs("scout-n", **asked)
    assert "engine scaled in fp32" in first.engine and first.distances
    assert len(opened.read_text().splitlines()) == 1
    assert check_outputs("scout-n", **asked) == first
    assert len(opened.read_text().splitlines()) == 2


@pytest.mark.usefixtures("opened")
def test_numbers_that_are_none_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FACTOR", "nan")
    assert set(check(subject("scaled")).distances.values()) == {float("inf")}


def test_a_damaged_file_is_made_again(cache: Path) -> None:
    first = check(subject())
    path = next(cache.glob("*.verdict"))
    path.write_bytes(b"\0{")
    assert check(subject()) == first
    assert Verdict.read(path) == first


def test_a_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert check(subject()).warning == ""


def test_two_processes_share_the_work(opened: Path, cache: Path) -> None:
    command = [sys.executable, "-m", MODULE]
    environment = {**os.environ, "PYTHONPATH": python_path()}
    both = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) for _ in range(2)]
    for process in both:
        assert process.stdin
        process.stdin.write(pickle.dumps(subject("scaled")))
        process.stdin.close()
    answers = []
    for process in both:
        with process:
            assert process.stdout
            answers.append(json.loads(process.stdout.read()))
    assert answers[0] == answers[1]
    assert len(opened.read_text().splitlines()) == 1


def test_nothing_to_compare_with(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_check, "REFERENCES", ("openvino",))
    with pytest.raises(CapabilityError, match="no other engine"):
        check(subject())
    with Pipeline(VIDEO, "squares", device="cpu", precision="fp32") as pipeline:
        assert "outputs: not compared: no other engine" in said(pipeline, "outputs:")


def said(pipeline: Pipeline, start: str) -> str:
    """Run until a choice that begins so is in the report."""
    end = monotonic() + 60
    for _ in pipeline:
        if found := [text for text in pipeline.report.choices if text.startswith(start)]:
            return found[0]
        assert monotonic() < end
    raise AssertionError("the video has ended")


def test_a_run_has_it_checked(opened: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_check, "DELAY", 0.0)
    monkeypatch.setenv("FACTOR", "1.1")
    for _ in range(2):  # then it is known
        with Pipeline(VIDEO, "scout-n", engine="scaled", device="cpu", imgsz=[160]) as pipeline:
            assert "boxes) 0.1, " in said(pipeline, "outputs: engine scaled")
            assert any("differs from onnxruntime" in text for text in pipeline.report.warnings)
    assert len(opened.read_text().splitlines()) == 3


def test_a_run_does_not_wait_for_it(opened: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_check, "DELAY", 0.0)
    monkeypatch.setenv("SLOW_BESIDE", str(os.getpid()))
    pipeline = Pipeline(VIDEO, "scout-n", engine="scaled", device="cpu", imgsz=[160])
    for _ in pipeline:
        if len(opened.read_text().splitlines()) == 2:  # the process beside it has begun
            break
    started = monotonic()
    pipeline.close()
    assert monotonic() - started < 5
    child = int(opened.read_text().splitlines()[1])
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)
    assert not [text for text in pipeline.report.choices if text.startswith("outputs:")]


@pytest.mark.parametrize("options", [{"check_outputs": False}, {}])
def test_a_short_run_starts_no_process(opened: Path, options: dict[str, Any]) -> None:
    Pipeline(VIDEO.replace("4000", "5"), "scout-n", engine="scaled", device="cpu", imgsz=[160], **options).run()
    assert len(opened.read_text().splitlines()) == 1


def test_a_run_whose_cache_cannot_be_written(opened: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr(output_check, "DELAY", 0.0)
    with Pipeline(VIDEO, "scout-n", engine="scaled", device="cpu", imgsz=[160]) as pipeline:
        assert "engine scaled in fp32 against onnxruntime" in said(pipeline, "outputs:")


class Tuned:
    """An engine that measures kernels for a while."""

    precision = "fp16"

    def __init__(self, looks: int) -> None:
        self.looks = looks

    @property
    def settled(self) -> bool:
        self.looks -= 1
        return self.looks <= 0


@pytest.mark.parametrize(
    ("free", "helpers", "why"), [(1 << 20, True, "too little GPU memory"), (8 << 30, False, "max_memory")]
)
def test_on_a_gpu_it_needs_room(monkeypatch: pytest.MonkeyPatch, free: int, helpers: bool, why: str) -> None:
    """It also waits until the kernels are those that the run keeps."""
    gpu = SimpleNamespace(current=lambda *given: nullcontext(), memory=lambda: (free, 16 << 30))
    monkeypatch.setattr(output_check, "gpus", gpu)
    monkeypatch.setattr(output_check, "DELAY", 0.0)
    monkeypatch.setattr(Subject, "key", lambda self, reference: dict.fromkeys(KEYS, ""))
    engine, asked = Tuned(3), replace(subject(), options=EngineOptions("cuda", helpers=helpers), gpu=1)
    waiting: Any = OutputCheck(engine, asked)  # type: ignore[arg-type]
    waiting.begin(160, 96)
    waiting._thread.join()
    assert why in waiting.reasons[0] and engine.looks == 0 and not waiting.warnings
    waiting.close()


def test_distances() -> None:
    expected = np.array([3.0, 4.0])
    assert distance(np.array([3.0, 4.5]), expected) == pytest.approx(0.1)
    assert distance(expected[:1], expected) == float("inf")
    assert distance(np.array([np.nan, 4.0]), expected) == float("inf")
    assert limit_of("fp16+int8") == LIMITS["int8"]
    assert limit_of("of another engine") == max(LIMITS.values())


def test_parts() -> None:
    """Boxes do not hide scores, and the order of queries does not matter."""
    card = read_card(find_model("scout-n"))
    values = np.random.default_rng(0).random((1, 14, 8), np.float32)
    assert {name: part.shape[1] for name, part in parts(card, [values]).items()} == {
        "output0 (boxes)": 4, "output0 (scores)": 10,
    }  # fmt: skip
    queries = replace(card, layout="end2end")
    rows = values.transpose(0, 2, 1)[..., :6]
    one, other = parts(queries, [rows]), parts(queries, [rows[:, ::-1]])
    assert all(np.array_equal(one[name], other[name]) for name in one)
