"""The kernels of layers that were the fastest before, which come with the package.

There is a JSON file for each kind of GPU, which `python -m benchmarks.gpu.choices` writes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
LIKE = "gpu", "capability", "multiprocessors", "cudnn", "precision"
"""What GPUs have in common on which the same kernels are the fastest."""
Choice = tuple[int, dict[str, int]]
"""An engine of cuDNN, or TENSOR of `convolutions`, and its knobs."""


def choices_for(environment: Mapping[str, str]) -> dict[str, Choice]:
    """The choices for a GPU, by layer; empty: its kind was not measured.

    Args:
        environment: as `plans.environment`.
    """
    for known in _known(FOLDER):
        if all(known["environment"][name] == environment.get(name) for name in LIKE):
            return {layer: (engine, knobs) for layer, (engine, knobs) in known["choices"].items()}
    return {}


@lru_cache
def _known(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(file.read_text(encoding="utf-8")) for file in sorted(folder.glob("*.json"))]
