"""Profiling: what each stage costs, cheap enough to be always on (under 1 us per record, constant memory).

Whose CPU time is it? See that title in threads.py.
"""

import resource
import sys
import threading
import time
from array import array
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import pairwise, zip_longest
from math import log
from pathlib import Path
from statistics import median
from typing import NamedTuple, Self

from framefuse.runtime.power import EnergyFacts, Meter
from framefuse.runtime.threads import COMM_LENGTH, HelperCpu
from framefuse.runtime.utilisation import Gauge, UtilisationFacts


class Histogram:
    """Seconds in buckets whose bounds grow by 2 %: percentiles are within 1 %; count, total, low and high are exact."""

    _LOWEST = 1e-7
    _PER_UNIT = 1 / log(1.02)
    _BUCKETS = 1200  # up to 2,000 seconds

    def __init__(self) -> None:
        self._counts = array("q", bytes(8 * self._BUCKETS))  # numbers in a list take memory as they grow
        self.count = 0
        self.total = 0.0
        self.low = float("inf")
        self.high = 0.0

    def add(self, value: float, count: int = 1) -> None:
        bucket = int(log(value / self._LOWEST) * self._PER_UNIT) if value > self._LOWEST else 0
        self._counts[bucket if bucket < self._BUCKETS else -1] += count
        self.count += count
        self.total += value * count
        if value < self.low:  # min and max would take twice as long
            self.low = value
        if value > self.high:
            self.high = value

    def _middle(self, bucket: int) -> float:
        return self.high if bucket == self._BUCKETS - 1 else self._LOWEST * float(1.02 ** (bucket + 0.5))

    def percentile(self, percent: float) -> float:
        """Seconds below which `percent` % of the values lie; 0 if there are none."""
        rank, seen = percent / 100 * self.count, 0
        for bucket, count in enumerate(self._counts):
            seen += count
            if count and seen >= rank:
                return min(max(self._middle(bucket), self.low), self.high)
        return 0.0

    def bars(self, count: int = 32) -> list[tuple[float, int]]:
        """(upper bound in seconds, count) of equal bars up to the 99.5th percentile; the last includes the rest."""
        top = self.percentile(99.5)
        if not top:
            return []
        bars = [0] * count
        for bucket, values in enumerate(self._counts):
            if values:
                bars[min(int(self._middle(bucket) / top * count), count - 1)] += values
        return [(top * (number + 1) / count, values) for number, values in enumerate(bars)]


@dataclass(frozen=True)
class Spread:
    """A distribution, in milliseconds."""

    mean: float = 0.0
    p50: float = 0.0
    p95: float = 0.0
    p99: float = 0.0
    min: float = 0.0
    max: float = 0.0
    total: float = 0.0

    @classmethod
    def of(cls, seconds: Histogram) -> Self:
        if not seconds.count:
            return cls()
        shares = (seconds.percentile(percent) for percent in (50, 95, 99))
        values = seconds.total / seconds.count, *shares, seconds.low, seconds.high, seconds.total
        return cls(*(value * 1e3 for value in values))


def median_seconds(run: Callable[[], None], rounds: int = 5, limit: float = 1.0) -> float:
    """Median time of calls after a first one; fewer than `rounds` if these take longer than `limit` seconds in all."""
    run()
    times: list[float] = []
    while not times or (len(times) < rounds and sum(times) < limit):
        started = time.perf_counter()
        run()
        times.append(time.perf_counter() - started)
    return median(times)


