"""Articulated figures: person, dog, bird. Each has a fixed style and is animated by a phase."""

from __future__ import annotations

import math
from collections.abc import Callable

from framefuse.world.chance import Chance
from framefuse.world.sketch import Figure, Ink, Point, Sketch, Solid, rectangle

BODY_PARTS = ("background", "head", "torso", "upper arms", "lower arms", "upper legs", "lower legs", "feet")
HEAD, TORSO, UPPER_ARM, LOWER_ARM, UPPER_LEG, LOWER_LEG, FOOT = range(1, 8)


Stroke = tuple[float, int, Solid, Solid, float, float, int]
"""The depth of a bone, and the arguments of `Sketch.bone`."""


def _swung(joint: Solid, length: float, angle: float, out: float = 0.0) -> Solid:
    """End of a bone that hangs from `joint`, rotated forward by `angle` and sideways by `out` (radians)."""
    forward, up, side = joint
    down = length * math.cos(out)
    return forward + down * math.sin(angle), up - down * math.cos(angle), side + length * math.sin(out)


class Person(Figure):
    """Height 1. Walks, runs, stands or waves; seen from any side.

    Args:
        facing: towards the viewer with arms in motion, as in front of a camera.
    """

    def __init__(self, chance: Chance, *, facing: bool = False) -> None:
        self.elevation = 0.06
        run = chance.happens(0.25) and not facing
        self.stout, self.leg = chance.style(0.8, 1.45), chance.style(0.44, 0.52)
        self.shoulder, self.head = chance.style(0.095, 0.135), chance.style(0.062, 0.082)
        self.yaw = chance.sign() * (chance.uniform(0.9, 1.7) if facing else chance.uniform(0.0, 1.75))
        self.gait = chance.style(0.05, 0.25) if facing else chance.style(0.75, 1.0) if run else chance.style(0.15, 0.6)
        self.wave = chance.style(0.6, 2.4) if facing or chance.happens(0.2) else 0.0
        self.cadence = chance.style(0.5, 1.0) if facing else chance.style(0.9, 1.5) * (1.4 if run else 1)
        self.lean = chance.uniform(-0.04, 0.05) + 0.12 * run
        self.dress, self.hair, self.sleeves = chance.integer(0, 4), chance.integer(0, 5), chance.happens(0.5)

    def draw(self, out: Sketch, phase: float) -> None:
        hip, neck = self.leg, 0.985 - 2 * self.head
        beat = 2 * math.pi * self.cadence * phase
        rise = 0.012 * self.gait * math.cos(2 * beat)
        back = self.lean * (neck - hip)
        strokes: list[Stroke] = []
        joints: list[list[Solid]] = []
        thick = self.stout

        def bone(ink: int, a: Solid, b: Solid, wide: float, narrow: float, part: int) -> None:
            middle = out.depth(((a[0] + b[0]) / 2, 0.0, (a[2] + b[2]) / 2))
            strokes.append((middle, ink, a, b, wide * thick, narrow * thick, part))

        for sign in (-1, 1):
            swing = sign * self.gait * math.sin(beat)
            bend = self.gait * (0.35 + 0.9 * max(0.0, math.cos(beat) * sign))
            top: Solid = (0.0, hip + rise, sign * 0.052 * thick)
            knee = _swung(top, 0.48 * hip, swing + 0.35 * bend)
            ankle = _swung(knee, 0.46 * hip, swing - 0.65 * bend)
            cloth = Ink.SECOND if self.dress != 2 else Ink.THIRD
            bone(cloth, top, knee, 0.05, 0.036, UPPER_LEG)
            bone(Ink.SKIN if self.dress == 1 else cloth, knee, ankle, 0.037, 0.03, LOWER_LEG)
            heel, toe = (ankle[0] - 0.01, ankle[1] - 0.01, ankle[2]), (ankle[0] + 0.075, ankle[1] - 0.016, ankle[2])
            bone(Ink.DARK, heel, toe, 0.034, 0.026, FOOT)

            arm: Solid = (back, neck - 0.055 + rise, sign * self.shoulder * (0.75 + 0.25 * thick))
            lift = self.wave * (0.55 + 0.45 * math.sin(0.7 * beat + 2.1 * sign)) if self.wave else 0.0
            spread = 0.12 + min(1.0, lift)
            elbow = _swung(arm, 0.165, -0.8 * swing + 0.5 * lift * math.sin(0.4 * beat + sign), sign * spread)
            if lift:
                angle = 0.9 * lift + 0.4 * math.sin(beat + sign)
                forward, up, side = elbow
                wrist: Solid = forward + 0.05, up - 0.15 * math.cos(angle), side + sign * 0.15 * math.sin(angle)
            else:
                wrist = _swung(elbow, 0.16, -0.8 * swing + 0.25 + 0.8 * self.gait, sign * 0.05)
            bone(Ink.MAIN_DARK, arm, elbow, 0.038, 0.033, UPPER_ARM)
            bone(Ink.MAIN_DARK if self.sleeves else Ink.SKIN, elbow, wrist, 0.034, 0.029, LOWER_ARM)
            joints.append([arm, elbow, wrist, top, knee, ankle])
        head = self._torso(out, strokes, hip + rise, neck + rise, back)
        left, right = joints[1], joints[0]
        out.keypoints = self._face(head)
        out.keypoints += [out.see(joint) for pair in zip(left, right, strict=True) for joint in pair]

    def _torso(self, out: Sketch, strokes: list[Stroke], hip: float, neck: float, back: float) -> Point:
        """Draw the strokes behind the torso, the torso and the head, then the strokes in front of it; returns the
        centre of the head."""
        strokes.sort(key=lambda stroke: -stroke[0])
        in_front = [stroke for stroke in strokes if stroke[0] <= 0 and stroke[-1] in (UPPER_ARM, LOWER_ARM)]
        for stroke in strokes:
            if stroke not in in_front:
                out.bone(*stroke[1:])
        thick = self.stout
        front = abs(math.sin(self.yaw))
        wide = self.shoulder * (0.8 + 0.2 * thick) * front + 0.062 * thick * (1 - front)
        waist = wide * 0.78
        (hip_x, hip_y), (neck_x, neck_y) = out.see((0.0, hip, 0.0)), out.see((back, neck, 0.0))
        out.limb(Ink.SKIN_DARK, (neck_x, neck_y - 0.03), (neck_x, neck_y + 0.03), 0.03, 0.03, HEAD)
        shape = [
            (hip_x - waist, hip_y - 0.02), (hip_x + waist, hip_y - 0.02), (neck_x + wide, neck_y - 0.07),
            (neck_x + 0.75 * wide, neck_y - 0.015), (neck_x - 0.75 * wide, neck_y - 0.015),
            (neck_x - wide, neck_y - 0.07),
        ]  # fmt: skip
        if self.dress == 1:  # a skirt
            low = hip_y - 0.2
            shape = [(hip_x - 1.5 * waist, low), (hip_x + 1.5 * waist, low), *shape[2:]]
        out.flat(Ink.MAIN, shape, TORSO)
        if self.dress == 3:
            out.flat(Ink.THIRD, rectangle(hip_x - waist, hip_y, hip_x + waist, hip_y + 0.035), TORSO)
        head = neck_x + 0.2 * back, neck_y + self.head * 0.95
        self._head(out, head)
        for stroke in in_front:
            out.bone(*stroke[1:])
        return head

    def _face(self, head: Point) -> list[Point]:
        """Nose, eyes and ears, the left before the right."""
        solid = (0.8, -0.1, 0.0), (0.5, 0.08, 0.32), (0.5, 0.08, -0.32), (0.0, 0.0, 0.8), (0.0, 0.0, -0.8)
        cos, sin = math.cos(self.yaw) * self.head, math.sin(self.yaw) * self.head
        return [(head[0] + forward * cos + side * sin, head[1] + up * self.head) for forward, up, side in solid]

    def _head(self, out: Sketch, centre: tuple[float, float]) -> None:
        x, y = centre
        radius = self.head
        turned = math.cos(self.yaw)
        away = math.sin(self.yaw) < 0
        out.disc(Ink.SKIN, centre, 0.82 * radius, radius, part=HEAD)
        if self.hair == 1:
            out.disc(Ink.DARK, (x - 0.35 * radius * turned, y - 0.15 * radius), 0.75 * radius, 1.05 * radius, part=HEAD)
        if self.hair < 3:
            cap = [(x - 0.9 * radius, y + 0.1 * radius), (x - 0.7 * radius, y + 0.75 * radius), (x, y + 1.06 * radius),
                   (x + 0.7 * radius, y + 0.75 * radius), (x + 0.9 * radius, y + 0.1 * radius),
                   (x + 0.3 * radius, y + 0.5 * radius)]  # fmt: skip
            out.flat(Ink.DARK, cap, HEAD)
        if self.hair == 3:  # a hat
            out.disc(Ink.THIRD, (x, y + 0.75 * radius), 0.75 * radius, 0.45 * radius, part=HEAD)
            brim = x + 0.25 * radius * turned, y + 0.5 * radius
            out.disc(Ink.THIRD_DARK, brim, 1.15 * radius, 0.14 * radius, part=HEAD)
        if away:
            out.disc(Ink.DARK, (x, y + 0.15 * radius), 0.78 * radius, 0.85 * radius, part=HEAD)
        else:
            for side in (-0.32, 0.32):
                eye = side * math.sin(self.yaw) + 0.5 * turned
                if abs(eye) < 0.75:
                    out.disc(Ink.DARK, (x + eye * radius, y + 0.08 * radius), 0.1 * radius, 0.14 * radius, part=HEAD)


