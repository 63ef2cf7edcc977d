"""Seeded random numbers. All randomness in a world comes from here, so frames can be rendered in any order.

Style parameters (shape, colour, texture, schedule) are sampled from stripes of their range, and each split owns its own
stripes: the styles of the test split lie between those of the training split and never coincide with them. Each split
has a bank of textures too, small tileable images that objects and backgrounds share.
"""

from __future__ import annotations

import colorsys
from collections.abc import Sequence
from functools import lru_cache
from random import Random
from typing import Literal, TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image

Split = Literal["train", "val", "test"]
Colour = tuple[int, int, int]
T = TypeVar("T")

STRIPES = 48
"""Stripes per range, enough for the hues of each split to cover the whole colour circle."""
OWNER: tuple[Split, ...] = ("train", "train", "test", "train", "train", "train", "val", "train")
"""The split that owns stripe k, by k modulo 8."""
BANK = 64
"""Textures per split."""
SIDE = 128
KINDS = ("plain", "plain", "stripes", "checks", "dots", "bricks", "blobs", "cloud", "waves", "weave")


class Chance:
    """A random stream named by a key; `random.Random` guarantees the same stream in every Python version."""

    def __init__(self, split: Split, key: str) -> None:
        self._random = Random(f"framefuse/{split}/{key}")
        self._stripes = [k for k in range(STRIPES) if OWNER[k % len(OWNER)] == split]

    def unit(self) -> float:
        """Uniform in 0..1."""
        return self._random.random()

    def uniform(self, low: float, high: float) -> float:
        return low + (high - low) * self._random.random()

    def style(self, low: float = 0.0, high: float = 1.0) -> float:
        """Uniform over the split's own stripes of low..high."""
        stripe = self._stripes[int(self._random.random() * len(self._stripes))]
        return low + (high - low) * (stripe + self._random.random()) / STRIPES

    def integer(self, low: int, high: int) -> int:
        """low <= value < high."""
        return low + int(self._random.random() * (high - low))

    def pick(self, items: Sequence[T]) -> T:
        return items[int(self._random.random() * len(items))]

    def sign(self) -> int:
        return 1 if self._random.random() < 0.5 else -1

    def happens(self, probability: float) -> bool:
        return self._random.random() < probability


def colour(chance: Chance) -> Colour:
    """Any hue, from grey to saturated and from dark to bright."""
    hue, saturation = chance.style(), 0.85 * chance.unit() ** 1.4
    rgb = colorsys.hsv_to_rgb(hue, saturation, chance.uniform(0.2, 0.95))
    return round(255 * rgb[0]), round(255 * rgb[1]), round(255 * rgb[2])


class Texture:
    """One tileable texture as a pyramid of images: SIDE, SIDE/2, ... pixels."""

    def __init__(self, split: Split, number: int) -> None:
        chance = Chance(split, f"texture/{number}")
        base = Image.fromarray(_paint(chance))
        self.levels = [base, *(base.reduce(2**k) for k in range(1, 4))]
        self.wide = [Image.fromarray(np.tile(np.asarray(level), (2, 2, 1))) for level in self.levels]

    def patch(self, width: int, height: int, span: float, left: float, top: float) -> Image.Image:
        """A (height, width) RGB patch: `span`, its height, and its origin are in textures, 0..1."""
        across = min(1.0, span * width / height)
        level = 0
        while level < len(self.levels) - 1 and self.levels[level].height * span >= 2 * height:
            level += 1
        image, side = self.wide[level], self.levels[level].height
        box = (left * side, top * side, (left + across) * side, (top + span) * side)
        return image.resize((width, height), Image.Resampling.BILINEAR, box=box)


texture = lru_cache(maxsize=3 * BANK)(Texture)
"""(split, number) -> texture `number` (0 .. BANK - 1) of a split's bank."""


def smooth_noise(chance: Chance, cells: int) -> NDArray[np.float64]:
    """(SIDE, SIDE) of tileable noise 0..1 with `cells` bumps per side."""
    small = np.array([[chance.integer(0, 256) for _ in range(cells)] for _ in range(cells)], np.uint8)
    three = Image.fromarray(np.tile(small, (3, 3)))
    grown = three.resize((3 * SIDE, 3 * SIDE), Image.Resampling.BICUBIC)
    return np.asarray(grown.crop((SIDE, SIDE, 2 * SIDE, 2 * SIDE))).astype(np.float64) / 255


def _paint(chance: Chance) -> NDArray[np.uint8]:
    kind = chance.pick(KINDS)
    first = np.array(colour(chance), np.float64)
    second = np.array(colour(chance), np.float64)
    # Most textures have low contrast: strong patterns would break up every shape.
    second = first + (second - first) * (chance.style(0.15, 0.5) if chance.happens(0.6) else chance.style(0.5, 1.0))
    weight = _pattern(kind, chance)[:, :, None]
    image = first * (1 - weight) + second * weight
    grain = 1 + chance.style(0.05, 0.35) * (smooth_noise(chance, chance.pick((3, 5, 9, 17))) - 0.5)
    return np.clip(image * grain[:, :, None], 0, 255).round().astype(np.uint8)


def _pattern(kind: str, chance: Chance) -> NDArray[np.float64]:
    """Weight of the second colour at each point, 0..1."""
    axis = (np.arange(SIDE) + 0.5) / SIDE
    x, y = axis[None, :], axis[:, None]
    count, other = chance.integer(2, 9), chance.integer(-4, 5)
    share = chance.style(0.25, 0.7)
    along = (count * x + other * y) % 1
    if kind == "stripes":
        return (along < share).astype(np.float64)
    if kind == "checks":
        return (((count * x) % 1 < 0.5) ^ ((count * y) % 1 < 0.5)).astype(np.float64)
    if kind == "dots":
        shift = 0.5 * ((count * y).astype(int) % 2) if count % 2 == 0 else 0.0
        distance = np.hypot((count * x + shift) % 1 - 0.5, (count * y) % 1 - 0.5)
        return np.asarray(distance < 0.5 * share**0.5, np.float64)
    if kind == "bricks":
        rows = 2 * chance.integer(2, 5)
        shift = 0.5 * ((rows * y).astype(int) % 2)
        return np.maximum((rows * y) % 1 < 0.12, (count * x + shift) % 1 < 0.08).astype(np.float64)
    if kind == "blobs":
        return (smooth_noise(chance, chance.integer(3, 9)) < share).astype(np.float64)
    if kind == "cloud":
        return smooth_noise(chance, chance.integer(2, 7))
    if kind == "waves":
        return (along + 0.25 * np.sin(2 * np.pi * 2 * y) + np.zeros_like(x)) % 1
    if kind == "weave":
        return 0.5 * ((count * x) % 1 < share) + 0.5 * ((count * y) % 1 < share)
    return np.zeros((SIDE, SIDE))
