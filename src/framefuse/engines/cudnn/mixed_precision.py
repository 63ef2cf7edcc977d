"""Which buffers hold 8 bits: what may, and the assignment of types that takes the least time by measured kernels.

A convolution multiplies what its input's buffer holds, and writes what its output's holds: so types belong to buffers,
a change of type costs nothing but what the kernel itself takes, and no value is there twice.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from itertools import product
from typing import TypeAlias

import numpy as np

from framefuse.engines.cudnn.compiled import Compiled
from framefuse.engines.cudnn.convolutions import Layer
from framefuse.engines.cudnn.low_precision import LARGEST
from framefuse.engines.cudnn.network import Conv, Type, Upsample

GRAIN = 16
"""Channels of a value of 8 bits are a multiple of this: 16 bytes."""
NOISE = 0.02
"""What is faster by less than this part counts as equal."""

Group: TypeAlias = frozenset[int]
"""Buffers of one type and scale: values are copied between them."""


def convolutions(compiled: Compiled) -> list[Conv]:
    """Those that cuDNN runs, in order."""
    return [step for step in compiled.placement.steps if isinstance(step, Conv) and not step.depthwise]


def layers(compiled: Compiled, types: tuple[Type, ...]) -> list[Layer]:
    """Of each of `convolutions`, with these types of buffers."""
    typed = replace(compiled, types=types)
    return [Layer.of(typed, conv) for conv in convolutions(compiled)]


def groups(compiled: Compiled) -> dict[Group, str]:
    """Groups of buffers, and why each has to be float16; empty where it may hold 8 bits."""
    group = {buffer: frozenset({buffer}) for buffer in range(len(compiled.placement.sizes))}
    why: dict[int, str] = {}

    def bar(name: str, reason: str) -> None:
        why.setdefault(compiled.view(name).buffer, reason)

    bar(compiled.network.input, "it holds the images")
    for name in compiled.network.outputs:
        bar(name, "it holds what the network puts out")
    for step in compiled.placement.steps:
        names = (*step.reads, *step.writes)
        if isinstance(step, Upsample):
            joined = group[compiled.view(step.x).buffer] | group[compiled.view(step.y).buffer]
            group |= dict.fromkeys(joined, joined)
        elif not isinstance(step, Conv) or step.groups > 1:
            for name in names:
                bar(name, f"{type(step).__name__} {step.name} has no kernel for 8 bits")
        for name in names:
            view = compiled.view(name)
            if any(count % GRAIN for count in (view.offset, view.shape[0], view.column)):
                bar(name, f"its channels are no multiples of {GRAIN}")
    return {found: next((why[buffer] for buffer in sorted(found) if buffer in why), "") for found in group.values()}


def scales(compiled: Compiled, free: Iterable[Group], types: Sequence[Type], peaks: dict[str, float]) -> list[float]:
    """Of each buffer: so that the largest value in its group is the largest number.

    Args:
        peaks: largest magnitude of values, by name.
    """
    found = [1.0] * len(types)
    for group in free:
        values = [name for name, view in compiled.placement.views.items() if view.buffer in group]
        peak = max((peaks.get(name, 0.0) for name in values), default=0.0)
        for buffer in group:
            if types[buffer] != "fp16" and peak > 0:
                found[buffer] = float(np.float32(peak / LARGEST[types[buffer]]))
    return found


def uniform(compiled: Compiled, free: Collection[Group], kind: Type) -> tuple[Type, ...]:
    """One type wherever it may be."""
    none: list[Type] = ["fp16"] * len(compiled.placement.sizes)
    return _with(tuple(none), dict.fromkeys(free, kind))


def fastest(
    compiled: Compiled, free: Collection[Group], kinds: Sequence[Type], cost: Callable[[Layer], float]
) -> tuple[Type, ...]:
    """Types of the buffers with the least sum of costs, found by changing one group, or two that a convolution joins,
    as long as that helps, from every uniform assignment.

    Args:
        free: groups that may hold 8 bits.
        cost: microseconds of a layer.
    """
    convs = convolutions(compiled)
    of = {buffer: group for group in free for buffer in group}
    touched = [{of[b] for name in (*conv.reads, *conv.writes) if (b := compiled.view(name).buffer) in of}
               for conv in convs]  # fmt: skip
    pairs = {frozenset(pair) for found in touched for pair in product(found, repeat=2)}
    moves = [(sorted(pair, key=min), [conv for conv, found in zip(convs, touched, strict=True) if pair & found])
             for pair in sorted(pairs, key=lambda pair: (len(pair), sorted(map(min, pair))))]  # fmt: skip

    def total(types: tuple[Type, ...], some: Sequence[Conv]) -> float:
        typed = replace(compiled, types=types)
        found = [Layer.of(typed, conv) for conv in some]
        return sum(cost(layer) * (1 + NOISE if layer.mixed else 1) for layer in found)

    best: tuple[float, tuple[Type, ...]] | None = None
    for start in ("fp16", *kinds):
        types = uniform(compiled, free, start)
        improved = True
        while improved:
            improved = False
            for changed, some in moves:
                before = total(types, some)
                for wanted in product(("fp16", *kinds), repeat=len(changed)):
                    other = _with(types, dict(zip(changed, wanted, strict=True)))
                    if (after := total(other, some)) < before - 1e-6:
                        types, before, improved = other, after, True
        found = total(types, convs), types
        best = found if best is None or found[0] < best[0] - 1e-6 else best
    assert best is not None
    return best[1]


def _with(types: tuple[Type, ...], changes: dict[Group, Type]) -> tuple[Type, ...]:
    new = list(types)
    for group, kind in changes.items():
        for buffer in group:
            new[buffer] = kind
    return tuple(new)
