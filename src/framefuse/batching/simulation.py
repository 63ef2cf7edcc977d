"""A request queue in simulated time: requests arrive at random, and batches take their measured time."""

import heapq
import random
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field

from framefuse.batching.queue import Request, RequestBatch, RequestQueue
from framefuse.errors import RequestError


@dataclass
class Outcome:
    """What has become of the requests."""

    ended: dict[int, float] = field(default_factory=dict)
    """Number of a request -> when its batch ended."""
    refused: dict[int, RequestError] = field(default_factory=dict)
    late: list[int] = field(default_factory=list)
    """Dropped before they ran."""
    batches: list[tuple[float, int]] = field(default_factory=list)
    """Start, and number of requests."""

    def latencies(self, requests: Iterable[Request]) -> list[float]:
        """Seconds of those that ended, ascending."""
        return sorted(self.ended[one.number] - one.arrival for one in requests if one.number in self.ended)


def poisson(
    rate: float, seconds: float, *, seed: int = 0, source: Hashable = None, priority: int = 1, within: float = 0
) -> list[Request]:
    """Requests at random times, `rate` a second on average, each with a deadline `within` so many seconds; 0: none."""
    chance, now, made = random.Random(seed), 0.0, list[Request]()
    while (now := now + chance.expovariate(rate)) < seconds:
        deadline = now + within if within else None
        made.append(Request(len(made), now, priority=priority, source=source, deadline=deadline))
    return made


def simulate(
    queue: RequestQueue, requests: Iterable[Request], seconds: Callable[[int], float], *, servers: int = 1
) -> Outcome:
    """Run requests, which get new numbers, through a queue until all have ended.

    Args:
        seconds: what a batch of a size takes, one after another on each server.
    """
    outcome = Outcome()
    arriving = sorted(requests, key=lambda one: one.arrival)
    for number, one in enumerate(arriving):
        one.number = number
    ending: list[tuple[float, int, RequestBatch]] = []
    free = [0.0] * servers
    now, index = 0.0, 0
    while True:
        times = [ending[0][0]] if ending else []
        times += [arriving[index].arrival] if index < len(arriving) else []
        wake = queue.next_time(now)
        times += [max(wake, now + 1e-9)] if wake is not None else []
        if not times:
            return outcome
        now = min(times)
        while ending and ending[0][0] <= now:
            _, _, batch = heapq.heappop(ending)
            queue.ended(batch, now)
            queue.answered(batch.requests, now)
            outcome.ended |= {one.number: now for one in batch.requests}
        while index < len(arriving) and arriving[index].arrival <= now:
            one = arriving[index]
            index += 1
            try:
                queue.admit(one, now)
            except RequestError as error:
                outcome.refused[one.number] = error
        outcome.late += [one.number for one in queue.late(now)]
        while (taken := queue.take(now)) is not None:
            server = free.index(min(free))
            free[server] = max(free[server], now) + seconds(taken.size)
            heapq.heappush(ending, (free[server], len(outcome.batches), taken))
            outcome.batches.append((now, len(taken.requests)))
