"""framefuse power: what is measured, what is not and why, and the watts at rest that reports subtract."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest

from framefuse.pipeline import Pipeline
from framefuse.runtime import power
from framefuse.runtime.power import Counter


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU that takes 40 W, and a GPU without NVML."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    cpu, gpu, board = (
        {"source": "RAPL", "error": "a model", "value": lambda: 40 * time.perf_counter()},
        {"source": "NVML", "missing": "there is no driver"},
        {"source": "INA3221", "missing": "this is no Jetson"},
    )
    monkeypatch.setattr(power, "cpu_counter", lambda root=None: Counter("cpu", **cpu))
    monkeypatch.setattr(power, "gpu_counter", lambda gpu_: Counter(f"cuda:{gpu_}", **gpu))
    monkeypatch.setattr(power, "board_counter", lambda root=None: Counter("board", **board))


def test_every_device_has_a_line(run: Any) -> None:
    code, out, _ = run("power", "--seconds", "1")
    *others, cpu = out.splitlines()
    assert code == 0 and others == [
        "board not measured, because this is no Jetson",
        "cuda:0 not measured, because there is no driver",
    ]
    assert re.fullmatch(r"cpu [34]\d\.\d W on average, by RAPL \(a model\)", cpu)


def test_one_device_as_json(run: Any) -> None:
    code, out, _ = run("power", "--seconds", "1", "--device", "cpu", "--json")
    (row,) = json.loads(out)
    assert code == 0 and row["device"] == "cpu" and row["watts"] == pytest.approx(40, rel=0.1) and not row["missing"]


@pytest.mark.parametrize(("device", "why"), [("cuda:3", "there is no driver"), ("board", "this is no Jetson")])
def test_a_device_that_was_asked_for_is_a_promise(device: str, why: str, run: Any) -> None:
    code, _, err = run("power", "--device", device)  # without waiting for it
    assert code == 3 and f"--device {device}: {why}" in err


@pytest.mark.parametrize(
    "words",
    [("--seconds", "0"), ("--seconds", "nan"), ("--seconds", "1e9"), ("--device", "tpu"), ("--device", "cuda:x")],
)
def test_bad_values(words: tuple[str, str], run: Any) -> None:
    code, _, err = run("power", *words)
    assert code == 2 and "cannot measure" in err and "use 1 to 3600 seconds" in err


def test_the_watts_at_rest_are_kept_for_reports(run: Any, monkeypatch: pytest.MonkeyPatch, clip: Path) -> None:
    assert run("power", "--seconds", "1", "--save-idle")[0] == 0
    busy = Counter("cpu", "RAPL", value=lambda: 100 * time.perf_counter())
    monkeypatch.setattr(power, "cpu_counter", lambda root=None: busy)
    monkeypatch.setattr(power, "SHORTEST", 0.0)
    with Pipeline(clip, "squares", device="cpu") as pipeline:
        report = pipeline.run()
    (facts,) = report.energy
    assert facts.idle_watts == pytest.approx(40, rel=0.1) and facts.watts == pytest.approx(100, rel=0.1)
    assert facts.above_idle_per_frame and facts.joules_per_frame
    assert facts.above_idle_per_frame == pytest.approx((1 - facts.idle_watts / facts.watts) * facts.joules_per_frame)
    assert sum(facts.stages.values()) == pytest.approx(facts.joules_per_frame)
    for text in (report.table(), report.to_html()):
        assert f"cpu {facts.joules_per_frame:.3g} J a frame" in text and "W at rest" in text


def test_a_cache_that_cannot_be_written(run: Any, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    code, _, err = run("power", "--seconds", "1", "--save-idle")
    assert code == 1 and "cannot write" in err
