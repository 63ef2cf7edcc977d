"""Runners: what a `Batcher` gives its batches to, a model or any function that takes a list."""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from framefuse.batching.tuning import BatchTuning
from framefuse.errors import ConfigError, EngineError, GpuMemoryError, HostMemoryError, UsageError
from framefuse.frame import Frame
from framefuse.models import DATA
from framefuse.runtime.choices import processor
from framefuse.runtime.model import Model
from framefuse.runtime.plan import LIKELY, MAX_BATCH
from framefuse.runtime.profiling import median_seconds
from framefuse.runtime.program import Program

if TYPE_CHECKING:
    from framefuse.runtime.cuda.program import CudaProgram

BATCHES = 4
"""One after another, when their time is measured."""
WORTH = 0.1
"""Share by which a batch of twice the size must be faster a row for the size to be kept."""
PATIENCE = 2
"""Sizes in a row that are not, on a GPU, before larger ones are given up: single measurements there are rough."""

Answer = tuple[int, Any]
"""Number of a request, and its result."""


class NoAnswerError(EngineError):
    """An engine does not answer: nothing else that it runs would end either."""


class Runner(ABC):
    """Runs batches in the order in which they are started. All calls come from one thread, except `prepared`.

    Attributes:
        sizes: batch sizes that it can run.
        seconds: size -> seconds of a batch, where that was measured.
        servers: batches that run at the same time.
        ahead: batches that wait inside it for their turn, so that it is never idle.
        gpu: the current one in the thread that calls; None: any.
    """

    sizes: Sequence[int]
    seconds: Mapping[int, float]
    servers = 1
    ahead = 0
    gpu: int | None = None

    @abstractmethod
    def prepared(self, item: Any) -> tuple[Hashable, Any]:
        """What the items of one batch have in common, and the item as `start` takes it. Called from any thread.

        Raises:
            UsageError, SourceError: it is not an item of this kind, or cannot be read.
        """

    @abstractmethod
    def start(self, items: Sequence[tuple[int, Any]], size: int) -> Iterator[Answer]:
        """Start a batch of numbered items as one of `size`; yields answers of batches that had to end first."""

    @abstractmethod
    def finish(self) -> Iterator[Answer]:
        """Wait for the oldest batch that was started, and yield its answers."""

    @property
    def ended(self) -> bool:
        """Whether the oldest batch is known to have ended, so that `finish` does not wait."""
        return False

    @abstractmethod
    def discard(self) -> None:
        """Forget all batches that were started, after an error."""

    @abstractmethod
    def close(self) -> None:
        """Free everything. Callable repeatedly."""


class FunctionRunner(Runner):
    """Any function that takes a list of items and returns as many results."""

    def __init__(self, function: Callable[[list[Any]], Sequence[Any]], max_batch_size: int) -> None:
        self._function = function
        self.sizes = list(_doubled(max_batch_size))
        self.seconds = {}
        self._started: deque[Sequence[tuple[int, Any]]] = deque()

    def prepared(self, item: Any) -> tuple[Hashable, Any]:
        return None, item

    def start(self, items: Sequence[tuple[int, Any]], size: int) -> Iterator[Answer]:
        self._started.append(items)
        return iter(())

    def finish(self) -> Iterator[Answer]:
        items = self._started.popleft()
        results = self._function([item for _, item in items])
        if not hasattr(results, "__len__") or len(results) != len(items):
            returned = f"{len(results)} results" if hasattr(results, "__len__") else type(results).__name__
            raise UsageError(f"the function returned {returned} for {len(items)} items", remedy="return one for each")
        return zip([number for number, _ in items], results, strict=True)

    def discard(self) -> None:
        self._started.clear()

    def close(self) -> None:
        """Nothing to free: the function is the caller's."""


