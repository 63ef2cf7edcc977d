"""What runs which nodes of a model in engine cudnn, step by step, and how long each step takes: `framefuse engines`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from framefuse.cuda import device
from framefuse.engines import EngineOptions, open_engine
from framefuse.engines.cudnn.compiled import Compiled, compile_network
from framefuse.engines.cudnn.convolutions import Plan
from framefuse.engines.cudnn.network import ComputeOp, Conv, General, Pairs, Upsample
from framefuse.engines.requests import capture

REPEATS, ROUNDS = 20, 5
"""Runs of a step in the CUDA graph that times it, and launches of that, of which the median counts."""
ACTIVATIONS = {"silu": ["Sigmoid", "Mul"], "relu": ["Relu"], "none": []}


class Step(NamedTuple):
    """One step of a compiled network."""

    runs: str
    """What runs it: cuDNN; kernel, one of ours; "cuDNN or kernel", the faster, where that is not known yet; or fused:
    kernels that are written for these nodes."""
    nodes: str
    """Operators of the ONNX file, with their number."""
    shapes: str
    """Channels, height and width of what it reads and writes."""
    microseconds: float | None
    """None: not measured."""


def partition(path: Path, batch: int, height: int, width: int, *, measure: bool) -> list[Step]:
    """The steps of a model, in order.

    Args:
        measure: load it on the current GPU, and measure each step alone.

    Raises:
        ModelError: the engine cannot run it.
        CapabilityError: it is to be measured, and there is no GPU.
    """
    if not measure:
        compiled = compile_network(path, batch, height, width)
        return [*_rows(compiled, {}, [None] * (len(compiled.placement.steps) + 1))]
    engine: Any = open_engine("cudnn", path, EngineOptions("cuda"))
    try:
        execution = engine.execution(batch, height, width)
        stream = device.new_stream()
        steps = execution.compiled.placement.steps
        works = [lambda step=step: execution.start(stream, skip=lambda other: other is not step) for step in steps]
        times = [_time(stream, work) for work in (*works, lambda: execution.finish(stream))]
        return [*_rows(execution.compiled, execution.kernels.plans, times)]
    finally:
        engine.close()


def _time(stream: Any, work: Any) -> float:
    """Microseconds of what is launched on a stream."""
    events = device.cupy().cuda

    def repeat() -> None:
        for _ in range(REPEATS):
            work()

    repeat()
    graph = capture(stream, repeat)
    begin, end, found = events.Event(), events.Event(), []
    for _ in range(ROUNDS):
        begin.record(stream)
        graph.launch(stream)
        end.record(stream)
        end.synchronize()
        found.append(1000 * events.get_elapsed_time(begin, end) / REPEATS)
    return float(median(found))


def _rows(compiled: Compiled, plans: Mapping[int, Plan], times: Sequence[float | None]) -> Iterable[Step]:
    network = compiled.network
    for index, (step, time) in enumerate(zip(compiled.placement.steps, times, strict=False)):
        shapes = (" + ".join(_shape(compiled, name) for name in names) for names in (step.reads, step.writes[:1]))
        yield Step(*_described(step, plans.get(index)), " -> ".join(shapes), time)
    ends = " + ".join(_shape(compiled, name) for name in network.outputs)
    if network.tail is not None:
        yield Step("fused", _counted(call.kind for call in network.tail.program.calls), ends, times[-1])
    else:
        what = "outputs" if network.head is None else "the detection head"
        yield Step("kernel", what, ends, times[-1])


def _described(step: ComputeOp, plan: Plan | None) -> tuple[str, str]:
    """What runs a step, and its nodes.

    Args:
        plan: of a convolution; None: not known yet.
    """
    if isinstance(step, General):
        return "fused", _counted(call.kind for call in step.program.calls)
    if isinstance(step, Conv):
        sums = ["Add"] if step.residual else []
        nodes = ["Conv", *ACTIVATIONS[step.activation], *sums, *ACTIVATIONS[step.last]]
        ours = step.depthwise or (plan is not None and plan.graph is None)
        return "kernel" if ours else "cuDNN" if plan else "cuDNN or kernel", ", ".join(nodes)
    if isinstance(step, Upsample):
        return "kernel", "Resize" if step.scale > 1 else "a copy"
    return "kernel", {"Pool": "MaxPool"}.get(type(step).__name__, type(step).__name__)


def _counted(kinds: Iterable[str]) -> str:
    return ", ".join(kind if times == 1 else f"{kind} x{times}" for kind, times in Counter(kinds).most_common())


def _shape(compiled: Compiled, name: str) -> str:
    pairs = (op.x for op in compiled.network.operations if isinstance(op, Pairs) and op.y == name)
    name = next(pairs, name)  # the image, of which two pixels are read at a time
    channels, height, width = compiled.view(name).shape
    if name in compiled.network.shapes:  # not a copy
        channels = compiled.network.channels(name)
    return f"{channels}x{height}x{width}"
