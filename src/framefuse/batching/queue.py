"""RequestQueue: which requests run next, together, and which are refused. Pure: the clock is passed in.

Order. A virtual clock counts the seconds of work that have been started. The key of a request is its reading on arrival
plus OVERTAKE for each step of its priority: an urgent request overtakes what came at most that much work before it, so
nothing waits forever. Each request of a source counts as if it arrived when the one before is done, so that sources
take turns: for them the clock stands at the turn that was taken last (start-time fair queueing, Goyal et al. 1996).

Batches. A batch starts as soon as the model is free, unless the next request is expected so soon that all are served
earlier together: with n requests that wait, w seconds until the next one and T(n) seconds a batch, that one gains
T(n) + T(1) - T(n+1) - w, while each of the n loses w + T(n+1) - T(n). Behind a running batch, the next one is submitted
when it is full, or shortly before the model is free; where the thread that submits is itself kept waiting, half as much
throughput is full enough.

Admission. A request with a deadline is refused at once if its predicted end lies later, or if it would overtake one
whose deadline then could not be met. The prediction is the expected time of the batches up to and including its own,
multiplied by how much longer than that the latest answers took, and a margin. A request with s seconds to spare is late
if its answer comes more than s later than predicted, so the margin is the least for which hardly any of those with more
to spare would be late: the longest usual delay under overload, where all that are admitted have hardly more than the
margin. It is at least what nearly all of the latest answers needed, and SLOWER of the predicted time. While most are
refused, it is as large as it may be without leaving the model idle: a longer queue would not keep it busier, and all
that wait in it would be late together when the machine stalls.
"""

import math
from bisect import bisect_right, insort
from collections import Counter, deque
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from operator import attrgetter

import numpy as np

from framefuse.batching.costs import UNKNOWN, Costs, quantile
from framefuse.errors import DeadlineError, QueueFullError, UsageError

PRIORITIES = 4
"""0 is the most urgent."""
OVERTAKE = 1.0
"""Seconds of work for each step of priority."""
RECENT = 0.1
"""Weight of the newest interval between two requests in the expected one."""
PATIENCE = 3
"""Expected intervals without a request after which a batch no longer waits for one."""
MAX_BUCKETS = 256
"""Whose rate of arrival is remembered."""
ANSWERS, REFRESH, EARLY = 2048, 64, (4, 8, 16, 32)
"""Latest batches, and as many requests, by which the margin of predictions is chosen, and batches between two choices;
in the beginning it is chosen after so few batches."""
LATE = 0.0001
"""Share of the admitted requests that may be expected to miss their deadline."""
STALLS = 0.005
"""Up to this share of the batches, answers that come too late for any margin count as stalls of the machine, and are
ignored."""
SLOWER = 0.25
"""Share of the predicted time that the margin is at least: the clients of a sudden load slow the machine down before
any answer shows it."""
FEW = 512
"""With no more batches, the largest delay may not have been seen yet: the margin is MORE of that which was seen."""
MORE = 1.25
USUAL = 0.99
"""Share of the answers that the margin covers at least: while all have enough to spare it costs nothing, and where the
load grows suddenly it is there at once."""
MOST_MARGIN = 0.5
"""Share of the time from a request to its deadline that the margin takes at most: a stall of the machine must not have
all requests refused that come after it."""
LEARNING = 0.05
"""Weight of the newest batch in the seconds until an answer."""
DELAY = 2
"""Times the mean delay of answers by which any is predicted to be late at most: part of a delay is the same for a short
queue and a long one."""
DELAYED = 1.1
"""Where answers take more than so many times their predicted work, the thread that submits batches is kept waiting."""
BATCHES_LEFT = 2
"""For so many batches after those that run there is time before a deadline, whatever the margin: the model must not
become idle because the margin is large."""
AHEAD = 0.25
"""Share of a batch before the end of the running one from which the next, not yet full one may be submitted."""
TRY = 1.0
"""Seconds without a batch after which one may tell more, as long as only one has run."""
_key = attrgetter("key")


