"""The YAML card beside a model (model.yaml for model.onnx): its keys and their validation."""

import ast
import json
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, NonNegativeInt, PositiveInt, ValidationError

from framefuse.common.files import os_errors_as
from framefuse.common.names import nearest
from framefuse.common.plain_yaml import read_mapping
from framefuse.common.redact import brief
from framefuse.errors import CardError
from framefuse.models.layouts import Activation, BoxUnits, OutputLayout, Task
from framefuse.preprocess import Fit, Interpolation

GreyLevel = Annotated[float, Field(ge=-1e6, le=1e6)]
GreyLevels = tuple[GreyLevel, GreyLevel, GreyLevel]
Size = Annotated[
    tuple[PositiveInt, PositiveInt],
    BeforeValidator(lambda value: (value, value) if isinstance(value, int) else value),
]
UNREADABLE = (OSError, ValueError, RuntimeError)
"""What reading a file of unknown origin may raise."""


class CardFile(BaseModel):
    """All keys of a card. Missing keys come from the ONNX file, or get the default of the output layout."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    task: Task | None = Field(
        None, description="detect, segment, pose, obb (oriented boxes), classify, or semantic: a class for each pixel"
    )
    layout: OutputLayout | None = Field(None, description="what the outputs mean")
    outputs: list[str] | None = Field(
        None, min_length=1, description="names of the outputs to read, in the order of the layout"
    )
    activation: Activation | None = Field(
        None, description="maps scores to 0..1 (detr, classify): none, sigmoid or softmax"
    )
    box_units: BoxUnits | None = Field(None, description="of boxes: relative (0..1 of the model input) or pixels")
    names: list[str] | dict[int, str] | str | None = Field(
        None, description="class names: a list, a mapping from 0, or the path of a file with one name per line"
    )
    keypoints: tuple[PositiveInt, PositiveInt] | None = Field(
        None, description="pose: number of keypoints, and values of each: 2 (x, y) or 3 (with a confidence)"
    )
    keypoint_names: list[str] | None = Field(None, description="pose: a name for each keypoint")
    skeleton: list[tuple[NonNegativeInt, NonNegativeInt]] | None = Field(
        None, description="pose: pairs of keypoints, from 0, that a line connects"
    )
    imgsz: Size | None = Field(None, description="input size: one number or [height, width]")
    stride: PositiveInt | None = Field(None, description="input sides are multiples of this")
    rect: bool | None = Field(None, description="shrink the padded side to the next multiple of the stride")
    fit: Fit | None = Field(None, description="how an image is fitted to the input size")
    interpolation: Interpolation | None = Field(
        None, description="interpolation for resizing; asymmetric: linear, as TensorFlow 1 and mediapipe resize"
    )
    pad_value: float | None = Field(None, ge=0, le=255, description="grey level of the padding, 0..255")
    mean: GreyLevels | None = Field(None, description="subtracted from each channel, grey levels 0..255")
    std: GreyLevels | None = Field(None, description="divides each channel, grey levels 0..255")
    channel_order: Literal["rgb", "bgr"] | None = Field(None, description="rgb or bgr")
    about: dict[str, Any] | None = Field(None, description="other information: licence, training, scores")


def read_card_file(path: Path) -> CardFile:
    """The card at `path`; an empty card if there is no such file.

    Raises:
        CardError: not YAML, an unknown key, or an invalid value.
    """
    content: dict[str, Any] = {}
    remedy = "write it as `key: value` lines"
    with os_errors_as(CardError, f"card {path} cannot be read", remedy, UNREADABLE), suppress(FileNotFoundError):
        content = {key: value for key, (value, _) in read_mapping(path.read_bytes()).items()}
    for key in content:
        if key not in CardFile.model_fields:
            near = nearest(key, CardFile.model_fields)
            meant = f"did you mean {near[0]!r}? " if near else ""
            message = f"card {path} has an unknown key {brief(key)}"
            raise CardError(message, remedy=f"{meant}Valid keys: {', '.join(CardFile.model_fields)}")
    try:
        card = CardFile(**content)
    except ValidationError as error:
        problem = error.errors()[0]
        key = str(problem["loc"][0])
        message = f"card {path}: {key} = {brief(content[key])}: {problem['msg']}"
        raise CardError(message, remedy=f"{key}: {CardFile.model_fields[key].description}") from error
    if card.std is not None and any(0 < abs(value) < 1 for value in card.std):
        message = f"card {path}: std = {list(card.std)} looks like fractions of 1"
        raise CardError(message, remedy="give mean and std in grey levels 0..255 (multiply both by 255)")
    names = _names_from_file(path.parent, card.names) if isinstance(card.names, str) else card.names
    return card if names is None else card.model_copy(update={"names": check_names(names, f"card {path.name}")})


def _names_from_file(folder: Path, name: str) -> Any:
    """Class names from a text file, one per line, or from the key `names` of a YAML file. The file must be in the
    model's folder, because a card from elsewhere must not read other files."""
    what = f"class names {brief(name)} cannot be read"
    with os_errors_as(CardError, what, "correct the key names", UNREADABLE):
        path = (folder / name).resolve()
        if not path.is_relative_to(folder.resolve()):
            raise ValueError("it is outside the model's folder")
        if path.exists() and not path.is_file():
            raise ValueError("it is not a file")
        if path.suffix in (".yaml", ".yml"):
            return read_mapping(path.read_bytes()).get("names", (None, 0))[0]
        return path.read_text(encoding="utf-8").splitlines()


def check_names(names: Any, where: str) -> dict[int, str]:
    """Class number -> name, from a list or a mapping.

    Raises:
        CardError: something else, or class numbers that are not 0..nc-1.
    """
    if isinstance(names, list | tuple):
        names = dict(enumerate(names))
    if not isinstance(names, dict) or not names:
        what = brief(names) if names else "empty"
        raise CardError(f"names in {where} are {what}", remedy="add names: [first, second, ...] to the card")
    try:
        numbered = {int(key): str(name) for key, name in names.items()}
        "".join(numbered.values()).encode()
    except UnicodeEncodeError as error:
        raise CardError(f"names in {where} hold a lone surrogate: {error}", remedy="write them in UTF-8") from error
    except (TypeError, ValueError, OverflowError) as error:
        message = f"names in {where} have a key that is not a class number: {error}"
        raise CardError(message, remedy="write names: {0: first, 1: second}") from error
    if sorted(numbered) != list(range(len(names))):
        message = f"names in {where} have the class numbers {sorted(numbered)[:10]}..., expected 0..{len(names) - 1}"
        raise CardError(message, remedy="name every class of the model, from 0")
    return dict(sorted(numbered.items()))


def parse_literal(key: str, text: str) -> Any:
    """Parse a metadata value, which exporters write as JSON or as a Python literal."""
    for parse in (json.loads, ast.literal_eval):
        with suppress(ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
            return parse(text)
    raise CardError(f"onnx metadata {key} = {brief(text)} cannot be read", remedy=f"add {key} to the card")