class ModelRunner(Runner):
    """A `Model`, with a program for each batch size that pays.

    Args:
        max_batch_size: 0: as many as pay, at most MAX_BATCH.
        closes: `close` closes the model, too.
        tuning: what was measured before.
        all_sizes: keep sizes that do not pay.

    Raises:
        ConfigError: the tuning is of another model, machine or input size.
    """

    def __init__(
        self,
        model: Model,
        max_batch_size: int,
        *,
        closes: bool,
        tuning: BatchTuning | None = None,
        all_sizes: bool = False,
    ) -> None:
        model.check_open()
        if model.has_views:
            remedy = "leave out tiles, roi and stereo, or pass the Model itself as a function: Batcher(model.__call__)"
            raise UsageError("a Batcher of a model that sees views of a frame is not possible", remedy=remedy)
        self._model, self._closes = model, closes
        self._started: dict[int, Program] = {}
        """Number of the last request of each batch that has not ended -> its program, oldest first."""
        self._programs: dict[int, Program] = {}
        self.seconds = {}
        self.ahead = 1 if model.settings.on_gpu else 0
        self.servers = 1 if model.settings.on_gpu else model.engine.streams
        try:
            if tuning is not None:
                self._check(tuning)
                self.seconds = tuning.seconds
            self._open(max_batch_size, all_sizes)
        except BaseException:
            self.close()
            raise
        if model.settings.on_gpu:
            self.gpu = cast("CudaProgram", self._programs[1]).gpu
        self.sizes = sorted(self._programs)
        self.seconds = {size: seconds for size, seconds in self.seconds.items() if size in self._programs}

    def _check(self, tuning: BatchTuning) -> None:
        (height, width), path = self._model.imgsz, self._model.card.path
        asked = path.stem if path.parent == DATA else path
        again = f"measure again: framefuse tune-batch {asked} --imgsz {height},{width}"
        if (tuned := Path(tuning.model).stem) != path.stem:
            raise ConfigError(f"the batches of {tuned} were tuned, and this is {path.stem}", remedy=again)
        if (here := processor(self._model.engine.device)) != tuning.machine:
            raise ConfigError(f"batches were tuned on {tuning.machine}, and this is {here}", remedy=again)
        if tuning.imgsz != self._model.imgsz:
            mine, theirs = (f"{width}x{height}" for height, width in (self._model.imgsz, tuning.imgsz))
            remedy = f"pass imgsz={tuning.imgsz}, or {again}"
            raise ConfigError(f"batches were tuned for {theirs} pixels, and this model takes {mine}", remedy=remedy)

    def _open(self, asked: int, all_sizes: bool) -> None:
        """Open programs of 1, 2, 4, ... rows until more gain nothing, or do not fit."""
        example = Frame.from_array(np.zeros((LIKELY[1], LIKELY[0], 3), np.uint8))
        rows: dict[int, float] = {}
        vain = list[int]()
        most = asked or MAX_BATCH
        for size in _doubled(most if self._model.card.dynamic_batch else 1):
            try:
                program = self._programs[size] = self._model.program(size)
                program.prepare(*LIKELY)
                measured = self.seconds.get(size)
                rows[size] = measured / (size * self.servers) if measured else self._row_seconds(program)
                program.warm_up(example)  # after that: it may have had kernels measured
            except (GpuMemoryError, HostMemoryError):
                if size == 1:
                    raise
                self._programs.pop(size).close()
                break
            self.seconds = {**self.seconds, size: rows[size] * size * self.servers}
            if size > 1 and not all_sizes and rows[size] > (1 - WORTH) * min(list(rows.values())[:-1]):
                vain.append(size)
                if len(vain) == (PATIENCE if self._model.settings.on_gpu else 1):
                    break
            else:
                vain.clear()
        for size in vain:
            self._programs.pop(size).close()

    def _row_seconds(self, program: Program) -> float:
        """On a GPU those of whole batches: to copy the frames there may take longer than the model."""
        seconds, spec = program.row_seconds(), program.preprocess
        if not self._model.settings.on_gpu:
            return seconds
        frames = [Frame.from_array(np.zeros((spec.height, spec.width, 3), np.uint8)) for _ in range(program.batch)]

        def run() -> None:
            for _ in range(BATCHES):
                deque(program.submit(frames), maxlen=0)
            deque(program.drain(), maxlen=0)

        return max(seconds, median_seconds(run) / (BATCHES * len(frames)))

    def prepared(self, item: Any) -> tuple[Hashable, Any]:
        self._model.check_open()
        frame = self._model.frame(item)
        return (self._programs[1].batch_key(frame), frame.format), frame

    def start(self, items: Sequence[tuple[int, Any]], size: int) -> Iterator[Answer]:
        program = self._programs[size]
        frames = [frame.replace_unchecked(index=number) for number, frame in items]
        for found in program.submit(frames):
            self._started.pop(found.result.frame.index, None)
            yield found.result.frame.index, found.result
        self._started[frames[-1].index] = program

    def finish(self) -> Iterator[Answer]:
        last, program = next(iter(self._started.items()))
        timeout = self._model.settings.request_timeout
        found = list(program.finish(timeout or None))
        if not found:
            message = f"engine {self._model.engine.name} has not answered for {timeout:g} s"
            raise NoAnswerError(message, remedy="raise request_timeout, or use another engine")
        del self._started[last]
        return iter([(item.result.frame.index, item.result) for item in found])

    @property
    def ended(self) -> bool:
        if self.gpu is None or not self._started:
            return False
        return cast("CudaProgram", next(iter(self._started.values()))).ended

    def discard(self) -> None:
        self._started.clear()
        for program in self._programs.values():
            program.discard()

    def close(self) -> None:
        for program in self._programs.values():
            program.close()
        if self._closes:
            self._model.close()


def _doubled(most: int) -> Iterator[int]:
    """1, 2, 4, ... and `most` itself."""
    size = 1
    while size < most:
        yield size
        size *= 2
    yield most
