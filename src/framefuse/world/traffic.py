"""Who is in the image, where, and when: tracks with analytic paths, admitted by a complexity schedule.

Places are in frame heights: x from the left edge, y from the top. Nothing here knows pixels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Protocol

from framefuse.world.chance import Chance, Split
from framefuse.world.living import Bird, Dog, Person
from framefuse.world.sketch import Paint, Sketch
from framefuse.world.things import Ball, Box, Cone, Decoy, Sign
from framefuse.world.vehicles import Bicycle, Bus, Car

NAMES = ("person", "car", "bus", "bicycle", "sign", "dog", "bird", "ball", "box", "cone")
MOVING = (0, 1, 2, 3, 5, 6, 7)
STANDING = (4, 8, 9)
DECOY = -1
UPRIGHT = {DECOY: 0.75, 0: 1.0, 4: 1.0, 5: 0.8, 6: 0.75, 7: 0.7, 8: 0.85, 9: 0.8}
"""Length of a figure's unit as a share of its track's size, by class; LONG for the others."""
COMPACT = {5: 0.9, 6: 0.95, 7: 0.7, 8: 0.85, 9: 0.95}
"""The same for calm objects: those that are narrow or have limbs are as large as the long ones, so that they cover as
much of the image."""
LONG = 1.15

CALM = 3
"""Objects of the calm scene: large ones that pass in file, at the pace of the scenery, never in each other's way."""
CALM_SIZES = 0.70, 0.80
"""Theirs, in frame heights: so large that half the resolution shows a detector about as much as all of it."""
ROOM = 0.55
"""Frame heights beside the image in which the file, and what stands on the ground, begins and ends."""
SMALLEST, LARGEST = 0.048, 0.36
"""Sizes of the other objects, in frame heights: evenly spread on a logarithmic scale."""
TINY, TINY_SHARE = 0.03, 0.06
"""A few are as small as this."""
CYCLE, SHORTEST = 40, 6
"""Seconds: of one round of calm, crowded, calm in a long world, and in one too short to show it all."""
KEPT = 1000
"""Tracks kept in memory; any can be drawn up again."""
SHUTTER = 0.5
"""Share of the frame time that the shutter is open."""


class Figure(Protocol):
    """A class's shape: fixed style, moved by a phase in seconds (or in its own lengths, where it rolls)."""

    def sketch(self, phase: float) -> Sketch: ...


FIGURES = (Person, Car, Bus, Bicycle, Sign, Dog, Bird, Ball, Box, Cone)


@dataclass(frozen=True)
class Place:
    """Where a track is at one moment."""

    x: float
    y: float
    size: float
    """Of the figure's unit, in frame heights."""


@dataclass(frozen=True)
class Track:
    """One object from where it enters to where it leaves."""

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
    """Frame heights from where it enters to where it leaves, to the right or, negative, to the left."""
    size: float
    """Of the figure's unit in the middle of its way, in frame heights."""
    growth: float
    """Logarithm of how much larger it is at the end than at the beginning: it comes nearer, or goes away."""
    baseline: float
    """Where it stands in the middle of its way, frame heights from the top; those with a lower one are behind."""
    hover: float
    """Height above the ground."""
    wobble: float
    """How unevenly it moves, below 1."""
    bounce: float
    """Height of its jumps."""
    rhythm: float
    """Its own clock's rate and start."""
    horizon: float

    @property
    def mirror(self) -> bool:
        return self.span < 0

    def place(self, seconds: float) -> Place:
        share = (seconds - self.begin) / self.duration
        eased = share + self.wobble * math.sin(4 * math.pi * share) / (4 * math.pi)
        growth = math.exp(self.growth * (share - 0.5))
        y = self.horizon + (self.baseline - self.horizon) * growth - self.hover
        if self.bounce:
            y -= self.bounce * abs(math.sin(math.pi * self.rhythm * seconds))
        elif self.hover:
            y += 0.15 * self.hover * math.sin(2 * math.pi * 0.4 * self.rhythm * seconds)
        return Place(self.start + self.span * eased, y, self.size * growth)

    def phase(self, seconds: float) -> float:
        """What drives its joints: seconds; for wheels the way rolled, in its own lengths."""
        if self.class_id in (1, 2, 3, 7):
            return abs(self.place(seconds).x - self.start) / self.size
        return seconds + self.rhythm