@dataclass(frozen=True)
class StageStats:
    """One stage of a run."""

    name: str
    thread: str
    """Stages of one thread take turns, so their times add up."""
    items: int
    busy_ms: Spread
    """Per frame: the time of a batch is divided among its frames. Inference: from submit to the end of wait."""
    wait_in_ms: float = 0.0
    """Total time spent waiting for input. Inference: the program thread's wait for the engine."""
    wait_out_ms: float = 0.0
    """Total time blocked because the next stage was full."""
    cpu_ms: float | None = None
    """CPU milliseconds per frame, of its own thread and of helper threads; None: unknown on this system."""
    own_cpu_ms: float = 0.0
    """The part of `cpu_ms` in `thread`, which cannot be spread over cores."""
    parallel: int = 1
    """Number of helper threads that share the rest, over all copies."""
    copies: int = 1
    """Number of threads that run this stage in parallel, one per source."""
    device_ms: Spread | None = None
    """Per frame on the GPU, between CUDA events in some of the batches; None: nothing ran there. `busy_ms` is then the
    time in which the host launched the work or waited for it."""
    overlapped: bool = False
    """Several items are in progress at once, so busy time is latency and says nothing about throughput."""


@dataclass(eq=False)
class StageClock:
    """Times of one stage. Thread-safe."""

    name: str
    thread: str
    parallel: int = 1
    copies: int = 1
    busy: Histogram = field(default_factory=Histogram)
    device: Histogram = field(default_factory=Histogram)
    wait_in: float = 0.0
    wait_out: float = 0.0
    cpu: float | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(
        self, busy: float, *, items: int = 1, wait_in: float = 0.0, wait_out: float = 0.0, cpu: float | None = None
    ) -> None:
        """Record one step, in seconds: the work on `items` frames (0: it is not counted), the time spent waiting for
        input or blocked by a full channel, and the CPU time of this thread (a difference of `time.thread_time()`)."""
        with self._lock:
            if items:
                self.busy.add(busy / items, items)
            self.wait_in += wait_in
            self.wait_out += wait_out
            if cpu is not None:
                self.cpu = (self.cpu or 0.0) + cpu

    def timed(self, *, items: int = 0) -> "_Timed":
        """Record the block as a step, unless it fails."""
        return _Timed(self, items)

    def add_device(self, seconds: float, *, items: int) -> None:
        """Record how long a GPU worked on `items` frames."""
        with self._lock:
            self.device.add(seconds / items, items)


class _Timed:
    """A block that is timed. For each frame there are several, and a generator would take three times as long."""

    def __init__(self, clock: StageClock, items: int) -> None:
        self._clock, self._items = clock, items

    def __enter__(self) -> None:
        self._started = time.perf_counter(), time.thread_time()

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if kind is None:
            wall, cpu = self._started
            self._clock.add(time.perf_counter() - wall, items=self._items, cpu=time.thread_time() - cpu)


PROGRAM = "program"
"""Thread of the stages that work on batches of frames, or of views of frames."""
_THREADS = {"decode": "decode", "preprocess": PROGRAM, "inference": PROGRAM, "postprocess": PROGRAM}
_HELPERS = {
    "decode": ("ff-decode", "av:"),
    "encode": ("ff-encode", "ff-write"),
    "inference": ("ff-inference", "ff-engine", "ff-program"),
}
"""Name prefixes of the library threads that work for a stage; by default ff- and its name."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What a report takes over as it was measured. Times are milliseconds unless the name says otherwise."""

    started: str
    finished: str
    """ISO 8601, UTC."""
    frames: int
    seconds: float
    stages: list[StageStats]
    latency_ms: Spread | None = None
    """Per frame, from arrival (live) or the end of decoding to the result."""
    latency_bars: list[tuple[float, int]] = field(default_factory=list)
    """(upper bound in ms, frames) of bars of equal width from 0."""
    fps_over_time: list[tuple[float, float]] = field(default_factory=list)
    """(second at the end of an interval, frames per second in it)."""
    peak_rss_mb: float | None = None
    """Of the process, since its start."""
    energy: list[EnergyFacts] = field(default_factory=list)
    """By device; a device whose energy was not measured is here with the reason."""
    utilisation: UtilisationFacts | None = None
    """None: no GPU is used, or NVML shows nothing."""


