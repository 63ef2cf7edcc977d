"""Sketch: the polygons of one figure, each in an ink; and Paint: renders them with textures and colours.

Figures are solid shapes seen from slightly above, in parallel projection. Their axes are `forward`, `up` and `side`, in
units of the figure's longer side; the ground is up = 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain, islice
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageChops, ImageDraw, ImageFilter

from framefuse.world.chance import BANK, Chance, Colour, Split, Texture, colour, texture


class Ink:
    """What a polygon is drawn in. MAIN* and SECOND* are textures in several brightnesses, others flat colours. EDGE
    outlines every polygon."""

    HOLE, MAIN, MAIN_DARK, MAIN_LIGHT, SECOND, SECOND_DARK, THIRD, THIRD_DARK, DARK, LIGHT, GLASS, GLOW = range(12)
    SKIN, SKIN_DARK, EDGE = 12, 13, 15


TEXTURED_SECOND = (Ink.SECOND, Ink.SECOND_DARK)
TEXTURED = (Ink.MAIN, Ink.MAIN_DARK, Ink.MAIN_LIGHT, *TEXTURED_SECOND)
WHITE = 255, 255, 255
LEAST_BLUR = 0.5
"""Pixels; less is not rendered."""
PART_SHIFT = 4
"""A byte of the drawing contains the body part in its upper and the ink in its lower four bits."""

Point = tuple[float, float]
Solid = tuple[float, float, float]
"""forward, up, side"""


def rectangle(left: float, low: float, right: float, high: float) -> list[Point]:
    """Its corners, anticlockwise."""
    return [(left, low), (right, low), (right, high), (left, high)]


class Sketch:
    """Polygons in drawing order; x to the right, y up.

    Args:
        yaw: rotation in radians; at 0, forward is to the right.
        elevation: downward angle of the camera in radians.
    """

    def __init__(self, yaw: float, elevation: float) -> None:
        self.polygons: list[tuple[int, list[Point]]] = []
        self.keypoints: list[Point] = []
        """Of a person, in the order of COCO_KEYPOINTS; empty for other figures."""
        self._cos, self._sin = math.cos(yaw), math.sin(yaw)
        self._up, self._deep = math.cos(elevation), math.sin(elevation)

    def see(self, point: Solid) -> Point:
        """Projection of a point of the figure."""
        forward, up, side = point
        return forward * self._cos + side * self._sin, up * self._up + self.depth(point) * self._deep

    def depth(self, point: Solid) -> float:
        """Distance of a point behind the figure's centre."""
        return point[2] * self._cos - point[0] * self._sin

    def flat(self, ink: int, points: Sequence[Point], part: int = 0) -> None:
        self.polygons.append((part << PART_SHIFT | ink, list(points)))

    def face(self, ink: int, points: Sequence[Solid]) -> None:
        # Inlines `see`, as there are some thousand points per frame.
        cos, sin, up, deep = self._cos, self._sin, self._up, self._deep
        self.flat(ink, [(x * cos + z * sin, y * up + (z * cos - x * sin) * deep) for x, y, z in points])

    def plate(self, ink: int, points: Sequence[Point], side: float = 0.0) -> None:
        """A face in a plane of forward and up."""
        self.face(ink, [(*point, side) for point in points])

    def near(self, width: float) -> float:
        """Where along `side` the face towards the viewer lies, of a solid of this width."""
        return -width / 2 if self._cos >= 0 else width / 2

    def disc(self, ink: int, centre: Point, across: float, along: float, turn: float = 0.0, part: int = 0) -> None:
        """An ellipse with these half axes."""
        cos, sin = math.cos(turn), math.sin(turn)
        points = [(across * c, along * s) for c, s in CIRCLE]
        self.flat(ink, [(centre[0] + x * cos - y * sin, centre[1] + x * sin + y * cos) for x, y in points], part)

    def wheel(self, ink: int, centre: Solid, radius: float) -> None:
        """A disc in the plane of forward and up."""
        forward, up, side = centre
        self.plate(ink, [(forward + radius * c, up + radius * s) for c, s in CIRCLE], side)

    def limb(self, ink: int, start: Point, end: Point, wide: float, narrow: float, part: int = 0) -> None:
        """A rounded stroke of width 2 * wide at `start` and 2 * narrow at `end`."""
        angle = math.atan2(end[1] - start[1], end[0] - start[0])
        ends = (*start, wide, angle + math.pi / 2), (*end, narrow, angle - math.pi / 2)
        turned = [(x, y, r, turn + math.pi * step) for x, y, r, turn in ends for step in (0, 0.25, 0.5, 0.75, 1)]
        self.flat(ink, [(x + r * math.cos(turn), y + r * math.sin(turn)) for x, y, r, turn in turned], part)

    def bone(self, ink: int, start: Solid, end: Solid, wide: float, narrow: float, part: int = 0) -> None:
        """A `limb` between two points of the figure."""
        self.limb(ink, self.see(start), self.see(end), wide, narrow, part)

    def extrude(self, profile: Sequence[Point], inks: Sequence[int], width: float, side_ink: int) -> None:
        """Extrude a profile of (forward, up), anticlockwise, sideways; only faces towards the viewer are drawn, each in
        the ink of the point of the profile at which it begins."""
        half = width / 2
        for number, (a, b) in enumerate(zip(profile, [*profile[1:], profile[0]], strict=True)):
            normal = (b[1] - a[1], a[0] - b[0])
            toward = normal[0] * self._sin * self._up + normal[1] * self._deep
            if toward > 1e-9:
                self.face(inks[number], [(*a, -half), (*b, -half), (*b, half), (*a, half)])
        self.plate(side_ink, profile, self.near(width))


