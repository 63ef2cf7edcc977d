"""Program: frames -> request -> engine -> predictions, on the host. Results keep the order of the frames."""

import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Hashable, Iterator, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, replace
from functools import lru_cache
from time import perf_counter, sleep, thread_time
from typing import Any, ClassVar, NamedTuple, Self

from framefuse.common.aside import aside
from framefuse.engines import Engine, RequestPool, Slot
from framefuse.errors import FramefuseError
from framefuse.frame import Frame, View, unchecked
from framefuse.kernels.boxes.call import HEAD
from framefuse.models.card import Card
from framefuse.postprocess import BoxCheck, class_masks, postprocess
from framefuse.postprocess.decoders import DECODERS, decoded
from framefuse.postprocess.heads import Heads, classify
from framefuse.postprocess.mattes import Foreground
from framefuse.prediction import Array, Classification, Detections, FrameInfo, Masks, Matte, Result
from framefuse.preprocess import Placement, Preprocess
from framefuse.runtime.ledger import Ledger
from framefuse.runtime.profiling import Recorder, median_seconds
from framefuse.runtime.threads import thread_named

MAX_POOLS = 4
"""Input shapes kept ready at the same time; the least recently used one is dropped."""
MAX_SIZES = 64
"""Frame sizes and views whose placement in the model input is cached."""
CLOSE_SECONDS = 3.0
"""How long `Program.close` waits for requests in flight."""


@dataclass(frozen=True)
class Selection:
    """Which detections are kept."""

    conf: float = 0.25
    iou: float = 0.7
    max_det: int = 300
    classes: Sequence[int] | None = None
    agnostic: bool = False


Observer = Callable[[Sequence[FrameInfo], Callable[[float], list[Detections]]], None]
"""Gets the frames of each batch, and a function: what they show if suppression has this `iou` instead."""


class FrameOutput(NamedTuple):
    """What the model says about one row."""

    detections: Detections
    masks: Masks | None = None
    classification: Classification | None = None
    matte: Matte | None = None


class FrameResult(NamedTuple):
    """The result of one frame."""

    result: Result
    frame: Frame | None
    """The frame itself, if a sink needs it."""
    tracked: Detections | None = None
    """All objects that the tracker knows, if the result shows fewer."""


class WallCpuTime(NamedTuple):
    """Readings, in seconds, of the wall clock and of this thread's CPU clock."""

    wall: float
    cpu: float

    @classmethod
    def now(cls) -> Self:
        return cls(perf_counter(), thread_time())


@dataclass(eq=False)
class Batch:
    """What any program keeps about an in-flight batch."""

    infos: list[FrameInfo]
    frames: list[Frame | None]
    """The frames that sinks need."""
    arrivals: list[float | None]
    preprocess: float
    """Seconds."""
    submitted: float
    size: int
    """Rows."""
    rows: list[int]
    """Those that give a result."""


