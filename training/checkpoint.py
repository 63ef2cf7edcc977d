"""Checkpoints: everything that a training needs to go on as if it had not stopped."""

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
ANEW = "resume from a copy that is whole, or remove it and train anew"
KEYS = {"version", "name", "names", "net", "average", "optimizer", "step", "seconds", "recipe", "curve", "facts"}


class TrainingStopped(FramefuseError):
    """A training cannot go on; the last good checkpoint is kept."""


def check_folder(folder: Path) -> None:
    """Make the folder of a training, before anything is learnt that could not be kept there.

    Raises:
        SinkError: it cannot be made, or nothing can be written into it.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise SinkError(
            f"nothing can be written into {folder}: {error.strerror}", remedy="choose another --out"
        ) from error


def save(path: Path, state: dict[str, Any]) -> None:
    """Write a checkpoint; whoever reads `path` finds the old one or the whole new one.

    Raises:
        SinkError: it cannot be written.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save({"version": VERSION, **state}, partial)
        partial.replace(path)
    except (OSError, RuntimeError) as error:  # RuntimeError: of PyTorch's own writer, on a full disk
        why = getattr(error, "strerror", None) or f"PyTorch stopped short, as on a full disk ({str(error)[:100]})"
        kept = f"; {path} of before is kept" if path.is_file() else ""
        raise SinkError(
            f"checkpoint {path} cannot be written: {why}{kept}", remedy="free some space, or choose another --out"
        ) from error
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)


def first_not_finite(tensors: Iterable[tuple[str, Tensor]]) -> str | None:
    """Name of the first tensor that holds NaN or infinity."""
    return next((name for name, t in tensors if t.is_floating_point() and not torch.isfinite(t).all()), None)


def load(
    path: Path,
    device: str | torch.device = "cpu",
    keys: Set[str] = KEYS,
    *,
    remedy: str = ANEW,
) -> dict[str, Any]:
    """Read a checkpoint, or something else that has at least these keys.

    Args:
        remedy: what to do where it cannot be used.

    Raises:
        ModelError: no such file, truncated or damaged, or not a checkpoint of a training of ours.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            if (damaged := archive.testzip()) is not None:  # PyTorch reads on over bytes that have changed
                raise zipfile.BadZipFile(f"its part {damaged} has changed")
        # Only tensors and plain values: a checkpoint from elsewhere must not be able to run code.
        state = torch.load(path, map_location=device, weights_only=True)
    except FileNotFoundError as error:
        missing = "train without --resume first" if remedy == ANEW else remedy
        raise ModelError(f"there is no checkpoint {path}", remedy=missing) from error
    except Exception as error:  # torch raises RuntimeError, EOFError, UnpicklingError, ... by where the file ends
        size = path.stat().st_size if path.exists() else 0
        raise ModelError(f"checkpoint {path} is truncated or damaged ({size:,} bytes)", remedy=remedy) from error
    if not isinstance(state, dict) or keys - set(state) or state.get("version", VERSION) != VERSION:
        raise ModelError(f"{path} is nothing that this version of training has written", remedy=remedy)
    return state
