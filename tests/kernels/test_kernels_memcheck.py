"""The compiled kernels under valgrind: no access outside an array, no decision on memory that nothing has written."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from framefuse.common.machine import python_path
from framefuse.kernels.cpu import LIBRARIES

CALLS = Path(__file__).parents[1] / "helpers" / "awkward_kernels.py"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(shutil.which("valgrind") is None, reason="apt-get install valgrind"),
]


def errors(folder: Path, *arguments: str) -> tuple[list[str], str]:
    """Kind and innermost function of every error with a kernel on its stack, and what the calls printed.

    Python and the dynamic linker have errors of their own.
    """
    report = folder / "report.xml"
    strict = ["--leak-check=no", "--partial-loads-ok=no", "--redzone-size=256"]
    done = subprocess.run(
        ["valgrind", *strict, "--xml=yes", f"--xml-file={report}", sys.executable, str(CALLS), *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONMALLOC": "malloc", "PYTHONPATH": python_path()},
    )
    assert done.returncode == 0, done.stderr
    found = []
    for error in ElementTree.parse(report).iter("error"):
        frames = list(error.iter("frame"))
        if any((frame.findtext("obj") or "").startswith(str(LIBRARIES)) for frame in frames):
            found.append(f"{error.findtext('kind')} in {frames[0].findtext('fn') or frames[0].findtext('ip')}")
    return found, done.stdout


def test_awkward_sizes_stay_inside_their_arrays(tmp_path: Path) -> None:
    found, printed = errors(tmp_path)
    assert found == []
    assert printed.split() == ["preprocess", "detect", "masks"]


def test_an_access_outside_an_array_is_seen(tmp_path: Path) -> None:
    found, _ = errors(tmp_path, "beyond")
    assert any(text.startswith("InvalidRead") for text in found)