class Dog(Figure):
    """A four-legged animal, 1 long from nose to tail root; from dachshund to horse."""

    def __init__(self, chance: Chance) -> None:
        self.elevation = 0.1
        self.leg, self.stout = chance.style(0.22, 0.48), chance.style(0.085, 0.15)
        self.neck, self.snout = chance.style(0.1, 0.3), chance.style(0.1, 0.2)
        self.ear, self.tail = chance.integer(0, 3), chance.style(-0.5, 1.3)
        self.yaw, self.cadence = chance.uniform(-0.85, 0.85), chance.style(1.0, 2.0)
        self.gait, self.socks = chance.style(0.15, 0.7), chance.happens(0.4)

    def draw(self, out: Sketch, phase: float) -> None:
        beat = 2 * math.pi * self.cadence * phase
        height = self.leg + 0.8 * self.stout
        half = 0.62 * self.stout
        front, rear = (0.24, height, 0.0), (-0.3, height, 0.0)

        def legs(side: int) -> None:
            for at, shift in ((0.22, 0.0), (-0.28, math.pi)):
                swing = self.gait * math.sin(beat + shift + (0.6 if side > 0 else 0.0))
                top = (at, height - 0.02, side * half)
                knee = _swung(top, 0.55 * self.leg, swing)
                foot = _swung(knee, 0.5 * self.leg, swing - 0.4 * self.gait * (1 + math.cos(beat + shift)))
                ink = Ink.SECOND_DARK if side * out.depth((0, 0, 1)) > 0 else Ink.MAIN_DARK
                out.bone(ink, top, knee, 0.5 * self.stout, 0.045)
                out.bone(Ink.DARK if self.socks else ink, knee, foot, 0.042, 0.034)

        far = 1 if out.depth((0, 0, 1)) > 0 else -1
        legs(far)
        wag = self.tail + 0.25 * math.sin(2 * beat)
        tip = (-0.38 - 0.2 * math.cos(wag), height + 0.2 * math.sin(wag), 0.0)
        out.bone(Ink.MAIN_DARK, (-0.36, height + 0.3 * self.stout, 0.0), tip, 0.035, 0.02)
        legs(-far)
        out.bone(Ink.MAIN, rear, front, self.stout * 0.92, self.stout * 1.06)
        nod = 0.02 * math.sin(beat)
        head = (0.32 + 0.45 * self.neck, height + self.neck + 0.35 * self.stout + nod, 0.0)
        out.bone(Ink.MAIN, front, head, self.stout * 0.75, 0.07)
        nose = (head[0] + self.snout, head[1] - 0.045, 0.0)
        out.bone(Ink.MAIN_LIGHT, head, nose, 0.085, 0.045)
        x, y = out.see(head)
        if self.ear == 0:
            for side in (-0.05, 0.05):
                ear = out.see((head[0] - 0.03, head[1] + 0.05, side))
                tips = [(ear[0] - 0.04, ear[1]), (ear[0] + 0.04, ear[1]), (ear[0] - 0.015, ear[1] + 0.11)]
                out.flat(Ink.SECOND, tips)
        elif self.ear == 1:
            out.limb(Ink.SECOND, (x - 0.03, y + 0.05), (x - 0.06, y - 0.09), 0.035, 0.045)
        else:
            out.disc(Ink.SECOND, (x - 0.04, y + 0.08), 0.04, 0.05)
        tip_x, tip_y = out.see(nose)
        out.disc(Ink.DARK, (tip_x, tip_y + 0.01), 0.024, 0.022)
        out.disc(Ink.DARK, (x + 0.35 * (tip_x - x), y + 0.035), 0.014, 0.016)


