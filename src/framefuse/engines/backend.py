"""Backend: what is known about an engine without loading it, and where to find the rest. Which engines there are: a
table, and the entry points `framefuse.engines`; how one of them is opened."""

import importlib
import importlib.util
import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from pkgutil import resolve_name
from typing import NamedTuple, get_args

from framefuse.engines.engine import FORK, Capabilities, Device, Engine, EngineOptions, Precision, check_int8, limited
from framefuse.engines.onnx_shapes import read_profile
from framefuse.errors import CapabilityError, EngineError, FramefuseError, ModelError, UsageError
from framefuse.models.onnx_file import is_quantised, plain_words
from framefuse.models.openvino_file import SUFFIXES

_found_version = cache(version)
"""Remembers the packages that were found: Python 3.12 loses about a kilobyte with each search for one."""
_opened: dict[tuple[str, str], int] = {}
"""(Engine, device) -> the process that opened it first."""


def version_of(package: str) -> str | None:
    """The version of an installed package; None: it is not installed."""
    try:
        return _found_version(package)
    except PackageNotFoundError:  # it may be installed later
        return None


@dataclass(frozen=True)
class Package:
    """A package that an engine needs."""

    name: str
    """As pip knows it."""
    modules: tuple[str, ...]
    """What it imports as; any one of them is enough."""
    file: str = ""
    """A file in the module's folder that only the right build has."""

    def found(self) -> bool:
        """Whether it is installed. Imports nothing."""
        for module in self.modules:
            try:
                spec = importlib.util.find_spec(module)
            except ValueError:  # imported without a spec
                return not self.file
            folders = spec.submodule_search_locations or () if spec else ()
            if spec and (not self.file or any(Path(folder, self.file).exists() for folder in folders)):
                return True
        return False


class Doubt(str):
    """Why another engine may be better for a model, which this one runs, too."""


class NetworkMemory(NamedTuple):
    """Bytes of GPU memory."""

    weights: int
    """All batches and sizes share them."""
    activations: int
    """Of each request."""


CUPY = Package("cupy-cuda13x", ("cupy",))


@dataclass(frozen=True)
class Needs:
    """What an engine needs on one device."""

    packages: tuple[Package, ...] = ()
    extra: str = ""
    """Of framefuse, which installs them; "": they come with framefuse itself."""


