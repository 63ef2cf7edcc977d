"""Values of a network while it runs step by step: their ranges, and what rounding some of them does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from framefuse.cuda import device
from framefuse.engines.cudnn.compiled import Compiled
from framefuse.engines.cudnn.execution import Execution
from framefuse.engines.cudnn.low_precision import LARGEST, SMALLEST_EXPONENT
from framefuse.engines.cudnn.network import Type

MOST = 99.999
"""Percent of the values that INT8 holds; what is beyond counts as the largest. FP8 holds all: it is coarse anyway."""
SAMPLE = 1 << 18
"""Values that a percentile is taken of, at most."""


def observe(execution: Execution, batches: Sequence[NDArray[Any]], stream: Any) -> dict[Type, dict[str, float]]:
    """Largest magnitude of each value that a step writes, by type and name, on some images.

    Args:
        execution: in float16.
        batches: (batch, 3, height, width) each.
    """
    cp = device.cupy()
    found: dict[Type, dict[str, float]] = {"fp8": {}, "int8": {}}

    def look(step: Any) -> None:
        for name in step.writes:
            size = cp.abs(execution.values(name)).reshape(-1).astype(cp.float32)
            peaks = {"fp8": size.max(), "int8": cp.percentile(size[:: max(1, size.size // SAMPLE)], MOST)}
            for kind, peak in peaks.items():
                found[kind][name] = max(found[kind].get(name, 0.0), float(peak))  # type: ignore[index]

    with stream:
        for batch in batches:
            execution.pack(cp.asarray(batch), stream)
            execution.step_by_step(stream, look)
    return found


def round_values(execution: Execution, typed: Compiled) -> Callable[[Any], None]:
    """What, after each step of a network in float16, rounds the values that would have 8 bits."""
    cp = device.cupy()

    def after(step: Any) -> None:
        for name in step.writes:
            kind = typed.type(name)
            if kind == "fp16":
                continue
            values, scale = execution.values(name), typed.scale(name)
            number = cp.clip(values.astype(cp.float32) / np.float32(scale), -LARGEST[kind], LARGEST[kind])
            if kind == "fp8":
                grain = cp.ldexp(cp.float32(1), cp.maximum(cp.frexp(number)[1] - 1, SMALLEST_EXPONENT) - 3)
                number = cp.rint(number / grain) * grain
            else:
                number = cp.rint(number)
            values[...] = number * np.float32(scale)

    return after