@dataclass(eq=False, slots=True)
class Request:
    """One item that waits for its turn. Times are those of the caller's clock, in seconds."""

    number: int
    arrival: float
    bucket: Hashable = None
    """What the requests of one batch have in common, such as the size of the model input."""
    priority: int = 1
    source: Hashable = None
    """Sources share the throughput fairly; None: requests that no fairness applies to."""
    deadline: float | None = None
    turn: float = field(default=0.0, init=False)
    """When it arrived, or when it is the turn of its source, by the virtual clock."""
    key: float = field(default=0.0, init=False)
    """Requests run in the order of their keys."""
    asked: float = field(default=0.0, init=False)
    """When it asked to be admitted."""
    work: float = field(default=0.0, init=False)
    """Seconds of the batches from then until its answer, at their expected times; 0: nothing is known."""
    end: float = field(default=0.0, init=False)
    """The predicted time of its answer."""


@dataclass(eq=False, slots=True)
class RequestBatch:
    """Requests that run together."""

    requests: list[Request]
    size: int
    """As which they run: at least their number."""
    started: float
    """When it was submitted, or the batch before it ended."""
    end: float
    """The expected one."""
    submitted: float
    """When it was taken; `started` changes."""


def least_margin(errors: Iterable[float], spare: Iterable[float]) -> float:
    """The least seconds to spare with which requests are admitted so that no more than LATE of them would be late.

    Args:
        errors: seconds by which answers came later than predicted.
        spare: seconds from the predicted ends of requests to their deadlines.
    """
    found, most = np.sort(np.fromiter(spare, float)), np.sort(np.fromiter(errors, float))
    late = 1 - np.searchsorted(most, found, side="right") / len(most)  # of those that have so much to spare
    of_these_or_more = np.cumsum(late[::-1])[::-1] / np.arange(len(found), 0, -1)
    first = int(np.argmax(np.append(of_these_or_more, 0.0) <= LATE))
    if first == 0:
        return 0.0
    return float(found[first]) if first < len(found) else max(0.0, float(most[-1]))


def _most_margin(request: Request) -> float:
    """The largest margin of a request; one whose deadline has passed, or that has none, has no margin."""
    return 0.0 if request.deadline is None else MOST_MARGIN * max(0.0, request.deadline - request.arrival)


