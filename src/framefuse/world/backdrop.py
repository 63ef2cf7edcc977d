"""The backdrop: one wide image that wraps around; every frame shows a window of it.

It uses the same textures as the objects, and contains distractor shapes in the colours of objects.
"""

from __future__ import annotations

import math

from PIL import Image, ImageDraw, ImageFilter

from framefuse.world.chance import Chance, Split
from framefuse.world.textures import BANK, colour, texture

LAPS = 3
"""Width of the backdrop in frame widths."""
MARGIN = 0.08
"""Margin above and below the frame for the camera's movement, in frame heights."""


def paint_backdrop(split: Split, chance: Chance, width: int, height: int, horizon: float, unit: float) -> Image.Image:
    """RGB image of LAPS * width by (1 + 2 MARGIN) * height pixels, extended on the right by its first `width` columns.

    Args:
        horizon: where the ground begins, in frame heights from the top.
        unit: pixels to which textures and shapes are scaled; the height, or less if the camera is far away.
    """
    lap, tall = LAPS * width, height + 2 * round(MARGIN * height)
    image = Image.new("RGB", (lap, tall))
    line = round((horizon + MARGIN) * height)
    _cover(image, split, chance, (0, 0, lap, line), chance.uniform(0.6, 1.2) * unit)
    if chance.happens(0.7):
        sky = Image.new("RGB", (lap, line), colour(chance))
        image.paste(Image.blend(image.crop((0, 0, lap, line)), sky, chance.uniform(0.3, 0.9)), (0, 0))
    _skyline(image, split, chance, line, unit)
    _cover(image, split, chance, (0, line, lap, tall), chance.uniform(0.5, 1.0) * unit)
    _bands(image, chance, line, tall)
    _shapes(image, split, chance, unit, round(LAPS * (height / unit) ** 2))
    if chance.happens(0.5):
        image = image.filter(ImageFilter.BoxBlur(chance.uniform(0.2, 1.2) * unit / 360))
    full = Image.new("RGB", (lap + width, tall))
    full.paste(image, (0, 0))
    full.paste(image.crop((0, 0, width, tall)), (lap, 0))
    return full


def _cover(image: Image.Image, split: Split, chance: Chance, box: tuple[int, int, int, int], side: float) -> None:
    """Fill a rectangle with repeats of one texture, `side` pixels each."""
    left, top, right, bottom = box
    step = max(8, round(side))
    repeats = max(1, round((right - left) / step))
    step = -(-(right - left) // repeats)
    piece = texture(split, chance.integer(0, BANK)).patch(step, step, 1.0, 0.0, 0.0)
    for x in range(left, right, step):
        for y in range(top, bottom, step):
            image.paste(piece.crop((0, 0, min(step, right - x), min(step, bottom - y))), (x, y))


def _skyline(image: Image.Image, split: Split, chance: Chance, line: int, unit: float) -> None:
    """Textured blocks along the horizon."""
    x = 0
    while x < image.width:
        wide = min(round(chance.uniform(0.1, 0.6) * unit), image.width - x)
        tall = round(chance.style(0.05, 0.85) * line)
        if wide > 3 and tall > 3 and chance.happens(0.75):
            piece = texture(split, chance.integer(0, BANK)).patch(wide, tall, chance.uniform(0.2, 1), chance.unit(), 0)
            image.paste(piece, (x, line - tall))
        x += max(4, wide + round(chance.uniform(-0.02, 0.1) * unit))


def _bands(image: Image.Image, chance: Chance, line: int, tall: int) -> None:
    """Kerbs and lane markings on the ground."""
    pen = ImageDraw.Draw(image)
    for _ in range(chance.integer(0, 4)):
        y, thick = chance.uniform(line, tall), chance.uniform(0.005, 0.04) * (tall - line)
        ink = colour(chance)
        dash = chance.uniform(0.1, 0.5) * tall if chance.happens(0.5) else float(image.width)
        x = 0.0
        while x < image.width:
            pen.rectangle((x, y, x + 0.6 * dash, y + thick), fill=ink)
            x += dash


def _shapes(image: Image.Image, split: Split, chance: Chance, unit: float, share: int) -> None:
    """Distractors: bars, rings, half discs, crosses, triangles and blobs in textures and plain colours."""
    for _ in range(share * chance.integer(5, 16)):
        size = unit * 0.03 * (0.3 / 0.03) ** chance.unit()
        wide = max(4, round(size * chance.uniform(0.4, 1.8)))
        tall = max(4, round(size))
        x, y = chance.integer(0, image.width - wide), chance.integer(0, max(1, image.height - tall))
        mask = Image.new("L", (2 * wide, 2 * tall))
        _shape(ImageDraw.Draw(mask), chance, 2 * wide - 1, 2 * tall - 1)
        mask = mask.reduce(2)
        if chance.happens(0.75):
            ink = texture(split, chance.integer(0, BANK)).patch(wide, tall, chance.uniform(0.2, 1), chance.unit(), 0)
        else:
            ink = Image.new("RGB", (wide, tall), colour(chance))
        image.paste(ink, (x, y), mask)


def _shape(pen: ImageDraw.ImageDraw, chance: Chance, w: int, h: int) -> None:
    kind = chance.integer(0, 6)
    if kind == 0:
        pen.polygon([(0, h * 0.2), (w, 0), (w * 0.9, h), (w * 0.1, h * 0.8)], fill=255)
    elif kind == 1:
        pen.ellipse((0, 0, w, h), fill=255)
        pen.ellipse((w * 0.3, h * 0.3, w * 0.8, h * 0.8), fill=0)
    elif kind == 2:
        pen.pieslice((0, 0, w, 2 * h), 180, 360, fill=255)
    elif kind == 3:
        pen.rectangle((w * 0.4, 0, w * 0.6, h), fill=255)
        pen.rectangle((0, h * 0.4, w, h * 0.6), fill=255)
    elif kind == 4:
        pen.polygon([(0, 0), (w, h * chance.unit()), (w * chance.unit(), h)], fill=255)
    else:
        points = []
        for number in range(9):
            reach, angle = chance.uniform(0.25, 0.5), 2 * math.pi * number / 9
            points.append((w * (0.5 + reach * math.cos(angle)), h * (0.5 + reach * math.sin(angle))))
        pen.polygon(points, fill=255)
