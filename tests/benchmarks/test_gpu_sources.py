"""Recorded GPU results say which sources they were measured on, and what of that has changed since."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import gpu_sources
from benchmarks.kernel_rows import source_hash


def test_every_group_names_files_that_exist() -> None:
    for patterns in gpu_sources.GROUPS.values():
        for pattern in patterns:
            assert list(gpu_sources.PACKAGE.glob(pattern)), pattern


def test_stale_results_are_named_with_what_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = gpu_sources.stamp("kernel", "program")
    results = {
        "fresh": {"gpu": "H200", "sources": now},
        "older": {"environment": {"gpu": ["H200"]}, "sources": {**now, "program": "0" * 12}},
        "silent": {"gpu": "H200"},
        "kernels_of_before": {"gpu": "H200", "source_hash": "1" * 12},
        "on_the_host": {"environment": {"gpu": []}},
    }
    for name, content in results.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
    monkeypatch.setattr(gpu_sources, "RESULTS", tmp_path)
    assert gpu_sources.stale() == [
        f"kernels_of_before was measured on kernel sources {'1' * 12}; they are {source_hash('gpu')} now",
        f"older was measured on program sources {'0' * 12}; they are {now['program']} now",
        "silent does not say on which sources it was measured",
    ]
