"""Which engines there are: a table, the entry points `framefuse.engines`, and how one of them is opened."""

from __future__ import annotations

import importlib
from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path
from typing import get_args

from framefuse.engines.backend import Backend
from framefuse.engines.engine import Capabilities, Device, Engine, EngineOptions, Precision, limited, not_quantised
from framefuse.engines.onnx_shapes import read_profile
from framefuse.errors import CapabilityError, EngineError, ModelError, UsageError
from framefuse.models.onnx_file import is_quantised, plain_words

ENGINES: dict[str, str] = {
    "null": "framefuse.engines.null",
    "openvino": "framefuse.engines.openvino",
    "onnxruntime": "framefuse.engines.onnxruntime",
    "onnxruntime-tensorrt": "framefuse.engines.onnxruntime:TENSORRT",
    "onnxruntime-nvrtx": "framefuse.engines.onnxruntime:NVRTX",
    "cudnn": "framefuse.engines.cudnn",
    "tensorrt": "framefuse.engines.tensorrt",
    "torch": "framefuse.engines.torch",
    "tvm": "framefuse.engines.tvm",
}
"""Engine name -> module whose `BACKEND` describes it, or module:name, imported on use. Entry points of the group
`framefuse.engines` add to it; they name a `Backend`, or a function (model, options) -> Engine."""
PREFERENCE: dict[str, tuple[str, ...]] = {
    "cuda": ("cudnn", "tensorrt", "onnxruntime", "torch", "tvm"),
    "cpu": ("openvino", "onnxruntime", "torch", "tvm"),
}
"""Device -> engines that are chosen automatically, the fastest first."""
UNKNOWN = Capabilities({device: get_args(Precision)[1:] for device in get_args(Device)[1:]}, capturable=True)
"""Of an engine of others that states none: everything but calibration; it raises what it cannot do."""


def engine_names() -> dict[str, str]:
    """Every engine that this installation knows, installed or not: `ENGINES`, and those of entry points."""
    from importlib.metadata import entry_points

    return ENGINES | {point.name: point.value for point in entry_points(group="framefuse.engines")}


def find_backend(name: str) -> Backend:
    """The backend of that name.

    Raises:
        UsageError: no engine has this name.
    """
    targets = ENGINES if name in ENGINES else engine_names()
    if name not in targets:
        raise UsageError(f"no engine is called {name!r}", remedy=f"choose one of {', '.join(sorted(targets))}")
    module, _, attribute = targets[name].partition(":")
    content = vars(importlib.import_module(module))
    found = content.get(attribute or "BACKEND")
    if isinstance(found, Backend):
        return found
    return Backend(name, UNKNOWN, f"{module}:{attribute or 'open_engine'}")


def backends() -> Iterator[Backend]:
    """framefuse's own, in the order of `ENGINES`."""
    return (find_backend(name) for name in ENGINES)


def who_can(device: str, precision: str = "auto", *, calibrate: bool = False, but: Collection[str] = ()) -> str:
    """A remedy: framefuse's engines that can do this, on this device and on the other one, and how to install them.

    Args:
        but: names of engines to leave out.
    """
    found = []
    for place in (device, "cuda" if device == "cpu" else "cpu"):
        names = []
        for backend in map(find_backend, (name for name in PREFERENCE[place] if name not in but)):
            if backend.lacks(place, precision, calibrate=calibrate) is None:
                missing = backend.missing(place, precision)
                names.append(f"{backend.name} ({backend.install(place)})" if missing else backend.name)
        if names:
            found.append(f"with --device {place}: {', '.join(names)}")
    return "engines that can, " + "; ".join(found) if found else "use another precision or engine"


def check_capabilities(backend: Backend, device: str, precision: str = "auto", *, calibrate: bool = False) -> None:
    """
    Raises:
        UsageError: there are calibration frames, for which the engine has no use.
        CapabilityError: the engine lacks the device, or the precision on it; the remedy names engines that have it.
    """
    if why := backend.lacks(device, precision):
        raise CapabilityError(why, remedy=who_can(device, precision))
    if why := backend.lacks(device, precision, calibrate=calibrate):
        raise UsageError(why, remedy=f"leave calib out; {who_can(device, precision, calibrate=True)}")


def open_engine(name: str, model: str | Path, options: EngineOptions) -> Engine:
    """Load a model into an engine.

    Args:
        options: with device auto, the engine's first device.

    Raises:
        UsageError: no engine, precision or device has this name; int8 of a model that is not quantised; calibration
            frames for an engine that does not calibrate.
        CapabilityError: the engine lacks the device or precision, or its package or the device is missing here.
        ModelError: the engine cannot read the model.
    """
    backend, model = find_backend(name), Path(model)
    for what, value, known in (("precision", options.precision, Precision), ("device", options.device, Device)):
        if value not in get_args(known):
            raise UsageError(f"{what} is {value!r}", remedy=f"use one of {', '.join(get_args(known))}")
    if options.device == "auto":
        options = replace(options, device=backend.capabilities.devices[0])  # type: ignore[arg-type]
    check_capabilities(backend, options.device, options.precision, calibrate=bool(options.calibration))
    as_written = options.precision == "int8" and "int8" not in backend.capabilities.precisions[options.device]
    if as_written:
        if not is_quantised(model):
            raise not_quantised()
        options = replace(options, precision="auto")
    try:
        if options.device == "cpu":
            engine = limited(name, options.load_timeout, lambda: backend.open(model, options))
        else:  # the current GPU is the calling thread's
            engine = backend.open(model, options)
    except ModelError as error:
        before, noise, _ = error.message.partition("[ONNXRuntimeError]")
        if noise and error.__cause__ is not None:
            error.message = before + plain_words(error.__cause__)
        error.remedy = error.remedy or "export it again with opset 17, or use another engine"
        raise
    if not isinstance(engine, Engine):
        raise EngineError(
            f"engine {name} is a {type(engine).__name__}", remedy="let its class derive from framefuse.engines.Engine"
        )
    engine.capabilities, engine.load_timeout = backend.capabilities, options.load_timeout
    if as_written:
        engine.reasons.append(f"the file is int8 as it is; engine {name} multiplies in {engine.precision}")
    if model.suffix == ".onnx":
        engine.profile = read_profile(model)
        if engine.profile is not None:
            engine.reasons.append(f"input shapes: {engine.profile}, as it was built")
    return engine