@dataclass(frozen=True, kw_only=True)
class Measurements(Measured):
    """Everything a Recorder knows at one moment."""

    cpu_seconds: float
    machine_idle: float | None
    """Share of the machine's core time that no program used, 0..1; None: unknown on this system."""
    minor_faults: int
    """Page faults served without disk access: each frame-sized allocation causes hundreds."""


class _Reading(NamedTuple):
    """What the clocks and counters of process and machine say at one moment."""

    date: datetime
    time: float
    cpu: float
    faults: int
    idle: int
    ticks: int


class Recorder:
    """Measures one run by a monotonic clock of seconds: times per stage, the latency of each frame, CPU time by thread.

    It measures from construction, or from the call of `start`, until `stop` or the snapshot.
    """

    _MAX_INTERVALS = 240

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._now = clock
        self._clocks: dict[str, StageClock] = {}
        self._lock = threading.Lock()
        self.elsewhere: Callable[[], float] = lambda: 0.0
        """CPU seconds of other processes that work for the run."""
        self.start()

    def start(self, meter: Meter | None = None, gauge: Gauge | None = None) -> None:
        """Reset, and start to measure: called when the engine is loaded and no stage runs yet."""
        for clock in self._clocks.values():
            clock.busy, clock.device = Histogram(), Histogram()
            clock.wait_in, clock.wait_out, clock.cpu = 0.0, 0.0, None
        self._latency = Histogram()
        self._frames = 0
        self._interval = 0.25
        self._counts = array("q")
        self._helpers = HelperCpu()
        self._meter, self._gauge = meter or Meter(), gauge or Gauge(None)
        self._meter.start()
        self._gauge.start()
        self._begin = self._read()
        self._end: _Reading | None = None
        self._next_sample = 0.0

    def _read(self) -> _Reading:
        cpu = time.process_time() + self.elsewhere()
        return _Reading(datetime.now(UTC), self._now(), cpu, _usage()[1], *_machine_ticks())

    def stage(
        self, name: str, *, thread: str | None = None, parallel: int | None = None, copies: int | None = None
    ) -> StageClock:
        """The clock of a stage, created on first use; arguments override its defaults, see `StageStats`.

        By default any stage other than decode, preprocess, inference and postprocess counts as a sink; all sinks share
        one thread.
        """
        with self._lock:
            clock = self._clocks.setdefault(name, StageClock(name, _THREADS.get(name, "write")))
        clock.thread = thread or clock.thread
        clock.parallel = parallel or clock.parallel
        clock.copies = copies or clock.copies
        return clock

    def frame(self, latency: float | None = None) -> None:
        """Count a finished frame; `latency`: seconds since it arrived (live) or was decoded."""
        elapsed = self._now() - self._begin.time
        self._frames += 1
        if latency is not None:
            self._latency.add(latency)
        interval = int(elapsed / self._interval)
        while interval >= self._MAX_INTERVALS:
            pairs = zip_longest(self._counts[::2], self._counts[1::2], fillvalue=0)
            self._counts = array("q", (a + b for a, b in pairs))
            self._interval *= 2
            interval = int(elapsed / self._interval)
        self._counts.extend([0] * (interval + 1 - len(self._counts)))
        self._counts[interval] += 1
        if elapsed >= self._next_sample:
            self.sample()
            took = self._now() - self._begin.time - elapsed
            # Often at first, for short runs; the CPU time lost with an ended thread stays below 2 %. With hundreds of
            # threads a sample takes long: sampling may take at most 2 % of the reader's time.
            self._next_sample = elapsed + max(min(max(elapsed / 50, 0.05), 2.0), 50 * took)

    def sample(self) -> None:
        """Read the CPU time of all threads. Call it before threads end, for example before an encoder is closed."""
        self._meter.read()
        with self._lock:
            self._helpers.sample()

    def stop(self) -> None:
        """Mark the end of the run; later calls do nothing."""
        if self._end is None:
            self.sample()
            self._end = self._read()
            self._meter.stop()
            self._gauge.stop()

    def snapshot(self) -> Measurements:
        """The measurements so far, also during a run; callable from any thread."""
        if self._end is None:
            self.sample()
        begin, end = self._begin, self._end or self._read()
        seconds, ticks = end.time - begin.time, end.ticks - begin.ticks
        with self._lock:
            # In pipeline order; sinks, which come last, in order of creation.
            place = {name: number for number, name in enumerate(_THREADS)}
            clocks = sorted(self._clocks.values(), key=lambda clock: place.get(clock.name, len(place)))
            stages = [self._stats(clock) for clock in clocks]
        cpu = {stage.name: stage.cpu_ms or 0.0 for stage in stages}
        rest = (end.cpu - begin.cpu) * 1e3 / max(self._frames, 1) - sum(cpu.values())
        gpu = {stage.name: stage.items * stage.device_ms.mean for stage in stages if stage.device_ms}
        counts = list(self._counts)  # another thread may count on
        ends = [min(self._interval * (number + 1), seconds) for number in range(len(counts))]
        return Measurements(
            started=begin.date.isoformat(timespec="milliseconds"),
            finished=end.date.isoformat(timespec="milliseconds"),
            seconds=seconds,
            frames=self._frames,
            stages=stages,
            latency_ms=Spread.of(self._latency) if self._latency.count else None,
            latency_bars=[(bound * 1e3, count) for bound, count in self._latency.bars()],
            fps_over_time=[
                (until, count / (until - start))
                for (start, until), count in zip(pairwise([0.0, *ends]), counts, strict=True)
                if until - start > self._interval / 4  # the last interval may be too short to tell
            ],
            cpu_seconds=end.cpu - begin.cpu,
            machine_idle=(end.idle - begin.idle) / ticks if ticks else None,
            peak_rss_mb=_usage()[0],
            energy=self._meter.facts(self._frames, cpu | {"other": max(rest, 0.0)}, gpu),
            utilisation=self._gauge.facts(),
            minor_faults=end.faults - begin.faults,
        )

    def _stats(self, clock: StageClock) -> StageStats:
        per_frame = 1e3 / max(self._frames, 1)
        own = (clock.cpu or 0.0) * per_frame
        prefixes = _HELPERS.get(clock.name, (f"ff-{clock.name}"[:COMM_LENGTH],))
        helpers = self._helpers.seconds(prefixes) * per_frame
        overlapped = clock.name == "inference"
        # Overlapped work runs in helper threads, so no helper time means none was used. Any other stage without CPU
        # time did not measure itself.
        known = self._helpers.known and (clock.cpu is not None or helpers > 0 or overlapped)
        return StageStats(
            clock.name,
            clock.thread,
            clock.busy.count,
            busy_ms=Spread.of(clock.busy),
            wait_in_ms=clock.wait_in * 1e3,
            wait_out_ms=clock.wait_out * 1e3,
            cpu_ms=own + helpers if known else None,
            own_cpu_ms=own,
            parallel=clock.parallel,
            copies=clock.copies,
            device_ms=Spread.of(clock.device) if clock.device.count else None,
            overlapped=overlapped,
        )


def _machine_ticks() -> tuple[int, int]:
    """Idle and total ticks of all cores since boot; zeros where the system does not provide them."""
    try:
        with open("/proc/stat") as file:
            ticks = [int(field) for field in file.readline().split()[1:9]]
    except OSError:
        return 0, 0
    return ticks[3] + ticks[4], sum(ticks)


def _usage() -> tuple[float, int]:
    """Peak resident memory in MB (1e6 bytes) and minor page faults of this process since its start."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    peak = usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)  # in KiB, on macOS in bytes
    with suppress(OSError):
        # Linux inherits ru_maxrss from the parent process; VmHWM is this process's own.
        lines = Path("/proc/self/status").read_text().splitlines()
        peak = next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM")), peak)
    return peak / 1e6, usage.ru_minflt
