"""Governor: which frames of a source the model sees. Pure: it counts frames, and nothing waits.

A block of frames is bounded by two that are inferred. `split` looks at both and either names a frame between them,
which halves the block, or accepts it; then the frames between are interpolated. What a block would lose is compared
with what its middle costs, at a price that follows the agreement asked for: where many objects move or appear, blocks
get short, and in an empty scene they keep their full length.

Each frame that halves a block shows how wrong the guess about it would have been, which corrects what is expected of
later blocks. `audit` names a frame of an accepted block to be inferred all the same. If it finds something that nobody
expected, no frame is skipped for a while.
"""

import math
from dataclasses import dataclass
from random import Random

import numpy as np

from framefuse.adaptive.interpolation import Bridge, disagreement
from framefuse.prediction import Detections

EXPECTED = np.array((-0.009, 0.751, 0.376, 0.27, 0.013, 0.061))
"""Loss of a frame between two others, as a share of its objects, by `Bridge.signs`: `benchmarks.predictors`."""
MEMORY = 300
"""Frames over which agreement and compute are averaged."""
AUDITS = 0.02
"""Share of the compute that audits may take."""
START = 0.25
"""The first price, times the tolerance."""
RATE = 0.003
"""Change of the price a frame, as a share, where the agreement is off by all of its tolerance."""
HASTE = 0.05
"""Change of the price of a budget a frame, as a share, where twice as much is inferred as allowed, or nothing."""
CREDIT = 3.0
"""How far the price falls below the first one where little is lost, so that a calm scene pays little for a crowd."""
CHEAPEST, DEAREST = 0.3, 300.0
"""Bounds of the price: how many looks a frame's objects, all lost, are worth."""
LEARNING, FLOOR = 0.1, 0.01
"""How much one frame changes what is expected of later ones; added to both sides, so that tiny losses do not count."""
SAMPLED = 5
"""One in so many of the frames that halve a block is compared with the guess about it."""
SURPRISE = 1.0
"""Objects, beyond three times those expected, by which an audit must differ to stop skipping."""
HOLD, LONGEST_HOLD = 150, 2400
"""Frames for which nothing is skipped then; doubled each time it happens again."""


@dataclass(frozen=True)
class Limits:
    """What the governor keeps to."""

    agreement: float = 0.96
    """Least share of the objects, weighted by confidence, that are found as inferring every frame would find them."""
    ahead: int = 16
    """Longest block, in frames; 1: every frame is inferred."""


class Budget:
    """Compute that the governors of all streams share: one price, so that a look goes to the stream that loses most
    without it.

    Args:
        share: most frames to infer, of all of them; comes before the agreement.

    Attributes:
        price: the highest that any of them may pay.
        governors: of the streams that run.
    """

    def __init__(self, share: float = 1.0) -> None:
        self.share, self.price = share, DEAREST
        self.governors: list[Governor] = []
        self._looks, self._frames = 0.0, 1e-9
        """Frames that were inferred, and all, lately."""

    def looked(self) -> None:
        """Count a frame that is inferred."""
        self._looks += 1

    def passed(self, frames: int) -> None:
        """Count frames of one stream whose results are known."""
        step = frames / max(1, len(self.governors))
        fade = math.exp(-step / MEMORY)
        self._looks, self._frames = fade * self._looks, fade * self._frames + frames
        highest = max((governor.price for governor in self.governors), default=DEAREST)
        over = self._looks / (self.share * self._frames) - 1
        price = min(highest, self.price) * math.exp(-HASTE * step * max(-1.0, min(1.0, over)))
        self.price = max(CHEAPEST, price if over > 0 else max(price, self.price))