class Figure:
    """The shape of an object: a fixed style, animated by a phase in seconds (or in its own lengths if it rolls)."""

    yaw = elevation = 0.0

    def draw(self, out: Sketch, phase: float) -> None:
        raise NotImplementedError


CIRCLE = [(math.cos(2 * math.pi * k / 18), math.sin(2 * math.pi * k / 18)) for k in range(18)]


class Stamp(NamedTuple):
    """The visible part of a figure, rendered for one position in one frame."""

    x: int
    y: int
    image: Image.Image
    """RGBA; A: share of each pixel that the figure covers while the shutter is open."""
    covered: NDArray[np.bool_]
    """(h, w) the figure's pixels halfway through the exposure, used for the ground truth."""
    pixels: int
    """Number of such pixels, including those outside the view."""
    parts: NDArray[np.uint8] | None
    """(h, w) body part of each pixel, if requested."""


class Paint:
    """Textures and colours of one object, the same in every frame."""

    def __init__(self, split: Split, chance: Chance) -> None:
        self._main = texture(split, chance.integer(0, BANK))
        self._second = texture(split, chance.integer(0, BANK))
        self._span = chance.style(0.25, 0.95)
        self._offset = chance.unit(), chance.unit()
        palette: list[Colour] = [(0, 0, 0)] * 16
        dark = chance.uniform(0.5, 0.75)
        for ink, level in ((Ink.MAIN, 0.88), (Ink.MAIN_DARK, 0.88 * dark), (Ink.MAIN_LIGHT, 1.0), (Ink.SECOND, 0.92)):
            palette[ink] = _scaled(WHITE, level)
        palette[Ink.SECOND_DARK] = _scaled(WHITE, 0.92 * dark)
        palette[Ink.THIRD] = colour(chance)
        palette[Ink.THIRD_DARK] = _scaled(palette[Ink.THIRD], dark)
        palette[Ink.DARK], palette[Ink.LIGHT] = _scaled(colour(chance), 0.45), _raised(colour(chance), 0.5)
        palette[Ink.GLASS], palette[Ink.GLOW] = _scaled(colour(chance), 0.8), _raised(colour(chance), 0.3)
        palette[Ink.SKIN] = colour(chance)
        palette[Ink.SKIN_DARK] = _scaled(palette[Ink.SKIN], 0.8)
        palette[Ink.EDGE] = _scaled(colour(chance), chance.uniform(0.15, 0.5))
        palette[Ink.HOLE] = palette[Ink.MAIN]
        self._palette = bytes(value for _ in range(16) for rgb in palette for value in rgb)

    def stamp(
        self, sketch: Sketch, size: float, at: Point, mirror: bool, blur: Point, view: tuple[int, int], parts: bool
    ) -> Stamp | None:
        """Render a sketch, whose units are `size` pixels, with its origin at a pixel; None if it is outside the view.

        `mirror` swaps left and right; `blur` is half the distance that it moves during the exposure, in pixels.
        """
        fine = 2 if size >= 48 else 4 if size >= 20 else 6
        units = chain.from_iterable(chain.from_iterable(outline for _, outline in sketch.polygons))
        points = np.fromiter(units, np.float64).reshape(-1, 2) * ((-size if mirror else size), -size) + at
        pad = 1 + math.ceil(max(blur))
        left, top = (int(value) - pad for value in np.floor(points.min(0)))
        right, bottom = (int(value) + pad + 1 for value in np.floor(points.max(0)))
        if right <= 0 or bottom <= 0 or left >= view[0] or top >= view[1]:
            return None
        width, height = right - left, bottom - top
        drawing = Image.new("L", (width * fine, height * fine))
        pen, places = ImageDraw.Draw(drawing), iter(((points - (left, top)) * fine).ravel().tolist())
        for ink, outline in sketch.polygons:
            pen.polygon(list(islice(places, 2 * len(outline))), fill=ink, outline=ink & 0xF0 | Ink.EDGE)
        # Large figures are mostly outside the view: crop to the part that can blur into it, but count all pixels.
        begin = max(0, -left - pad), max(0, -top - pad)
        window = (*begin, min(width, view[0] - left + pad), min(height, view[1] - top + pad))
        whole = None
        if window != (0, 0, width, height):
            whole = drawing.point(COVERS).reduce(fine)
            drawing = drawing.crop((window[0] * fine, window[1] * fine, window[2] * fine, window[3] * fine))

        def patch(texture: Texture) -> Image.Image:
            piece = texture.patch(width, height, self._span, *self._offset)
            return piece if whole is None else piece.crop(window)

        numbers = np.asarray(drawing) if parts else None
        drawing.putpalette(ROLES)
        alpha, second, plain = drawing.convert("RGB").reduce(fine).split()
        drawing.putpalette(self._palette)
        shade = drawing.convert("RGB").reduce(fine)
        image = patch(self._main)
        if any(ink & 0x0F in TEXTURED_SECOND for ink, _ in sketch.polygons):
            image.paste(patch(self._second), (0, 0), second)
        image.paste(WHITE, (0, 0), plain)
        image = ImageChops.multiply(image, shade)
        image.putalpha(alpha)
        if max(blur) > LEAST_BLUR:
            image = image.filter(ImageFilter.BoxBlur(blur))
        covered = np.asarray(alpha) >= 128
        pixels = np.count_nonzero(covered if whole is None else np.asarray(whole) >= 128)
        found = None if numbers is None else _parts(numbers, fine, covered)
        return Stamp(left + begin[0], top + begin[1], image, covered, int(pixels), found)


