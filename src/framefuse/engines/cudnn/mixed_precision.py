"""Which buffers can hold 8-bit numbers, and the assignment of types that is fastest by measured kernels.

Types belong to buffers: a convolution multiplies the type of its input's buffer and writes that of its output's. So a
change of type needs no conversion step, and no value is stored twice.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import TypeAlias

import numpy as np

from framefuse.engines.cudnn.compiled import Compiled
from framefuse.engines.cudnn.convolutions import Layer
from framefuse.engines.cudnn.network import Conv, Type, Upsample
from framefuse.engines.cudnn.weights import LARGEST

CHANNEL_MULTIPLE = 16
"""Channels of an 8-bit value are multiples of this: 16 bytes."""
NOISE = 0.02
"""Relative differences of times below this count as noise."""
Group: TypeAlias = frozenset[int]
"""Buffers that share one type and scale, because values are copied between them."""


def convolutions(compiled: Compiled) -> list[Conv]:
    """The convolutions that cuDNN runs, in order."""
    return [step for step in compiled.placement.steps if isinstance(step, Conv) and not step.depthwise]


def layers(compiled: Compiled, types: tuple[Type, ...]) -> list[Layer]:
    """The layer of each of `convolutions` with these types of buffers."""
    typed = replace(compiled, types=types)
    return [Layer.of(typed, conv) for conv in convolutions(compiled)]


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
    return _with_changes(tuple(none), dict.fromkeys(free, kind))


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


def _with_changes(types: tuple[Type, ...], changes: dict[Group, Type]) -> tuple[Type, ...]:
    new = list(types)
    for group, kind in changes.items():
        for buffer in group:
            new[buffer] = kind
    return tuple(new)
