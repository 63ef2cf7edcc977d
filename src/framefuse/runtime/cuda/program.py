"""CudaProgram: surface -> model input -> model -> boxes on the GPU: one graph launch per batch, one small copy back.

For each input size a few batches (`CapturedBatch`) are captured before the first frame, so that several can be in
flight. Their memory is freed when the program is closed, except on a GPU that was lost.
"""

from collections import OrderedDict, deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from operator import attrgetter
from time import perf_counter, sleep
from typing import Any

from framefuse.common.text import counted
from framefuse.cuda import device, kernel
from framefuse.engines import DeviceExecution
from framefuse.engines.requests import launcher
from framefuse.errors import EngineError, GpuLostError, GpuMemoryError
from framefuse.frame import Frame, View
from framefuse.kernels.masks.canvas import downloaded, is_composable
from framefuse.kernels.preprocess.cuda import is_cuda
from framefuse.preprocess import Placement
from framefuse.runtime.batching import IN_FLIGHT, captured_rows
from framefuse.runtime.cuda import uploads as memory
from framefuse.runtime.cuda.captured_batch import CapturedBatch
from framefuse.runtime.profiling import median_seconds
from framefuse.runtime.program import CLOSE_SECONDS, Batch, FrameOutput, FrameResult, Program, WallCpuTime

MAX_SHAPES = 4
"""Input sizes and pixel formats kept captured at the same time; the least recently used one is dropped."""
USUAL_KERNELS = ("preprocess_semiplanar_u8_nhwc4", "filter_head_f16", "rank", "suppress")
"""Those for videos that the GPU decodes, and boxes; they are compiled while the model is loaded."""
MATTE_KERNELS = (
    *("preprocess_semiplanar_u8_nhwc4", "matte_share", "matte_shrink_u8", "matte_change", "matte_steady", "matte_fit"),
    "matte_frame_u8",
)
"""Those for mattes, without what is off by default."""
MEMORY_WAIT = 2.0
"""Seconds for which a batch waits for memory of the GPU that others may free."""
LAUNCHES = 4
"""Of a model in a row, when its time is measured."""

_lost: list[Any] = []
"""Keeps objects alive that are on a lost GPU, or that a batch without an end uses."""


@dataclass(eq=False)
class InFlightBatch:
    """A launched batch, with the captured batch that runs it."""

    captured: CapturedBatch
    frames: Sequence[Frame]
    """Kept alive until the GPU has read them."""
    batch: Batch | None = None
    """None: something failed after the launch, so the batch is awaited but has no results."""


