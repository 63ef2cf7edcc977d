"""Checkpoints: everything that a training needs to continue as if it had not stopped."""

from __future__ import annotations

import os
import tempfile
import zipfile
from collections.abc import Iterable, Set
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from framefuse.errors import FramefuseError, ModelError, SinkError

VERSION = 1
START_OVER = "resume from an intact copy, or remove it and start over"
KEYS = {"version", "name", "names", "net", "average", "optimizer", "step", "seconds", "recipe", "curve", "facts"}


class TrainingStopped(FramefuseError):
    """A training cannot continue; the last good checkpoint is kept."""


def check_folder(folder: Path) -> None:
    """Make the folder of a training and check that it is writable, before the training starts.

    Raises:
        SinkError: it cannot be made or written into.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise SinkError(f"cannot write into {folder}: {error.strerror}", remedy="choose another --out") from error


def save(path: Path, state: dict[str, Any]) -> None:
    """Write a checkpoint atomically.

    Raises:
        SinkError: it cannot be written.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save({"version": VERSION, **state}, partial)
        partial.replace(path)
    except (OSError, RuntimeError) as error:  # PyTorch's writer raises RuntimeError on a full disk
        why = getattr(error, "strerror", None) or f"PyTorch failed, as on a full disk ({str(error)[:100]})"
        kept = f"; the previous {path} is kept" if path.is_file() else ""
        raise SinkError(
            f"checkpoint {path} cannot be written: {why}{kept}", remedy="free some space, or choose another --out"
        ) from error
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)


def first_not_finite(tensors: Iterable[tuple[str, Tensor]]) -> str | None:
    """Name of the first tensor with NaN or infinity; None if there is none."""
    return next((name for name, t in tensors if t.is_floating_point() and not torch.isfinite(t).all()), None)


def load(
    path: Path,
    device: str | torch.device = "cpu",
    keys: Set[str] = KEYS,
    *,
    remedy: str = START_OVER,
) -> dict[str, Any]:
    """Read a checkpoint, or another PyTorch file with at least these keys.

    Args:
        remedy: of the errors.

    Raises:
        ModelError: the file is missing, truncated or damaged, or was not written by this training code.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            if (damaged := archive.testzip()) is not None:  # PyTorch does not notice changed bytes
                raise zipfile.BadZipFile(f"its part {damaged} has changed")
        # Only tensors and plain values, so that an untrusted checkpoint cannot run code.
        state = torch.load(path, map_location=device, weights_only=True)
    except FileNotFoundError as error:
        missing = "train without --resume first" if remedy == START_OVER else remedy
        raise ModelError(f"there is no checkpoint {path}", remedy=missing) from error
    except Exception as error:  # RuntimeError, EOFError, UnpicklingError, ..., depending on where the file ends
        size = path.stat().st_size if path.exists() else 0
        raise ModelError(f"checkpoint {path} is truncated or damaged ({size:,} bytes)", remedy=remedy) from error
    if not isinstance(state, dict) or keys - set(state) or state.get("version", VERSION) != VERSION:
        raise ModelError(f"{path} was not written by this version of training", remedy=remedy)
    return state
