"""Requests from many threads, with real models and plain functions."""

from __future__ import annotations

import asyncio
import io
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import CancelledError, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cv2
import numpy as np
import pytest
from PIL import Image

import framefuse
from framefuse.errors import (
    DeadlineError,
    DecodeError,
    EngineError,
    GpuLostError,
    GpuMemoryError,
    QueueFullError,
    SourceError,
    UsageError,
)
from framefuse.frame import Frame
from framefuse.runtime import batcher as batchers
from framefuse.runtime.batcher import Batcher
from framefuse.runtime.priority_lock import POLITE
from framefuse.runtime.runners import ModelRunner

MODEL = "scout-n"


@pytest.fixture(scope="module")
def images() -> list[np.ndarray[Any, Any]]:
    source = framefuse.open_source("synthetic://street?frames=12&size=320x180&complexity=1")
    return [cv2.cvtColor(frame.to_rgb(), cv2.COLOR_RGB2BGR) for frame in source][:12]


@pytest.fixture(scope="module")
def batcher() -> Iterator[Batcher]:
    with Batcher(MODEL, imgsz=320, max_batch_size=4) as opened:
        yield opened


def same(one: framefuse.Result, other: framefuse.Result) -> None:
    np.testing.assert_allclose(one.detections.xyxy, other.detections.xyxy, atol=2.0)
    np.testing.assert_array_equal(one.detections.class_id, other.detections.class_id)


def test_many_threads_get_what_a_model_finds(batcher: Batcher, images: list[Any]) -> None:
    with framefuse.Model(MODEL, imgsz=320) as model:
        expected = [model(image) for image in images]
    assert sum(len(result.detections) for result in expected) > 20
    with ThreadPoolExecutor(12) as pool:
        responses = list(pool.map(lambda image: batcher.submit(image).result(), images))
    for response, result in zip(responses, expected, strict=True):
        same(response.result, result)
        assert response.id == response.result.frame.index
        assert 0 <= response.queue_seconds < response.latency_seconds
        assert response.batch_size >= 1
    assert len({response.id for response in responses}) == len(images)


def test_images_of_other_sizes_files_and_frames(batcher: Batcher, images: list[Any], tmp_path: Path) -> None:
    cv2.imwrite(str(tmp_path / "one.png"), images[0])
    tall = np.ascontiguousarray(images[1][:, :60])
    given = [images[0], tmp_path / "one.png", framefuse.Frame.from_array(images[0]), tall, images[0][..., 0]]
    results = [future.result().result for future in [batcher.submit(item) for item in given]]
    same(results[0], results[1])
    same(results[0], results[2])
    assert (results[3].frame.width, results[3].frame.height) == (60, 180)


@pytest.mark.parametrize("item", [np.zeros((4, 4, 7), np.uint8), np.zeros((8, 8, 3)), "clip.mp4", None, object()])
def test_what_is_no_image_fails_alone(batcher: Batcher, images: list[Any], item: Any) -> None:
    good = batcher.submit(images[0])
    with pytest.raises((UsageError, SourceError)):
        batcher.submit(item)
    assert len(good.result().result.detections)


def test_asyncio(batcher: Batcher, images: list[Any]) -> None:
    async def all_of_them() -> list[framefuse.Response[Any]]:
        return await asyncio.gather(*(asyncio.wrap_future(batcher.submit(image)) for image in images))

    assert len(asyncio.run(all_of_them())) == len(images)


def test_an_open_model_stays_open(images: list[Any]) -> None:
    with framefuse.Model(MODEL, imgsz=320) as model:
        with Batcher(model, max_batch_size=2) as batcher:
            same(batcher.submit(images[0]).result().result, model(images[0]))
        assert len(model(images[0]).detections)


def test_a_model_of_views_is_refused() -> None:
    with pytest.raises(UsageError, match="views"):
        Batcher(MODEL, tiles="2x2")


