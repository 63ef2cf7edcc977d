"""framefuse plan: the memory of a run on a GPU, predicted without one."""

from __future__ import annotations

import json
from typing import Any

import pytest


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], ""),
        (["--streams", "16"], ""),
        (["--adaptive", "--max-memory", "300"], "a run is refused, as the run needs 266 MB"),
        (["--adaptive", "--max-memory", "2000"], ""),
        (["--streams", "16", "--batch", "32", "--max-memory", "3000"], "a run takes fewer or smaller batches: batch 8"),
    ],
)
def test_the_command_prints_every_part_and_the_sum(run: Any, words: list[str], said: str) -> None:
    code, out, err = run("plan", "scout-n", *words)
    assert code == 0
    *parts, total = out.splitlines()[1:]
    assert float(total.split()[-1]) == pytest.approx(
        sum(float(line.split()[-1]) for line in parts), abs=0.1 * len(parts)
    )
    assert said in err and ("max_memory" in err) is bool(said)
    code, out, _ = run("plan", "scout-n", "--json", *words)
    found = json.loads(out)
    assert code == 0 and found["bytes"] == pytest.approx(1e6 * float(total.split()[-1]), rel=1e-3)
    assert said in found["beyond"] and bool(found["beyond"]) is bool(said)


def test_decoders_of_one_video(run: Any) -> None:
    rings = []
    for model in ("scout-n", "body-n"):
        code, out, _ = run("plan", model, "--readers", "4", "--size", "3840x1920", "--json")
        parts = {part["name"]: part for part in json.loads(out)["parts"]}
        assert code == 0 and parts["decoders"]["number"] == 4
        rings.append(parts["rings of decoded frames"])
    assert [ring["number"] for ring in rings] == [4, 4]
    assert rings[1]["each"] - 7 * 1.5 * 4096 * 1920 == 250 * 1.5 * 4096 * 1920, "frames of later parts wait"
    assert rings[0]["each"] == (3 * 8 + 3 + 1) * 1.5 * 4096 * 1920, "results wait"


@pytest.mark.parametrize("size", ["1080", "0x4", "1920x", "x"])
def test_a_wrong_size(run: Any, size: str) -> None:
    code, _, err = run("plan", "scout-n", "--size", size)
    assert code == 2 and "write width and height: --size 1920x1080" in err
