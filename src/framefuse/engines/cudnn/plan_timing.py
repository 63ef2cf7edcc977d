"""Autotuning of many layers: worker processes build the candidates in parallel, this process times them in turn."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import Future

from framefuse.engines.cudnn.convolutions import Builder, Layer, Plan
from framefuse.engines.cudnn.workers import Workers

BUILD_TIMEOUT = 60.0
"""Seconds."""


def fastest_plans(
    builder: Builder, workers: Workers, layers: Iterable[Layer], *, candidates: int
) -> Iterator[tuple[Layer, Plan | str]]:
    """For each layer the fastest of cuDNN's first `candidates` kernels, or the reason why there is none."""
    queued: list[tuple[Layer, list[tuple[Future[bytes], int, dict[str, int]]], str]] = []
    for layer in layers:
        try:
            candidate_engines = builder.candidate_engines(layer)[:candidates]
        except Exception as error:  # the bindings raise their own classes and RuntimeError
            queued.append((layer, [], f"cuDNN: {str(error)[:160]}"))
            continue
        queued.append(
            (layer, [(workers.build(layer, *engine), *engine) for engine in candidate_engines], "cuDNN has no kernel")
        )
    for layer, futures, reason in queued:
        best: Plan | None = None
        measure = None
        for future, engine, knobs in futures:
            try:
                binary = future.result(BUILD_TIMEOUT)
                measure = measure or builder.timer(layer)
                plan = builder.load(binary, engine, knobs)
                plan.microseconds = measure(plan)
            except TimeoutError:
                reason = "out of time"
            except Exception as error:  # cannot be built or run; the next candidate may
                reason = str(error)[:160]
                builder.failures.append(str(error)[:300])
            else:
                if best is None or plan.microseconds < best.microseconds:
                    best = plan
        yield layer, best or reason
