"""The parameters of a world, their validation, and the synthetic:// addresses that state them."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from numbers import Integral, Real
from typing import Any, Self
from urllib.parse import parse_qsl, urlsplit

from framefuse.common.names import nearest
from framefuse.errors import UsageError
from framefuse.world.chance import Split

SCENES = ("street", "bodies")
CHOICES = {"scene": SCENES, "split": ("train", "val", "test"), "stereo": ("none", "sbs"), "schedule": ("cycle", "day")}
EXAMPLE = "synthetic://street?seed=7&frames=900&size=1280x720&fps=30&split=test"
LARGEST_SIDE, SMALLEST_SIDE = 8192, 32
LONGEST = 10_000_000
FARTHEST, DENSEST, FASTEST = 16, 32, 8


@dataclass(frozen=True)
class WorldSpec:
    """A scene by name, seed and size; `World` describes the fields."""

    scene: str = "street"
    seed: int = 0
    frames: int = 900
    size: tuple[int, int] = (1280, 720)
    fps: Fraction = Fraction(30)
    split: Split = "train"
    complexity: float | None = None
    stereo: str = "none"
    far: float = 1.0
    density: float = 1.0
    pace: float = 1.0
    schedule: str = "cycle"

    def __post_init__(self) -> None:
        """Convert fps and size to a Fraction and (width, height), and check the types and ranges of all parameters."""
        try:
            fps = Fraction(str(self.fps)) if isinstance(self.fps, float) else Fraction(self.fps)
        except (TypeError, ValueError, ZeroDivisionError):
            raise UsageError(f"fps={self.fps!r} is not a frame rate", remedy=f"fps is {KEYS['fps'][2]}") from None
        try:
            width, height = (operator.index(side) for side in self.size)
        except (TypeError, ValueError):
            raise UsageError(f"size={self.size!r} is not a size", remedy="size is (width, height)") from None
        object.__setattr__(self, "fps", fps)
        object.__setattr__(self, "size", (width, height))
        for name in ("seed", "frames"):
            number = getattr(self, name)
            if not isinstance(number, Integral) or isinstance(number, bool) or not 0 <= int(number) < 10**18:
                raise UsageError(f"{name}={number!r} is invalid", remedy=f"{name} is {KEYS[name][2]}, from 0")
        for name, allowed in CHOICES.items():
            if (value := getattr(self, name)) not in allowed:
                raise UsageError(f"{name}={value} is unknown", remedy=_nearest(str(value), allowed))
        if not SMALLEST_SIDE <= min(width, height) <= max(width, height) <= LARGEST_SIDE:
            remedy = f"choose {SMALLEST_SIDE}..{LARGEST_SIDE} pixels"
            raise UsageError(f"size={width}x{height} is out of range", remedy=remedy)
        if width % 2 or height % 2:
            raise UsageError(f"size={width}x{height} is odd", remedy="choose even sides, as 4:2:0 video requires")
        if not 1 <= self.frames <= LONGEST:
            raise UsageError(f"frames={self.frames} is out of range", remedy=f"1..{LONGEST}")
        if not 1 <= fps <= 1000:
            raise UsageError(f"fps={fps} is out of range", remedy="1..1000 frames a second")
        if self.complexity is not None and not (isinstance(self.complexity, Real) and 0 <= self.complexity <= 1):
            raise UsageError(f"complexity={self.complexity} is out of range", remedy="0 (calm) .. 1 (crowded)")
        for name, most in (("far", FARTHEST), ("density", DENSEST), ("pace", FASTEST)):
            value = getattr(self, name)
            if not (isinstance(value, Real) and 1 <= float(value) <= most):
                raise UsageError(f"{name}={value} is out of range", remedy=f"{name} is {KEYS[name][2]}")
            if value != 1 and self.scene != "street":
                message = f"{name}={value} is not possible for scene {self.scene}"
                raise UsageError(message, remedy="use synthetic://street")
        if self.schedule != "cycle" and (self.scene != "street" or self.complexity is not None):
            scene = f"scene {self.scene} of complexity {self.complexity}"
            message = f"schedule={self.schedule} is not possible for {scene}"
            raise UsageError(message, remedy="use synthetic://street without complexity")
        if self.stereo == "sbs" and (self.scene != "bodies" or width % 4):
            message = f"stereo=sbs is not possible for scene {self.scene}, {width} pixels wide"
            raise UsageError(message, remedy="use synthetic://bodies and a width that is a multiple of 4")

    @classmethod
    def parse(cls, uri: str) -> Self:
        """The world of an address: synthetic://street?seed=7&frames=900&size=1920x1080&fps=30&split=test.

        Raises:
            UsageError: an unknown scene or key (the error suggests the nearest), or a wrong value.
        """
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
            pattern, read, expected = KEYS[key]
            try:
                if not re.fullmatch(pattern, text):
                    raise ValueError(text)
                found[key] = read(text)
            except (ValueError, ZeroDivisionError):
                raise UsageError(f"{key}={text} is invalid in {uri!r}", remedy=f"{key} is {expected}") from None
        return cls(**found)

    @property
    def seconds(self) -> float:
        """Duration."""
        return float(self.frames / self.fps)


def write(world: WorldSpec) -> str:
    """The address of a world, with all keys but those from `complexity` on that have their defaults."""
    values = {key: getattr(world, key) for key in KEYS} | {"size": f"{world.size[0]}x{world.size[1]}"}
    always = ("seed", "frames", "size", "fps", "split")
    stated = {key: value for key, value in values.items() if key in always or value != getattr(WorldSpec, key)}
    return f"synthetic://{world.scene}?" + "&".join(f"{key}={value}" for key, value in stated.items())


def _number(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(text)
    return value


WHOLE, SIDE = "[0-9]{1,18}", "[0-9]{1,6}"
ANY = "(?s:.*)"
KEYS: dict[str, tuple[str, Callable[[str], Any], str]] = {
    "seed": (WHOLE, int, "a whole number of at most 18 digits"),
    "frames": (WHOLE, int, "a whole number of at most 18 digits"),
    "size": (f"{SIDE}x{SIDE}", lambda text: tuple(map(int, text.split("x"))), "WIDTHxHEIGHT, for example 1280x720"),
    # No exponent: 1e99999999 would take minutes.
    "fps": (f"[0-9.]{{1,18}}(/{WHOLE})?", Fraction, "a number or a fraction, for example 30000/1001"),
    "split": (ANY, str, "one of train, val, test"),
    "complexity": (ANY, _number, "a number 0..1"),
    "stereo": (ANY, str, "none or sbs"),
    "far": (ANY, _number, f"a number 1..{FARTHEST}"),
    "density": (ANY, _number, f"a number 1..{DENSEST}"),
    "pace": (ANY, _number, f"a number 1..{FASTEST}"),
    "schedule": (ANY, str, "cycle or day"),
}
"""Key -> pattern of the whole text, parser, and what the messages call it."""


def _nearest(word: str, known: tuple[str, ...]) -> str:
    near = nearest(word, known)
    listed = f"choose one of {', '.join(known)}"
    return f"did you mean {near[0]}? {listed}" if near else listed
