"""CapturedBatch: one batch on the GPU, captured once in a CUDA graph and launched for every batch like it.

Title: what is inside the graph
    The copy of the frames' addresses and positions from pinned memory, preprocessing through that table, the model,
    post-processing, and the copy of the found boxes to pinned memory. A launch reads what the pinned tables hold then,
    so other surfaces, sizes and rotations need no new capture. Nothing inside waits for the host. An engine that cannot
    be captured is started between two graphs on the same stream.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from time import monotonic, sleep
from typing import Any

from framefuse.cuda import device
from framefuse.cuda import driver as cuda_queue
from framefuse.cuda import launch_plan as calls
from framefuse.engines import DeviceExecution
from framefuse.frame import Frame
from framefuse.kernels.preprocess.cuda import PreprocessTable
from framefuse.models.card import Card
from framefuse.preprocess import Placement, Preprocess
from framefuse.runtime.cuda import uploads as memory
from framefuse.runtime.cuda.device_outputs import Answer, BoxOutputs, DeviceOutputs, MaskOutputs
from framefuse.runtime.ledger import Ledger
from framefuse.runtime.program import Selection

CAPTURES = 5
"""Tries to capture a graph: what a decoder does in another thread, such as setting itself up, can spoil one."""
POLL_SECONDS = 0.0001
"""Between looks at a batch that may time out."""


class CapturedBatch:
    """One captured batch: pinned tables in, pinned boxes out."""

    def __init__(
        self,
        model: DeviceExecution,
        frame: Frame,
        placement: Placement,
        card: Card,
        selection: Selection,
        ledger: Ledger,
        mode: memory.UploadMode,
    ) -> None:
        cp = device.cupy()
        self.model = model
        """Captured batches of one size and several pixel formats share it: only one of them may be in flight."""
        self._ledger = ledger
        self._stream = cp.cuda.Stream(non_blocking=True)
        # A thread that sleeps until the GPU is done wakes up 100 to 200 us late, which is most of a batch of one.
        self.ended = cp.cuda.Event(block=model.input.shape[0] > 1, disable_timing=True)
        self._batch = batch = model.input.shape[0]
        stream = self._stream
        with stream:
            self._staging = memory.Staging(batch, self._stream, ledger, mode)
            self._table = PreprocessTable(
                frame.format, model.input, memory_format=model.memory_format, allocate=device.pinned
            )
            outputs = [model.results[index] for index in card.output_indices] if model.layout is None else model.results
            self._device_outputs: DeviceOutputs
            if card.task == "semantic":
                self._device_outputs = MaskOutputs(batch, outputs[0].shape[1:], placement, card)
            else:
                relative = model.layout is not None or card.box_units == "relative"
                self._device_outputs = BoxOutputs(batch, model.layout or card.layout, relative, card, selection)

            def before() -> None:
                self._table.upload(self._stream.ptr)
                self._device_outputs.upload(self._stream)
                self._table.launch(self._stream.ptr)

            def run_model() -> None:  # must not refer to self, which keeps it: a cycle would outlive its last use
                model.start(stream)
                model.finish(stream)

            def after() -> None:
                self._device_outputs.start(outputs, self._stream)

            steps = before, run_model, after
            for step in steps:  # whatever is loaded at a first launch is loaded here
                step()
            self._stream.synchronize()
            with calls.owner() as self._launched_on:  # kept as long as the graphs
                if model.capturable:
                    self._launches = [self._recorded(steps)]
                else:
                    self._launches = [self._recorded([before]), run_model, self._recorded([after])]

    def _recorded(self, steps: Iterable[Callable[[], None]]) -> Callable[[], None]:
        """What launches these steps as one graph."""
        for left in reversed(range(CAPTURES)):
            try:
                graph = self._capture(list(steps))
                break
            except Exception as error:  # CuPy's own, or an EngineError of a kernel
                if not left or "captureinvalidated" not in str(error).replace("_", "").lower():
                    raise
        return partial(graph.launch, self._stream)

    def _capture(self, steps: Iterable[Callable[[], None]]) -> Any:
        self._stream.begin_capture(device.cupy().cuda.runtime.streamCaptureModeThreadLocal)
        try:
            for step in steps:
                step()
        finally:
            graph = self._stream.end_capture()
        return graph

    def load(self, frames: Sequence[Frame], placements: Sequence[Placement], preprocess: Preprocess) -> None:
        """Write the tables: which surfaces, and where each of them goes. Rows beyond the frames keep the last ones."""
        for slot, (frame, placement) in enumerate(zip(frames, placements, strict=True)):
            frame = self._staging.bring(slot, frame)
            if frame.ready is not None:
                cuda_queue.wait(frame.ready, self._stream)
            self._table.set(
                slot, frame, content=placement.content, interpolation=preprocess.interpolation,
                pad_value=preprocess.pad_value, mean=preprocess.mean, std=preprocess.std,
                channel_order=preprocess.channel_order, roi=placement.roi,
            )  # fmt: skip
        for slot in range(len(frames), self._batch):
            self._table.clear(slot)
        self._device_outputs.place(placements)

    def launch(self) -> None:
        for launch in self._launches:
            launch()
        self.ended.record(self._stream)
        self._ledger.add("preprocess", "h2d", "control", self._table.nbytes + self._device_outputs.sent)
        self._ledger.add("postprocess", "d2h", "results", self._device_outputs.fetched)

    def wait(self, timeout: float | None) -> bool:
        """Until the results are here; False after `timeout` seconds."""
        if timeout is None:
            self.ended.synchronize()
            return True
        end = monotonic() + timeout
        while not self.ended.done:
            if monotonic() >= end:
                return False
            sleep(POLL_SECONDS)
        return True

    def free(self) -> None:
        """Hold nothing any more, whoever holds this. Nothing may be in flight."""
        vars(self).clear()

    def read(self, count: int) -> list[Answer]:
        """What was found in each of `count` pictures.

        Raises:
            NonFiniteError: the model put out NaN or infinity for one of them.
        """
        return self._device_outputs.read(count)
