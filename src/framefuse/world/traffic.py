"""The scenes: which objects are in the image, where, and when: tracks with analytic paths, admitted by a complexity
schedule. Traffic is the scene "street"; People is "bodies", people close to a stereo camera, for body segmentation.

Positions are in frame heights: x from the left edge, y from the top. A camera that is `far` times as far away sees
`far` of these heights. Nothing here depends on pixels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from operator import attrgetter
from typing import Any, ClassVar

from framefuse.world.address import WorldSpec
from framefuse.world.chance import Chance
from framefuse.world.living import Bird, Dog, Person
from framefuse.world.sketch import Figure, Paint
from framefuse.world.things import Ball, Bicycle, Box, Bus, Car, Cone, Decoy, Sign

NAMES = ("person", "car", "bus", "bicycle", "sign", "dog", "bird", "ball", "box", "cone")
MOVING = (0, 1, 2, 3, 5, 6, 7)
STANDING = (4, 8, 9)
DECOY = -1
UPRIGHT = {DECOY: 0.75, 0: 1.0, 4: 1.0, 5: 0.8, 6: 0.75, 7: 0.7, 8: 0.85, 9: 0.8}
"""Length of a figure's unit relative to its track's size, by class; LONG for the others."""
COMPACT = {5: 0.9, 6: 0.95, 7: 0.7, 8: 0.85, 9: 0.95}
"""The same for calm objects. Narrow figures and those with limbs are as large as long ones, so that they cover as much
of the image."""
LONG = 1.15

CALM = 3
"""Objects in the calm scene: large, passing one after the other at the speed of the background, without occlusion."""
CALM_SIZES = 0.70, 0.80
"""Their sizes in frame heights, so large that a detector finds them about as well at half the resolution."""
ENTRY_MARGIN = 0.55
"""Distance from the image, in frame heights, at which calm and standing objects enter and leave."""
SMALLEST, LARGEST = 0.048, 0.36
"""Sizes of the other objects, in frame heights, uniform on a logarithmic scale."""
TINY, TINY_SHARE = 0.03, 0.06
"""Minimum size of a small share of objects, and that share."""
CYCLE, SHORTEST = 40, 6
"""Seconds of one cycle of calm, crowded, calm: in a long world, and the minimum."""
BURST, LULL = 0.1, 0.1
"""Of the schedule "day": share of a cycle in which the scene is crowded, and its level for a while after that."""
KEPT = 1000
"""Maximum number of cached tracks; any track can be created again."""
SHUTTER = 0.5
"""Exposure time as a share of the frame time."""

CROWD = 4
"""People in the scene "bodies"."""
DISPARITY = 0.035
"""Disparity of a person as tall as the image, in image heights; proportional to the apparent size, as nearness is."""
FAR = 0.004
"""Disparity of the backdrop, in image heights."""


FIGURES = (Person, Car, Bus, Bicycle, Sign, Dog, Bird, Ball, Box, Cone)


@dataclass(frozen=True)
class Track:
    """One object from entry to exit."""

    track_id: int
    class_id: int
    """-1: a decoy."""
    figure: Figure
    paint: Paint
    begin: float
    """Seconds at which it enters; it may lie before the start of the world."""
    duration: float
    start: float
    span: float
    """Frame heights from entry to exit: to the right, or to the left if negative."""
    size: float
    """Size of the figure's unit at the middle of its path, in frame heights."""
    baseline: float
    """y of its foot at the middle of its path, in frame heights; a smaller one is farther back."""
    rhythm: float
    """Rate and offset of its own clock."""
    wobble: float
    """Unevenness of its motion, below 1."""
    growth: float = 0.0
    """Logarithm of its final over its initial size: positive if it approaches, negative if it recedes."""
    hover: float = 0.0
    """Height above the ground."""
    bounce: float = 0.0
    """Height of its jumps."""
    horizon: float = 0.0

    def place(self, seconds: float) -> tuple[float, float, float]:
        """x, y and the size of the figure's unit at a time, in frame heights."""
        share = (seconds - self.begin) / self.duration
        eased = share + self.wobble * math.sin(4 * math.pi * share) / (4 * math.pi)
        growth = math.exp(self.growth * (share - 0.5))
        y = self.horizon + (self.baseline - self.horizon) * growth - self.hover
        if self.bounce:
            y -= self.bounce * abs(math.sin(math.pi * self.rhythm * seconds))
        elif self.hover:
            y += 0.15 * self.hover * math.sin(2 * math.pi * 0.4 * self.rhythm * seconds)
        return self.start + self.span * eased, y, self.size * growth

    def phase(self, seconds: float) -> float:
        """The phase that animates it: seconds; for rolling objects the distance in their own lengths."""
        if self.class_id in (1, 2, 3, 7):
            return abs(self.place(seconds)[0] - self.start) / self.size
        return seconds + self.rhythm


