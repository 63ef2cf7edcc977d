"""Which requests run, together and when, in simulated time."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from framefuse.batching.costs import Costs
from framefuse.batching.queue import OVERTAKE, PRIORITIES, Request, RequestQueue
from framefuse.batching.simulation import poisson, simulate
from framefuse.errors import QueueFullError, UsageError
from request_queues import FULL_RATE, cpu, gpu, noisy, queue_of


def test_without_load_a_request_starts_at_once() -> None:
    requests = poisson(20, 10.0)
    outcome = simulate(queue_of(gpu), requests, gpu)
    assert np.percentile(outcome.latencies(requests), 95) <= gpu(1) * 1.01


def test_batches_form_under_load() -> None:
    requests = poisson(0.8 * FULL_RATE, 0.4)
    outcome = simulate(queue_of(gpu, ahead=1), requests, gpu)
    assert len(outcome.ended) == len(requests)
    assert np.mean([size for _, size in outcome.batches]) > 8
    assert np.percentile(outcome.latencies(requests), 99) < 0.01


def test_a_model_that_gains_nothing_runs_single_requests() -> None:
    requests = poisson(30, 10.0)
    outcome = simulate(queue_of(cpu), requests, cpu)
    assert {size for _, size in outcome.batches} == {1}


def test_better_than_the_largest_batch_with_a_fixed_delay() -> None:
    """As servers with such rules do: at the same throughput, the slowest answers come sooner."""
    requests = poisson(0.6 * FULL_RATE, 0.5)
    ours = simulate(queue_of(gpu, ahead=1), requests, gpu).latencies(requests)
    fixed = simulate(queue_of(gpu, ahead=1, min_batch_size=32, max_queue_delay=0.005), requests, gpu)
    assert len(ours) == len(fixed.ended) == len(requests)
    assert np.percentile(ours, 99) < 0.8 * np.percentile(fixed.latencies(requests), 99)


@pytest.mark.parametrize(("times", "waits"), [(1.0, True), (1.5, False)])
def test_a_thread_that_is_itself_kept_waiting_submits_batches_early(times: float, waits: bool) -> None:
    """Answers come when the batches end, or half as late again: the next batch would come too late for the model."""
    queue = queue_of(gpu, ahead=1)
    now = 0.0
    for number in range(100):
        queue.admit(Request(number, now), now)
        batch = queue.take(now)
        assert batch is not None
        queue.ended(batch, now + gpu(1))
        now += times * gpu(1)
        queue.answered(batch.requests, now)
    queue.admit(Request(100, now), now)
    assert queue.take(now) is not None
    for number in range(8):
        queue.admit(Request(101 + number, now), now)
    assert (queue.take(now) is None) is waits


@pytest.mark.parametrize("ahead", [0, 1])
def test_the_smallest_batch_that_was_asked_for_is_no_smaller_under_load(ahead: int) -> None:
    queue = queue_of(gpu, ahead=ahead, min_batch_size=32, max_queue_delay=0.5)
    for number in range(31):
        queue.admit(Request(number, 0.0), 0.0)
        assert queue.take(0.0) is None
    queue.admit(Request(31, 0.0), 0.0)
    batch = queue.take(0.0)
    assert batch is not None
    assert len(batch.requests) == 32


def test_a_short_deadline_makes_a_batch_smaller_than_the_best() -> None:
    """15 wait, of which the first has 1.6 ms left: 16 rows take 1.88 ms, and 8 take 1.24."""
    queue = queue_of(gpu, ahead=1)
    queue.admit(Request(0, 0.0, deadline=0.0016), 0.0)
    for number in range(1, 15):
        queue.admit(Request(number, 0.0), 0.0)
    batch = queue.take(0.0)
    assert batch is not None
    assert batch.size == 8


def test_waiting_for_company_ends_after_the_longest_delay() -> None:
    queue = queue_of(gpu, min_batch_size=4, max_queue_delay=0.5)
    queue.admit(Request(0, 0.0), 0.0)
    assert queue.take(0.0) is None
    assert queue.next_time(0.0) == 0.5
    batch = queue.take(0.5)
    assert batch is not None
    assert len(batch.requests) == 1


def test_a_deadline_ends_waiting_for_company() -> None:
    queue = queue_of(gpu, min_batch_size=4, max_queue_delay=0.5)
    queue.admit(Request(0, 0.0, deadline=0.1), 0.0)
    wake = queue.next_time(0.0)
    assert wake is not None
    assert 0.09 < wake < 0.1


@pytest.mark.parametrize("seed", range(3))
def test_urgent_requests_overtake_and_nothing_starves(seed: int) -> None:
    """Twice the load, most of it urgent: only what comes within the time of the overtaking goes first."""
    queue = RequestQueue(Costs([1], {1: 0.01}), max_queue=10_000)
    urgent = poisson(150, 3.0, seed=seed, priority=0)
    others = poisson(50, 3.0, seed=seed + 100, priority=PRIORITIES - 1)
    outcome = simulate(queue, urgent + others, lambda size: 0.01)
    assert len(outcome.ended) == len(urgent) + len(others)
    in_order = sorted(urgent + others, key=lambda one: one.arrival)
    waits = {one.number: outcome.ended[one.number] - one.arrival for one in in_order}
    assert np.mean([waits[one.number] for one in urgent]) < 0.8 * np.mean([waits[one.number] for one in others])
    ends = sorted(outcome.ended.values())
    for one in others:
        before = sum(other.arrival <= one.arrival + (PRIORITIES - 1) * OVERTAKE + 0.02 for other in in_order)
        assert outcome.ended[one.number] <= ends[before - 1]


def test_sources_take_turns() -> None:
    """One that floods the queue delays itself, not another."""
    queue = RequestQueue(Costs([1], {1: 0.01}), max_queue=1000)
    flood = [Request(0, 0.0, source="flood") for _ in range(400)]
    calm = [Request(0, 0.1 * number, source="calm") for number in range(20)]
    outcome = simulate(queue, flood + calm, lambda size: 0.01)
    assert max(outcome.latencies(calm)) < 0.1


def test_a_source_leaves_room_for_others() -> None:
    queue = RequestQueue(Costs([1], {1: 1.0}), max_queue=16)
    for number in range(8):
        queue.admit(Request(number, 0.0, source="flood"), 0.0)
    with pytest.raises(QueueFullError, match="source 'flood' has 8 of the 8"):
        queue.admit(Request(8, 0.0, source="flood"), 0.0)
    queue.admit(Request(9, 0.0, source="calm"), 0.0)


def test_the_queue_is_bounded() -> None:
    queue = RequestQueue(Costs([1], {1: 1.0}), max_queue=2)
    for number in range(2):
        queue.admit(Request(number, 0.0), 0.0)
    with pytest.raises(QueueFullError, match="2 requests are waiting"):
        queue.admit(Request(2, 0.0), 0.0)


@pytest.mark.parametrize("priority", [-1, 4, 1.5, None, "high"])
def test_a_priority_out_of_range(priority: object) -> None:
    with pytest.raises(UsageError, match="priority is"):
        queue_of(gpu).admit(Request(0, 0.0, priority=priority), 0.0)  # type: ignore[arg-type]


def test_buckets_do_not_mix_and_do_not_block_each_other() -> None:
    queue = queue_of(gpu, min_batch_size=3, max_queue_delay=1.0)
    queue.admit(Request(0, 0.0, bucket="small"), 0.0)
    for number in range(1, 4):
        queue.admit(Request(number, 0.0, bucket="large"), 0.0)
    batch = queue.take(0.0)
    assert batch is not None
    assert [one.number for one in batch.requests] == [1, 2, 3]


@pytest.mark.parametrize("seed", range(10))
def test_nothing_is_lost_or_doubled(seed: int) -> None:
    """Random loads, priorities, sources, buckets, deadlines and limits: each request ends exactly once."""
    chance = np.random.default_rng(seed)
    rate, servers, ahead = float(chance.uniform(100, 20_000)), int(chance.integers(1, 4)), int(chance.integers(0, 2))
    queue = queue_of(
        gpu,
        max_queue_delay=float(chance.uniform(0, 0.02)),
        min_batch_size=int(chance.integers(1, 9)),
        max_queue=int(chance.integers(4, 512)),
        servers=servers,
        ahead=ahead,
    )
    queue.limit = int(chance.choice([1, 3, 32]))
    requests = poisson(rate, 0.15, seed=seed)
    for one in requests:
        one.priority = int(chance.integers(PRIORITIES))
        one.source = chance.choice([None, "a", "b"])
        one.bucket = int(chance.integers(3))
        one.deadline = one.arrival + float(chance.uniform(0, 0.05)) if chance.random() < 0.5 else None
    outcome = simulate(queue, requests, noisy(gpu), servers=servers)
    fates = Counter([*outcome.ended, *outcome.refused, *outcome.late])
    assert set(fates.values()) == {1}
    assert len(fates) == len(requests)
    assert len(queue) == queue.running == 0
    assert max((size for _, size in outcome.batches), default=0) <= queue.limit


def test_a_request_is_taken_back() -> None:
    queue = queue_of(gpu)
    request = Request(0, 0.0, source="a")
    queue.admit(request, 0.0)
    assert queue.remove(request)
    assert not queue.remove(request)
    assert queue.take(0.0) is None


def test_only_exact_times_count_as_such() -> None:
    queue = RequestQueue(Costs([1], {1: 0.1}), ahead=1)
    for number in range(3):
        queue.admit(Request(number, 0.0), 0.0)
    first, second = (queue.take(0.0) for _ in range(2))
    assert first and second
    queue.ended(first, 0.3, noticed=True)
    assert queue.costs.seconds(1) == pytest.approx(0.1), "it has taken no more than was expected"
    queue.ended(second, 0.31)
    assert queue.costs.seconds(1) == pytest.approx(0.1), "nobody knows when it was begun"
    third = queue.take(0.4)
    assert third
    queue.ended(third, 0.6)
    assert queue.costs.seconds(1) == pytest.approx(0.11)


def test_a_batch_that_begins_unnoticed_is_not_as_short_as_it_seems() -> None:
    queue = RequestQueue(Costs([1], {1: 0.1}), ahead=1)
    for number in range(2):
        queue.admit(Request(number, 0.0), 0.0)
    first, second = (queue.take(0.0) for _ in range(2))
    assert first and second
    queue.ended(first, 0.2, noticed=True)  # 0.1 s too late, when the second one has ended, too
    queue.ended(second, 0.2, noticed=True)
    assert queue.costs.seconds(1) == pytest.approx(0.1)
