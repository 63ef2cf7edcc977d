"""Engines run a model on slots of memory that they own. They know nothing about frames, boxes or videos."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Protocol, get_args

import numpy as np
from numpy.typing import NDArray

from framefuse.errors import CapabilityError, ModelError, UsageError
from framefuse.models.onnx_file import is_quantised, plain_words

Device = Literal["auto", "cpu", "cuda"]
Precision = Literal["auto", "fp32", "bf16", "fp16", "int8", "fp8"]

ENGINES: dict[str, str] = {
    "null": "framefuse.engines.null",
    "openvino": "framefuse.engines.openvino.engine",
    "onnxruntime": "framefuse.engines.onnxruntime.engine",
    "onnxruntime-tensorrt": "framefuse.engines.onnxruntime.cuda:open_tensorrt",
    "onnxruntime-nvrtx": "framefuse.engines.onnxruntime.cuda:open_nvrtx",
    "cudnn": "framefuse.engines.cudnn.engine",
    "tensorrt": "framefuse.engines.tensorrt.engine",
    "torch": "framefuse.engines.torch.engine",
    "tvm": "framefuse.engines.tvm.engine",
}
"""Engine name -> module whose `open_engine` opens it, or module:function, imported on use. Entry points of the group
`framefuse.engines` add to it."""
FP8 = ("cudnn", "tensorrt")
CHOOSING = ("cudnn",)
"""Engines that choose the precision of each layer by measurement, on `EngineOptions.calibration`."""

AS_WRITTEN = ("onnxruntime", "torch", "tvm")
"""Engines that run a quantised file on the CPU as it is written; in which numbers they multiply is theirs to say."""


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
    layout: str | None = None
    """Layout of the model's outputs, where an engine may leave their last steps to post-processing (`Slot.layout`)."""
    calibration: Sequence[NDArray[Any]] = field(default=(), compare=False, repr=False)
    """Model inputs like those to come, (n, 3, height, width) each: what an engine compares precisions on that chooses
    one for each layer by measurement."""


@dataclass(eq=False)
class Slot:
    """One request in flight."""

    input: NDArray[Any]
    """(batch, 3, height, width), or (batch, height, width, 3): preprocess writes it, the engine reads it in place.
    uint16 holds the bits of bfloat16."""
    outputs: tuple[NDArray[Any], ...] = ()
    """The model's raw outputs in the order of the ONNX, or those of `layout`; valid from `RequestPool.wait` to
    `RequestPool.release`."""
    handle: Any = None
    """The engine's own request object."""
    memory_format: Literal["nchw", "nhwc"] = "nchw"
    """Of `input`."""
    layout: str | None = None
    """What `outputs` hold, if not what the model itself puts out: "yolov8_head"."""


class RequestPool(Protocol):
    """Slots of one input shape. `acquire` never blocks on the model: None means that all slots are in flight."""

    shape: tuple[int, int, int, int]

    def acquire(self) -> Slot | None: ...
    def submit(self, slot: Slot) -> None: ...
    def wait(self, slot: Slot, timeout: float | None = None) -> bool:
        """Wait for the outputs of a submitted slot; False when `timeout` seconds were not enough."""

    def release(self, slot: Slot) -> None: ...
    def close(self) -> None: ...


class SlotPool:
    """A lane over a fixed set of slots; `start` begins a slot's request and `wait` ends it."""

    def __init__(
        self,
        shape: tuple[int, int, int, int],
        slots: list[Slot],
        *,
        start: Callable[[Slot], None],
        wait: Callable[[Slot, float | None], bool],
    ) -> None:
        self.shape = shape
        self._free = slots
        self._start = start
        self._wait = wait

    def acquire(self) -> Slot | None:
        return self._free.pop() if self._free else None

    def submit(self, slot: Slot) -> None:
        self._start(slot)

    def wait(self, slot: Slot, timeout: float | None = None) -> bool:
        return self._wait(slot, timeout)

    def release(self, slot: Slot) -> None:
        slot.outputs = ()
        self._free.append(slot)

    def close(self) -> None:
        self._free.clear()


