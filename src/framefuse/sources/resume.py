"""The times of a live stream: when to retry after a loss, how timestamps continue, when a frame is due. No clock."""

from __future__ import annotations

from fractions import Fraction
from random import Random

FIRST_DELAY = 0.25
TIME_BASE = Fraction(1, 90_000)
"""Time base of live frames: that of RTP video and MPEG-TS."""
LATE = 0.5
"""Seconds by which a frame of a segmented stream may be late without delaying all that follow."""
JUMP = 30
"""Seconds; a larger step between two frames means that the source's clock was set, not that time passed."""


class Backoff:
    """Delays between connection attempts: 0.25 s, doubling up to a limit, each shortened at random by up to a fifth.

    Args:
        attempts: consecutive retries; -1: no limit.
        max_delay: longest delay in seconds.
        random: spreads the attempts of many clients that lost a server at the same time.
    """

    def __init__(self, attempts: int, max_delay: float, random: Random) -> None:
        self._attempts, self._max_delay, self._random = attempts, max_delay, random
        self._delay = FIRST_DELAY
        self.failures = 0
        """Consecutive failures."""

    def failed(self) -> float | None:
        """Seconds to wait before the next attempt; None: give up."""
        self.failures += 1
        if 0 <= self._attempts < self.failures:
            return None
        delay = min(self._delay, self._max_delay)
        self._delay = min(2 * self._delay, self._max_delay)
        return delay * self._random.uniform(0.8, 1.0)

    def succeeded(self) -> None:
        """Reset: the stream delivers frames."""
        self.failures, self._delay = 0, FIRST_DELAY


class Timeline:
    """Joins the clocks of consecutive connections into strictly increasing pts, from 0 at the first frame.

    Within a connection the source's intervals are kept exactly. Between the last frame of one connection and the first
    of the next lies the time between their arrivals. If the source's clock stands still, goes back or jumps by more
    than JUMP seconds, the interval is one frame period.
    """

    def __init__(self) -> None:
        self._last: int | None = None
        self._arrival = 0.0
        self._offset: int | None = None
        self._resumed = False

    def reconnected(self) -> None:
        """The next frame is the first of a new connection."""
        self._offset, self._resumed = None, True

    def pts(self, source: Fraction | None, arrival: float, period: Fraction) -> int:
        """pts of the next frame, in units of TIME_BASE.

        Args:
            source: its time by the source's clock, in seconds; None: unknown.
            arrival: when it was received, in seconds of a monotonic clock.
            period: time between two frames in seconds.
        """
        tick = None if source is None else round(source / TIME_BASE)
        step = max(1, round(period / TIME_BASE))
        waited = round((arrival - self._arrival) / TIME_BASE)
        if self._last is None:
            pts = 0
        elif self._resumed:
            pts = self._last + max(step, waited)
        else:
            pts = self._last + step
            if tick is not None and self._offset is not None:
                stated = tick + self._offset
                if self._last < stated <= self._last + max(0, waited) + JUMP / TIME_BASE:
                    pts = stated
        if tick is not None:
            self._offset = pts - tick
        self._last, self._arrival, self._resumed = pts, arrival, False
        return pts


class Pace:
    """When the frames of a stream that arrives in bursts are due: at the intervals of their pts.

    A segmented stream (HLS, DASH) brings several seconds at once. Read as they arrive, nearly all of these frames would
    be superseded by the last one.
    """

    def __init__(self) -> None:
        self._begin: float | None = None
        """When pts 0 is due, by the clock that is passed in."""

    def wait(self, seconds: float, now: float) -> float:
        """Seconds until the frame with this pts is due. One that comes too late starts the clock anew."""
        if self._begin is None or now > self._begin + seconds + LATE:
            self._begin = now - seconds
        return max(0.0, self._begin + seconds - now)
