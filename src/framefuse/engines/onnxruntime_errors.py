"""What ONNX Runtime says when it fails, in our words."""

from __future__ import annotations

import re
from pathlib import Path

from framefuse.errors import ModelError


def cannot_load(path: Path, error: Exception) -> ModelError:
    """What ONNX Runtime said about a model, with the operator named where it lacks one."""
    text = str(error)
    found = re.search(
        r"No Op registered for (\w+)|implementation for (\w+)\(|(?:Fatal error: )?(\S+)\(-1\) is not a", text
    )
    if found:
        name = next(group for group in found.groups() if group)
        return ModelError(
            f"ONNX Runtime has no operator {name}, which {path} uses",
            remedy="export the model with an opset that has it",
        )
    return ModelError(f"ONNX Runtime cannot load {path}: {first_line(error)}")


def first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:300] if lines else type(error).__name__