class RequestQueue:
    """Requests that wait, and the batches that run.

    Args:
        costs: seconds of a batch by its size.
        max_queue_delay: seconds that a request may wait for others to join its batch.
        min_batch_size: a smaller batch waits for `max_queue_delay`.
        max_queue: requests that may wait; more are refused.
        servers: batches that the model runs at the same time.
        ahead: batches submitted to the model before it is free.
    """

    def __init__(
        self,
        costs: Costs,
        *,
        max_queue_delay: float = 0.005,
        min_batch_size: int = 1,
        max_queue: int = 256,
        servers: int = 1,
        ahead: int = 0,
    ) -> None:
        self.costs, self.max_queue_delay, self.min_batch_size = costs, max_queue_delay, min_batch_size
        self.max_queue, self._servers, self._ahead = max_queue, servers, ahead
        self._buckets: dict[Hashable, list[Request]] = {}
        """Requests by bucket, sorted by key."""
        self._queued: Counter[Hashable] = Counter()
        """Requests by source."""
        self._clock = 0.0
        """The virtual one, in seconds."""
        self._turns: dict[Hashable, float] = {}
        """Source -> the earliest turn of its next request."""
        self._running: list[RequestBatch] = []
        self._intervals: dict[Hashable, tuple[float, float]] = {}
        """Bucket -> the latest arrival, and the expected seconds until the next one."""
        self._deadlines = 0
        """How many of the waiting requests have one."""
        self._errors: deque[tuple[float, bool]] = deque(maxlen=ANSWERS)
        """Of the latest batches: seconds by which the answers came after their predicted ends, and whether no margin
        would have been enough."""
        self._spare: deque[float] = deque(maxlen=ANSWERS)
        """Seconds from the predicted end of the latest requests to their deadline, without a margin."""
        self._answered, self._margin = 0, 0.0
        self._stretch, self._delay = UNKNOWN, math.inf
        """Of the latest answers, the mean of the seconds until they came over those of the work before them, and of the
        difference: threads that compete for Python's interpreter delay the one that answers."""
        self._ended, self._is_exact = 0.0, True
        """When the latest batch ended, and whether it was not only noticed then."""
        self.limit = costs.sizes[-1]
        """Requests of a batch at most; lowered by the owner while memory is short."""

    def __len__(self) -> int:
        return sum(map(len, self._buckets.values()))

    @property
    def running(self) -> int:
        """Batches that were taken and have not ended."""
        return len(self._running)

    def by_priority(self) -> dict[int, int]:
        """Requests that wait, by priority."""
        return dict(Counter(request.priority for bucket in self._buckets.values() for request in bucket))

    def admit(self, request: Request, now: float, *, overloaded: bool = False) -> None:
        """Let a request wait for its turn.

        Args:
            overloaded: most requests are refused, so the queue is kept short: others come soon enough to keep the model
                busy.

        Raises:
            QueueFullError: `max_queue` requests wait, or those of its source hold their share of the queue.
            DeadlineError: the deadline cannot be met, or has passed.
            UsageError: the priority is not one of 0, 1, 2, 3.
        """
        if request.priority not in range(PRIORITIES):
            raise UsageError(f"priority is {request.priority!r}", remedy="use 0, the most urgent, to 3")
        source, waiting = request.source, len(self)
        if waiting >= self.max_queue:
            message = f"{waiting} requests are waiting, which is max_queue"
            raise QueueFullError(message, remedy="send fewer requests, or later; a longer queue only delays them")
        if source is not None and self._queued[source] >= self.max_queue - waiting:
            message = f"source {source!r} has {self._queued[source]} of the {waiting} requests that are waiting"
            raise QueueFullError(message, remedy="let it send fewer requests: the rest of the queue is for others")
        request.turn = max(self._clock, self._turns.get(source, 0.0)) if source is not None else self._clock
        request.key = request.turn + request.priority * OVERTAKE
        self._check_deadlines(request, now, overloaded)
        if source is not None:
            if len(self._turns) > 2 * self.max_queue:  # forget the sources whose turn has come anyway
                self._turns = {other: turn for other, turn in self._turns.items() if turn > self._clock}
            self._turns[source] = request.turn + self._per_request
            self._queued[source] += 1
        insort(self._buckets.setdefault(request.bucket, []), request, key=_key)
        self._deadlines += request.deadline is not None
        if len(self._intervals) > MAX_BUCKETS:
            self._intervals.clear()
        last, interval = self._intervals.get(request.bucket, (request.arrival, self.max_queue_delay))
        self._intervals[request.bucket] = request.arrival, interval + RECENT * (request.arrival - last - interval)

    @property
    def _per_request(self) -> float:
        """Seconds of a request in a batch of the best size, with all servers at work."""
        return self.costs.seconds(self.costs.best) / self.costs.best / self._servers

    @property
    def _full(self) -> int:
        """A batch of so many requests waits for no more. Where a batch is submitted before the model is free, and
        answers come later than the batches explain, the thread that submits them is itself kept waiting: it would
        submit a large batch too late."""
        delayed = self._ahead and self._delay < math.inf and self._stretch > DELAYED
        return min(max(self.costs.enough if delayed else self.costs.best, self.min_batch_size), self.limit)

    def _check_deadlines(self, request: Request, now: float, overloaded: bool) -> None:
        request.asked, request.work = now, self._work(request, now)
        at_once = not (len(self) or self._running)
        stretch = min(self._stretch, UNKNOWN) if at_once else self._stretch
        request.end = now + min(stretch * request.work, request.work + DELAY * self._delay)
        if request.deadline is not None:
            left = request.deadline - now
            if request.end <= request.deadline:
                self._spare.append(request.deadline - request.end)
            end = request.end + (0.0 if at_once else self._margin_of(request, left, overloaded))
            if end > request.deadline and not (at_once and left > 0 and self._tries(now)):
                needed = end - now
                message = f"the deadline is in {1000 * left:.1f} ms, and the predicted end in {1000 * needed:.1f} ms"
                if left <= 0:
                    message = f"the deadline passed {-1000 * left:.1f} ms ago"
                remedy = "allow more time, use a more urgent priority, or send fewer requests"
                raise DeadlineError(message, remedy=remedy)
        overtaken = [
            other
            for bucket in self._buckets.values()
            for other in bucket[bisect_right(bucket, request.key, key=_key) :]
        ]
        delay = self._stretch * self._per_request
        # What is overtaken may lose its margin: under overload, that would keep out all urgent requests.
        if any(other.deadline is not None and other.end + delay > other.deadline for other in overtaken):
            message = f"a request of priority {request.priority} would make one late that was admitted before"
            raise DeadlineError(message, remedy="send fewer urgent requests, or use a less urgent priority")
        for other in overtaken:
            other.end += delay
            other.work += self._per_request if other.work else 0.0

    def _tries(self, now: float) -> bool:
        """Whether a request may run that is expected to be late: after a slow first batch, all would be refused for
        ever, and one by itself tells how long others take."""
        return now - self._ended >= TRY and not self.costs.is_sure(self.costs.fit(1))

    def _margin_of(self, request: Request, left: float, overloaded: bool) -> float:
        """Seconds; `left`: until the deadline of the request."""
        slower = SLOWER if self._delay < math.inf else 0.0  # until then, `_stretch` is UNKNOWN, which is as much
        most = _most_margin(request)
        usual = min(max(self._margin, slower * (request.end - request.asked)), most)
        if not overloaded or request.priority == 0:
            return usual
        running = self._free(request.asked) - request.asked
        busy = self._stretch * (running + BATCHES_LEFT * self.costs.seconds(self.costs.best))
        return max(usual, min(most, left - busy))

    def answered(self, requests: Iterable[Request], now: float) -> None:
        """Learn how much later than predicted the answers of a batch have come."""
        known = [request for request in requests if request.work]
        if not known:
            return
        taken = sum((now - request.asked) / request.work for request in known) / len(known)
        self._stretch += LEARNING * (min(taken, 2 * self._stretch) - self._stretch)
        delay = max(0.0, sum(now - request.asked - request.work for request in known) / len(known))
        self._delay = delay if self._delay == math.inf else self._delay + LEARNING * (delay - self._delay)
        timed = [request for request in known if request.deadline is not None]
        if timed:  # they are late together, so they count as one
            error, most = now - min(request.end for request in timed), max(map(_most_margin, timed))
            self._errors.append((error, error > most))
            self._answered += 1
            if self._answered in EARLY or self._answered % REFRESH == 0:
                self._margin = self._chosen_margin()

    def _chosen_margin(self) -> float:
        """By the latest errors, without those of stalls while these are few."""
        count = len(self._errors)
        errors = [error for error, is_stall in self._errors if not is_stall]
        if count - len(errors) > STALLS * count:
            errors = [error for error, _ in self._errors]
        least = quantile(errors, USUAL) if count > FEW else MORE * max(errors)
        return max(least_margin(errors, self._spare), least)

    def _work(self, request: Request, now: float) -> float:
        """Seconds until a request is answered, by the expected times of batches."""
        costs, best = self.costs, min(self.costs.best, self.limit)
        work, mine = 0.0, 1
        for name, bucket in self._buckets.items():
            before = bisect_right(bucket, request.key, key=_key)
            if name == request.bucket:
                full, rest = divmod(before, best)
                mine += rest
            else:
                full = -(-before // best)
            work += full * costs.seconds(best)
        starts = self._free(now) - now + work / self._servers
        _, interval = self._intervals.get(request.bucket, (now, self.max_queue_delay))
        mine += int(min(best, starts / max(1e-9, interval)))  # others join until it starts
        return starts + costs.seconds(costs.fit(min(best, mine)))

    def _free(self, now: float) -> float:
        """When the model has ended enough of what it has, so that a batch submitted now starts."""
        ends = sorted(batch.end for batch in self._running)
        return max(now, ends[-self._servers]) if len(ends) >= self._servers else now

    def take(self, now: float) -> RequestBatch | None:
        """The batch to run now; None if nothing waits, the model is busy, or waiting for more requests is better."""
        if len(self._running) >= self._servers + self._ahead:
            return None
        for name in sorted(self._buckets, key=lambda name: self._buckets[name][0].key):
            bucket = self._buckets[name]
            starts, count, size = self._next(bucket, now)
            if starts <= now:
                requests = bucket[:count]
                self._forget(name, requests)
                for request in requests:
                    self._clock = max(self._clock, request.turn)
                    self._clock += self._per_request if request.source is None else 0.0
                if self.min_batch_size > 1 and not self._running:
                    for request in requests:  # that it waited for company is no delay
                        waited = max(0.0, now - max(self._ended, request.asked))
                        request.asked, request.end = request.asked + waited, request.end + waited
                started = self._free(now)
                batch = RequestBatch(requests, size, started, started + self.costs.seconds(size), now)
                self._running.append(batch)
                return batch
        return None

    def next_time(self, now: float) -> float | None:
        """When `take` may have something although nothing else happens; None: never."""
        if len(self._running) >= self._servers + self._ahead:
            return None
        return min((self._next(bucket, now)[0] for bucket in self._buckets.values()), default=None)

    def _size(self, bucket: list[Request], now: float) -> int:
        """As which size the first requests of a bucket run; a smaller one if their deadlines ask for it, and no more
        wait than fit into one batch: otherwise small batches would make those behind late."""
        waiting = min(len(bucket), self.limit)
        size = self.costs.choose(waiting)
        if waiting >= min(self.costs.best, self.limit):
            return size
        deadlines = [request.deadline for request in bucket[:size] if request.deadline is not None]
        start = self._free(now)
        if deadlines and start + self.costs.bound(size) > min(deadlines):
            in_time = [s for s in self.costs.sizes if s < size and start + self.costs.bound(s) <= min(deadlines)]
            size = max(in_time, default=size)
        return size

    def _next(self, bucket: list[Request], now: float) -> tuple[float, int, int]:
        """When a batch of the first requests of a bucket starts if no other arrives, how many these are, and as which
        size they run."""
        costs, size = self.costs, self._size(bucket, now)
        count = min(size, len(bucket), self.limit)
        full = count >= self._full
        busy = len(self._running) >= self._servers
        free = now if not busy or full else self._free(now) - AHEAD * costs.seconds(size)
        if full or len(bucket) >= self.limit:
            return free, count, size
        latest = min(request.arrival for request in bucket[:count]) + self.max_queue_delay
        arrived, interval = self._intervals.get(bucket[0].bucket, (now, self.max_queue_delay))
        more = costs.seconds(costs.fit(count + 1))
        this, single = costs.seconds(size), costs.seconds(costs.sizes[0])
        gains = this + single - more - interval
        loses = count * (interval + max(0.0, more - this))
        if count >= self.min_batch_size:
            latest = min(latest, arrived + PATIENCE * interval) if gains > loses else now
        deadlines = [request.deadline for request in bucket[:count] if request.deadline is not None]
        last = min([latest, *(deadline - costs.bound(costs.fit(count + 1)) for deadline in deadlines)])
        return max(free, last), count, size

    def may_start(self, request: Request) -> bool:
        """Whether `take` or `next_time` may have an earlier answer since this request waits. While the model is busy
        only a full batch starts at once, and others hardly earlier."""
        waiting, busy = len(self._buckets[request.bucket]), len(self._running)
        if busy >= self._servers:
            return busy < self._servers + self._ahead and (waiting == 1 or waiting >= self._full)
        return request.deadline is not None or waiting in {*self.costs.sizes, self.limit, self.min_batch_size}

    def late(self, now: float) -> list[Request]:
        """Requests that wait although their deadline cannot be met any more; they are no longer waiting."""
        if not self._deadlines:
            return []
        least = now + self.costs.seconds(self.costs.sizes[0])
        found = list[Request]()
        for name, bucket in list(self._buckets.items()):
            late = [request for request in bucket if request.deadline is not None and least > request.deadline]
            if late:
                found += late
                self._forget(name, late)
        return found

    def remove(self, request: Request) -> bool:
        """Take back a request that waits; False if it does not wait any more."""
        if request not in self._buckets.get(request.bucket, ()):
            return False
        self._forget(request.bucket, [request])
        return True

    def _forget(self, name: Hashable, requests: list[Request]) -> None:
        bucket = self._buckets[name]
        if bucket[: len(requests)] == requests:
            del bucket[: len(requests)]
        else:
            gone = set(map(id, requests))
            bucket[:] = [request for request in bucket if id(request) not in gone]
        if not bucket:
            del self._buckets[name]
        self._queued -= Counter(request.source for request in requests if request.source is not None)
        self._deadlines -= sum(request.deadline is not None for request in requests)

    def ended(self, batch: RequestBatch, now: float, *, failed: bool = False, noticed: bool = False) -> None:
        """A batch has ended; unless it has failed, its time counts.

        Args:
            noticed: it had ended before, and was only noticed now.
        """
        self._running.remove(batch)
        follows = self._servers == 1 and batch.started <= self._ended
        if follows and not self._is_exact:  # nobody knows when it began
            most = now - batch.submitted
            if not failed and most < self.costs.seconds(batch.size):
                self.costs.learn(batch.size, most, at_most=True)
        elif not failed:
            self.costs.learn(batch.size, now - (self._ended if follows else batch.started), at_most=noticed)
        self._ended, self._is_exact = now, not noticed
        for other in self._running[:1]:
            if self._servers == 1:
                other.started, other.end = now, now + self.costs.seconds(other.size)
