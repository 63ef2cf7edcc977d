"""Errors of ONNX Runtime, translated into framefuse's."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

from framefuse.errors import EngineError, ModelError

NO_MEMORY = re.compile(r"[Ff]ailed to allocate memory|out of memory|ALLOC(ATION)?_FAILED")
NO_HANDLE = re.compile(r"CUBLAS_STATUS_NOT_INITIALIZED|CUDNN_STATUS_(NOT_INITIALIZED|INTERNAL_ERROR)")
"""Messages of libraries that cannot initialise, mostly for lack of memory."""
LITTLE = 200_000_000
"""Free bytes below which lack of memory is the cause."""
LIBRARY = re.compile(r"(?:CUDA|CUBLAS|CUDNN|CUFFT) (?:failure|error) .*?(?= ;|$)", re.MULTILINE)
"""Message of a CUDA library inside a longer text."""


def cannot_load(path: Path, error: Exception) -> ModelError:
    """The error for a model that does not load; names an operator that is missing."""
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
    """A GpuMemoryError, if the GPU is out of memory; otherwise None.

    Args:
        doing: the attempted action, in the infinitive.
    """
    from framefuse.cuda import device
    from framefuse.cuda.device import translate_cuda_error

    short = bool(NO_MEMORY.search(str(error)))
    if not short and NO_HANDLE.search(str(error)):
        with suppress(Exception):  # a failing query must not hide the error
            short = device.cupy().cuda.runtime.memGetInfo()[0] < LITTLE
    return translate_cuda_error(MemoryError(first_line(error)), doing) if short else None


def first_line(error: BaseException) -> str:
    if said := LIBRARY.search(str(error)):
        return said[0][:300]
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:300] if lines else type(error).__name__