def _role(ink: int) -> tuple[int, int, int]:
    """The kind of an ink as RGB: red if it is opaque, green if of the second texture, blue if a flat colour."""
    return 255 * (ink != Ink.HOLE), 255 * (ink in TEXTURED_SECOND), 255 * (ink not in (Ink.HOLE, *TEXTURED))


COVERS = [_role(number % 16)[0] for number in range(256)]
ROLES = bytes(value for number in range(256) for value in _role(number % 16))


def _parts(drawing: NDArray[np.uint8], fine: int, covered: NDArray[np.bool_]) -> NDArray[np.uint8]:
    """Body part at the centre of each pixel; if a covered pixel has none there, the largest number in it."""
    numbers: NDArray[np.uint8] = drawing >> np.uint8(PART_SHIFT)
    found = numbers[fine // 2 :: fine, fine // 2 :: fine].copy()
    rows, columns = np.nonzero(covered & (found == 0))
    blocks = numbers.reshape(len(found), fine, -1, fine)
    found[rows, columns] = blocks[rows, :, columns].max(axis=(1, 2))
    return found


def _scaled(rgb: Colour, factor: float) -> Colour:
    return round(rgb[0] * factor), round(rgb[1] * factor), round(rgb[2] * factor)


def _raised(rgb: Colour, share: float) -> Colour:
    r, g, b = (round(value + (255 - value) * share) for value in rgb)
    return r, g, b
