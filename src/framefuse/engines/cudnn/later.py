"""LaterTuning: kernels are measured beside the work, and executions get them when all are known."""

from __future__ import annotations

import logging
import os
import threading
import weakref
from time import monotonic

from framefuse.cuda import device
from framefuse.engines.cudnn.convolutions import CANDIDATES, Builder
from framefuse.engines.cudnn.execution import Execution
from framefuse.engines.cudnn.plans import Plans, room_for

_logger = logging.getLogger(__name__)
DELAY = 3.0
"""Seconds from the first execution to the start, so that a short run starts no processes."""
PART = 4
"""Layers that are measured and saved together: an end of the process loses no more."""
MAX_WORKERS, SHARE = 4, 4
"""Processes that build kernels beside the work at most. Together they take no more than a quarter of the cores, or one,
and of the GPU memory that the run has left."""


class LaterTuning:
    """Measures the layers that `plans` has put off, in a thread that starts with the first execution.

    Args:
        reasons: where it says what it has done.
    """

    def __init__(self, plans: Plans, reasons: list[str]) -> None:
        self._plans, self._reasons = plans, reasons
        self._executions: weakref.WeakSet[Execution] = weakref.WeakSet()
        self._lock, self._stopped = threading.Lock(), threading.Event()
        self._thread: threading.Thread | None = None

    def add(self, execution: Execution) -> None:
        """Give an execution faster kernels later, if it has some that were not measured."""
        self._executions.add(execution)
        if self._plans.unmeasured and not self.running:
            gpu = device.current_gpu()
            self._thread = threading.Thread(target=self._run, args=(gpu,), name="ff-tune", daemon=True)
            self._thread.start()

    @property
    def running(self) -> bool:
        """Whether it measures or is about to."""
        return self._thread is not None and self._thread.is_alive()

    def tune(self) -> None:
        """Measure now."""
        self._tune(Builder(max_workspace=self._plans.builder.max_workspace), 0)

    def close(self) -> None:
        """Stop; what was measured is saved."""
        self._stopped.set()
        self._plans.stop_workers()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self, gpu: int) -> None:
        if self._stopped.wait(DELAY):
            return
        try:
            with device.current(gpu, "measure kernels"):
                cores = len(os.sched_getaffinity(0))
                if workers := room_for(max(1, min(MAX_WORKERS, cores // SHARE)), SHARE):
                    self._tune(Builder(max_workspace=self._plans.builder.max_workspace), workers)
                else:
                    self._reasons.append("kernels stay unmeasured: too little GPU memory is free to build others")
        except Exception as error:  # what runs goes on
            if not self._stopped.is_set():
                _logger.warning("the kernels of the model could not be measured: %s", error)

    def _tune(self, builder: Builder, workers: int) -> None:
        with self._lock:
            plans, begun, count, stopped = self._plans, monotonic(), 0, self._stopped.is_set
            part = PART if workers else len(plans.unmeasured)
            try:
                while (layers := plans.unmeasured[:part]) and not stopped():
                    with plans.cache.measuring(stopped):  # processes that run the same model share the work
                        plans.take_known(layers, builder)
                        plans.measure(layers, CANDIDATES, builder=builder, workers=workers, stopped=stopped)
                        plans.save()
                    del plans.unmeasured[: len(layers)]
                    count += len(layers)
            finally:
                plans.stop_workers()
            if stopped() or not count:
                return
            for execution in list(self._executions):
                execution.replace_kernels(plans)
            self._reasons.append(f"{count} kernels measured beside the work in {monotonic() - begun:.1f} s")
