"""Runs of traced arrays by their fused kernels, on a GPU or on a fake one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from framefuse.cuda import device
from framefuse.engines.cudnn import fused
from framefuse.engines.cudnn.array_program import ArrayProgram
from framefuse.engines.cudnn.arrays import Fused, taker
from framefuse.engines.cudnn.products import in_half
from framefuse.engines.cudnn.traced import Given, Traced, traced
from framefuse.engines.requests import capture
from framefuse.errors import CapabilityError


@pytest.fixture(autouse=True, params=["fake", pytest.param("real", marks=pytest.mark.gpu)])
def gpu_of_all_tests(request: pytest.FixtureRequest) -> None:
    """For modules that import it. A fake one runs the kernels' own source."""
    if request.param == "fake":
        request.getfixturevalue("fibres")
        return
    try:
        device.cupy()
    except CapabilityError as error:
        pytest.skip(error.message)


def run_program(
    program: ArrayProgram, given: Mapping[str, Any], wanted: Sequence[str], *, half: bool = False
) -> list[Any]:
    """The wanted values."""
    return run_traced(lambda *xs: program.run(dict(zip(given, xs, strict=True)), wanted), *given.values(), half=half)[0]


def run_traced(
    function: Callable[..., Sequence[Any]], *inputs: Any, half: bool = False
) -> tuple[list[Any], fused.Plan]:
    """What a function makes of arrays, with matrix products of float16 if they are `half`. On a real GPU it runs in a
    CUDA graph, too, and the graph's results count."""
    cp = device.cupy()
    found = [traced(one) for one in function(*(Traced(Given(at, x.dtype, x.shape)) for at, x in enumerate(inputs)))]
    arrays, outputs = [cp.asarray(x) for x in inputs], [cp.zeros(value.shape, value.dtype) for value in found]
    targets = [taker(at, value, y) for at, (value, y) in enumerate(zip(found, outputs, strict=True))]
    if half:
        in_half(targets)
    plan = fused.plan(targets)
    run = Fused(plan, {})
    starts = run.starts(arrays, outputs)

    def work() -> None:
        for start in starts:
            start(stream.ptr)

    stream = device.new_stream()
    cp.cuda.get_current_stream().synchronize()
    work()
    stream.synchronize()
    if starts and cp.__name__ == "cupy":
        graph = capture(stream, work)
        for y in outputs:
            y.data.memset(0xFF, y.nbytes)
        cp.cuda.get_current_stream().synchronize()
        graph.launch(stream)
        stream.synchronize()
    return [y.get() for y in outputs], plan
