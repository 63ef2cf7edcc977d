"""Models known by name besides the shipped ones: those that hub.py can fetch, and those that it has fetched."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from framefuse.common.files import user_cache
from framefuse.errors import CardError

NAME = re.compile(r"\w[\w.-]*")
"""What a fetched model may be called."""


@dataclass(frozen=True)
class Known:
    """A detector that others publish."""

    address: str
    licence: str
    """As its authors state it; SPDX."""
    about: str


KNOWN = {
    "rtdetr-r18": Known("hf://onnx-community/rtdetr_r18vd", "Apache-2.0", "RT-DETR, ResNet-18: 80 classes of COCO"),
    "rtdetr-r50": Known("hf://onnx-community/rtdetr_r50vd", "Apache-2.0", "RT-DETR, ResNet-50: 80 classes of COCO"),
    "dfine-m": Known("hf://onnx-community/dfine_m_coco-ONNX", "Apache-2.0", "D-FINE, medium: 80 classes of COCO"),
    "dfine-l": Known("hf://onnx-community/dfine_l_coco-ONNX", "Apache-2.0", "D-FINE, large: 80 classes of COCO"),
    "rfdetr-base": Known("hf://onnx-community/rfdetr_base-ONNX", "Apache-2.0", "RF-DETR, base: 80 classes of COCO"),
}
"""Name -> detector with a free licence."""


def folder_of_models() -> Path:
    """Where each fetched model has a folder of its own."""
    return user_cache() / "models"


def fetched_model(name: str) -> Path | None:
    """The file of a model that was fetched under this name."""
    path = folder_of_models() / name / f"{name}.onnx"
    return path if NAME.fullmatch(name) and path.is_file() else None


def fetched_models() -> dict[str, Mapping[str, Any]]:
    """Names of the fetched models, each with the entry `about` of its card."""
    from framefuse.models.cardfile import read_card_file

    found: dict[str, Mapping[str, Any]] = {}
    for folder in sorted(folder_of_models().glob("[!.]*")):
        if fetched_model(folder.name):
            with suppress(CardError):
                found[folder.name] = read_card_file(folder / f"{folder.name}.yaml").about or {}
    return found
