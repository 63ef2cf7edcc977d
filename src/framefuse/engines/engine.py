"""Engine: what runs a model. It knows nothing about frames, boxes or videos."""

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from framefuse.common.aside import aside
from framefuse.engines.onnx_shapes import Profile
from framefuse.engines.requests import DeviceExecution, RequestPool, device_request_pool
from framefuse.errors import CapabilityError, EngineError, UsageError

Device = Literal["auto", "cpu", "cuda"]
Loaded = TypeVar("Loaded")
Precision = Literal["auto", "fp32", "tf32", "bf16", "fp16", "int8", "fp8"]
REQUESTS = 2
"""Of a pool on CUDA by default: one runs while the other is filled and read."""
FORK = "start processes by multiprocessing.get_context('spawn'), or run only in the children"


@dataclass(frozen=True)
class EngineOptions:
    """What a caller may ask of an engine; an engine that cannot honour a field raises."""

    device: Device = "auto"
    precision: Precision = "auto"
    streams: int = 0
    """Requests that run at the same time; 0: as many as fit the cores."""
    threads: int = 0
    """Threads in all; 0: as many as there are cores this process may use."""
    workspace_mb: int = 0
    """Scratch memory the engine may take, MiB; 0: its own default."""
    load_timeout: float = 0
    """Seconds that loading and compiling for the CPU may take; 0: without limit."""
    layout: str | None = None
    """Layout of the model's outputs; an engine may leave their last steps to post-processing (`Slot.layout`)."""
    tunes_later: bool = False
    """Start at once with kernels that nobody has measured, for an engine that measures kernels, and measure beside the
    work; `Engine.tune` does it now."""
    helpers: bool = True
    """Whether it may start processes that take GPU memory of their own, to build kernels."""
    calibration: Sequence[NDArray[Any]] = field(default=(), compare=False, repr=False)
    """Sample model inputs, (n, 3, height, width) each, for an engine that chooses precisions by measurement."""

    def refuse_threads(self, engine: str) -> None:
        """For an engine that has neither streams nor threads: a UsageError if they are asked for."""
        if self.streams > 1 or self.threads:
            asked = f"({self.streams}, {self.threads})"
            raise UsageError(f"engine {engine} has no streams and threads {asked}", remedy="leave both 0")

    def refuse_workspace(self, engine: str) -> None:
        """For an engine without a workspace limit: a UsageError if one is asked for."""
        if self.workspace_mb:
            raise UsageError(f"engine {engine} has no workspace limit", remedy="leave workspace_mb at 0")


def limited(name: str, seconds: float, load: Callable[[], Loaded]) -> Loaded:
    """What `load` returns; if that takes longer than `load_timeout`, it is an EngineError."""
    if not seconds and threading.current_thread() is not threading.main_thread():  # neither a limit nor a signal
        return load()
    try:
        return aside(load, seconds or None)
    except TimeoutError as error:
        message = f"engine {name} has not loaded the model within {seconds:g} s (option load_timeout)"
        raise EngineError(message, remedy="use a larger --load-timeout, or another engine") from error


@dataclass(frozen=True)
class Capabilities:
    """The devices, precisions and abilities of an engine, known without loading it."""

    precisions: Mapping[str, tuple[str, ...]]
    """Device ("cpu", "cuda") -> what it can be asked to multiply in; the first device is the default. int8 and fp8 may
    need a quantised file or calibration frames."""
    capturable: bool = False
    """Whether its executions can be recorded into a CUDA graph; each one says so for itself."""
    calibrates: bool = False
    """Whether it chooses the precision of each layer by measurement on calibration frames."""
    quantised_as_written: bool = False
    """Whether it runs quantised files as they are written on the CPU; the engine decides what it multiplies in."""
    cpu_flags: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Precision -> flags in /proc/cpuinfo of which the CPU needs one."""
    survives_fork: bool = True
    """Whether it runs on the CPU of a child process that was forked after its parent had used it. CUDA never does."""

    formats: tuple[str, ...] = (".onnx",)
    """Suffixes of the files that it reads. A file with another suffix is taken for ONNX, or for the engine's own."""

    @property
    def devices(self) -> tuple[str, ...]:
        return tuple(self.precisions)

    def can(self, device: str, precision: str = "auto") -> bool:
        """Whether a precision can be asked for on a device."""
        if precision == "auto" or device not in self.precisions:
            return device in self.precisions
        as_written = precision == "int8" and device == "cpu" and self.quantised_as_written
        return as_written or precision in self.precisions[device]

    def lost_by_fork(self, device: str, opener: int) -> str | None:
        """Why the engine hangs in this process, if process `opener` has opened it; None: it does not."""
        if opener == os.getpid() or (device == "cpu" and self.survives_fork):
            return None
        return f"its threads stayed in process {opener}, from which this one was forked"


