"""Program: frames -> slot -> engine -> predictions, on the host. Results leave in the order in which frames came."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter, thread_time
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from framefuse.engines import Engine, RequestPool, Slot
from framefuse.frame import Frame
from framefuse.models.card import Card
from framefuse.postprocess import postprocess
from framefuse.postprocess.semantic import ClassMasks
from framefuse.prediction import Detections, FrameInfo, Masks, Predictions, Result
from framefuse.preprocess import Placement, Preprocess
from framefuse.runtime.ledger import Ledger
from framefuse.runtime.profiling import Recorder
from framefuse.runtime.threads import thread_named

MAX_POOLS = 4
"""Input shapes kept ready at the same time; the one unused for longest gives way."""


@dataclass(frozen=True)
class Selection:
    """Which detections are kept."""

    conf: float = 0.25
    iou: float = 0.7
    max_det: int = 300
    classes: Sequence[int] | None = None
    agnostic: bool = False


class FrameResult(NamedTuple):
    """A frame whose detections are known."""

    result: Result
    frame: Frame | None
    """The planes, where somebody after the model asked for them."""


class Program(Protocol):
    """Runs batches. All calls come from one thread."""

    def input_size(self, frame: Frame) -> tuple[int, int]:
        """Height and width of the model input for this frame; frames of one batch share it."""

    def prepare(self, width: int, height: int) -> None:
        """Make ready for pictures of this size, so that the first of them does not wait for a compiler."""

    def begin(self, frame: Frame) -> None:
        """Make ready for frames like this one, the first of a run, which is submitted later."""

    def submit(self, frames: Sequence[Frame]) -> Iterator[FrameResult]:
        """Start a batch; yields what had to be finished to make room."""

    def finish(self, timeout: float | None = None) -> Iterator[FrameResult]:
        """Wait for the oldest batch in flight; yields nothing when there is none, or after `timeout` seconds."""

    @property
    def in_flight(self) -> int:
        """Batches submitted and not finished."""

    def drain(self) -> Iterator[FrameResult]:
        """Wait for everything in flight."""

    @property
    def largest_input(self) -> tuple[int, int]:
        """Width and height of the largest model input used so far; before the first frame, of the largest possible."""

    @property
    def ledger(self) -> Ledger:
        """What was copied between host and device so far."""

    @property
    def reasons(self) -> Sequence[str]:
        """What was decided while it ran."""

    def close(self) -> None: ...


class WallCpuTime(NamedTuple):
    """Seconds of the wall's clock, and of processor time in this thread."""

    wall: float
    cpu: float

    @classmethod
    def now(cls) -> WallCpuTime:
        return cls(perf_counter(), thread_time())


@dataclass(eq=False)
class Batch:
    """What every program remembers of a batch in flight."""

    infos: list[FrameInfo]
    frames: list[Frame | None]
    """The planes, for those after the model who asked for them."""
    arrivals: list[float | None]
    preprocess: float
    """Seconds."""
    submitted: float


class Stages:
    """Books what each batch cost in the three stages of a program, and makes its results."""

    def __init__(self, recorder: Recorder, rung: str) -> None:
        names = ("preprocess", "inference", "postprocess")
        self._preprocess, self._inference, self._postprocess = (recorder.stage(name) for name in names)
        self._rung = rung

    def submitted(
        self, frames: Sequence[Frame], kept: list[Frame | None], started: WallCpuTime, submitted: WallCpuTime
    ) -> Batch:
        """A batch whose model was started between `submitted` and now."""
        seconds = submitted.wall - started.wall
        self._preprocess.add(seconds, items=len(frames), cpu=submitted.cpu - started.cpu)
        self._inference.add(0, items=0, cpu=thread_time() - submitted.cpu)
        arrivals = [frame.arrival for frame in frames]
        return Batch([FrameInfo.of(frame) for frame in frames], kept, arrivals, seconds, submitted.wall)

    def finished(
        self,
        batch: Batch,
        found: Sequence[tuple[Detections, Masks | None]],
        waiting: WallCpuTime,
        finished: WallCpuTime,
    ) -> Iterator[FrameResult]:
        """A batch that was waited for from `waiting` to `finished`, and post-processed from then to now."""
        ended, count = WallCpuTime.now(), len(batch.infos)
        inference, postprocess = finished.wall - batch.submitted, ended.wall - finished.wall
        wait_in, cpu = finished.wall - waiting.wall, finished.cpu - waiting.cpu
        self._inference.add(inference, items=count, wait_in=wait_in, cpu=cpu)
        self._postprocess.add(postprocess, items=count, cpu=ended.cpu - finished.cpu)
        timings = {"preprocess": batch.preprocess, "inference": inference, "postprocess": postprocess}
        rows = zip(batch.infos, batch.frames, batch.arrivals, found, strict=True)
        for info, frame, arrival, (detections, masks) in rows:
            yield FrameResult(Result(info, detections, self._rung, timings, arrival, masks), frame)


@dataclass(eq=False)
class InFlightBatch:
    slot: Slot
    pool: RequestPool
    batch: Batch
    placements: list[Placement]


