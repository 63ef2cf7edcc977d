"""People as cameras in rooms and cars show them: head, shoulders and arms, near, with faces, hair and clothes.

The synthetic world (`framefuse.world`) has whole people of a few polygons. These are painted for training only: smooth
outlines, light from one side, colours that people and clothes have.
"""

from __future__ import annotations

import colorsys
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageChops, ImageDraw, ImageFilter

from framefuse.world.living import BODY_PARTS, HEAD, LOWER_ARM, TORSO, UPPER_ARM
from framefuse.world.truth import Snapshot, Truth

Point = tuple[float, float]
Colour = Sequence[float] | NDArray[np.floating]
FINE = 2
"""Pixels of the drawing per pixel of the picture, along each axis."""
HAIRS = ((20, 16, 14), (45, 30, 22), (85, 55, 35), (130, 95, 60), (190, 150, 95), (120, 60, 35), (150, 150, 150))
PALE, DEEP = np.array([242.0, 208, 184]), np.array([82.0, 50, 36])
"""Ends of the range of skins."""


@dataclass(frozen=True)
class Portraits:
    """A world whose frames have nothing in common but their seed."""

    seed: int
    size: tuple[int, int]
    """Width and height."""
    split: str

    version: ClassVar[int] = 1
    """Raise it when the pictures change, so that those rendered before are not used."""
    names: ClassVar[dict[int, str]] = dict(enumerate(BODY_PARTS))

    def __getitem__(self, index: int) -> Snapshot:
        rng = np.random.default_rng([self.seed, index, *self.split.encode()])
        picture = Picture(rng, self.size)
        count = int(rng.choice(4, p=(0.08, 0.62, 0.2, 0.1)))
        for share in sorted(rng.uniform(0.12, 0.6, count)):
            Person(picture, float(share) * picture.height).paint()
        image, parts = picture.done()
        nothing = np.zeros((0, 17, 3), np.float32)
        rows = np.zeros(0, np.int64)
        instances = (parts > 0).astype(np.uint16)
        truth = Truth(
            nothing[:, 0, :1].repeat(4, 1), rows, rows, rows.astype(np.float32), instances, parts, count / 3, nothing
        )
        return Snapshot(index, image, truth)


