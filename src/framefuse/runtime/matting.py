"""Steadies the mattes of a run from frame to frame, for each source and view."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from framefuse.config import Settings
from framefuse.kernels.masks.guided import shrink
from framefuse.prediction import Array, Detections, Matte, MattePart
from framefuse.runtime.program import FrameResult
from framefuse.sources import SourceInfo

CUT = 0.12
"""Mean change of luma (0..1) from one frame to the next above which the scene has changed."""
MOVES = 0.02
"""Change of luma of a sample, or of one beside it, from which on other frames say nothing about it."""
REACH = 3
"""Frames before and after one that say something about it."""
GAP = 0.5
"""Seconds between two frames after which nothing is known about the second."""
OBJECTS_GRID = 4
"""Pixels, across and down, that the masks of objects give one sample of a matte."""


def follows(before: float | None, after: float | None) -> bool:
    """Whether one frame comes a moment after another, by their times in seconds. Without times they may be images of
    anything."""
    return before is not None and after is not None and 0 < after - before <= GAP


class _Look(NamedTuple):
    """One view of a frame."""

    part: MattePart
    guide: Array
    """Its luma at the resolution of the matte."""
    seconds: float | None

    def goes_on(self, before: "_Look") -> bool:
        """Whether it shows the same scene as the one before."""
        if before.guide.shape != self.guide.shape or before.part.region != self.part.region:
            return False
        if not follows(before.seconds, self.seconds):
            return False
        return bool(np.abs(self.guide - before.guide).mean() <= CUT)


class _Scene:
    """The last frames of a source, which show one scene, and those that wait for the frames after them."""

    def __init__(self, steady: float, ahead: int) -> None:
        self._steady, self._ahead = steady, ahead
        self._looks: list[list[_Look]] = []
        self._plain: list[list[Array]] = []
        """The mattes of all but perhaps the last, without what one frame alone shows."""
        self._waiting: deque[FrameResult] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def takes(self, looks: list[_Look]) -> bool:
        """Whether a frame goes on with the scene, which has others already."""
        last = self._looks[-1]
        return len(last) == len(looks) and all(map(_Look.goes_on, looks, last))

    def add(self, found: FrameResult, looks: list[_Look]) -> Iterator[tuple[FrameResult, list[MattePart]]]:
        """The frames that have not to wait any longer."""
        self._looks.append(looks)
        self._waiting.append(found)
        if not self._ahead:
            self._plain.append([look.part.alpha for look in looks])
        elif len(self._looks) > 1:
            self._plain.append([_median(three) for three in zip(*self._looks[-3:], strict=True)])
        while len(self._waiting) > self._ahead:
            yield self._next()

    def end(self) -> Iterator[tuple[FrameResult, list[MattePart]]]:
        """The frames that still wait."""
        self._plain += [[look.part.alpha for look in looks] for looks in self._looks[len(self._plain) :]]
        while self._waiting:
            yield self._next()

    def _next(self) -> tuple[FrameResult, list[MattePart]]:
        at = len(self._looks) - len(self._waiting)
        first, end = max(0, at - REACH), min(at + REACH + 1, len(self._plain))
        parts = []
        for number, look in enumerate(self._looks[at]):
            around = [(self._looks[n][number].guide, self._plain[n][number]) for n in range(first, end) if n != at]
            alpha = self._mean(self._plain[at][number], look.guide, around)
            parts.append(look.part._replace(alpha=alpha, guide=look.guide))
        spent = max(0, at - REACH)
        del self._looks[:spent], self._plain[:spent]
        return self._waiting.popleft(), parts

    def _mean(self, alpha: Array, guide: Array, around: list[tuple[Array, Array]]) -> Array:
        """The mean of a matte and those of other frames, where these show the same."""
        total, weights = alpha, np.ones_like(alpha)
        for other_guide, other in around:
            weight = (1 - _most_around(np.abs(other_guide - guide)) / np.float32(MOVES)).clip(0, 1)
            weight *= np.float32(self._steady)
            total, weights = total + weight * other, weights + weight
        return total / weights


class Matting:
    """Gives the results of a run their mattes. Those of each source come in its order; sources may alternate.

    What one frame alone shows is taken out: each sample has the median of a frame, the one before and the one after.
    Where the picture is still, it has the mean of the frames around. Frames after one are not waited for where the
    source is live.
    """

    def __init__(self, settings: Settings, info_of: Callable[[str], SourceInfo]) -> None:
        from framefuse.sinks.images import FrameConverter  # PyAV, which may only come after OpenCV's windows

        self._steady, self._feather, self._info_of = settings.matte_steady, settings.matte_feather, info_of
        self._converter = FrameConverter()

    def follow(
        self, results: Iterable[FrameResult], reader_of: Callable[[str], int], left: Callable[[int], int | None]
    ) -> Iterator[FrameResult]:
        """The results with steady mattes, which know the luma that guides them.

        Args:
            reader_of: as of `stages.write`.
            left: frames of a reader that has ended which have no result yet; None: it has not ended.
        """
        scenes: dict[int, tuple[str, _Scene]] = {}
        try:
            for found in results:
                source_id = found.result.frame.source_id
                info, reader, looks = self._info_of(source_id), reader_of(source_id), self._looks(found)
                known, scene = scenes.get(reader, ("", None))
                unit = info.unit_of(source_id)
                if scene is None or known != unit or not (self._steady and scene.takes(looks)):
                    if scene is not None:
                        yield from self._with_mattes(scene.end())
                    scene = _Scene(self._steady, 0 if info.live or not self._steady else REACH + 1)
                    scenes[reader] = unit, scene
                yield from self._with_mattes(scene.add(found, looks))
                for reader in [reader for reader, (_, scene) in scenes.items() if left(reader) == len(scene)]:
                    yield from self._with_mattes(scenes.pop(reader)[1].end())
        except Exception:
            yield from self._rest(scenes)
            raise
        yield from self._rest(scenes)

    def _rest(self, scenes: dict[int, tuple[str, _Scene]]) -> Iterator[FrameResult]:
        for _, scene in scenes.values():
            yield from self._with_mattes(scene.end())

    def _with_mattes(self, finished: Iterable[tuple[FrameResult, list[MattePart]]]) -> Iterator[FrameResult]:
        for found, parts in finished:
            size = found.result.frame.width, found.result.frame.height
            yield found._replace(result=replace(found.result, matte=Matte(tuple(parts), size, self._feather)))

    def _looks(self, found: FrameResult) -> list[_Look]:
        result, frame = found.result, found.frame
        assert frame is not None, "mattes need the frame"
        matte = result.matte or of_objects(result.detections, (frame.width, frame.height))
        luma = self._converter.luma(frame)
        looks = []
        for part in matte.parts:
            x, y, width, height = part.region
            guide = shrink(luma[y : y + height, x : x + width], part.alpha.shape)
            looks.append(_Look(part, guide, result.frame.seconds))
        return looks


def _median(looks: tuple[_Look, ...]) -> Array:
    """The matte of the second last of two or three frames: the median of three."""
    before, *rest = (look.part.alpha for look in looks)
    if len(rest) < 2:
        return before
    alpha, after = rest
    median: Array = np.maximum(np.minimum(before, after), np.minimum(np.maximum(before, after), alpha))
    return median


def _most_around(values: Array) -> Array:
    """The greatest value of each sample and its eight neighbours."""
    padded = np.pad(values, 1, mode="edge")
    across = np.maximum(np.maximum(padded[:, :-2], padded[:, 1:-1]), padded[:, 2:])
    most: Array = np.maximum(np.maximum(across[:-2], across[1:-1]), across[2:])
    return most


def of_objects(found: Detections, size: tuple[int, int]) -> Matte:
    """The matte of all objects that have masks, in a frame of that width and height."""
    width, height = size
    union = np.zeros((height, width), np.uint8)
    if found.runs is not None:
        union = found.runs.labels(np.full(len(found), 255, np.uint8))
    grid = max(1, height // OBJECTS_GRID), max(1, width // OBJECTS_GRID)
    alpha: Any = shrink(union, grid)
    return Matte((MattePart((0, 0, width, height), alpha),), size)
