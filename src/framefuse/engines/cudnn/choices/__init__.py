"""The kernels of layers that were the fastest before, which come with the package.

There is a JSON file for each kind of GPU and version of cuDNN, which `python -m benchmarks.gpu.choices` writes. A file
that cannot be read, or was measured beside another version of our own kernel, counts for nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from framefuse.engines.cache import DAMAGED

FOLDER = Path(__file__).parent
LIKE = "gpu", "capability", "multiprocessors", "cudnn", "ours", "precision"
"""What is the same where the same kernels are the fastest, of `plans.environment`."""
Choice = tuple[int, dict[str, int]]
"""An engine of cuDNN, or TENSOR of `convolutions`, and its knobs."""


def choices_for(environment: Mapping[str, str]) -> dict[str, Choice]:
    """The choices for a GPU, by layer; empty: its kind was not measured.

    Args:
        environment: as `plans.environment`.
    """
    for known in _known(FOLDER):
        if all(known["environment"].get(name) == environment.get(name) for name in LIKE):
            return {layer: (engine, knobs) for layer, (engine, knobs) in known["choices"].items()}
    return {}


@lru_cache
def _known(folder: Path) -> list[dict[str, Any]]:
    found = []
    for file in sorted(folder.glob("*.json")):
        with suppress(*DAMAGED):
            content = json.loads(file.read_text(encoding="utf-8"))
            found.append({"environment": dict(content["environment"]), "choices": dict(content["choices"])})
    return found
