"""pytest plug-in that records a run of the GPU tests in benchmarks/results/gpu_tests.json.

    pytest -p benchmarks.device.gpu_tests -m gpu tests/runtime/test_cuda_*.py

The record holds the command, the outcome of every test by file, failures, the reason of each skip, and what every
record holds: commit, date, GPU, hashes of the sources. A run that is killed leaves the previous record in place.
"""

from __future__ import annotations

import shlex
from collections import Counter, defaultdict
from typing import Any

import pytest

from benchmarks.protocol import save

FAILED: dict[str, str] = {}
"""Test -> last line of its failure; a file that cannot be collected counts as one test."""
SKIPPED: dict[str, list[str]] = defaultdict(list)
"""Reason -> tests."""
PASSED: set[str] = set()
CONFIG: list[pytest.Config] = []


def pytest_configure(config: pytest.Config) -> None:
    CONFIG.append(config)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _note(report)
    if report.passed and report.when == "call":
        PASSED.add(report.nodeid)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    _note(report)


def _note(report: Any) -> None:
    if report.failed:
        FAILED[report.nodeid] = (str(report.longrepr).strip().splitlines() or [""])[-1][:300]
        if terminal := CONFIG[0].pluginmanager.get_plugin("terminalreporter"):  # a run that is killed has no summary
            terminal.write_line(f"\n{report.longrepr}"[-3000:])
    elif report.skipped:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else getattr(report, "wasxfail", "")
        SKIPPED[reason.removeprefix("Skipped: ")].append(report.nodeid)


def pytest_sessionfinish(session: pytest.Session) -> None:
    passed = PASSED - FAILED.keys()
    counts = {"passed": len(passed), "failed": len(FAILED), "skipped": sum(map(len, SKIPPED.values()))}
    files = Counter(nodeid.partition("::")[0] for nodeid in passed)
    save(
        "gpu_tests",
        {
            "command": shlex.join(["pytest", *map(str, session.config.invocation_params.args)]),
            **counts,
            "passed_by_file": dict(sorted(files.items())),
            "failures": FAILED,
            "skips": SKIPPED,
        },
        *("CUDA kernel", "engine cudnn", "program", "CUDA program", "pipeline", "fleet"),
    )
