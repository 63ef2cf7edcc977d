"""CudaProgram: surface -> model input -> model -> boxes on the GPU, one graph launch a batch, one small copy back.

Title: what is inside the graph
    For each input size a few `_Lane`s are captured before the first frame: the copy of the frames' addresses and
    positions from pinned memory, preprocessing through that table, the model, post-processing, and the copy of the
    found boxes to pinned memory. A launch reads what the pinned tables hold then, so other surfaces, sizes and
    rotations need no new capture. Nothing inside waits for the host. An engine that cannot be captured is started
    between two graphs on the same stream.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from time import monotonic, sleep
from typing import Any, Protocol

import numpy as np

from framefuse.errors import EngineError, NonFiniteError
from framefuse.frame import Frame
from framefuse.kernels import cuda
from framefuse.kernels.boxes import detections
from framefuse.kernels.preprocess_cuda import PreprocessTable
from framefuse.kernels.reference.boxes import Found
from framefuse.ledger import Ledger
from framefuse.models.card import Card
from framefuse.postprocess import maps
from framefuse.prediction import Detections
from framefuse.preprocess import Placement, Preprocess
from framefuse.profiling import Recorder
from framefuse.program import Batch, Done, Moment, Selection, Stages

MAX_SHAPES = 4
"""Input sizes and pixel formats kept captured at the same time; the one unused for longest gives way."""
LANES = 2
"""Batches in flight when nobody asks for another number: one runs while the results of the other are read."""
POLL_SECONDS = 0.0005
"""Between looks at a batch that may time out."""


class Execution(Protocol):
    """A model of one batch and input size with memory of its own on the GPU."""

    @property
    def input(self) -> Any:
        """(batch, height, width, 8) float16 on the GPU; the channels behind the third are 0 and may stay so."""

    results: Sequence[Any]
    """The model's outputs, or those of `layout`, on the GPU."""
    layout: str | None
    """What `results` hold, if not what the model itself puts out: "yolov8_head"."""

    def start(self, stream: Any) -> None:
        """Start the model on a stream of CuPy. It only launches, so it may be captured."""

    def finish(self, stream: Any) -> None:
        """Start what writes `results`."""


class CudaEngine(Protocol):
    """An engine that leaves pictures and results on the GPU."""

    name: str
    precision: str

    def execution(self, batch: int, height: int, width: int) -> Execution: ...
    def close(self) -> None: ...


@dataclass(eq=False)
class _Flight:
    lane: _Lane
    batch: Batch
    read: Sequence[Frame]
    """What the GPU reads: kept until it has."""


