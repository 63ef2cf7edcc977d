"""The copies of `call.py` in NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray


def copy_all(sources: Sequence[NDArray[Any]], targets: Sequence[NDArray[Any]]) -> None:
    """targets[i][...] = sources[i]."""
    for source, target in zip(sources, targets, strict=True):
        np.copyto(target, source)
