"""Batcher: single requests from any thread, run together in batches where that is measured to pay."""

import atexit
import itertools
import logging
import os
import threading
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep
from typing import Any, Generic, Literal, NamedTuple, Self, TypeVar, cast
from weakref import WeakValueDictionary

from framefuse.batching.costs import Costs, quantile
from framefuse.batching.queue import Request, RequestBatch, RequestQueue
from framefuse.batching.tuning import LONGEST, read_tuning
from framefuse.common.redact import brief
from framefuse.config import Settings
from framefuse.cuda import device as gpus
from framefuse.errors import (
    ConfigError,
    DeadlineError,
    FramefuseError,
    GpuLostError,
    GpuMemoryError,
    HostMemoryError,
    RequestError,
    UsageError,
)
from framefuse.runtime.model import Model
from framefuse.runtime.plan import MAX_BATCH
from framefuse.runtime.priority_lock import PLACES, PriorityLock
from framefuse.runtime.runners import FunctionRunner, ModelRunner, NoAnswerError, Runner
from framefuse.sources.source import check_timeout, is_number

DEFAULT_FUNCTION_BATCH = 16
"""Most items in a call of a function, if nothing else is asked for."""
DEFAULT_DELAY = 0.005
"""Seconds that a request may wait for others."""
EARLY = 0.9
"""Share of the expected time of a batch after which its end is awaited, not another request."""
RECOVER_SECONDS = 30.0
"""After a batch did not fit into memory, batches of twice the size are tried again."""
REFUSED_SECONDS, REFUSED_MOST = 0.0001, 0.002
"""Pause of a client that insists and is refused, for each of as many requests as are sent for one that is admitted, and
at most: clients that ask again at once would take the interpreter from the thread that answers the others."""
CROWD_SHARE, CROWD_MOST = 0.75, 0.015
"""The same in a crowd: a share of the deadline, for which what was admitted keeps the model busy, and at most."""
CROWD_BATCHES = 2
"""As many as in so many of the latest batch stand back in a crowd: fewer would keep the batches as small as they are,
and the Batcher overloaded by what larger ones would serve."""
RECENT = 64
"""Requests by which the share that is admitted is known."""
INSISTS, OVERLOAD = 0.005, 0.5
"""Requests with a deadline stand back if their thread was refused so few seconds before, or where so small a share of
the latest requests was admitted. Otherwise they do not: batches would be smaller, since those that could join one come
too late for it, and more requests would be refused."""
SHORT = 0.1
"""Deadlines of fewer seconds leave no time for an answer after a long wait: under overload, only as many requests with
one stand back as the next batches take, and others are refused at once, except the most urgent."""
LATEST = 1024
"""Responses by which `BatcherStats` knows the latencies."""

Answer = TypeVar("Answer")
_logger = logging.getLogger(__name__)
_open: "WeakValueDictionary[int, Batcher]" = WeakValueDictionary()
"""By number, in the order in which they were made."""
_made = itertools.count()
EXIT_SECONDS = 5.0
"""For which the exit of the process waits for the answers of a Batcher."""


@dataclass(frozen=True)
class Response(Generic[Answer]):
    """The answer to one request."""

    result: Answer
    """A `Result`, or what the function returned for the item."""
    id: int
    """Number of the request, from 0; also `result.frame.index`."""
    queue_seconds: float
    """From `submit` until its batch was started."""
    latency_seconds: float
    """From `submit` to the answer."""
    batch_size: int
    """Requests that ran together."""


class _Waiting(NamedTuple):
    """A request that waits or runs."""

    request: Request
    item: Any
    """As the runner takes it."""
    future: Future[Response[Any]]


class _Started(NamedTuple):
    """A batch that runs."""

    batch: RequestBatch
    items: list[tuple[int, Any]]
    """Without those that were cancelled."""
    seconds: float
    """time.monotonic() at its start."""


