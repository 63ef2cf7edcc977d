"""Models in the package: files in `weights/`, each with a card and a SHA-256.

They are made by `training/` in the repository, which has recipes, seeds, curves and scores.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from framefuse.common.files import file_hash
from framefuse.errors import ModelError

DATA = Path(__file__).parent / "weights"


@dataclass(frozen=True)
class Shipped:
    """One file of `weights/`."""

    file: str
    sha256: str
    about: str
    """One-line description."""


SHIPPED = {
    "scout-n": Shipped(
        "scout-n.onnx",
        "0fcb3c7f1e85563a44b9b69dafbc144fbd397384858a1b6741bc278670aa5b9c",
        "finds the ten classes of the synthetic street; FP32, 0.7 M parameters",
    ),
    "scout-n-int8": Shipped(
        "scout-n-int8.onnx",
        "bc9b575774bfca51b64832cd98c435819946fd6a7aad63d74bfde3f7f0c03eaa",
        "scout-n in INT8, stem and head in FP32; 3.3 times smaller",
    ),
    "scout-s": Shipped(
        "scout-s.onnx",
        "1ba6e309a960a64b08ac45080b16171802c13b9abf414bca4669ad5da53e6322",
        "the same classes, better on small objects; FP16, 4.4 M parameters",
    ),
    "body-n": Shipped(
        "body-n.onnx",
        "1f6b685de8efa44122fd6425d56ef24fa97e13a29ac8cba1ee4743c9758efa2d",
        "body parts of the synthetic people, pixel by pixel; FP32, 0.7 M parameters",
    ),
    "body-n-2": Shipped(
        "body-n-2.onnx",
        "d4e7371509ea90d5b22e73581b0ef75be7f891a28abf1e6fe71696597eac5bbf",
        "people against background in the same world; FP32, 0.7 M parameters",
    ),
    "squares": Shipped(
        "squares.onnx",
        "1599e443eda130ead090231f17c685a1be25397465d76d92d1878efd9bacb94c",
        "finds saturated red, green and blue squares; not trained, for demos and tests",
    ),
}
"""Name -> file. `python -m training.export` prints these entries."""


def shipped_model(name: str, folder: Path = DATA) -> Path:
    """The file of a shipped model, with its hash checked.

    Raises:
        ModelError: the file is missing or was changed.
    """
    known = SHIPPED[name]
    path = folder / known.file
    try:
        found = file_hash(path)
    except OSError as error:
        raise ModelError(f"{path}, the model {name}, cannot be read: {error.strerror}", remedy=REMEDY) from error
    if found != known.sha256:
        raise ModelError(f"{path} is not the model {name}: its SHA-256 is {found}, not {known.sha256}", remedy=REMEDY)
    return path


REMEDY = "install framefuse again (pip install --force-reinstall framefuse), or pass the path of your own model file"
