"""Which plan runs each layer: known in this process, remembered on disk, or measured now."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from framefuse.cuda import device
from framefuse.engines.cudnn.convolutions import Builder, Layer, Plan, frontend
from framefuse.engines.cudnn.plan_cache import PlanCache
from framefuse.engines.cudnn.plan_timing import fastest
from framefuse.engines.cudnn.workers import Workers
from framefuse.errors import EngineError


def environment(builder: Builder) -> dict[str, str]:
    """What decides whether a remembered plan can be used again."""
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
        "scratch": str(builder.scratch),
    }


class Plans:
    """Plans by layer; `save` writes what was measured.

    Attributes:
        measured, cached: how many layers, so far.
        rebuilt: those of the remembered whose kernel had to be built.
        seconds: that building and measuring took.
        without: layers for which cuDNN has no kernel, and what it says.
    """

    def __init__(self, builder: Builder, cache: PlanCache | None = None) -> None:
        self.builder = builder
        self.cache = cache or PlanCache(environment(builder))
        self.measured = self.cached = self.rebuilt = 0
        self.seconds = 0.0
        self.workers: Workers | None = None
        self.without: dict[Layer, str] = {}
        self._known: dict[Layer, Plan] = {}
        self._new: dict[str, dict[str, Any]] = {}
        self._images: dict[str, bytes] = {}

    def __call__(self, layer: Layer) -> Plan:
        plan = self._known.get(layer)
        if plan is None:
            started = time.perf_counter()
            plan = self._known[layer] = self._replayed(layer) or self._measured(layer)
            self.seconds += time.perf_counter() - started
        return plan

    def measure(self, layers: Iterable[Layer], candidates: int) -> None:
        """Find the fastest kernel of each layer whose time is not known; processes beside this one build them.

        Where cuDNN has none, `microseconds` is infinite from then on.
        """
        unknown = [layer for layer in dict.fromkeys(layers) if self.microseconds(layer) is None]
        if not unknown:
            return
        started = time.perf_counter()
        self.workers = self.workers or Workers(self.builder.scratch)
        for layer, found in fastest(self.builder, self.workers, unknown, candidates=candidates):
            if isinstance(found, Plan):
                self._known[layer] = found
                self._remember(layer, found)
            else:
                self.without[layer] = found
        self.seconds += time.perf_counter() - started

    def microseconds(self, layer: Layer) -> float | None:
        """That the fastest kernel of a layer takes, as measured now or then; infinite: there is none."""
        if layer in self.without:
            return float("inf")
        if layer in self._known:
            return self._known[layer].microseconds or None
        entry = self.cache.get(layer.text)
        return float(entry.get("us", 0)) or None if entry else None

    def rest(self) -> None:
        """End the processes that build kernels."""
        if self.workers is not None:
            self.workers.close()
            self.workers = None

    def save(self) -> None:
        """Remember what was measured since the last time."""
        if self._new:
            self.cache.update(self._new, self._images)
            self._new, self._images = {}, {}

    def _replayed(self, layer: Layer) -> Plan | None:
        entry = self.cache.get(layer.text)
        if entry is None:
            return None
        engine, knobs, image = entry["engine"], entry["knobs"], self.cache.image(entry)
        try:
            try:
                if not image:
                    raise EngineError("its kernel is not there")
                plan = self.builder.load(image, engine, knobs)
            except EngineError:
                plan = self.builder.replay(layer, engine, knobs)
                self.rebuilt += 1
        except EngineError as error:  # measured again: the entry was written by something that knew more
            self.cache.note = str(error)
            return None
        plan.microseconds = float(entry.get("us", 0))
        self.cached += 1
        return plan

    def _measured(self, layer: Layer) -> Plan:
        plan = self.builder.choose(layer)
        self._remember(layer, plan)
        return plan

    def _remember(self, layer: Layer, plan: Plan) -> None:
        self.measured += 1
        self._new[layer.text] = {"engine": plan.engine, "knobs": plan.knobs, "us": round(plan.microseconds, 3)}
        if plan.image:
            self._images[layer.text] = plan.image
