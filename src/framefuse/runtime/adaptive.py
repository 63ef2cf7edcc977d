"""Adaptive compute in a run: holds frames back, lets a `Governor` choose which of them the model sees, and fills in the
others. Where a limit is exceeded all the same, a `Guard` chooses a cheaper rung.

A block of frames waits until the two that bound it have been inferred and the governor accepts what lies between. So
results come up to `Limits.ahead` frames later than without, and in the order of the frames.
"""

from collections import Counter as Tally
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import Any

from framefuse.adaptive import Blocks, Budget, Governor, Guard, Limits, disagreement
from framefuse.adaptive.blocks import Ready
from framefuse.common.text import counted
from framefuse.config import Settings
from framefuse.errors import CapabilityError, UsageError
from framefuse.frame import Frame
from framefuse.prediction import Detections, FrameInfo, Result
from framefuse.runtime.power import Counter, find_counters
from framefuse.runtime.program import FrameResult, Program
from framefuse.runtime.rungs import Rungs
from framefuse.runtime.temperature import thermometer
from framefuse.runtime.tracking import least_confidence, rate_of
from framefuse.sources import SourceInfo

LIVE_LATENCY = 0.3
"""Seconds for which frames of a live source are held back, unless `max_latency` says otherwise."""
LIMIT_SECONDS = 1.0
"""Interval at which power and temperature are compared with their limits."""
FULL = 3
"""Blocks of a source that may wait at a time."""
Group = tuple[list[Frame], int]
"""Rows that run in one batch, and the places that they take in it."""


def adapter_for(settings: Settings, info: SourceInfo, *, views: bool, gpu: int | None = None) -> "Adapter | None":
    """What adapts the compute, if the settings ask for it. `check_task` has refused models without boxes.

    Args:
        info: facts of the first source.
        views: frames are split into views.
        gpu: the GPU that is used; None: the CPU.

    Raises:
        UsageError: the settings contradict each other.
        CapabilityError: nothing measures the power that `max_power` limits.
    """
    if not settings.adaptive:
        return None
    if views:
        raise UsageError("adaptive was asked for beside tiles, roi, stereo or views", remedy="choose one of them")
    ahead, latency = Limits.ahead, settings.max_latency or (LIVE_LATENCY if info.live else None)
    if latency:
        ahead = max(1, min(ahead, int(latency * rate_of(info) / settings.vid_stride / 2)))
    limits = Limits(settings.min_agreement, ahead)
    watts = settings.max_power
    device = DeviceLimits(watts, _counter(gpu) if watts else None, thermometer(gpu))
    return Adapter(limits, conf=least_confidence(settings), latency=latency, device=device)


def held_by(settings: Settings) -> int:
    """Most frames of a source that wait for their results beside those in batches."""
    return FULL * Limits.ahead + 1 if settings.adaptive else 0


def _counter(gpu: int | None) -> Counter:
    """What measures the power of the device. CapabilityError: nothing here does."""
    counter = find_counters(gpu)[0]
    counter.read()
    if counter.missing:
        raise CapabilityError(f"max_power needs a power counter: {counter.missing}", remedy="leave max_power out")
    return counter


@dataclass(eq=False)
class DeviceLimits:
    """Looks once in LIMIT_SECONDS whether the device takes too much power or is too hot."""

    watts: float | None = None
    """Most power; None: any."""
    counter: Counter | None = None
    """Measures it."""
    hot: Callable[[], bool] = lambda: False
    """Whether the device slows down, or is about to, because of its temperature."""
    clock: Callable[[], float] = monotonic
    last: tuple[float, float] | None = field(default=None, init=False)
    """Time and joules of the last reading."""

    def exceeded(self) -> str | None:
        """What the device is over since the last reading; empty: nothing; None: it is not time to look yet."""
        now = self.clock()
        if self.last and now - self.last[0] < LIMIT_SECONDS:
            return None
        if self.counter:
            self.counter.read(self.clock)
        joules = self.counter.joules if self.counter else 0.0
        (at, before), self.last = self.last or (now, joules), (now, joules)
        if self.watts and now > at and (joules - before) / (now - at) > self.watts:
            return "max_power"
        return "its temperature" if self.hot() else ""


