"""Finds models by name or path. A card (card.py) describes a model; shipped.py lists the models in the package."""

from __future__ import annotations

import os
from pathlib import Path

from framefuse.common.names import nearby, nearest
from framefuse.common.redact import brief, redact_source
from framefuse.errors import ModelError, UsageError
from framefuse.models.catalogue import KNOWN, fetched_model
from framefuse.models.shipped import SHIPPED, shipped_model


def list_models() -> dict[str, str]:
    """Model names for `find_model`, each with a one-line description."""
    return {name: model.about for name, model in SHIPPED.items()}


def find_model(model: str | Path) -> Path:
    """The file of a model, from its name or path. Nothing is fetched: `hub.get_model` does that.

    Raises:
        UsageError: `model` is not a string or path.
        ModelError: there is no such model, or a shipped file was changed.
    """
    if not isinstance(model, (str, os.PathLike)):
        raise UsageError(f"the model is {brief(model)}", remedy="pass a name, or the path of an ONNX file")
    if str(model) in SHIPPED:
        return shipped_model(str(model))
    path = Path(model)
    try:
        if str(model) and path.exists():
            return path
    except OSError as error:
        raise ModelError(f"{redact_source(model)} cannot be read: {error.strerror}", remedy="check the path") from error
    if fetched := fetched_model(str(model)):
        return fetched
    raise ModelError(f"there is no model {redact_source(model)!r}", remedy=_how_to_get(str(model), path))


def _how_to_get(model: str, path: Path) -> str:
    if model in KNOWN or "://" in model:
        return f"fetch it once: framefuse models get {redact_source(model)}"
    known = [*list_models(), *KNOWN]
    family = [name for name in known if name.partition("-")[0] == model.partition("-")[0]]
    if near := nearest(model, known, spelling=True) or family:
        return f"did you mean {near[0]!r}?"
    if path.suffix in (".pt", ".pth"):
        return f"framefuse reads ONNX; export it where it is: yolo export model={path.name} format=onnx dynamic=True"
    hint = nearby(path, {".onnx"}) if redact_source(model) == model else "check the path"
    return f"{hint}, or pass a name that 'framefuse models' lists"


__all__ = ["find_model", "list_models"]
