"""Simple solids: sign, ball, box, cone; and decoys, shapes of no class."""

from __future__ import annotations

import math
from collections.abc import Sequence

from framefuse.world.chance import Chance
from framefuse.world.sketch import CIRCLE, Ink, Point, Sketch, rectangle


class Sign:
    """1 high: a plate on a pole."""

    def __init__(self, chance: Chance) -> None:
        self.plate = chance.integer(0, 6)
        self.radius = chance.style(0.17, 0.26)
        self.pole = chance.style(0.016, 0.035)
        self.yaw = chance.uniform(-0.8, 0.8)
        self.mark = chance.integer(0, 5)
        self.border = chance.style(0.72, 0.88)
        self.turn = chance.uniform(-0.05, 0.05)

    def sketch(self, phase: float) -> Sketch:
        out = Sketch(self.yaw, 0.0)
        radius = self.radius
        middle = 1 - radius
        out.flat(Ink.DARK, rectangle(-self.pole, 0, self.pole, middle))
        corners = {0: 18, 1: 3, 2: 8, 3: 4, 4: 4, 5: 3}[self.plate]
        start = {1: math.pi / 2, 2: math.pi / 8, 3: math.pi / 4, 4: math.pi / 2, 5: -math.pi / 2}.get(self.plate, 0.0)

        def plate(ink: int, scale: float) -> None:
            points = []
            for number in range(corners):
                angle = start + self.turn + 2 * math.pi * number / corners
                points.append((scale * radius * math.cos(angle), middle + scale * radius * math.sin(angle)))
            out.plate(ink, points)

        plate(Ink.THIRD, 1.0)
        plate(Ink.MAIN, self.border)

        def mark(ink: int, points: Sequence[Point]) -> None:
            out.plate(ink, [(x * radius, middle + y * radius) for x, y in points])

        if self.mark == 0:
            mark(Ink.LIGHT, rectangle(-0.5, -0.12, 0.5, 0.14))
        elif self.mark == 1:
            mark(Ink.LIGHT, rectangle(-0.1, -0.35, 0.1, 0.25))
            mark(Ink.LIGHT, ((-0.3, 0.15), (0.3, 0.15), (0.0, 0.5)))
        elif self.mark == 2:
            out.plate(Ink.DARK, [(0.32 * radius * c, middle + 0.32 * radius * s) for c, s in CIRCLE])
        elif self.mark == 3:
            mark(Ink.LIGHT, rectangle(-0.45, 0.1, 0.45, 0.28))
            mark(Ink.LIGHT, rectangle(-0.45, -0.25, 0.45, -0.07))
        return out


class Ball:
    """Diameter 1, rolling: plain, beach ball, banded, spotted."""

    def __init__(self, chance: Chance) -> None:
        self.kind = chance.integer(0, 4)
        self.wedges = chance.integer(2, 5)
        self.tilt = chance.uniform(-0.7, 0.7)
        self.light = chance.style(0.3, 1.0)

    def sketch(self, phase: float) -> Sketch:
        out = Sketch()
        spin = -2 * phase
        out.disc(Ink.MAIN_DARK, (0.0, 0.5), 0.5, 0.5)
        out.disc(Ink.MAIN, (-0.03 * self.light, 0.53), 0.46, 0.455)
        if self.kind == 1:
            for number in range(self.wedges):
                angle = math.pi * number / self.wedges + spin % (math.pi / self.wedges)
                a, b = math.cos(angle), math.cos(angle + 0.5 * math.pi / self.wedges)
                sides = ((a, CIRCLE[:10]), (b, CIRCLE[9::-1]))
                edge = [(0.5 * wide * s, 0.5 + 0.5 * c) for wide, half in sides for c, s in half]
                out.flat(Ink.SECOND, [_turned(point, self.tilt) for point in edge])
        elif self.kind == 2:
            for low, high in ((-0.12, 0.12), (0.26, 0.36)):
                points = [(math.sqrt(0.25 - y * y) * side, 0.5 + y) for side, y in rectangle(-1, low, 1, high)]
                out.flat(Ink.SECOND, [_turned(point, self.tilt + 0.4 * math.sin(spin)) for point in points])
        elif self.kind == 3:
            for number in range(5):
                angle = spin + 2 * math.pi * number / 5
                out.disc(Ink.THIRD, (0.32 * math.cos(angle), 0.5 + 0.32 * math.sin(angle)), 0.09, 0.09)
            out.disc(Ink.THIRD, (0.0, 0.5), 0.1, 0.1)
        out.disc(Ink.MAIN_LIGHT if self.kind else Ink.LIGHT, (-0.17, 0.69), 0.1 * self.light, 0.075 * self.light, 0.5)
        return out


def _turned(point: Point, angle: float) -> Point:
    x, y = point[0], point[1] - 0.5
    return x * math.cos(angle) - y * math.sin(angle), 0.5 + x * math.sin(angle) + y * math.cos(angle)


