"""synthetic:// addresses, and validation of a world's parameters."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable
from fractions import Fraction
from numbers import Integral, Real
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from framefuse.common.names import nearest
from framefuse.errors import UsageError
from framefuse.world.spec import WorldSpec

SCENES = ("street", "bodies")
SPLITS = ("train", "val", "test")
STEREO = ("none", "sbs")
EXAMPLE = "synthetic://street?seed=7&frames=900&size=1280x720&fps=30&split=test"
LARGEST_SIDE, SMALLEST_SIDE = 8192, 32
LONGEST = 10_000_000
FARTHEST, DENSEST, FASTEST = 16, 32, 8
SCHEDULES = ("cycle", "day")


def parse(uri: str) -> dict[str, Any]:
    """The arguments of World in an address; see `World.parse`."""
    try:
        parts = urlsplit(uri)
    except ValueError:
        parts = None
    if parts is None or parts.scheme.lower() != "synthetic":
        raise UsageError(f"{uri!r} is not a synthetic:// address", remedy=f"for example {EXAMPLE}")
    if parts.fragment or uri.endswith("#"):
        raise UsageError(f"{uri!r} has a #", remedy=f"write keys after a ? and separate them by &, as in {EXAMPLE}")
    scene = (parts.netloc + parts.path).strip("/")
    if scene not in SCENES:
        raise UsageError(f"there is no synthetic scene {scene!r}", remedy=_nearest(scene, SCENES))
    found: dict[str, Any] = {"scene": scene}
    for key, text in parse_qsl(parts.query, keep_blank_values=True):
        if key not in KEYS:
            raise UsageError(f"{key!r} is not a key of synthetic:// addresses", remedy=_nearest(key, tuple(KEYS)))
        if key in found:
            raise UsageError(f"{key} is given twice in {uri!r}", remedy="remove one of them")
        read, expected = KEYS[key]
        try:
            found[key] = read(text)
        except (ValueError, ZeroDivisionError):
            raise UsageError(f"{key}={text} is invalid in {uri!r}", remedy=f"{key} is {expected}") from None
    return found


def numbers(fps: Any, size: Any) -> tuple[Fraction, tuple[int, int]]:
    """Convert Python values of fps and size to a Fraction and (width, height).

    Raises:
        UsageError: they cannot be converted.
    """
    try:
        rate = Fraction(str(fps)) if isinstance(fps, float) else Fraction(fps)
    except (TypeError, ValueError, ZeroDivisionError):
        raise UsageError(f"fps={fps!r} is not a frame rate", remedy=f"fps is {KEYS['fps'][1]}") from None
    try:
        width, height = (operator.index(side) for side in size)
    except (TypeError, ValueError):
        raise UsageError(f"size={size!r} is not a size", remedy="size is (width, height)") from None
    return rate, (width, height)


def check(world: WorldSpec) -> None:
    """Check the types and ranges of a world's parameters.

    Raises:
        UsageError: names the first invalid value, and what is allowed.
    """
    for name in ("seed", "frames"):
        number = getattr(world, name)
        if not isinstance(number, Integral) or isinstance(number, bool) or not 0 <= int(number) < 10**18:
            raise UsageError(f"{name}={number!r} is invalid", remedy=f"{name} is {KEYS[name][1]}, from 0")
    for value, name, allowed in (
        (world.scene, "scene", SCENES),
        (world.split, "split", SPLITS),
        (world.stereo, "stereo", STEREO),
        (world.schedule, "schedule", SCHEDULES),
    ):
        if value not in allowed:
            raise UsageError(f"{name}={value} is unknown", remedy=_nearest(str(value), allowed))
    width, height = world.size
    if not (min(width, height) >= SMALLEST_SIDE and max(width, height) <= LARGEST_SIDE):
        raise UsageError(
            f"size={width}x{height} is out of range", remedy=f"choose {SMALLEST_SIDE}..{LARGEST_SIDE} pixels"
        )
    if width % 2 or height % 2:
        raise UsageError(f"size={width}x{height} is odd", remedy="choose even sides, as 4:2:0 video requires")
    if not 1 <= world.frames <= LONGEST:
        raise UsageError(f"frames={world.frames} is out of range", remedy=f"1..{LONGEST}")
    if not 1 <= world.fps <= 1000:
        raise UsageError(f"fps={world.fps} is out of range", remedy="1..1000 frames a second")
    if world.complexity is not None and not (isinstance(world.complexity, Real) and 0 <= world.complexity <= 1):
        raise UsageError(f"complexity={world.complexity} is out of range", remedy="0 (calm) .. 1 (crowded)")
    for name, most in (("far", FARTHEST), ("density", DENSEST), ("pace", FASTEST)):
        value = getattr(world, name)
        if not (isinstance(value, Real) and 1 <= float(value) <= most):
            raise UsageError(f"{name}={value} is out of range", remedy=f"{name} is {KEYS[name][1]}")
        if value != 1 and world.scene != "street":
            raise UsageError(f"{name}={value} is not possible for scene {world.scene}", remedy="use synthetic://street")
    if world.schedule != "cycle" and (world.scene != "street" or world.complexity is not None):
        raise UsageError(
            f"schedule={world.schedule} is not possible for scene {world.scene} of complexity {world.complexity}",
            remedy="use synthetic://street without complexity",
        )
    if world.stereo == "sbs" and (world.scene != "bodies" or width % 4):
        raise UsageError(
            f"stereo=sbs is not possible for scene {world.scene}, {width} pixels wide",
            remedy="use synthetic://bodies and a width that is a multiple of 4",
        )


def write(world: WorldSpec) -> str:
    """The address of a world, with all keys."""
    keys = {
        "seed": world.seed,
        "frames": world.frames,
        "size": f"{world.size[0]}x{world.size[1]}",
        "fps": world.fps,
        "split": world.split,
        "complexity": world.complexity,
        "stereo": None if world.stereo == "none" else world.stereo,
        "far": None if world.far == 1 else world.far,
        "density": None if world.density == 1 else world.density,
        "pace": None if world.pace == 1 else world.pace,
        "schedule": None if world.schedule == "cycle" else world.schedule,
    }
    return f"synthetic://{world.scene}?" + "&".join(
        f"{key}={value}" for key, value in keys.items() if value is not None
    )


def _size(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"([0-9]{1,6})x([0-9]{1,6})", text)
    if found is None:
        raise ValueError(text)
    return int(found[1]), int(found[2])


def _whole(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,18}", text):
        raise ValueError(text)
    return int(text)


def _rate(text: str) -> Fraction:
    if not re.fullmatch(r"[0-9.]{1,18}(/[0-9]{1,18})?", text):  # no exponent: 1e99999999 would take minutes
        raise ValueError(text)
    return Fraction(text)


def _number(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(text)
    return value


KEYS: dict[str, tuple[Callable[[str], Any], str]] = {
    "seed": (_whole, "a whole number of at most 18 digits"),
    "frames": (_whole, "a whole number of at most 18 digits"),
    "size": (_size, "WIDTHxHEIGHT, for example 1280x720"),
    "fps": (_rate, "a number or a fraction, for example 30000/1001"),
    "split": (str, "one of train, val, test"),
    "complexity": (_number, "a number 0..1"),
    "stereo": (str, "none or sbs"),
    "far": (_number, f"a number 1..{FARTHEST}"),
    "density": (_number, f"a number 1..{DENSEST}"),
    "pace": (_number, f"a number 1..{FASTEST}"),
    "schedule": (str, "cycle or day"),
}


def _nearest(word: str, known: tuple[str, ...]) -> str:
    near = nearest(word, known)
    listed = f"choose one of {', '.join(known)}"
    return f"did you mean {near[0]}? {listed}" if near else listed
