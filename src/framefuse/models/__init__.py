"""Models known by name: those in the package, those that others publish, and those that hub.py has fetched.

The first are files in `weights/`, each with a card (card.py). They are made by `training/` in the repository, which has
recipes, seeds, curves and scores.
"""

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from framefuse.common.files import file_hash, os_errors_as, user_cache
from framefuse.common.names import nearby, nearest
from framefuse.common.redact import brief, redact_source
from framefuse.errors import CardError, ModelError, UsageError

DATA = Path(__file__).parent / "weights"
SHIPPED = {
    "scout-n": "finds the ten classes of the synthetic street; FP32, 0.7 M parameters",
    "scout-n-int8": "scout-n in INT8, stem and head in FP32; 3.3 times smaller",
    "scout-s": "the same classes, better on small objects; FP16, 4.4 M parameters",
    "scout-n-seg": "scout-n with the masks of its objects; FP32, 0.9 M parameters",
    "scout-n-pose": "people of the same street with their 17 joints; FP32, 0.9 M parameters",
    "body-n": "body parts of the synthetic people, pixel by pixel; FP32, 0.7 M parameters",
    "body-n-2": "people against background in the same world; FP32, 0.7 M parameters",
    "squares": "finds saturated red, green and blue squares; not trained, for demos and tests",
}
"""Name of a model in the package, for `find_model` -> one-line description. The file is NAME.onnx."""
SHA256 = {
    "scout-n": "0fcb3c7f1e85563a44b9b69dafbc144fbd397384858a1b6741bc278670aa5b9c",
    "scout-n-int8": "bc9b575774bfca51b64832cd98c435819946fd6a7aad63d74bfde3f7f0c03eaa",
    "scout-s": "1ba6e309a960a64b08ac45080b16171802c13b9abf414bca4669ad5da53e6322",
    "scout-n-seg": "807aff40b989e0d22a6a09add1dae586fea9c9c5479c28085f5240f56957fe96",
    "scout-n-pose": "0d09ad6c553031410bc7e5fedf5a1cbf55d2a02604f184b2c5a96527e5b949cc",
    "body-n": "2b8d3bd90bad06b6bfe5787df572e9732615df2c4838e8f67e2bc3fdefb449c1",
    "body-n-2": "349cd73be9c3e5a3f012bbe93fb84d61a83747f1dff9dbc2695a89d9ae4ccca0",
    "squares": "1599e443eda130ead090231f17c685a1be25397465d76d92d1878efd9bacb94c",
}
"""Hashes of their files. `python -m training.export` prints these entries."""
REINSTALL = "install framefuse again (pip install --force-reinstall framefuse), or pass the path of your own model file"
UNNAMED = (
    "add yours, such as yolov8n.onnx, or fetch one: framefuse models get rtdetr-r18; "
    "scout-n, which is in the package, knows only synthetic:// sources"
)
NAME = re.compile(r"\w[\w.-]*")
"""What a fetched model may be called."""


class Known(NamedTuple):
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
"""Name -> detector with a free licence, which hub.py can fetch."""
LICENCE = "Apache-2.0"
"""Of the models in the package."""


def find_model(model: str | Path | None) -> Path:
    """The file of a model, from its name or path. Nothing is fetched: `hub.get_model` does that.

    Raises:
        UsageError: `model` is None, or neither a string nor a path.
        ModelError: there is no such model, or a shipped file was changed.
    """
    if model is None:
        raise UsageError("no model is given", remedy=UNNAMED)
    if not isinstance(model, (str, os.PathLike)):
        raise UsageError(f"the model is {brief(model)}", remedy="pass a name, or the path of an ONNX file")
    if str(model) in SHIPPED:
        return shipped_model(str(model))
    path = Path(model)
    with os_errors_as(ModelError, f"{redact_source(model)} cannot be read", "check the path"):
        if str(model) and path.exists():
            return path
    if fetched := fetched_model(str(model)):
        return fetched
    raise ModelError(f"there is no model {redact_source(model)!r}", remedy=_how_to_get(str(model), path))


def _how_to_get(model: str, path: Path) -> str:
    if model in KNOWN or "://" in model:
        return f"fetch it once: framefuse models get {redact_source(model)}"
    known = [*SHIPPED, *KNOWN]
    family = [name for name in known if name.partition("-")[0] == model.partition("-")[0]]
    if near := nearest(model, known, spelling=True) or family:
        return f"did you mean {near[0]!r}?"
    if path.suffix in (".pt", ".pth"):
        return f"framefuse reads ONNX; export it where it is: yolo export model={path.name} format=onnx dynamic=True"
    hint = nearby(path, {".onnx"}) if redact_source(model) == model else "check the path"
    return f"{hint}, or pass a name that 'framefuse models' lists"


def shipped_model(name: str) -> Path:
    """The file of a shipped model, with its hash checked.

    Raises:
        ModelError: the file is missing or was changed.
    """
    path = DATA / f"{name}.onnx"
    with os_errors_as(ModelError, f"{path}, the model {name}, cannot be read", REINSTALL):
        found = file_hash(path)
    if found != SHA256[name]:
        message = f"{path} is not the model {name}: its SHA-256 is {found}, not {SHA256[name]}"
        raise ModelError(message, remedy=REINSTALL)
    return path


def folder_of_models() -> Path:
    """Where each fetched model has a folder of its own."""
    return user_cache() / "models"


def fetched_model(name: str) -> Path | None:
    """The file of a model that was fetched under this name."""
    path = folder_of_models() / name / f"{name}.onnx"
    with suppress(OSError):  # a name that is too long
        return path if NAME.fullmatch(name) and path.is_file() else None
    return None


def fetched_models() -> dict[str, Mapping[str, Any]]:
    """Names of the fetched models, each with the entry `about` of its card."""
    from framefuse.models.cardfile import read_card_file

    found: dict[str, Mapping[str, Any]] = {}
    for folder in sorted(folder_of_models().glob("[!.]*")):
        if fetched_model(folder.name):
            with suppress(CardError):
                found[folder.name] = read_card_file(folder / f"{folder.name}.yaml").about or {}
    return found


__all__ = ["SHIPPED", "find_model"]
