"""Clips, a working directory and a command line for the tests of the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from framefuse.cli.app import main
from training.squares_clip import squares_clip


@pytest.fixture(scope="session")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("cli") / "clip.mp4"
    squares_clip(path, frames=12, size=(320, 240), seed=1)
    return path


@pytest.fixture(scope="session")
def long(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """More than a pipe holds the results of."""
    path = tmp_path_factory.mktemp("cli") / "long.mp4"
    squares_clip(path, frames=400, size=(160, 120), seed=1)
    return path


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs write below the working directory."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Any:
    """Run a command line in this process; exit code, stdout and stderr."""

    def run(*words: str | Path) -> tuple[int, str, str]:
        code = main([str(word) for word in words])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run
