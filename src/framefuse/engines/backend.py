"""Backend: what is known about an engine without loading it, and where to find the rest."""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from framefuse.engines.engine import Capabilities, Engine, EngineOptions
from framefuse.errors import EngineError, FramefuseError

_opened: dict[tuple[str, str], int] = {}
"""(Engine, device) -> the process that opened it first."""


def version_of(package: str) -> str | None:
    """The version of an installed package; None: it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
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


CUPY = Package("cupy-cuda13x", ("cupy",))


@dataclass(frozen=True)
class Needs:
    """What an engine needs on one device."""

    packages: tuple[Package, ...] = ()
    extra: str = ""
    """Of framefuse, which installs them; "": they come with framefuse itself."""

    @property
    def install(self) -> str:
        """The command."""
        if not self.extra:
            return "pip install " + (" ".join(package.name for package in self.packages) or "framefuse")
        return f"pip install 'framefuse[{self.extra}]'"


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
    """(model, precision, height, width) -> why it cannot run a model, or None; "": opening the model tells."""

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
        if why := self._lost_by_fork(device):
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
        return self.needs.get(device, Needs()).install

    def refuses(self, model: Path, precision: str, height: int, width: int) -> str | None:
        """Why the engine cannot run a model, as far as that is known without opening it; None: nothing speaks against
        it. Call it where nothing is `missing`."""
        if not self.checker:
            return None
        try:
            why: str | None = self._call(self.checker, model, precision, height, width)
        except FramefuseError as error:
            return error.message
        return why

    def open(self, model: Path, options: EngineOptions) -> Engine:
        """Load a model. `options.device` is one of its devices.

        Raises:
            EngineError: this process was forked after its parent had opened the engine, which then hangs.
        """
        if why := self._lost_by_fork(options.device):
            raise EngineError(
                f"engine {self.name}: {why}",
                remedy="start processes by multiprocessing.get_context('spawn'), or run only in the children",
            )
        _opened.setdefault((self.name, options.device), os.getpid())
        engine: Engine = self._call(self.opener, model, options)
        return engine

    def _lost_by_fork(self, device: str) -> str | None:
        parent = _opened.get((self.name, device), os.getpid())
        if parent == os.getpid() or (device == "cpu" and self.capabilities.survives_fork):
            return None
        return f"its threads stayed in process {parent}, from which this one was forked"

    def selftest(self, device: str) -> str:
        """Run a tiny network; what was found, such as versions and the distance from a reference.

        Raises:
            CapabilityError: something is missing here.
            Exception: whatever goes wrong.
        """
        return str(self._call(self.tester, self, device))

    def versions(self, device: str) -> str:
        """The packages with their versions, as far as they are installed."""
        names = [package.name for package in self.needs.get(device, Needs()).packages]
        return ", ".join(f"{name} {number}" for name in names if (number := version_of(name))) or "built in"

    @staticmethod
    def _call(target: str, *arguments: Any) -> Any:
        module, _, function = target.partition(":")
        return getattr(importlib.import_module(module), function)(*arguments)