class Scene:
    """All tracks of a scene. `width` is what the camera sees, in frame heights."""

    calm: ClassVar[int]
    """Tracks of the calm scene."""
    order: ClassVar[attrgetter[Any]]
    """What tracks are sorted by, back to front."""
    crowd: int
    """Tracks that are present at most, each in a slot of its own, in which one follows another."""

    def __init__(self, world: WorldSpec, width: float) -> None:
        self.world, self.width = world, width
        self._track = lru_cache(KEPT)(self._enter)
        self._fewest, self._end = self.calm, world.seconds
        self._slots: list[tuple[float, float, bool]] = []
        """Of each slot: duration of its tracks, time since the first began, in seconds; whether they stand."""
        self._sway: list[tuple[float, float, float]] = []
        """Of the camera, to the right and down: reach, rate and offset."""

    def complexity_of(self, tracks: list[Track]) -> float:
        """Share of the crowd that is present, 0 calm .. 1 crowded. It follows the schedule as tracks come and go."""
        return min(1.0, max(0.0, (len(tracks) - self.calm) / (self.crowd - self.calm)))

    def present(self, seconds: float) -> list[Track]:
        """Tracks at a time, back to front."""
        found = []
        for slot, (duration, offset, _) in enumerate(self._slots):
            number = math.floor((seconds + offset) / duration)
            begin = number * duration - offset
            middle = (max(begin, 0.0) + min(begin + duration, self._end)) / 2
            level = self._scheduled(middle) if self.world.complexity is None else self.world.complexity
            if self._fewest + (self.crowd - self._fewest) * level > slot:
                found.append(self._track(slot, number, begin, duration))
        return sorted(found, key=self.order)

    def camera(self, seconds: float) -> tuple[float, float]:
        """Displacement of the camera to the right and down, in frame heights."""
        x, y = (reach * math.sin(2 * math.pi * (rate * seconds + start)) for reach, rate, start in self._sway)
        return x, y

    def _scheduled(self, seconds: float) -> float:
        """Scheduled complexity at a time, 0 calm .. 1 crowded."""
        raise NotImplementedError

    def _enter(self, slot: int, number: int, begin: float, duration: float) -> Track:
        raise NotImplementedError

    def _path(self, margin: float, rightward: bool) -> dict[str, float]:
        """`start` and `span` of a track that enters and leaves at this distance from the image."""
        away = self.width + 2 * margin
        return {"start": -margin, "span": away} if rightward else {"start": self.width + margin, "span": -away}


