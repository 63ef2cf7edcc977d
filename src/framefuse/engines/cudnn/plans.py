"""Which plan runs each layer: known in this process, remembered on disk, or measured now."""

from __future__ import annotations

import time
from typing import Any

from framefuse.engines.cudnn.convolutions import Builder, Layer, Plan, frontend
from framefuse.engines.cudnn.plan_cache import PlanCache
from framefuse.errors import EngineError
from framefuse.kernels import cuda


def environment(builder: Builder) -> dict[str, str]:
    """What decides whether a remembered plan can be used again."""
    runtime = cuda.cupy().cuda.runtime
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
        measured, remembered: how many layers, so far.
        rebuilt: those of the remembered whose kernel had to be built.
        seconds: that building and measuring took.
    """

    def __init__(self, builder: Builder, cache: PlanCache | None = None) -> None:
        self.builder = builder
        self.cache = cache or PlanCache(environment(builder))
        self.measured = self.remembered = self.rebuilt = 0
        self.seconds = 0.0
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
        self.remembered += 1
        return plan

    def _measured(self, layer: Layer) -> Plan:
        plan = self.builder.choose(layer)
        self.measured += 1
        self._new[layer.text] = {"engine": plan.engine, "knobs": plan.knobs, "us": round(plan.microseconds, 3)}
        if plan.image:
            self._images[layer.text] = plan.image
        return plan
