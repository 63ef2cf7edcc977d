"""Adaptive compute in a run: holds frames back, lets a `Governor` choose which of them the model sees, and fills in the
others.

A block of frames waits until the two that bound it have been inferred and the governor accepts what lies between. So
results come up to `Limits.ahead` frames later than without, and in the order of the frames.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import TYPE_CHECKING

from framefuse.adaptive import Blocks, Budget, Governor, Limits
from framefuse.adaptive.blocks import Ready
from framefuse.common.text import counted
from framefuse.errors import CapabilityError, UsageError
from framefuse.frame import Frame
from framefuse.models.card import Card
from framefuse.prediction import FrameInfo, Result
from framefuse.runtime.power import Counter, find_counters
from framefuse.runtime.program import FrameResult, Program
from framefuse.runtime.tracking import least_confidence, rate_of
from framefuse.sources import SourceInfo

if TYPE_CHECKING:
    from framefuse.config import Settings

LIVE_LATENCY = 0.3
"""Seconds for which frames of a live source are held back, unless `max_latency` says otherwise."""
POWER_SECONDS = 1.0
"""Interval at which the power is compared with its limit."""
FULL = 3
"""Blocks of a source that may wait at a time."""
Group = tuple[list[Frame], int]
"""Rows that run in one batch, and the places that they take in it."""


def adapter_for(
    settings: Settings, card: Card, info: SourceInfo, *, views: bool, gpu: int | None = None
) -> Adapter | None:
    """What adapts the compute, if the settings ask for it.

    Args:
        info: facts of the first source.
        views: frames are split into views.
        gpu: the GPU that is used; None: the CPU.

    Raises:
        UsageError: the settings contradict each other.
        CapabilityError: the model cannot be adapted, or nothing measures the power that `max_power` limits.
    """
    if not settings.adaptive:
        return None
    if views:
        raise UsageError("adaptive was asked for beside tiles, roi, stereo or views", remedy="choose one of them")
    if card.task != "detect":
        raise CapabilityError(f"adaptive compute needs boxes, and {card.path.name} gives masks", remedy="leave it out")
    ahead = Limits.ahead
    if info.live or settings.max_latency:
        held = settings.max_latency or LIVE_LATENCY
        ahead = max(1, min(ahead, int(held * rate_of(info) / settings.vid_stride / 2)))
    limits = Limits(settings.min_agreement, ahead)
    power = PowerLimit(settings.max_power, _counter(gpu)) if settings.max_power else None
    return Adapter(limits, conf=least_confidence(settings), max_latency=settings.max_latency, power=power)


def held_by(settings: Settings) -> int:
    """Most frames of a source that wait for their results beside those in batches."""
    return FULL * Limits.ahead + 1 if settings.adaptive else 0


def _counter(gpu: int | None) -> Counter:
    """What measures the power of the device.

    Raises:
        CapabilityError: nothing here does.
    """
    counter = find_counters(gpu)[0]
    counter.read()
    if counter.missing:
        raise CapabilityError(f"max_power needs a power counter: {counter.missing}", remedy="leave max_power out")
    return counter


class PowerLimit:
    """Compares the power of a device with a limit, once in POWER_SECONDS."""

    def __init__(self, watts: float, counter: Counter, clock: Callable[[], float] = monotonic) -> None:
        self._watts, self._counter, self._clock = watts, counter, clock
        self._last: tuple[float, float] | None = None
        """Time and joules of the last reading."""

    def exceeded(self) -> bool:
        """Whether the power since the last reading was above the limit; False between two readings."""
        now = self._clock()
        if self._last and now - self._last[0] < POWER_SECONDS:
            return False
        self._counter.read(self._clock)
        (at, before), self._last = self._last or (now, self._counter.joules), (now, self._counter.joules)
        return now > at and (self._counter.joules - before) / (now - at) > self._watts


@dataclass(eq=False)
class _Stream:
    """Frames of one source and size, in a row."""

    key: tuple[str, int, int, int]
    """Source, connection, width and height."""
    blocks: Blocks
    held: dict[int, Frame] = field(default_factory=dict)
    """Number -> a frame whose result is not known."""
    numbers: dict[int, int] = field(default_factory=dict)
    """`Frame.index` -> number, of the same frames."""
    results: dict[int, FrameResult] = field(default_factory=dict)
    """Number -> what the model says, until it is passed on."""


class Adapter:
    """Turns frames into rows, and joins the results, as a `Viewer` does; but most frames may have no row."""

    def __init__(
        self, limits: Limits, *, conf: float, max_latency: float | None = None, power: PowerLimit | None = None
    ) -> None:
        self._limits, self._conf, self._max_latency, self._power = limits, conf, max_latency, power
        self._streams: list[_Stream] = []
        """Those with frames that are held back, or to come."""
        self._current: dict[Hashable, _Stream] = {}
        """What each reader reads now."""
        self._due: list[Group] = []
        self._program: Program | None = None
        self._budget = Budget()
        self._begun = self._frames = self._inferred = self._late = self._audits = self._hot = 0
        self._agreed = 0.0
        """Expected agreement of the streams that have ended, times their frames."""

    def keep_up(self, program: Program, rate: float | None) -> None:
        """Leave time for so many frames per second, by the time of the model on an idle program; None: any number."""
        self._program = program
        if rate:
            self._budget.share = min(1.0, 1 / (rate * program.row_seconds()))

    def rows(self, frame: Frame, reader: Hashable) -> list[Group]:
        """The frame, if the model is to see it at once."""
        key = frame.source_id, frame.connection, frame.width, frame.height
        stream = self._current.get(reader)
        if stream is None or stream.key != key:
            if stream is not None:
                self._end(stream)
            stream = _Stream(key, Blocks(Governor(self._limits, budget=self._budget, seed=self._begun), self._conf))
            self._begun += 1
            self._current[reader] = stream
            self._streams.append(stream)
        number = stream.blocks.count
        stream.held[number], stream.numbers[frame.index] = frame, number
        self._frames += 1
        if self._power and self._power.exceeded():
            self._hot += 1
            for one in self._streams:
                one.blocks.governor.late()
        self._look(stream, stream.blocks.arrived())
        return self.more()

    def more(self) -> list[Group]:
        """Frames that were held back and are to be seen now."""
        due, self._due = self._due, []
        return due

    def finish(self) -> list[Group]:
        """The sources have ended: the last frames."""
        for stream in self._current.values():
            self._end(stream)
        self._current.clear()
        return self.more()

    @property
    def burst(self) -> int:
        """Most results of a source that come at once."""
        return self._limits.ahead

    @property
    def full(self) -> bool:
        """Whether so many frames are held back that the model has to come first."""
        return any(len(stream.held) > FULL * self._limits.ahead for stream in self._streams)

    def join(self, results: Iterable[FrameResult | None]) -> Iterator[FrameResult]:
        """One result for each frame, in the order of those of its source."""
        for result in results:
            if result is None:
                continue
            of = result.result.frame
            stream = next(one for one in self._streams if one.key[0] == of.source_id and of.index in one.numbers)
            number = stream.numbers[of.index]
            stream.results[number] = result
            self._look(stream, stream.blocks.found(number, result.result.detections))
            for ready in stream.blocks.ready():
                yield self._passed(stream, ready)
            if not stream.held and stream not in self._current.values():
                self._streams.remove(stream)
                stream.blocks.governor.end()
                self._agreed += stream.blocks.governor.agreement * stream.blocks.count
                self._audits += stream.blocks.governor.audits

    @property
    def reasons(self) -> list[str]:
        """What was saved so far."""
        if not self._frames:
            return []
        governors = [(stream.blocks.governor, stream.blocks.count) for stream in self._streams]
        agreed = self._agreed + sum(governor.agreement * count for governor, count in governors)
        agreement, audits = agreed / self._frames, self._audits + sum(governor.audits for governor, _ in governors)
        late = f", {counted(self._late, 'frame')} too late" if self._late else ""
        late += f", over max_power {counted(self._hot, 'time')}" if self._hot else ""
        return [
            f"adaptive: the model saw {self._inferred / self._frames:.0%} of the frames; expected agreement "
            f"{agreement:.3f} of {self._limits.agreement:g} asked for, {counted(audits, 'audit')}{late}"
        ]

    def _end(self, stream: _Stream) -> None:
        self._look(stream, stream.blocks.end())

    def _look(self, stream: _Stream, numbers: Iterable[int]) -> None:
        for number in numbers:
            self._due.append(([stream.held[number]], 1))
            self._inferred += 1

    def _passed(self, stream: _Stream, ready: Ready) -> FrameResult:
        frame = stream.held.pop(ready.number)
        del stream.numbers[frame.index]
        if self._max_latency and frame.arrival is not None and monotonic() - frame.arrival > self._max_latency:
            self._late += 1
            stream.blocks.governor.late()
        if ready.inferred:
            found = stream.results.pop(ready.number)
            return found._replace(result=replace(found.result, why=ready.why))
        result = Result(FrameInfo.of(frame), ready.detections, arrival=frame.arrival, inferred=False, why=ready.why)
        assert self._program is not None
        return FrameResult(result, self._program.passed(frame))