class Traffic(Scene):
    """The scene "street"."""

    calm = CALM
    order = attrgetter("baseline", "track_id")

    def __init__(self, world: WorldSpec, width: float) -> None:
        super().__init__(world, width)
        chance = Chance(world.split, f"street/{world.seed}")
        self.horizon = chance.style(0.28, 0.46) * world.far
        self.speed = chance.sign() * chance.uniform(0.1, 0.24)
        """Speed of the background past the camera, in frame heights per second."""
        self.crowd = round(chance.style(24, 36) * world.density)
        length = max(world.seconds, SHORTEST)
        self.period = length / max(1, round(length / CYCLE))
        rise = chance.style(0.16, 0.3)
        full, falling = rise + chance.style(0.1, 0.2), 0.62 + chance.style(0.0, 0.06)
        self._ramp = rise, full, falling, 0.74 + chance.style(0.0, 0.14)
        # In a short world objects move faster, so that they can come and go on schedule.
        self._hurry = min(1.0, self.period / 20) / world.pace
        self._day = world.schedule == "day"
        self.speed = 0.0 if self._day else self.speed / min(1.0, self._hurry * world.pace)
        self._end, self._fewest = length, 0 if self._day else CALM
        self._bursts = [chance.uniform(0.1, 0.6) for _ in range(round(length / self.period) if self._day else 0)]
        self._sway = [(chance.uniform(0.0, 0.05), chance.uniform(0.05, 0.15), chance.unit()) for _ in range(2)]
        self._shake = chance.style(0.0, 0.006)
        self._slots = [self._slot(slot) for slot in range(self.crowd)]

    def _slot(self, number: int) -> tuple[float, float, bool]:
        chance = Chance(self.world.split, f"slot/{self.world.seed}/{number}")
        standing = chance.happens(0.3) and not self._day
        passing = (self.width + 2 * ENTRY_MARGIN) / abs(self.speed) if self.speed else math.inf
        if number < CALM and not self._day:
            lead = Chance(self.world.split, f"file/{self.world.seed}").unit()
            return passing, passing * (number + lead) / CALM, standing
        duration = passing if standing else chance.uniform(4, 10) * self.world.far * self._hurry
        return duration, chance.uniform(0, duration), standing

    def _scheduled(self, seconds: float) -> float:
        number, at = divmod(min(max(seconds, 0.0), self._end) / self.period, 1)
        if self._day:
            since = at - self._bursts[min(int(number), len(self._bursts) - 1)]
            return LULL if BURST <= since < BURST + 0.1 else float(0 <= since < BURST)
        a, b, c, d = self._ramp
        return smooth((at - a) / (b - a)) * (1 - smooth((at - c) / (d - c)))

    def camera(self, seconds: float) -> tuple[float, float]:
        if self._day:
            return 0.0, 0.0
        x, y = super().camera(seconds)
        shake = [math.sin(2 * math.pi * (rate * seconds + 0.3)) for rate in (3.1, 4.7, 2.3, 5.9)]
        return x + self._shake * (shake[0] + shake[1]), 0.4 * y + self._shake * (shake[2] + shake[3])

    def _enter(self, slot: int, number: int, begin: float, duration: float) -> Track:
        standing = self._slots[slot][2]
        chance = Chance(self.world.split, f"track/{self.world.seed}/{slot}/{number}")
        calm = slot < CALM and not self._day
        decoy = chance.happens(0.12) and not calm
        class_id = DECOY if decoy else chance.pick(STANDING if standing else MOVING)
        low, high = (TINY, SMALLEST) if chance.happens(TINY_SHARE) else (SMALLEST, LARGEST)
        size = chance.uniform(*CALM_SIZES) if calm else low * (high / low) ** chance.unit()
        size *= (COMPACT if calm else UPRIGHT).get(class_id, LONG)
        near = min(1.0, max(0.03, 0.75 * (size / 0.5) ** 0.6 + chance.uniform(-0.15, 0.4)))
        baseline = self.horizon + 0.02 + (0.95 * self.world.far - self.horizon) * near
        steady = standing or calm
        margin = ENTRY_MARGIN if steady else 0.6 * size + 0.1
        rightward = self.speed <= 0 if steady else chance.happens(0.5)
        figure = Decoy(chance) if class_id == DECOY else FIGURES[class_id](chance)
        flies = isinstance(figure, Bird) and not figure.stands
        return Track(
            track_id=1 + number * self.crowd + slot,
            class_id=class_id,
            figure=figure,
            paint=Paint(self.world.split, chance),
            begin=begin,
            duration=duration,
            **self._path(margin, rightward),
            size=size,
            growth=0.0 if steady else chance.uniform(-0.35, 0.35),
            baseline=baseline,
            hover=chance.uniform(0.1, 0.7) * baseline if flies or (class_id == DECOY and chance.happens(0.5)) else 0.0,
            wobble=0.0 if steady else chance.uniform(-0.8, 0.8),
            bounce=chance.uniform(0.1, 0.9) * size if class_id == 7 and not calm and chance.happens(0.5) else 0.0,
            rhythm=chance.uniform(0.7, 1.6),
            horizon=self.horizon,
        )


class People(Scene):
    """The scene "bodies"."""

    calm = 1
    order = attrgetter("size", "track_id")

    def __init__(self, world: WorldSpec, width: float) -> None:
        super().__init__(world, width)
        chance = Chance(world.split, f"bodies/{world.seed}")
        self.horizon = chance.style(0.3, 0.6)
        self.speed = chance.sign() * chance.uniform(0.0, 0.04)
        self.crowd = CROWD
        self._rise, self._fall = chance.style(0.15, 0.35), chance.style(0.6, 0.85)
        self._sway = [(chance.uniform(0.0, 0.02), chance.uniform(0.1, 0.3), chance.unit()) for _ in range(2)]
        self._slots = [(duration := chance.uniform(8, 14), chance.uniform(0, duration), False) for _ in range(CROWD)]

    def _scheduled(self, seconds: float) -> float:
        at = min(max(seconds / self.world.seconds, 0.0), 1.0)
        return smooth((at - self._rise + 0.1) / 0.2) * (1 - smooth((at - self._fall + 0.1) / 0.2))

    def _enter(self, slot: int, number: int, begin: float, duration: float) -> Track:
        chance = Chance(self.world.split, f"body/{self.world.seed}/{slot}/{number}")
        size = chance.uniform(0.95, 1.8) if slot == 0 else chance.uniform(0.7, 1.3)
        path = self._path(0.35 * size, rightward=chance.happens(0.5))
        figure, paint = Person(chance, facing=True), Paint(self.world.split, chance)
        path["baseline"] = max(0.9, 0.04 + size * chance.uniform(0.93, 1.02))
        path |= {"wobble": chance.uniform(0.6, 0.95), "rhythm": chance.uniform(0.7, 1.6)}
        return Track(1 + number * CROWD + slot, 0, figure, paint, begin, duration, size=size, **path)


def smooth(share: float) -> float:
    """Smoothstep: 0 below 0, 1 above 1, 3 s^2 - 2 s^3 between."""
    share = min(1.0, max(0.0, share))
    return share * share * (3 - 2 * share)
