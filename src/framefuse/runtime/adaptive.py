"""Adaptive compute in a run: holds frames back, lets a `Governor` choose which of them the model sees, and fills in the
others.

A block of frames waits until the two that bound it have been inferred and the governor accepts what lies between. So
results come up to `Limits.ahead` frames later than without, and in the order of the frames.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import TYPE_CHECKING

from framefuse.adaptive import Bridge, Governor, Ladder, Limits, load_ladder
from framefuse.common.machine import available_cores, cpu_model
from framefuse.common.text import counted
from framefuse.errors import CapabilityError, UsageError
from framefuse.frame import Frame, View
from framefuse.models.card import Card
from framefuse.prediction import FrameInfo, Result
from framefuse.preprocess import Preprocess
from framefuse.runtime.program import FrameResult
from framefuse.runtime.tracking import least_confidence, rate_of
from framefuse.sources import SourceInfo

if TYPE_CHECKING:
    from framefuse.config import Settings

LONGEST = 16
"""Frames of a block."""
LIVE_LATENCY = 0.3
"""Seconds for which frames of a live source are held back, unless `max_latency` says otherwise."""
Group = tuple[list[Frame], int]
"""Rows that run in one batch, and the places that they take in it."""


def adapter_for(
    settings: Settings, card: Card, preprocess: Preprocess, info: SourceInfo, *, views: bool
) -> Adapter | None:
    """What adapts the compute, if the settings ask for it.

    Args:
        info: facts of the first source.
        views: frames are split into views.

    Raises:
        UsageError: the settings contradict each other, or the ladder is not one of this model.
        CapabilityError: the model or the device cannot be adapted.
    """
    if not (settings.adaptive or settings.ladder):
        return None
    if views:
        raise UsageError("adaptive was asked for beside tiles, roi, stereo or views", remedy="choose one of them")
    if settings.batch > 1:
        raise UsageError(f"adaptive was asked for with batch {settings.batch}", remedy="leave batch out")
    if settings.on_gpu:
        raise CapabilityError("adaptive compute runs on the CPU only so far", remedy="use --device cpu")
    if card.task != "detect":
        raise CapabilityError(f"adaptive compute needs boxes, and {card.path.name} gives masks", remedy="leave it out")
    ladder = (
        load_ladder(settings.ladder, card.path, device_name())
        if settings.ladder
        else Ladder.single(card.path, preprocess)
    )
    ahead = LONGEST
    if info.live or settings.max_latency:
        held = settings.max_latency or LIVE_LATENCY
        ahead = max(1, min(LONGEST, int(held * rate_of(info) / settings.vid_stride / 2)))
    budget = 1 / settings.target_fps if settings.target_fps and settings.ladder else 0.0
    limits = Limits(settings.min_agreement, ahead, budget)
    return Adapter(ladder, limits, preprocess, conf=least_confidence(settings), max_latency=settings.max_latency)


def device_name() -> str:
    """What a ladder is measured on."""
    return f"{cpu_model()}, {counted(available_cores(), 'core')}"


@dataclass(eq=False)
class _Stream:
    """Frames of one source and size, numbered from 0."""

    governor: Governor
    held: dict[int, Frame] = field(default_factory=dict)
    numbers: dict[int, int] = field(default_factory=dict)
    """`Frame.index` -> number of the frame."""
    results: dict[int, FrameResult] = field(default_factory=dict)
    """Of the inferred frames that have not been passed on, and of the last one that has been."""
    blocks: deque[tuple[int, int]] = field(default_factory=deque)
    """First and last number of each block, the last part of the first block first."""
    audit: tuple[Bridge, int, int] | None = None
    """A block, the step of the frame that is audited, and its number."""
    count: int = 0
    last: int = -1
    """Number of the last frame that bounds a block."""
    passed: int = -1
    """Number of the last frame whose result was passed on."""


class Adapter:
    """Turns frames into rows, and joins the results, as a `Viewer` does; but most frames may have no row."""

    def __init__(
        self, ladder: Ladder, limits: Limits, preprocess: Preprocess, *, conf: float, max_latency: float | None = None
    ) -> None:
        self._ladder, self._limits, self._conf, self._max_latency = ladder, limits, conf, max_latency
        self._inputs = [rung.preprocess(preprocess) for rung in ladder.rungs]
        self._streams: dict[tuple[str, int, int, int], _Stream] = {}
        self._current: dict[Hashable, tuple[str, int, int, int]] = {}
        """What each reader reads now."""
        self._due: list[Group] = []
        self._frames = self._inferred = self._audits = self._late = 0
        self._agreement = 1.0

    def rows(self, frame: Frame, reader: Hashable) -> list[Group]:
        """The frame, if the model is to see it at once."""
        key = frame.source_id, frame.connection, frame.width, frame.height
        if self._current.setdefault(reader, key) != key:
            self._end(self._streams[self._current[reader]])
            self._current[reader] = key
        if key not in self._streams:
            self._streams[key] = _Stream(Governor(self._ladder, self._limits, seed=len(self._streams)))
        stream = self._streams[key]
        number, stream.count = stream.count, stream.count + 1
        stream.held[number], stream.numbers[frame.index] = frame, number
        self._frames += 1
        if number == 0 or number >= stream.last + stream.governor.ahead:
            self._bound(stream, number)
        return self.more()

    def more(self) -> list[Group]:
        """Frames that were held back and are to be seen now."""
        due, self._due = self._due, []
        return due

    def finish(self) -> list[Group]:
        """The sources have ended: the last frames."""
        for stream in self._streams.values():
            self._end(stream)
        return self.more()

    @property
    def full(self) -> bool:
        """Whether so many frames are held back that the model has to come first."""
        return any(len(stream.held) > 3 * self._limits.ahead for stream in self._streams.values())

    def join(self, results: Iterable[FrameResult | None]) -> Iterator[FrameResult]:
        """One result for each frame, in their order."""
        for result in results:
            if result is not None:
                of = result.result.frame
                stream = next(
                    stream
                    for key, stream in self._streams.items()
                    if key[0] == of.source_id and stream.numbers.get(of.index) in stream.held
                )
                stream.results[stream.numbers[of.index]] = result
                yield from self._settle(stream)

    @property
    def reasons(self) -> list[str]:
        """What was saved so far."""
        if not self._frames:
            return []
        share = self._inferred / self._frames
        text = f"adaptive: {share:.0%} of the frames were inferred, expected agreement {self._agreement:.3f}"
        late = f", {self._late} frames too late" if self._late else ""
        return [f"{text} (asked for: {self._limits.agreement:g}), {self._audits} audits{late}"]

    def _bound(self, stream: _Stream, number: int) -> None:
        """End a block with a frame, and infer it."""
        if number:
            stream.blocks.append((stream.last, number))
        stream.last = number
        self._infer(stream, number, stream.governor.rung)

    def _end(self, stream: _Stream) -> None:
        if stream.last < stream.count - 1:
            self._bound(stream, stream.count - 1)

    def _infer(self, stream: _Stream, number: int, rung: int) -> None:
        frame = stream.held[number]
        size = self._inputs[rung].place(frame.width, frame.height).size if rung else None
        stream.governor.inferred(rung)
        self._inferred += 1
        self._due.append(([frame.replace_unchecked(view=View(size=size) if size else None)], 1))

    def _settle(self, stream: _Stream) -> Iterator[FrameResult]:
        """Decide about blocks whose ends are known, and pass on those that are complete."""
        results, governor = stream.results, stream.governor
        if stream.audit is not None and stream.audit[2] in results:
            bridge, step, number = stream.audit
            governor.compare(bridge, step, results[number].result.detections)
            stream.audit = None
        if stream.passed < 0 and 0 in results:
            yield self._passed(stream, 0, results[0])
        while stream.blocks and all(end in results for end in stream.blocks[0]):
            begin, end = stream.blocks[0]
            bridge = Bridge(results[begin].result.detections, results[end].result.detections, end - begin)
            split, rung = governor.split(bridge), governor.rung
            if split is None and (split := governor.audit(bridge)) is not None:
                stream.audit, rung = (bridge, split, begin + split), 0
                self._audits += 1
            if split is not None:
                stream.blocks[0] = begin + split, end
                stream.blocks.appendleft((begin, begin + split))
                self._infer(stream, begin + split, rung)
                return
            stream.blocks.popleft()
            why = governor.why
            for number in range(begin + 1, end):
                yield self._passed(stream, number, self._between(stream, bridge, number - begin, number, why))
            results[end] = replace_why(results[end], why)
            yield self._passed(stream, end, results[end])
            del results[begin]
            self._agreement = governor.agreement

    def _between(self, stream: _Stream, bridge: Bridge, step: int, number: int, why: str) -> FrameResult:
        frame = stream.held[number]
        found = bridge.at(step, self._conf)
        return FrameResult(Result(FrameInfo.of(frame), found, arrival=frame.arrival, inferred=False, why=why), frame)

    def _passed(self, stream: _Stream, number: int, result: FrameResult) -> FrameResult:
        """The result of a frame that is due; without the frame if no sink needs it."""
        frame = stream.held.pop(number)
        stream.numbers.pop(frame.index, None)
        stream.passed = number
        if self._max_latency and frame.arrival is not None and monotonic() - frame.arrival > self._max_latency:
            self._late += 1
            stream.governor.late()
        return result


def replace_why(found: FrameResult, why: str) -> FrameResult:
    """A result with the reason of the decision about its frame."""
    return found._replace(result=replace(found.result, why=why))
