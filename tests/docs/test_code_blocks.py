"""The code on the pages runs: README, the first ten minutes, and the guide.

Blocks marked `python` run, with fewer frames. Blocks marked `py` need a GPU, or belong to a file that has its own test.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from PIL import Image

from framefuse.cli.app import app, main
from framefuse.cli.options import normalise
from framefuse.models import find_model
from framefuse.sinks.records import HEADER
from pages import blocks

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "docs/start.md", *sorted((ROOT / "docs/guide").glob("*.md"))]
ELSEWHERE = ("cuda", "--gpus", "--ray", "ptx", "rtsp://", "peer")
ELSEWHERE += ("MOT17", "doctor", "power ", "bench ", "parity ", "tune ", "demo", "synth ", "build ", "--show ")
"""In a command that is only parsed here: it needs a GPU, a display, a network or minutes, and has tests of its own."""


@pytest.fixture(scope="session")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the pages name: video.mp4, talk.mp4, photo.jpg, clips/, photos/, model.onnx, ..."""
    folder = tmp_path_factory.mktemp("pages")
    clip = "synthetic://street?frames=12&size=640x360&split=test"
    assert main(["synth", clip, "--out", str(folder / "made"), "--images"]) == 0
    (video,) = (folder / "made").glob("*.mp4")
    (truth,) = (folder / "made").glob("*.json")
    shutil.copy(video, folder / "video.mp4")
    images = sorted((folder / "made").glob("*.png"))
    for name, count in (("photos", 2), ("images", len(images))):
        (folder / name).mkdir()
        for image in images[:count]:
            shutil.copy(image, folder / name)
    Image.open(images[0]).save(folder / "photo.jpg")
    (folder / "clips").mkdir()
    for name in ("1.mp4", "2.mp4"):
        shutil.copy(video, folder / "clips" / name)
    people = "synthetic://bodies?frames=6&size=640x320&stereo=sbs&split=test"
    assert main(["synth", people, "--out", str(folder / "people")]) == 0
    for name in ("party_180_LR.mp4", "clip_180_LR.mp4", "talk.mp4"):
        shutil.copy(next((folder / "people").glob("*.mp4")), folder / name)
    shutil.copy(truth, folder / "annotations.json")
    box = {"x": 10, "y": 20, "width": 30, "height": 40, "rotation": 0, "rectanglelabels": ["car"]}
    row = {"type": "rectanglelabels", "original_width": 640, "original_height": 360, "value": box}
    task = {"data": {"image": "/data/local-files/?d=images/video_0.jpg"}, "annotations": [{"result": [row]}]}
    (folder / "grid.yaml").write_text("conf: [0.3, 0.5]\ntrack: [bytetrack, ocsort]\n")
    (folder / "export.json").write_text(json.dumps([task]))  # of Label Studio
    (zones,) = blocks(ROOT / "docs/guide/events.md", "yaml")
    (folder / "zones.yaml").write_text(zones)
    model = find_model("scout-n")
    shutil.copy(model, folder / "model.onnx")
    shutil.copy(model.with_suffix(".yaml"), folder / "model.yaml")
    killed = folder / "runs/predict/predict"
    killed.mkdir(parents=True)
    (killed / "video.csv.part").write_text(",".join(HEADER) + "\n")
    return folder


def shortened(text: str) -> str:
    """With six frames instead of many, so that the tests take seconds."""
    return re.sub(r"frames=\d+", "frames=6", text)


PYTHON = [(page, number) for page in PAGES for number in range(len(blocks(page, "python")))]


@pytest.mark.parametrize(("page", "number"), PYTHON, ids=lambda value: getattr(value, "name", str(value)))
def test_python(page: Path, number: int, workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process, with names of its own: to start Python and import everything takes longer than most blocks."""
    monkeypatch.chdir(workplace)
    exec(compile(shortened(blocks(page, "python")[number]), f"{page.name}:{number}", "exec"), {"__name__": "__main__"})


def commands(page: Path) -> list[str]:
    lines = "\n".join(blocks(page, "console")).splitlines()
    return [line[2:].partition("  #")[0].strip() for line in lines if line.startswith("$ framefuse")]


COMMANDS = [(page, command) for page in PAGES for command in commands(page)]


@pytest.mark.parametrize(("page", "command"), COMMANDS, ids=lambda value: getattr(value, "name", value))
def test_command(page: Path, command: str, workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(workplace)
    words = shlex.split(shortened(command).partition(" | ")[0])[1:]
    if any(word in f"{command} " for word in ELSEWHERE):
        parse(words)
    else:
        assert main([*words, *(["--exist-ok"] if "--save" in words else [])]) == 0


def parse(words: list[str]) -> None:
    """Check verb and options without running anything."""
    command = typer.main.get_command(app)
    context = command.make_context("framefuse", [], resilient_parsing=True)
    rest = list(normalise(words))
    while hasattr(command, "get_command"):
        name = rest.pop(0)
        command = command.get_command(context, name)
        assert command is not None, name
    command.make_context(words[0], rest, parent=context)


@pytest.mark.parametrize("example", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.stem)
def test_example(example: Path, tmp_path: Path) -> None:
    if example.stem == "own_kernel":
        pytest.skip("tests/kernels/test_own_kernel.py builds and runs it")
    done = subprocess.run([sys.executable, str(example)], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout
