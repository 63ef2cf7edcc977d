"""framefuse bench adaptive: what it measures, what it writes, and footage that it cannot take."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from framefuse.cli.app import main
from framefuse.lab.adaptive_bench import STRIDES, Footage, compare, plot, render, table
from framefuse.lab.evaluation import open_data

STREET = "synthetic://street?seed=5&frames=40&size=320x180&split=test"


@pytest.fixture(scope="module")
def street() -> Footage:
    return compare("street", open_data(STREET), "scout-n", {"imgsz": [320]})


def test_policies_stand_beside_each_other_on_all_frames(street: Footage) -> None:
    names = [policy.name for policy in street.policies]
    assert names[:2] == ["every frame", "adaptive"]
    assert len(names) == 2 + 2 * len(STRIDES)
    shares = {policy.name: policy.share for policy in street.policies}
    assert shares["every frame"] == 1
    assert shares["every 2nd frame, tracked"] == pytest.approx(21 / 40)
    assert 0 < shares["adaptive"] < 1
    assert street.measure == "mAP50-95"
    scores = {policy.name: policy.score for policy in street.policies}
    assert scores["every 5th frame, tracked"] < scores["every 5th frame, interpolated"] <= scores["every frame"] + 0.02
    whole, adaptive = street.policies[:2]
    assert sum(whole.lost) == 0
    assert len(adaptive.inferred) == len(street.objects) == 2  # seconds
    assert whole.cpu_ms is None or adaptive.cpu_ms is None or 0 < adaptive.cpu_ms < whole.cpu_ms


def test_the_page_and_the_table_show_them(street: Footage) -> None:
    head, *rows = table([street])
    assert [row[1] for row in rows] == [policy.name for policy in street.policies]
    assert head.index("difference") == 4
    html = render([street], "scout-n", [])
    assert html.count("<tr>") == 1 + len(rows)
    assert "the model saw" in html


def test_the_plot_is_a_png(street: Footage) -> None:
    pytest.importorskip("matplotlib")
    assert plot(street).startswith(b"\x89PNG")


def test_footage_without_truth(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "page.html"
    assert (
        main(["bench", "adaptive", "squares", "--source", STREET.replace("40", "20"), "--out", str(out), "--json"]) == 0
    )
    said = json.loads(capsys.readouterr().out)
    (footage,) = said["footage"]
    assert footage["measure"] == "agreement"
    assert footage["policies"][0]["score"] == 1
    assert json.loads(out.with_suffix(".json").read_text()) == said
    assert out.read_text().startswith("<!doctype html>")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--source", "a.mp4", "--data", "b.json"], "--source and --data were given"),
        (["--source", "missing.mp4"], "missing.mp4"),
        (["--data", STREET, "--min-agreement", "0"], "min_agreement"),
    ],
)
def test_wrong_words(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["bench", "adaptive", "scout-n", *words]) in (1, 2, 3)
    assert message in capsys.readouterr().err.replace("\n", " ")
