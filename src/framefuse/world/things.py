"""Solids: sign, ball, box, cone; decoys, shapes of no class; and car, bus, bicycle, whose phase is the distance
travelled, in their own lengths.
"""

from __future__ import annotations

import math

from framefuse.world.chance import Chance
from framefuse.world.sketch import CIRCLE, Figure, Ink, Point, Sketch, rectangle


class Sign(Figure):
    """1 high: a plate on a pole."""

    def __init__(self, chance: Chance) -> None:
        self.plate, self.radius, self.pole = chance.integer(0, 6), chance.style(0.17, 0.26), chance.style(0.016, 0.035)
        self.yaw, self.mark = chance.uniform(-0.8, 0.8), chance.integer(0, 5)
        self.border, self.turn = chance.style(0.72, 0.88), chance.uniform(-0.05, 0.05)

    def draw(self, out: Sketch, phase: float) -> None:
        radius = self.radius
        middle = 1 - radius
        out.flat(Ink.DARK, rectangle(-self.pole, 0, self.pole, middle))
        corners = (18, 3, 8, 4, 4, 3)[self.plate]
        start = (0.0, math.pi / 2, math.pi / 8, math.pi / 4, math.pi / 2, -math.pi / 2)[self.plate]

        def plate(ink: int, scale: float) -> None:
            angles = [start + self.turn + 2 * math.pi * number / corners for number in range(corners)]
            out.plate(ink, [(scale * radius * math.cos(a), middle + scale * radius * math.sin(a)) for a in angles])

        plate(Ink.THIRD, 1.0)
        plate(Ink.MAIN, self.border)
        marks = {
            0: [rectangle(-0.5, -0.12, 0.5, 0.14)],
            1: [rectangle(-0.1, -0.35, 0.1, 0.25), [(-0.3, 0.15), (0.3, 0.15), (0.0, 0.5)]],
            3: [rectangle(-0.45, 0.1, 0.45, 0.28), rectangle(-0.45, -0.25, 0.45, -0.07)],
        }
        for points in marks.get(self.mark, ()):
            out.plate(Ink.LIGHT, [(x * radius, middle + y * radius) for x, y in points])
        if self.mark == 2:
            out.plate(Ink.DARK, [(0.32 * radius * c, middle + 0.32 * radius * s) for c, s in CIRCLE])


class Ball(Figure):
    """Diameter 1, rolling: plain, beach ball, banded, spotted."""

    def __init__(self, chance: Chance) -> None:
        self.kind, self.wedges = chance.integer(0, 4), chance.integer(2, 5)
        self.tilt, self.light = chance.uniform(-0.7, 0.7), chance.style(0.3, 1.0)

    def draw(self, out: Sketch, phase: float) -> None:
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


def _turned(point: Point, angle: float) -> Point:
    x, y = point[0], point[1] - 0.5
    return x * math.cos(angle) - y * math.sin(angle), 0.5 + x * math.sin(angle) + y * math.cos(angle)


class Box(Figure):
    """About 1 high: crate, carton, parcel. Always shows three faces."""

    def __init__(self, chance: Chance) -> None:
        self.length, self.width = chance.style(0.6, 0.95), chance.style(0.5, 0.8)
        self.height, self.yaw = chance.style(0.55, 0.8), chance.sign() * chance.uniform(0.3, 1.2)
        self.elevation, self.kind = chance.uniform(0.3, 0.6), chance.integer(0, 4)

    def draw(self, out: Sketch, phase: float) -> None:
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


class Cone(Figure):
    """1 high: with or without a base, banded, blunt or pointed."""

    def __init__(self, chance: Chance) -> None:
        self.radius, self.tip = chance.style(0.26, 0.42), chance.style(0.01, 0.09)
        self.bands, self.foot = chance.integer(0, 4), chance.happens(0.6)
        self.squash, self.shift = chance.uniform(0.18, 0.36), chance.style(-0.06, 0.06)

    def draw(self, out: Sketch, phase: float) -> None:
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