@dataclass(eq=False, repr=False)
class Program(ABC):
    """Runs batches, several in flight. All calls come from one thread, except where a method says otherwise.

    Args:
        batch: rows of a batch.
        slots: batches in flight at most; 0: as many as suit the engine.
        keep_frames: a sink needs the frames.
        frames_on_gpu: it takes those that a GPU can compose where they are, and their mattes, too.
        mattes: a semantic segmenter gives mattes instead of class masks, of these classes: all but the background if
            there are none; None: it gives class masks.
        closes_engine: `close` closes the engine, too.

    Attributes:
        ledger: bytes copied between host and device so far.
        reasons: decisions made during the run, such as fewer batches in flight on a GPU without room for more.
        checked: makes detections of boxes, and counts those that it dropped.
        rung: name of what runs, for `Result.rung`.
    """

    engine: Engine
    card: Card
    preprocess: Preprocess
    selection: Selection
    _: KW_ONLY
    batch: int = 1
    slots: int = 0
    keep_frames: bool = False
    frames_on_gpu: bool = False
    mattes: Sequence[int] | None = None
    recorder: Recorder | None = None
    closes_engine: bool = True

    def __post_init__(self) -> None:
        self.ledger = Ledger()
        self.reasons: list[str] = []
        self.checked = BoxCheck(self.card.names, self.card.path.with_suffix(".yaml").name)
        recorder = self.recorder or Recorder()
        self._clocks = tuple(recorder.stage(name) for name in ("preprocess", "inference", "postprocess"))
        self.rung = f"{self.card.path.stem} {self.engine.name} {self.engine.precision}"
        self._in_flight: deque[Any] = deque()
        """Batches that were submitted and have not finished, oldest first."""
        self._placed = lru_cache(MAX_SIZES)(self.preprocess.place_view)
        self._largest = (0, 0)
        self._closing, self._closed = threading.RLock(), False

    def input_size(self, frame: Frame) -> tuple[int, int]:
        """Height and width of the model input for this frame."""
        return self._place(frame).size[::-1]

    def batch_key(self, frame: Frame) -> Hashable:
        """What the frames of one batch have in common."""
        return self.input_size(frame)

    def _place(self, frame: Frame) -> Placement:
        """Where a frame lies in the model input; cached, since the frames of a source usually have one size."""
        return self._placed(frame.width, frame.height, frame.view)

    @abstractmethod
    def row_seconds(self) -> float:
        """Seconds that the model takes for a row of a batch at its full input size, with as many requests in flight as
        it runs at once. Measured; nothing else may be in flight."""

    @abstractmethod
    def prepare(self, width: int, height: int, view: View | None = None) -> None:
        """Get ready for frames of this size, or a view of them, so that the first does not wait for a compiler."""

    @abstractmethod
    def warm_up(self, frame: Frame) -> None:
        """Get ready for frames like this one, the first of a run; it is submitted later."""

    @abstractmethod
    def submit(self, frames: Sequence[Frame]) -> Iterator[FrameResult]:
        """Start a batch; yields the results of batches that had to finish first to make room."""

    def _submitted(
        self, frames: Sequence[Frame], kept: list[Frame | None], started: WallCpuTime, submitted: WallCpuTime
    ) -> Batch:
        """A batch that was preprocessed from `started` to `submitted`, and whose model has been started since. Of rows
        that are joined, the first stands for all."""
        seconds = submitted.wall - started.wall
        self._clocks[0].add(seconds, items=len(frames), cpu=submitted.cpu - started.cpu)
        self._clocks[1].add(0, items=0, cpu=thread_time() - submitted.cpu)
        rows, row = list[int](), 0
        while row < len(frames):
            rows.append(row)
            row += max(1, frames[row].joined)
        infos, arrivals = [FrameInfo.of(frames[row]) for row in rows], [frames[row].arrival for row in rows]
        return Batch(infos, [kept[row] for row in rows], arrivals, seconds, submitted.wall, len(frames), rows)

    def finish(self, timeout: float | None = None) -> Iterator[FrameResult]:
        """Wait for the oldest in-flight batch and yield its results; nothing if there is none, or after `timeout` s."""
        if not self._in_flight:
            return
        flight = self._in_flight[0]
        waiting = WallCpuTime.now()
        if not self._wait(flight, timeout):
            return
        self._in_flight.popleft()
        batch: Batch | None = flight.batch
        if batch is None:
            return
        finished = WallCpuTime.now()
        found, on_device = self._read(flight)
        ended, count = WallCpuTime.now(), batch.size
        inference, postprocess = finished.wall - batch.submitted, ended.wall - finished.wall
        wait_in, cpu = finished.wall - waiting.wall, finished.cpu - waiting.cpu
        self._clocks[1].add(inference, items=count, wait_in=wait_in, cpu=cpu)
        self._clocks[2].add(postprocess, items=count, cpu=ended.cpu - finished.cpu)
        for clock, seconds in zip(self._clocks, on_device, strict=False):
            clock.add_device(seconds, items=count)
        timings = {"preprocess": batch.preprocess, "inference": inference, "postprocess": postprocess}
        rows = zip(batch.infos, batch.frames, batch.arrivals, (found[row] for row in batch.rows), strict=True)
        for info, frame, arrival, output in rows:
            facts = {"frame": info, "rung": self.rung, "timings": timings, "arrival": arrival} | output._asdict()
            yield FrameResult(unchecked(Result, **facts), frame)

    @abstractmethod
    def passed(self, frame: Frame) -> Frame | None:
        """What sinks get of a frame that the model does not see. Its lease is released, unless they get the frame."""

    @abstractmethod
    def _wait(self, flight: Any, timeout: float | None) -> bool:
        """Wait for a batch; False after `timeout` seconds."""

    @abstractmethod
    def _read(self, flight: Any) -> tuple[Sequence[FrameOutput], Sequence[float]]:
        """What a finished batch has found in each row, and the seconds that the three stages took on the GPU, where
        they were measured."""

    @property
    def in_flight(self) -> int:
        """Number of batches that were submitted and have not finished."""
        return len(self._in_flight)

    @property
    def request(self) -> object | None:
        """What the engine is busy with for the longest time, by identity; None: nothing. Callable from any thread."""
        return next(iter(self._in_flight.copy()), None)

    def drain(self) -> Iterator[FrameResult]:
        """Finish everything in flight."""
        while self.in_flight:
            yield from self.finish()

    def discard(self) -> bool:
        """Finish everything in flight without its results, after an error; False if the engine does not answer."""
        while left := self.in_flight:
            with suppress(FramefuseError):
                deque(self.finish(CLOSE_SECONDS), maxlen=0)
            if self.in_flight == left:
                return False
        return True

    @property
    def largest_input(self) -> tuple[int, int]:
        """Width and height of the largest model input so far; before the first frame, of the largest possible one."""
        return self._largest if any(self._largest) else (self.preprocess.width, self.preprocess.height)

    @abstractmethod
    def close(self) -> None:
        """Free everything. A request that does not end within CLOSE_SECONDS keeps what it uses. Callable from any
        thread, repeatedly."""


