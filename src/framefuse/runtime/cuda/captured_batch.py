"""CapturedBatch: one batch on the GPU, captured once in a CUDA graph and launched for every batch like it.

Title: what is inside the graph
    The copy of the frames' addresses and positions from pinned memory, preprocessing with that table, the model,
    postprocessing, and the copy of the results to pinned memory. A launch reads the current content of the pinned
    table, so other surfaces, sizes and rotations need no new capture. What postprocessing knows of positions is copied
    before a launch where it has changed. Nothing inside waits for the host. An engine that cannot be captured is
    started between two graphs on the same stream.
"""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain, pairwise, zip_longest
from math import prod
from os import sched_yield
from time import monotonic, sleep
from typing import Any

import numpy as np

from framefuse.cuda import device, driver
from framefuse.cuda.launch_plan import graph_memory
from framefuse.engines import DeviceExecution
from framefuse.engines.requests import capture
from framefuse.frame import Frame
from framefuse.kernels.preprocess.cuda import PreprocessTable, is_cuda
from framefuse.kernels.preprocess.filters import LONG
from framefuse.models.card import Card
from framefuse.postprocess import BoxCheck
from framefuse.postprocess.decoders import DECODERS
from framefuse.preprocess import Placement, Preprocess
from framefuse.runtime.cuda import uploads as memory
from framefuse.runtime.cuda.device_outputs import (
    BoxOutputs,
    CellOutputs,
    ClassOutputs,
    DeviceOutputs,
    MaskOutputs,
    MatteOutputs,
    UndecodedOutputs,
)
from framefuse.runtime.ledger import Ledger
from framefuse.runtime.program import Selection

_logger = logging.getLogger(__name__)
CAPTURES = 5
"""Attempts to capture a graph: a decoder that sets itself up in another thread can invalidate a capture."""
TIMED_EVERY = 64
"""Launches from one batch whose stages are timed on the GPU to the next. Its events cost a few microseconds."""
SPIN_SECONDS, POLL_SECONDS = 0.01, 0.0001
"""Waiting with a timeout polls without a pause at first, as a sleep of 100 us takes nearly 200; then at an interval."""


