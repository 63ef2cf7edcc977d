"""Runs of an `ArrayProgram` by its fused kernels, on a GPU or on a fake one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from framefuse.cuda import device
from framefuse.engines.cudnn import fused
from framefuse.engines.cudnn.array_program import ArrayProgram
from framefuse.engines.cudnn.arrays import Fused, taker
from framefuse.engines.cudnn.traced import Given, Traced, traced


def run_traced(program: ArrayProgram, given: Mapping[str, Any], wanted: Sequence[str]) -> list[Any]:
    """The wanted values."""
    cp = device.cupy()
    values = {name: Traced(Given(at, x.dtype, x.shape)) for at, (name, x) in enumerate(given.items())}
    found = [traced(value) for value in program.run(values, wanted)]
    outputs = [cp.zeros(value.shape, value.dtype) for value in found]
    plan = fused.plan([taker(at, value, y) for at, (value, y) in enumerate(zip(found, outputs, strict=True))])
    run, inputs = Fused(plan, program.on_gpu), [cp.asarray(np.ascontiguousarray(x)) for x in given.values()]
    for start in run.starts(inputs, outputs):
        start(cp.cuda.get_current_stream().ptr)
    return [y.get() for y in outputs]
