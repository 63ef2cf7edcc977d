"""Which batch size and delay serve the most requests."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from framefuse.batching import tuning as tunings
from framefuse.batching.tuning import BatchPoint, BatchTuning, read_tuning, tuned
from framefuse.errors import ConfigError, UsageError

GPU = {size: 0.0006 + 0.00008 * size for size in (1, 2, 4, 8, 16, 32)}
CPU = {size: 0.05 * size for size in (1, 2, 4)}


@pytest.fixture(autouse=True)
def few_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tunings, "REQUESTS", 300)


def test_a_gpu_gets_large_batches_and_a_cpu_single_requests() -> None:
    _, on_gpu = tuned(GPU, None, ahead=1)
    assert on_gpu.size == 32
    assert on_gpu.rate > 4 * 1 / GPU[1]
    points, on_cpu = tuned(CPU, None)
    assert (on_cpu.size, on_cpu.delay) == (1, 0.0)
    assert {point.size for point in points} == {1, 2, 4}


def test_a_limit_of_latency_is_kept() -> None:
    loose, strict = tuned(GPU, 0.02, ahead=1)[1], tuned(GPU, 0.003, ahead=1)[1]
    assert loose.p99_ms <= 20
    assert strict.p99_ms <= 3
    assert strict.rate < loose.rate


def test_a_limit_that_cannot_be_kept_is_refused() -> None:
    with pytest.raises(UsageError, match="within 40 ms") as caught:
        tuned(CPU, 0.04)
    assert "allow more than" in str(caught.value.remedy)


def test_it_is_kept_in_a_file(tmp_path: Path) -> None:
    point = BatchPoint(2, 0.0, 100.0, 3.0, 5.0)
    tuning = BatchTuning("scout-n", "some CPU", [640, 640], "1.0", 1, {1: 0.1, 2: 0.15}, None, (point,), point)
    file = tmp_path / "batching.json"
    file.write_text(tuning.to_json())
    assert read_tuning(file) == tuning


CHOSEN = {"size": 1, "delay": 0.0, "rate": 100.0, "p50_ms": 3.0, "p99_ms": 5.0}


@pytest.mark.parametrize(
    "change",
    [
        {"schema": 1},
        {"seconds": {"1": 0.0}},
        *({"seconds": {"1": value}} for value in (math.nan, 1e300, -1)),
        *({"seconds": {"0": 0.1, "1": 0.1}}, {"servers": 0}, {"servers": "a"}, {"model": 5}, {"machine": None}),
        {"chosen": 3},
        *({"chosen": {**CHOSEN, "delay": value}} for value in ("x", None, [], -1, math.nan, 1e9)),
        *({"chosen": {**CHOSEN, "size": value}} for value in (1.0, True, 2)),
        {"more": 1},
        *({"imgsz": size} for size in (640, "64", ["64", "64"], [64.5, 64], [64], [0, 64], {"1": 2, "2": 3})),
        None,
    ],
)
def test_other_files_are_refused(tmp_path: Path, change: dict[str, object] | None) -> None:
    point = BatchPoint(1, 0.0, 100.0, 3.0, 5.0)
    tuning = BatchTuning("scout-n", "some CPU", [640, 640], "1.0", 1, {1: 0.1}, None, (point,), point)
    file = tmp_path / "batching.json"
    if change is not None:
        file.write_text(json.dumps({**json.loads(tuning.to_json()), **change}))
    with pytest.raises(ConfigError, match=r"batching\.json"):
        read_tuning(file)
