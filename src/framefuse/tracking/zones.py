"""Zones and lines of a frame, and the YAML file that describes them. Pure geometry: nothing here knows of tracks."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np

from framefuse.common.names import nearby, nearest
from framefuse.common.plain_yaml import read_mapping
from framefuse.common.polygons import Point, area, clipped, crosses_itself, in_pixels, meet, sides, within
from framefuse.common.redact import brief
from framefuse.errors import ConfigError
from framefuse.prediction import Array

KEYS = {"zones": ("points", "anchor", "classes"), "lines": ("from", "to", "anchor", "classes")}
ANCHORS = ("bottom", "centre")
POINTS = "write points as [[x, y], [x, y], [x, y]] or as --roi does, in pixels or as shares of the frame from 0 to 1"
EXAMPLES = {"zones": "{points: [[x, y], [x, y], [x, y]]}", "lines": "{from: [x, y], to: [x, y]}"}
LARGEST = 1e6


@dataclass(frozen=True)
class Place:
    """A zone, which objects enter and leave, or a line, which they cross. Coordinates are pixels after `Places.at`."""

    name: str
    points: tuple[Point, ...]
    """Corners of the zone, or the two ends of the line."""
    anchor: Literal["bottom", "centre"] = "bottom"
    """The point of a box that counts: the middle of its lower edge, or its centre."""
    classes: frozenset[int] | None = None
    """None: all."""
    size: tuple[int, int] | None = None
    """Of the frame, once it is known."""

    def counts(self, class_id: int) -> bool:
        return self.classes is None or class_id in self.classes


class Zone(Place):
    def depth(self, points: Array) -> Array:
        """(n,) distance of each point (n, 2) from the border: above 0 inside. The edge of the frame is no border, as
        nothing can be seen to leave through it."""
        starts, along = self._border
        offset = points[:, None] - starts
        share = ((offset * along).sum(2) / (along**2).sum(1)).clip(0, 1)
        distance = np.hypot(*np.moveaxis(offset - share[..., None] * along, 2, 0)).min(axis=1, initial=math.inf)
        depth: Array = np.where(within(points[:, 0], points[:, 1], self.points), distance, -distance)
        return depth

    @cached_property
    def span(self) -> float:
        """Side of the square with the same area."""
        return math.sqrt(area(self.points))

    @cached_property
    def _border(self) -> tuple[Array, Array]:
        limits = [(0, 0), (0, self.size[0]), (1, 0), (1, self.size[1])] if self.size else []
        inner = [
            (one, other)
            for one, other in sides(self.points)
            if one != other and not any(one[axis] == other[axis] == limit for axis, limit in limits)
        ]
        starts, ends = np.array(inner, np.float64).reshape(-1, 2, 2).swapaxes(0, 1)
        return starts, ends - starts


class Line(Place):
    def side(self, points: Array) -> Array:
        """(n,) distance of each point (n, 2) from the line, which goes on beyond its ends: above 0 on its right."""
        (x, y), (to_x, to_y) = self.points
        dx, dy = to_x - x, to_y - y
        return (dx * (points[:, 1] - y) - dy * (points[:, 0] - x)) / math.hypot(dx, dy)

    def crossed(self, start: Point, end: Point) -> bool:
        return meet(start, end, *self.points)


@dataclass(frozen=True)
class Places:
    """The zones and lines of a run."""

    zones: tuple[Zone, ...] = ()
    lines: tuple[Line, ...] = ()

    def at(self, width: int, height: int) -> tuple[Self, list[str]]:
        """The same in pixels of a frame of this size, clipped to it, and what is to be said about that."""
        notes, size = [], (width, height)

        def placed(place: Any, noun: str) -> Any:
            flat = in_pixels([number for point in place.points for number in point], size)
            points = tuple(zip(flat[::2], flat[1::2], strict=True))
            inside = clipped(points, size)
            if not inside:
                notes.append(f"{noun} {place.name!r} lies outside the frame of {width}x{height}: nothing gets there")
            elif noun == "zone" and set(inside) != set(points):
                notes.append(f"zone {place.name!r} was clipped to the frame of {width}x{height}")
            return replace(place, points=tuple(inside) if noun == "zone" and inside else points, size=size)

        zones = tuple(placed(zone, "zone") for zone in self.zones)
        return replace(self, zones=zones, lines=tuple(placed(line, "line") for line in self.lines)), notes


def load_places(path: Path, class_number: Callable[[int | str], int]) -> Places:
    """Read a file of zones and lines. `class_number` gives the number of a class that is given by name or number.

    Raises:
        ConfigError: the file cannot be read, or describes something impossible; says what, where and what to do.
        UsageError: `class_number` knows no such class.
    """
    try:
        content = read_mapping(path.read_bytes())
    except OSError as error:
        remedy = nearby(path, (".yaml", ".yml"))
        raise ConfigError(f"cannot read the zones file {path}: {error.strerror}", remedy=remedy) from error
    except ValueError as error:
        raise ConfigError(f"cannot use {path}: {error}", remedy="the guide on events shows a complete file") from error
    _known(content, tuple(KEYS), f"{path}")
    places: dict[str, Place] = {}
    for group, (entries, _) in content.items():
        if not isinstance(entries or {}, dict):
            raise ConfigError(f"{group} in {path} is {brief(entries)}", remedy=f"write '{group}:' and indented names")
        for name, value in (entries or {}).items():
            where = f"{group[:-1]} {str(name)!r} in {path}"
            if name in (None, "") or str(name) in places:
                raise ConfigError(f"{where}: the name is empty or taken", remedy="give each zone and line its own name")
            if not isinstance(value, dict):
                raise ConfigError(f"{where} is {brief(value)}", remedy=f"write '{name}: {EXAMPLES[group]}'")
            _known(value, KEYS[group], where)
            points = _outline(value, where) if group == "zones" else _ends(value, where)
            anchor, classes = value.get("anchor", "bottom"), value.get("classes")
            if anchor not in ANCHORS:
                raise ConfigError(f"{where}: anchor is {brief(anchor)}", remedy=f"choose {' or '.join(ANCHORS)}")
            listed = classes if isinstance(classes, list) else [] if classes is None else [classes]
            if not all(isinstance(item, int | str) and not isinstance(item, bool) for item in listed):
                raise ConfigError(f"{where}: classes is {brief(classes)}", remedy="write a list: [car, person]")
            numbers = frozenset(map(class_number, listed)) or None
            places[str(name)] = (Zone if group == "zones" else Line)(str(name), points, anchor, numbers)
    if not places:
        raise ConfigError(f"{path} has no zone and no line", remedy="the guide on events shows a complete file")
    zones = tuple(place for place in places.values() if isinstance(place, Zone))
    return Places(zones, tuple(place for place in places.values() if isinstance(place, Line)))


def _known(found: Any, keys: tuple[str, ...], where: str) -> None:
    for key in found:
        if key not in keys:
            near = nearest(str(key), keys)
            remedy = f"did you mean {near[0]!r}?" if near else f"it takes {', '.join(keys)}"
            raise ConfigError(f"unknown key {str(key)!r}: {where}", remedy=remedy)


def _outline(value: dict[Any, Any], where: str) -> tuple[Point, ...]:
    given = value.get("points")
    numbers = _numbers(given, where, "points")
    if isinstance(given, str) and len(numbers) == 4:
        x, y, width, height = numbers
        numbers = [x, y, x + width, y, x + width, y + height, x, y + height]
    points = list(zip(numbers[::2], numbers[1::2], strict=True))
    points = [point for number, point in enumerate(points) if point != points[number - 1] or len(points) == 1]
    if len(points) < 3:
        raise ConfigError(f"{where} has {len(points)} different corners", remedy=f"a zone has three or more: {POINTS}")
    if crosses_itself(points):
        raise ConfigError(f"{where} crosses itself", remedy="list the corners in their order around it")
    if not area(points):
        raise ConfigError(f"{where} has no area", remedy="its corners lie on one line: move one of them")
    return tuple(points)


def _ends(value: dict[Any, Any], where: str) -> tuple[Point, ...]:
    (x, y), (to_x, to_y) = (_numbers(value.get(key), where, key, 2) for key in ("from", "to"))
    if (x, y) == (to_x, to_y):
        raise ConfigError(f"{where} has no length: both ends are {brief(value['from'])}", remedy="move one of its ends")
    return (x, y), (to_x, to_y)


def _numbers(given: Any, where: str, key: str, count: int | None = None) -> list[float]:
    """x, y, x, y, ... of pairs, of two numbers or of text with commas; `count`: how many there must be."""
    try:
        rows = given.split(",") if isinstance(given, str) else given
        flat = [item for row in rows for item in (row if isinstance(row, list) and len(row) == 2 else [row])]
        numbers = [math.nan if isinstance(item, bool) else float(item) for item in flat]
    except (TypeError, ValueError):
        numbers = []
    wanted = numbers and len(numbers) % 2 == 0 and count in (None, len(numbers))
    if not wanted or not all(abs(number) < LARGEST for number in numbers):
        raise ConfigError(f"{where}: {key} is {brief(given)}", remedy=f"write '{key}: [x, y]'" if count else POINTS)
    return numbers
