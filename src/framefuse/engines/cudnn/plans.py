"""The plan of each layer: in memory, from the plan cache, or autotuned now.

The cache on disk is one JSON file per combination of GPU, driver and library versions, with an entry per layer. Models,
batches and sizes share the entry of a layer that they have in common. A file of another combination is never used;
`note` says how the most similar one differs. A damaged file counts as empty, and `note` says so. A lock serialises
writers. Serialised kernels lie in a folder of the same name, each named by the SHA-256 that its entry states.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from framefuse.common.files import user_cache
from framefuse.cuda import device
from framefuse.engines import cache
from framefuse.engines.cudnn.convolutions import Builder, Layer, Plan, frontend
from framefuse.engines.cudnn.workers import Workers
from framefuse.errors import EngineError

_logger = logging.getLogger(__name__)
FORMAT = 2


@dataclass
class PlanCache:
    """Plans by layer.

    Args:
        environment: everything that decides whether a cached plan is valid, by name.
        folder: of the cache files.
    """

    environment: dict[str, str]
    folder: Path = field(default_factory=lambda: user_cache() / "cudnn")

    def __post_init__(self) -> None:
        text = json.dumps({"format": FORMAT, **self.environment}, sort_keys=True)
        self.path = self.folder / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.json"
        self.note = ""
        """What is wrong with the cache, if anything."""
        self.entries: dict[str, dict[str, Any]] = self._read()

    def get(self, layer: str) -> dict[str, Any] | None:
        return self.entries.get(layer)

    def kernel(self, entry: Mapping[str, Any]) -> bytes:
        """The serialised kernel of an entry; empty if it is missing or damaged."""
        name = str(entry.get("kernel", ""))
        try:
            content = (self._kernels / name).read_bytes() if name else b""
        except (OSError, ValueError):
            return b""
        return content if hashlib.sha256(content).hexdigest() == name else b""

    def update(self, entries: dict[str, dict[str, Any]], kernels: Mapping[str, bytes] | None = None) -> None:
        """Merge entries into the file, which is replaced atomically.

        Args:
            kernels: serialised kernels by layer.
        """
        for layer, content in (kernels or {}).items():
            entries[layer]["kernel"] = hashlib.sha256(content).hexdigest()
        self.entries = {**self.entries, **entries}
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with cache.locked(self.path.with_suffix(".lock")):
                if kernels:
                    self._kernels.mkdir(exist_ok=True)
                for layer, content in (kernels or {}).items():
                    cache.write_atomically(self._kernels / entries[layer]["kernel"], content)
                self.entries = {**self._read(), **self.entries}
                index = json.dumps({"environment": self.environment, "plans": self.entries}, indent=0)
                cache.write_atomically(self.path, index.encode())
        except OSError as error:
            self.note = f"plans are measured again next time: {self.folder}: {error.strerror or error}"
            _logger.warning(self.note)

    @property
    def _kernels(self) -> Path:
        return self.path.with_suffix("")

    def _read(self) -> dict[str, dict[str, Any]]:
        try:
            content = json.loads(self.path.read_text(encoding="utf-8"))
            plans = content["plans"]
            if content["environment"] != self.environment or not all(
                isinstance(plan["engine"], int) and isinstance(plan["knobs"], dict) for plan in plans.values()
            ):
                raise ValueError("it has another format")
        except FileNotFoundError:
            self.note = self._difference()
            return {}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            self.note = f"{self.path} cannot be used and is rebuilt: {error}"
            _logger.warning(self.note)
            return {}
        return dict(plans)

    def _difference(self) -> str:
        """Why the most similar cache of this folder is stale; empty if there is none."""
        nearest: list[str] | None = None
        for path in self.folder.glob("*.json"):
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
                other = json.loads(path.read_text(encoding="utf-8"))["environment"]
                differ = [name for name, value in self.environment.items() if other.get(name) != value]
                changed = [f"{name} was {other.get(name)}, is {self.environment[name]}" for name in differ]
                if changed and (nearest is None or len(changed) < len(nearest)):
                    nearest = changed
        return f"cached kernels are stale ({', '.join(nearest)}): measured again" if nearest else ""


BUILD_TIMEOUT = 60.0
"""Seconds."""


def environment(builder: Builder) -> dict[str, str]:
    """What decides whether a cached plan is valid."""
    runtime = device.cupy().cuda.runtime
    properties = runtime.getDeviceProperties(runtime.getDevice())
    return {
        "gpu": properties["name"].decode(),
        "capability": f"{properties['major']}.{properties['minor']}",
        "multiprocessors": str(properties["multiProcessorCount"]),
        "driver": str(runtime.driverGetVersion()),
        "cudnn": str(frontend().backend_version()),
        "frontend": str(frontend().__version__),
        "precision": "fp16",
        "max_workspace": str(builder.max_workspace),
    }


class Plans:
    """Plans by layer; `save` writes new ones to the cache.

    Attributes:
        measured, cached: number of layers autotuned, and taken from the cache.
        rebuilt: number of cached layers whose kernel had to be built again.
        unsupported: layers for which cuDNN has no kernel, each with its message.
    """

    def __init__(self, builder: Builder, cache: PlanCache | None = None) -> None:
        self.builder = builder
        self.cache = cache or PlanCache(environment(builder))
        self.measured = self.cached = self.rebuilt = 0
        self.workers: Workers | None = None
        self.unsupported: dict[Layer, str] = {}
        self._plans: dict[Layer, Plan] = {}
        self._unsaved: dict[str, dict[str, Any]] = {}
        self._unsaved_kernels: dict[str, bytes] = {}

    def __call__(self, layer: Layer) -> Plan:
        plan = self._plans.get(layer)
        if plan is None:
            plan = self._from_cache(layer)
            if plan is None:
                plan = self.builder.autotune(layer)
                self._record(layer, plan)
            self._plans[layer] = plan
        return plan

    def measure(self, layers: Iterable[Layer], candidates: int) -> None:
        """Autotune the layers whose time is unknown; worker processes build the candidates.

        Where cuDNN has no kernel, `microseconds` is infinite from then on.
        """
        unknown = [layer for layer in dict.fromkeys(layers) if self.microseconds(layer) is None]
        if not unknown:
            return
        self.workers = self.workers or Workers(self.builder.max_workspace)
        for layer, found in fastest_plans(self.builder, self.workers, unknown, candidates=candidates):
            if isinstance(found, Plan):
                self._plans[layer] = found
                self._record(layer, found)
            else:
                self.unsupported[layer] = found

    def microseconds(self, layer: Layer) -> float | None:
        """Measured time of the fastest kernel of a layer; infinite if cuDNN has none, None if unknown."""
        if layer in self.unsupported:
            return float("inf")
        if layer in self._plans:
            return self._plans[layer].microseconds or None
        entry = self.cache.get(layer.text)
        return float(entry.get("us", 0)) or None if entry else None

    def stop_workers(self) -> None:
        """Stop the processes that build kernels."""
        if self.workers is not None:
            self.workers.close()
            self.workers = None

    def save(self) -> None:
        """Write the plans measured since the last call to the cache."""
        if self._unsaved:
            self.cache.update(self._unsaved, self._unsaved_kernels)
            self._unsaved, self._unsaved_kernels = {}, {}

    def _from_cache(self, layer: Layer) -> Plan | None:
        entry = self.cache.get(layer.text)
        if entry is None:
            return None
        engine, knobs, kernel = entry["engine"], entry["knobs"], self.cache.kernel(entry)
        plan = None
        if kernel:
            with contextlib.suppress(EngineError):
                plan = self.builder.load(kernel, engine, knobs)
        try:
            if plan is None:
                plan = self.builder.build(layer, engine, knobs)
                self.rebuilt += 1
        except EngineError as error:  # measured again
            self.cache.note = str(error)
            return None
        plan.microseconds = float(entry.get("us", 0))
        self.cached += 1
        return plan

    def _record(self, layer: Layer, plan: Plan) -> None:
        self.measured += 1
        self._unsaved[layer.text] = {"engine": plan.engine, "knobs": plan.knobs, "us": round(plan.microseconds, 3)}
        if plan.binary:
            self._unsaved_kernels[layer.text] = plan.binary


def fastest_plans(
    builder: Builder, workers: Workers, layers: Iterable[Layer], *, candidates: int
) -> Iterator[tuple[Layer, Plan | str]]:
    """For each layer the fastest of cuDNN's first `candidates` kernels, or the reason why there is none.

    Worker processes build the candidates in parallel, this process times them in turn.
    """
    queued: list[tuple[Layer, list[tuple[Future[bytes], int, dict[str, int]]], str]] = []
    for layer in layers:
        try:
            candidate_engines = builder.candidate_engines(layer)[:candidates]
        except Exception as error:  # the bindings raise their own classes and RuntimeError
            queued.append((layer, [], f"cuDNN: {str(error)[:160]}"))
            continue
        builds = [(workers.build(layer, *engine), *engine) for engine in candidate_engines]
        queued.append((layer, builds, "cuDNN has no kernel"))
    for layer, futures, reason in queued:
        best: Plan | None = None
        measure = None
        for future, engine, knobs in futures:
            try:
                binary = future.result(BUILD_TIMEOUT)
                measure = measure or builder.timer(layer)
                plan = builder.load(binary, engine, knobs)
                plan.microseconds = measure(plan)
            except TimeoutError:
                reason = "out of time"
            except Exception as error:  # cannot be built or run; the next candidate may
                reason = str(error)[:160]
                builder.failures.append(str(error)[:300])
            else:
                if best is None or plan.microseconds < best.microseconds:
                    best = plan
        yield layer, best or reason
