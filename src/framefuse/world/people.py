"""The scene "bodies": people close to a stereo camera, for body segmentation."""

from __future__ import annotations

import math
from operator import attrgetter

from framefuse.world.chance import Chance
from framefuse.world.living import Person
from framefuse.world.sketch import Paint
from framefuse.world.traffic import Scene, Track, smooth

CROWD = 4
DISPARITY = 0.035
"""Disparity of a person as tall as the image, in image heights; proportional to the apparent size, as nearness is."""
FAR = 0.004
"""Disparity of the backdrop, in image heights."""


class People(Scene):
    """The scene "bodies"."""

    calm = 1
    order = attrgetter("size", "track_id")

    def __post_init__(self) -> None:
        super().__post_init__()
        chance = Chance(self.split, f"bodies/{self.seed}")
        self.horizon = chance.style(0.3, 0.6)
        self.speed = chance.sign() * chance.uniform(0.0, 0.04)
        self.crowd = CROWD
        self._rise, self._fall = chance.style(0.15, 0.35), chance.style(0.6, 0.85)
        self._sway = [(chance.uniform(0.0, 0.02), chance.uniform(0.1, 0.3), chance.unit()) for _ in range(2)]
        self._slots = [(duration := chance.uniform(8, 14), chance.uniform(0, duration), False) for _ in range(CROWD)]

    def _scheduled(self, seconds: float) -> float:
        at = min(max(seconds / self.seconds, 0.0), 1.0)
        return smooth((at - self._rise + 0.1) / 0.2) * (1 - smooth((at - self._fall + 0.1) / 0.2))

    def camera(self, seconds: float) -> tuple[float, float]:
        x, y = (reach * math.sin(2 * math.pi * (rate * seconds + start)) for reach, rate, start in self._sway)
        return x, y

    def _enter(self, slot: int, number: int, begin: float, duration: float) -> Track:
        chance = Chance(self.split, f"body/{self.seed}/{slot}/{number}")
        size = chance.uniform(0.95, 1.8) if slot == 0 else chance.uniform(0.7, 1.3)
        path = self._path(0.35 * size, rightward=chance.happens(0.5))
        figure, paint = Person(chance, facing=True), Paint(self.split, chance)
        path["baseline"] = max(0.9, 0.04 + size * chance.uniform(0.93, 1.02))
        path |= {"wobble": chance.uniform(0.6, 0.95), "rhythm": chance.uniform(0.7, 1.6)}
        still = dict.fromkeys(("growth", "hover", "bounce", "horizon"), 0.0)
        own = 1 + number * CROWD + slot
        return Track(own, 0, figure, paint, begin, duration, size=size, **path, **still)