@dataclass
class Traffic:
    """All tracks of a street.

    Args:
        seconds: length of the world.
        aspect: width over height of the image.
        complexity: fixed value 0..1; None: calm, crowded, calm.
    """

    split: Split
    seed: int
    seconds: float
    aspect: float
    complexity: float | None = None
    _tracks: dict[tuple[int, int], Track] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        chance = Chance(self.split, f"street/{self.seed}")
        self.horizon = chance.style(0.28, 0.46)
        self.speed = chance.sign() * chance.uniform(0.1, 0.24)
        """Of the scenery past the camera, frame heights a second."""
        self.crowd = round(chance.style(24, 36))
        length = max(self.seconds, SHORTEST)
        self.period = length / max(1, round(length / CYCLE))
        rise = chance.style(0.16, 0.3)
        self._ramp = (
            rise,
            rise + chance.style(0.1, 0.2),
            0.62 + chance.style(0.0, 0.06),
            0.74 + chance.style(0.0, 0.14),
        )
        # In a short world things move faster, so that they can come and go as the schedule says.
        self._hurry = min(1.0, self.period / 20)
        self.speed /= self._hurry
        self._end = length
        self._pan = [(chance.uniform(0.0, 0.05), chance.uniform(0.05, 0.15), chance.unit()) for _ in range(2)]
        self._shake = chance.style(0.0, 0.006)
        self._slots = [self._slot(slot) for slot in range(self.crowd)]

    def _slot(self, number: int) -> tuple[bool, float, float]:
        """Whether its tracks stand on the ground, how long each lasts, and when the first began, in seconds."""
        chance = Chance(self.split, f"slot/{self.seed}/{number}")
        standing = chance.happens(0.3)
        passing = (self.aspect + 2 * ROOM) / abs(self.speed)
        if number < CALM:
            lead = Chance(self.split, f"file/{self.seed}").unit()
            return standing, passing, passing * (number + lead) / CALM
        duration = passing if standing else chance.uniform(4, 10) * self._hurry
        return standing, duration, chance.uniform(0, duration)

    def level(self, seconds: float) -> float:
        """Complexity that the schedule asks for at a moment, 0 calm .. 1 crowded."""
        if self.complexity is not None:
            return self.complexity
        at = (min(max(seconds, 0.0), self._end) / self.period) % 1
        a, b, c, d = self._ramp
        return smooth((at - a) / (b - a)) * (1 - smooth((at - c) / (d - c)))

    def complexity_of(self, tracks: list[Track]) -> float:
        """How much of the crowd is here, 0 calm .. 1 crowded. It follows the level as tracks come and go."""
        return min(1.0, max(0.0, (len(tracks) - CALM) / (self.crowd - CALM)))

    def camera(self, seconds: float) -> tuple[float, float]:
        """How far the camera has turned to the right and down, in frame heights."""
        turns = [reach * math.sin(2 * math.pi * (rate * seconds + start)) for reach, rate, start in self._pan]
        shake = [math.sin(2 * math.pi * (rate * seconds + 0.3)) for rate in (3.1, 4.7, 2.3, 5.9)]
        return turns[0] + self._shake * (shake[0] + shake[1]), 0.4 * turns[1] + self._shake * (shake[2] + shake[3])

    def present(self, seconds: float) -> list[Track]:
        """Tracks at a moment, those behind first."""
        found = [track for slot in range(self.crowd) if (track := self._at(slot, seconds)) is not None]
        found.sort(key=lambda track: (track.baseline, track.track_id))
        return found

    def _at(self, slot: int, seconds: float) -> Track | None:
        standing, duration, offset = self._slots[slot]
        number = math.floor((seconds + offset) / duration)
        begin = number * duration - offset
        middle = (max(begin, 0.0) + min(begin + duration, self._end)) / 2
        if CALM + (self.crowd - CALM) * self.level(middle) <= slot:
            return None
        key = slot, number
        if key not in self._tracks:
            if len(self._tracks) > KEPT:
                self._tracks.clear()
            self._tracks[key] = self._enter(slot, number, standing, begin, duration)
        return self._tracks[key]

    def _enter(self, slot: int, number: int, standing: bool, begin: float, duration: float) -> Track:
        chance = Chance(self.split, f"track/{self.seed}/{slot}/{number}")
        calm = slot < CALM
        decoy = chance.happens(0.12) and not calm
        class_id = DECOY if decoy else chance.pick(STANDING if standing else MOVING)
        low, high = (TINY, SMALLEST) if chance.happens(TINY_SHARE) else (SMALLEST, LARGEST)
        size = chance.uniform(*CALM_SIZES) if calm else low * (high / low) ** chance.unit()
        size *= (COMPACT if calm else UPRIGHT).get(class_id, LONG)
        near = min(1.0, max(0.03, 0.75 * (size / 0.5) ** 0.6 + chance.uniform(-0.15, 0.4)))
        baseline = self.horizon + 0.02 + (0.95 - self.horizon) * near
        margin = 0.6 * size + 0.1
        away = self.aspect + 2 * margin
        steady = standing or calm
        if steady:
            start, span = -ROOM, self.aspect + 2 * ROOM
            if self.speed > 0:
                start, span = self.aspect + ROOM, -span
        else:
            start, span = (-margin, away) if chance.happens(0.5) else (self.aspect + margin, -away)
        flies = class_id == 6
        figure = Decoy.draw_lots(chance) if class_id == DECOY else FIGURES[class_id].draw_lots(chance)
        if isinstance(figure, Bird) and figure.stands:
            flies = False
        return Track(
            track_id=1 + number * self.crowd + slot,
            class_id=class_id,
            figure=figure,
            paint=Paint(self.split, chance),
            begin=begin,
            duration=duration,
            start=start,
            span=span,
            size=size,
            growth=0.0 if steady else chance.uniform(-0.35, 0.35),
            baseline=baseline,
            hover=chance.uniform(0.1, 0.7) * baseline if flies or (class_id == DECOY and chance.happens(0.5)) else 0.0,
            wobble=0.0 if steady else chance.uniform(-0.8, 0.8),
            bounce=chance.uniform(0.1, 0.9) * size if class_id == 7 and not calm and chance.happens(0.5) else 0.0,
            rhythm=chance.uniform(0.7, 1.6),
            horizon=self.horizon,
        )


def smooth(share: float) -> float:
    """0 below 0, 1 above 1, and smooth between."""
    share = min(1.0, max(0.0, share))
    return share * share * (3 - 2 * share)