class CapturedBatch:
    """One captured batch: pinned tables in, pinned results out."""

    def __init__(
        self,
        model: DeviceExecution,
        frame: Frame,
        placement: Placement,
        card: Card,
        selection: Selection,
        checked: BoxCheck,
        ledger: Ledger,
        mode: memory.UploadMode,
        merges: int = 0,
        mattes: Sequence[int] | None = None,
        frames_on_gpu: bool = False,
    ) -> None:
        cp = device.cupy()
        self.model = model
        """Captured batches of one size and different pixel formats share it; only one of them may be in flight."""
        self._ledger = ledger
        self._stream = cp.cuda.Stream(non_blocking=True)
        self.rows = batch = model.input.shape[0]
        """Most frames that it takes, and how many rows run however few there are."""
        # A thread that sleeps until the GPU is done wakes up 100 to 200 us late, which is most of a batch of one frame.
        self._spins = batch <= max(1, merges)
        self.ended = cp.cuda.Event(block=not self._spins, disable_timing=True)
        stream = self._stream
        with stream:
            self._staging = memory.Staging(batch, self._stream, ledger, mode)
            filters = card.preprocess.interpolation in LONG
            self._table = PreprocessTable(
                frame.format, model.input, memory_format=model.memory_format, allocate=device.pinned, filters=filters
            )
            outputs = [model.results[index] for index in card.output_indices] if model.layout is None else model.results
            self.outputs: DeviceOutputs
            if card.task == "semantic" and mattes is not None:
                self.outputs = MatteOutputs(outputs[0], card, placement, mattes, stay=frames_on_gpu)
            elif card.task == "semantic":
                self.outputs = MaskOutputs(batch, outputs[0].shape[1:], placement, card)
            elif card.task == "classify":
                self.outputs = ClassOutputs(outputs[0], card)
            elif card.layout == "yolox":
                self.outputs = CellOutputs(outputs[0], card, selection, checked, placement)
            elif card.layout in DECODERS:
                self.outputs = UndecodedOutputs(outputs, card, selection, checked)
            else:
                relative = model.layout is not None or card.box_units == "relative"
                layout = model.layout or card.layout
                self.outputs = BoxOutputs(batch, layout, relative, card, selection, checked, placement, merges)

            def before() -> None:
                self._table.upload(self._stream.ptr)
                self._table.launch(self._stream.ptr)

            def run_model() -> None:  # does not refer to self, which would make a reference cycle
                model.start(stream)
                model.finish(stream)

            def after() -> None:
                self.outputs.start(outputs, self._stream)

            steps = before, run_model, after
            driver.driver()  # loaded now, because loading it is not allowed during a capture
            self._marks = [cp.cuda.Event() for _ in range(len(steps) + 1)]
            self._steps = steps
            self._run()
            self._capture()
        self._launched = self._filled = 0
        self._staged: list[tuple[Frame, Placement] | None] = [None] * batch
        """What the rows of the table show, where that is a buffer of a frame from the host."""
        self._placed: list[Placement] = []
        """Where the views of the last frame lie, if it was alone in the batch."""

    def _run(self) -> None:
        """Load everything that is loaded on a first launch, which a capture forbids."""
        for step in self._steps:
            step()
        self._stream.synchronize()

    def _capture(self) -> None:
        before, run_model, after = steps = self._steps
        self._version = self.model.version
        with graph_memory() as used:
            if self.model.capturable:
                launches = [self._recorded(steps)]
                marks = [partial(driver.record_in_graph, mark, self._stream) for mark in self._marks]
                timed = [self._recorded(_between(marks, steps))]
            else:
                launches = [self._recorded([before]), run_model, self._recorded([after])]
                marks = [partial(mark.record, self._stream) for mark in self._marks]
                timed = _between(marks, launches)
        self._launches, self._timed_launches = launches, timed
        self._graph_memory = used  # lives as long as the graphs

    def _recorded(self, steps: Sequence[Callable[[], None]]) -> Callable[[], None]:
        """Capture the steps in one graph, and return its launch."""

        def run() -> None:
            for step in steps:
                step()

        for left in reversed(range(CAPTURES)):
            try:
                graph = capture(self._stream, run)
                break
            except Exception as error:  # from CuPy, or an EngineError of a kernel
                said = " ".join([str(error), *getattr(error, "__notes__", ())])
                if not left or "captureinvalidated" not in said.replace("_", "").lower():
                    raise
        return partial(driver.launch, graph, self._stream)

    def load(
        self, frames: Sequence[Frame], placements: Sequence[Placement], new: Sequence[bool], preprocess: Preprocess
    ) -> dict[int, Frame]:
        """Write the tables: the surfaces, and where each lies in the model input. Rows without a frame become 0.

        Args:
            new: whether each row shows another frame than the one before.

        Returns:
            The frames as the GPU reads them, each with the first of its rows.
        """
        loaded = dict[int, Frame]()
        before, self._placed = self._placed, []
        views = list(placements) if frames[0].joined == len(frames) else []
        host = {slot: frame for slot, frame in enumerate(frames) if new[slot] and not is_cuda(frame)}
        self._staging.write(list(host.items()))
        for slot, (frame, placement) in enumerate(zip(frames, placements, strict=True)):
            if new[slot]:  # otherwise another view of the same frame
                there = loaded[slot] = self._staging.upload(slot, frame) if slot in host else frame
                if there.ready is not None:
                    driver.wait(there.ready, self._stream)
                if views and views == before and self._table.replace_frame(len(views), there):
                    self._staged = [None] * self.rows
                    break  # the same views of the next frame of a video
            staged = (there, placement) if there is not frame else None
            if staged is None or staged != self._staged[slot]:
                self._table.set(slot, there, **preprocess.arguments(placement))
            self._staged[slot] = staged
        else:
            for slot in range(len(frames), self._filled):
                self._table.clear(slot)
                self._staged[slot] = None
            self._filled = len(frames)
        self.outputs.place(placements, frames, self._stream)
        self._placed = views
        return loaded

    def copy(self, loaded: Frame) -> tuple[tuple[Any, ...], Any]:
        """Start copying the planes of a loaded frame into memory of their own on the GPU: the planes, whole when the
        next launch has ended, and that memory."""
        cp = device.cupy()
        given: Sequence[Any] = loaded.planes
        sizes = [one.strides[0] * (len(one) - 1) + one.itemsize * prod(one.shape[1:]) for one in given]
        starts, end = device.packed(sizes)
        with self._stream:
            memory = cp.empty((end,), np.uint8)
        planes = list[Any]()
        for plane, start, size in zip(given, starts, sizes, strict=True):
            driver.copy(memory.data.ptr + start, plane.data.ptr, size, self._stream)
            planes.append(device.array_in(memory.data.mem, start, plane.shape, plane.dtype, plane.strides))
        self._ledger.add("preprocess", "d2d", "pixels", sum(sizes))
        return tuple(planes), memory

    def launch(self, frames: Sequence[Frame], kept: Sequence[Frame | None]) -> None:
        """Start the batch.

        Args:
            frames: of each row.
            kept: the first row of each frame that stays on the GPU has it as it is kept.
        """
        with self._stream:
            grown = self.outputs.grow()
        if grown or self._version != self.model.version:  # nothing that it captured is in flight
            fits = False
            try:
                with self._stream:
                    self._run()
                    self._capture()
                fits = True
            except Exception as error:  # the graphs that are there go on
                _logger.warning("what would be faster from now on cannot be captured: %s", error)
            if grown:
                self.outputs.grown(fits=fits)
        self._launched += 1
        for launch in self._timed_launches if self._is_timed else self._launches:
            launch()
        self.outputs.hand_over(self._stream, frames, kept)
        driver.record(self.ended, self._stream)
        self._ledger.add("preprocess", "h2d", "control", self._table.nbytes + self.outputs.uploaded_bytes)
        self._ledger.add("postprocess", "d2h", "results", self.outputs.downloaded_bytes)

    def wait(self, timeout: float | None, alone: bool = False) -> bool:
        """Wait for the results; False after `timeout` seconds.

        Args:
            alone: nothing else is in flight, so that the GPU has nothing to do until the next batch. Then this wakes up
                at once, if it may wait as long as it takes.
        """
        begun, spins = monotonic(), self._spins or (alone and timeout is None)
        while not driver.has_ended(self.ended):
            waited = monotonic() - begun
            if timeout is not None and waited >= timeout:
                return False
            if spins and waited < SPIN_SECONDS:
                sched_yield()
            elif timeout is None:
                self.ended.synchronize()
            else:
                sleep(POLL_SECONDS)
        return True

    @property
    def _is_timed(self) -> bool:
        return self._launched % TIMED_EVERY == 1  # the first is timed, so that short runs have one

    def device_seconds(self) -> tuple[float, ...]:
        """Seconds that preprocess, model and postprocess of a finished batch took on the GPU; empty: not timed."""
        if not self._is_timed:
            return ()
        elapsed = device.cupy().cuda.get_elapsed_time
        return tuple(elapsed(start, end) / 1e3 for start, end in pairwise(self._marks))

    def free(self) -> None:
        """Free the memory even if callers still hold this object. Nothing may be in flight."""
        vars(self).clear()


def _between(marks: Sequence[Callable[[], None]], steps: Sequence[Callable[[], None]]) -> list[Callable[[], None]]:
    """A mark, a step, a mark, ..., a mark."""
    return [call for call in chain(*zip_longest(marks, steps)) if call is not None]
