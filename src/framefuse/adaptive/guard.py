"""Guard: which rung of a ladder runs, so that the limits hold. Pure: the clock is passed in.

Skipping frames saves more than a smaller model does, so the best rung runs wherever it can. One rung down at once if
results come too late, or the device is over its power or too hot; one up again after a while without, and twice as
long each time that does not last. Between two switches lie at least DWELL seconds.

Now and then the best rung looks in place of the one that runs. If it sees what the other does not, that one is banned
for a while: a limit is missed rather than the scene.
"""

from collections import deque
from collections.abc import Callable, Sequence
from time import monotonic

DWELL = 1.0
"""Seconds between two switches, at least."""
CALM, LONGEST_CALM = 4.0, 64.0
"""Seconds within the limits before a better rung is tried; doubled each time it does not last."""
ROOM = 0.8
"""Share of the latency limit that may be used where a better rung is tried, with the time it takes at present."""
ENOUGH, WINDOW = 8, 64
"""Results after a switch before it is judged, and the most that are looked at."""
AUDITS = 0.02
"""Share of the compute that audits may take."""
BLIND = 0.5
"""Share of what the best rung sees that a rung has to see."""
LEAST = 0.5
"""Objects, weighted by confidence, that it must miss to count as blind."""
BAN = 60.0
"""Seconds for which a blind rung is banned; doubled each time."""


class Guard:
    """Decides for all streams of a run.

    Args:
        costs: seconds a look of each rung, the best one first.
        latency: seconds from the arrival of a frame to its result that 95 of 100 results keep; None: no limit.

    Attributes:
        level: the rung that runs, from 0, the best one.
        switches: so far.
        audits: looks of the best rung in place of another, so far.
        why: reason of the last switch.
    """

    def __init__(
        self, costs: Sequence[float], latency: float | None = None, *, clock: Callable[[], float] = monotonic
    ) -> None:
        self._costs, self._latency, self._clock = costs, latency, clock
        self.level = self.switches = self.audits = 0
        self.why = ""
        self._ages: deque[float] = deque(maxlen=WINDOW)
        """Of the results of frames that arrived after the last switch."""
        self._switched = self._exceeded = clock()
        """Times of the last switch, and when a limit was last exceeded."""
        self._calm = CALM
        self._spent = self._audited = 0.0
        """Compute of the looks below the best rung, and that of audits."""
        self._banned: dict[int, tuple[float, float]] = {}
        """Rung -> until when it is banned, and for how long."""

    def look(self) -> int:
        """The rung for a look that comes now: the best one for an audit, if one is due."""
        if self.level and self._audited + self._costs[0] <= AUDITS * self._spent:
            self._audited += self._costs[0]
            self.audits += 1
            return 0
        self._spent += self._costs[self.level] if self.level else 0.0
        return self.level

    def passed(self, arrival: float) -> None:
        """The result of a frame that arrived then is known."""
        now = self._clock()
        if arrival >= self._switched:
            self._ages.append(now - arrival)
        if not self._latency or len(self._ages) < ENOUGH:
            return
        ages = sorted(self._ages)
        worst, quickest = (ages[int(share * (len(ages) - 1))] for share in (0.95, 0.1))
        # The quickest results wait for nothing but their own look, which takes longer on a better rung.
        longer = quickest * (self._costs[self._better(now)] / self._costs[self.level] - 1) if self.level else 0.0
        if worst > self._latency:
            self.exceeded("results came too late")
        elif worst + longer > ROOM * self._latency:
            self._exceeded = now
        self._recover(now)

    def exceeded(self, why: str) -> None:
        """A limit is exceeded: one rung down, unless the last switch was just now."""
        now = self._exceeded = self._clock()
        cheaper = [rung for rung in range(self.level + 1, len(self._costs)) if not self._is_banned(rung, now)]
        if cheaper and now - self._switched >= DWELL:
            if now - self._switched < 2 * self._calm:
                self._calm = min(LONGEST_CALM, 2 * self._calm)
            self._switch(cheaper[0], why)

    def within(self) -> None:
        """No limit is exceeded at the moment, for runs without one of latency."""
        if not self._latency:
            self._recover(self._clock())

    def audited(self, seen: float, missed: float) -> None:
        """The best rung has looked: at so many objects, weighted by confidence, of which the rung that runs misses so
        many. One that is blind is banned."""
        if self.level and missed > max(LEAST, (1 - BLIND) * seen):
            now = self._clock()
            _, seconds = self._banned.get(self.level, (0.0, BAN / 2))
            self._banned[self.level] = now + 2 * seconds, 2 * seconds
            self._switch(self._better(now), "an audit found what it does not see")

    def _recover(self, now: float) -> None:
        if self.level and now - max(self._exceeded, self._switched) >= self._calm:
            self._switch(self._better(now), "there is time again")
        elif not self.level and now - self._switched > 2 * LONGEST_CALM:
            self._calm = CALM

    def _better(self, now: float) -> int:
        return max(rung for rung in range(self.level) if not rung or not self._is_banned(rung, now))

    def _is_banned(self, rung: int, now: float) -> bool:
        return rung in self._banned and now < self._banned[rung][0]

    def _switch(self, level: int, why: str) -> None:
        self.level, self.why = level, why
        self.switches += 1
        self._switched = self._clock()
        self._ages.clear()
