"""What ONNX Runtime says when it fails, in our words."""

from __future__ import annotations

import re
from pathlib import Path

from framefuse.errors import EngineError, ModelError

NO_MEMORY = re.compile(r"[Ff]ailed to allocate memory|out of memory|ALLOC(ATION)?_FAILED")
LIBRARY = re.compile(r"(?:CUDA|CUBLAS|CUDNN|CUFFT) (?:failure|error) .*?(?= ;|$)", re.MULTILINE)
"""What one of CUDA's libraries said, in the middle of much about where it was called."""


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


def no_room(doing: str, error: Exception) -> EngineError | None:
    """What it said on a GPU as a GpuMemoryError, where that is what it is about.

    Args:
        doing: what it was asked to, in the infinitive.
    """
    from framefuse.kernels.cuda_errors import in_words

    return in_words(MemoryError(first_line(error)), doing) if NO_MEMORY.search(str(error)) else None


def first_line(error: BaseException) -> str:
    if said := LIBRARY.search(str(error)):
        return said[0][:300]
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:300] if lines else type(error).__name__
