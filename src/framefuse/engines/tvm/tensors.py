"""Tensors that a compiled network returns."""

from __future__ import annotations

from typing import Any


def tensors(result: Any) -> list[Any]:
    """Of a network's result: one tensor, or several."""
    return [result] if hasattr(result, "shape") else list(result)


def address(tensor: Any) -> int:
    """Of a tensor's first element on the GPU."""
    return int(tensor.data_ptr())
