"""Mixed-precision autotuning: FP16, FP8 or INT8 for each layer, by measured time and within an accuracy limit.

1. Measure every convolution in each type, then what `fastest` picks, until its picks are all measured.
2. Calibrate on real images: the range of every value, and the agreement of the results with FP16.
3. While agreement is too low, return buffers to FP16, first those whose rounding alone changes the results most.
4. Time FP16 and the result as CUDA graphs, in turns. Keep 8-bit layers only if they are faster beyond noise.

Types belong to buffers: a convolution multiplies the type of its input's buffer and writes that of its output's. So a
change of type needs no conversion step, and no value is stored twice.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import product
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from framefuse.cuda import device
from framefuse.engines.cudnn.compiled import Compiled
from framefuse.engines.cudnn.convolutions import CANDIDATES, Layer
from framefuse.engines.cudnn.execution import LARGEST, Execution, Weights, rounded
from framefuse.engines.cudnn.network import LOW_PRECISIONS, AnchorHead, Conv, Head, Type, Upsample
from framefuse.engines.cudnn.plans import Plans
from framefuse.engines.requests import capture

Array = NDArray[Any]
MIN_AGREEMENT = 0.95
"""Lowest agreement with FP16 to accept."""
ROUNDS = 4
"""Maximum rounds of measuring the layers of the fastest assignment."""
FP16_SHARES = (0.0, 0.15, 0.3, 0.5, 0.75, 1.0)
"""Shares of the 8-bit groups to return to FP16, tried in turn; the most disturbing groups first."""
LAUNCHES = 60
CONFIDENCE = 0.25
"""Lowest confidence at which an anchor counts as a detection."""
OVERLAP = 0.9
"""Lowest IoU at which two boxes of one anchor count as equal."""
DIFFERENCE = 0.1
"""Largest difference between two confidences that count as equal."""
CHANNEL_MULTIPLE = 16
"""Channels of an 8-bit value are multiples of this: 16 bytes."""
NOISE = 0.02
"""Relative differences of times below this count as noise."""
Group: TypeAlias = frozenset[int]
"""Buffers that share one type and scale, because values are copied between them."""


def convolutions(compiled: Compiled) -> list[Conv]:
    """The convolutions that cuDNN runs, in order."""
    return [step for step in compiled.placement.steps if isinstance(step, Conv) and not step.depthwise]


def groups(compiled: Compiled) -> dict[Group, str]:
    """Groups of buffers, each with the reason why it must be float16; empty if it may be 8-bit."""
    group = {buffer: frozenset({buffer}) for buffer in range(len(compiled.placement.sizes))}
    why: dict[int, str] = {}

    def require_fp16(name: str, reason: str) -> None:
        why.setdefault(compiled.view(name).buffer, reason)

    require_fp16(compiled.network.input, "it holds the images")
    for name in compiled.network.outputs:
        require_fp16(name, "it holds an output of the network")
    for step in compiled.placement.steps:
        names = (*step.reads, *step.writes)
        if isinstance(step, Upsample):
            joined = group[compiled.view(step.x).buffer] | group[compiled.view(step.y).buffer]
            group |= dict.fromkeys(joined, joined)
        elif not isinstance(step, Conv) or step.groups > 1:
            for name in names:
                require_fp16(name, f"{type(step).__name__} {step.name} has no 8-bit kernel")
        for name in names:
            view = compiled.view(name)
            if any(count % CHANNEL_MULTIPLE for count in (view.offset, view.shape[0], view.column)):
                require_fp16(name, f"its channels are not multiples of {CHANNEL_MULTIPLE}")
    return {found: next((why[buffer] for buffer in sorted(found) if buffer in why), "") for found in group.values()}


def scales(
    compiled: Compiled, free: Iterable[Group], types: Sequence[Type], peaks: Mapping[Type, Mapping[str, float]]
) -> tuple[float, ...]:
    """Scale of each buffer, which maps the largest value of its group to the largest 8-bit number.

    Args:
        peaks: by type, the largest magnitude of each value by name.
    """
    found = [1.0] * len(types)
    for group in free:
        values = [name for name, view in compiled.placement.views.items() if view.buffer in group]
        for buffer in group:
            if (kind := types[buffer]) != "fp16":
                peak = max((peaks[kind].get(name, 0.0) for name in values), default=0.0)
                found[buffer] = float(np.float32(peak / LARGEST[kind])) or 1.0
    return tuple(found)


def uniform(compiled: Compiled, free: Collection[Group], kind: Type) -> tuple[Type, ...]:
    """One type for all groups in `free`, float16 for the rest."""
    none: list[Type] = ["fp16"] * len(compiled.placement.sizes)
    return _with_changes(none, dict.fromkeys(free, kind))


def fastest(
    compiled: Compiled, free: Collection[Group], kinds: Sequence[Type], cost: Callable[[Layer], float]
) -> tuple[Type, ...]:
    """Types of the buffers with the least total cost, by local search from every uniform assignment.

    A move changes the type of one group, or of two groups that one convolution touches.

    Args:
        free: groups that may be 8-bit.
        cost: microseconds of a layer.
    """
    convs = convolutions(compiled)
    of = {buffer: group for group in free for buffer in group}
    touched = [{of[b] for name in (*conv.reads, *conv.writes) if (b := compiled.view(name).buffer) in of}
               for conv in convs]  # fmt: skip
    pairs = {frozenset(pair) for found in touched for pair in product(found, repeat=2)}
    moves = [(sorted(pair, key=min), [conv for conv, found in zip(convs, touched, strict=True) if pair & found])
             for pair in sorted(pairs, key=lambda pair: (len(pair), sorted(map(min, pair))))]  # fmt: skip

    def total(types: tuple[Type, ...], affected: Sequence[Conv]) -> float:
        typed = replace(compiled, types=types)
        found = [Layer.of(typed, conv) for conv in affected]
        return sum(cost(layer) * (1 + NOISE if layer.low_precision else 1) for layer in found)

    best: tuple[float, tuple[Type, ...]] | None = None
    for start in ("fp16", *kinds):
        types = uniform(compiled, free, start)
        improved = True
        while improved:
            improved = False
            for changed, affected in moves:
                before = total(types, affected)
                for wanted in product(("fp16", *kinds), repeat=len(changed)):
                    other = _with_changes(types, dict(zip(changed, wanted, strict=True)))
                    if (after := total(other, affected)) < before - 1e-6:
                        types, before, improved = other, after, True
        found = total(types, convs), types
        best = found if best is None or found[0] < best[0] - 1e-6 else best
    assert best is not None
    return best[1]


def _with_changes(types: Sequence[Type], changes: dict[Group, Type]) -> tuple[Type, ...]:
    new = list(types)
    for group, kind in changes.items():
        for buffer in group:
            new[buffer] = kind
    return tuple(new)


def agreement(expected: list[Array], found: list[Array], head: Head | AnchorHead | None) -> float:
    """Agreement of two runs, 0 to 1; 0 where `found` has NaN or infinity.

    With a detection head: the share of anchors with a confidence of at least `CONFIDENCE` in either run that have the
    same class, an IoU of at least `OVERLAP` and confidences that differ by at most `DIFFERENCE`. Without a head, or
    without such anchors: 1 - norm(expected - found) / norm(expected).

    Args:
        expected, found: results of `Execution.finish`.
    """
    if not all(np.isfinite(values).all() for values in found):
        return 0.0
    if head is not None:
        (boxes, scores), (other_boxes, other_scores) = (_boxes_and_scores(run[0], head) for run in (expected, found))
        confidence, other_confidence = scores.max(-1), other_scores.max(-1)
        either = np.maximum(confidence, other_confidence) >= CONFIDENCE
        if either.any():
            same = np.abs(confidence - other_confidence) <= DIFFERENCE
            same &= scores.argmax(-1) == other_scores.argmax(-1)
            return float((same[either] & (_overlap(boxes[either], other_boxes[either]) >= OVERLAP)).mean())
    norm = sum(float(np.square(values, dtype=np.float64).sum()) for values in expected)
    error = sum(float(np.square(a.astype(np.float64) - b).sum()) for a, b in zip(expected, found, strict=True))
    return float(max(0.0, 1 - (error / max(norm, 1e-30)) ** 0.5))


def _boxes_and_scores(values: Array, head: Head | AnchorHead) -> tuple[Array, Array]:
    """(batch, anchors, 4) centre and size of the boxes, and (batch, anchors, classes) confidences."""
    if isinstance(head, AnchorHead):
        return values[..., :4], values[..., 5:] * values[..., 4:5]
    return values[:, :4].transpose(0, 2, 1), values[:, 4:].transpose(0, 2, 1)


def _overlap(one: Array, other: Array) -> Array:
    """Intersection over union, row by row."""
    low = np.maximum(one[:, :2] - one[:, 2:] / 2, other[:, :2] - other[:, 2:] / 2)
    high = np.minimum(one[:, :2] + one[:, 2:] / 2, other[:, :2] + other[:, 2:] / 2)
    common = np.maximum(0, high - low).prod(1)
    found: Array = common / np.maximum(one[:, 2:].prod(1) + other[:, 2:].prod(1) - common, 1e-9)
    return found


PERCENTILE = 99.999
"""Percentage of the magnitudes that INT8 covers; larger values saturate. FP8 covers all of them."""
SAMPLE = 1 << 18
"""Maximum number of values for a percentile."""


@dataclass
class TuningResult:
    """Tuned types of one batch and size, with the measurements behind them."""

    types: tuple[Type, ...]
    """Of each buffer."""
    scales: tuple[float, ...]
    """Of each buffer, as `Compiled.scales`."""
    agreement: float
    """With FP16, 0 to 1."""
    us: dict[str, float]
    """Microseconds of a batch in a CUDA graph: "fp16" is the engine's default; "tuned" is all FP16 with kernels chosen
    as here; "chosen" is this result."""
    layers: list[dict[str, Any]] = field(default_factory=list)
    """For each convolution: name, types that it multiplies and writes, microseconds in them and in FP16, and why."""
    note: str = ""

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> TuningResult:
        """The inverse of `dataclasses.asdict`, through JSON.

        Raises:
            TypeError, KeyError: `content` is something else.
        """
        return cls(**{**content, "types": tuple(content["types"]), "scales": tuple(content["scales"])})

    @property
    def precision(self) -> str:
        """Such as "fp16+int8"."""
        return "+".join(dict.fromkeys(("fp16", *sorted({*self.types} - {"fp16"}))))

    def applied(self, compiled: Compiled) -> Compiled:
        """The network with these types.

        Raises:
            ValueError: the result belongs to another network.
        """
        if len(self.types) != len(compiled.placement.sizes):
            raise ValueError(f"{len(self.types)} types for {len(compiled.placement.sizes)} buffers")
        return replace(compiled, types=self.types, scales=self.scales)


class PrecisionTuner:
    """Tunes one compiled network.

    Args:
        images: calibration images (n, 3, height, width), repeated to fill batches.
        peaks: largest magnitudes of values that the file quantises; empty: measure them on the images.
    """

    def __init__(
        self, compiled: Compiled, plans: Plans, weights: Weights, images: Array, peaks: dict[str, float]
    ) -> None:
        self.compiled, self.plans, self.weights = compiled, plans, weights
        self.stream = device.cupy().cuda.Stream(non_blocking=True)
        self.excluded = {group: why for group, why in groups(compiled).items() if why}
        self.free: list[Group] = [group for group in groups(compiled) if group not in self.excluded]
        plans.measure(self.layers(()), CANDIDATES)
        self.base = Execution(compiled, plans.builder, weights, plans)
        count = compiled.batch
        rows = np.resize(np.arange(len(images)), -(-len(images) // count) * count)
        self.batches = [images[rows[start : start + count]] for start in range(0, len(rows), count)]
        self.peaks = {kind: dict(peaks) for kind in LOW_PRECISIONS}
        self.expected = [self.run(self.base, batch, None if peaks else self._observe) for batch in self.batches]
        if peaks:
            self._exclude_unknown_ranges(peaks)

    def tune(self, kinds: Sequence[Type], min_agreement: float = MIN_AGREEMENT) -> TuningResult:
        """The fastest types that agree with FP16 by at least `min_agreement`."""
        types = self.fastest(self.free, kinds)
        order = [group for group in self.free if types[min(group)] != "fp16"]
        returned: list[Group] = []
        for share in FP16_SHARES:
            if share:
                order = order if returned else self._most_disturbing_first(order, types)
                returned = order[: max(len(returned) + 1, round(share * len(order)))]
                types = self.fastest([group for group in order if group not in returned], kinds)
            agrees = self.agreement(types)
            if agrees >= min_agreement or len(returned) == len(order):
                break
        result = self._result(types, agrees, dict.fromkeys(returned, "in 8 bits it disturbs the results too much"))
        if order and result.us["chosen"] * (1 + NOISE) > result.us["tuned"]:
            types = self.fastest([], kinds)
            note = f"8 bits are not faster beyond noise: {result.us['chosen']:.1f} us, {result.us['tuned']:.1f} in fp16"
            result = self._result(types, self.agreement(types), {}, note)
        return result

    def fastest(self, free: Sequence[Group], kinds: Sequence[Type]) -> tuple[Type, ...]:
        """`fastest`, with all layers of its result measured."""
        for kind in ("fp16", *kinds):
            types = uniform(self.compiled, free, kind)
            self.plans.measure(self.layers(types), CANDIDATES)
        for _ in range(ROUNDS):
            types = fastest(self.compiled, free, kinds, cache(self.cost))
            missing = [layer for layer in self.layers(types) if self.plans.microseconds(layer) is None]
            if not missing:
                break
            self.plans.measure(missing, CANDIDATES)
        return types

    def cost(self, layer: Layer) -> float:
        """Microseconds: measured, or else the best of the layers that multiply the same type and write another."""
        if (found := self.plans.microseconds(layer)) is not None:
            return found
        kinds: tuple[Type, ...] = ("fp16", *LOW_PRECISIONS)
        alike = (self.plans.microseconds(replace(layer, y_type=y, residual_type=r)) for y in kinds for r in kinds)
        return min((us for us in alike if us is not None), default=float("inf"))

    def layers(self, types: tuple[Type, ...]) -> list[Layer]:
        """The layer of each of `convolutions` with these types of buffers."""
        typed = replace(self.compiled, types=types)
        return [Layer.of(typed, conv) for conv in convolutions(typed)]

    def with_types(self, types: tuple[Type, ...]) -> Compiled:
        return replace(self.compiled, types=types, scales=scales(self.compiled, self.free, types, self.peaks))

    def execution(self, types: tuple[Type, ...]) -> Execution:
        return Execution(self.with_types(types), self.plans.builder, self.weights, self.plans)

    def agreement(self, types: tuple[Type, ...]) -> float:
        """Mean agreement with FP16 on the calibration images."""
        execution = self.execution(types)
        head = self.compiled.network.head
        parts = [agreement(expected, self.run(execution, batch), head)
                 for expected, batch in zip(self.expected, self.batches, strict=True)]  # fmt: skip
        return float(np.mean(parts))

    def run(self, execution: Execution, batch: Array, after: Callable[[Any], None] | None = None) -> list[Array]:
        """Results for a batch; `after` is called with each step once it has been launched."""
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
        cp, graphs = device.cupy(), {}
        for name, execution in executions.items():
            execution.start(self.stream)  # loads everything that a first launch loads
            self.stream.synchronize()
            graphs[name] = capture(self.stream, partial(execution.start, self.stream))
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

    def _result(
        self, types: tuple[Type, ...], agrees: float, returned: dict[Group, str], note: str = ""
    ) -> TuningResult:
        """The result, with times and the reason for each layer."""
        tuned = uniform(self.compiled, [], "fp16")
        executions = {"fp16": self.base, "tuned": self.execution(tuned), "chosen": self.execution(types)}
        us = self.times(executions)
        typed = self.with_types(types)
        result = TuningResult(types, typed.scales, round(agrees, 4), us, note=note)
        why = {buffer: reason for group, reason in [*self.excluded.items(), *returned.items()] for buffer in group}
        plain = self.layers(())
        for conv, layer, fp16 in zip(convolutions(typed), self.layers(types), plain, strict=True):
            now, then = self.plans.microseconds(layer), self.plans.microseconds(fp16)
            reason = f"{now:.1f} us, {then:.1f} in fp16" if layer.x_type != "fp16" else (
                note or why.get(self.compiled.view(conv.x).buffer) or "8 bits are no faster")  # fmt: skip
            result.layers.append({"name": conv.name, "multiplies": layer.x_type, "writes": layer.y_type,
                                  "us": now, "fp16_us": then, "why": reason})  # fmt: skip
        return result

    def _most_disturbing_first(self, groups: Sequence[Group], types: tuple[Type, ...]) -> list[Group]:
        """Groups sorted by how much rounding them alone changes the results of the first batch."""
        noise: dict[Group, float] = {}
        for group in groups:
            typed = self.with_types(uniform(self.compiled, [group], types[min(group)]))
            found = self.run(self.base, self.batches[0], partial(self._round, typed))
            noise[group] = 1 - agreement(self.expected[0], found, self.compiled.network.head)
        return sorted(groups, key=lambda group: -noise[group])

    def _exclude_unknown_ranges(self, peaks: dict[str, float]) -> None:
        """Keep buffers that convolutions read in FP16 where the file states no range for them."""
        convs = convolutions(self.compiled)
        known = {view.buffer for name, view in self.compiled.placement.views.items() if name in peaks}
        for step in self.compiled.placement.steps:
            if isinstance(step, Upsample) and self.compiled.view(step.x).buffer in known:
                known.add(self.compiled.view(step.y).buffer)
        unknown = {self.compiled.view(name).buffer for conv in convs for name in conv.reads} - known
        for group in [group for group in self.free if group & unknown]:
            self.free.remove(group)
            self.excluded[group] = "the file does not quantise it"

    def _observe(self, step: Any) -> None:
        """Raise `peaks` to what a step of `base` has written."""
        cp = device.cupy()
        for name in step.writes:
            size = cp.abs(self.base.values(name)).reshape(-1).astype(cp.float32)
            found = {"fp8": size.max(), "int8": cp.percentile(size[:: max(1, size.size // SAMPLE)], PERCENTILE)}
            for kind, peaks in self.peaks.items():
                peaks[name] = max(peaks.get(name, 0.0), float(found[kind]))

    def _round(self, typed: Compiled, step: Any) -> None:
        """Round what a step of `base` has written and `typed` holds in 8 bits."""
        for name in step.writes:
            if (kind := typed.type(name)) != "fp16":
                values = self.base.values(name)
                values[...] = rounded(values, kind, typed.scale(name), device.cupy())