@dataclass(eq=False)
class _Stream:
    """Frames of one source and size, in a row."""

    key: tuple[str, int, int, int]
    """Source, connection, width and height."""
    reader: Hashable
    """Who reads it, and others before and after it."""
    blocks: Blocks
    held: dict[int, Frame] = field(default_factory=dict)
    """Number -> a frame whose result is not known."""
    numbers: dict[int, int] = field(default_factory=dict)
    """`Frame.index` -> number, of the same frames."""
    results: dict[int, FrameResult] = field(default_factory=dict)
    """Number -> what the model says, until it is passed on."""
    ready: deque[Ready] = field(default_factory=deque)
    """Frames whose results are known, while those of an earlier stream of the same reader are not."""


class SharedLease:
    """The lease of a frame that two rungs see."""

    def __init__(self, lease: Any) -> None:
        self._lease, self._first = lease, list[Any]()

    def release(self, after: Any = None) -> None:
        """The first call is kept; the second waits for the event of the first, which is rare enough."""
        if not self._first:
            self._first.append(after)
            return
        if self._first[0] is not None:
            self._first[0].synchronize()
        self._lease.release(after)


class Adapter:
    """Turns frames into rows, and joins the results, as a `Viewer` does; but most frames may have no row.

    Attributes:
        limits: what is kept to; at most `ahead` results of a source come at once.
        guards: a limit may need a cheaper rung.
    """

    def __init__(self, limits: Limits, *, conf: float, latency: float | None = None, device: DeviceLimits) -> None:
        self.limits, self._conf, self._latency, self._device = limits, conf, latency, device
        self.guards = bool(latency or device.watts)
        self._guard = Guard((1.0,), latency)
        self._rungs: Rungs | None = None
        self._rate: float | None = None
        self._shadows: dict[tuple[str, int], dict[bool, Detections]] = {}
        """Source and index of an audited frame -> what the best rung (True), and the one that runs, see in it."""
        self._seen_by: Tally[str] = Tally()
        """Rung -> frames it has seen."""
        self._streams: list[_Stream] = []
        """Those with frames that are held back, or to come."""
        self._current: dict[Hashable, _Stream] = {}
        """What each reader reads now."""
        self._due: list[Group] = []
        self._program: Program | None = None
        self._budget = Budget()
        self._begun = self._frames = self._inferred = self._late = self._audits = 0
        self._over: Tally[str] = Tally()
        """Limit of the device -> how often it was exceeded."""
        self._agreed = 0.0
        """Expected agreement of the streams that have ended, times their frames."""

    def keep_up(self, program: Program, rate: float | None) -> None:
        """Leave time for so many frames per second, by the time of the model on an idle program; None: any number."""
        self._program = program
        if isinstance(program, Rungs):
            self._rungs, self._guard = program, Guard(program.costs, self._latency)
        self._rate = rate
        if rate:
            self._budget.share = min(1.0, 1 / (rate * program.row_seconds()))

    def rows(self, frame: Frame, reader: Hashable) -> list[Group]:
        """The frame, if the model is to see it at once."""
        key = frame.source_id, frame.connection, frame.width, frame.height
        stream = self._current.get(reader)
        if stream is None or stream.key != key:
            self.end(reader)
            stream = _Stream(
                key, reader, Blocks(Governor(self.limits, budget=self._budget, seed=self._begun), self._conf)
            )
            self._begun += 1
            self._current[reader] = stream
            self._streams.append(stream)
        number = stream.blocks.count
        stream.held[number], stream.numbers[frame.index] = frame, number
        self._frames += 1
        over = self._device.exceeded()
        if over:
            self._over[over] += 1
            self._guard.exceeded(f"the device was over {over}")
            for one in self._streams:
                one.blocks.governor.late()
        elif over is not None:
            self._guard.within()
        self._look(stream, stream.blocks.arrived())
        return self.more()

    def more(self) -> list[Group]:
        """Frames that were held back and are to be seen now."""
        due, self._due = self._due, []
        return due

    def finish(self) -> list[Group]:
        """The sources have ended: the last frames."""
        for reader in list(self._current):
            self.end(reader)
        return self.more()

    def end(self, reader: Hashable) -> None:
        """No frame of this reader follows for now; `more` has its last ones."""
        if (stream := self._current.pop(reader, None)) is not None:
            self._look(stream, stream.blocks.end())
            self._forget_if_done(stream)

    @property
    def full(self) -> bool:
        """Whether so many frames are held back that the model has to come first."""
        held = Tally[Hashable]()
        for stream in self._streams:
            held[stream.reader] += len(stream.held)
        return max(held.values(), default=0) > FULL * self.limits.ahead

    def join(self, results: Iterable[FrameResult | None]) -> Iterator[FrameResult]:
        """One result for each frame, in the order of those of its reader: one of a file that is not complete comes
        before all of the next."""
        for result in results:
            if result is None or self._is_audit(result.result):
                continue
            of = result.result.frame
            stream = next(one for one in self._streams if one.key[0] == of.source_id and of.index in one.numbers)
            number = stream.numbers[of.index]
            stream.results[number] = result
            self._look(stream, stream.blocks.found(number, result.result.detections))
            stream.ready += stream.blocks.ready()
            for one in [one for one in self._streams if one.reader == stream.reader]:
                while one.ready:
                    yield self._passed(one, one.ready.popleft())
                self._forget_if_done(one)
                if one.held:
                    break

    @property
    def reasons(self) -> list[str]:
        """What was saved so far."""
        if not self._frames:
            return []
        governors = [(stream.blocks.governor, stream.blocks.count) for stream in self._streams]
        agreed = self._agreed + sum(governor.agreement * count for governor, count in governors)
        agreement, audits = agreed / self._frames, self._audits + sum(governor.audits for governor, _ in governors)
        late = f", {counted(self._late, 'frame')} too late" if self._late else ""
        late += "".join(f", over {limit} {counted(times, 'time')}" for limit, times in self._over.items())
        lines = [
            f"adaptive: the model saw {self._inferred / self._frames:.0%} of the frames; expected agreement "
            f"{agreement:.3f} of {self.limits.agreement:g} asked for, {counted(audits, 'audit')}{late}"
        ]
        if guard := self._guard.switches and self._guard:
            seen = ", ".join(f"{name} {count / self._inferred:.0%}" for name, count in self._seen_by.most_common())
            lines.append(
                f"rungs: {seen} of the looks; {counted(guard.switches, 'switch', 'switches')}, the last because "
                f"{guard.why}; {counted(guard.audits, 'audit')} by the best one"
            )
        return lines

    def _forget_if_done(self, stream: _Stream) -> None:
        if not stream.held and stream not in self._current.values():
            self._streams.remove(stream)
            stream.blocks.governor.end()
            self._agreed += stream.blocks.governor.agreement * stream.blocks.count
            self._audits += stream.blocks.governor.audits

    def _look(self, stream: _Stream, numbers: Iterable[int]) -> None:
        for number in numbers:
            frame = stream.held[number]
            if self._rungs:
                if self._rate and self._rungs.level != self._guard.level:
                    self._budget.share = min(1.0, 1 / (self._rate * self._rungs.costs[self._guard.level]))
                self._rungs.level = self._guard.level
                if self._guard.look() < self._guard.level:
                    frame = self._audited(stream, number)
            self._due.append(([frame], 1))
            self._inferred += 1

    def _audited(self, stream: _Stream, number: int) -> Frame:
        """The frame, which the best rung is to see, too."""
        assert self._rungs
        frame = stream.held[number]
        if frame.lease is not None:
            frame = stream.held[number] = frame.replace_unchecked(lease=SharedLease(frame.lease))
        shadow = frame.replace_unchecked()
        self._rungs.pinned.add(id(shadow))
        self._shadows[frame.source_id, frame.index] = {}
        self._due.append(([shadow], 1))
        return frame

    def _is_audit(self, found: Result) -> bool:
        """Whether a result is that of the best rung in an audit, and not one of the run."""
        key = found.frame.source_id, found.frame.index
        if key not in self._shadows:
            return False
        assert self._rungs
        seen = self._shadows[key]
        audit = found.rung == self._rungs.programs[0].rung and True not in seen
        seen[audit] = found.detections
        if len(seen) == 2:
            del self._shadows[key]
            self._guard.audited(float(seen[True].confidence.sum()), disagreement(seen[True], seen[False]))
        return audit

    def _passed(self, stream: _Stream, ready: Ready) -> FrameResult:
        frame = stream.held.pop(ready.number)
        del stream.numbers[frame.index]
        if self._latency and frame.arrival is not None:
            self._guard.passed(frame.arrival)
            if monotonic() - frame.arrival > self._latency:
                self._late += 1
                stream.blocks.governor.late()
        why = f"{ready.why}; a cheaper rung, because {self._guard.why}" if self._guard.level else ready.why
        if ready.inferred:
            found = stream.results.pop(ready.number)
            self._seen_by[found.result.rung] += 1
            return found._replace(result=replace(found.result, why=why))
        result = Result(FrameInfo.of(frame), ready.detections, arrival=frame.arrival, inferred=False, why=why)
        assert self._program is not None
        return FrameResult(result, self._program.passed(frame))
