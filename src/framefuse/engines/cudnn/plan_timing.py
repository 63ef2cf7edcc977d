"""The fastest kernel of many layers: built by processes side by side, measured one after the other."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from concurrent.futures import CancelledError, Future

from framefuse.engines.cudnn.convolutions import Builder, Layer, Plan
from framefuse.engines.cudnn.workers import Workers

PATIENCE = 60.0
"""Seconds that a kernel may take to build."""


def fastest(
    builder: Builder, workers: Workers, layers: Iterable[Layer], *, candidates: int, deadline: float = float("inf")
) -> Iterator[tuple[Layer, Plan | str]]:
    """For each layer the fastest of cuDNN's first `candidates` kernels; or, as text, why there is none.

    Args:
        deadline: when to stop, by `time.monotonic`; what is not reached has "out of time" as its reason.
    """
    waiting: list[tuple[Layer, list[tuple[Future[bytes], int, dict[str, int]]], str]] = []
    for layer in layers:
        try:
            offered = builder.offered(layer)[:candidates]
        except Exception as error:  # the bindings raise their own classes and RuntimeError
            waiting.append((layer, [], f"cuDNN: {str(error)[:160]}"))
            continue
        waiting.append((layer, [(workers.build(layer, *found), *found) for found in offered], "cuDNN offers none"))
    for layer, futures, reason in waiting:
        best: Plan | None = None
        measure = None
        for future, engine, knobs in futures:
            left = deadline - time.monotonic()
            if left <= 0:
                reason = "out of time"
                future.cancel()
                continue
            try:
                image = future.result(min(left, PATIENCE))
                measure = measure or builder.measurer(layer)
                plan = builder.load(image, engine, knobs)
                plan.microseconds = measure(plan)
            except (TimeoutError, CancelledError):
                reason = "out of time"
            except Exception as error:  # a kernel that cannot be built or run: the next may
                reason = str(error)[:160]
                builder.failed.append(str(error)[:300])
            else:
                if best is None or plan.microseconds < best.microseconds:
                    best = plan
        yield layer, best or reason
