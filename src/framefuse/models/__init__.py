"""Finds models by name or path. A card (card.py) describes a model; shipped.py lists the models in the package."""

from __future__ import annotations

import difflib
import errno
import os
import tempfile
from pathlib import Path

from framefuse.common.redact import brief, redact_source
from framefuse.errors import ModelError, UsageError
from framefuse.models.shipped import SHIPPED, shipped_model

GENERATED = {"squares": "finds saturated red, green and blue squares; written on first use, for demos and tests"}
"""Models that framefuse generates: name -> description."""


def list_models() -> dict[str, str]:
    """Model names for `find_model`, each with a one-line description."""
    return {name: model.about for name, model in SHIPPED.items()} | GENERATED


def find_model(model: str | Path) -> Path:
    """The file of a model, from its name or path. A generated model is written to the user's cache, or to a temporary
    folder if the cache is not writable.

    Raises:
        UsageError: `model` is not a string or path.
        ModelError: there is no such model, a shipped file was changed, or a generated model cannot be written.
    """
    if not isinstance(model, (str, os.PathLike)):
        raise UsageError(f"the model is {brief(model)}", remedy="pass a name, or the path of an ONNX file")
    if str(model) in SHIPPED:
        return shipped_model(str(model))
    if str(model) in GENERATED:
        return _write_squares()
    path = Path(model)
    try:
        if str(model) and path.exists():
            return path
    except OSError as error:
        raise ModelError(f"{redact_source(model)} cannot be read: {error.strerror}", remedy="check the path") from error
    remedy = f"pass a path, or one of the names {', '.join(list_models())}"
    if near := difflib.get_close_matches(str(model), list_models(), 1):
        remedy = f"did you mean {near[0]!r}?"
    elif path.suffix in (".pt", ".pth"):
        remedy = f"export the PyTorch model first, for example: yolo export model={path.name} format=onnx dynamic=True"
    raise ModelError(f"there is no model {redact_source(model)!r}", remedy=remedy)


def _write_squares() -> Path:
    """Write the model squares; every time, because it takes milliseconds and must match this version."""
    from framefuse.models.squares import write_squares

    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "framefuse"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return write_squares(folder / "squares.onnx")
    except OSError:  # such as the home of a container
        pass
    try:
        return write_squares(_temporary_folder() / "squares.onnx")
    except OSError as error:
        raise ModelError(
            f"the model squares can be written neither to {folder} nor to a temporary folder: {error}",
            remedy="set XDG_CACHE_HOME to a writable folder",
        ) from error


def _temporary_folder() -> Path:
    """A temporary folder that only this user can access.

    Raises:
        OSError: it cannot be created, or belongs to another user.
    """
    folder = Path(tempfile.gettempdir(), f"framefuse-{os.getuid()}")
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise PermissionError(errno.EPERM, "it belongs to another user", str(folder))
    return folder


__all__ = ["find_model", "list_models"]
