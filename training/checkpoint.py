"""Checkpoints: everything that a training needs to go on as if it had not stopped."""

from __future__ import annotations

import os
from collections.abc import Set
from pathlib import Path
from typing import Any

import torch

from framefuse.errors import FramefuseError, ModelError

VERSION = 1
KEYS = {"version", "name", "names", "net", "average", "optimizer", "step", "seconds", "recipe", "curve", "facts"}


class TrainingStopped(FramefuseError):
    """A training cannot go on; the last good checkpoint is kept."""


def save(path: Path, state: dict[str, Any]) -> None:
    """Write a checkpoint; whoever reads `path` finds the old one or the whole new one.

    Raises:
        ModelError: it cannot be written.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save({"version": VERSION, **state}, partial)
        partial.replace(path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise ModelError(f"checkpoint {path} cannot be written: {error}", remedy="free space, or set --out") from error


def load(path: Path, device: str | torch.device = "cpu", keys: Set[str] = KEYS) -> dict[str, Any]:
    """Read a checkpoint, or something else that has at least these keys.

    Raises:
        ModelError: no such file, truncated or damaged, or not a checkpoint of a training of ours.
    """
    try:
        # Only tensors and plain values: a checkpoint from elsewhere must not be able to run code.
        state = torch.load(path, map_location=device, weights_only=True)
    except FileNotFoundError as error:
        raise ModelError(f"there is no checkpoint {path}", remedy="train without --resume first") from error
    except Exception as error:  # torch raises RuntimeError, EOFError, UnpicklingError, ... by where the file ends
        size = path.stat().st_size if path.exists() else 0
        raise ModelError(
            f"checkpoint {path} is truncated or damaged ({size:,} bytes)",
            remedy="resume from an earlier checkpoint, or train anew without --resume",
        ) from error
    if not isinstance(state, dict) or keys - set(state) or state.get("version", VERSION) != VERSION:
        raise ModelError(
            f"{path} is nothing that this version of training has written", remedy="train anew without --resume"
        )
    return state
