"""Threads between stages: a stage is a passive iterator; `Threaded` runs it ahead of its reader, bounded, cancellable.

Closing the tail of a chain closes its head: `close` wakes everything that waits, cancels the stages upstream, and joins
the threads.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, InitVar, dataclass, field
from enum import Enum
from time import monotonic, perf_counter, thread_time
from typing import Final, Generic, Literal, TypeVar

from framefuse.errors import FramefuseError
from framefuse.runtime.threads import name_thread

Item = TypeVar("Item")


class Empty(Enum):
    """Returned by `Threaded.get` after a timeout."""

    EMPTY = "empty"


EMPTY: Final = Empty.EMPTY
JOIN_SECONDS = 5.0
Policy = Literal["block", "latest"]


@dataclass(eq=False)
class _Queue(Generic[Item]):
    """What one iterable has produced."""

    policy: Policy
    writable: threading.Condition
    items: deque[Item] = field(default_factory=deque)


@dataclass(eq=False, repr=False)
class Threaded(Generic[Item]):
    """Runs each of its iterables in a thread of its own, and delivers their items through bounded queues.

    Order is kept per iterable; with several, items are taken from each in turn.

    Args:
        iterables: what to run; each is closed in its own thread when it ends, if it has a `close` method.
        name: stage name, for the threads and for errors raised here.
        cancel: called by `close` to end the iterables' own waiting, usually by closing the previous stage.
        capacity: maximum number of items that an iterable runs ahead of the reader.
        policy: what happens when a queue is full. block: the iterable waits. latest: its oldest item is dropped.
        too_old: whether an item that is about to be delivered is dropped as stale.
        keep_newest: deliver a stale item nevertheless if there is no newer one, or there was none when it came for a
            reader who waited: another one may come before that thread runs.
        on_drop: called with each dropped item and the cause, "superseded" or "stale".
        on_step: called after each item with the seconds the iterable worked on it, the seconds it was then blocked, and
            the CPU seconds of its thread.
        on_wait: called with the seconds the reader waited for an item.
        on_end: called with the index of each iterable once all of its items have been delivered, by the reader.
    """

    iterables: InitVar[Iterable[Iterable[Item]]]
    _: KW_ONLY
    name: str
    cancel: Callable[[], None] = lambda: None
    capacity: int = 4
    policy: Policy = "block"
    too_old: Callable[[Item], bool] = lambda item: False
    keep_newest: bool = False
    on_drop: Callable[[Item, str], None] = lambda item, cause: None
    on_step: Callable[[float, float, float], None] = lambda busy, blocked, cpu: None
    on_wait: Callable[[float], None] = lambda waited: None
    on_end: Callable[[int], None] = lambda number: None

    def __post_init__(self, iterables: Iterable[Iterable[Item]]) -> None:
        self._queues: dict[int, _Queue[Item]] = {}
        """Of the iterables that run, or have some left, by index."""
        self._turns: deque[int] = deque()
        """Their indexes; the first is the next to deliver."""
        self.turn = 0
        """Index of the iterable that produced the last delivered item."""
        self._count = 0
        self._wanted = False
        """Whether the reader has found nothing, and nothing has come since."""
        self._promised: Item | None = None
        """What came then."""
        self._ended: set[int] = set()
        self._error: BaseException | None = None
        self._closed = False
        # One condition per thread: with many iterables, waking all of them for every item costs more than the items.
        self._lock = threading.Lock()
        self._readable = threading.Condition(self._lock)
        self._awaited = set[threading.Thread]()
        """Those that `close` waits for. Each is waited for once, as it may be inside an engine that never returns."""
        self._start([(iterable, self.policy) for iterable in iterables])

    def add(self, iterable: Iterable[Item], policy: Policy) -> bool:
        """Run another one, whose index is the next; False: the channel is closed or has ended, so nothing happens."""
        return self._start([(iterable, policy)])

    def _start(self, runs: Sequence[tuple[Iterable[Item], Policy]]) -> bool:
        with self._lock:
            if self._closed:
                return False
            threads = []
            for number, (iterable, policy) in enumerate(runs, self._count):
                self._queues[number] = _Queue(policy, threading.Condition(self._lock))
                self._turns.append(number)
                name, given = f"ff-{self.name}", (number, iterable)
                threads.append(threading.Thread(target=self._run, args=given, name=name, daemon=True))
            self._count += len(runs)
            alive = {thread for thread in self._awaited if thread.ident is None or thread.is_alive()}
            self._awaited = alive | set(threads)
        for thread in threads:
            thread.start()
        return True

    def __iter__(self) -> Iterator[Item]:
        while (item := self.get()) is not None:
            if item is not EMPTY:
                yield item

    def get(self, timeout: float | None = None) -> Item | Empty | None:
        """The next item; EMPTY if none arrives within `timeout` seconds, or one of several iterables has ended; None at
        the end.

        Raises:
            the error that ended an iterable, once, after all items that precede it.
        """
        started = perf_counter()
        try:
            return self._get(None if timeout is None else monotonic() + timeout)
        finally:
            self.on_wait(perf_counter() - started)

    def _get(self, deadline: float | None) -> Item | Empty | None:
        with self._readable:
            told = False
            while True:
                told |= self._tell_of_ends()  # even if others always have an item
                for _ in range(len(self._turns)):
                    number = self._turns[0]
                    self._turns.rotate(-1)
                    queue, items = self._queues[number], self._queues[number].items
                    while items:
                        item, self.turn = items.popleft(), number
                        if len(items) <= self.capacity // 2:  # for one free place it would block again at once
                            queue.writable.notify()
                        if (self.keep_newest and (not items or item is self._promised)) or not self.too_old(item):
                            self._promised = None
                            return item
                        self.on_drop(item, "stale")
                if self._closed:
                    return None
                if self._error is not None:
                    error, self._error = self._error, None
                    self._closed = True
                    raise error
                told |= self._tell_of_ends()
                if not self._queues:
                    self._closed = True
                    return None
                if told:
                    return EMPTY
                self._wanted = True
                remaining = None if deadline is None else deadline - monotonic()
                if remaining is not None and remaining <= 0:
                    return EMPTY
                self._readable.wait(remaining)

    def _tell_of_ends(self) -> bool:
        """Forget the iterables that have ended and of which nothing waits; whether there are any."""
        ended = [number for number in self._ended if not self._queues[number].items]
        for number in ended:
            self._ended.remove(number)
            self._turns.remove(number)
            del self._queues[number]
            self.on_end(number)
        return bool(ended)

    def close(self) -> None:
        """Stop every stage up to the head and wait for the threads to end. Callable from any thread, repeatedly."""
        with self._readable:
            self._closed = True
            for queue in self._queues.values():
                queue.items.clear()
                queue.writable.notify_all()
            self._readable.notify_all()
        self.cancel()
        for thread in tuple(self._awaited):
            if thread is not threading.current_thread():
                thread.join(JOIN_SECONDS)
                self._awaited.discard(thread)

    def _run(self, number: int, iterable: Iterable[Item]) -> None:
        name_thread(f"ff-{self.name}")
        iterator = iter(iterable)
        error: BaseException | None = None
        try:
            started, cpu_started = perf_counter(), thread_time()
            for item in iterator:
                ready, cpu_ready = perf_counter(), thread_time()
                if not self._put(number, item):
                    break
                blocked = perf_counter()
                self.on_step(ready - started, blocked - ready, cpu_ready - cpu_started)
                started, cpu_started = blocked, thread_time()
        except BaseException as caught:
            error = caught
        try:
            getattr(iterator, "close", lambda: None)()
        except BaseException as caught:
            error = error or caught
        if isinstance(error, FramefuseError):
            error.stage = error.stage or self.name
        elif error is not None:
            error.add_note(f"in stage {self.name}")
        with self._readable:
            self._ended.add(number)
            self._error = self._error or error
            self._readable.notify_all()

    def _put(self, number: int, item: Item) -> bool:
        """Queue an item; False if the reader has closed the channel."""
        dropped = None
        with self._readable:
            queue = self._queues[number]
            if queue.policy == "block":
                queue.writable.wait_for(lambda: len(queue.items) < self.capacity or self._closed)
            elif len(queue.items) >= self.capacity:
                dropped = queue.items.popleft()
            if self._closed:
                return False
            queue.items.append(item)
            if self._wanted:
                self._wanted, self._promised = False, item
            self._readable.notify()
        if dropped is not None:
            self.on_drop(dropped, "superseded")
        return True
