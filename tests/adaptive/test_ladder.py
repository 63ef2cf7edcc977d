"""Ladders: which rungs stay, which one a frame rate leaves time for, and files that are none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from framefuse.adaptive.ladder import MOST, Ladder, Rung, choose, judged, read_ladder
from framefuse.errors import ConfigError


def rung(model: str, size: int, ms: float, score: float, precision: str = "bf16") -> Rung:
    return Rung(model, size, "openvino", precision, ms, 1.2 * ms, 2 * ms, None, 50, 1, score, score, score, 1)


def ladder(*rungs: Rung) -> Ladder:
    return Ladder(judged(rungs), "mAP50-95", "street", 100, "a machine", "0.1")


N320, N640, S416, S640 = (
    rung("n", 320, 3, 0.4),
    rung("n", 640, 10, 0.6),
    rung("s", 416, 17, 0.55),
    rung("s", 640, 40, 0.7),
)


def test_a_rung_that_is_slower_and_worse_is_none() -> None:
    found = ladder(S640, S416, N640, N320)
    assert [one.name for one in found.kept] == ["n 320 bf16", "n 640 bf16", "s 640 bf16"]
    assert {one.name: one.verdict for one in found.rungs}["s 416 bf16"] == "n 640 bf16 is as good and takes 10 ms"
    assert [one.p50_ms for one in found.rungs] == [3, 10, 17, 40]


def test_a_rung_must_save_time() -> None:
    found = ladder(N640, rung("s", 640, 10.5, 0.7))
    assert [one.name for one in found.kept] == ["s 640 bf16"] and "hardly longer" in found.rungs[0].verdict


def test_a_precision_must_not_lose_more_than_a_point_and_must_save_a_tenth() -> None:
    fast, lossy = rung("s", 640, 20, 0.695, "int8"), rung("s", 640, 15, 0.68, "fp8")
    idle = rung("n", 640, 9.5, 0.599, "int8")
    found = {one.name: one.verdict for one in ladder(N640, idle, S640, fast, lossy).rungs}
    assert found["s 640 int8"] == found["s 640 bf16"] == found["n 640 bf16"] == ""
    assert found["s 640 fp8"] == "it loses 2.0 points to bf16"
    assert found["n 640 int8"] == "it saves less than 10% of the time of bf16"


def test_at_most_six_are_kept_with_the_cheapest_and_the_best() -> None:
    found = ladder(*(rung("m", 32 * n, 2.0**n + (n == 5), n / 20) for n in range(1, 11))).kept
    assert len(found) == MOST and found[0].size == 32 and found[-1].size == 320


@pytest.mark.parametrize(
    ("fps", "adaptive", "name"),
    [
        (None, False, "s 640"), (10, False, "s 640"), (30, False, "n 640"), (120, False, "n 320"),
        (1000, False, "n 320"), (30, True, "s 640"), (120, True, "n 640"),
    ],
)  # fmt: skip
def test_the_best_rung_that_the_rate_leaves_time_for(fps: float | None, adaptive: bool, name: str) -> None:
    found, why = choose(ladder(N320, N640, S416, S640), fps, adaptive=adaptive)
    assert found.name == f"{name} bf16" and found.name in why
    assert ("too slow" in why) == (fps is not None and name != "s 640")


def test_a_file_comes_back(tmp_path: Path) -> None:
    path, written = tmp_path / "ladder.json", ladder(N320, S416, N640)
    path.write_text(written.to_json())
    assert read_ladder(path) == written


@pytest.mark.parametrize("change", ["", "{", "[]", "{}", "schema", "rungs", "kept", "time", "key"])
def test_what_is_no_ladder_is_refused(change: str, tmp_path: Path) -> None:
    path = tmp_path / "ladder.json"
    content = json.loads(ladder(N320, N640).to_json())
    if change == "schema":
        content["schema"] = 99
    elif change == "rungs":
        content["rungs"] = []
    elif change == "kept":
        content["rungs"] = [{**one, "verdict": "no"} for one in content["rungs"]]
    elif change == "time":
        content["rungs"][0]["p50_ms"] = -1
    elif change == "key":
        content["rungs"][0]["colour"] = "red"
    path.write_text(json.dumps(content) if len(change) > 2 else change)
    with pytest.raises(ConfigError, match="is not a ladder") as error:
        read_ladder(path)
    assert "framefuse profile" in error.value.remedy
    with pytest.raises(ConfigError, match="cannot read the ladder"):
        read_ladder(tmp_path / "none.json")