class CudaProgram:
    """The `Program` of CUDA devices. All calls come from one thread.

    Args:
        slots: batches in flight; 0: two.
        keep_frames: somebody after the model reads the planes: they are copied to the host.
    """

    def __init__(
        self,
        engine: CudaEngine,
        card: Card,
        preprocess: Preprocess,
        selection: Selection,
        *,
        batch: int = 1,
        slots: int = 0,
        keep_frames: bool = False,
        recorder: Recorder | None = None,
    ) -> None:
        cuda.cupy()
        self._engine, self._card, self._preprocess, self._selection = engine, card, preprocess, selection
        self._batch, self._slots, self._keep_frames = batch, slots or LANES, keep_frames
        self._lanes: OrderedDict[tuple[Any, ...], list[_Lane]] = OrderedDict()
        self._executions: dict[tuple[int, int], list[Execution]] = {}
        self._flights: deque[_Flight] = deque()
        self._largest = (0, 0)
        self.ledger = Ledger()
        self._stages = Stages(recorder or Recorder(), f"{card.path.stem} {engine.name} {engine.precision}")

    def input_size(self, frame: Frame) -> tuple[int, int]:
        width, height = self._preprocess.place(frame.width, frame.height).size
        return height, width

    def prepare(self, width: int, height: int) -> None:
        """Load the model for pictures of this size. The first frame captures, since only it tells the pixel format."""
        self._models(self._preprocess.place(width, height).size[::-1])

    def submit(self, frames: Sequence[Frame]) -> Iterator[Done]:
        lanes = yield from self._captured(frames[0])
        while not (free := [lane for lane in lanes if not self._is_running(lane.model)]):
            yield from self.finish()
        lane = free[0]
        started = Moment.now()
        placements = [self._preprocess.place(frame.width, frame.height) for frame in frames]
        lane.load(frames, placements, self._preprocess)
        submitted = Moment.now()
        lane.launch()
        kept: list[Frame | None] = [None] * len(frames)
        if self._keep_frames:
            kept = [self._to_host(frame) for frame in frames]
        for frame in frames:
            if frame.lease is not None:
                frame.lease.release(after=lane.ended)
        self.ledger.frame(len(frames))
        self._flights.append(_Flight(lane, self._stages.submitted(frames, kept, started, submitted), frames))

    @property
    def in_flight(self) -> int:
        return len(self._flights)

    def finish(self, timeout: float | None = None) -> Iterator[Done]:
        if not self._flights:
            return
        flight = self._flights[0]
        waiting = Moment.now()
        if not flight.lane.wait(timeout):
            return
        self._flights.popleft()
        finished = Moment.now()
        found = flight.lane.read(len(flight.batch.infos), self._card)
        yield from self._stages.finished(flight.batch, [(boxes, None) for boxes in found], waiting, finished)

    def drain(self) -> Iterator[Done]:
        while self._flights:
            yield from self.finish()

    @property
    def largest_input(self) -> tuple[int, int]:
        return self._largest if any(self._largest) else (self._preprocess.width, self._preprocess.height)

    def close(self) -> None:
        """Wait for what runs, forget its results, free the engine. The thread that submits must have ended."""
        while self._flights:
            self._flights.popleft().lane.wait(None)
        self._lanes.clear()
        self._executions.clear()
        self._engine.close()

    def _captured(self, frame: Frame) -> Generator[Done, None, list[_Lane]]:
        """The lanes for frames like this one; yields what had to be finished to make room for them."""
        size = self.input_size(frame)
        key = size, frame.format.layout, frame.format.dtype
        lanes = self._lanes.pop(key, None)
        if lanes is None:
            yield from self.drain()  # capturing runs what may be in flight in another lane
            if len(self._lanes) >= MAX_SHAPES:
                (oldest, *_), _ = self._lanes.popitem(last=False)
                if not any(other[0] == oldest for other in self._lanes):
                    self._executions.pop(oldest, None)
            lanes = [_Lane(model, frame, self._card, self._selection, self.ledger) for model in self._models(size)]
        self._lanes[key] = lanes
        self._largest = max(self._largest, (size[1], size[0]))
        return lanes

    def _is_running(self, model: Execution) -> bool:
        return any(flight.lane.model is model for flight in self._flights)

    def _models(self, size: tuple[int, int]) -> list[Execution]:
        if size not in self._executions:
            self._executions[size] = [self._engine.execution(self._batch, *size) for _ in range(self._slots)]
        return self._executions[size]

    def _to_host(self, frame: Frame) -> Frame:
        """The frame in host memory, for those who draw and write."""
        if isinstance(frame.planes[0], np.ndarray):
            return replace(frame, lease=None)
        if frame.ready is not None:
            frame.ready.synchronize()
        planes = tuple(cuda.cupy().asnumpy(plane) for plane in frame.planes)
        self.ledger.add("write", "d2h", "pixels", sum(plane.nbytes for plane in planes))
        return replace(frame, planes=planes, ready=None, lease=None, owner=None)


