"""What a batch costs: learnt from the batches that have run."""

from __future__ import annotations

import numpy as np
import pytest

from framefuse.batching.costs import Costs


def test_a_batch_runs_as_the_next_larger_size() -> None:
    costs = Costs([1, 2, 4, 12])
    assert [costs.fit(count) for count in (1, 2, 3, 4, 5, 12)] == [1, 2, 4, 4, 12, 12]


def test_a_larger_batch_must_be_faster_per_request() -> None:
    per_row = Costs([1, 2, 4, 8], {1: 1.0, 2: 2.0, 4: 3.9, 8: 7.9})
    assert per_row.best == per_row.enough == 1
    assert per_row.choose(8) == 1
    together = Costs([1, 2, 4, 8], {1: 1.0, 2: 1.1, 4: 1.3, 8: 1.7})
    assert (together.best, together.enough) == (8, 4)
    assert [together.choose(count) for count in (1, 2, 3, 4, 8, 100)] == [1, 2, 4, 4, 8, 8]


def test_padding_counts() -> None:
    """Three requests in a batch of four that takes four times as long as one: rather three batches of one."""
    assert Costs([1, 4], {1: 1.0, 4: 3.2}).choose(3) == 1
    assert Costs([1, 4], {1: 1.0, 4: 2.0}).choose(3) == 4


def test_a_size_that_has_not_run_is_tried() -> None:
    costs = Costs([1, 2, 4])
    assert costs.seconds(4) == 0.0
    costs.learn(1, 1.0)
    assert costs.choose(4) == 4
    costs.learn(4, 4.0)
    assert costs.best == 2
    costs.learn(2, 2.0)
    assert costs.best == 1


def test_a_wait_that_any_batch_may_have_is_no_share_of_a_large_one() -> None:
    """Batches of one took 0.2 ms, some of them 5 ms more: 25 times as long. One of 32 then takes 1.5 ms, or 6.5."""
    costs = Costs([1, 32], {1: 0.0002, 32: 0.0015})
    for number in range(320):
        costs.learn(1, 0.0002 + 0.005 * (number % 20 == 0))
    assert 0.0015 < costs.bound(32) < 0.007
    assert costs.bound(1) < 0.006


def test_nearly_all_batches_take_no_longer_than_the_bound() -> None:
    costs, chance = Costs([1], {1: 0.5}), np.random.default_rng(0)
    for seconds in chance.uniform(0.9, 1.3, 600):
        costs.learn(1, float(seconds))
    assert costs.seconds(1) == pytest.approx(1.1, rel=0.05)
    assert 1.25 < costs.bound(1) < 1.4


def test_an_outlier_is_no_trend() -> None:
    costs = Costs([1], {1: 1.0})
    costs.learn(1, 1000.0)
    assert costs.seconds(1) < 1.2


def test_a_batch_that_is_noticed_late_does_not_make_the_next_ones_seem_longer() -> None:
    costs = Costs([1, 8], {1: 0.001, 8: 0.004})
    for _ in range(100):  # the thread looks when nearly all of the expected time is over
        costs.learn(8, max(0.004, costs.seconds(8)) + 0.001, at_most=True)
    assert costs.seconds(8) == pytest.approx(0.004, rel=0.05)
    assert costs.bound(8) > 0.0045, "deadlines are those of answers"
    for _ in range(100):
        costs.learn(8, 0.006)
    assert costs.seconds(8) == pytest.approx(0.006, rel=0.01)


def test_batches_that_are_noticed_late_do_not_seem_ever_shorter() -> None:
    costs = Costs([1, 8], {1: 0.001, 8: 0.004})
    for _ in range(100):
        costs.learn(8, 0.003)  # less than was measured
        costs.learn(8, 0.009, at_most=True)
    assert 0.0025 < costs.seconds(8) < 0.0035
    for _ in range(300):
        costs.learn(8, 0.009, at_most=True)
    assert costs.seconds(8) == pytest.approx(0.003, rel=0.05)


def test_sizes_that_have_not_run_lately_take_longer_where_others_do() -> None:
    """Each batch waits 2 ms for something else, so large ones pay most."""
    costs = Costs([8, 16], {8: 0.0005, 16: 0.00085})
    assert costs.choose(16) == 16
    for _ in range(200):
        costs.learn(16, 0.00285)
    assert costs.seconds(8) == pytest.approx(0.0025, rel=0.01)
    assert costs.choose(16) == 16
    for _ in range(200):
        costs.learn(8, 0.0006)
    assert costs.seconds(8) == pytest.approx(0.0006, rel=0.01)
    assert costs.seconds(16) == pytest.approx(0.00095, rel=0.01)


def test_a_batch_that_is_faster_than_it_was_alone_makes_no_other_negative() -> None:
    """As on a GPU whose clock was low when it was measured."""
    costs = Costs([1, 2, 32], {1: 0.001, 2: 0.0015, 32: 0.02})
    for _ in range(2000):
        costs.learn(32, 0.002)
    assert costs.seconds(32) == pytest.approx(0.002, rel=0.01)
    assert [costs.seconds(size) for size in (1, 2)] == pytest.approx([0.001, 0.0015])
    assert costs.bound(1) >= 0.001
