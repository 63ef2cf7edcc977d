"""The command line, and other programs, in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

COMMAND = [sys.executable, "-m", "framefuse"]


def spawn(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *map(str, words)], capture_output=True, text=True, timeout=60)


def importable() -> str:
    """The PYTHONPATH with which another Python process imports the same modules."""
    return os.pathsep.join(filter(None, sys.path))
