"""Plug-ins at the command line: which there are, and whose error it is if one of them fails."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

PLUG_IN = """
import numpy as np
from framefuse.engines.null import NullEngine

def open_source(uri, options):
    return [][0]

def open_engine(model, options):
    if model.stem == "squares":
        raise KeyError("squares")
    return NullEngine(lambda images: [np.zeros((len(images), 7, 84), np.float32)])
"""
POINTS = """
[framefuse.sources]
theircam = their_package.parts:open_source
missing = their_package.nothing:open_source
[framefuse.engines]
theirs = their_package.parts:open_engine
absent = their_package.nothing:open_engine
"""


@pytest.fixture(autouse=True)
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package with plug-ins, as pip installs it."""
    for path, text in {
        "their_package/__init__.py": "",
        "their_package/parts.py": PLUG_IN,
        "their_package-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: their_package\nVersion: 1.0\n",
        "their_package-1.0.dist-info/entry_points.txt": POINTS,
    }.items():
        file = tmp_path / "site" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    monkeypatch.syspath_prepend(tmp_path / "site")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("theircam://1 squares", "source theircam (their_package.parts:open_source) raised IndexError: "),
        ("missing://1 squares", "source missing (their_package.nothing:open_source) raised ModuleNotFoundError: "),
        (
            "synthetic://street?frames=2 squares --engine theirs --device cpu",
            "engine theirs (their_package.parts:open_engine) raised KeyError: 'squares'",
        ),
    ],
)
def test_the_error_of_a_plug_in_is_no_bug_of_framefuse(run: Any, words: str, message: str) -> None:
    code, out, err = run("predict", *words.split())
    assert (code, out) == (1, "")
    first, second = err.splitlines()
    assert first.startswith(f"error: {message}")
    assert second == "  -> ask who wrote it; --debug shows the traceback"


def test_our_own_errors_stay_ours(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr("framefuse.pipeline.read_card", broken)
    assert "RuntimeError: broken\n  -> this is a bug" in run("predict", "synthetic://street?frames=2", "squares")[2]


def test_doctor_lists_the_engines_of_plug_ins(run: Any) -> None:
    code, out, _ = run("doctor", "--json")
    rows = {row["name"]: row for row in json.loads(out)["checks"]}
    assert code == 0 and rows["engine theirs"]["status"] == "PASS", rows
    assert rows["engine theirs"]["detail"].startswith("plug-in: ")
    assert rows["engine absent"]["status"] != "PASS" and "their_package" in rows["engine absent"]["detail"]
