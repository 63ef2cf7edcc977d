"""Calls that a signal or a timeout leaves."""

from __future__ import annotations

import gc
import threading
import weakref

import pytest

from framefuse.common.aside import aside


@pytest.mark.parametrize("seconds", [None, 10.0])
def test_the_call_runs_in_a_thread_that_nothing_waits_for(seconds: float | None) -> None:
    thread = aside(threading.current_thread, seconds)
    assert thread is not threading.current_thread() and thread.daemon


def test_a_call_that_does_not_end_is_left() -> None:
    gate = threading.Event()
    with pytest.raises(TimeoutError, match=r"no end after 0\.05 s"):
        aside(gate.wait, 0.05)
    gate.set()


def test_an_error_of_the_call_is_raised_and_not_kept() -> None:
    class Large:
        """What a frame of the call refers to, such as a network."""

    kept = list[weakref.ref[Large]]()

    def fail() -> None:
        large = Large()
        kept.append(weakref.ref(large))
        raise ValueError("bad model")

    gc.disable()
    try:
        with pytest.raises(ValueError, match="bad model") as caught:
            aside(fail)
        del caught
        assert kept[0]() is None
    finally:
        gc.enable()