class Decoy(Figure):
    """A moving shape of no class: slabs, stars, crosses, blobs."""

    def __init__(self, chance: Chance) -> None:
        kind, count = chance.integer(0, 4), chance.integer(4, 9)
        if kind == 0:  # a cross or an L
            arm = chance.style(0.1, 0.2)
            self.points = [
                (-arm, -0.5), (arm, -0.5), (arm, -arm), (0.5, -arm), (0.5, arm), (arm, arm), (arm, 0.5), (-arm, 0.5),
            ]  # fmt: skip
        elif kind == 1:  # a slab
            thin = chance.style(0.08, 0.2)
            self.points = [(-0.5, -thin), (0.5, -1.4 * thin), (0.5, thin), (-0.5, 1.2 * thin)]
        else:  # a star or an irregular blob
            inner = chance.style(0.2, 0.35) if kind == 2 else 0.42
            self.points = []
            for number in range(2 * count):
                reach = (0.5 if number % 2 == 0 else inner) * chance.uniform(0.7, 1.0)
                angle = math.pi * number / count
                self.points.append((reach * math.cos(angle), reach * math.sin(angle)))
        self.spin = chance.uniform(-0.8, 0.8)

    def draw(self, out: Sketch, phase: float) -> None:
        angle = self.spin * phase
        cos, sin = math.cos(angle), math.sin(angle)
        turned = [(x * cos - y * sin, 0.5 + x * sin + y * cos) for x, y in self.points]
        out.flat(Ink.MAIN, turned)
        out.flat(Ink.MAIN_DARK, [(x, 0.5 + 0.55 * (y - 0.5)) for x, y in turned[: len(turned) // 2 + 1]])


def _wheels(out: Sketch, places: tuple[float, ...], radius: float, width: float, phase: float, spokes: int) -> None:
    near = out.near(width)
    for forward in places:
        out.wheel(Ink.DARK, (forward, radius, near), radius)
        out.wheel(Ink.LIGHT, (forward, radius, near), 0.55 * radius)
        for number in range(spokes):
            angle = -phase / radius + math.pi * number / spokes
            a, b = (0.5 * radius * math.cos(angle), 0.5 * radius * math.sin(angle))
            nx, ny = -0.12 * radius * math.sin(angle), 0.12 * radius * math.cos(angle)
            corners = ((nx - a, ny - b), (a + nx, b + ny), (a - nx, b - ny), (-a - nx, -b - ny))
            out.plate(Ink.DARK, [(forward + x, radius + y) for x, y in corners], near)


class Car(Figure):
    """1 long: saloon, hatchback, estate, pick-up."""

    def __init__(self, chance: Chance) -> None:
        self.body, self.height = chance.integer(0, 4), chance.style(0.29, 0.4)
        self.hood, self.ride = chance.style(0.17, 0.23), chance.style(0.035, 0.075)
        self.width, self.wheel = chance.style(0.36, 0.46), chance.style(0.075, 0.1)
        self.yaw = chance.sign() * (chance.uniform(0.0, 0.7) if chance.happens(0.75) else chance.uniform(0.9, 1.45))
        self.elevation = chance.uniform(0.08, 0.3)
        self.stripe, self.spokes = chance.happens(0.3), chance.integer(1, 4)

    def draw(self, out: Sketch, phase: float) -> None:
        low, hood, top = self.ride, self.hood, self.height
        roof = ((-0.24, 0.08), (-0.38, 0.1), (-0.45, 0.12), (-0.08, 0.14))[self.body]
        tail = (-0.4, -0.49, -0.5, -0.13)[self.body]
        rear = hood + (0.02 if self.body == 0 else 0.0)
        profile: list[Point] = [
            (-0.5, low), (0.5, low), (0.5, hood - 0.05), (0.47, hood - 0.01), (0.26, hood + 0.015),
            (roof[1], top), (roof[0], top), (tail, rear), (-0.5, rear - 0.02),
        ]  # fmt: skip
        inks = [Ink.DARK, Ink.MAIN_DARK, Ink.MAIN, Ink.MAIN_LIGHT, Ink.GLASS, Ink.MAIN_LIGHT, Ink.GLASS, Ink.MAIN_LIGHT,
                Ink.MAIN_DARK]  # fmt: skip
        out.extrude(profile, inks, self.width, Ink.MAIN)
        near = out.near(self.width)
        left, right = max(tail + 0.05, roof[0] - 0.06), 0.21
        sill, head = hood + 0.02, top - 0.025
        middle = (roof[0] + roof[1]) / 2 if self.body != 3 else roof[0] + 0.02
        if self.body != 3:
            edge = middle - 0.012
            out.plate(Ink.GLASS, [(left, sill), (edge, sill), (edge, head), (roof[0] + 0.01, head)], near)
        edge = middle + 0.012
        out.plate(Ink.GLASS, [(edge, sill), (right, sill), (roof[1] - 0.01, head), (edge, head)], near)
        if self.stripe:
            out.plate(Ink.SECOND, rectangle(-0.49, low + 0.055, 0.49, low + 0.085), near)
        end = 0.5 if math.sin(self.yaw) > 0 else -0.5
        for side in (-0.36, 0.36) if abs(math.sin(self.yaw)) > 0.15 else ():
            centre = side * self.width
            lamp = rectangle(centre - 0.04, hood - 0.1, centre + 0.04, hood - 0.055)
            out.face(Ink.GLOW if end > 0 else Ink.THIRD, [(end, up, across) for across, up in lamp])
        _wheels(out, (-0.3, 0.3), self.wheel, self.width, phase, self.spokes)
        if abs(self.yaw) > 0.9:  # the far front wheel shows under the bumper
            wheel = rectangle(-0.95 * near, 0.0, -0.6 * near, low + 0.02)
            out.face(Ink.DARK, [(end, up, across) for across, up in wheel])


class Bus(Figure):
    """1 long: bus, double-decker, lorry."""

    def __init__(self, chance: Chance) -> None:
        self.kind = chance.integer(0, 3)
        self.height = chance.style(0.46, 0.56) if self.kind == 1 else chance.style(0.34, 0.44)
        self.width, self.windows = chance.style(0.22, 0.32), chance.integer(4, 8)
        self.yaw = chance.sign() * (chance.uniform(0.0, 0.7) if chance.happens(0.8) else chance.uniform(0.8, 1.25))
        self.elevation = chance.uniform(0.05, 0.2)
        self.door, self.stripe = chance.style(0.1, 0.3), chance.happens(0.5)

    def draw(self, out: Sketch, phase: float) -> None:
        low, top = 0.05, self.height
        near = out.near(self.width)

        def panel(ink: int, left: float, bottom: float, right: float, upper: float) -> None:
            out.plate(ink, rectangle(left, bottom, right, upper), near)

        if self.kind == 2:
            cab = top * 0.82
            load = rectangle(-0.5, low + 0.03, 0.22, top)
            front: list[Point] = [(0.25, low), (0.5, low), (0.5, cab * 0.6), (0.44, cab), (0.25, cab)]
            shades = [Ink.DARK, Ink.SECOND_DARK, Ink.GLASS, Ink.SECOND, Ink.SECOND_DARK]
            parts = [(load, [Ink.DARK, Ink.MAIN_DARK, Ink.MAIN_LIGHT, Ink.MAIN_DARK], Ink.MAIN),
                     (front, shades, Ink.SECOND)]  # fmt: skip
            for profile, inks, ink in parts if math.sin(self.yaw) >= 0 else parts[::-1]:
                out.extrude(profile, inks, self.width, ink)
            panel(Ink.GLASS, 0.32, cab * 0.58, 0.43, cab * 0.9)
            if self.stripe:
                panel(Ink.THIRD, -0.46, low + 0.5 * top, 0.18, low + 0.62 * top)
        else:
            profile = [(-0.5, low), (0.5, low), (0.5, 0.45 * top), (0.485, 0.92 * top), (0.46, top), (-0.48, top)]
            inks = [Ink.DARK, Ink.MAIN_DARK, Ink.GLASS, Ink.MAIN_LIGHT, Ink.MAIN_LIGHT, Ink.MAIN_DARK]
            out.extrude(profile, inks, self.width, Ink.MAIN)
            rows = ((0.34, 0.56), (0.7, 0.9)) if self.kind == 1 else ((0.5, 0.84),)
            for bottom, upper in rows:
                step = 0.92 / self.windows
                for number in range(self.windows):
                    left = -0.46 + number * step
                    panel(Ink.GLASS, left + 0.1 * step, bottom * top, left + 0.9 * step, upper * top)
            panel(Ink.THIRD_DARK, self.door, low + 0.01, self.door + 0.1, rows[0][1] * top)
            if self.stripe:
                panel(Ink.SECOND, -0.49, low + 0.05, 0.49, low + 0.085)
        places = (-0.3, 0.34) if self.kind < 2 else (-0.38, -0.22, 0.37)
        _wheels(out, places, 0.066, self.width, phase, 2)


class Bicycle(Figure):
    """1 long: bicycle or moped."""

    def __init__(self, chance: Chance) -> None:
        self.elevation, self.moped = 0.08, chance.happens(0.4)
        self.wheel = chance.style(0.15, 0.19) if self.moped else chance.style(0.2, 0.25)
        self.tyre = 0.05 if self.moped else chance.style(0.024, 0.04)
        self.spread, self.yaw = chance.style(0.27, 0.31), chance.uniform(-0.75, 0.75)
        self.bar, self.basket = chance.style(0.1, 0.2), chance.happens(0.3)

    def draw(self, out: Sketch, phase: float) -> None:
        radius, spread = self.wheel, self.spread
        for forward in (-spread, spread):
            centre = (forward, radius, 0.0)
            out.wheel(Ink.DARK, centre, radius)
            out.wheel(Ink.HOLE if not self.moped else Ink.LIGHT, centre, radius - self.tyre)
            for number in range(1 if self.moped else 3):
                angle = -phase / radius + math.pi * number / 3
                reach = radius - self.tyre
                a = (forward + reach * math.cos(angle), radius + reach * math.sin(angle), 0.0)
                b = (forward - reach * math.cos(angle), radius - reach * math.sin(angle), 0.0)
                out.bone(Ink.LIGHT, a, b, 0.006, 0.006)
            out.wheel(Ink.DARK, centre, 0.03)

        def tube(ink: int, a: Point, b: Point, wide: float) -> None:
            out.bone(ink, (*a, 0.0), (*b, 0.0), wide, wide)

        head, seat, crank = (spread - 0.1, radius + 0.28), (-0.13, radius + 0.27), (-0.04, radius - 0.02)
        thick = 0.045 if self.moped else 0.022
        tube(Ink.MAIN_DARK, (spread, radius), (head[0] - 0.02, head[1] + 0.06), thick * 0.8)
        if self.moped:
            body = [
                (-0.42, 0.1), (-0.1, -0.08), (0.12, -0.08), (0.2, 0.26),
                (0.14, 0.28), (0.06, 0.02), (-0.06, 0.2), (-0.4, 0.24),
            ]  # fmt: skip
            out.plate(Ink.MAIN, [(x, radius + y) for x, y in body])
            tube(Ink.SECOND, (-0.36, radius + 0.26), (-0.06, radius + 0.25), 0.045)
            shield = [(spread - 0.13, 1.9 * radius), (spread + 0.12, 1.95 * radius), (spread, 2.25 * radius)]
            out.plate(Ink.MAIN_LIGHT, shield)
        else:
            tube(Ink.MAIN, (-spread, radius), seat, thick)
            tube(Ink.MAIN, (-spread, radius), crank, thick)
            tube(Ink.MAIN, crank, seat, thick)
            tube(Ink.MAIN, crank, head, thick)
            tube(Ink.MAIN_LIGHT, seat, head, thick)
            tube(Ink.DARK, (seat[0] - 0.015, seat[1]), (seat[0] - 0.03, seat[1] + 0.07), 0.014)
            tube(Ink.SECOND, (seat[0] - 0.1, seat[1] + 0.08), (seat[0] + 0.06, seat[1] + 0.075), 0.026)
            angle = -3 * phase
            for sign in (-1, 1):
                pedal = (crank[0] + sign * 0.09 * math.cos(angle), crank[1] + sign * 0.09 * math.sin(angle))
                tube(Ink.DARK, crank, pedal, 0.014)
        tube(Ink.DARK, (head[0] - 0.02, head[1] + 0.06), (head[0] - 0.02 - self.bar * 0.5, head[1] + 0.12), 0.018)
        if self.basket:
            low, high = 2 * radius + 0.02, 2 * radius + 0.15
            basket = [(spread - 0.08, low), (spread + 0.1, low), (spread + 0.13, high), (spread - 0.1, high)]
            out.plate(Ink.THIRD, basket)