class HostProgram:
    """Preprocess into an engine's slot, run, post-process, release: on the host, with several slots in flight."""

    def __init__(
        self,
        engine: Engine,
        card: Card,
        preprocess: Preprocess,
        selection: Selection,
        *,
        batch: int = 1,
        slots: int = 0,
        keep_frames: bool = False,
        recorder: Recorder | None = None,
    ) -> None:
        self._engine = engine
        self._card = card
        self._preprocess = preprocess
        self._selection = selection
        self._batch = batch
        self._slots = slots
        self._keep_frames = keep_frames
        self._class_masks = ClassMasks() if card.task == "semantic" else None
        self._pools: dict[tuple[int, int], RequestPool] = {}
        self._in_flight: deque[InFlightBatch] = deque()
        self._used: set[tuple[int, int]] = set()
        self.ledger = Ledger()
        """Stays empty."""
        self.reasons: Sequence[str] = ()
        self._stages = Stages(recorder or Recorder(), f"{card.path.stem} {engine.name} {engine.precision}")

    def input_size(self, frame: Frame) -> tuple[int, int]:
        width, height = self._preprocess.place(frame.width, frame.height).size
        return height, width

    def prepare(self, width: int, height: int) -> None:
        size = self._preprocess.place(width, height).size[::-1]
        self._pools[size] = self._make_pool(size)

    def begin(self, frame: Frame) -> None:
        """Its size is all that counts, and `prepare` was told."""

    def submit(self, frames: Sequence[Frame]) -> Iterator[FrameResult]:
        pool = yield from self._pool(self.input_size(frames[0]))
        while (slot := pool.acquire()) is None:
            yield from self.finish()
        started = WallCpuTime.now()
        placements = [
            self._preprocess(frame, row, memory_format=slot.memory_format)
            for frame, row in zip(frames, slot.input, strict=False)
        ]
        submitted = WallCpuTime.now()
        pool.submit(slot)
        kept: list[Frame | None] = list(frames) if self._keep_frames else [None] * len(frames)
        if not self._keep_frames:
            for frame in frames:
                if frame.lease is not None:
                    frame.lease.release()
        self._in_flight.append(
            InFlightBatch(slot, pool, self._stages.submitted(frames, kept, started, submitted), placements)
        )

    @property
    def in_flight(self) -> int:
        return len(self._in_flight)

    def finish(self, timeout: float | None = None) -> Iterator[FrameResult]:
        if not self._in_flight:
            return
        flight = self._in_flight[0]
        waiting = WallCpuTime.now()
        if not flight.pool.wait(flight.slot, timeout):
            return
        self._in_flight.popleft()
        finished = WallCpuTime.now()
        layout, outputs = flight.slot.layout, flight.slot.outputs
        if layout is None:
            outputs = tuple(outputs[index] for index in self._card.output_indices)
        self._card.check_outputs(outputs, layout)
        found = self._postprocess(outputs, layout, flight.placements)
        flight.pool.release(flight.slot)
        yield from self._stages.finished(flight.batch, found, waiting, finished)

    def _postprocess(
        self, outputs: Sequence[NDArray[Any]], layout: str | None, placements: Sequence[Placement]
    ) -> list[tuple[Detections, Masks | None]]:
        """What was found in each picture. Nothing of it lies in `outputs`."""
        card = self._card
        if self._class_masks is not None:
            pictures = self._class_masks(outputs[0], placements)
            return [(Detections.none(card.names), Masks(picture, card.names)) for picture in pictures]
        predictions = postprocess(
            outputs,
            layout or card.layout,
            placements,
            conf=self._selection.conf,
            iou=self._selection.iou,
            max_det=self._selection.max_det,
            classes=self._selection.classes,
            agnostic=self._selection.agnostic,
            activation=card.activation,
            box_units=card.box_units if layout is None else "relative",
        )
        return [(_to_host(predictions, row, card), None) for row in range(len(placements))]

    def drain(self) -> Iterator[FrameResult]:
        while self._in_flight:
            yield from self.finish()

    @property
    def largest_input(self) -> tuple[int, int]:
        return max(self._used, default=(self._preprocess.width, self._preprocess.height))

    def close(self) -> None:
        """Wait for what runs, forget its results, free the engine. The thread that submits must have ended."""
        while self._in_flight:
            flight = self._in_flight.popleft()
            flight.pool.wait(flight.slot)
        while self._pools:
            self._pools.popitem()[1].close()
        self._engine.close()

    def _pool(self, size: tuple[int, int]) -> Generator[FrameResult, None, RequestPool]:
        """The request pool of an input size, made when needed; yields what had to be finished to make room for it."""
        pool = self._pools.pop(size, None)
        if pool is None:
            if len(self._pools) >= MAX_POOLS:
                yield from self.drain()
                self._pools.pop(next(iter(self._pools))).close()
            pool = self._make_pool(size)
        self._used.add((size[1], size[0]))
        self._pools[size] = pool
        return pool

    def _make_pool(self, size: tuple[int, int]) -> RequestPool:
        with thread_named("ff-engine"):  # the engine's own threads, started here, are known by that name
            return self._engine.request_pool(self._batch, *size, self._slots)


def _to_host(predictions: Predictions, row: int, card: Card) -> Detections:
    count = int(predictions.counts[row])
    return Detections(
        xyxy=predictions.boxes[row, :count].copy(),
        confidence=predictions.scores[row, :count].copy(),
        class_id=predictions.classes[row, :count].astype(np.int64),
        names=card.names,
    )
