"""Watchdog: a request that never ends becomes an error, whichever engine runs it."""

from __future__ import annotations

from collections.abc import Iterator

from framefuse.errors import EngineError
from framefuse.runtime.channel import EMPTY, Threaded
from framefuse.runtime.program import FrameResult, Program

STEP = 0.5
"""Seconds between two checks. Only checks are counted, so a process that was suspended in between has not waited."""


def watched(found: Threaded[FrameResult], program: Program, seconds: float) -> Iterator[FrameResult]:
    """What the thread of a program finds, while that thread may be inside the engine.

    Args:
        seconds: how long one request may run; 0: without limit.

    Raises:
        EngineError: a request has run for longer.
    """
    waited, last = 0.0, None
    while (item := found.get(STEP)) is not None:
        if item is not EMPTY:
            waited = 0.0
            yield item
            continue
        request = program.request
        waited = waited + STEP if request is last is not None else 0.0
        last = request
        if seconds and waited >= seconds:
            error = EngineError(
                f"the engine has not answered a request for {seconds:g} s (option request_timeout)",
                remedy="use a larger --request-timeout or a smaller --batch, or another engine",
            )
            error.stage = found.name
            raise error
