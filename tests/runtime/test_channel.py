"""Threads between stages: order, bounds, dropping, errors, and closing at any moment."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from framefuse.errors import DecodeError
from framefuse.runtime import channel as channels
from framefuse.runtime.channel import EMPTY, Threaded


def numbers(count: int) -> Iterator[int]:
    yield from range(count)


def test_items_arrive_in_order_and_end() -> None:
    assert list(Threaded([numbers(100)], name="count", capacity=3)) == list(range(100))


def test_block_keeps_the_producer_within_capacity() -> None:
    given: list[int] = []
    full = threading.Event()

    def produce() -> Iterator[int]:
        for number in range(10):
            given.append(number)
            if number == 3:
                full.set()
            yield number

    channel = Threaded([produce()], name="count", capacity=3)
    assert full.wait(5)
    assert given == [0, 1, 2, 3], "three wait in the queue and one in the producer's hand"
    assert list(channel) == list(range(10))


def test_latest_drops_the_oldest_and_counts_it() -> None:
    dropped: list[tuple[int, str]] = []
    channel = Threaded(
        [numbers(10)],
        name="live",
        capacity=1,
        policy="latest",
        on_drop=lambda item, cause: dropped.append((item, cause)),
    )
    (thread,) = channel._awaited
    thread.join(5)
    assert list(channel) == [9]
    assert dropped == [(number, "superseded") for number in range(9)]


def test_too_old_items_are_dropped_when_read() -> None:
    dropped: list[tuple[int, str]] = []
    channel = Threaded(
        [numbers(5)],
        name="live",
        capacity=9,
        too_old=lambda item: item < 3,
        on_drop=lambda item, cause: dropped.append((item, cause)),
    )
    assert list(channel) == [3, 4]
    assert dropped == [(0, "stale"), (1, "stale"), (2, "stale")]


def test_several_iterables_are_read_in_turn() -> None:
    channel = Threaded([iter("aaa"), iter("bbb")], name="merge", capacity=3)
    for thread in channel._awaited:
        thread.join(5)
    taken = list(channel)
    assert sorted(taken) == list("aaabbb")
    assert {taken[0], taken[1]} == {"a", "b"}


def test_get_with_a_timeout_says_empty() -> None:
    release = threading.Event()

    def late() -> Iterator[int]:
        release.wait(5)
        yield 1

    channel = Threaded([late()], name="late")
    assert channel.get(timeout=0) is EMPTY
    release.set()
    assert channel.get() == 1
    assert channel.get() is None


def test_an_error_surfaces_once_after_what_came_before_and_names_the_stage() -> None:
    def broken() -> Iterator[int]:
        yield 1
        raise DecodeError("damaged")

    channel = Threaded([broken()], name="decode")
    assert channel.get() == 1
    with pytest.raises(DecodeError, match=r"\[decode\] damaged"):
        channel.get()
    assert channel.get() is None


def test_closing_the_tail_closes_the_head_and_runs_every_finally() -> None:
    ended: list[str] = []

    def endless() -> Iterator[int]:
        try:
            while True:
                yield 1
        finally:
            ended.append("head")

    def double(numbers: Threaded[int]) -> Iterator[int]:
        try:
            for number in numbers:
                yield 2 * number
        finally:
            ended.append("middle")

    head = Threaded([endless()], name="head")
    tail = Threaded([double(head)], name="tail", cancel=head.close)
    assert tail.get() == 2
    tail.close()
    assert sorted(ended) == ["head", "middle"]
    assert not any(thread.is_alive() for thread in head._awaited | tail._awaited)
    tail.close()


def test_close_wakes_a_reader_that_waits() -> None:
    release = threading.Event()

    def silent() -> Iterator[int]:
        release.wait(5)
        yield 1

    channel = Threaded([silent()], name="silent", cancel=release.set)
    got: list[object] = []
    reader = threading.Thread(target=lambda: got.append(channel.get()))
    reader.start()
    channel.close()
    reader.join(5)
    assert got == [None]


def test_a_thread_that_never_ends_is_waited_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channels, "JOIN_SECONDS", 1.0)
    release = threading.Event()

    def stuck() -> Iterator[int]:
        release.wait()
        yield 1

    channel = Threaded([stuck()], name="stuck")
    seconds = list[float]()
    for _ in range(2):
        started = time.monotonic()
        channel.close()
        seconds.append(time.monotonic() - started)
    release.set()
    assert seconds[0] >= 1 > seconds[1]


def test_a_reader_that_waits_gets_what_comes_first() -> None:
    """However old it is, and although a newer one may come before its thread runs again."""
    turns = [threading.Event() for _ in range(2)]
    done = threading.Event()

    def items() -> Iterator[int]:
        for number, turn in enumerate(turns):
            turn.wait(5)
            yield from (2 * number, 2 * number + 1)
        done.set()

    dropped: list[int] = []
    channel = Threaded(
        [items()], name="old", too_old=lambda item: item % 2 == 0, keep_newest=True,
        on_drop=lambda item, cause: dropped.append(item),
    )  # fmt: skip
    assert channel.get(timeout=0) is EMPTY
    turns[0].set()
    while len(channel._queues[0].items) < 2:
        time.sleep(0.001)
    assert channel.get(5) == 0
    turns[1].set()
    assert done.wait(5)
    assert channel.get(5) == 1, "nobody waited"
    assert channel.get(5) == 3 and dropped == [2]
    channel.close()


def test_the_end_of_each_iterable_is_told_once() -> None:
    ended: list[int] = []
    channel = Threaded([iter([1]), iter([2, 3])], name="two", on_end=ended.append)
    assert sorted(channel) == [1, 2, 3]
    assert sorted(ended) == [0, 1]


def test_an_end_is_told_beside_an_iterable_that_always_has_an_item() -> None:
    ended: list[int] = []
    stop = threading.Event()

    def endless() -> Iterator[int]:
        while not stop.is_set():
            yield 7

    channel = Threaded([iter([1]), endless()], name="two", capacity=50, on_end=ended.append)
    for _ in range(1000):
        if channel.get(5) is None or ended:
            break
        time.sleep(0.001)
    assert ended == [0]
    stop.set()
    channel.close()
