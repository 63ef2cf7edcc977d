"""What CUDA did, as its profiling interface (CUPTI) recorded it: every copy, those inside graphs too, and every call.

    with Trace() as trace:          # before the graphs are made: nodes of older graphs may go unseen
        make_everything()
        trace.begin()
        run()
        seen = trace.end()

Needs cupti-python (`pip install cupti-python` of the CUDA version that is installed). Recording makes calls slower; it
changes neither what is copied nor what is called.
"""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic, sleep
from typing import Any

import cupy as cp

BUFFER = 8 << 20
DIRECTIONS = {1: "h2d", 3: "h2d", 2: "d2h", 4: "d2h", 5: "d2d", 6: "d2d", 7: "d2d", 8: "d2d", 10: "d2d"}
"""CUpti_ActivityMemcpyKind -> direction; copies from host to host (9) do not cross anything."""


STILL_SECONDS = 0.3
"""A count that stays the same for so long will not move before somebody reads on."""


def come_to_rest(count: Callable[[], int]) -> None:
    """Wait until a pipeline from which nobody takes results has filled its channels, so that nothing is in flight.

    Args:
        count: frames that were submitted so far.
    """
    seen, since = count(), monotonic()
    while monotonic() - since < STILL_SECONDS:
        sleep(0.01)
        if count() != seen:
            seen, since = count(), monotonic()


@dataclass
class Seen:
    """What was recorded between `begin` and `end`."""

    copied: Counter[str] = field(default_factory=Counter)
    """Bytes by direction."""
    copies: Counter[tuple[str, int, bool]] = field(default_factory=Counter)
    """How many by direction, bytes and whether they are nodes of a graph."""
    calls: dict[int, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    """Calls of CUDA's runtime and driver by thread (CUPTI's number) and name."""
    dropped: int = 0

    def of_launching_threads(self) -> Counter[str]:
        """Calls of the threads that launched graphs."""
        found: Counter[str] = Counter()
        for calls in self.calls.values():
            if any("GraphLaunch" in name for name in calls):
                found.update(calls)
        return found


class Trace:
    """CUPTI's activity records of this process."""

    def __init__(self) -> None:
        from cupti import cupti

        self._cupti = cupti
        kinds = cupti.ActivityKind
        self._kinds = [kinds.MEMCPY, kinds.MEMCPY2, kinds.RUNTIME, kinds.DRIVER]
        self._records: list[tuple[Any, ...]] = []
        self._lock = threading.Lock()

    def __enter__(self) -> Trace:
        self._cupti.activity_register_callbacks(lambda: (BUFFER, 0), self._completed)
        for kind in self._kinds:
            self._cupti.activity_enable(kind)
        return self

    def __exit__(self, *error: object) -> None:
        self._flush()
        for kind in self._kinds:
            self._cupti.activity_disable(kind)

    def begin(self) -> None:
        """Forget what was recorded so far."""
        self._flush()
        with self._lock:
            self._records.clear()

    def end(self) -> Seen:
        """What was recorded since `begin`."""
        self._flush()
        with self._lock:
            records, self._records = self._records, []
        kinds, domains = self._cupti.ActivityKind, self._cupti.CallbackDomain
        seen = Seen()
        # A runtime call and the driver call inside it share a correlation number: it is one call.
        by_runtime = {record[2] for record in records if record[0] == kinds.RUNTIME}
        names: dict[tuple[int, int], str] = {}
        for kind, *values in records:
            if kind in (kinds.MEMCPY, kinds.MEMCPY2):
                direction, size, node = values
                seen.copied[direction] += size
                seen.copies[direction, size, node] += 1
                continue
            number, correlation, thread = values
            if kind == kinds.DRIVER and correlation in by_runtime:
                continue
            if (kind, number) not in names:
                domain = domains.RUNTIME_API if kind == kinds.RUNTIME else domains.DRIVER_API
                names[kind, number] = str(self._cupti.get_callback_name(domain, number)).split("_v")[0]
            seen.calls[thread][names[kind, number]] += 1
        return seen

    def _flush(self) -> None:
        cp.cuda.runtime.deviceSynchronize()
        self._cupti.activity_flush_all(1)

    def _completed(self, activities: list[Any]) -> None:
        kinds = self._cupti.ActivityKind
        found: list[tuple[Any, ...]] = []
        for activity in activities:  # CUPTI takes the buffer back after this
            kind = activity.kind
            if kind == kinds.MEMCPY:
                direction = DIRECTIONS.get(activity.copy_kind, "h2h")
                found.append((kind, direction, activity.bytes, activity.graph_node_id != 0))
            elif kind == kinds.MEMCPY2:
                found.append((kind, "d2d", activity.bytes, activity.graph_node_id != 0))
            elif kind in (kinds.RUNTIME, kinds.DRIVER):
                found.append((kind, activity.cbid, activity.correlation_id, activity.thread_id))
        with self._lock:
            self._records += found
