"""framefuse tune-batch, and a Batcher that uses what it found."""

from __future__ import annotations

import json
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import framefuse
from framefuse.cli.app import main
from framefuse.errors import ConfigError, UsageError


@pytest.fixture(scope="module")
def tuning(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("tuned") / "batching.json"
    words = ["tune-batch", "scout-n", "--imgsz", "96", "--max-batch", "2", "--max-latency", "30s", "--out", str(out)]
    with redirect_stderr(StringIO()) as printed:
        assert main(words) == 0
    assert f"framefuse.Batcher('scout-n', imgsz=96, tuning={str(out)!r})" in printed.getvalue()
    return out


def test_it_writes_numbers_and_a_plot(tuning: Path) -> None:
    content = json.loads(tuning.read_text())
    assert sorted(map(int, content["seconds"])) == [1, 2]
    assert content["max_latency"] == 30.0
    assert content["chosen"] in content["points"]
    assert tuning.with_suffix(".png").read_bytes().startswith(b"\x89PNG")


def test_a_batcher_takes_it(tuning: Path) -> None:
    content = json.loads(tuning.read_text())
    with framefuse.Batcher("scout-n", imgsz=96, tuning=tuning) as batcher:
        stats = batcher.stats()
        assert stats.max_batch_size <= content["chosen"]["size"]
        assert stats.batch_ms[1] == pytest.approx(1e3 * content["seconds"]["1"])
        assert batcher.submit(np.zeros((96, 96, 3), np.uint8)).result().batch_size == 1


@pytest.mark.parametrize(
    ("change", "message"), [({"model": "scout-s"}, "scout-s"), ({"machine": "a toaster"}, "toaster")]
)
def test_that_of_another_model_or_machine_is_refused(
    tuning: Path, tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    other = tmp_path / "other.json"
    other.write_text(json.dumps({**json.loads(tuning.read_text()), **change}))
    with pytest.raises(ConfigError, match=message) as caught:
        framefuse.Batcher("scout-n", imgsz=96, tuning=other)
    assert "framefuse tune-batch scout-n --imgsz 96,96" in caught.value.remedy
    with pytest.raises(ConfigError, match="tuned for 96x96 pixels, and this model takes 128x128"):
        framefuse.Batcher("scout-n", imgsz=128, tuning=tuning)
    with pytest.raises(UsageError, match="beside"):
        framefuse.Batcher("scout-n", imgsz=96, tuning=tuning, max_batch_size=2)


@pytest.mark.parametrize("limit", ["fast", "0ms", "-3ms", "20 minutes"])
def test_a_wrong_limit(limit: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune-batch", "scout-n", f"--max-latency={limit}"]) == 2
    assert "write a time" in capsys.readouterr().err
