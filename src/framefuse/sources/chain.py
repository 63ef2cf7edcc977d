"""Several sources, read one after the other."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any

from framefuse.common.redact import redact, redact_source
from framefuse.common.text import counted
from framefuse.errors import EngineError, FramefuseError, SourceError, UsageError
from framefuse.sources.source import SCHEMES, Frames, PullSource, Source, SourceInfo, SourceOptions, is_camera, note

Opener = tuple[str, Callable[[], Source]]
"""Name of a source, and the function that opens it."""
OpenOne = Callable[[Any, SourceOptions], Source]
"""`sources.open_source`."""


def open_chain(sources: Sequence[Any], options: SourceOptions, open_one: OpenOne) -> Source:
    """Open a list of sources of any kind, each with `open_one`.

    Raises:
        SourceError: none of them can be opened.
        UsageError: a camera or stream is not the last one, so later ones would never be reached.
    """
    for item in sources[:-1]:
        if is_camera(item) or (isinstance(item, str) and item.partition("://")[0].lower() in SCHEMES):
            problem = "a list is read one source after the other, and a live source never ends"
            raise UsageError(problem, remedy="use one pipeline per camera or stream")
    if len(sources) == 1:
        return open_one(sources[0], options)
    return chain([(_name(item), partial(open_one, item, options)) for item in sources])


def _name(item: Any) -> str:
    return redact_source(item) if isinstance(item, (str, PathLike)) else type(item).__name__


def chain(openers: Sequence[Opener], *, alone: bool = True) -> PullSource:
    """Join several sources into one. Each is opened when the previous one ends; one that raises is skipped with a note.

    Frames keep the source_id of their own source; if two sources have the same one (a file named twice), the later gets
    "#2". `info` has the size and rate of the first that opens, and `info.parts` the facts of each.

    Args:
        alone: whether it is an error if none can be read.

    Raises:
        SourceError: none can be opened (immediately), or none delivered a frame (at the end).
    """
    chained = _Chain(iter(openers), counted(len(openers), "source"), [name for name, _ in openers], alone=alone)
    if chained.open_next() is None and alone:
        raise chained.nothing()
    return chained.source()


@dataclass(frozen=True)
class SharedList:
    """A work list shared by several readers of a Pipeline: each takes the next item when it has finished one.

    An item that cannot be read is skipped with a note.
    """

    items: Iterator[Any]
    """Anything that `open_one` accepts, mostly files. Other processes may take items as well."""
    open_one: OpenOne
    readers: int
    """Maximum number of readers; there are fewer if there are fewer items."""

    def open(self, options: SourceOptions) -> list[Source]:
        """The readers. The first has opened its first item; the others open theirs on their first frame, in parallel,
        because opening takes as long as many frames.

        Raises:
            SourceError: no item can be opened, or there is none.
        """
        lock, numbers = threading.Lock(), itertools.count()

        def open_numbered(item: Any, number: int) -> Source:
            source = self.open_one(item, options)
            source.info.number = number
            return source

        def openers() -> Iterator[Opener]:
            while True:
                with lock:
                    item, number = next(self.items, None), next(numbers)
                if item is None:
                    return
                yield _name(item), partial(open_numbered, item, number)

        chains = [_Chain(openers(), f"reader {number + 1} of a list", alone=False) for number in range(self.readers)]
        if chains[0].open_next() is None:
            raise chains[0].nothing()
        return [chained.source() for chained in chains]


class _Chain:
    """The parts in order, opened lazily; `alone`: whether it is an error if they deliver no frame at all."""

    def __init__(self, openers: Iterator[Opener], name: str, files: Sequence[str] = (), *, alone: bool = True) -> None:
        self._openers, self._alone = openers, alone
        self.failures: list[str] = []
        self._current: Source | None = None
        self._info = SourceInfo(name, "unread", files=[Path(file) for file in files if "://" not in file])

    def source(self) -> PullSource:
        """The whole chain; its first part, if not yet open, is opened on the first frame."""
        return PullSource(self._info, self._frames, self._close_current, self._close_current)

    def open_next(self) -> Source | None:
        """Open the next part that can be opened; None: there is none."""
        self._current = None
        for name, opener in self._openers:
            try:
                self._current = opener()
                break
            except Exception as error:
                self._failed(name, error)
        if self._current is not None and self._info.kind == "unread":
            facts, info = self._current.info, self._info
            info.kind, info.fps, info.width, info.height = facts.kind, facts.fps, facts.width, facts.height
            info.mixed = facts.mixed or facts.kind == "images"  # later parts may differ in size
        return self._current

    def _frames(self, closed: threading.Event) -> Frames:
        delivered = 0
        if self._info.kind == "unread" and not closed.is_set():
            self.open_next()
        while (source := self._current) is not None and not closed.is_set():
            try:
                for frame in source:
                    facts = source.info.parts.get(frame.source_id, source.info)
                    facts.number = source.info.number
                    name = self._unique(frame.source_id, facts)
                    yield frame if name == frame.source_id else frame.replace_unchecked(source_id=name)
                    delivered += 1
            except Exception as error:
                source.info.error = self._failed(source.info.uri, error)
            finally:
                source.close()
                for text in source.info.notes:
                    note(self._info, f"{source.info.uri}: {text}")
                for cause, count in source.info.drops.items():
                    self._info.drops[cause] = self._info.drops.get(cause, 0) + count
            if not closed.is_set():
                self.open_next()
        if self._alone and not delivered and self.failures and not closed.is_set():
            raise self.nothing()

    def _close_current(self) -> None:
        if (current := self._current) is not None:  # read once: the reader's thread may be opening the next part
            current.close()

    def _unique(self, source_id: str, facts: SourceInfo) -> str:
        name, number = source_id, 1
        while self._info.parts.setdefault(name, facts) is not facts:
            number += 1
            name = f"{source_id}#{number}"
        return name

    def _failed(self, name: str, error: Exception) -> str:
        """Note an item that cannot be read, whatever it raises; returns why."""
        if isinstance(error, EngineError):  # the GPU that decodes has failed, which is not the item's fault
            raise error
        message = error.message if isinstance(error, FramefuseError) else redact(f"{type(error).__name__}: {error}")
        self.failures.append(message)
        self._info.drops["unreadable"] = self._info.drops.get("unreadable", 0) + 1
        note(self._info, f"{name} skipped: {message}")
        return message

    def nothing(self) -> SourceError:
        return SourceError(f"none of {self._info.uri} could be read: {'; '.join(self.failures) or 'it is empty'}")
