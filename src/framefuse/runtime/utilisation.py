"""Utilisation: how busy the units of a GPU are during a run, and the most memory that is taken, as NVML shows them."""

import threading
from dataclasses import dataclass

from framefuse.runtime.power import nvml_handle

INTERVAL = 0.25
"""Seconds between two readings; NVML itself averages over 1/6 s to 1 s."""


@dataclass(frozen=True)
class UtilisationFacts:
    """Means over a run, in percent of the time. Other programs on the GPU count, too."""

    device: str
    kernels: float
    """At least one kernel runs."""
    memory: float
    """Its memory is read or written."""
    decoders: float
    encoders: float
    peak_memory_mb: float
    """The most memory that is taken on the GPU."""

    def line(self) -> str:
        return (
            f"{self.device} runs kernels {self.kernels:.0f}% of the time, memory {self.memory:.0f}%, decoders "
            f"{self.decoders:.0f}%, encoders {self.encoders:.0f}%; up to {self.peak_memory_mb:,.0f} MB are taken"
        )


class Gauge:
    """Reads a GPU in a thread of its own from `start` to `stop`. It never raises: where NVML shows nothing, neither
    does `facts`."""

    def __init__(self, gpu: int | None) -> None:
        self._gpu = gpu
        self._sums, self._peak, self._count = [0.0] * 4, 0.0, 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="ff-utilisation", daemon=True)

    def start(self) -> None:
        if self._gpu is not None:
            self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()

    def facts(self) -> UtilisationFacts | None:
        """None: nothing was read."""
        if not self._count:
            return None
        kernels, memory, decoders, encoders = (total / self._count for total in self._sums)
        return UtilisationFacts(f"cuda:{self._gpu}", kernels, memory, decoders, encoders, self._peak)

    def _watch(self) -> None:
        try:
            assert self._gpu is not None
            nvml, handle = nvml_handle(self._gpu)
            while not self._ended.wait(INTERVAL):
                rates = nvml.nvmlDeviceGetUtilizationRates(handle)
                decoders = nvml.nvmlDeviceGetDecoderUtilization(handle)[0]
                values = rates.gpu, rates.memory, decoders, nvml.nvmlDeviceGetEncoderUtilization(handle)[0]
                self._sums = [total + value for total, value in zip(self._sums, values, strict=True)]
                self._peak = max(self._peak, nvml.nvmlDeviceGetMemoryInfo(handle).used / 1e6)
                self._count += 1
        except Exception:  # of NVML or CUDA: there is nothing to show then
            return