def heads_of(card: Card, checked: BoxCheck) -> Heads | None:
    """What reads the outputs of a model with more than boxes; None: it has only these, or none."""
    if not card.extra:
        return None
    layout = "yolov5" if card.layout in DECODERS else card.layout
    return Heads(card.task, layout, card.extra, checked, keypoints=card.keypoints, skeleton=card.skeleton)


def decode(outputs: Sequence[Array], placements: Sequence[Placement], card: Card, selection: Selection) -> tuple[Array]:
    """The outputs of a network that leaves their decoding to others, as an output of layout yolov5."""
    return (decoded(card.layout, outputs[: len(card.outputs)], placements[0].size[::-1], selection.conf),)


def boxes_of(
    outputs: Sequence[Array],
    layout: str | None,
    placements: Sequence[Placement],
    card: Card,
    selection: Selection,
    checked: BoxCheck,
    heads: Heads | None,
) -> list[Detections]:
    """What the frames of a batch show, copied out of outputs on the host. `layout`: theirs, if not the card's."""
    if heads is not None:
        return heads(outputs, placements, **vars(selection))
    units = "relative" if layout == HEAD else card.box_units
    called = layout or card.layout, placements
    predictions = postprocess(outputs, *called, **vars(selection), activation=card.activation, box_units=units)
    return checked(*predictions)


@dataclass(eq=False)
class InFlightBatch:
    """A batch that an engine is running, with the request that runs it."""

    slot: Slot
    pool: RequestPool
    batch: Batch
    placements: list[Placement]


