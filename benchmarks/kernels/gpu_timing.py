"""Times work on a GPU: graphs of many calls over rotating buffers, on one stream, by the GPU's own clock.

A call of microseconds cannot be timed alone: the launch costs more, and its data stays in the cache. So each peer's
calls work on buffers that rotate through more memory than the L2 cache holds, and are captured in one CUDA graph; what
cannot be captured is launched from Python in a loop, as its user would, and marked "stream". Peers run interleaved.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import cupy as cp

from benchmarks import protocol
from benchmarks.kernels.rows import LAUNCHED, OURS, Row
from framefuse.cuda.launch_plan import record_launches

Call = Callable[[], object]
SEED = 11


def optional(row: Row, peers: dict[str, list[Call]], name: str, make: Callable[[], list[Call]]) -> None:
    """Adds a peer whose library may be missing or may refuse; the row's note then says so."""
    try:
        peers[name] = make()
    except Exception as error:  # whatever it is, the other peers can still be measured
        row.note += f"{name}: {type(error).__name__} {error}. "[:200]


class Gpu:
    """One stream, the copy bandwidth, and how to measure."""

    def __init__(self, runs: int, warmups: int) -> None:
        self.runs, self.warmups = runs, warmups
        self.stream = cp.cuda.Stream(non_blocking=True)
        properties = cp.cuda.runtime.getDeviceProperties(0)
        self.name, self.cache = properties["name"].decode(), int(properties["l2CacheSize"])
        self.kept: list[Sequence[Call]] = []
        self.events = (cp.cuda.Event(), cp.cuda.Event())
        self.copy = self._copy_bandwidth()

    def _copy_bandwidth(self, size: int = 1 << 30) -> float:
        """GB/s of a copy from device to device, bytes read plus bytes written."""
        source, target = cp.ones(size, cp.uint8), cp.empty(size, cp.uint8)
        cp.cuda.Device().synchronize()

        def copy() -> None:
            target.data.copy_from_device_async(source.data, size, self.stream)

        measured = self._measure({"copy": copy}, runs=20, warmups=5)["copy"].device
        assert measured is not None
        return 2 * size / measured.median / 1e6

    def ring(self, bytes_per_call: int, least: int = 2, most: int = 48) -> int:
        """How many sets of buffers together are larger than three times the L2 cache."""
        return max(least, min(most, -(-3 * self.cache // bytes_per_call)))

    @contextlib.contextmanager
    def current(self) -> Iterator[None]:
        """Our stream is the current one of CuPy and, where it is installed, of PyTorch."""
        with self.stream, contextlib.ExitStack() as stack:
            with contextlib.suppress(ImportError):
                import torch

                stack.enter_context(torch.cuda.stream(torch.cuda.ExternalStream(self.stream.ptr)))
            yield

    def once(self, call: Call) -> None:
        """Runs a call and waits for it."""
        with self.current():
            call()
        self.stream.synchronize()

    def plan(self, call: Call) -> Call:
        """The launches of one of our calls, recorded; what repeats them on our stream."""
        with self.current():
            return partial(record_launches(call), self.stream.ptr)

    def captured(self, calls: Sequence[Call]) -> tuple[Call, str]:
        """Something that runs all of the calls, and "graph", or "stream: why not a graph".

        The calls run before, so what they compile and allocate is there.
        """
        for call in calls:
            self.once(call)

        def loop() -> None:
            with self.current():
                for call in calls:
                    call()

        try:
            graph = self._capture(calls)
            graph.launch(self.stream)
            self.stream.synchronize()
        except Exception as error:  # any library's own error: then it is measured without a graph
            cp.cuda.Device().synchronize()
            self.once(calls[0])
            return loop, f"stream: {type(error).__name__} {error}"[:120]
        self.kept.append(calls)  # a graph does not keep the arrays alive that its kernels read
        return partial(graph.launch, self.stream), "graph"

    def _capture(self, calls: Sequence[Call]) -> Any:
        with self.current():
            self.stream.begin_capture(cp.cuda.runtime.streamCaptureModeRelaxed)
            try:
                for call in calls:
                    call()
            except BaseException:
                with contextlib.suppress(Exception):
                    self.stream.end_capture()
                raise
            return self.stream.end_capture()

    def time(self, row: Row, peers: Mapping[str, Sequence[Call]], *, graph: Mapping[str, bool] | None = None) -> None:
        """Measures peers, each a list of calls on rotating buffers, and records times a call in the row.

        Where a peer is launched from Python, ours is measured like that too.

        Args:
            graph: False for a peer that must not be captured, since it waits for the GPU.
        """
        ready: dict[str, Call] = {}
        for name, calls in peers.items():
            try:
                if (graph or {}).get(name, True):
                    ready[name], row.how[name] = self.captured(calls)
                else:
                    self.once(calls[0])
                    ready[name], row.how[name] = partial(self._loop, calls), "stream"
            except Exception as error:  # a peer that its library refuses: the others can still be measured
                if name.startswith(OURS):
                    raise
                row.note += f"{name}: {type(error).__name__} {error}. "[:200]
        if any(row.how[name].startswith("stream") for name in ready) and row.how.get(OURS) == "graph":
            ready[LAUNCHED], row.how[LAUNCHED] = partial(self._loop, peers[OURS]), "stream"
            peers = {**peers, LAUNCHED: peers[OURS]}
        measured = self._measure(ready, runs=self.runs, warmups=self.warmups)
        row.record(measured, {name: len(calls) for name, calls in peers.items()})

    def _loop(self, calls: Sequence[Call]) -> None:
        with self.current():
            for call in calls:
                call()

    def _measure(self, peers: Mapping[str, Call], *, runs: int, warmups: int) -> dict[str, protocol.Measurement]:
        start, stop = self.events

        def timed(call: Call) -> None:
            start.record(self.stream)
            call()
            stop.record(self.stream)

        return protocol.measure(
            {name: partial(timed, call) for name, call in peers.items()},
            runs=runs,
            warmups=warmups,
            seed=SEED,
            sync=self.stream.synchronize,
            device_ms=lambda: float(cp.cuda.get_elapsed_time(start, stop)),
        )

    def wall(self, row: Row, peers: Mapping[str, Call]) -> None:
        """Measures peers by the wall clock, each from the call to its result: for work that ends on the host.

        The stream is made current once, as a program does."""
        with self.current():
            measured = protocol.measure(
                peers, runs=self.runs, warmups=self.warmups, seed=SEED, sync=self.stream.synchronize
            )
        row.record(measured)
        row.how |= dict.fromkeys(peers, "wall clock")
