"""Which of many threads gets a lock, and which wait for it outside the interpreter."""

from __future__ import annotations

import threading
import time

import pytest

from command_line import wait_for
from framefuse.runtime import priority_lock
from framefuse.runtime.priority_lock import PLACES, POLITE, PriorityLock


def test_one_thread_gets_the_lock_before_those_that_come_after_it() -> None:
    lock, begun, order = PriorityLock(), list[str](), list[str]()

    def take(name: str) -> None:
        if name == "first":
            lock.first = threading.get_ident()
        begun.append(name)
        with lock:
            order.append(name)

    with lock:
        threads = [threading.Thread(target=take, args=("first",))]
        threads[0].start()
        wait_for(lambda: lock._waits)
        threads += [threading.Thread(target=take, args=(str(number),)) for number in range(8)]
        for thread in threads[1:]:
            thread.start()
        wait_for(lambda: len(begun) == len(threads))
    for thread in threads:
        thread.join()
    assert order[0] == "first"
    assert len(order) == 9


def test_other_threads_stand_back_while_the_first_one_has_something_to_do() -> None:
    lock = PriorityLock()

    def seconds() -> float:
        begun = time.monotonic()
        lock.stand_back()
        return time.monotonic() - begun

    lock.rest(time.monotonic() + 3600)
    lock.stand_back()
    lock.due()
    assert seconds() >= POLITE  # and no longer than that, whatever the first thread does
    waiting = threading.Thread(target=lock.stand_back)
    waiting.start()
    lock.rest(None)  # lets those go on that wait
    waiting.join()
    lock.rest(time.monotonic() - 1)
    assert seconds() >= POLITE


@pytest.mark.parametrize("places", [PLACES, 3])
def test_only_a_few_stand_back_in_a_crowd(monkeypatch: pytest.MonkeyPatch, places: int) -> None:
    monkeypatch.setattr(priority_lock, "POLITE", 60.0)
    lock, stood = PriorityLock(), list[bool]()
    lock.places = places
    lock.due()
    threads = [threading.Thread(target=lambda: stood.append(lock.stand_back(crowded=True))) for _ in range(places)]
    for thread in threads:
        thread.start()
    wait_for(lambda: len(lock._standing) == places)
    assert not lock.stand_back(crowded=True)
    lock.rest(None)
    for thread in threads:
        thread.join()
    assert stood == [True] * places
    assert lock.stand_back(crowded=True)
