"""Costs: how long a batch of each size takes, learnt from the batches that have run."""

import math
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Mapping

WINDOW = 512
"""Batches by which the spread of the times is known."""
REFRESH = 32
"""Batches between two looks at the spread."""
SURE = 0.995
"""Share of the batches that end within `Costs.bound`."""
UNKNOWN = 1.25
"""Share of the expected time that counts as the bound as long as no spread is known."""
LEARNING = 0.1
"""Weight of the newest batch in the expected time."""
RECENT = 64
"""Batches after which what was learnt about a size counts as old if none of them had it."""
AT_MOST = 0.5
"""Share of the expected time that counts for a batch that had ended before anybody looked."""
ENOUGH_GAIN = 0.1
"""Share by which a larger batch must be faster per request to be preferred."""
ENOUGH = 0.5
"""Share of the highest throughput that is enough where to wait for more requests may leave the model idle."""


def quantile(values: Iterable[float], share: float) -> float:
    """The least of some values that so large a share of them does not exceed; there is at least one."""
    found = sorted(values)
    return found[int(share * (len(found) - 1))]


class Costs:
    """Seconds of a batch by its size.

    Args:
        sizes: batch sizes that can run; a batch of another number of requests runs as the next larger one.
        seconds: what is known already, by size.

    Attributes:
        sizes: in ascending order.
        best: the smallest size whose throughput is within ENOUGH_GAIN of the highest.
        enough: the smallest size with at least ENOUGH of the highest throughput.
    """

    def __init__(self, sizes: Iterable[int], seconds: Mapping[int, float] | None = None) -> None:
        self.sizes = sorted(set(sizes))
        self._known = dict(seconds or {})
        self._least = dict(self._known)
        """What was measured with nothing else at work, or less where that was found since."""
        self._first = set[int]()
        """Sizes of which one batch has run, and nothing was known before."""
        self._ran: dict[int, int] = {}
        """Size -> how many batches had been learnt when it last ran."""
        self._latest: deque[tuple[float, float]] = deque(maxlen=WINDOW)
        """Measured time of the latest batches, as a share of what was expected, and the seconds beyond it."""
        self._share, self._slack, self._learnt = UNKNOWN, math.inf, 0
        self._expected: dict[int, float] = {}
        self._chosen: dict[int, int] = {}
        """What `seconds` and `choose` have returned since a batch ended: they are asked with every request."""
        self._compare()

    def fit(self, count: int) -> int:
        """The size as which so many requests run."""
        return self.sizes[min(bisect_left(self.sizes, count), len(self.sizes) - 1)]

    def seconds(self, size: int) -> float:
        """The expected time of a batch; for a size that has not run yet, that of the next smaller one that has, so that
        it gets its try. 0 as long as nothing has run."""
        if (expected := self._expected.get(size)) is None:
            expected = self._expected[size] = self._known.get(self._nearest(size), 0.0)
        return expected

    def is_sure(self, size: int) -> bool:
        """Whether `seconds` tells more than how long the first batch took, which may have prepared something."""
        nearest = self._nearest(size)
        return nearest in self._known and nearest not in self._first

    def _nearest(self, size: int) -> int:
        """The size by whose time that of another is expected; 0: nothing has run."""
        known = max((other for other in self._known if other <= size), default=0)
        return known or min(self._known, default=0)

    def bound(self, size: int) -> float:
        """Nearly all batches of this size take no longer. A busy machine makes a batch longer by a share; a thread that
        waits for its turn makes any batch longer by the same time, which is a large share of a small one."""
        expected = self.seconds(size)
        return min(self._share * expected, expected + self._slack)

    def choose(self, waiting: int) -> int:
        """The best size for so many requests: the smallest whose throughput is about the highest."""
        if (size := self._chosen.get(waiting)) is None:
            size = self._chosen[waiting] = self._smallest(waiting, 1 / (1 + ENOUGH_GAIN))
        return size

    def _compare(self) -> None:
        most = self.sizes[-1]
        self.best, self.enough = self.choose(most), self._smallest(most, ENOUGH)

    def _smallest(self, waiting: int, share: float) -> int:
        """The smallest size for so many requests whose throughput is this share of the highest."""
        sizes = [size for size in self.sizes if size <= self.fit(waiting)]
        rates = [min(size, waiting) / max(1e-9, self.seconds(size)) for size in sizes]
        return next(size for size, rate in zip(sizes, rates, strict=True) if rate >= share * max(rates))

    def learn(self, size: int, seconds: float, *, at_most: bool = False) -> None:
        """A batch of this size has taken so long.

        Args:
            at_most: it had ended when somebody looked, nobody knows for how long. Its time counts as less than was
                expected, since otherwise a thread that looks too late would expect ever longer batches, and look later.
        """
        expected = self._known.get(size)
        if expected is None:
            self._known[size] = seconds
            self._first.add(size)
        elif size in self._first:
            self._known[size] = min(expected, seconds)
            self._first.discard(size)
        else:
            self._latest.append((seconds / max(1e-9, expected), seconds - expected))
            taken = max(AT_MOST * expected, self._least.get(size, 0.0)) if at_most else 2 * expected
            self._known[size] = expected + LEARNING * (min(seconds, taken) - expected)  # an outlier is no trend
        self._learnt += 1
        self._ran[size] = self._learnt
        self._adjust_others(size, at_most)
        self._expected.clear()
        self._chosen.clear()
        if expected is None or self._learnt % REFRESH == 0:
            if len(self._latest) >= REFRESH:
                shares, beyond = (quantile(column, SURE) for column in zip(*self._latest, strict=True))
                self._share, self._slack = max(1.0, shares), max(0.0, beyond)
            self._compare()

    def _adjust_others(self, size: int, at_most: bool) -> None:
        """What a batch takes beyond its time with nothing else at work, such as waiting for Python's interpreter, sizes
        take that have not run lately: a small one would else seem quick because nobody has tried it."""
        if size not in self._least:
            return
        if not at_most:
            self._least[size] = min(self._least[size], self._known[size])
        beyond = self._known[size] - self._least[size]
        for other, least in self._least.items():
            if self._learnt - self._ran.get(other, -RECENT) >= RECENT:
                self._known[other] += LEARNING * (least + beyond - self._known[other])

    def table(self) -> dict[int, float]:
        """Size -> expected seconds, of the sizes that have run."""
        return dict(sorted(self._known.items()))
