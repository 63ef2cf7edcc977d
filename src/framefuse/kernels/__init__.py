"""Kernels: what happens to pixels between the decoder and the model, compiled ahead of time.

`preprocess` is the compiled kernel; `reference.preprocess` is the same function in plain numpy, its specification.
"""

from __future__ import annotations

from framefuse.kernels import reference
from framefuse.kernels.cpu import Library, describe, preprocess

__all__ = ["Library", "describe", "preprocess", "reference"]
