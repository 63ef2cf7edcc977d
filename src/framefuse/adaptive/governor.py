"""Governor: which frames of a source are inferred, and by which rung. Pure: it counts frames, and nothing waits.

A block of frames is bounded by two that are inferred. `split` looks at both and either names a frame between them,
which halves the block, or accepts it; then the frames between are interpolated. What a block would lose is compared
with what its middle costs, at a price that follows the agreement asked for: where many objects move or appear, blocks
get short, and in an empty scene they keep their full length.

Each frame that halves a block shows how wrong the guess about it would have been, which corrects what is expected of
later blocks. `audit` names a frame of an accepted block for the best rung to look at. If it finds something that nobody
expected, no frame is skipped for a while.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from random import Random

from framefuse.adaptive.interpolation import Bridge, disagreement
from framefuse.adaptive.ladder import Ladder
from framefuse.prediction import Detections

MEMORY = 300
"""Frames over which agreement and cost are averaged."""
AUDITS = 0.02
"""Share of the compute that audits may take."""
RATE = 0.01
"""Change of the price a frame, as a share, where the agreement is off by all of its tolerance."""
CHEAPEST, DEAREST = 0.3, 300.0
"""Bounds of the price: frames of the best rung that one lost object, as a share of all in its frame, is worth."""
LEARNING, FLOOR = 0.05, 0.01
"""How much one frame changes what is expected of later ones; added to both sides, so that tiny losses do not count."""
SURPRISE = 1.0
"""Objects, beyond those expected, by which an audit must differ to stop skipping."""
HOLD, LONGEST_HOLD = 150, 2400
"""Frames for which nothing is skipped then; doubled each time it happens again."""
DWELL = 60
"""Frames that a rung stays, unless a limit is exceeded."""


@dataclass(frozen=True)
class Limits:
    """What the governor keeps to.

    Attributes:
        agreement: least agreement with the best rung on every frame: the share of its objects, weighted by confidence,
            that are found as it finds them.
        ahead: longest block, in frames; 1: every frame is inferred.
        budget: seconds of inference that a frame may take on average; 0: without limit. It comes before `agreement`.
    """

    agreement: float = 0.97
    ahead: int = 16
    budget: float = 0.0


class Governor:
    """Decides for one source. Frames are given by their distance from others, so that it needs no clock.

    Attributes:
        rung: number in the ladder of the rung for the next block; 0 is the best.
        audits: frames that were audited.
        why: reason of the last decision.
    """

    def __init__(self, ladder: Ladder, limits: Limits, *, seed: int = 0) -> None:
        self._ladder, self._limits = ladder, limits
        self._random = Random(seed)
        self._price = 10.0
        self._lost = self._seen = 0.0
        """Objects expected to be lost, and all, lately."""
        self._spent, self._frames = 0.0, 1e-9
        """Cost of what was inferred, in frames of the best rung, and the frames that it stood for, lately."""
        self._total, self.audits = 0.0, 0
        self._expected = self._observed = 0.1
        """Losses of audited frames; their ratio corrects what `Ladder.expect` says."""
        self._losses = [rung.loss for rung in ladder.rungs]
        self._hold, self._next_hold, self._dwell = 0, HOLD, 0
        self.rung, self.why = 0, "start"

    @property
    def agreement(self) -> float:
        """Expected agreement with the best rung lately, as far as audits bear it out."""
        return 1 - self._lost / self._seen if self._seen > 0 else 1.0

    @property
    def ahead(self) -> int:
        """Distance from the end of a block to that of the next one."""
        return 1 if self._hold > 0 else self._limits.ahead

    def inferred(self, rung: int) -> None:
        """Count a frame that was inferred."""
        cost = self._ladder.cost(rung)
        self._spent, self._total = self._spent + cost, self._total + cost

    def split(self, bridge: Bridge) -> int | None:
        """The frame to infer next, by its distance from the first end; None: the block is accepted."""
        gap, cost = bridge.gap, self._ladder.cost(self.rung)
        loss = self._ladder.expect(bridge.signs) * self._observed / self._expected
        if gap > 1 and (self._hold > 0 or loss * (gap - 1) * self._price > cost):
            return gap // 2
        self.why = f"{gap} frames alike" if gap > 1 else "every frame counts"
        if self._hold > 0:
            self.why = "an audit found too much"
        self._accept(bridge, loss)
        return None

    def audit(self, bridge: Bridge) -> int | None:
        """A frame of an accepted block for the best rung to look at, by its distance; None: none is due."""
        if bridge.gap < 2 or (self.audits + 1) > AUDITS * (self._total + 1):
            return None
        self.audits += 1
        return self._random.randrange(1, bridge.gap)

    def compare(self, bridge: Bridge, step: int, found: Detections, *, audit: bool) -> None:
        """Learn from a frame of a block: what it shows, and what was expected of it."""
        expected = self._ladder.expect(bridge.signs) * (1 + bridge.objects)
        observed = disagreement(found, bridge.at(step, 0.0))
        self._expected += LEARNING * (expected / (1 + bridge.objects) + FLOOR - self._expected)
        self._observed += LEARNING * (observed / (1 + bridge.objects) + FLOOR - self._observed)
        if audit and observed > 3 * expected + SURPRISE:
            self._hold, self._next_hold = self._next_hold, min(LONGEST_HOLD, 2 * self._next_hold)

    def compare_rung(self, rung: int, best: Detections, found: Detections) -> None:
        """Learn from a frame that both the best rung and another one have seen."""
        loss = disagreement(best, found) / (1 + float(best.confidence.sum()))
        self._losses[rung] = 0.7 * self._losses[rung] + 0.3 * loss
        if loss > 2 * self._ladder.rungs[rung].loss + 0.2:
            self._losses[rung], self._dwell = max(loss, self._losses[rung]), 0

    def late(self) -> None:
        """A limit of time is exceeded: go down one rung at once, and take no more care than necessary."""
        self.rung = min(self.rung + 1, len(self._ladder.rungs) - 1)
        self._dwell, self._price = DWELL, max(CHEAPEST, self._price / 2)
        self.why = "too late"

    def _accept(self, bridge: Bridge, loss: float) -> None:
        gap, limits = bridge.gap, self._limits
        fade = math.exp(-gap / MEMORY)
        rate = self._losses[self.rung] * gap + loss * (gap - 1)
        self._lost = fade * self._lost + rate * (1 + bridge.objects)
        self._seen = fade * self._seen + (1 + bridge.objects) * gap
        self._spent, self._frames = fade * self._spent, fade * self._frames + gap
        self._hold, self._dwell = max(0, self._hold - gap), max(0, self._dwell - gap)
        if not self._hold and self._observed <= 2 * self._expected:
            self._next_hold = max(HOLD, self._next_hold - gap)
        off = (1 - self.agreement) / max(1e-3, 1 - limits.agreement) - 1
        share = self._spent / self._frames
        if limits.budget and share * self._ladder.rungs[0].seconds > limits.budget:
            off = -1.0
        self._price = min(DEAREST, max(CHEAPEST, self._price * math.exp(RATE * gap * min(1.0, max(-1.0, off)))))
        if not self._dwell:
            self._choose(share / self._ladder.cost(self.rung))

    def _choose(self, share: float) -> None:
        """The rung whose cost, for the share of frames that is inferred, and losses are least."""
        totals = [self._ladder.cost(number) * share + self._price * loss for number, loss in enumerate(self._losses)]
        best = min(range(len(totals)), key=totals.__getitem__)
        if best != self.rung and totals[best] < 0.9 * totals[self.rung]:
            self.rung, self._dwell = best, DWELL