class Box:
    """About 1 high: crate, carton, parcel. Always shows three faces."""

    def __init__(self, chance: Chance) -> None:
        self.length = chance.style(0.6, 0.95)
        self.width = chance.style(0.5, 0.8)
        self.height = chance.style(0.55, 0.8)
        self.yaw = chance.sign() * chance.uniform(0.3, 1.2)
        self.elevation = chance.uniform(0.3, 0.6)
        self.kind = chance.integer(0, 4)

    def sketch(self, phase: float) -> Sketch:
        out = Sketch(self.yaw, self.elevation)
        half, top = self.length / 2, self.height
        inks = [Ink.DARK, Ink.MAIN_DARK, Ink.MAIN_LIGHT, Ink.MAIN_DARK]
        out.extrude(rectangle(-half, 0.0, half, top), inks, self.width, Ink.MAIN)

        def front(ink: int, left: float, low: float, right: float, high: float) -> None:
            points = [(x * half, y * top) for x, y in rectangle(left, low, right, high)]
            out.plate(ink, points, out.near(self.width))

        if self.kind == 1:  # tape
            front(Ink.THIRD, -0.12, 0.0, 0.12, 1.0)
            tape = rectangle(-0.12 * half, -self.width / 2, 0.12 * half, self.width / 2)
            out.face(Ink.THIRD, [(forward, top, side) for forward, side in tape])
        elif self.kind == 2:  # planks
            for low in (0.04, 0.37, 0.7):
                front(Ink.SECOND, -0.96, low, 0.96, low + 0.24)
        elif self.kind == 3:  # label
            front(Ink.LIGHT, -0.6, 0.3, 0.2, 0.75)
            front(Ink.DARK, -0.5, 0.42, 0.1, 0.5)
        return out


class Cone:
    """1 high: with or without a base, banded, blunt or pointed."""

    def __init__(self, chance: Chance) -> None:
        self.radius = chance.style(0.26, 0.42)
        self.tip = chance.style(0.01, 0.09)
        self.bands = chance.integer(0, 4)
        self.foot = chance.happens(0.6)
        self.squash = chance.uniform(0.18, 0.36)
        self.shift = chance.style(-0.06, 0.06)

    def sketch(self, phase: float) -> Sketch:
        out = Sketch()
        radius, squash = self.radius, self.squash
        base = radius * squash
        if self.foot:
            wide = 1.25 * radius
            foot = [(-wide, base), (-0.1 * wide, 0.0), (wide, 0.6 * base), (0.1 * wide, 1.9 * base)]
            out.flat(Ink.THIRD_DARK, [(x, y - 0.03) for x, y in foot])
            out.flat(Ink.THIRD, foot)
        lift = 0.9 * base if self.foot else base

        def ring(low: float, high: float) -> list[Point]:
            def half(at: float) -> list[Point]:
                wide, y = radius + (self.tip - radius) * at, lift + (0.98 - lift) * at
                return [(wide * c, y + wide * squash * s) for c, s in CIRCLE[9:] + CIRCLE[:1]]

            return half(low) + half(high)[::-1]

        out.flat(Ink.MAIN, ring(0.0, 1.0))
        shaded = ring(0.0, 1.0)
        out.flat(Ink.MAIN_DARK, [(0.3 * radius, shaded[6][1]), *shaded[7:12], (0.4 * self.tip, shaded[12][1])])
        for number in range(self.bands):
            low = 0.18 + 0.6 * number / self.bands
            out.flat(Ink.SECOND, ring(low, low + 0.3 / self.bands))
        out.disc(Ink.MAIN_LIGHT, (0.0, 0.98), self.tip, self.tip * squash)
        return out


class Decoy:
    """A moving shape of no class: slabs, stars, crosses, blobs."""

    def __init__(self, chance: Chance) -> None:
        kind, count = chance.integer(0, 4), chance.integer(4, 9)
        if kind == 0:  # a cross or an L
            arm = chance.style(0.1, 0.2)
            points = [
                (-arm, -0.5), (arm, -0.5), (arm, -arm), (0.5, -arm), (0.5, arm), (arm, arm), (arm, 0.5), (-arm, 0.5),
            ]  # fmt: skip
        elif kind == 1:  # a slab
            thin = chance.style(0.08, 0.2)
            points = [(-0.5, -thin), (0.5, -1.4 * thin), (0.5, thin), (-0.5, 1.2 * thin)]
        else:  # a star or an irregular blob
            inner = chance.style(0.2, 0.35) if kind == 2 else 0.42
            points = []
            for number in range(2 * count):
                reach = 0.5 if number % 2 == 0 else inner
                reach *= chance.uniform(0.7, 1.0)
                angle = math.pi * number / count
                points.append((reach * math.cos(angle), reach * math.sin(angle)))
        self.points = points
        self.spin = chance.uniform(-0.8, 0.8)

    def sketch(self, phase: float) -> Sketch:
        out = Sketch()
        angle = self.spin * phase
        cos, sin = math.cos(angle), math.sin(angle)
        turned = [(x * cos - y * sin, 0.5 + x * sin + y * cos) for x, y in self.points]
        out.flat(Ink.MAIN, turned)
        out.flat(Ink.MAIN_DARK, [(x, 0.5 + 0.55 * (y - 0.5)) for x, y in turned[: len(turned) // 2 + 1]])
        return out
