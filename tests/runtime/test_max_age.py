"""Live sources with slow readers: results stay young, and every frame is delivered or counted as dropped."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import pytest

from framefuse import CallbackSink, Pipeline, Result
from servers import Server

FRAMES = 60
MAX_AGE = 0.4
SLOW = 0.25
SLACK = 0.6
"""Seconds that a busy machine may add."""


def run(take: Callable[[Result], None], **options: Any) -> tuple[list[int], dict[str, int]]:
    """Indexes of the results that the caller takes from about four seconds of a camera, and the drops."""
    indexes: list[int] = []
    with Server() as server:
        pipeline = Pipeline(server.url(), "squares", max_age=MAX_AGE, **options)
        for result in pipeline:
            take(result)
            indexes.append(result.frame.index)
            if result.frame.index >= FRAMES:
                break
    return indexes, pipeline.report.sources[0].drops


def age(result: Result) -> float:
    assert result.arrival is not None
    return time.monotonic() - result.arrival


@pytest.mark.parametrize(
    "where",
    [*(pytest.param(where, marks=pytest.mark.slow) for where in ("sink", "caller")), "caller behind a quick sink"],
)
def test_a_slow_reader_gets_young_results(where: str) -> None:
    ages: list[float] = []
    written: list[int] = []

    def slow(result: Result, *_: Any) -> None:
        ages.append(age(result))
        time.sleep(SLOW)

    def quick(result: Result, *_: Any) -> None:
        written.append(result.frame.index)

    sinks = {
        "sink": [lambda: CallbackSink(slow)],
        "caller": [],
        "caller behind a quick sink": [lambda: CallbackSink(quick)],
    }
    indexes, drops = run(slow if "caller" in where else lambda result: None, sinks=sinks[where])
    # Without max_age they would grow older by 0.18 s with each result. The first one may wait for the model.
    assert statistics.median(ages) < MAX_AGE + SLACK
    assert indexes == sorted(set(indexes)) and len(indexes) > 5
    assert sum(drops.get(cause, 0) for cause in ("superseded", "stale", "not taken")) >= FRAMES - len(indexes) - 20
    # What was behind the last result when the loop ended was neither delivered nor dropped.
    assert len(indexes) + sum(drops.values()) <= indexes[-1] + 20
    if written:
        assert len(written) > 2 * len(indexes) and drops["not taken"] > 10


@pytest.mark.slow
def test_a_sink_slower_than_max_age_still_gets_the_newest_results() -> None:
    ages: list[float] = []

    def slow(result: Result, *_: Any) -> None:
        ages.append(age(result))
        time.sleep(2 * MAX_AGE)

    indexes, _ = run(lambda result: None, sinks=[lambda: CallbackSink(slow)])
    assert len(indexes) >= 3 and statistics.median(ages) < MAX_AGE + SLACK


def test_a_quick_reader_gets_every_result() -> None:
    indexes, drops = run(lambda result: None)
    assert len(indexes) + drops.get("superseded", 0) + drops.get("stale", 0) == indexes[-1] + 1
    assert len(indexes) > 0.5 * FRAMES  # some frames come while the model starts


@pytest.mark.parametrize("size", [(320, 180), (160, 120)], ids=["16:9", "4:3"])
def test_no_frame_is_lost_while_the_model_loads(size: tuple[int, int]) -> None:
    with Server(size=size) as server:
        pipeline = Pipeline(server.url(), "scout-n", max_age=MAX_AGE)
        indexes = [result.frame.index for result, _ in zip(pipeline, range(20), strict=False)]
        pipeline.close()
    # A few that were sent at once while it connected; a model loads for 20 frames and more.
    assert indexes[0] < 15, pipeline.report.sources[0].drops
