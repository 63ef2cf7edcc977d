"""The precision of each layer: FP16, FP8 or INT8, by measured time, as far as the results stay the same.

1. every convolution is measured in each type, and what `mixing.fastest` picks until all that it picks is measured
2. on real images, the ranges of all values are taken, and results compared with those of FP16 (`agreement.py`)
3. as long as they agree too little, values go back to FP16, those first whose rounding alone disturbs the results most
4. FP16 and what was chosen are timed as CUDA graphs, in turns; what is not faster beyond noise is not taken
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from framefuse.cuda import device
from framefuse.engines.cudnn import mixed_precision as mixing
from framefuse.engines.cudnn.agreement import agreement
from framefuse.engines.cudnn.compiled import Compiled
from framefuse.engines.cudnn.convolutions import CANDIDATES, Layer
from framefuse.engines.cudnn.execution import Execution, Weights, capture
from framefuse.engines.cudnn.mixed_precision import Group
from framefuse.engines.cudnn.network import EIGHT_BITS, Type
from framefuse.engines.cudnn.plans import Plans
from framefuse.engines.cudnn.rounding import observe, round_values

Array = NDArray[Any]

LEAST = 0.95
"""Agreement with FP16 that is good enough."""
MOST_CANDIDATES = 4
"""Kernels that are measured for a layer of 8 bits: what cuDNN lists first is seldom the fastest there."""
ROUNDS = 4
"""Measurements of what the last one made attractive."""
GIVEN_BACK = (0.0, 0.15, 0.3, 0.5, 0.75)
"""Parts of the groups that stay float16, those that disturb most first; then all."""
LAUNCHES = 60


@dataclass
class Choice:
    """What was chosen for one batch and size, and why."""

    types: tuple[Type, ...]
    """Of each buffer."""
    scales: tuple[float, ...]
    agreement: float
    """With FP16, 0 to 1."""
    us: dict[str, float]
    """Of a batch in a CUDA graph: "fp16", as the engine runs without a choice; "tuned", the same with kernels that were
    chosen as here; and "chosen"."""
    layers: list[dict[str, Any]] = field(default_factory=list)
    """Of each convolution: name, what it multiplies and what it writes, microseconds so and in FP16, why."""
    note: str = ""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def precision(self) -> str:
        """Such as "fp16+int8"."""
        return "+".join(dict.fromkeys(("fp16", *sorted({*self.types} - {"fp16"}))))

    def applied(self, compiled: Compiled) -> Compiled:
        """The network with these types.

        Raises:
            ValueError: it is of another network.
        """
        if len(self.types) != len(compiled.placement.sizes):
            raise ValueError(f"{len(self.types)} types for {len(compiled.placement.sizes)} buffers")
        return replace(compiled, types=tuple(self.types), scales=tuple(self.scales))


class Chooser:
    """Chooses for one compiled network.

    Args:
        images: (n, 3, height, width) that it shall agree on; repeated to fill batches.
        peaks: largest magnitude of values, where a file states them; empty: taken on the images.
    """

    def __init__(
        self, compiled: Compiled, plans: Plans, weights: Weights, images: Array, peaks: dict[str, float]
    ) -> None:
        self.compiled, self.plans, self.weights = compiled, plans, weights
        self.stream = device.cupy().cuda.Stream(non_blocking=True)
        self.barred = {group: why for group, why in mixing.groups(compiled).items() if why}
        self.free: list[Group] = [group for group in mixing.groups(compiled) if group not in self.barred]
        plans.measure(self.layers(()), CANDIDATES)
        self.base = Execution(compiled, plans.builder, weights, plans)
        count = compiled.batch
        rows = np.resize(np.arange(len(images)), -(-len(images) // count) * count)
        self.batches = [images[rows[start : start + count]] for start in range(0, len(rows), count)]
        self.expected = [self.results(self.base, batch) for batch in self.batches]
        self.peaks = {kind: dict(peaks) for kind in EIGHT_BITS}
        if peaks:
            self._keep_known(peaks)
        else:
            self.peaks = observe(self.base, self.batches, self.stream)

    def choose(self, kinds: Sequence[Type], least: float = LEAST) -> Choice:
        """The fastest that agrees with FP16 on `least` of what is found."""
        types = self.fastest(self.free, kinds)
        order = [group for group in self.free if types[min(group)] != "fp16"]
        back: list[Group] = []
        for part in (*GIVEN_BACK, 1.0):
            if part:  # too much was lost: the worst go back
                order = order if back else self._worst_first(order, types)
                back = order[: max(len(back) + 1, round(part * len(order)))]
                types = self.fastest([group for group in order if group not in back], kinds)
            found = self.check(types)
            if found >= least or len(back) == len(order):
                break
        choice = self.made(types, found, dict.fromkeys(back, "in 8 bits it disturbs the results too much"))
        if order and choice.us["chosen"] * (1 + mixing.NOISE) > choice.us["tuned"]:
            types = self.fastest([], kinds)
            note = f"8 bits are not faster beyond noise: {choice.us['chosen']:.1f} us, {choice.us['tuned']:.1f} in fp16"
            choice = self.made(types, self.check(types), {}, note)
        return choice

    def fastest(self, free: Sequence[Group], kinds: Sequence[Type]) -> tuple[Type, ...]:
        """`mixing.fastest`, with everything that it picks measured."""
        for kind in ("fp16", *kinds):
            self.plans.measure(self.layers(mixing.uniform(self.compiled, free, kind)), MOST_CANDIDATES)
        costs = Costs(self.plans)
        types: tuple[Type, ...] = ()
        for _ in range(ROUNDS):
            types = mixing.fastest(self.compiled, free, kinds, costs)
            missing = [layer for layer in self.layers(types) if self.plans.microseconds(layer) is None]
            if not missing:
                break
            self.plans.measure(missing, MOST_CANDIDATES)
        return types

    def layers(self, types: tuple[Type, ...]) -> list[Layer]:
        return mixing.layers(self.compiled, types)

    def typed(self, types: tuple[Type, ...]) -> Compiled:
        found = [1.0] * len(types)
        for kind in EIGHT_BITS:
            only = tuple(own if own == kind else "fp16" for own in types)
            for buffer, scale in enumerate(mixing.scales(self.compiled, self.free, only, self.peaks[kind])):
                found[buffer] = scale if types[buffer] == kind else found[buffer]
        return replace(self.compiled, types=types, scales=tuple(found))

    def execution(self, types: tuple[Type, ...]) -> Execution:
        return Execution(self.typed(types), self.plans.builder, self.weights, self.plans)

    def check(self, types: tuple[Type, ...]) -> float:
        """Agreement with FP16 on the images."""
        execution = self.execution(types)
        head = self.compiled.network.head
        parts = [agreement(expected, self.results(execution, batch), head)
                 for expected, batch in zip(self.expected, self.batches, strict=True)]  # fmt: skip
        return float(np.mean(parts))

    def results(self, execution: Execution, batch: Array, after: Callable[[Any], None] | None = None) -> list[Array]:
        """What the network gives for a batch."""
        cp = device.cupy()
        with self.stream:
            execution.pack(cp.asarray(batch), self.stream)
            if after is None:
                execution.start(self.stream)
            else:
                execution.step_by_step(self.stream, after)
            execution.finish(self.stream)
            self.stream.synchronize()
            return [result.get(stream=self.stream) for result in execution.results]

    def times(self, executions: dict[str, Execution]) -> dict[str, float]:
        """Median microseconds of a batch in a CUDA graph, launched in turns."""
        cp = device.cupy()
        graphs = {name: capture(self.stream, lambda execution=execution: execution.start(self.stream))  # type: ignore[misc]
                  for name, execution in executions.items()}  # fmt: skip
        start, stop = cp.cuda.Event(), cp.cuda.Event()
        found: dict[str, list[float]] = {name: [] for name in graphs}
        for _ in range(LAUNCHES):
            for name, graph in graphs.items():
                start.record(self.stream)
                graph.launch(self.stream)
                stop.record(self.stream)
                stop.synchronize()
                found[name].append(cp.cuda.get_elapsed_time(start, stop) * 1e3)
        return {name: round(float(np.median(values[5:])), 1) for name, values in found.items()}

    def made(self, types: tuple[Type, ...], found: float, back: dict[Group, str], note: str = "") -> Choice:
        """The choice, with times and what is to be said about each layer."""
        tuned = mixing.uniform(self.compiled, [], "fp16")
        executions = {"fp16": self.base, "tuned": self.execution(tuned), "chosen": self.execution(types)}
        us = self.times(executions)
        typed = self.typed(types)
        choice = Choice(types, typed.scales, round(found, 4), us, note=note)
        why = {buffer: reason for known in (self.barred, back) for group, reason in known.items() for buffer in group}
        plain = self.layers(())
        for conv, layer, before in zip(mixing.convolutions(typed), self.layers(types), plain, strict=True):
            now, then = self.plans.microseconds(layer), self.plans.microseconds(before)
            reason = f"{now:.1f} us, {then:.1f} in fp16" if layer.x_type != "fp16" else (
                note or why.get(self.compiled.view(conv.x).buffer) or "8 bits are no faster")  # fmt: skip
            choice.layers.append({"name": conv.name, "multiplies": layer.x_type, "writes": layer.y_type,
                                  "us": now, "fp16_us": then, "why": reason})  # fmt: skip
        return choice

    def _worst_first(self, some: Sequence[Group], types: tuple[Type, ...]) -> list[Group]:
        """Groups by what rounding them alone, as `types` has them, does to the results of the first batch."""
        noise: dict[Group, float] = {}
        for group in some:
            typed = self.typed(mixing.uniform(self.compiled, [group], types[min(group)]))
            found = self.results(self.base, self.batches[0], round_values(self.base, typed))
            noise[group] = 1 - agreement(self.expected[0], found, self.compiled.network.head)
        return sorted(some, key=lambda group: -noise[group])

    def _keep_known(self, peaks: dict[str, float]) -> None:
        """Buffers whose readers' ranges the file does not state stay float16."""
        for conv in mixing.convolutions(self.compiled):
            for name in conv.reads:
                buffer = self.compiled.view(name).buffer
                known = any(view.buffer == buffer and other in peaks for other, view in
                            self.compiled.placement.views.items())  # fmt: skip
                for group in [group for group in self.free if buffer in group and not known]:
                    self.free.remove(group)
                    self.barred[group] = "the file does not quantise it"


class Costs:
    """Microseconds of a layer; where it was not measured, what its like that multiplies the same takes at best."""

    def __init__(self, plans: Plans) -> None:
        self._plans, self._known = plans, dict[Layer, float]()

    def __call__(self, layer: Layer) -> float:
        found = self._plans.microseconds(layer)
        if found is None:
            if layer not in self._known:
                kinds: tuple[Type, ...] = ("fp16", *EIGHT_BITS)
                alike = (replace(layer, y_type=y, residual_type=r) for y in kinds for r in kinds)
                times = [us for other in alike if (us := self._plans.microseconds(other)) is not None]
                self._known[layer] = min(times, default=float("inf"))
            return self._known[layer]
        return found


def chosen(text: dict[str, Any]) -> Choice:
    """What `Choice.to_json` gave.

    Raises:
        TypeError, KeyError: it is something else.
    """
    return Choice(**{**text, "types": tuple(text["types"]), "scales": tuple(text["scales"])})


__all__ = ["LEAST", "Choice", "Chooser", "chosen"]