class Bird(Figure):
    """1 long from beak to tail; flying or standing."""

    def __init__(self, chance: Chance) -> None:
        self.body, self.wing = chance.style(0.1, 0.19), chance.style(0.4, 0.75)
        self.neck, self.tail = chance.style(0.02, 0.2), chance.style(0.12, 0.3)
        self.beak, self.pitch = chance.style(0.06, 0.16), chance.uniform(-0.25, 0.35)
        self.cadence, self.stands, self.forked = chance.style(1.5, 3.0), chance.happens(0.3), chance.happens(0.5)

    def draw(self, out: Sketch, phase: float) -> None:
        beat = 2 * math.pi * self.cadence * phase
        tilt = 0.35 if self.stands else self.pitch
        cos, sin = math.cos(tilt), math.sin(tilt)
        lift = 0.42 if self.stands else 0.0

        def at(x: float, y: float) -> tuple[float, float]:
            return x * cos - y * sin, x * sin + y * cos + lift

        if self.stands:
            for shift in (0.0, math.pi):
                step = 0.06 * math.sin(beat + shift)
                top = at(-0.02, -0.05)
                out.limb(Ink.GLOW, top, (top[0] + step, 0.0), 0.022, 0.018)
                out.limb(Ink.GLOW, (top[0] + step - 0.02, 0.01), (top[0] + step + 0.07, 0.01), 0.016, 0.012)
        else:
            self._wing(out, at, math.sin(beat), Ink.SECOND_DARK, 0.07)
        fork = 0.05 if self.forked else 0.0
        tail = [at(-0.2, 0.04), at(-0.25 - self.tail, 0.07), at(-0.25 - self.tail + fork, 0.0),
                at(-0.25 - self.tail, -0.06), at(-0.2, -0.04)]  # fmt: skip
        out.flat(Ink.MAIN_DARK, tail)
        centre = at(-0.03, 0.0)
        out.disc(Ink.MAIN, centre, 0.27, self.body, tilt)
        head = at(0.24 + 0.3 * self.neck, 0.05 + self.neck)
        radius = 0.085
        out.limb(Ink.MAIN, at(0.14, 0.03), head, 0.75 * self.body, 0.8 * radius)
        x, y = head
        out.flat(Ink.GLOW, [(x + 0.04, y + 0.04), (x + 0.06 + self.beak, y - 0.015), (x + 0.04, y - 0.045)])
        out.disc(Ink.THIRD if self.forked else Ink.MAIN_LIGHT, head, radius, radius)
        out.disc(Ink.LIGHT, (x + 0.03, y + 0.02), 0.026, 0.026)
        out.disc(Ink.DARK, (x + 0.035, y + 0.02), 0.015, 0.015)
        if self.stands:
            out.flat(Ink.SECOND, [at(0.13, 0.05), at(-0.05, 0.09), at(-0.34, 0.0), at(-0.08, -0.07)])
        else:
            self._wing(out, at, math.sin(beat), Ink.SECOND, 0.0)

    def _wing(self, out: Sketch, at: Callable[[float, float], Point], stroke: float, ink: int, shift: float) -> None:
        reach = self.wing * (0.35 + 0.65 * abs(stroke)) * (1 if stroke >= 0 else -0.75)
        points = [at(0.12 + shift, 0.03), at(0.1 + shift, 0.55 * reach), at(-0.1 + shift, reach),
                  at(-0.2 + shift, 0.75 * reach), at(-0.16 + shift, 0.02)]  # fmt: skip
        out.flat(ink, points)