@dataclass(frozen=True, eq=False)
class Backend:
    """An engine that can be opened. The targets are "module:function", imported on use."""

    name: str
    capabilities: Capabilities
    opener: str
    """(model, options) -> Engine: its class, or a function."""
    needs: Mapping[str, Needs] = field(default_factory=dict)
    """By device."""
    tester: str = "framefuse.engines.selftest:run"
    """(backend, device) -> what was found."""
    checker: str = ""
    """(model, precision, height, width) -> why it cannot run a model, a `Doubt`, or None; "": opening it tells."""
    sizer: str = ""
    """(model, batch, height, width, precision) -> `NetworkMemory`; "": it is not known before the model is loaded."""

    @property
    def core(self) -> bool:
        """Whether it comes with framefuse itself."""
        return all(not self.needs.get(device, Needs()).extra for device in self.capabilities.devices)

    def lacks(self, device: str, precision: str = "auto", *, calibrate: bool = False) -> str | None:
        """What the engine cannot do, wherever it is installed; None: it can do what is asked."""
        if device not in self.capabilities.devices:
            return f"engine {self.name} " + ("runs on NVIDIA GPUs only" if device == "cpu" else "does not run on CUDA")
        if not self.capabilities.can(device, precision):
            return f"engine {self.name} has no {precision} on {device}"
        if calibrate and not self.capabilities.calibrates:
            return f"engine {self.name} has no use for calibration frames"
        return None

    def missing(self, device: str, precision: str = "auto") -> str | None:
        """Why the engine cannot be used here; None: nothing is missing. Imports no package."""
        opener = _opened.get((self.name, device), os.getpid())
        if why := self.capabilities.lost_by_fork(device, opener):
            return why
        for package in self.needs.get(device, Needs()).packages:
            if not package.found():
                return f"package {package.name} is not installed"
        flags = self.capabilities.cpu_flags.get(precision) if device == "cpu" else None
        if flags:
            from framefuse.kernels.cpu import cpu_flags

            if (known := cpu_flags()) and not known.intersection(flags):
                return f"this CPU has no native {precision}"
        return None

    def install(self, device: str) -> str:
        """The command that installs the packages for a device."""
        needs = self.needs.get(device, Needs())
        if needs.extra:
            return f"pip install 'framefuse[{needs.extra}]'"
        return "pip install " + (" ".join(package.name for package in needs.packages) or "framefuse")

    def refuses(self, model: Path, precision: str, height: int, width: int) -> str | None:
        """Why the engine cannot run a model, as far as that is known without opening it; None: nothing speaks against
        it. Call it where nothing is `missing`."""
        if not self.checker:
            return None
        try:
            why: str | None = resolve_name(self.checker)(model, precision, height, width)
            return why
        except FramefuseError as error:
            return error.message

    def open(self, model: Path, options: EngineOptions) -> Engine:
        """Load a model. `options.device` is one of its devices.

        Raises:
            EngineError: this process was forked after its parent had opened the engine, which then hangs.
        """
        opener = _opened.setdefault((self.name, options.device), os.getpid())
        if why := self.capabilities.lost_by_fork(options.device, opener):
            raise EngineError(f"engine {self.name}: {why}", remedy=FORK)
        engine: Engine = resolve_name(self.opener)(model, options)
        return engine

    def memory(self, model: Path, batch: int, height: int, width: int, precision: str = "auto") -> NetworkMemory | None:
        """What a network takes on a GPU, before it is loaded; None: that is not known."""
        if not self.sizer:
            return None
        try:
            found: NetworkMemory = resolve_name(self.sizer)(model, batch, height, width, precision)
        except FramefuseError:  # loading it tells what is wrong
            return None
        return found

    def selftest(self, device: str) -> str:
        """Run a tiny network; what was found, such as versions and the distance from a reference.

        Raises:
            CapabilityError: something is missing here.
            Exception: whatever goes wrong.
        """
        return str(resolve_name(self.tester)(self, device))

    def versions(self, device: str) -> str:
        """The packages with their versions, as far as they are installed."""
        names = [package.name for package in self.needs.get(device, Needs()).packages]
        return ", ".join(f"{name} {number}" for name in names if (number := version_of(name))) or "built in"


ENGINES: dict[str, str] = {
    "null": "framefuse.engines.null",
    "openvino": "framefuse.engines.openvino",
    "onnxruntime": "framefuse.engines.onnxruntime",
    "onnxruntime-tensorrt": "framefuse.engines.onnxruntime:TENSORRT",
    "onnxruntime-nvrtx": "framefuse.engines.onnxruntime:NVRTX",
    "cudnn": "framefuse.engines.cudnn",
    "tensorrt": "framefuse.engines.tensorrt.engine",
    "torch": "framefuse.engines.torch.engine",
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
    found = getattr(importlib.import_module(module), attribute or "BACKEND", None)
    return found if isinstance(found, Backend) else Backend(name, UNKNOWN, f"{module}:{attribute or 'open_engine'}")


def backends() -> Iterator[Backend]:
    """framefuse's own, in the order of `ENGINES`."""
    return (find_backend(name) for name in ENGINES)


def who_can(device: str, precision: str = "auto", *, calibrate: bool = False, but: Collection[str] = ()) -> str:
    """A remedy: framefuse's engines that can do this, but those named in `but`, on this device and on the other one,
    and how to install them."""
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
    if model.suffix in SUFFIXES and model.suffix not in backend.capabilities.formats:
        raise CapabilityError(f"engine {name} does not read {model.suffix}", remedy="use --engine openvino")
    as_written = options.precision == "int8" and "int8" not in backend.capabilities.precisions[options.device]
    if as_written:
        check_int8("int8", is_quantised(model))
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
        message = f"engine {name} is a {type(engine).__name__}"
        raise EngineError(message, remedy="let its class derive from framefuse.engines.Engine")
    engine.capabilities, engine.load_timeout = backend.capabilities, options.load_timeout
    if as_written:
        engine.reasons.append(f"the file is int8 as it is; engine {name} multiplies in {engine.precision}")
    if model.suffix == ".onnx":
        engine.profile = read_profile(model)
        if engine.profile is not None:
            engine.reasons.append(f"input shapes: {engine.profile}, as it was built")
    return engine