def test_a_function_gets_lists() -> None:
    sizes: list[int] = []
    gate = threading.Event()

    def double(items: list[int]) -> list[int]:
        gate.wait()
        sizes.append(len(items))
        return [2 * item for item in items]

    with Batcher(double, max_batch_size=8) as batcher:
        futures = [batcher.submit(number) for number in range(20)]
        gate.set()
        assert [future.result().result for future in futures] == [2 * number for number in range(20)]
    assert max(sizes) == 8
    assert sum(sizes) == 20
    stats = batcher.stats()
    assert (stats.submitted, stats.completed, stats.failed, stats.waiting, stats.running) == (20, 20, 0, {}, 0)
    assert sum(size * count for size, count in stats.batch_sizes.items()) == 20


def test_an_item_that_fails_among_good_ones_fails_alone() -> None:
    gate = threading.Event()

    def inverse(items: list[int]) -> list[float]:
        gate.wait()
        return [1 / item for item in items]

    with Batcher(inverse, max_batch_size=8) as batcher:
        futures = [batcher.submit(item) for item in (1, 2, 0, 4)]
        gate.set()
        assert isinstance(futures[2].exception(), ZeroDivisionError)
        assert [futures[place].result().result for place in (0, 1, 3)] == [1, 0.5, 0.25]
    assert batcher.stats().failed == 1


@pytest.mark.parametrize("returned", [None, [1, 2, 3]])
def test_a_function_that_returns_something_else(returned: Any) -> None:
    with Batcher(lambda items: returned) as batcher, pytest.raises(UsageError, match="returned"):
        batcher.submit(1).result()


def test_a_batch_that_does_not_fit_is_run_in_smaller_ones_and_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batchers, "RECOVER_SECONDS", 0.2)
    most, sizes = [2], list[int]()

    def limited(items: list[int]) -> list[int]:
        time.sleep(0.01)
        sizes.append(len(items))
        if len(items) > most[0]:
            raise GpuMemoryError("no room")
        return items

    with Batcher(limited, max_batch_size=8) as batcher:
        futures = [batcher.submit(number) for number in range(60)]
        assert [future.result().result for future in futures] == list(range(60))
        assert batcher.stats().max_batch_size < 8
        most[0] = 8
        give_up = time.monotonic() + 20
        while batcher.stats().max_batch_size < 8 and time.monotonic() < give_up:
            batcher.submit(0).result()
        futures = [batcher.submit(number) for number in range(60)]
        assert [future.result().result for future in futures] == list(range(60))
        assert 8 in sizes[-10:]


class Held:
    """A function that returns its items once it may go on."""

    def __init__(self) -> None:
        self.running, self.go_on = threading.Event(), threading.Event()

    def __call__(self, items: list[int]) -> list[int]:
        self.running.set()
        self.go_on.wait()
        return items


def test_a_lost_gpu_ends_everything() -> None:
    def lost(items: list[int]) -> list[int]:
        raise GpuLostError("lost")

    batcher = Batcher(lost)
    with pytest.raises(GpuLostError):
        batcher.submit(1).result()
    assert batcher.drain(5)
    with pytest.raises(UsageError, match="closed, since it has stopped: GpuLostError"):
        batcher.submit(2)


def test_a_function_that_exits_fails_only_its_own_item() -> None:
    def function(items: list[int]) -> list[int]:
        if 3 in items:
            sys.exit("bad")
        return items

    with Batcher(function, max_batch_size=4) as batcher:
        futures = [batcher.submit(number) for number in range(6)]
        with pytest.raises(SystemExit, match="bad"):
            futures.pop(3).result()
        assert [future.result().result for future in futures] == [0, 1, 2, 4, 5]


def test_a_closed_model_and_images_that_end_early() -> None:
    model = framefuse.Model("squares")
    batcher = Batcher(model)
    content = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (99, 99, 3), np.uint8)).save(content, "PNG")
    with pytest.raises(DecodeError, match="truncated"):
        batcher.submit(Image.open(io.BytesIO(content.getvalue()[:9000])))
    model.close()
    for call in (lambda: batcher.submit(np.zeros((64, 64, 3), np.uint8)), lambda: Batcher(model)):
        with pytest.raises(UsageError, match=r"squares\.onnx is closed"):
            call()
    batcher.close()
    with pytest.raises(UsageError, match="this Batcher is closed"):
        batcher.submit(np.zeros((64, 64, 3), np.uint8))


