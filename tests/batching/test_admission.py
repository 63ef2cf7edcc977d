"""Which requests with a deadline are admitted, by what recent answers have taught, in simulated time."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from contextlib import suppress

import numpy as np
import pytest

from framefuse.batching.costs import Costs
from framefuse.batching.queue import LATE, Request, RequestBatch, RequestQueue, least_margin
from framefuse.batching.simulation import poisson, simulate
from framefuse.errors import DeadlineError
from request_queues import FULL_RATE, gpu, noisy, queue_of


@pytest.mark.parametrize("load", [0.1, 0.5, 0.8, 3.0])
def test_admitted_requests_meet_their_deadline(load: float) -> None:
    requests = poisson(load * FULL_RATE, 0.6, within=0.02)
    outcome = simulate(queue_of(gpu, ahead=1), requests, noisy(gpu))
    admitted = len(requests) - len(outcome.refused)
    missed = sum(latency > 0.02 for latency in outcome.latencies(requests)) + len(outcome.late)
    assert missed <= 0.001 * admitted
    assert admitted >= 0.85 * min(len(requests), 0.6 * FULL_RATE)


@pytest.mark.parametrize("load", [0.8, 3.0])
def test_batches_whose_times_vary_have_few_requests_refused(load: float) -> None:
    """As where threads take turns with the one that answers."""
    chance = np.random.default_rng(2)

    def busy(size: int) -> float:
        return gpu(size) * chance.uniform(1.0, 1.6)

    rate = FULL_RATE / 1.3
    requests = poisson(load * rate, 6.0, within=0.02)
    outcome = simulate(queue_of(gpu, ahead=1), requests, busy)
    admitted = len(requests) - len(outcome.refused)
    missed = sum(latency > 0.02 for latency in outcome.latencies(requests)) + len(outcome.late)
    assert missed <= 0.001 * admitted
    assert admitted >= 0.97 * min(len(requests), 6 * rate)


def test_a_sudden_load_that_slows_the_machine_makes_none_late() -> None:
    """As on a CPU, where clients take time from the model: 20 ms a request, and 23 from one moment to the next."""
    usual, sudden = poisson(40, 20.0, within=0.5), poisson(150, 10.0, within=0.5)
    for request in sudden:
        assert request.deadline is not None
        request.arrival, request.deadline = request.arrival + 20, request.deadline + 20
    requests = [*usual, *sudden]
    times = itertools.chain([0.02] * len(usual), itertools.repeat(0.023))
    outcome = simulate(RequestQueue(Costs([1], {1: 0.02})), requests, lambda size: next(times))
    assert not outcome.late
    assert max(outcome.latencies(requests)) <= 0.5
    assert len(outcome.ended) > len(usual) + 0.97 * 10 / 0.023


def test_under_overload_few_requests_wait() -> None:
    """A queue of 0.5 s would be late as a whole if the machine became a little slower, and answers no more a second."""
    queue = RequestQueue(Costs([1], {1: 0.02}))
    queue.admit(Request(0, 0.0), 0.0)
    assert queue.take(0.0) is not None
    for number in range(1, 20):
        with suppress(DeadlineError):
            queue.admit(Request(number, 0.0, deadline=0.5), 0.0, overloaded=True)
    few = len(queue)
    assert max(request.end for request in queue._buckets[None]) <= 0.25
    for number in range(20, 40):
        with suppress(DeadlineError):
            queue.admit(Request(number, 0.0, deadline=0.5), 0.0)
    assert 5 < few < 0.7 * len(queue)


class Overloaded(RequestQueue):
    """Always told that most requests are refused."""

    def admit(self, request: Request, now: float, *, overloaded: bool = True) -> None:
        super().admit(request, now, overloaded=overloaded)


@pytest.mark.parametrize("batches", [2, 3, 5, 25])
def test_under_overload_the_model_is_never_idle(batches: int) -> None:
    """Deadlines of a few batches: the rate is that of a queue which knows of no overload."""

    def answered(kind: type[RequestQueue]) -> int:
        times = [0.0077 * number for number in range(2600)]
        requests = [Request(0, now, deadline=now + 0.02 * batches) for now in times]
        return len(simulate(kind(Costs([1], {1: 0.02})), requests, lambda size: 0.02).ended)

    assert answered(Overloaded) >= 0.98 * answered(RequestQueue)


def test_an_urgent_request_makes_no_admitted_one_late() -> None:
    queue = RequestQueue(Costs([1], {1: 0.1}))
    first = Request(0, 0.0)
    queue.admit(first, 0.0)
    assert queue.take(0.0) is not None
    queue.admit(Request(1, 0.0, priority=1, deadline=0.3), 0.0)
    with pytest.raises(DeadlineError, match="would make one late"):
        queue.admit(Request(2, 0.0, priority=0), 0.0)


@pytest.mark.parametrize(("deadline", "message"), [(-1.0, "passed 1000.0 ms ago"), (0.05, "predicted end in 125.0 ms")])
def test_a_deadline_that_cannot_be_met_is_refused(deadline: float, message: str) -> None:
    queue = RequestQueue(Costs([1], {1: 0.1}))
    with pytest.raises(DeadlineError, match=message):
        queue.admit(Request(0, 0.0, deadline=deadline), 0.0)
    assert len(queue) == 0


def test_a_margin_is_learnt_from_answers_that_came_later_than_predicted() -> None:
    queue = RequestQueue(Costs([1], {1: 0.01}))

    def run(deadline: float, late: float, now: float) -> bool:
        """Whether a request behind another one is admitted; its answer comes `late` seconds after the prediction."""
        first, second = (Request(int(1000 * now) + number, now, deadline=now + deadline) for number in range(2))
        queue.admit(first, now)
        batch = queue.take(now)
        assert batch is not None
        admitted = True
        try:
            queue.admit(second, now)
        except DeadlineError:
            admitted = False
        queue.ended(batch, now + 0.01)
        if admitted:
            batch = queue.take(now + 0.01)
            assert batch is not None
            queue.ended(batch, now + 0.02)
            queue.answered([second], second.end + late)
        return admitted

    early = [run(0.035, 0.03, float(number)) for number in range(64)]  # two batches take 25 ms at most
    assert early[0]
    assert not any(early[-8:])
    assert not run(0.035, 0.0, 400.0), "it would come after 50 ms"
    assert run(0.2, 0.0, 401.0)
    alone = Request(1, 500.0, deadline=500.02)
    queue.admit(alone, 500.0)  # nothing is before it: refusals must not go on for ever


class Taught:
    """A queue of single requests of 10 ms each, which has learnt from answers that came late."""

    def __init__(self) -> None:
        self.queue, self.now = RequestQueue(Costs([1], {1: 0.01})), 0.0

    def teach(self, late: Iterable[float], deadline: float | None = 1.0) -> None:
        """Answers that came so many seconds after their batch had ended."""
        for seconds in late:
            self.now += 1.0
            request = Request(0, self.now, deadline=None if deadline is None else self.now + deadline)
            self.queue.admit(request, self.now)
            batch = self.queue.take(self.now)
            assert batch is not None
            self.queue.ended(batch, self.now + 0.01)
            self.queue.answered([request], self.now + 0.01 + seconds)

    def needs(self, before: int) -> float:
        """Seconds that a request needs at least to be admitted behind others without a deadline, one of which runs."""
        self.now += 1.0
        others = [Request(0, self.now) for _ in range(before)]
        for other in others:
            self.queue.admit(other, self.now)
        batch = self.queue.take(self.now)
        assert batch is not None
        try:
            for deadline in np.arange(0.005, 1.0, 0.001):
                request = Request(0, self.now, deadline=self.now + deadline)
                with suppress(DeadlineError):
                    self.queue.admit(request, self.now)
                    self.queue.remove(request)
                    return float(deadline)
            return np.inf
        finally:
            self.queue.ended(batch, self.now + 0.01)
            for other in others:
                self.queue.remove(other)


def test_stalls_of_the_machine_ask_for_no_margin_and_many_late_answers_do() -> None:
    taught = Taught()
    taught.teach([1.5 if number % 300 == 299 else 0.001 for number in range(1200)])
    assert taught.needs(1) < 0.035
    taught.teach([1.5 if number % 20 == 19 else 0.001 for number in range(1200)])
    assert taught.needs(1) > 0.045, "the margin takes half of the time"


def test_a_margin_is_wider_as_long_as_little_is_known() -> None:
    taught = Taught()
    late = np.random.default_rng(0).uniform(0.0, 0.02, 2000)
    taught.teach(late[:64])
    early = taught.needs(1)
    taught.teach(late[64:])
    assert 0.04 < taught.needs(1) < early < 0.06


def test_answers_without_a_deadline_teach_that_others_come_sooner_again() -> None:
    taught = Taught()
    taught.teach([0.2] * 100)
    assert taught.needs(2) > 0.3
    taught.teach([0.0] * 100, deadline=None)
    assert taught.needs(2) < 0.3, "a share of the margin stays"


def test_a_delay_that_all_answers_have_does_not_grow_with_the_queue() -> None:
    taught = Taught()
    taught.teach([0.05] * 600)
    assert taught.needs(1) < 0.2
    assert taught.needs(20) < 0.5, "and not 21 times what a single one takes"


def test_to_wait_for_company_is_no_delay() -> None:
    requests = poisson(40, 30.0, within=0.1)
    queue = queue_of(gpu, ahead=1, min_batch_size=4, max_queue_delay=0.05)
    outcome = simulate(queue, requests, gpu)
    assert not outcome.refused
    assert not outcome.late


@pytest.mark.parametrize("load", [0.9, 2.0])
def test_urgent_requests_are_admitted_under_overload(load: float) -> None:
    usual = poisson(load * FULL_RATE, 3.0, within=0.05)
    urgent = poisson(0.1 * FULL_RATE, 3.0, seed=1, priority=0, within=0.05)
    outcome = simulate(queue_of(gpu, ahead=1, max_queue=2000), [*usual, *urgent], noisy(gpu))
    refused = sum(one.number in outcome.refused for one in urgent)
    assert refused <= 0.02 * len(urgent)
    dropped = set(outcome.late)
    for requests in (usual, urgent):
        late = sum(latency > 0.05 for latency in outcome.latencies(requests))
        late += sum(one.number in dropped for one in requests)
        assert late <= 0.001 * sum(one.number not in outcome.refused for one in requests)


def test_times_that_were_learnt_on_a_slow_machine_are_forgotten() -> None:
    """The thread wakes up when the expected time is nearly over, and starts the next batch before it looks."""
    queue = RequestQueue(Costs([1], {1: 0.3}), ahead=1)
    now, running = 0.0, list[RequestBatch]()
    for number in range(100):
        queue.admit(Request(number, now), now)
        batch = queue.take(now)
        assert batch is not None
        running.append(batch)
        if len(running) == 2:
            queue.ended(running.pop(0), now, noticed=True)
        now += 0.1
    assert queue.costs.seconds(1) < 0.2


def test_the_margin_depends_on_what_most_requests_have_to_spare() -> None:
    chance = np.random.default_rng(0)
    errors = chance.exponential(0.001, 2000)
    assert least_margin(errors, np.full(2000, 0.05)) == 0.0, "all have enough"
    scarce = chance.uniform(0.0, 0.05, 20_000)
    margin = least_margin(errors, scarce)
    late = [np.mean(errors > spare) for spare in scarce if spare >= margin]
    assert np.mean(late) <= LATE
    assert 0.002 < margin < 0.006
    assert margin < least_margin(errors, scarce / 10), "hardly any of those that are admitted have more"
    assert least_margin(errors, np.full(2000, 0.0001)) == pytest.approx(errors.max())
    assert least_margin(errors, []) == 0.0, "nothing is known"


def test_answers_that_take_a_multiple_of_their_work_are_predicted_so() -> None:
    """As where many threads share an interpreter: batches take their time, and answers three times as long."""
    queue = RequestQueue(Costs([1], {1: 0.01}))

    def answer(number: int, waiting: int) -> list[float]:
        """Seconds by which each of several requests that come together is answered later than predicted."""
        now = float(number)
        requests = [Request(10 * number + n, now, deadline=now + 1) for n in range(1 + waiting)]
        for request in requests:
            queue.admit(request, now)
        late = []
        for place, request in enumerate(requests, 1):
            batch = queue.take(now + 0.01 * (place - 1))
            assert batch is not None and batch.requests == [request]
            queue.ended(batch, now + 0.01 * place)
            answered = now + 0.03 * place
            late.append(answered - request.end)
            queue.answered([request], answered)
        return late

    first = answer(0, 3)
    assert min(first) > 0.015
    for number in range(1, 40):
        answer(number, 3)
    _, *behind = answer(40, 3)
    assert behind == pytest.approx([0.0] * 3, abs=0.004)
    alone = Request(1000, 100.0, deadline=100.02)
    queue.admit(alone, 100.0)  # though it was answered after 30 ms: refusals must not go on for ever


def test_after_a_slow_first_batch_requests_are_not_refused_for_ever() -> None:
    """A function whose first call compiles something, and whose callers all have short deadlines."""
    queue, refused = RequestQueue(Costs([1, 8])), 0
    for number in range(20):
        now = 10.0 * number
        try:
            queue.admit(Request(number, now, deadline=now + 0.02), now)
        except DeadlineError:
            refused += 1
            continue
        batch = queue.take(now)
        assert batch is not None
        queue.ended(batch, now + (0.005 if number else 2.0))
        queue.answered(batch.requests, now + (0.005 if number else 2.0))
        if not number:
            with pytest.raises(DeadlineError, match="predicted end in 2500"):
                queue.admit(Request(99, 2.1, deadline=2.12), 2.1)
    assert not refused
    assert queue.costs.seconds(1) == pytest.approx(0.005)
    with pytest.raises(DeadlineError, match="passed"):
        RequestQueue(Costs([1])).admit(Request(0, 5.0, deadline=4.0), 5.0)


def test_a_model_that_stays_slow_has_one_late_request_more() -> None:
    queue, admitted = RequestQueue(Costs([1, 8])), 0
    for number in range(20):
        now = 10.0 * number
        with suppress(DeadlineError):
            queue.admit(Request(number, now, deadline=now + 0.02), now)
            admitted += 1
            batch = queue.take(now)
            assert batch is not None
            queue.ended(batch, now + 2.0)
            queue.answered(batch.requests, now + 2.0)
    assert admitted == 2, "of which nothing, and little, was known"
