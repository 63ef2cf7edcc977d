"""Inputs: the sources of a run, which may come and go while it runs."""

import threading
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from framefuse.common.redact import redact_source
from framefuse.errors import FramefuseError, UsageError
from framefuse.frame import Frame
from framefuse.runtime.program import FrameResult
from framefuse.runtime.stages import in_order
from framefuse.sources import Source, SourceInfo
from framefuse.sources.segments import SegmentedSource
from framefuse.sources.source import Frames, PullSource

KEPT = 100
"""Sources that have ended whose facts are kept, besides those of the start: many may come and go."""


class Inputs:
    """The sources of a run, by number. One that has ended keeps its number, and its facts until KEPT more have ended.

    Attributes:
        numbered: those that are there at the start, then those that were added.
        others: what is left of those that are not there any more.
    """

    def __init__(self, sources: Sequence[Source]) -> None:
        self.numbered = dict(enumerate(sources))
        self.others = SourceInfo("", "ended")
        self._count = len(self.numbered)
        """Of all that there have been."""
        self._left_early = deque[int]()
        """Those that were added and have ended, the oldest first."""
        self._numbers: dict[str, int] = {}
        """Number by the `source_id` of frames seen so far."""
        self._pending, self._ended = Counter[int](), set[int]()
        """Frames of a source that are on their way; sources that deliver no more."""
        self._reading = Counter[int]()
        """How many iterators of a source deliver still, where there are several."""
        self._tolerated, self._removed = set[int](), set[int]()
        """Sources whose errors do not end the run; those that `remove` has closed."""
        self._last: dict[int, tuple[SourceInfo, str]] = {}
        """Facts and unit, as in `SourceInfo.unit_of`, of the last result of each source that has not left."""
        self._lock = threading.Lock()

    @property
    def sources(self) -> list[Source]:
        """Those that are there at the start, then those that were added and are not forgotten."""
        with self._lock:
            return list(self.numbered.values())

    def streams(self) -> list[tuple[int, Iterable[Frame]]]:
        """What is read at the same time: an iterator of each source, or several, with the number of the source."""
        found: list[tuple[int, Iterable[Frame]]] = []
        for number, source in self.numbered.items():
            streams = source.streams if isinstance(source, SegmentedSource) else [source]
            self._reading[number] = len(streams)
            found += [(number, stream) for stream in streams]
        return found

    def in_order(self, results: Iterator[FrameResult]) -> Iterator[FrameResult]:
        """The results of a source that is read in segments, in the order of its frames."""
        source = self.numbered[0]
        return in_order(results, source.segments) if isinstance(source, SegmentedSource) else results

    def add(self, source: Source) -> int:
        """Add a source while the run goes on, and return its number. An error ends this source, not the run.

        Raises:
            UsageError: a source of this name is being read, or was removed and has not ended yet.
        """
        uri = source.info.uri
        with self._lock:
            known = self._find(uri)
            if known is not None and (known not in self._ended or self._pending.get(known)):
                if known not in self._removed:
                    raise UsageError(f"{uri} is already being read", remedy="remove it first, or use another name")
                message = f"{uri} was removed, but has not ended yet: its last frames have no results"
                raise UsageError(message, remedy="add it again when they have, or use another name")
            number, self._count = self._count, self._count + 1
            if self.numbered[0].info.number is not None:
                source.info.number = number
            self.numbered[number] = source
            self._numbers[uri] = number
            self._tolerated.add(number)
        return number

    def take_back(self, number: int) -> None:
        """Forget a source that was just added: nobody will read it."""
        with self._lock:
            self._numbers.pop(self.numbered.pop(number).info.uri, None)
            self._tolerated.discard(number)

    def remove(self, name: Any) -> None:
        """Stop reading a source; its last frames still get their results. UsageError: it is not being read."""
        text = redact_source(str(name))
        with self._lock:
            number = self._find(text)
            if number is None or number in self._ended:
                names = ", ".join(item.info.uri for one, item in self.numbered.items() if one not in self._ended)
                raise UsageError(f"no source {text} is being read", remedy=f"there are: {names or 'none'}")
            self._removed.add(number)
            source = self.numbered[number]
        source.close()

    def _find(self, uri: str) -> int | None:
        return next((number for number in reversed(self.numbered) if self.numbered[number].info.uri == uri), None)

    def followed(self, number: int, frames: Iterable[Frame]) -> Iterator[Frame]:
        """The frames of an iterator of a source, counted until `done`."""
        try:
            for frame in frames:
                with self._lock:
                    self._pending[number] += 1
                yield frame
        except Exception as error:
            if number not in self._tolerated:
                raise
            info = self.numbered[number].info
            message = error.message if isinstance(error, FramefuseError) else f"{type(error).__name__}: {error}"
            info.error = message
            info.note(f"ended early: {message}")
        finally:
            with self._lock:
                self._pending[number] += 0  # it may have had no frame
                self._reading[number] -= 1
                if self._reading[number] <= 0:
                    self._ended.add(number)

    def passed(self, source_id: str, *, stopped: bool) -> list[tuple[SourceInfo, str]]:
        """A result has passed. Returns the facts of each source that has ended and all of whose results have passed,
        once each, and the unit of its last result.

        Args:
            stopped: whether the end of the sources is not their own.
        """
        info = self.info_of(source_id)
        self._last[self.reader_of(source_id)] = info, info.unit_of(source_id)
        self.done(source_id)
        return [self._last.pop(n) for n in self._left() & self._last.keys()] if self._ended and not stopped else []

    def completed(self, source_id: str) -> str | None:
        """The unit that is complete because a result of another one of its source comes; None: there is none. A source
        works through its files one after another."""
        _, before = self._last.get(self.reader_of(source_id), (None, None))
        return None if before == self.info_of(source_id).unit_of(source_id) else before

    def done(self, source_id: str) -> None:
        """A frame has its result, or was dropped."""
        number = self.reader_of(source_id)
        with self._lock:
            self._pending[number] -= 1

    def _left(self) -> set[int]:
        """Sources that have ended and whose frames are all done; each is returned once."""
        with self._lock:
            left = {number for number, count in self._pending.items() if not count and number in self._ended}
            for number in left:
                del self._pending[number]
                self.numbered[number] = PullSource(self.numbered[number].info, _nothing)
                if number in self._tolerated:
                    self._left_early.append(number)
            while len(self._left_early) > KEPT:
                self._forget(self._left_early.popleft())
        return left

    def _forget(self, number: int) -> None:
        info = self.numbered.pop(number).info
        for known in (info.uri, *info.parts):
            if self._numbers.get(known) == number:
                del self._numbers[known]
        for numbers in (self._ended, self._tolerated, self._removed):
            numbers.discard(number)
        del self._reading[number]
        self.others.uri = f"{self._count - len(self.numbered):,} others that ended earlier"
        for one in (info, *info.parts.values()):
            self.others.copied += one.copied
            for cause, count in one.drops.items():
                self.others.drop(cause, count)

    def left(self, number: int) -> int | None:
        """Frames of a source that has ended which have no result yet; None: it has not ended."""
        with self._lock:
            return self._pending.get(number, 0) if number in self._ended else None

    def reader_of(self, source_id: str) -> int:
        """Number of the source that a frame comes from."""
        if (number := self._numbers.get(source_id)) is not None:
            return number
        with self._lock:
            for number in reversed(self.numbered):
                info = self.numbered[number].info
                if source_id in info.parts or info.uri == source_id:
                    self._numbers[source_id] = number
                    return number
        return 0

    def info_of(self, source_id: str) -> SourceInfo:
        """Facts of the source that a frame comes from."""
        info = self.numbered[self.reader_of(source_id)].info
        return info.parts.get(source_id, info)

    def infos(self) -> list[SourceInfo]:
        """Facts of every source, once each; of a chain those of its parts, and its own if it has dropped frames. The
        last may be the sum of those that are not there any more."""
        infos: dict[int, SourceInfo] = {}
        for source in self.sources:
            parts = list(source.info.parts.values())
            own = [] if (parts or source.info.kind == "unread") and not source.info.drops else [source.info]
            infos |= {id(info): info for info in (*own, *parts)}
        return [*infos.values(), *([self.others] if self.others.uri else [])]

    def drop(self, frame: Frame | None, source_id: str, cause: str) -> None:
        """Count a frame that is not processed, and release what it holds."""
        if frame is not None and frame.lease is not None:
            frame.lease.release()
        self.info_of(source_id).drop(cause)

    def close(self) -> None:
        for source in self.sources:
            source.close()


def _nothing(closed: threading.Event) -> Frames:
    """The frames of a source that has ended."""
    yield from ()