@dataclass(frozen=True)
class BatcherStats:
    """What a `Batcher` has done so far."""

    submitted: int
    """Requests, with those that were refused."""
    completed: int
    failed: int
    """Whose model or function raised an error."""
    refused: dict[str, int]
    """Why -> how many were refused at once: "QueueFullError", "DeadlineError"."""
    late: int
    """Admitted requests whose deadline was missed, with those that were dropped before they ran."""
    cancelled: int
    waiting: dict[int, int]
    """Priority -> requests."""
    running: int
    """Batches."""
    batch_sizes: dict[int, int]
    """Requests in a batch -> batches."""
    latency_ms: dict[str, float]
    """"p50", "p95" and "p99" of the latest responses; empty before the first."""
    batch_ms: dict[int, float]
    """Size -> expected time of a batch."""
    max_batch_size: int
    """At present: it is lowered for a while where a batch did not fit into memory."""


class Batcher:
    """Run single requests in batches.

        with framefuse.Batcher("yolov8n.onnx") as batcher:
            future = batcher.submit(image, deadline=0.05)
            print(future.result().result.detections)

    Call `submit` from any thread; in asyncio, `await asyncio.wrap_future(batcher.submit(image))`. A batch starts as
    soon as the model is free, and waits for another request only if that is expected to serve all of them earlier. How
    long batches take is measured when it opens, and while it runs. Nothing waits forever, and a request that cannot be
    answered by its deadline is refused at once.

    Args:
        model: path of an ONNX file, the name of a shipped model, or a `Model`, which stays open; or any function that
            takes a list and returns as many results.
        max_batch_size: 0: for a model, as many as are measured to pay; for a function, 16.
        min_batch_size: a smaller batch waits up to `max_queue_delay` for more requests.
        max_queue_delay: seconds that a request may wait for others to join its batch.
        max_queue: requests that may wait; more are refused.
        tuning: batching.json of `framefuse tune-batch` for this model and machine, in place of `max_batch_size` and
            `max_queue_delay`. Nothing is measured then.
        settings: all options of the model as one object; `options` then override single fields of it.
        options: fields of `Settings`, and `preset`, as for `Model`.

    Raises:
        UsageError: an argument is wrong.
        ConfigError: the tuning cannot be used, or is of another model, machine or input size.
        ModelError, EngineError, CapabilityError: as `Model`.
    """

    def __init__(
        self,
        model: str | Path | Model | Callable[[list[Any]], Sequence[Any]],
        *,
        max_batch_size: int = 0,
        min_batch_size: int = 1,
        max_queue_delay: float = DEFAULT_DELAY,
        max_queue: int = 256,
        tuning: str | Path | None = None,
        settings: Settings | None = None,
        **options: Any,
    ) -> None:
        numbers = {"max_batch_size": max_batch_size, "min_batch_size": min_batch_size, "max_queue": max_queue}
        for name, value in numbers.items():
            if not isinstance(value, int) or isinstance(value, bool):
                raise UsageError(f"{name} is {brief(value)}", remedy="pass a whole number")
        if not isinstance(max_queue_delay, int | float) or not 0 <= max_queue_delay <= LONGEST:
            remedy = f"use seconds from 0 to {LONGEST}, such as 0.005"
            raise UsageError(f"max_queue_delay is {brief(max_queue_delay)}", remedy=remedy)
        if tuning is not None and not isinstance(tuning, str | Path):
            raise UsageError(f"tuning is {brief(tuning)}", remedy="pass the path of a batching.json")
        found = None if tuning is None else read_tuning(Path(tuning))
        if found is not None:
            if max_batch_size or max_queue_delay != DEFAULT_DELAY:
                message = "max_batch_size or max_queue_delay beside a tuning"
                raise UsageError(message, remedy="leave out one or the other")
            max_batch_size, max_queue_delay = found.chosen.size, found.chosen.delay
            if max_batch_size > MAX_BATCH:
                raise ConfigError(f"{tuning} has batches of {max_batch_size}", remedy=f"tune for {MAX_BATCH} at most")
        if not 0 <= max_batch_size <= MAX_BATCH:
            raise UsageError(f"max_batch_size is {max_batch_size!r}", remedy=f"use 1 to {MAX_BATCH}, or 0: automatic")
        most = max_batch_size or (MAX_BATCH if isinstance(model, str | Path | Model) else DEFAULT_FUNCTION_BATCH)
        if not 1 <= min_batch_size <= most:
            remedy = f"use 1 to max_batch_size, which is {most}"
            raise UsageError(f"min_batch_size is {min_batch_size!r}", remedy=remedy)
        if max_queue < 1:
            raise UsageError(f"max_queue is {max_queue!r}", remedy="use at least 1")
        if isinstance(model, str | Path | Model):
            opened = model if isinstance(model, Model) else Model(model, settings=settings, **options)
            self._runner: Runner = ModelRunner(opened, max_batch_size, closes=opened is not model, tuning=found)
        elif callable(model) and settings is None and not options and found is None:
            self._runner = FunctionRunner(model, max_batch_size or DEFAULT_FUNCTION_BATCH)
        elif callable(model):
            given = ", ".join(sorted(options)) or ("settings" if settings is not None else "tuning")
            raise UsageError(f"{given} is for models, and this is a function", remedy="leave it out")
        else:
            raise UsageError(f"{brief(model)} is not a model", remedy="pass a path, a name, a Model, or a function")
        runner = self._runner
        self._queue = RequestQueue(
            Costs(runner.sizes, runner.seconds),
            max_queue_delay=max_queue_delay,
            min_batch_size=min(min_batch_size, runner.sizes[-1]),
            max_queue=max_queue,
            servers=runner.servers,
            ahead=runner.ahead,
        )
        self._numbers = itertools.count()
        self._waiting: dict[int, _Waiting] = {}
        """Requests that wait or run, by number."""
        self._running: deque[_Started] = deque()
        self._sizes, self._refused, self._counts = Counter[int](), Counter[str](), Counter[str]()
        self._latencies: deque[float] = deque(maxlen=LATEST)
        self._answered: deque[tuple[list[Request], float]] = deque()
        """Requests whose futures are done, and when they were; the queue is not told yet."""
        self._admitted = 1.0
        """Share of the latest requests."""
        self._recovers = 0.0
        self._of_thread = threading.local()
        """`refused`: time.monotonic() of the latest refusal."""
        self._lock = PriorityLock()
        self._changed = threading.Condition(cast("threading.Lock", self._lock))  # it takes anything used like a lock
        self._closing = self._ended = self._noticed = False
        self._process = os.getpid()
        self._stopped: BaseException | None = None
        """Why it has ended, other than by `close`."""
        self._thread = threading.Thread(target=self._serve, name="ff-batcher", daemon=True)
        self._thread.start()
        # Registered anew, so that it runs before the handlers of an engine that was imported meanwhile.
        atexit.unregister(_close_all)
        atexit.register(_close_all)
        _open[next(_made)] = self

    def submit(
        self, item: Any, *, priority: int = 1, deadline: float | None = None, source: Hashable = None
    ) -> Future[Response[Any]]:
        """Run one item with others. Do not change an array before its future is done: it is read when its batch starts.

        Args:
            item: an image as `Model` takes it; for a function, anything.
            priority: 0, the most urgent, to 3. With each step, a request overtakes those that came up to a second of
                work earlier.
            deadline: seconds from now within which the answer must come; None: any time. While many are refused,
                requests with a deadline are admitted only when the Batcher has nothing else to do, so that clients do
                not delay its answers: at most after a batch, and never later than 40 ms. A thread that sends the next
                one as soon as one was refused waits for up to 15 ms.
            source: who sends it. Sources take turns, and each may hold at most half of what is free of the queue.

        Returns:
            The future of a `Response`. `cancel()` takes the request back as long as its batch has not started.

        Raises:
            QueueFullError: `max_queue` requests are waiting, or the source has its share of the queue already.
            DeadlineError: the predicted answer would be late. The future raises it if that turns out later.
            UsageError, SourceError: the item is no image, or cannot be read; an argument is wrong; it is closed.
        """
        self._check_process()
        if deadline is not None and not (is_number(deadline) and abs(deadline) <= threading.TIMEOUT_MAX):
            raise UsageError(f"deadline is {brief(deadline)}", remedy="pass seconds from now, such as 0.05")
        try:
            hash(source)
        except TypeError as error:
            raise UsageError(f"source is {brief(source)}", remedy="pass its name, or another hashable value") from error
        arrival = monotonic()
        insists = arrival - getattr(self._of_thread, "refused", -INSISTS) < INSISTS
        overloaded, is_short = self._is_overloaded, deadline is not None and deadline < SHORT
        polite = deadline is not None and (insists or overloaded)
        crowded = overloaded and is_short and priority != 0
        try:
            if polite and not self._lock.stand_back(crowded=crowded):
                self._refuse_crowd()
            self._check_open()
            bucket, prepared = self._runner.prepared(item)
            future: Future[Response[Any]] = Future()
            if polite and not is_short:  # again: to prepare an item takes long enough for a batch to end
                self._lock.stand_back()
            with self._changed:
                self._check_open()
                self._counts["submitted"] += 1
                until = None if deadline is None else arrival + float(deadline)
                request = Request(next(self._numbers), arrival, bucket, priority, source, until)
                try:
                    self._queue.admit(request, monotonic(), overloaded=self._is_overloaded)
                except RequestError as error:
                    self._count_refused(error)
                    raise
                self._admitted += (1 - self._admitted) / RECENT
                self._waiting[request.number] = _Waiting(request, prepared, future)
                if self._queue.may_start(request):
                    self._lock.due()
                    self._changed.notify_all()
        except RequestError:
            if insists:
                sleep(self._pause(deadline if crowded else None))
            self._of_thread.refused = monotonic()
            raise
        future.add_done_callback(lambda done: self._cancelled(request) if done.cancelled() else None)
        return future

    @property
    def _is_overloaded(self) -> bool:
        return self._admitted < OVERLOAD

    def _pause(self, deadline: float | None) -> float:
        """Seconds for which a client that insists waits after a refusal; `deadline`: of its request, in a crowd."""
        pause = min(REFUSED_MOST, REFUSED_SECONDS / max(self._admitted, 1e-3))
        return pause if deadline is None else max(pause, min(CROWD_MOST, CROWD_SHARE * deadline))

    def _refuse_crowd(self) -> None:
        message = "the Batcher is overloaded, and others with a deadline already wait to be admitted"
        error = DeadlineError(message, remedy="send fewer requests, or later")
        with self._changed:
            self._counts["submitted"] += 1
            self._count_refused(error)
        raise error

    def _count_refused(self, error: RequestError) -> None:
        self._refused[type(error).__name__] += 1
        self._admitted -= self._admitted / RECENT

    def stats(self) -> BatcherStats:
        """What it has done so far. Callable at any time, from any thread."""
        self._check_process()
        with self._changed:
            latencies, queue, counts = list(self._latencies), self._queue, self._counts
            shares = {"p50": 0.5, "p95": 0.95, "p99": 0.99} if latencies else {}
            return BatcherStats(
                counts["submitted"],
                counts["completed"],
                counts["failed"],
                dict(self._refused),
                counts["late"],
                counts["cancelled"],
                queue.by_priority(),
                queue.running,
                dict(self._sizes),
                {name: 1000 * quantile(latencies, share) for name, share in shares.items()},
                {size: 1000 * seconds for size, seconds in queue.costs.table().items()},
                queue.limit,
            )

    def drain(self, timeout: float | None = None) -> bool:
        """Wait until nothing waits or runs; False if that takes longer than `timeout` seconds."""
        self._check_process()
        check_timeout(timeout)
        with self._changed:
            return self._changed.wait_for(lambda: not self._waiting or self._ended, timeout)

    def close(self, *, cancel: bool = False) -> None:
        """Answer what waits, then free the model. Callable from any thread, repeatedly.

        Args:
            cancel: cancel what waits instead.
        """
        self._close(None, cancel=cancel)

    def _close(self, timeout: float | None, *, cancel: bool = False) -> None:
        if self._is_fork:
            return  # a fork has neither the thread nor anything of its own to free
        with self._changed:
            self._closing = True
            left = [waiting.future for waiting in self._waiting.values()] if cancel else []
            self._changed.notify_all()
        for future in left:
            future.cancel()
        if threading.current_thread() is not self._thread:  # a callback of a future runs in it
            self._thread.join(timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        self.close(cancel=kind is not None)

    def _check_open(self) -> None:
        if self._closing:
            why = f", since it has stopped: {self._stopped!r}" if self._stopped else ""
            raise UsageError(f"this Batcher is closed{why}", remedy="open another one")

    @property
    def _is_fork(self) -> bool:
        """Whether this is another process than the one that made it, without its thread."""
        return os.getpid() != self._process

    def _check_process(self) -> None:
        if self._is_fork:
            remedy = "make it in the process that uses it, after the fork"
            raise UsageError("this Batcher was made in another process, whose threads are not here", remedy=remedy)

    def _cancelled(self, request: Request) -> None:
        if self._is_fork:
            return  # nothing of a fork waits here, and the lock may be another thread's
        with self._changed:
            if waiting := self._waiting.pop(request.number, None):
                self._queue.remove(request)
                self._counts["cancelled"] += 1
                self._changed.notify_all()
        if waiting:
            waiting.future.set_running_or_notify_cancel()  # tells those that wait for several futures

    def _serve(self) -> None:
        """The thread that owns the model."""
        self._lock.first = threading.get_ident()
        error: BaseException | None = None
        try:
            with gpus.current(self._runner.gpu, "run the model"):
                while (ready := self._next()) is not None:
                    self._finish() if ready is True else self._start(ready)
                    self._noticed = False
        except BaseException as failed:
            error = failed
        finally:
            with self._changed:
                self._closing = self._ended = True
                self._stopped = error
                self._lock.rest(None)
            stopped = RequestError(f"the Batcher has stopped: {error!r}", remedy="open another one")
            known = error if isinstance(error, FramefuseError) else stopped
            for number in list(self._waiting):
                self._fail(number, known)
            self._runner.close()

    def _next(self) -> _Started | Literal[True] | None:
        """A batch to start; True: the oldest that runs is about to end; None: everything has ended."""
        while isinstance(ready := self._wait(), list):
            for request in ready:  # without the lock: their callbacks run here
                message = f"request {request.number} was dropped: it cannot meet its deadline any more"
                self._fail(request.number, DeadlineError(message, remedy="send fewer requests"))
        return ready

    def _wait(self) -> _Started | Literal[True] | list[Request] | None:
        """What `_next` returns, or requests that have become late."""
        queue, runner = self._queue, self._runner
        with self._changed:
            while True:
                now = monotonic()
                if late := queue.late(now):
                    self._counts["late"] += len(late)
                    return late
                if queue.limit < runner.sizes[-1] and now >= self._recovers:
                    queue.limit, self._recovers = min(2 * queue.limit, runner.sizes[-1]), now + RECOVER_SECONDS
                if batch := queue.take(now):
                    waiting = [self._waiting[one.number] for one in batch.requests if one.number in self._waiting]
                    items = [(one.request.number, one.item) for one in waiting if self._begins(one)]
                    return _Started(batch, items, monotonic())
                times = [queue.next_time(now)]
                if self._running:
                    if runner.ended:
                        self._noticed = True
                        return True
                    oldest = self._running[0].batch
                    ends = oldest.started + EARLY * queue.costs.seconds(oldest.size)
                    if now >= ends or queue.running >= runner.servers + runner.ahead:
                        return True
                    times.append(ends)
                elif self._closing and not len(queue):
                    return None
                wake = min((time for time in times if time is not None), default=None)
                self._lock.rest(wake)
                self._changed.wait(None if wake is None else max(0.0, wake - now))
                self._lock.due()

    def _start(self, started: _Started) -> None:
        batch, items, _ = started
        if not items:
            self._end(batch, failed=True)
            return
        self._running.append(started)
        self._sizes[len(items)] += 1
        self._lock.places = max(PLACES, CROWD_BATCHES * len(items))
        self._attempt(lambda: self._runner.start(items, batch.size))

    def _begins(self, waiting: _Waiting) -> bool:
        """Whether a request runs; one that was cancelled, or whose future somebody else has completed, is forgotten.
        The lock is held, as by `_cancelled`, so that each cancelled future is notified once."""
        try:
            if waiting.future.set_running_or_notify_cancel():
                return True
        except RuntimeError:  # the future logs that its state is unexpected
            pass
        del self._waiting[waiting.request.number]
        self._counts["cancelled"] += 1
        self._changed.notify_all()
        return False

    def _finish(self) -> None:
        """Wait for the oldest batch, during which others may submit: on a GPU until it should have ended."""
        if not self._runner.ended:
            oldest = self._running[0].batch
            ends = oldest.started + self._queue.costs.seconds(oldest.size)
            self._lock.rest(ends if self._runner.ahead else None)
        self._attempt(self._runner.finish)

    def _attempt(self, call: Callable[[], Iterator[tuple[int, Any]]]) -> None:
        try:
            answers = dict(call())
            self._lock.due()
        except (GpuLostError, NoAnswerError):
            raise
        except BaseException as error:  # a function that exits is faulty, too
            self._retry(error)
            return
        for started in [one for one in self._running if one.items[0][0] in answers]:
            self._running.remove(started)
            self._end(started.batch)
            done = self._resolve({number: answers[number] for number, _ in started.items}, started)
            self._answered.append((done, monotonic()))

    def _retry(self, error: BaseException) -> None:
        """After an error, run the requests of all started batches one by one, so that only what is wrong fails."""
        failed, self._running = self._running, deque()
        self._runner.discard()
        for started in failed:
            self._end(started.batch, failed=True)
        if isinstance(error, GpuMemoryError | HostMemoryError):
            self._queue.limit = max(1, max(len(started.items) for started in failed) // 2)
            self._recovers = monotonic() + RECOVER_SECONDS
        alone = [_Started(one.batch, [item], monotonic()) for one in failed for item in one.items]
        for started in alone:
            number, _ = started.items[0]
            try:
                if len(alone) == 1:
                    raise error
                answers = dict([*self._runner.start(started.items, 1), *self._runner.finish()])
            except (GpuLostError, NoAnswerError):
                raise
            except BaseException as own:
                self._counts["failed"] += 1
                self._runner.discard()
                self._fail(number, own)
            else:
                self._resolve(answers, started)  # which teaches nothing: it took longer because something failed

    def _resolve(self, answers: dict[int, Any], started: _Started) -> list[Request]:
        """Complete the futures of a batch, and return its requests."""
        now = monotonic()
        with self._changed:
            done = [self._waiting.pop(number) for number in answers]
            latencies = [now - one.request.arrival for one in done]
            self._latencies.extend(latencies)
            self._counts["completed"] += len(done)
            self._counts["late"] += sum(one.request.deadline is not None and now > one.request.deadline for one in done)
            if not self._waiting:
                self._changed.notify_all()
        for one, (number, result), latency in zip(done, answers.items(), latencies, strict=True):
            queued = started.seconds - one.request.arrival
            _settle(one.future.set_result, Response(result, number, queued, latency, len(started.items)))
        return [one.request for one in done]

    def _end(self, batch: RequestBatch, *, failed: bool = False) -> None:
        with self._changed:
            while self._answered:
                self._queue.answered(*self._answered.popleft())
            self._queue.ended(batch, monotonic(), failed=failed, noticed=self._noticed)

    def _fail(self, number: int, error: BaseException) -> None:
        with self._changed:
            waiting = self._waiting.pop(number, None)
            self._changed.notify_all()
        if waiting and not _settle(waiting.future.set_exception, error) and waiting.future.cancelled():
            waiting.future.set_running_or_notify_cancel()


def _close_all() -> None:
    """At the exit of the process, answer what waits: an engine that still runs would abort. The newest come first: the
    function of an older one may use them. After EXIT_SECONDS, what waits is cancelled, and after as many again, what
    runs is given up."""
    for _, batcher in sorted(_open.items(), reverse=True):
        batcher._close(EXIT_SECONDS)
        if batcher._thread.is_alive():
            batcher._close(EXIT_SECONDS, cancel=True)


def _settle(call: Callable[[Any], None], outcome: object) -> bool:
    """Complete a future; False: it was cancelled, or somebody else has completed it. Its callbacks run here, and one
    that exits must not keep the other requests waiting."""
    try:
        call(outcome)
    except InvalidStateError:
        return False
    except BaseException:  # a Future catches nothing but an Exception
        _logger.exception("a callback of a request has raised")
    return True
