"""Calibration ranges, and simulated 8-bit rounding, of a network that runs step by step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from numpy.typing import NDArray

from framefuse.cuda import device
from framefuse.engines.cudnn.compiled import Compiled
from framefuse.engines.cudnn.execution import Execution
from framefuse.engines.cudnn.low_precision import rounded
from framefuse.engines.cudnn.network import Type

PERCENTILE = 99.999
"""Percentage of the magnitudes that INT8 covers; larger values saturate. FP8 covers all of them."""
SAMPLE = 1 << 18
"""Maximum number of values for a percentile."""


def observe_ranges(execution: Execution, batches: Sequence[NDArray[Any]], stream: Any) -> dict[Type, dict[str, float]]:
    """Largest magnitude of each value that a step writes, by type and name.

    Args:
        execution: with all buffers in float16.
        batches: (batch, 3, height, width) each.
    """
    cp = device.cupy()
    found: dict[Type, dict[str, float]] = {"fp8": {}, "int8": {}}

    def observe(step: Any) -> None:
        for name in step.writes:
            size = cp.abs(execution.values(name)).reshape(-1).astype(cp.float32)
            peaks = {"fp8": size.max(), "int8": cp.percentile(size[:: max(1, size.size // SAMPLE)], PERCENTILE)}
            for kind, peak in peaks.items():
                found[kind][name] = max(found[kind].get(name, 0.0), float(peak))  # type: ignore[index]

    with stream:
        for batch in batches:
            execution.pack(cp.asarray(batch), stream)
            execution.step_by_step(stream, observe)
    return found


def round_values(execution: Execution, typed: Compiled) -> Callable[[Any], None]:
    """A callback that rounds the values of a float16 network that are 8-bit in `typed`, after each step."""
    cp = device.cupy()

    def after(step: Any) -> None:
        for name in step.writes:
            if (kind := typed.type(name)) != "fp16":
                values = execution.values(name)
                values[...] = rounded(values, kind, typed.scale(name), cp)

    return after
