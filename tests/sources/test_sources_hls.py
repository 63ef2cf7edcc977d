"""HLS, which brings several seconds at once: its frames come at their own pace, and none is superseded."""

from __future__ import annotations

import logging
import statistics
import threading
import time
from contextlib import closing
from itertools import islice, pairwise

import pytest

from framefuse import Pipeline
from framefuse.sources import SourceOptions
from framefuse.sources.live import LATE, Pace, open_live
from servers import FPS, HlsServer

QUICK = SourceOptions(timeout=2.0)
FRAMES = 5 * FPS
"""More than two segments of the server."""


@pytest.mark.slow
def test_a_pipeline_gets_every_frame_of_a_segmented_stream(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    with HlsServer() as server:
        pipeline = Pipeline(server.url("/live.m3u8"), "squares")
        with closing(iter(pipeline)) as results:
            indexes = [result.frame.index for result in islice(results, FRAMES)]
    dropped = sum(pipeline.report.sources[0].drops.values())
    assert indexes[-1] < 1.1 * FRAMES and dropped <= 0.1 * FRAMES
    assert not caplog.records, "a stream that plays is not called silent"


@pytest.mark.slow
def test_frames_come_at_the_intervals_of_their_pts() -> None:
    with HlsServer() as server, closing(open_live(server.url("/live.m3u8"), QUICK)) as source:
        times = [time.monotonic() for _ in islice(source, FRAMES)]
    assert statistics.median(b - a for a, b in pairwise(times)) == pytest.approx(1 / FPS, abs=0.02)


def test_close_does_not_wait_until_a_frame_is_due() -> None:
    with HlsServer() as server:
        source = open_live(server.url("/live.m3u8"), QUICK)
        next(iter(source))
        thread = threading.Thread(target=list, args=[source], daemon=True)
        thread.start()
        source.close()
        thread.join(10)
        assert not thread.is_alive()


def test_pace_waits_for_a_frame_and_starts_anew_after_a_late_one() -> None:
    pace = Pace()
    assert pace.wait(0.0, now=100.0) == 0.0
    assert pace.wait(1.0, now=100.1) == pytest.approx(0.9)
    assert pace.wait(2.0, now=102.0 + LATE / 2) == 0.0  # a little late: the next ones are on time
    assert pace.wait(3.0, now=102.5) == pytest.approx(0.5)
    assert pace.wait(4.0, now=110.0) == 0.0  # after a stall the clock starts anew
    assert pace.wait(5.0, now=110.0) == pytest.approx(1.0)
