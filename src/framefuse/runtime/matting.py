"""Steadies the mattes of a run from frame to frame, for each source and view."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from framefuse.config import Settings
from framefuse.cuda.driver import Reading
from framefuse.kernels.arrays import to_host
from framefuse.kernels.masks.canvas import guides_of, lies_on_gpu
from framefuse.kernels.masks.eyes import agreed
from framefuse.kernels.masks.grids import Grid
from framefuse.kernels.masks.guided import shrink
from framefuse.kernels.masks.holes import fill_holes
from framefuse.kernels.masks.mattes import REACH, Moment, compare, steadied
from framefuse.prediction import Detections, Matte, MattePart
from framefuse.runtime.profiling import StageClock
from framefuse.runtime.program import FrameResult
from framefuse.runtime.readers import together
from framefuse.runtime.rectilinear import Rectilinear
from framefuse.runtime.views import sees_both_eyes
from framefuse.sources import SourceInfo

GAP = 0.5
"""Seconds between two frames after which nothing is known about the second."""
OBJECTS_GRID = 4
"""Pixels, across and down, that the masks of objects give one sample of a matte."""


def follows(before: float | None, after: float | None) -> bool:
    """Whether one frame comes a moment after another, by their times in seconds. Without times they may be images of
    anything."""
    return before is not None and after is not None and 0 < after - before <= GAP


class _Look(NamedTuple):
    """One frame."""

    parts: tuple[MattePart, ...]
    moment: Moment
    seconds: float | None
    on_gpu: bool


class _Steadied(NamedTuple):
    """Results, their mattes, and the frames that a GPU may still read for them: all that were compared, since those
    that are ahead are among the frames around."""

    found: list[tuple[FrameResult, list[MattePart]]]
    around: list[_Look]


class _Scene:
    """The last frames of a source, which follow each other, and those that wait for the frames after them.

    Their arrays lie on the host, or on a GPU, where nothing here waits for what is computed.
    """

    def __init__(self, steady: float, ahead: int, count: int) -> None:
        self._steady, self._ahead, self._together = steady, ahead, count
        self._looks: list[_Look] = []
        self._waiting: deque[FrameResult] = deque()
        self._compared = 1
        """How many of the frames are compared with the one before; the first has none."""

    def __len__(self) -> int:
        return len(self._waiting)

    def takes(self, look: _Look) -> bool:
        """Whether a frame may show what the last one here shows, of which there is one at least, a moment later;
        `steadied` looks for cuts."""
        before = self._looks[-1]
        shapes, known = ([(part.region, part.alpha.shape) for part in one.parts] for one in (look, before))
        return shapes == known and look.on_gpu == before.on_gpu and follows(before.seconds, look.seconds)

    def add(self, found: FrameResult, look: _Look) -> Iterator[_Steadied]:
        """The frames that have not to wait any longer."""
        self._looks.append(look)
        self._waiting.append(found)
        if len(self._waiting) >= self._ahead + self._together:
            yield self._next(self._together)

    def end(self) -> Iterator[_Steadied]:
        """The frames that still wait."""
        while self._waiting:
            yield self._next(min(self._together, len(self._waiting)))

    def _next(self, count: int) -> _Steadied:
        before, *new = [look.moment for look in self._looks[self._compared - 1 :]]
        compare(before, new)
        at = len(self._looks) - len(self._waiting)
        spent, end = max(0, at - REACH - 1), at + count
        around = self._looks[spent : end + REACH + 1]
        moments, frames = [look.moment for look in around], range(at - spent, end - spent)
        steady = steadied(moments, frames, weight=self._steady, medians=bool(self._ahead))
        found = [
            (self._waiting.popleft(), [part._replace(alpha=alpha, guide=guide) for part, alpha, guide in
                                       zip(look.parts, alphas, look.moment.guides, strict=True)])
            for look, alphas in zip(self._looks[at:end], steady, strict=True)
        ]  # fmt: skip
        del self._looks[:spent]
        self._compared = len(self._looks)
        return _Steadied(found, around)


class Matting:
    """Gives the results of a run their mattes. Those of each source come in its order; sources may alternate.

    Both eyes support each other where they see the same. Small holes, which the foreground of a view encloses, are
    filled.
    What one frame alone shows is taken out: each sample has the median of a frame, the one before and the one after.
    Where the picture is still, it has the mean of the frames around. Frames after one are not waited for where the
    source is live.
    """

    def __init__(
        self, settings: Settings, info_of: Callable[[str], SourceInfo], turned: Rectilinear | None = None
    ) -> None:
        from framefuse.sinks.images import FrameConverter  # PyAV, which may only come after OpenCV's windows

        self._steady, self._feather, self._info_of = settings.matte_steady, settings.matte_feather, info_of
        self._holes, self._together = settings.matte_holes, together(settings)
        self._eyes = settings.matte_eyes if sees_both_eyes(settings) else 0.0
        self._converter, self._turned = FrameConverter(), turned
        self._reading = Reading()

    def follow(
        self,
        results: Iterable[FrameResult],
        reader_of: Callable[[str], int],
        left: Callable[[int], int | None],
        clock: StageClock | None = None,
    ) -> Iterator[FrameResult]:
        """The results of `groups`, one by one."""
        return chain.from_iterable(self.groups(results, reader_of, left, clock))

    def groups(
        self,
        results: Iterable[FrameResult],
        reader_of: Callable[[str], int],
        left: Callable[[int], int | None],
        clock: StageClock | None = None,
    ) -> Iterator[list[FrameResult]]:
        """The results with steady mattes, which know the luma that guides them; those together that a GPU steadies
        together. Who takes the next ones has started all that a GPU does with those before, on CuPy's current stream.

        Args:
            reader_of: number of the source that a frame comes from.
            left: frames of a reader that has ended which have no result yet; None: it has not ended.
            clock: measures the time that this takes.
        """
        scenes: dict[int, tuple[tuple[str, int], _Scene]] = {}
        try:
            for found in results:
                with clock.timed() if clock else nullcontext():
                    finished = self._after(found, scenes, reader_of(found.result.frame.source_id))
                yield from self._with_mattes(finished)
                for reader in [reader for reader, (_, scene) in scenes.items() if left(reader) == len(scene)]:
                    yield from self._with_mattes(scenes.pop(reader)[1].end())
        except Exception:
            yield from self._rest(scenes)
            raise
        yield from self._rest(scenes)

    def _after(self, found: FrameResult, scenes: dict[int, tuple[tuple[str, int], _Scene]],
               reader: int) -> list[_Steadied]:  # fmt: skip
        """The frames that have not to wait any longer once another one has come."""
        finished = list[_Steadied]()
        source_id = found.result.frame.source_id
        info, look = self._info_of(source_id), self._look(found)
        known, scene = scenes.get(reader, (("", 0), None))
        unit = info.unit_of(source_id), found.result.frame.connection
        if scene is None or known != unit or not (self._steady and scene.takes(look)):
            if scene is not None:
                finished += scene.end()
            ahead = 0 if info.live or not self._steady else REACH + 1
            scene = _Scene(self._steady, ahead, self._together if ahead and look.on_gpu else 1)
            scenes[reader] = unit, scene
        return [*finished, *scene.add(found, look)]

    def _rest(self, scenes: dict[int, tuple[tuple[str, int], _Scene]]) -> Iterator[list[FrameResult]]:
        for _, scene in scenes.values():
            yield from self._with_mattes(scene.end())

    def _with_mattes(self, finished: Iterable[_Steadied]) -> Iterator[list[FrameResult]]:
        for group, around in finished:
            made = list[FrameResult]()
            for found, parts in group:
                size = found.result.frame.width, found.result.frame.height
                matte = Matte(tuple(parts), size, self._feather)
                made.append(found._replace(result=replace(found.result, matte=matte)))
            yield made
            if around[-1].on_gpu:
                self._reading.keep(around)

    def _look(self, found: FrameResult) -> _Look:
        result, frame = found.result, found.frame
        assert frame is not None, "mattes need the frame"
        matte = result.matte or of_objects(result.detections, (frame.width, frame.height))
        parts, on_gpu = matte.parts, lies_on_gpu(frame)
        if not on_gpu:  # the frame is of a kind that only the host composes
            parts = tuple(part._replace(alpha=to_host(part.alpha)) for part in parts)
        if self._turned is not None:
            parts = self._turned.joined(parts)
        if on_gpu and all(part.guide is not None for part in parts):
            guides = [part.guide for part in parts]
        elif on_gpu:
            (guides,) = guides_of([frame], [Grid(part.region, part.alpha.shape) for part in parts])
        else:
            luma = self._converter.luma(frame)
            guides = [shrink(luma[y : y + height, x : x + width], alpha.shape)
                      for (x, y, width, height), alpha, _ in parts]  # fmt: skip
        alphas = [part.alpha for part in parts]
        if self._eyes and len(alphas) == 2 and alphas[0].shape == alphas[1].shape:
            alphas = agreed(alphas, guides, self._eyes)
        for alpha in alphas:
            if most := round(self._holes * alpha.size):
                fill_holes(alpha, most)
        return _Look(parts, Moment(alphas, guides), result.frame.seconds, on_gpu)


def of_objects(found: Detections, size: tuple[int, int]) -> Matte:
    """The matte of all objects that have masks, in a frame of that width and height."""
    width, height = size
    union = np.zeros((height, width), np.uint8)
    if found.runs is not None:
        union = found.runs.labels(np.full(len(found), 255, np.uint8))
    grid = max(1, height // OBJECTS_GRID), max(1, width // OBJECTS_GRID)
    alpha: Any = shrink(union, grid)
    return Matte((MattePart((0, 0, width, height), alpha),), size)
