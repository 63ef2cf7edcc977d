"""The stages of a run as passive generators: decode, infer, write. `Pipeline` puts threads between them."""

import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import replace
from time import monotonic
from typing import cast

from framefuse.cuda import device as gpus
from framefuse.errors import EngineError, FramefuseError
from framefuse.frame import Frame
from framefuse.prediction import Result
from framefuse.runtime.adaptive import Adapter, Group
from framefuse.runtime.batching import FrameBatcher
from framefuse.runtime.channel import EMPTY, Threaded
from framefuse.runtime.profiling import StageClock
from framefuse.runtime.program import FrameResult, Program
from framefuse.runtime.views import Viewer
from framefuse.sinks import SinkSet
from framefuse.sources import SourceInfo
from framefuse.sources.segments import Segments

POLL_SECONDS = 0.002
"""How often to look for a new frame while waiting for the engine."""
STEP = 0.5
"""Seconds between two checks of a request. Only checks are counted, so a process that was suspended has not waited."""


def warm_up(source: Iterable[Frame], program: Program, viewer: Viewer | None = None) -> Iterator[Frame]:
    """Warm the program up with the first frame, in the calling thread, and return all frames of the source.

    Decoder threads start afterwards: one that sets itself up or allocates during a graph capture would invalidate it.
    """
    try:
        first = list(itertools.islice(source, 1))
        for frame in first:
            try:
                program.warm_up(viewer.example(frame) if viewer else frame)
            except FramefuseError as error:
                error.stage = "program"  # not "decode", where it will be raised
                raise
    except Exception as error:
        return _failed(error)  # raised when results are read, like any other error
    return itertools.chain(first, source)


def _failed(error: Exception) -> Iterator[Frame]:
    raise error
    yield  # makes this a generator, so that the error is raised by the loop that reads frames


def decode(source: Iterable[Frame]) -> Iterator[Frame]:
    """Frames of a source, stamped with their time of arrival."""
    for frame in source:
        yield frame if frame.arrival is not None else frame.replace_unchecked(arrival=monotonic())


def infer(
    frames: Threaded[Frame], program: Program, batcher: FrameBatcher[Frame], rows: Viewer | Adapter | None = None
) -> Iterator[FrameResult]:
    """Run frames, or the rows that are made of them, through the program in batches. In-flight batches are finished
    even if the source fails."""
    if isinstance(rows, Adapter):
        return rows.join(_infer(frames, program, batcher, rows.rows, rows))
    if rows is None:
        return cast("Iterator[FrameResult]", _infer(frames, program, batcher, lambda frame, reader: [([frame], 1)]))
    viewer = rows
    return viewer.join(_infer(frames, program, batcher, lambda frame, reader: viewer.rows(frame)), program.passed)


def watched(found: Threaded[FrameResult], program: Program, seconds: float) -> Iterator[FrameResult]:
    """What the thread of a program finds, while that thread may be inside the engine.

    Args:
        seconds: how long one request may run; 0: without limit.

    Raises:
        EngineError: a request has run for longer.
    """
    waited, last = 0.0, None
    while (item := found.get(STEP)) is not None:
        if item is not EMPTY:
            waited = 0.0
            yield item
            continue
        request = program.request
        waited = waited + STEP if request is last is not None else 0.0
        last = request
        if seconds and waited >= seconds:
            message = f"the engine has not answered a request for {seconds:g} s (option request_timeout)"
            remedy = "use a larger --request-timeout or a smaller --batch, or another engine"
            error = EngineError(message, remedy=remedy)
            error.stage = found.name
            raise error


def sized(results: Iterator[FrameResult], area: float) -> Iterator[FrameResult]:
    """The results without boxes below the setting `min_area`."""
    if not area:
        yield from results
    for found in results:
        frame = found.result.frame
        kept = found.result.detections.at_least(area, frame.width, frame.height)
        yield found._replace(result=replace(found.result, detections=kept))


