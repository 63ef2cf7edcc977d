"""The wheel: built in isolation without a compiler on the machine, installed into an empty environment, used there."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent

USE_KERNEL = """
import importlib.util
import numpy as np
from framefuse import kernels
from framefuse.frame import Frame
out = np.full((3, 4, 4), np.nan, np.float32)
kernels.preprocess(Frame.from_array(np.full((8, 8, 3), 7, np.uint8)), out, content=(0, 0, 4, 4), interpolation="linear",
    pad_value=0.0, mean=(0.0,) * 3, std=(1.0,) * 3, channel_order="rgb")
assert (out == 7).all()
assert importlib.util.find_spec("tvm") is None and importlib.util.find_spec("ziglang") is None
from framefuse.models import SHIPPED, find_model
assert all(find_model(name).exists() for name in SHIPPED)
print(kernels.__file__)
"""


EMPTY = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "CC", "CXX")} | {"PATH": "/none"}
"""What is run sees no program but those that it names by their path."""


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    """The one that `make wheel` left in `dist`, if no source is newer; otherwise one that is built now, as there."""
    names = ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE")
    sources = [ROOT / name for name in names]
    sources += [path for path in (ROOT / "src").rglob("*") if not {"_lib", "__pycache__"} & set(path.parts)]
    newest = max(path.stat().st_mtime for path in sources if path.is_file())
    for made in (ROOT / "dist").glob(f"framefuse-*_{platform.machine()}.whl"):
        if made.stat().st_mtime > newest:
            return made
    # From a copy, so that nothing built in the checkout can get into the wheel.
    source = tmp_path / "source"
    shutil.copytree(ROOT / "src", source / "src", ignore=shutil.ignore_patterns("_lib", "__pycache__"))
    for name in names:
        shutil.copy(ROOT / name, source / name)
    run(tmp_path, sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", "dist", source)
    (made,) = (tmp_path / "dist").iterdir()
    return made


def run(folder: Path, *command: str | Path) -> str:
    done = subprocess.run(command, cwd=folder, env=EMPTY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_wheel_is_built_and_used_without_a_compiler(wheel: Path, tmp_path: Path) -> None:
    assert wheel.name.startswith("framefuse-") and "-py3-none-manylinux_2_28_" in wheel.name
    venv.create(tmp_path / "venv", with_pip=True)
    programs, empty = tmp_path / "venv" / "bin", tmp_path / "empty"
    empty.mkdir()
    run(empty, programs / "python", "-m", "pip", "install", "--quiet", str(wheel))
    assert str(tmp_path / "venv") in run(empty, programs / "python", "-c", USE_KERNEL)
    run(empty, programs / "framefuse", "doctor")
    run(empty, programs / "framefuse", "demo", "--quiet")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_container_is_what_its_recipe_says(wheel: Path, tmp_path: Path) -> None:
    """The commands of the Dockerfile, in an empty environment instead of a container."""
    venv.create(tmp_path / "venv", with_pip=True)
    install, work = tmp_path / "install", tmp_path / "work"
    install.mkdir()
    work.mkdir()
    shutil.copy(ROOT / "constraints.txt", install)
    shutil.copy(wheel, install)
    steps = recipe("Dockerfile")
    environment = EMPTY | {"PATH": f"{tmp_path / 'venv' / 'bin'}:/usr/bin:/bin"}
    for word, rest in steps:
        if word == "RUN" and "useradd" not in rest:
            command = rest.replace("/install", str(install))
            subprocess.run(command, shell=True, check=True, cwd=work, env=environment)
    assert not install.exists()
    (entry,) = (json.loads(rest) for word, rest in steps if word == "ENTRYPOINT")
    (default,) = (json.loads(rest) for word, rest in steps if word == "CMD")
    for words in (default, ["predict", "synthetic://street?frames=5", "squares", "--log-json"]):
        subprocess.run([*entry, *words], check=True, cwd=work, env=environment | {"HOME": str(work)})
    assert len(next(work.glob("runs/predict/predict/*.jsonl")).read_text().splitlines()) == 5


@pytest.mark.parametrize("name", ["Dockerfile", "Dockerfile.cuda"])
def test_containers_run_as_no_root(name: str) -> None:
    steps = recipe(name)
    words = [word for word, _ in steps]
    assert words[0] == "FROM" and dict(steps)["USER"] == "framefuse"
    assert words.index("USER") > max(number for number, word in enumerate(words) if word == "RUN")
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert all(extra in extras for _, rest in steps for extra in re.findall(r"\)\[(\w+)\]", rest))


def test_constraints_allow_what_the_project_needs() -> None:
    pins = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line)
    for text in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]:
        needed = Requirement(text)
        assert needed.specifier.contains(pins[needed.name.lower()], prereleases=True), text


def recipe(name: str) -> list[tuple[str, str]]:
    """(instruction, the rest of its line) of a Dockerfile."""
    lines = (ROOT / "deploy" / name).read_text().splitlines()
    return [(line.partition(" ")[0], line.partition(" ")[2]) for line in lines if line and not line.startswith("#")]


def test_git_leaves_binary_files_as_they_are() -> None:
    """Which it does not where it takes one for text, as it may with a small model."""
    if not (ROOT / ".git").exists():
        pytest.skip("this is no checkout")
    listed = subprocess.run(["git", "ls-files", "--eol"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    kinds = {path: facts for facts, path in (line.split("\t") for line in listed.splitlines())}
    binary = [path for path in kinds if path.endswith((".onnx", ".png", ".jpg", ".avi")) or "/kept/" in path]
    assert len(binary) > 10
    assert not [path for path in binary if "attr/-text" not in kinds[path]]
    assert not [path for path, facts in kinds.items() if "i/-text" in facts and "attr/-text" not in facts]