class _Lane:
    """One captured batch: pinned tables in, pinned boxes out."""

    def __init__(self, model: Execution, frame: Frame, card: Card, selection: Selection, ledger: Ledger) -> None:
        cp = cuda.cupy()
        self.model = model
        """Lanes of one size and several pixel formats share it: only one of them may be in flight."""
        self._ledger = ledger
        self._stream = cp.cuda.Stream(non_blocking=True)
        self.ended = cp.cuda.Event(block=True, disable_timing=True)
        self._batch = batch = model.input.shape[0]
        layout = model.layout or card.layout
        self._relative = model.layout is not None or card.box_units == "relative"
        with self._stream:
            self._staging = _Staging(batch, self._stream, ledger)
            self._table = PreprocessTable(frame.format, model.input, memory_format="nhwc", allocate=cuda.pinned)
            self._maps = cuda.pinned((batch, 8), np.float32)
            self._maps_there = cp.zeros((batch, 8), np.float32)
            # One allocation, so that one copy brings everything home.
            shapes = [((batch, selection.max_det, 4), np.float32), ((batch, selection.max_det), np.float32),
                      ((batch, selection.max_det), np.int32), ((batch,), np.int32), ((batch,), np.int32)]  # fmt: skip
            self._found_there, there = _arrays(shapes, lambda size: cp.zeros(size, np.uint8))
            self._found, self._home = _arrays(shapes, lambda size: cuda.pinned((size,), np.uint8))
            outputs = [model.results[index] for index in card.output_indices] if model.layout is None else model.results

            def run() -> None:
                runtime, stream = cp.cuda.runtime, self._stream.ptr
                self._table.upload(stream)
                runtime.memcpyAsync(self._maps_there.data.ptr, self._maps.ctypes.data, self._maps.nbytes,
                                    runtime.memcpyHostToDevice, stream)  # fmt: skip
                self._table.launch(stream)
                model.start(self._stream)
                model.finish(self._stream)
                detections(
                    outputs, layout, self._maps_there, conf=selection.conf, iou=selection.iou,
                    max_det=selection.max_det, classes=selection.classes, agnostic=selection.agnostic,
                    activation=card.activation, out=Found(*self._found_there),
                )  # fmt: skip
                runtime.memcpyAsync(self._home.ctypes.data, there.data.ptr, self._home.nbytes,
                                    runtime.memcpyDeviceToHost, stream)  # fmt: skip

            run()  # whatever is loaded at a first launch is loaded here
            self._stream.synchronize()
            self._stream.begin_capture(cp.cuda.runtime.streamCaptureModeThreadLocal)
            try:
                run()
            finally:
                self._graph = self._stream.end_capture()

    def load(self, frames: Sequence[Frame], placements: Sequence[Placement], preprocess: Preprocess) -> None:
        """Write the tables: which surfaces, and where each of them goes. Rows beyond the frames keep the last ones."""
        for slot, (frame, placement) in enumerate(zip(frames, placements, strict=True)):
            frame = self._staging.bring(slot, frame)
            if frame.ready is not None:
                self._stream.wait_event(frame.ready)
            self._table.set(
                slot, frame, content=placement.content, interpolation=preprocess.interpolation,
                pad_value=preprocess.pad_value, mean=preprocess.mean, std=preprocess.std,
                channel_order=preprocess.channel_order, roi=placement.roi,
            )  # fmt: skip
        for slot in range(len(frames), self._batch):
            self._table.clear(slot)
        self._maps[: len(frames)] = maps(tuple(placements), self._relative)

    def launch(self) -> None:
        try:
            self._graph.launch(self._stream)
            self.ended.record(self._stream)
        except cuda.cupy().cuda.runtime.CUDARuntimeError as error:
            raise EngineError(f"CUDA failed: {error}") from error
        self._ledger.add("preprocess", "h2d", "control", self._table.nbytes + self._maps.nbytes)
        self._ledger.add("postprocess", "d2h", "results", self._home.nbytes)

    def wait(self, timeout: float | None) -> bool:
        """Until the boxes are here; False after `timeout` seconds."""
        try:
            if timeout is None:
                self.ended.synchronize()
                return True
            end = monotonic() + timeout
            while not self.ended.done:
                if monotonic() >= end:
                    return False
                sleep(POLL_SECONDS)
        except cuda.cupy().cuda.runtime.CUDARuntimeError as error:
            raise EngineError(f"CUDA failed: {error}") from error
        return True

    def read(self, count: int, card: Card) -> list[Detections]:
        """What was found in each of `count` pictures.

        Raises:
            NonFiniteError: the model put out NaN or infinity for one of them.
        """
        boxes, scores, classes, counts, non_finite = self._found
        bad = np.flatnonzero(non_finite[:count])
        if len(bad):
            raise NonFiniteError(
                f"the model put out NaN or infinity in {non_finite[bad[0]]} of its anchors or queries for frame "
                f"{bad[0]} of a batch of {count}",
                remedy="run it with --precision fp32; if they are still there, the model file is damaged",
            )
        return [
            Detections(
                boxes[row, : counts[row]].copy(),
                scores[row, : counts[row]].copy(),
                classes[row, : counts[row]].astype(np.int64),
                card.names,
            )
            for row in range(count)
        ]


class _Staging:
    """Brings planes from the host to the GPU, through pinned memory: once each, as they were decoded."""

    def __init__(self, batch: int, stream: Any, ledger: Ledger) -> None:
        self._slots: list[dict[tuple[Any, ...], tuple[Any, Any]]] = [{} for _ in range(batch)]
        self._stream, self._ledger = stream, ledger

    def bring(self, slot: int, frame: Frame) -> Frame:
        """The frame on the GPU; one that is there already is returned as it is."""
        if not isinstance(frame.planes[0], np.ndarray):
            return frame
        cp = cuda.cupy()
        planes = []
        for number, plane in enumerate(frame.planes):
            key = number, plane.shape, plane.dtype
            if key not in self._slots[slot]:
                self._slots[slot][key] = cuda.pinned(plane.shape, plane.dtype), cp.empty(plane.shape, plane.dtype)
            here, there = self._slots[slot][key]
            np.copyto(here, plane)
            there.data.copy_from_host_async(here.ctypes.data, here.nbytes, self._stream)
            self._ledger.add("preprocess", "h2d", "pixels", here.nbytes)
            planes.append(there)
        return replace(frame, planes=tuple(planes), owner=None, lease=None, ready=None)


def _arrays(shapes: Sequence[tuple[tuple[int, ...], Any]], allocate: Any) -> tuple[list[Any], Any]:
    """Arrays one behind the other in one allocation of bytes, each at a multiple of 256; and that allocation."""
    sizes = [-(-int(np.prod(shape)) * np.dtype(dtype).itemsize // 256) * 256 for shape, dtype in shapes]
    memory = allocate(sum(sizes))
    arrays, start = [], 0
    for (shape, dtype), size in zip(shapes, sizes, strict=True):
        used = int(np.prod(shape)) * np.dtype(dtype).itemsize
        arrays.append(memory[start : start + used].view(dtype).reshape(shape))
        start += size
    return arrays, memory