def in_order(results: Iterator[FrameResult], segments: Segments) -> Iterator[FrameResult]:
    """The results of segments of a video in their order, numbered from 0; those of later ones wait."""
    waiting, passed, taken = defaultdict[int, list[FrameResult]](list), Counter[int](), segments.taken
    done = first = 0  # segments, and their frames

    def numbered(found: FrameResult) -> FrameResult:
        frame = replace(found.result.frame, index=first + found.result.frame.index, connection=0)
        return found._replace(result=replace(found.result, frame=frame))

    for found in results:
        number = found.result.frame.connection
        passed[number] += 1
        waiting[number].append(found)
        while done < len(taken):
            now = taken[done]
            yield from map(numbered, waiting.pop(now, ()))
            if segments.counts.get(now) != passed[now]:
                break
            first, done = first + passed[now], done + 1
    for now in taken[done:]:
        yield from map(numbered, waiting.pop(now, ()))
        first += passed[now]


def _infer(
    frames: Threaded[Frame],
    program: Program,
    batcher: FrameBatcher[Frame],
    rows_of: Callable[[Frame, Hashable], Sequence[Group]],
    adapter: Adapter | None = None,
) -> Iterator[FrameResult | None]:
    """The result of each row; None where a frame has no row.

    Args:
        rows_of: rows of a frame of a reader that run in one batch, and how many places of it they take.
        adapter: asks for rows of earlier frames as results come.
    """

    def run(batches: list[list[Frame]]) -> Iterator[FrameResult]:
        for batch in batches:
            yield from program.submit(batch)

    def submitted(groups: Sequence[Group]) -> Iterator[FrameResult]:
        for group, places in groups:
            shape, now = program.batch_key(group[0]), monotonic()
            yield from run(batcher.add(*group, shape=shape, reader=frames.turn, now=now, places=places))

    def ended() -> Iterator[FrameResult]:
        """The results of all that came."""
        yield from run(batcher.flush())
        yield from program.drain()
        while adapter is not None and (due := adapter.finish()):
            yield from submitted(due)
            yield from run(batcher.flush())
            yield from program.drain()

    try:
        while True:
            while adapter is not None and adapter.full:
                if not program.in_flight:  # what is waited for may be in a batch that is not full
                    yield from run(batcher.flush())
                if not program.in_flight:
                    break
                yield from program.finish()
                yield from submitted(adapter.more())
            deadline = monotonic() if program.in_flight else batcher.deadline  # of what is due next; None: nothing is
            try:
                frame = frames.get(None if deadline is None else max(0.0, deadline - monotonic()))
            except Exception:  # of a source; what it gave before counts
                yield from ended()
                raise
            if frame is None:
                break
            if frame is EMPTY:
                batches = batcher.due(monotonic())
                if not batches:
                    yield from program.finish(timeout=POLL_SECONDS)
                yield from run(batches)
            else:
                rows = rows_of(frame, frames.turn)
                if not rows:
                    yield None
                yield from submitted(rows)
            if adapter is not None:
                yield from submitted(adapter.more())
    except Exception:
        yield from program.drain()
        raise
    yield from ended()


def begun(
    groups: Iterable[list[FrameResult]], sinks: SinkSet, info_of: Callable[[str], SourceInfo], clock: StageClock
) -> Iterator[FrameResult]:
    """The results, for which sinks have started what a GPU does. Those of a group come from one source.

    This is for the thread that gives a GPU its other work: two threads that take turns with short calls wait for
    Python's lock most of the time.
    """
    for group in groups:
        with clock.timed():
            given = [(one.result, one.frame) for one in group]
            if not sinks.begin(given, info_of(group[0].result.frame.source_id)):
                gpus.synchronize()  # another thread reads the mattes
        yield from group


def write(
    found: Iterable[FrameResult],
    sinks: SinkSet,
    info_of: Callable[[str], SourceInfo],
    clock: StageClock,
    *,
    completed: Callable[[str], str | None],
    stopped: Callable[[], bool],
) -> Iterator[Result]:
    """Pass results to the sinks, which are completed whatever happens.

    Args:
        completed: see `Inputs`.
        stopped: whether the end of the results is not that of the sources.
    """
    try:
        for result, frame, _ in found:
            source_id = result.frame.source_id
            if (unit := completed(source_id)) is not None:
                sinks.end(unit)
            with clock.timed(items=1):
                sinks.write(result, frame, info_of(source_id))
                if frame is not None and frame.lease is not None:
                    frame.lease.release()
            yield result
        if not stopped():
            sinks.finish()
    finally:
        sinks.close()
