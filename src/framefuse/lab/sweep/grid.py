"""Grid: the settings that a sweep compares, every combination of the values given for some of their fields."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

from framefuse.common.plain_yaml import read_mapping
from framefuse.common.redact import brief
from framefuse.config import Settings, load_settings, settings_from
from framefuse.errors import ConfigError, UsageError
from framefuse.models.card import Card
from framefuse.runtime.choices import choose_classes

FLOOR = 0.01
"""Confidence from which boxes are recorded."""
MOST_SETTINGS = 100_000
AFTER = "conf", "zones"
"""Fields that change nothing about the tracks."""
FIELDS = ("iou", "max_det", "classes", "min_area", *(f for f in Settings.model_fields if f.startswith("track")), *AFTER)
"""Fields that a grid may hold; every other setting is the same for all."""


@dataclass(frozen=True)
class Choice:
    """One setting of a grid."""

    number: int
    """From 1, in the order of the grid."""
    values: Mapping[str, Any]
    """What the grid says of it."""
    settings: Settings
    """All of it, with class numbers."""

    @property
    def key(self) -> tuple[str, ...]:
        """Equal for choices that have the same tracks."""
        return tuple(str(getattr(self.settings, field)) for field in FIELDS if field not in AFTER)


def read_grid(file: Path | None, given: Mapping[str, Any]) -> dict[str, list[Any]]:
    """The values of each field, in the order of the file and then of the command line, which wins.

    Args:
        given: text of options: values between commas, for `classes` between semicolons.

    Raises:
        ConfigError, UsageError: an unknown field, or a wrong value.
    """
    try:
        lines = read_mapping(file.read_bytes()) if file else {}
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"cannot use the grid {file}: {reason}", remedy="write lines of field: [a, b]") from error
    found = {}
    for field, (value, line) in lines.items():
        where = f"file {file}, line {line}"
        if field not in FIELDS:
            raise ConfigError(f"{field} is no field of a grid ({where})", remedy=f"use {', '.join(FIELDS)}")
        found[field] = _values(field, value if isinstance(value, list) else [value], where)
    split = {field: str(text).split(";" if field == "classes" else ",") for field, text in given.items()}
    return found | {field: _values(field, values) for field, values in split.items()}


def _values(field: str, values: Sequence[Any], where: str = "") -> list[Any]:
    """The values as a setting has them, each once; "none" and "all" are None where that is the default."""
    checked: list[Any] = []
    for value in values:
        value = value.strip() if isinstance(value, str) else value
        if value in ("none", "all") and Settings.model_fields[field].default is None:
            value = None
        try:
            value = getattr(load_settings(None, None, {field: value}).settings, field)
            if field == "conf" and value < FLOOR:
                raise UsageError(f"conf is {value:g}", remedy=f"boxes are recorded from {FLOOR} on: use {FLOOR} to 1")
        except UsageError as error:
            raise ConfigError(f"{error.message} ({where})", remedy=error.remedy) if where else error from None
        checked += [] if value in checked else [value]
    if not checked:
        raise ConfigError(f"{field} is {brief(values)} ({where})", remedy=f"give {field} one value or more")
    return checked


def choices(grid: Mapping[str, Sequence[Any]], base: Settings, card: Card) -> list[Choice]:
    """Every combination, the last field changing fastest; UsageError for too many, or what cannot be swept over."""
    wrong = {
        f"the grid has {prod(map(len, grid.values())):,} settings": (
            prod(map(len, grid.values())) > MOST_SETTINGS, f"use at most {MOST_SETTINGS:,}"
        ),
        f"conf is {base.conf:g}": (base.conf < FLOOR, f"boxes are recorded from {FLOOR} on: use {FLOOR} to 1"),
        f"{card.path.name} finds no boxes": (card.task != "detect", "sweep with a detector"),
        "tiles, roi or stereo was asked for": (
            bool(base.tiles or base.roi or base.stereo),
            "leave it out: boxes of several views are joined by confidence, so that each conf needs its own run",
        ),
        f"iou was asked for, and {card.path.name} needs no NMS": (
            len(grid.get("iou", ())) > 1 and not card.layout.startswith("yolov"), "leave iou out of the grid"
        ),
        "agnostic_nms and classes were asked for": (
            base.agnostic_nms and (base.classes is not None or any(grid.get("classes", ()))),
            "leave one of them out: a class that is left out would still have suppressed others",
        ),
    }  # fmt: skip
    for message, (applies, remedy) in wrong.items():
        if applies:
            raise UsageError(message, remedy=remedy)
    combinations = (dict(zip(grid, values, strict=True)) for values in product(*grid.values()))
    return [
        Choice(number, values, choose_classes(card, settings_from(values, base=base)))
        for number, values in enumerate(combinations, 1)
    ]
