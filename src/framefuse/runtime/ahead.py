"""Ahead: several decoders read a long video side by side, and its frames come in order.

Each segment has a thread of its own. Frames of later segments wait in its channel, which is bounded: a decoder whose
channel is full waits until it is its turn. The segment whose turn it is never waits for another.
"""

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from itertools import count, islice
from time import monotonic, perf_counter, thread_time

from framefuse.cuda import device as gpus
from framefuse.frame import Frame
from framefuse.runtime.channel import Threaded
from framefuse.sources.segments import SegmentedSource
from framefuse.sources.source import PullSource, SourceInfo


class Ahead:
    """A source: the frames of a video as one decoder gives them.

    Args:
        source: its segments, with every frame.
        readers: segments that are read at the same time.
        waiting: most frames of each that wait.
        stride: every n-th frame is delivered.
        gpu: of the decoders; None: the host.

    Attributes:
        on_step: as of `Threaded`, for each frame that is delivered, with the seconds of those left out before it.
        cpu_seconds: that another process has taken for it: none, but in a `DecoderProcess`.
    """

    cpu_seconds = 0.0

    def __init__(self, source: SegmentedSource, readers: int, waiting: int, *, stride: int, gpu: int | None) -> None:
        self.info: SourceInfo = source.info
        self.info.frames = self.info.frames and -(-self.info.frames // stride)
        self.readers = readers
        self.on_step: Callable[[float, float, float], None] = lambda busy, blocked, cpu: None
        self._source, self._waiting, self._stride, self._gpu = source, waiting, stride, gpu
        self._numbers, self._steps = count(), count()
        self._seconds = 0.0, 0.0, 0.0
        """Of the steps since the last that `on_step` was told of."""
        self._running = deque[Threaded[Frame]]()
        """The segments that are read, the next first."""
        self._lock, self._closed = threading.Lock(), False
        self._frames = PullSource(self.info, lambda closed: self._in_order(), self._stop, self._stop)

    @property
    def on_gpu(self) -> bool:
        """Whether a GPU decodes, as far as is known before it does."""
        return self._source.on_gpu

    @property
    def copied(self) -> int:
        """Bytes that the decoders have copied within GPU memory by now."""
        return self._source.copied

    def __iter__(self) -> Iterator[Frame]:
        return self._frames

    def close(self) -> None:
        """End all decoders, from any thread, at any time, any number of times."""
        self._frames.close()

    def _in_order(self) -> Generator[Frame]:
        segment = self._source.segment()
        started, cpu_started = perf_counter(), thread_time()
        try:
            first = [*islice(segment or (), 1)]  # before threads start: see `warm_up`
            seconds = perf_counter() - started, 0.0, thread_time() - cpu_started
            while first:
                yield from self._delivered([first.pop()])
                self._step(*seconds)
            while True:
                while segment is not None and len(self._running) < self.readers:
                    self._run(segment)
                    segment = self._source.segment()
                if not self._running:
                    break
                yield from self._delivered(self._running[0])
                with self._lock:
                    self._running.popleft()
        finally:
            if segment is not None:
                segment.close()
        self._source.check_decoded()

    def _run(self, segment: PullSource) -> None:
        with self._lock:
            if self._closed:
                segment.close()
                return
            running = Threaded(
                [gpus.on(self._gpu, segment, "decode")],
                name="decode",
                cancel=segment.close,
                capacity=self._waiting,
                on_step=self._step,
            )
            self._running.append(running)

    def _step(self, busy: float, blocked: float, cpu: float) -> None:
        with self._lock:
            before = self._seconds
            seconds = before[0] + busy, before[1] + blocked, before[2] + cpu
            counts = next(self._steps) % self._stride == 0
            self._seconds = (0.0, 0.0, 0.0) if counts else seconds
        if counts:
            self.on_step(*seconds)

    def _delivered(self, frames: Iterable[Frame]) -> Iterator[Frame]:
        for frame in frames:
            index = next(self._numbers)
            if index % self._stride == 0:
                yield frame.replace_unchecked(index=index, connection=0, arrival=monotonic())
            elif frame.lease is not None:
                frame.lease.release()

    def _stop(self) -> None:
        with self._lock:
            self._closed = True
            running = list(self._running)
        self._source.close()
        for one in running:
            one.close()