@dataclass(eq=False, repr=False, kw_only=True)
class CudaProgram(Program):
    """The `Program` of CUDA devices. It copies the frames that a sink needs to the host.

    Args:
        mode: how host frames reach the GPU (`choose_upload_mode`).
        merges: most views of a frame that run in one batch; the boxes of frames whose rows are `joined` are merged.
        partial_batches: many batches will not be full, so smaller graphs are captured, too: one runs all of its rows.

    Attributes:
        gpu: number of the GPU that it runs on, the current one of the thread that made it.
    """

    mode: memory.UploadMode = "copy"
    merges: int = 0
    partial_batches: bool = False

    def __post_init__(self) -> None:
        self.gpu = device.current_gpu()
        kernel.compile_ahead(USUAL_KERNELS if self.mattes is None else MATTE_KERNELS)
        super().__post_init__()
        self.slots = self.slots or IN_FLIGHT
        self._captured: OrderedDict[tuple[Any, ...], list[CapturedBatch]] = OrderedDict()
        self._executions: dict[tuple[int, int], list[DeviceExecution]] = {}
        self._gpu_lost = False

    def batch_key(self, frame: Frame) -> tuple[Any, ...]:
        place, task = self._place(frame), self.card.task
        # Masks have the size of what the model saw, those of instances that of the frame.
        masks = place.shown if task == "semantic" else place if task == "segment" else None
        return place.size[::-1], frame.format.layout, frame.format.dtype, masks

    def prepare(self, width: int, height: int, view: View | None = None) -> None:
        """Load the model for frames of this size. Capturing waits for the first frame, which tells the pixel format."""
        self._models(self.preprocess.place_view(width, height, view).size[::-1])

    def row_seconds(self) -> float:
        model = self._models((self.preprocess.height, self.preprocess.width))[0]
        with self._translating_errors("time the model"), (stream := device.cupy().cuda.Stream(non_blocking=True)):
            self.engine.tune()
            start = launcher(model, stream)

            def run() -> None:
                for _ in range(LAUNCHES):
                    start()
                stream.synchronize()

            return median_seconds(run) / (LAUNCHES * self.batch)

    def warm_up(self, frame: Frame) -> None:
        deque(self._captured_for(frame), maxlen=0)  # nothing is in flight yet

    def submit(self, frames: Sequence[Frame]) -> Iterator[FrameResult]:
        self.engine.check_process()
        batches = yield from self._captured_for(frames[0])
        while (captured := self._free_for(batches, len(frames))) is None:
            yield from self.finish()
        started = WallCpuTime.now()
        placements = [self._place(frame) for frame in frames]
        # Rows that are views of one frame follow each other.
        new = [not row or frame.planes is not frames[row - 1].planes for row, frame in enumerate(frames)]
        while True:
            try:
                with self._translating_errors("start a batch"):
                    kept = self._load(captured, frames, placements, new)
                break
            except GpuMemoryError:
                if perf_counter() - started.wall > MEMORY_WAIT:
                    raise
            yield from self.drain()  # those who take results may hold memory until they have them, and use them
            sleep(MEMORY_WAIT / 20)
        submitted = WallCpuTime.now()
        with self._translating_errors("start a batch"):
            captured.launch(frames, kept)
        flight = InFlightBatch(captured, frames)
        self._in_flight.append(flight)
        if self.keep_frames:
            with self._translating_errors("copy frames to the host"):
                for row, frame in enumerate(frames):
                    if kept[row] is None and not frame.aside:
                        kept[row] = self._to_host(frame) if new[row] else kept[row - 1]
        lasting = [frame.lease for frame in kept if frame is not None]
        for frame in frames:
            if frame.lease is not None and frame.lease not in lasting:
                frame.lease.release(after=captured.ended)
        self.ledger.frame(sum(first and not frame.aside for first, frame in zip(new, frames, strict=True)))
        flight.batch = self._submitted(frames, kept, started, submitted)

    def _load(
        self, captured: CapturedBatch, frames: Sequence[Frame], placements: Sequence[Placement], new: Sequence[bool]
    ) -> list[Frame | None]:
        """Load a captured batch. The frames that stay on the GPU, each in the first of its rows."""
        kept: list[Frame | None] = [None] * len(frames)
        loaded = captured.load(frames, placements, new, self.preprocess)
        for row, there in loaded.items() if self.frames_on_gpu else ():
            if is_composable(there) and not there.aside:
                kept[row] = _lasting(frames, row)
                if kept[row] is None:
                    planes, memory = captured.copy(there)
                    kept[row] = frames[row].replace_unchecked(planes=planes, ready=None, lease=None, owner=memory)
        return kept

    def passed(self, frame: Frame) -> Frame | None:
        with self._translating_errors("copy a frame to the host"):
            kept = self._to_host(frame) if self.keep_frames else None
        if frame.lease is not None:
            frame.lease.release()
        self.ledger.frame(1)
        return kept

    @property
    def ended(self) -> bool:
        """Whether the oldest batch in flight has ended, so that `finish` does not wait."""
        try:
            return bool(self._in_flight) and self._wait(self._in_flight[0], 0.0)
        except EngineError:  # which `finish` raises
            return True

    def _wait(self, flight: InFlightBatch, timeout: float | None) -> bool:
        with self._translating_errors("finish a batch"):
            return flight.captured.wait(timeout, alone=len(self._in_flight) == 1)

    def _read(self, flight: InFlightBatch) -> tuple[list[FrameOutput], tuple[float, ...]]:
        assert flight.batch is not None
        outputs = flight.captured.outputs
        found = outputs.read(flight.batch.size)
        self.ledger.add("postprocess", "d2h", "results", outputs.fetched_bytes)
        return found, flight.captured.device_seconds()

    def close(self) -> None:
        """Wait for the in-flight batches, discard their results and free the engine. A thread that still submits gets
        an EngineError. If a batch does not end within CLOSE_SECONDS, nothing is freed."""
        with self._closing:
            self._closed = True
            while self._in_flight:
                flight = self._in_flight[0]
                with suppress(GpuLostError):
                    if not self._wait(flight, CLOSE_SECONDS):
                        self._abandon()
                        return
                if self._in_flight and self._in_flight[0] is flight:
                    self._in_flight.popleft()
            self._free()
            if self.closes_engine:
                self.engine.close()
            if not self._gpu_lost:
                device.free_pools()

    def _free(self) -> None:
        """Free all device memory even if callers, such as a stored traceback, still hold references. On a lost GPU
        nothing is freed."""
        if self._gpu_lost:
            return
        for batches in list(self._captured.values()):
            for captured in batches:
                captured.free()
            batches.clear()
        for models in list(self._executions.values()):
            models.clear()
        self._captured.clear()
        self._executions.clear()

    def _captured_for(self, frame: Frame) -> Generator[FrameResult, None, list[CapturedBatch]]:
        """The captured batches for frames like this one; yields the results of batches that had to finish for them."""
        key = self.batch_key(frame)
        size = key[0]
        self._refuse_closed()
        batches = self._captured.pop(key, None)
        if batches is None:
            yield from self.drain()  # capturing runs the model, which may be in flight in another captured batch
            if len(self._captured) >= MAX_SHAPES:
                (oldest, *_), _ = self._captured.popitem(last=False)
                if not any(other[0] == oldest for other in self._captured):
                    self._executions.pop(oldest, None)
            try:
                batches = self._capture(size, frame)
            except GpuMemoryError:
                if not self._executions:
                    raise
                self.reasons.append(
                    "the GPU has no room for another input size, so buffers of earlier sizes were freed"
                )
                self._free()
            if batches is None:  # outside the handler: the error keeps the partly built batch alive
                device.free_cached_memory()
                batches = self._capture(size, frame)
        with self._closing:
            self._captured[key] = batches
            self._refuse_closed()  # it may have been closed during the capture
        self._largest = max(self._largest, (size[1], size[0]))
        return batches

    def _refuse_closed(self) -> None:
        if self._closed:
            self._free()
            raise EngineError("the program was closed", remedy="make a new one for each run")

    def _capture(self, size: tuple[int, int], frame: Frame) -> list[CapturedBatch]:
        """One captured batch for each execution of that size, the smallest first; executions that do not fit with
        theirs are freed."""
        placement = self._place(frame)
        models, batches = self._models(size), list[CapturedBatch]()
        while len(batches) < len(models):
            model = models[len(batches)]
            try:
                with self._translating_errors(f"capture batches of {model.input.shape[0]} x {size[1]}x{size[0]}"):
                    given = self.card, self.selection, self.checked, self.ledger, self.mode, self.merges, self.mattes
                    batches.append(CapturedBatch(model, frame, placement, *given, self.frames_on_gpu))
                continue
            except GpuMemoryError as error:
                if len(models) == 1:
                    raise
                self._fewer(len(models) - 1, error)
            del model, models[-1]  # outside the handler: the error keeps the partly built batch alive
            device.free_cached_memory()
        return sorted(batches, key=attrgetter("rows"))

    def _fewer(self, count: int, error: GpuMemoryError) -> None:
        wanted = len(self._rows())
        self.reasons.append(f"{counted(count, 'batch', 'batches')} captured, not {wanted}: {error.message}")

    def _rows(self) -> list[int]:
        return captured_rows(self.batch, self.slots, partial=self.partial_batches)

    def _free_for(self, batches: Sequence[CapturedBatch], rows: int) -> CapturedBatch | None:
        """The smallest of the batches that takes so many rows and is not in flight."""
        running = [flight.captured.model for flight in self._in_flight]
        return next((one for one in batches if one.rows >= rows and one.model not in running), None)

    def _models(self, size: tuple[int, int]) -> list[DeviceExecution]:
        """The executions of a size: as many as requested, or as many as fit."""
        if size not in self._executions:
            made: list[DeviceExecution] = []
            for rows in self._rows():
                try:
                    made.append(self._loaded(rows, size))
                    continue
                except GpuMemoryError as error:
                    if made:
                        self._fewer(len(made), error)
                        break
                device.free_cached_memory()  # outside the handler: the error keeps what was half made alive
                made.append(self._loaded(rows, size))
            self._executions[size] = made
        return self._executions[size]

    def _loaded(self, rows: int, size: tuple[int, int]) -> DeviceExecution:
        with self._translating_errors(f"load a batch of {rows} x {size[1]}x{size[0]}"):
            return self.engine.execution(rows, *size)

    @contextmanager
    def _translating_errors(self, doing: str) -> Iterator[None]:
        """Turn CUDA errors into framefuse errors. Once the GPU is lost, nothing is in flight and nothing is freed."""
        cp = device.cupy()
        try:
            yield
        except GpuLostError:  # from a call of cuda/driver.py
            self._abandon()
            raise
        except (cp.cuda.memory.OutOfMemoryError, cp.cuda.runtime.CUDARuntimeError) as error:
            found = device.translate_cuda_error(error, doing)
            if isinstance(found, GpuLostError):
                self._abandon()
            raise found from error

    def _abandon(self) -> None:
        """Forget what is in flight, and free nothing: CUDA would refuse, or wait for it."""
        _lost.extend((self._captured, self._executions, list(self._in_flight), self.engine))
        self._in_flight.clear()
        self._gpu_lost = True

    def _to_host(self, frame: Frame) -> Frame:
        """A copy of the frame in host memory, for the sinks."""
        if not is_cuda(frame):
            return replace(frame, lease=None)
        there = downloaded(frame)
        self.ledger.add("write", "d2h", "pixels", sum(plane.nbytes for plane in there.planes))
        return replace(there, lease=None)


def _lasting(frames: Sequence[Frame], row: int) -> Frame | None:
    """The frame of a row where it is, if its source has room for those that are not written yet. The last stage
    releases its lease, which the last of its rows has."""
    first = frames[row]
    for frame in frames[row:]:
        if frame.planes is not first.planes:
            break
        if getattr(frame.lease, "lasting", False):
            return first.replace_unchecked(ready=None, lease=frame.lease)
    return None
