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
TRACKING = tuple(field for field in Settings.model_fields if field == "track" or field.startswith("track_"))
FIELDS = ("conf", "iou", "max_det", "classes", "min_area", *TRACKING, "zones")
"""Fields that a grid may hold; every other setting is the same for all."""
FIELDS = tuple(field for field in FIELDS if field in Settings.model_fields)
AFTER = {"conf", "zones"}
"""Fields of these that change nothing about the tracks."""
NONE = ("none", "all", "")


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
    def key(self) -> tuple[Any, ...]:
        """What choices have in common that share their tracks."""
        return tuple(str(getattr(self.settings, field)) for field in FIELDS if field not in AFTER)

    def text(self, field: str) -> str:
        """The value of a field in a table."""
        value = self.values[field]
        return ",".join(map(str, value)) if isinstance(value, list | tuple) else "-" if value is None else str(value)


def read_grid(file: Path | None, given: Mapping[str, Any]) -> dict[str, list[Any]]:
    """The values of each field, in the order of the file and then of the command line, which wins.

    Args:
        given: text of options: values between commas, for `classes` between semicolons.

    Raises:
        ConfigError, UsageError: an unknown field, or a wrong value.
    """
    found: dict[str, list[Any]] = {}
    try:
        lines = read_mapping(file.read_bytes()) if file else {}
    except OSError as error:
        raise ConfigError(f"cannot read the grid {file}: {error.strerror}", remedy="check the path") from error
    except ValueError as error:
        raise ConfigError(f"cannot use {file}: {error}", remedy="write one 'field: [value, value]' per line") from error
    for field, (value, line) in lines.items():
        if field not in FIELDS:
            raise ConfigError(
                f"{file}, line {line}: {field} is no field of a grid", remedy=f"a grid takes {', '.join(FIELDS)}"
            )
        found[field] = _values(field, value, f"file {file}, line {line}")
    for field, text in given.items():
        found[field] = _values(field, str(text).split(";" if field == "classes" else ","), "")
    return found


def _values(field: str, values: Any, where: str) -> list[Any]:
    values = values if isinstance(values, list) else [values]
    checked = []
    for value in values:
        if isinstance(value, str):
            value = None if value.strip() in NONE and Settings.model_fields[field].default is None else value.strip()
        if where:
            try:
                settings = settings_from({field: value})
            except UsageError as error:
                raise ConfigError(f"{error.message} ({where})", remedy=error.remedy) from None
        else:
            settings = load_settings(None, None, {field: value}).settings
        checked.append(getattr(settings, field))
        if field == "conf" and checked[-1] < FLOOR:
            raise (ConfigError if where else UsageError)(
                f"conf {checked[-1]:g} is below {FLOOR}, from which on boxes are recorded",
                remedy=f"use values from {FLOOR} to 1",
            )
    if not checked:
        raise UsageError(f"{field} is {brief(values)}", remedy=f"give {field} one value or more")
    return [value for number, value in enumerate(checked) if value not in checked[:number]]


def choices(grid: Mapping[str, Sequence[Any]], base: Settings, card: Card) -> list[Choice]:
    """Every combination, the last field changing fastest.

    Raises:
        UsageError: too many, a class that the model does not have, or settings that exclude each other.
    """
    if (count := prod(map(len, grid.values()))) > MOST_SETTINGS:
        raise UsageError(f"the grid has {count:,} settings", remedy=f"use at most {MOST_SETTINGS:,}")
    if card.task != "detect":
        raise UsageError(f"{card.path.name} finds no boxes", remedy="sweep with a detector")
    for field in ("tiles", "roi", "stereo"):
        if getattr(base, field) is not None:
            remedy = "leave it out: boxes of several views are joined by confidence, so each conf needs its own run"
            raise UsageError(f"{field} was asked for, and a sweep looks at whole frames", remedy=remedy)
    if len(grid.get("iou", ())) > 1 and not card.layout.startswith("yolov"):
        raise UsageError(f"{card.path.name} needs no NMS, so iou changes nothing", remedy="leave iou out of the grid")
    if base.agnostic_nms and (grid.get("classes", [None]) != [None] or base.classes):
        remedy = "leave one of them out: a class that is left out would still have suppressed others"
        raise UsageError("agnostic_nms and classes were asked for", remedy=remedy)
    found = []
    for number, values in enumerate(product(*grid.values()), 1):
        named = dict(zip(grid, values, strict=True))
        found.append(Choice(number, named, choose_classes(card, settings_from(named, base=base))))
    return found
