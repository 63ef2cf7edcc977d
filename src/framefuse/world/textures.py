"""The texture banks: small tileable images, one bank per split. Objects and backgrounds use the same ones."""

from __future__ import annotations

import colorsys
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from framefuse.world.chance import Chance, Split

BANK = 64
"""Textures per split."""
SIDE = 128
KINDS = ("plain", "plain", "stripes", "checks", "dots", "bricks", "blobs", "cloud", "waves", "weave")

Colour = tuple[int, int, int]


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
        self.wide = [_tile(level) for level in self.levels]

    def patch(self, width: int, height: int, span: float, left: float, top: float) -> Image.Image:
        """A (height, width) RGB patch.

        Args:
            span: height of the patch in textures, up to 1.
            left, top: its origin in textures, 0..1.
        """
        across = min(1.0, span * width / height)
        level = 0
        while level < len(self.levels) - 1 and self.levels[level].height * span >= 2 * height:
            level += 1
        image, side = self.wide[level], self.levels[level].height
        box = (left * side, top * side, (left + across) * side, (top + span) * side)
        return image.resize((width, height), Image.Resampling.BILINEAR, box=box)


@lru_cache(maxsize=3 * BANK)
def texture(split: Split, number: int) -> Texture:
    """Texture `number` (0 .. BANK - 1) of a split's bank."""
    return Texture(split, number)


def smooth_noise(chance: Chance, cells: int, side: int) -> NDArray[np.float64]:
    """Tileable noise 0..1 with `cells` bumps per side."""
    small = np.array([[chance.integer(0, 256) for _ in range(cells)] for _ in range(cells)], np.uint8)
    three = Image.fromarray(np.tile(small, (3, 3)))
    grown = three.resize((3 * side, 3 * side), Image.Resampling.BICUBIC)
    return np.asarray(grown.crop((side, side, 2 * side, 2 * side))).astype(np.float64) / 255


def _tile(image: Image.Image) -> Image.Image:
    side = image.height
    wide = Image.new("RGB", (2 * side, 2 * side))
    for x in (0, side):
        for y in (0, side):
            wide.paste(image, (x, y))
    return wide


def _paint(chance: Chance) -> NDArray[np.uint8]:
    kind = chance.pick(KINDS)
    first = np.array(colour(chance), np.float64)
    second = np.array(colour(chance), np.float64)
    # Most textures have low contrast: strong patterns would break up every shape.
    second = first + (second - first) * (chance.style(0.15, 0.5) if chance.happens(0.6) else chance.style(0.5, 1.0))
    weight = _pattern(kind, chance)[:, :, None]
    image = first * (1 - weight) + second * weight
    grain = 1 + chance.style(0.05, 0.35) * (smooth_noise(chance, chance.pick((3, 5, 9, 17)), SIDE) - 0.5)
    result: NDArray[np.uint8] = np.clip(image * grain[:, :, None], 0, 255).round().astype(np.uint8)
    return result


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
        dots: NDArray[np.float64] = (distance < 0.5 * share**0.5).astype(np.float64)
        return dots
    if kind == "bricks":
        rows = 2 * chance.integer(2, 5)
        shift = 0.5 * ((rows * y).astype(int) % 2)
        return np.maximum((rows * y) % 1 < 0.12, (count * x + shift) % 1 < 0.08).astype(np.float64)
    if kind == "blobs":
        return (smooth_noise(chance, chance.integer(3, 9), SIDE) < share).astype(np.float64)
    if kind == "cloud":
        return smooth_noise(chance, chance.integer(2, 7), SIDE)
    if kind == "waves":
        return (along + 0.25 * np.sin(2 * np.pi * 2 * y) + np.zeros_like(x)) % 1
    if kind == "weave":
        return 0.5 * ((count * x) % 1 < share) + 0.5 * ((count * y) % 1 < share)
    return np.zeros((SIDE, SIDE))