def test_who_waits_for_several_futures_hears_of_cancelled_ones() -> None:
    held = Held()
    with Batcher(held, max_batch_size=1) as batcher:
        first, cancelled, left = (batcher.submit(number) for number in range(3))
        held.running.wait()
        assert cancelled.cancel()
        assert wait([cancelled], 10).done == {cancelled}
        completed: Any = batcher.submit(3)
        completed.set_result(None)  # by a caller who should not: nobody else suffers
        last = batcher.submit(4)
        held.go_on.set()
        assert [future.result().result for future in (first, left, last)] == [0, 2, 4]
    batcher = Batcher(held, max_batch_size=1)
    held.go_on.clear()
    held.running.clear()
    waiting = [batcher.submit(number) for number in range(3)]
    held.running.wait()
    threading.Timer(0.05, held.go_on.set).start()
    batcher.close(cancel=True)
    assert not wait(waiting, 10).not_done


def test_deadlines() -> None:
    def slow(items: list[int]) -> list[int]:
        time.sleep(0.1)
        return items

    with Batcher(slow, max_batch_size=1) as batcher:
        batcher.submit(0).result()
        with pytest.raises(DeadlineError, match="predicted end"):
            batcher.submit(1, deadline=0.02)
        with pytest.raises(DeadlineError, match="passed"):
            batcher.submit(1, deadline=-1)
        assert batcher.submit(2, deadline=30).result().result == 2
        with pytest.raises(UsageError, match="deadline is 'soon'"):
            batcher.submit(3, deadline="soon")  # type: ignore[arg-type]
        assert batcher.stats().refused == {"DeadlineError": 2}


def test_a_client_that_insists_stands_back_and_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batchers, "INSISTS", 60.0)
    stood, paused = list[bool](), list[float]()
    monkeypatch.setattr(batchers, "sleep", paused.append)
    with Batcher(lambda items: items) as batcher:
        monkeypatch.setattr(batcher._lock, "stand_back", lambda crowded=False: stood.append(crowded) is None)
        batcher.submit(0, deadline=30.0).result()
        for refusals in (1, 2):
            with pytest.raises(DeadlineError):
                batcher.submit(0, deadline=-1)
            assert len(paused) == refusals - 1
        assert len(stood) == 1  # it has a short deadline
        assert 0 < paused[0] <= batchers.REFUSED_MOST
        batcher.submit(0).result()
        assert len(stood) == 1  # it has no deadline
        batcher.submit(0, deadline=30.0).result()
        assert stood == [False] * 3  # before and after it was prepared


def test_short_deadlines_are_refused_in_a_crowd_but_not_urgent_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batchers, "INSISTS", 60.0)
    paused = list[float]()
    monkeypatch.setattr(batchers, "sleep", paused.append)
    with Batcher(lambda items: items) as batcher:
        batcher.submit(0).result()
        monkeypatch.setattr(batcher._lock, "stand_back", lambda crowded=False: not crowded)
        batcher._admitted = batchers.OVERLOAD / 2
        for deadline in (0.09, 0.09, 0.016):  # all but the first insist
            with pytest.raises(DeadlineError, match="overloaded"):
                batcher.submit(1, deadline=deadline)
        assert paused == [batchers.CROWD_MOST, pytest.approx(0.012)]
        assert batcher.submit(2, deadline=0.09, priority=0).result().result == 2
        assert batcher.submit(3, deadline=30.0).result().result == 3
        assert batcher.submit(4).result().result == 4
        stats = batcher.stats()
        assert stats.submitted == 7 and stats.refused == {"DeadlineError": 3}