class Engine:
    """A compiled model; base class of all engines.

    A subclass sets the attributes and implements `_make_request_pool` for the CPU, `_make_execution` for CUDA. Several
    threads may share an engine, each with requests or executions of its own.

    Attributes:
        name: of its backend.
        capabilities: those of its backend.
        precision: what really runs: "fp32", "bf16", ..., "none" if nothing does.
        reasons: each choice the engine made, with its reason.
        input_dtype: number format of `Slot.input`.
        device: "cpu" or "cuda".
        streams: requests that run at the same time.
        profile: input shapes that the model file was built for; None: no limits are stated.
        artifact_bytes: size of what was built from the model; 0: the file itself runs.
        load_timeout: seconds that compiling a model for the CPU may take; 0: without limit.
    """

    name: str
    capabilities: Capabilities
    precision: str
    reasons: list[str]
    input_dtype: np.dtype[Any]
    device: Literal["cpu", "cuda"] = "cpu"
    streams: int = 1
    profile: Profile | None = None
    artifact_bytes: int = 0
    load_timeout: float = 0
    _making: threading.RLock
    _opener: int

    def __new__(cls, *args: Any, **options: Any) -> Self:
        made = super().__new__(cls)
        made._making, made._opener = threading.RLock(), os.getpid()
        return made

    def request_pool(self, batch: int, height: int, width: int, slots: int) -> RequestPool:
        """Requests of one input shape, in host memory.

        Args:
            slots: requests; 0: as many as the engine can keep busy.

        Raises:
            UsageError: the model, or the profile it was built for, excludes this shape.
            ModelError: the model has operators that the engine lacks.
            EngineError: the engine cannot compile or run it, or there is not enough memory.
        """
        self._check_profile(batch, height, width)
        if self.device == "cpu":

            def make() -> RequestPool:
                with self._making:
                    return self._make_request_pool(batch, height, width, slots)

            return limited(self.name, self.load_timeout, make)
        with self._making:
            executions = self._make_host_executions(batch, height, width, slots or REQUESTS)
        return device_request_pool((batch, 3, height, width), executions)

    def execution(self, batch: int, height: int, width: int) -> DeviceExecution:
        """The model of one input shape with its own memory on the GPU.

        Raises:
            CapabilityError: the engine was opened for the CPU.
            UsageError, ModelError, EngineError: as `request_pool`.
        """
        if self.device == "cpu":
            raise CapabilityError(f"engine {self.name} was opened for the CPU", remedy="open it with device cuda")
        self._check_profile(batch, height, width)
        with self._making:
            return self._make_execution(batch, height, width)

    def tune(self) -> None:
        """Measure now what was to be measured beside the work. Its executions have the fastest kernels then."""

    @property
    def settled(self) -> bool:
        """Whether nothing is left to measure beside the work, or it was given up. Callable from any thread."""
        return True

    @property
    def is_own(self) -> bool:
        """Whether this process has opened it; a fork has none of its threads."""
        return self._opener == os.getpid()

    def check_process(self) -> None:
        """EngineError if this process was forked from the one that opened the engine, which would hang here."""
        if why := self.capabilities.lost_by_fork(self.device, self._opener):
            raise EngineError(f"engine {self.name}: {why}", remedy=FORK)

    def close(self) -> None:
        """Free the model."""

    def _make_request_pool(self, batch: int, height: int, width: int, slots: int) -> RequestPool:
        raise NotImplementedError

    def _make_execution(self, batch: int, height: int, width: int) -> DeviceExecution:
        raise NotImplementedError

    def _make_host_executions(self, batch: int, height: int, width: int, count: int) -> Sequence[DeviceExecution]:
        """Executions whose results are copied to the host as they are."""
        return [self._make_execution(batch, height, width) for _ in range(count)]

    def _check_profile(self, batch: int, height: int, width: int) -> None:
        if self.profile is not None:
            self.profile.check((batch, self.profile.opt[1], height, width))


def check_int8(asked: str, quantised: bool) -> None:
    """A UsageError if int8 is asked of a model in floating point, or another precision of a quantised one."""
    if quantised and asked not in ("auto", "int8"):
        message = f"the model is quantised to int8, it cannot run at {asked}"
        raise UsageError(message, remedy="use the model it was built from")
    if asked == "int8" and not quantised:
        remedy = "framefuse build MODEL --precision int8 --calib SOURCE, or use --precision auto"
        raise UsageError("precision int8 was asked for, but the model has no quantised layers", remedy=remedy)
