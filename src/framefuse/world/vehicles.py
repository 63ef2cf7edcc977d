"""Figures on wheels: car, bus, bicycle. Their phase is the distance travelled, in their own lengths."""

from __future__ import annotations

import math

from framefuse.world.chance import Chance
from framefuse.world.sketch import (
    DARK,
    GLASS,
    GLOW,
    HOLE,
    LIGHT,
    MAIN,
    MAIN_DARK,
    MAIN_LIGHT,
    SECOND,
    SECOND_DARK,
    THIRD,
    THIRD_DARK,
    Point,
    Sketch,
    rectangle,
)


def _wheels(out: Sketch, places: tuple[float, ...], radius: float, width: float, phase: float, spokes: int) -> None:
    near = -width / 2 if math.cos(out.yaw) >= 0 else width / 2
    for forward in places:
        out.wheel(DARK, (forward, radius, near), radius)
        out.wheel(LIGHT, (forward, radius, near), 0.55 * radius)
        for number in range(spokes):
            angle = -phase / radius + math.pi * number / spokes
            a, b = (0.5 * radius * math.cos(angle), 0.5 * radius * math.sin(angle))
            nx, ny = -0.12 * radius * math.sin(angle), 0.12 * radius * math.cos(angle)
            corners = ((nx - a, ny - b), (a + nx, b + ny), (a - nx, b - ny), (-a - nx, -b - ny))
            out.face(DARK, [(forward + x, radius + y, near) for x, y in corners])


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
        inks = [DARK, MAIN_DARK, MAIN, MAIN_LIGHT, GLASS, MAIN_LIGHT, GLASS, MAIN_LIGHT, MAIN_DARK]
        out.extrude(profile, inks, self.width, MAIN)
        near = -self.width / 2 if math.cos(self.yaw) >= 0 else self.width / 2
        left, right = max(tail + 0.05, roof[0] - 0.06), 0.21
        sill = hood + 0.02
        middle = (roof[0] + roof[1]) / 2 if self.body != 3 else roof[0] + 0.02
        if self.body != 3:
            back_window = [
                (left, sill),
                (middle - 0.012, sill),
                (middle - 0.012, top - 0.025),
                (roof[0] + 0.01, top - 0.025),
            ]
            out.face(GLASS, [(*point, near) for point in back_window])
        front_window = [
            (middle + 0.012, sill),
            (right, sill),
            (roof[1] - 0.01, top - 0.025),
            (middle + 0.012, top - 0.025),
        ]
        out.face(GLASS, [(*point, near) for point in front_window])
        if self.stripe:
            out.face(SECOND, [(*point, near) for point in rectangle(-0.49, low + 0.055, 0.49, low + 0.085)])
        end = 0.5 if math.sin(self.yaw) > 0 else -0.5
        for side in (-0.36, 0.36):
            middle_side = side * self.width
            lamp = [(end, hood - 0.1, middle_side - 0.04), (end, hood - 0.1, middle_side + 0.04),
                    (end, hood - 0.055, middle_side + 0.04), (end, hood - 0.055, middle_side - 0.04)]  # fmt: skip
            if abs(math.sin(self.yaw)) > 0.15:
                out.face(GLOW if end > 0 else THIRD, lamp)
        _wheels(out, (-0.3, 0.3), self.wheel, self.width, phase, self.spokes)
        if abs(self.yaw) > 0.9:  # the far front wheel shows under the bumper
            far = self.width / 2 * (1 if math.cos(self.yaw) >= 0 else -1)
            out.face(
                DARK,
                [
                    (end, 0.0, 0.95 * far),
                    (end, 0.0, 0.6 * far),
                    (end, low + 0.02, 0.6 * far),
                    (end, low + 0.02, 0.95 * far),
                ],
            )
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
        near = -self.width / 2 if math.cos(self.yaw) >= 0 else self.width / 2

        def panel(ink: int, left: float, bottom: float, right: float, upper: float) -> None:
            out.face(ink, [(*point, near) for point in rectangle(left, bottom, right, upper)])

        if self.kind == 2:
            cab = top * 0.82
            load = rectangle(-0.5, low + 0.03, 0.22, top)
            front: list[Point] = [(0.25, low), (0.5, low), (0.5, cab * 0.6), (0.44, cab), (0.25, cab)]
            parts = [(load, [DARK, MAIN_DARK, MAIN_LIGHT, MAIN_DARK], MAIN),
                     (front, [DARK, SECOND_DARK, GLASS, SECOND, SECOND_DARK], SECOND)]  # fmt: skip
            for profile, inks, ink in parts if math.sin(self.yaw) >= 0 else parts[::-1]:
                out.extrude(profile, inks, self.width, ink)
            panel(GLASS, 0.32, cab * 0.58, 0.43, cab * 0.9)
            if self.stripe:
                panel(THIRD, -0.46, low + 0.5 * top, 0.18, low + 0.62 * top)
        else:
            profile = [(-0.5, low), (0.5, low), (0.5, 0.45 * top), (0.485, 0.92 * top), (0.46, top), (-0.48, top)]
            out.extrude(profile, [DARK, MAIN_DARK, GLASS, MAIN_LIGHT, MAIN_LIGHT, MAIN_DARK], self.width, MAIN)
            rows = ((0.34, 0.56), (0.7, 0.9)) if self.kind == 1 else ((0.5, 0.84),)
            for bottom, upper in rows:
                step = 0.92 / self.windows
                for number in range(self.windows):
                    left = -0.46 + number * step
                    panel(GLASS, left + 0.1 * step, bottom * top, left + 0.9 * step, upper * top)
            panel(THIRD_DARK, self.door, low + 0.01, self.door + 0.1, rows[0][1] * top)
            if self.stripe:
                panel(SECOND, -0.49, low + 0.05, 0.49, low + 0.085)
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
            out.wheel(DARK, centre, radius)
            out.wheel(HOLE if not self.moped else LIGHT, centre, radius - self.tyre)
            for number in range(1 if self.moped else 3):
                angle = -phase / radius + math.pi * number / 3
                reach = radius - self.tyre
                a = (forward + reach * math.cos(angle), radius + reach * math.sin(angle), 0.0)
                b = (forward - reach * math.cos(angle), radius - reach * math.sin(angle), 0.0)
                out.limb(LIGHT, out.see(a), out.see(b), 0.006, 0.006)
            out.wheel(DARK, centre, 0.03)

        def tube(ink: int, a: Point, b: Point, wide: float) -> None:
            out.limb(ink, out.see((*a, 0.0)), out.see((*b, 0.0)), wide, wide)

        head, seat, crank = (spread - 0.1, radius + 0.28), (-0.13, radius + 0.27), (-0.04, radius - 0.02)
        thick = 0.045 if self.moped else 0.022
        tube(MAIN_DARK, (spread, radius), (head[0] - 0.02, head[1] + 0.06), thick * 0.8)
        if self.moped:
            body = [
                (-0.42, 0.1), (-0.1, -0.08), (0.12, -0.08), (0.2, 0.26),
                (0.14, 0.28), (0.06, 0.02), (-0.06, 0.2), (-0.4, 0.24),
            ]  # fmt: skip
            out.face(MAIN, [(x, radius + y, 0.0) for x, y in body])
            tube(SECOND, (-0.36, radius + 0.26), (-0.06, radius + 0.25), 0.045)
            out.face(
                MAIN_LIGHT,
                [(spread - 0.13, 1.9 * radius, 0), (spread + 0.12, 1.95 * radius, 0), (spread, 2.25 * radius, 0)],
            )
        else:
            tube(MAIN, (-spread, radius), seat, thick)
            tube(MAIN, (-spread, radius), crank, thick)
            tube(MAIN, crank, seat, thick)
            tube(MAIN, crank, head, thick)
            tube(MAIN_LIGHT, seat, head, thick)
            tube(DARK, (seat[0] - 0.015, seat[1]), (seat[0] - 0.03, seat[1] + 0.07), 0.014)
            tube(SECOND, (seat[0] - 0.1, seat[1] + 0.08), (seat[0] + 0.06, seat[1] + 0.075), 0.026)
            angle = -3 * phase
            for sign in (-1, 1):
                tube(
                    DARK,
                    crank,
                    (crank[0] + sign * 0.09 * math.cos(angle), crank[1] + sign * 0.09 * math.sin(angle)),
                    0.014,
                )
        tube(DARK, (head[0] - 0.02, head[1] + 0.06), (head[0] - 0.02 - self.bar * 0.5, head[1] + 0.12), 0.018)
        if self.basket:
            out.face(THIRD, [(spread - 0.08, 2 * radius + 0.02, 0), (spread + 0.1, 2 * radius + 0.02, 0),
                             (spread + 0.13, 2 * radius + 0.15, 0), (spread - 0.1, 2 * radius + 0.15, 0)])  # fmt: skip
        return out
