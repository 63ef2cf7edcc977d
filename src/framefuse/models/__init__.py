"""Models: what they are (card.py), the ones that come with framefuse (shipped.py), and the one it makes itself."""

from __future__ import annotations

import difflib
import errno
import os
import tempfile
from pathlib import Path

from framefuse.common.redact import brief, redact_source
from framefuse.errors import ModelError, UsageError
from framefuse.models.shipped import SHIPPED, shipped_model

MADE = {"squares": "finds saturated red, green and blue squares; written on first use, for demos and tests"}
"""Models that framefuse makes itself, by name, and what each does."""


def list_models() -> dict[str, str]:
    """Names that `find_model` knows, each with a line that says what the model does."""
    return {name: model.about for name, model in SHIPPED.items()} | MADE


def find_model(model: str | Path) -> Path:
    """The file of a model, from its name or path. A model that framefuse makes itself is written into the user's cache,
    or, where that cannot be written, into a folder for temporary files.

    Raises:
        UsageError: no text and no path.
        ModelError: neither a known name nor a file, a shipped file that was changed, or nothing can be written.
    """
    if not isinstance(model, (str, os.PathLike)):
        raise UsageError(f"the model is {brief(model)}", remedy="pass a name, or the path of an ONNX file")
    if str(model) in SHIPPED:
        return shipped_model(str(model))
    if str(model) in MADE:
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
    """Written anew each time, a few milliseconds, so that it is always this version's."""
    from framefuse.models.squares import write_squares

    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "framefuse"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return write_squares(folder / "squares.onnx")
    except OSError:  # a container's home, often
        pass
    try:
        return write_squares(_temporary() / "squares.onnx")
    except OSError as error:
        raise ModelError(
            f"the model squares can be written neither into {folder} nor into a temporary folder: {error}",
            remedy="set XDG_CACHE_HOME to a folder that can be written",
        ) from error


def _temporary() -> Path:
    """A folder for temporary files of this user alone.

    Raises:
        OSError: there is none.
    """
    folder = Path(tempfile.gettempdir(), f"framefuse-{os.getuid()}")
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise PermissionError(errno.EPERM, "it belongs to somebody else", str(folder))
    return folder


__all__ = ["find_model", "list_models"]
