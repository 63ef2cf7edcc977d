"""Tensors of compiled networks."""

from __future__ import annotations

from typing import Any


def tensors(result: Any) -> list[Any]:
    """A network's result as a list: it is one tensor, or several."""
    return [result] if hasattr(result, "shape") else list(result)


def address(tensor: Any) -> int:
    """Address of a tensor's first element on the GPU."""
    return int(tensor.data_ptr())