class Governor:
    """Decides for one source.

    Args:
        budget: shared with other streams; None: no limit.

    Attributes:
        audits: frames that were audited.
        price: what a look may cost for the agreement that is asked for.
        why: reason of the last decision about a block.
    """

    def __init__(self, limits: Limits, *, budget: Budget | None = None, seed: int = 0) -> None:
        self._limits, self._budget, self._random = limits, budget or Budget(), Random(seed)
        self._budget.governors.append(self)
        self._first = self.price = min(DEAREST, START / (1 - limits.agreement + 1e-3))
        self._lost = self._seen = 0.0
        """Objects expected to be lost, and all, lately."""
        self._inferred = self._compared = self.audits = 0
        self._expected = self._observed = 0.1
        """Losses of frames that were looked at, lately; their ratio corrects EXPECTED."""
        self._hold, self._next_hold = 0, HOLD
        self._ahead = limits.ahead
        self.why = ""

    @property
    def agreement(self) -> float:
        """Expected lately, as far as the frames that were looked at bear it out."""
        return 1 - self._lost / self._seen if self._seen > 0 else 1.0

    @property
    def ahead(self) -> int:
        """Distance from the end of a block to that of the next one: a scene that changes gets short blocks at once."""
        return 1 if self._hold > 0 else min(self._ahead, self._limits.ahead)

    def looked(self) -> None:
        """Count a frame that is inferred."""
        self._budget.looked()
        self._inferred += 1

    def split(self, bridge: Bridge) -> int | None:
        """The frame to infer next, by its distance from the first end; None: the block is accepted."""
        gap = bridge.gap
        loss = _expected(bridge) * self._observed / self._expected if gap > 1 else 0.0
        if gap > 1 and (self._hold > 0 or loss * (gap - 1) * min(self.price, self._budget.price) > 1):
            return gap // 2
        self.why = f"{gap} frames alike" if gap > 1 else "every frame counts"
        if self._hold > 0:
            self.why = "an audit found too much"
        self._accept(bridge, loss)
        return None

    def audit(self, bridge: Bridge) -> int | None:
        """A frame of an accepted block to be inferred all the same, by its distance; None: none is due."""
        if bridge.gap < 2 or self.audits + 1 > AUDITS * (self._inferred + 1):
            return None
        self.audits += 1
        return self._random.randrange(1, bridge.gap)

    def compare(self, bridge: Bridge, step: int, found: Detections, *, audit: bool) -> None:
        """Learn from a frame of a block: what it shows, and what was expected of it. One in SAMPLED is enough, except
        for audits."""
        self._compared += 1
        if not audit and self._compared % SAMPLED:
            return
        objects = 1 + bridge.objects
        expected, observed = _expected(bridge), disagreement(found, bridge.at(step, 0.0)) / objects
        self._expected += LEARNING * (expected + FLOOR - self._expected)
        self._observed += LEARNING * (observed + FLOOR - self._observed)
        if audit and (observed - 3 * expected) * objects > SURPRISE:
            self._hold, self._next_hold = self._next_hold, min(LONGEST_HOLD, 2 * self._next_hold)

    def late(self) -> None:
        """A frame came too late, or the device is over its power: infer fewer."""
        self.price = max(CHEAPEST, self.price / 2)

    def end(self) -> None:
        """The stream has ended."""
        self._budget.governors.remove(self)

    def _accept(self, bridge: Bridge, loss: float) -> None:
        gap, limits, objects = bridge.gap, self._limits, 1 + bridge.objects
        fade, self._ahead = math.exp(-gap / MEMORY), 2 * gap
        self._lost = fade * self._lost + loss * (gap - 1) * objects
        self._seen = fade * self._seen + gap * objects
        if self._hold:
            self._hold = max(0, self._hold - gap)
        else:
            self._next_hold = max(HOLD, self._next_hold - gap)
        off = min(1.0, (1 - self.agreement) / max(1e-3, 1 - limits.agreement) - 1)
        if self._budget.price < self.price:
            off = min(0.0, off)  # a higher one would buy nothing
        least = min(self._first / CREDIT, self.price)
        self.price = max(least, min(DEAREST, self.price * math.exp(RATE * gap * off)))
        self._budget.passed(gap)


def _expected(bridge: Bridge) -> float:
    """Loss of a frame of a block as a share of its objects; at most all of them, and as many boxes on nothing."""
    return min(1.5, max(0.0, float(bridge.signs @ EXPECTED)))