@dataclass(eq=False, repr=False, kw_only=True)
class HostProgram(Program):
    """The `Program` of the CPU: preprocess into a request of the engine, run it, postprocess, release it.

    Args:
        observe: called for each batch of boxes.
    """

    observe: Observer | None = None
    kept: ClassVar[int] = MAX_POOLS

    def __post_init__(self) -> None:
        super().__post_init__()  # its ledger stays empty: nothing leaves the host
        card = self.card
        self._foreground = None if self.mattes is None else Foreground(card.names, self.mattes)
        self._heads = heads_of(card, self.checked)
        self._pools: dict[Hashable, RequestPool] = {}
        self._starting: Slot | None = None
        """Engines without requests of their own run the model while they start it."""

    def prepare(self, width: int, height: int, view: View | None = None) -> None:
        size = self.preprocess.place_view(width, height, view).size[::-1]
        if size not in self._pools:
            self._pools[size] = self._make_pool(size)

    def row_seconds(self) -> float:
        spec = self.preprocess
        self.prepare(spec.width, spec.height, View(size=(spec.width, spec.height)))
        pool = self._pools[spec.height, spec.width]
        slots = list(iter(pool.acquire, None))
        busy = slots[: self.engine.streams]

        def run() -> None:
            for slot in busy:
                pool.submit(slot)
            for slot in busy:
                pool.wait(slot)

        try:
            return median_seconds(run) / (len(busy) * self.batch)
        finally:
            for slot in slots:
                pool.release(slot)

    def warm_up(self, frame: Frame) -> None:
        """Nothing to do: `prepare` knows the size, and nothing else matters."""

    def submit(self, frames: Sequence[Frame]) -> Iterator[FrameResult]:
        self.engine.check_process()
        pool = yield from self._pool(frames[0])
        while (slot := pool.acquire()) is None:
            yield from self.finish()
        started = WallCpuTime.now()
        placements = [
            self.preprocess(frame, row, self._place(frame), memory_format=slot.memory_format)
            for frame, row in zip(frames, slot.input, strict=False)
        ]
        self._prepared(slot, frames[0])
        submitted = WallCpuTime.now()
        self._starting = slot
        try:
            pool.submit(slot)
        finally:
            self._starting = None
        kept = [self.passed(frame) for frame in frames]
        self._in_flight.append(InFlightBatch(slot, pool, self._submitted(frames, kept, started, submitted), placements))

    def passed(self, frame: Frame) -> Frame | None:
        if self.keep_frames:
            return frame
        if frame.lease is not None:
            frame.lease.release()
        return None

    @property
    def request(self) -> object | None:
        return super().request or self._starting

    def _wait(self, flight: InFlightBatch, timeout: float | None) -> bool:
        return flight.pool.wait(flight.slot, timeout)

    def _read(self, flight: InFlightBatch) -> tuple[list[FrameOutput], tuple[()]]:
        card, layout, outputs = self.card, flight.slot.layout, flight.slot.outputs

        def boxes(iou: float) -> list[Detections]:
            """What the frames show, copied out of `outputs`, if suppression has this `iou`."""
            selection = replace(self.selection, iou=iou)
            return boxes_of(outputs, layout, flight.placements, card, selection, self.checked, self._heads)

        try:
            if layout is None:
                outputs = tuple(outputs[index] for index in card.output_indices)
            card.check_outputs(outputs, layout)
            if card.layout in DECODERS:
                layout, outputs = "yolov5", decode(outputs, flight.placements, card, self.selection)
            found: list[FrameOutput]
            if self._foreground is not None:
                mattes = self._foreground(outputs[0], flight.placements)
                found = [FrameOutput(Detections.none(card.names), matte=matte) for matte in mattes]
            elif self.card.task == "semantic":
                masks = class_masks(outputs[0], flight.placements)
                found = [FrameOutput(Detections.none(card.names), Masks(mask, card.names)) for mask in masks]
            elif card.task == "classify":
                classes = classify(outputs[0][: len(flight.placements)], card.names, card.activation)
                found = [FrameOutput(Detections.none(card.names), None, one) for one in classes]
            else:
                found = [FrameOutput(objects) for objects in boxes(self.selection.iou)]
            if self.observe is not None:
                self.observe(flight.batch.infos, boxes)
        finally:
            flight.pool.release(flight.slot)
        return found, ()

    def close(self) -> None:
        """Wait for the in-flight batches, discard their results, free the engine. The submitting thread has ended, or
        is inside the engine. What takes longer than CLOSE_SECONDS goes on in a thread of its own."""
        with self._closing, suppress(TimeoutError):
            if not self._closed:
                self._closed = True
                aside(self._free, CLOSE_SECONDS)

    def _free(self) -> None:
        flights, self._in_flight = self._in_flight, deque()
        for flight in flights:
            flight.pool.wait(flight.slot)
        while self._pools:
            self._pools.popitem()[1].close()
        if self.closes_engine:
            self.engine.close()
        while self._starting is not None:  # an engine that can stop what it runs does so now
            sleep(0.01)

    def _pool_key(self, frame: Frame) -> Hashable:
        """What the frames have in common that share requests."""
        return self.input_size(frame)

    def _prepared(self, slot: Slot, frame: Frame) -> None:
        """A request is about to run on a frame, or on a batch that begins with it."""

    def _pool(self, frame: Frame) -> Generator[FrameResult, None, RequestPool]:
        """The requests for a frame, made on first use; yields the results of batches that had to finish for it."""
        key, size = self._pool_key(frame), self.input_size(frame)
        pool = self._pools.pop(key, None)
        if pool is None:
            yield from self.drain()  # compiling takes long, and what has finished would count as still running
            if len(self._pools) >= self.kept:
                self._pools.pop(next(iter(self._pools))).close()
            pool = self._make_pool(size)
        self._largest = max(self._largest, (size[1], size[0]))
        self._pools[key] = pool
        return pool

    def _make_pool(self, size: tuple[int, int]) -> RequestPool:
        with thread_named("ff-engine"):  # the threads that the engine starts here inherit the name
            return self.engine.request_pool(self.batch, *size, self.slots)
