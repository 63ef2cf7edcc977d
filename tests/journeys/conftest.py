"""What a new user has: a video, photos, labels of them, and a model in ONNX. The names are those of the guide."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from command_line import spawn
from framefuse.models import find_model


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with video.mp4, annotations.json (its ground truth), photos/ and model.onnx."""
    folder = tmp_path_factory.mktemp("home")
    street = "street?seed=9&frames=12&fps=3&size=640x360&split=test"
    assert spawn("synth", street, "--out", folder / "made", "--images").returncode == 0
    (folder / "made/street-test-9.mp4").rename(folder / "video.mp4")
    (folder / "made/street-test-9.json").rename(folder / "annotations.json")
    (folder / "photos").mkdir()
    for number in range(3):
        (folder / f"made/street-test-9_{number}.png").rename(folder / f"photos/{number}.png")
    model = find_model("scout-n")
    shutil.copy(model, folder / "model.onnx")
    shutil.copy(model.with_suffix(".yaml"), folder / "model.yaml")
    return folder


@pytest.fixture(autouse=True)
def at_home(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(home)