def test_larger_batches_let_more_requests_stand_back_in_a_crowd() -> None:
    held = Held()
    with Batcher(held, max_batch_size=16) as batcher:
        alone = batcher.submit(0)
        held.running.wait()
        fewest = batcher._lock.places
        together = [batcher.submit(number) for number in range(1, 17)]  # they wait for the one that runs
        held.go_on.set()
        assert max(future.result().batch_size for future in [alone, *together]) == 16
        assert batcher._lock.places == 32 > fewest
        batcher.submit(17).result()
        assert batcher._lock.places == fewest


def test_clients_give_way_once_a_batch_may_start_and_not_while_a_function_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    due, told = list[float](), list[int]()

    def function(items: list[int]) -> list[int]:
        due.append(batcher._lock._due)
        return items

    with Batcher(function) as batcher:
        tell = batcher._lock.due
        monkeypatch.setattr(batcher._lock, "due", lambda: (told.append(threading.get_ident()), tell()))
        for number in range(3):
            batcher.submit(number).result()
            assert told.count(threading.get_ident()) == number + 1
    assert due == [math.inf] * 3  # it says itself when it has ended


def test_an_answer_may_lead_to_another_request() -> None:
    """Callbacks run in the thread that the others stand back for."""
    latencies, done = list[float](), threading.Event()

    def again(batcher: Batcher, number: int) -> None:
        begun = time.monotonic()
        future = batcher.submit(number, deadline=5.0)
        latencies.append(time.monotonic() - begun)
        future.add_done_callback(lambda _: again(batcher, number + 1) if number < 20 else done.set())

    with Batcher(lambda items: items) as batcher:
        again(batcher, 0)
        assert done.wait(10)
    assert sorted(latencies)[len(latencies) // 2] < POLITE  # it does not wait for itself


def test_clients_whose_requests_are_refused_do_not_keep_others_waiting() -> None:
    done = threading.Event()

    def ask_again(batcher: Batcher) -> None:
        while not done.is_set():
            with suppress(DeadlineError):
                batcher.submit(0, deadline=-1)

    with Batcher(lambda items: items) as batcher:
        threads = [threading.Thread(target=ask_again, args=(batcher,)) for _ in range(8)]
        for thread in threads:
            thread.start()
        latencies = [batcher.submit(number, deadline=2.0).result().latency_seconds for number in range(20)]
        done.set()
        for thread in threads:
            thread.join()
    assert len(latencies) == 20  # each within its deadline


@contextmanager
def becoming_slow() -> Iterator[Batcher]:
    """A Batcher of a function that was quick when it was measured, and takes three seconds from now on."""
    slow = [0.01]

    def function(items: list[int]) -> list[int]:
        time.sleep(slow[0])
        return items

    with Batcher(function, max_batch_size=1) as batcher:
        batcher.submit(0).result()
        slow[0] = 3.0
        yield batcher


def test_an_admitted_request_that_becomes_late_is_dropped() -> None:
    with becoming_slow() as batcher:
        futures = [batcher.submit(number, deadline=1.5) for number in range(3)]
        errors = [future.exception() for future in futures]
        assert any(isinstance(error, DeadlineError) for error in errors)
        assert batcher.stats().late == 3


def test_a_full_queue_refuses_and_cancelled_requests_make_room() -> None:
    gate = threading.Event()

    def held(items: list[int]) -> list[int]:
        gate.wait()
        return items

    with Batcher(held, max_batch_size=1, max_queue=3) as batcher:
        futures = [batcher.submit(0)]
        while batcher.stats().running == 0:
            time.sleep(0.001)
        futures += [batcher.submit(number) for number in (1, 2, 3)]
        with pytest.raises(QueueFullError, match="3 requests"):
            batcher.submit(4)
        assert futures[2].cancel()
        futures.append(batcher.submit(5))
        gate.set()
        assert [future.result().result for future in futures if not future.cancelled()] == [0, 1, 3, 5]
        with pytest.raises(CancelledError):
            futures[2].result()
        assert batcher.stats().cancelled == 1


def test_close_answers_or_cancels_what_waits() -> None:
    for cancel in (False, True):
        gate = threading.Event()

        def held(items: list[int], gate: threading.Event = gate) -> list[int]:
            gate.wait()
            return items

        batcher = Batcher(held, max_batch_size=1)
        futures = [batcher.submit(number) for number in range(4)]
        while batcher.stats().running == 0:
            time.sleep(0.001)
        threading.Timer(0.05, gate.set).start()
        batcher.close(cancel=cancel)
        batcher.close()
        assert futures[0].result().result == 0
        assert [future.cancelled() for future in futures[1:]] == [cancel] * 3
        with pytest.raises(UsageError, match="closed"):
            batcher.submit(1)


def test_no_thread_is_left(images: list[Any]) -> None:
    before = threading.active_count()
    for _ in range(3):
        with Batcher(lambda items: items) as batcher:
            batcher.submit(1).result()
    assert threading.active_count() == before


def test_a_callback_may_submit_and_close() -> None:
    batcher = Batcher(lambda items: items)
    seen = threading.Event()

    def again(future: Any) -> None:
        batcher.submit(2).add_done_callback(lambda done: (batcher.close(), seen.set()))

    batcher.submit(1).add_done_callback(again)
    assert seen.wait(5)


@pytest.mark.parametrize("raised", [ValueError, SystemExit, KeyboardInterrupt])
def test_a_callback_that_raises_keeps_no_other_request_waiting(raised: type[BaseException]) -> None:
    gate = threading.Event()

    def fail(future: Any) -> None:
        raise raised

    def inverse(items: list[int]) -> list[float]:
        gate.wait()
        return [1 / item for item in items]

    with Batcher(inverse, max_batch_size=4) as batcher:
        futures = [batcher.submit(number) for number in (1, 2, 3, 4, 0, 5)]
        for future in (futures[0], futures[2], futures[4]):
            future.add_done_callback(fail)
        gate.set()
        assert [future.result(10).result for future in futures if future is not futures[4]] == [
            1,
            1 / 2,
            1 / 3,
            1 / 4,
            1 / 5,
        ]
        assert isinstance(futures[4].exception(10), ZeroDivisionError)
        assert batcher.submit(6).result(10).result == 1 / 6


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_the_requests_of_a_thread_that_dies_are_answered() -> None:
    futures = list[Any]()

    def produce(batcher: Batcher) -> None:
        futures.append(batcher.submit(1))
        raise SystemExit

    with Batcher(lambda items: items) as batcher:
        producer = threading.Thread(target=produce, args=(batcher,))
        producer.start()
        producer.join()
        assert futures[0].result(10).result == 1
        assert batcher.submit(2).result(10).result == 2


@pytest.mark.parametrize(
    "options",
    [
        *({"deadline": value} for value in (float("nan"), float("inf"), float("-inf"), 10**400, True, 1j)),
        *({"priority": value} for value in (-1, 4, 1.5, "1", None, float("nan"))),
        *({"source": value} for value in ([], ([],), np.zeros(3))),
    ],
)
def test_wrong_arguments_of_a_request(options: dict[str, Any]) -> None:
    with Batcher(lambda items: items) as batcher:
        with pytest.raises(UsageError, match=f"{next(iter(options))} is") as caught:
            batcher.submit(1, **options)
        assert caught.value.remedy
        assert batcher.submit(2, deadline=np.float32(30)).result(10).result == 2
        assert batcher.stats().waiting == {}


@pytest.mark.parametrize("timeout", ["1", -1, float("nan"), float("inf"), 1e300])
def test_wrong_timeouts(timeout: Any) -> None:
    with Batcher(lambda items: items) as batcher, pytest.raises(UsageError, match="timeout is"):
        batcher.drain(timeout)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_forked_while_requests_wait_ends_at_once() -> None:
    gate = threading.Event()

    def held(items: list[int]) -> list[int]:
        gate.wait()
        return items

    with Batcher(held) as batcher:
        future = batcher.submit(1)
        with batcher._changed:  # as another thread may
            child = os.fork()
            if not child:
                signal.alarm(20)  # ends it if it waits for a thread that it does not have
                batcher.close()
                try:
                    batcher.drain()
                except UsageError:
                    os._exit(7)
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        gate.set()
        assert future.result(10).result == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_is_told() -> None:
    with Batcher(lambda items: items) as batcher:
        if not (child := os.fork()):
            try:
                batcher.submit(1)
            except UsageError:
                os._exit(7)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


@pytest.mark.parametrize(
    "options",
    [
        {"max_batch_size": 65},
        {"max_batch_size": -1},
        {"min_batch_size": 0},
        {"min_batch_size": 9, "max_batch_size": 8},
        {"min_batch_size": 17},
        {"tuning": 5},
        {"max_queue_delay": -0.1},
        {"max_queue_delay": float("nan")},
        {"max_queue_delay": 1e300},
        {"max_queue_delay": "1"},
        {"max_batch_size": "8"},
        {"max_queue": None},
        {"min_batch_size": True},
        {"max_queue": 0},
        {"conf": 0.3},
    ],
)
def test_wrong_arguments(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        Batcher(lambda items: items, **options)


def test_an_engine_that_does_not_answer_is_given_up(monkeypatch: pytest.MonkeyPatch, images: list[Any]) -> None:
    batcher = Batcher(MODEL, imgsz=320, max_batch_size=1, request_timeout=0.2)
    program = batcher._runner._programs[1]  # type: ignore[attr-defined]
    monkeypatch.setattr(program, "_wait", lambda flight, timeout: bool(time.sleep(timeout or 0)))
    with pytest.raises(EngineError, match="not answered for"):
        batcher.submit(images[0]).result(10)
    batcher.close()


def test_a_batch_that_ends_to_make_room_is_not_waited_for_again(images: list[Any]) -> None:
    with framefuse.Model(MODEL, imgsz=320) as model:
        runner = ModelRunner(model, 2, closes=False, all_sizes=True)
        answered, count = list[int](), 0
        for size in (2, 1):
            for _ in range(10):  # more than any program has room for
                items = [(count + row, runner.prepared(images[row])[1]) for row in range(size)]
                answered += [found for found, _ in runner.start(items, size)]
                count += size
        assert answered
        while len(answered) < count:
            answered += [found for found, _ in runner.finish()]
        assert sorted(answered) == list(range(count))
        runner.close()


@pytest.mark.parametrize(
    ("seconds", "sizes"),
    [
        ({1: 1.0, 2: 1.0, 4: 0.5, 8: 0.49, 16: 0.48}, [1, 2, 4]),
        ({1: 1.0, 2: 1.1, 4: 0.95}, [1]),
        ({1: 1.0, 2: 0.7, 4: 0.69, 8: 0.4, 16: 0.2, 32: 0.1, 64: 0.1}, [1, 2, 4, 8, 16, 32]),
    ],
)
def test_one_rough_measurement_on_a_gpu_does_not_end_the_search_for_sizes(
    seconds: dict[int, float], sizes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Opened:
        gpu = 0

        def __init__(self, batch: int) -> None:
            self.batch = batch

        def prepare(self, width: int, height: int) -> None: ...

        def warm_up(self, frame: Frame) -> None: ...

        def close(self) -> None:
            closed.add(self.batch)

    closed = set[int]()
    monkeypatch.setattr(ModelRunner, "_row_seconds", lambda self, program: seconds[program.batch])
    facts = {"settings": SimpleNamespace(on_gpu=True), "card": SimpleNamespace(dynamic_batch=True)}
    model: Any = SimpleNamespace(**facts, program=Opened, has_views=False, check_open=lambda: None)
    runner = ModelRunner(model, 0, closes=False)
    assert runner.sizes == sorted(runner.seconds) == sizes
    assert closed == set(seconds) - set(sizes), "the sizes that were tried in vain"
    runner.close()


def test_a_callback_of_a_late_request_may_wait_for_another_thread() -> None:
    with becoming_slow() as batcher:
        seen = threading.Event()

        def look(future: Any) -> None:
            other = threading.Thread(target=lambda: (batcher.stats(), seen.set()))
            other.start()
            other.join(10)

        futures = [batcher.submit(number, deadline=1.5) for number in range(3)]
        futures[-1].add_done_callback(look)
        assert seen.wait(20)