class Picture:
    """A picture that is being painted, with the body part of each of its pixels."""

    def __init__(self, rng: np.random.Generator, size: tuple[int, int]) -> None:
        self.rng, self.width, self.height = rng, size[0] * FINE, size[1] * FINE
        self.image = Image.new("RGB", (self.width, self.height), self.colour())
        self.parts = Image.new("L", (self.width, self.height))
        self.light = rng.normal(size=2) * 0.5
        for _ in range(int(rng.integers(2, 14))):
            self._thing()

    def chance(self, share: float) -> bool:
        return bool(self.rng.random() < share)

    def within(self, low: float, high: float) -> float:
        return float(self.rng.uniform(low, high))

    def colour(self) -> tuple[int, int, int]:
        """Mostly dull or grey, as of clothes, walls and furniture."""
        dull = self.rng.random() ** (0.6 if self.chance(0.3) else 2.5)
        red, green, blue = colorsys.hsv_to_rgb(self.rng.random(), dull, self.within(0.03, 1.0))
        return round(red * 255), round(green * 255), round(blue * 255)

    def _thing(self) -> None:
        """Something behind the people."""
        x, y = self.within(0, self.width), self.within(0, self.height)
        wide, high = (self.within(0.03, 0.5) ** 1.3 * side for side in (self.width, self.height))
        corners = [(-1.0, -1.0), (1.0, -1.0), (1.0, 1.0), (-1.0, 1.0)]
        shape = corners if self.chance(0.6) else circle(int(self.rng.integers(5, 30)))
        self.fill([(x + wide * a, y + high * b) for a, b in shape], self.colour(), 0)

    def fill(self, points: Sequence[Point], colour: Colour, part: int, *, grain: float = 0.0,
             clip: Image.Image | None = None) -> Image.Image:  # fmt: skip
        """Paint a polygon as if its surface bulged, for `part` of a body; returns its mask. `grain`: of hair."""
        mask = Image.new("L", self.image.size)
        ImageDraw.Draw(mask).polygon(list(points), fill=255)
        if clip is not None:
            mask = ImageChops.multiply(mask, clip)
        if (box := mask.getbbox()) is None:
            return mask
        piece = mask.crop(box)
        small = piece.reduce(4)
        bulge = np.asarray(small.filter(ImageFilter.GaussianBlur(max(1.0, min(small.size) / 5))), np.float32) / 255
        raised = np.pad(bulge, 1)
        down, across = np.gradient(raised)
        lit = across * self.light[0] + down * self.light[1]
        shade = (0.82 + 0.18 * raised + 0.2 * min(small.size) * lit)[1:-1, 1:-1]
        if grain:
            strands = np.repeat(self.rng.normal(size=(-(-len(shade) // 4), shade.shape[1])), 4, 0)[: len(shade)]
            shade = shade + grain * strands
        soft = Image.fromarray((shade * 128).clip(20, 255).astype(np.uint8)).resize(
            piece.size, Image.Resampling.BILINEAR
        )
        paint = np.asarray(soft, np.float32)[..., None] / 128 * np.asarray(colour, np.float32)
        self.image.paste(Image.fromarray(paint.clip(0, 255).astype(np.uint8)), box[:2], piece)
        self.parts.paste(part, box[:2], piece)
        return mask

    def done(self) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        """(h, w, 3) RGB and (h, w) parts."""
        return np.asarray(self.image.reduce(FINE)), np.asarray(self.parts)[::FINE, ::FINE].copy()


class Person:
    """Someone of a picture. Lengths are in heights of the head, y down, from the middle of the head."""

    def __init__(self, picture: Picture, head: float) -> None:
        self.picture, self.unit = picture, head
        within, chance = picture.within, picture.chance
        self.x, self.y = within(0.05, 0.95) * picture.width, within(0.1, 0.75) * picture.height
        self.tilt, self.turn = within(-0.35, 0.35), within(-0.9, 0.9) * within(0, 1)
        tone = picture.rng.beta(1.2, 1.5)
        self.skin = (PALE * (1 - tone) + DEEP * tone) * picture.rng.uniform(0.92, 1.08, 3)
        self.hair: Colour = HAIRS[int(picture.rng.integers(len(HAIRS)))] if chance(0.92) else picture.colour()
        self.cloth, self.second = picture.colour(), picture.colour()
        self.wide = within(0.33, 0.43)
        """Half of the head's width."""
        self.shoulder, self.fall, self.long = within(0.75, 1.35), within(0.15, 0.5), chance(0.35)
        self.sleeves = chance(0.7)

    def fill(self, points: Sequence[Point], colour: Colour, part: int, *, tilted: bool = False, grain: float = 0.0,
             clip: Image.Image | None = None) -> Image.Image:  # fmt: skip
        angle = self.tilt * tilted
        cos, sin = math.cos(angle) * self.unit, math.sin(angle) * self.unit
        low = 0.45  # the neck, around which the head is tilted
        placed = [
            (self.x + a * cos - (b - low) * sin, self.y + low * self.unit + a * sin + (b - low) * cos)
            for a, b in points
        ]
        return self.picture.fill(placed, colour, part, grain=grain, clip=clip)

    def blob(self, x: float, y: float, wide: float, high: float, *, rough: float = 0.0) -> list[Point]:
        """An ellipse, wavy if it is rough."""
        waves = 1 + rough * np.repeat(self.picture.rng.normal(size=12), 3)
        return smooth(
            [(x + wide * c * wave, y + high * s * wave) for (c, s), wave in zip(circle(36), waves, strict=True)]
        )

    def paint(self) -> None:
        within, chance = self.picture.within, self.picture.chance
        if self.long:
            self.fill(
                self.blob(0, 0.15, within(0.42, 0.62), within(0.6, 1.2), rough=0.04),
                self.hair,
                HEAD,
                tilted=True,
                grain=0.1,
            )
        arms = [(side, chance(0.4)) for side in (-1, 1) if chance(0.85)]
        for side, front in arms:
            if not front:
                self._arm(side)
        self.fill([(-0.24, 0.1), (0.24, 0.1), (0.3, 0.95), (-0.3, 0.95)], self.skin * 0.85, HEAD)
        self._torso()
        for side, front in arms:
            if front:
                self._arm(side)
        self._head()

    def _torso(self) -> None:
        within, chance, reach, fall = self.picture.within, self.picture.chance, self.shoulder, self.fall
        below = (self.picture.height - self.y) / self.unit + 0.3
        hem = within(2.2, 5.5) if chance(0.1) else max(2.2, below)
        waist, neck = reach * within(0.7, 1.1), within(0.2, 0.36)
        left = [(-neck, 0.5), (-0.6 * reach, 0.54 + 0.4 * fall), (-reach, 0.6 + fall), (-1.04 * reach, 1.0 + fall),
                (-waist, 1.9), (-waist * within(0.9, 1.1), hem)]  # fmt: skip
        right = [(-a * within(0.92, 1.08), b) for a, b in reversed(left)]
        whole = self.fill(smooth([*left, *right, (0.0, within(0.5, 0.95))]), self.cloth, TORSO)

        def on(points: Sequence[Point], colour: Colour) -> None:
            self.fill(points, colour, TORSO, clip=whole)

        kind = int(self.picture.rng.integers(7))
        if kind < 3:  # stripes, checks
            step, share = within(0.08, 0.4), within(0.2, 0.6)
            for place in np.arange(0, 3, step).tolist():
                a, b, thick = place - 1.5, place + 0.4, step * share
                if kind != 1:
                    on([(a, 0), (a + thick, 0), (a + thick, 6), (a, 6)], self.second)
                if kind != 0:
                    on([(-3, b), (3, b), (3, b + thick), (-3, b + thick)], self.second)
        elif kind < 5:  # a shirt under a jacket
            low = within(1.2, 2.4)
            on([(-0.36, 0.4), (0.36, 0.4), (0, low)], (235, 235, 235) if chance(0.6) else self.picture.colour())
            if chance(0.5):
                on([(-0.06, 0.8), (0.06, 0.8), (0.12, low), (0, low + 0.2), (-0.12, low)], self.second)
            elif chance(0.5):
                on([(-0.25, 0.65), (0, 0.74), (0.25, 0.65), (0.25, 0.92), (0, 0.83), (-0.25, 0.92)], self.second)
            for side in (-1, 1):
                on(
                    [(0.34 * side, 0.4), (0.65 * side, 1.0), (0.3 * side, 1.5), (0, low + 0.1)],
                    np.array(self.cloth) * 0.85,
                )
        elif kind == 5:  # prints
            for _ in range(int(self.picture.rng.integers(1, 9))):
                x, y, size = within(-1, 1), within(0.8, 3), within(0.06, 0.5)
                corners = circle(int(self.picture.rng.integers(3, 12)))
                on([(x + size * c, y + size * s) for c, s in corners], self.picture.colour())

    def _arm(self, side: int) -> None:
        """Hangs, is folded, or is lifted to the face or beyond."""
        within, chance = self.picture.within, self.picture.chance
        start = side * (self.shoulder - 0.12), 0.78 + self.fall
        down = within(-0.3, 0.5) if chance(0.75) else within(0.5, 2.4)
        elbow = start[0] + side * 1.25 * math.sin(down), start[1] + 1.25 * math.cos(down)
        bend = down + (within(-0.6, 0.2) if chance(0.5) else -within(0.8, 2.9))
        wrist = elbow[0] + side * 1.05 * math.sin(bend), elbow[1] + 1.05 * math.cos(bend)
        thick = within(0.2, 0.32)
        lower: Colour = np.array(self.cloth) * 0.95 if self.sleeves else self.skin
        self.fill(limb(start, elbow, thick, 0.8 * thick), np.array(self.cloth) * 0.92, UPPER_ARM)
        self.fill(limb(elbow, wrist, 0.8 * thick, 0.55 * thick), lower, LOWER_ARM)
        palm = wrist[0] + side * 0.18 * math.sin(bend), wrist[1] + 0.18 * math.cos(bend)
        self.fill(self.blob(*palm, within(0.13, 0.2), within(0.15, 0.24)), self.skin, LOWER_ARM)
        for spread in (-0.5, -0.17, 0.17, 0.5) if chance(0.6) else ():
            along = bend + spread
            tip = palm[0] + side * 0.36 * math.sin(along), palm[1] + 0.36 * math.cos(along)
            self.fill(limb(palm, tip, 0.05, 0.04), self.skin, LOWER_ARM)

    def _head(self) -> None:
        within, chance, wide, turn = self.picture.within, self.picture.chance, self.wide, self.turn
        skin, dark = self.skin, self.skin * 0.72

        def on(
            points: Sequence[Point], colour: Colour, *, grain: float = 0.0, clip: Image.Image | None = None
        ) -> Image.Image:
            return self.fill(points, colour, HEAD, tilted=True, grain=grain, clip=clip)

        for side in (-1, 1):
            if side * turn < 0.3:
                on(self.blob(side * wide * 0.98, 0.06, 0.07, 0.13), skin * 0.9)
        jaw = within(0.55, 0.85)
        right = [(0.8, -0.42), (1, -0.1), (0.96, 0.15), (jaw, 0.4), (0.3, 0.53)]
        both = [(-0.8, -0.42), *right, *((-a, b) for a, b in right[:0:-1])]
        face = on(smooth([(a * wide, b) for a, b in both]), skin)
        if chance(0.08):  # seen from behind
            on(self.blob(0, -0.1, 1.05 * wide, 0.5, rough=0.03), self.hair, grain=0.12)
            return
        middle, glasses = 0.5 * turn * wide, chance(0.2)
        apart = 0.42 * wide * math.cos(turn)
        if chance(0.25):  # a beard
            edge = (-wide, 0.12), (middle - 0.5 * wide, 0.22), (middle + 0.5 * wide, 0.22), (wide, 0.12)
            on([*edge, (wide, 0.7), (-wide, 0.7)], np.array(self.hair) * 0.6 + skin * 0.4, grain=0.08, clip=face)
        for side in (-1, 1):
            x, y = middle + side * apart, within(-0.04, 0.0)
            on(self.blob(x, y - 0.01, 0.11, 0.065), skin * 0.82, clip=face)
            on(self.blob(x, y, 0.07, within(0.015, 0.035)), (225, 220, 215), clip=face)
            on(self.blob(x + within(-0.02, 0.02), y, 0.03, 0.032), (40, 32, 28), clip=face)
            on(
                limb((x - 0.09, y - 0.1), (x + 0.09, y - 0.1 + within(-0.02, 0.02)), 0.02, 0.016),
                np.array(self.hair) * 0.8,
                clip=face,
            )
            if glasses:
                on(ring(self.blob(x, y + 0.01, 0.13, 0.1)), (30, 30, 30))
        on(
            [(middle, -0.02), (middle + 0.08 + 0.1 * turn, 0.2), (middle - 0.06 + 0.1 * turn, 0.2)],
            skin * 0.9,
            clip=face,
        )
        on(self.blob(middle + 0.06 * turn, 0.2, 0.07, 0.025), dark, clip=face)
        on(self.blob(middle, 0.34, within(0.08, 0.14), within(0.02, 0.06)), skin * (0.75, 0.5, 0.5), clip=face)
        self._hair(on, face)

    def _hair(self, on: Callable[..., Image.Image], face: Image.Image) -> None:
        within, wide, style = self.picture.within, self.wide, self.picture.rng.random()
        if style < 0.08 and not self.long:
            return  # bald
        if style < 0.2:  # a hat or a cap
            colour, brim = self.picture.colour(), within(0.4, 0.7)
            on(smooth([(-1.08 * wide, -0.2), (-wide, -0.6), (0, -0.75), (wide, -0.6), (1.08 * wide, -0.2)]), colour)
            on(self.blob(0.3 * self.turn, -0.22, brim, 0.06), np.array(colour) * 0.8)
            return
        line, part, puff = within(-0.36, -0.15), within(-0.5, 0.5) * wide, within(1.03, 1.35)
        waves = 1 + within(0.0, 0.06) * self.picture.rng.normal(size=7)
        crown = [(-puff * wide, -0.1), (-puff * wide, -0.42), (-0.6 * puff * wide, -0.6), (0, -0.5 - 0.15 * puff),
                 (0.6 * puff * wide, -0.6), (puff * wide, -0.42), (puff * wide, -0.1)]  # fmt: skip
        low = within(-0.05, 0.2)
        sides = [(0.98 * wide, low), (0.86 * wide, line + 0.1), (part + 0.2, line), (part, line - 0.08),
                 (-0.86 * wide, line + 0.1), (-0.98 * wide, low)]  # fmt: skip
        on(
            smooth([*((x * wave, y * wave) for (x, y), wave in zip(crown, waves, strict=True)), *sides]),
            self.hair,
            grain=0.12,
        )
        if self.long:
            for side in (-1, 1):
                end = within(0.4, 1.3)
                on(smooth([(0.75 * side * wide, -0.3), (1.15 * side * wide, -0.2), (1.3 * side * wide, end),
                           (0.85 * side * wide, end), (0.92 * side * wide, 0.1)]), self.hair, grain=0.12)  # fmt: skip


def circle(count: int) -> list[Point]:
    """Points of the unit circle."""
    return [(math.cos(2 * math.pi * k / count), math.sin(2 * math.pi * k / count)) for k in range(count)]


def smooth(points: Sequence[Point], rounds: int = 2) -> list[Point]:
    """A closed polygon with its corners cut (Chaikin 1974)."""
    found = np.array(points, np.float64)
    for _ in range(rounds):
        after = np.roll(found, -1, 0)
        found = np.stack([0.75 * found + 0.25 * after, 0.25 * found + 0.75 * after], 1).reshape(-1, 2)
    return [(float(a), float(b)) for a, b in found]


def ring(points: Sequence[Point], share: float = 0.8) -> list[Point]:
    """An outline as a polygon: along the points, and back along smaller ones."""
    x, y = np.mean(points, 0).tolist()
    inner = [(x + (a - x) * share, y + (b - y) * share) for a, b in points]
    return [*points, points[0], inner[0], *inner[::-1]]


def limb(start: Point, end: Point, wide: float, narrow: float) -> list[Point]:
    """A rounded stroke of width 2 * wide at `start` and 2 * narrow at `end`."""
    angle = math.atan2(end[1] - start[1], end[0] - start[0])
    ends = (*start, wide, angle + math.pi / 2), (*end, narrow, angle - math.pi / 2)
    turned = [(x, y, r, turn + math.pi * step / 6) for x, y, r, turn in ends for step in range(7)]
    return [(x + r * math.cos(turn), y + r * math.sin(turn)) for x, y, r, turn in turned]