class Engine(Protocol):
    """A model, compiled."""

    name: str
    precision: str
    """What really runs: "fp32", "bf16", ..."""
    reasons: Sequence[str]
    """Each choice the engine made, with its reason."""
    input_dtype: np.dtype[Any]
    streams: int
    """Requests that run at the same time."""
    capturable: bool
    """Whether a lane can be recorded into a CUDA graph."""

    def lane(self, batch: int, height: int, width: int, slots: int) -> RequestPool: ...
    def close(self) -> None: ...


def open_engine(name: str, model: str | Path, options: EngineOptions) -> Engine:
    """Load an engine by name.

    Raises:
        UsageError: no engine, precision or device has this name; int8 of a model that is not quantised.
        CapabilityError: its package, or the device asked for, is missing here.
        ModelError: the engine cannot read the model.

    What it makes raises UsageError at shapes that the profile of the model excludes (`framefuse.build_engine`).
    """
    modules = ENGINES if name in ENGINES else engine_names()
    if name not in modules:
        raise UsageError(f"no engine is called {name!r}", remedy=f"choose one of {', '.join(sorted(modules))}")
    model = Path(model)
    for what, value, known in (("precision", options.precision, Precision), ("device", options.device, Device)):
        if value not in get_args(known):
            raise UsageError(f"{what} is {value!r}", remedy=f"use one of {', '.join(get_args(known))}")
    if options.precision == "fp8" and name not in FP8:
        raise CapabilityError(f"engine {name} has no fp8", remedy=f"engines that have it: {', '.join(FP8)}")
    if options.calibration and name not in CHOOSING:
        raise UsageError(
            f"engine {name} chooses no precision by measurement: it has no use for calibration frames",
            remedy=f"leave calib out, or use engine {' or '.join(CHOOSING)}",
        )
    quantised = options.precision == "int8" and options.device != "cuda" and name in AS_WRITTEN and is_quantised(model)
    if quantised:
        options = replace(options, precision="auto")
    elif options.precision == "int8" and options.device != "cuda" and name == "onnxruntime":
        raise not_quantised()
    module, _, function = modules[name].partition(":")
    opener = getattr(importlib.import_module(module), function or "open_engine")
    try:
        engine: Engine = opener(model, options)
    except ModelError as error:
        before, noise, _ = error.message.partition("[ONNXRuntimeError]")
        if noise and error.__cause__ is not None:
            error.message = before + plain_words(error.__cause__)
        error.remedy = error.remedy or "export it again with opset 17, or use another engine"
        raise
    if quantised:
        engine.reasons = [*engine.reasons, f"the file is int8 as it is; engine {name} multiplies in {engine.precision}"]
    if model.suffix == ".onnx":
        _hold_to_profile(engine, model)
    return engine


def not_quantised() -> UsageError:
    """int8 was asked for, of a file in floating point."""
    return UsageError(
        "precision int8 was asked for, but the model has no quantised layers",
        remedy="framefuse build MODEL --precision int8 --calib SOURCE, or use --precision auto",
    )


def _hold_to_profile(engine: Any, model: Path) -> None:
    """Refuse shapes that the profile of an ONNX excludes, where it states one."""
    from framefuse.engines.onnx_shapes import read_profile

    profile = read_profile(model)
    if profile is None:
        return

    def held(make: Callable[..., Any]) -> Callable[..., Any]:
        def checked(batch: int, height: int, width: int, *rest: Any) -> Any:
            profile.check((batch, profile.opt[1], height, width))
            return make(batch, height, width, *rest)

        return checked

    for name in ("lane", "execution"):
        if hasattr(engine, name):
            setattr(engine, name, held(getattr(engine, name)))
    engine.reasons = [*engine.reasons, f"input shapes: {profile}, as it was built"]


def engine_names() -> dict[str, str]:
    """Every engine that this installation knows, installed or not: `ENGINES`, and those of entry points."""
    from importlib.metadata import entry_points

    return ENGINES | {point.name: point.value for point in entry_points(group="framefuse.engines")}
