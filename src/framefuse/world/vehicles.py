"""Figures on wheels: car, bus, bicycle. Their phase is the distance travelled, in their own lengths."""

from __future__ import annotations

import math

from framefuse.world.chance import Chance
from framefuse.world.sketch import Ink, Point, Sketch, rectangle


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


class Car:
    """1 long: saloon, hatchback, estate, pick-up."""

    def __init__(self, chance: Chance) -> None:
        self.body = chance.integer(0, 4)
        self.height = chance.style(0.29, 0.4)
        self.hood = chance.style(0.17, 0.23)
        self.ride = chance.style(0.035, 0.075)
        self.width = chance.style(0.36, 0.46)
        self.wheel = chance.style(0.075, 0.1)
        self.yaw = chance.sign() * (chance.uniform(0.0, 0.7) if chance.happens(0.75) else chance.uniform(0.9, 1.45))
        self.elevation = chance.uniform(0.08, 0.3)
        self.stripe = chance.happens(0.3)
        self.spokes = chance.integer(1, 4)

    def sketch(self, phase: float) -> Sketch:
        out = Sketch(self.yaw, self.elevation)
        low, hood, top = self.ride, self.hood, self.height
        roof = {0: (-0.24, 0.08), 1: (-0.38, 0.1), 2: (-0.45, 0.12), 3: (-0.08, 0.14)}[self.body]
        tail = {0: -0.4, 1: -0.49, 2: -0.5, 3: -0.13}[self.body]
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
        return out


class Bus:
    """1 long: bus, double-decker, lorry."""

    def __init__(self, chance: Chance) -> None:
        self.kind = chance.integer(0, 3)
        self.height = chance.style(0.46, 0.56) if self.kind == 1 else chance.style(0.34, 0.44)
        self.width = chance.style(0.22, 0.32)
        self.windows = chance.integer(4, 8)
        self.yaw = chance.sign() * (chance.uniform(0.0, 0.7) if chance.happens(0.8) else chance.uniform(0.8, 1.25))
        self.elevation = chance.uniform(0.05, 0.2)
        self.door = chance.style(0.1, 0.3)
        self.stripe = chance.happens(0.5)

    def sketch(self, phase: float) -> Sketch:
        out = Sketch(self.yaw, self.elevation)
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
        return out


class Bicycle:
    """1 long: bicycle or moped."""

    def __init__(self, chance: Chance) -> None:
        self.moped = chance.happens(0.4)
        self.wheel = chance.style(0.15, 0.19) if self.moped else chance.style(0.2, 0.25)
        self.tyre = 0.05 if self.moped else chance.style(0.024, 0.04)
        self.spread = chance.style(0.27, 0.31)
        self.yaw = chance.uniform(-0.75, 0.75)
        self.bar = chance.style(0.1, 0.2)
        self.basket = chance.happens(0.3)

    def sketch(self, phase: float) -> Sketch:
        out = Sketch(self.yaw, 0.08)
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
        return out
