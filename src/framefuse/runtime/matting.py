"""Steadies the mattes of a run from frame to frame, for each source and view."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from framefuse.config import Settings
from framefuse.frame import Frame
from framefuse.kernels.masks.guided import shrink
from framefuse.prediction import Array, Detections, Matte, MattePart
from framefuse.runtime.program import FrameResult
from framefuse.sinks.images import FrameConverter, upright
from framefuse.sources import SourceInfo

CUT = 0.12
"""Mean change of luma (0..1) from one frame to the next above which the scene has changed."""
STILL, MOVES = 0.005, 0.015
"""Changes of luma of a sample: up to the first nothing moves there; from the second on the matte follows at once."""
GAP = 0.5
"""Seconds between two frames after which nothing is known about the second."""
OBJECTS_GRID = 4
"""Pixels, across and down, that the masks of objects give one sample of a matte."""


class _Look(NamedTuple):
    """One view of a frame."""

    part: MattePart
    guide: Array
    """Its luma at the resolution of the matte."""
    seconds: float | None

    def goes_on(self, before: "_Look | None") -> bool:
        """Whether it shows the same scene as the one before."""
        if before is None or before.guide.shape != self.guide.shape:
            return False
        if None not in (self.seconds, before.seconds) and not 0 < self.seconds - before.seconds <= GAP:  # type: ignore[operator]
            return False
        return bool(np.abs(self.guide - before.guide).mean() <= CUT)


class _Held(NamedTuple):
    """A frame that waits for the one after it."""

    found: FrameResult
    unit: str
    looks: list[_Look]


class Matting:
    """Gives the results of a run their mattes. Those of each source come in its order; sources may alternate.

    What one frame alone shows is taken out: of a frame, the one before and the one after, each sample has the median.
    Where the picture is still, a sample keeps most of what it was. The frame after is not waited for where the source
    is live.
    """

    def __init__(self, settings: Settings, info_of: Callable[[str], SourceInfo]) -> None:
        self._steady, self._feather, self._info_of = settings.matte_steady, settings.matte_feather, info_of
        self._converter = FrameConverter()
        self._raw: dict[tuple[str, int], _Look] = {}
        """The last view of each source, as the model saw it."""
        self._shown: dict[tuple[str, int], Array] = {}
        """Its matte."""

    def follow(self, results: Iterable[FrameResult], reader_of: Callable[[str], int]) -> Iterator[FrameResult]:
        """The results with steady mattes, which know the luma that guides them. `reader_of`: as of `stages.write`."""
        held: dict[int, _Held] = {}
        try:
            for found in results:
                source_id = found.result.frame.source_id
                info = self._info_of(source_id)
                one = _Held(found, info.unit_of(source_id), self._looks(found))
                if self._steady and not info.live:
                    reader = reader_of(source_id)
                    before, held[reader] = held.get(reader), one
                    if before is not None:
                        yield self._finished(before, one.looks if one.unit == before.unit else [])
                else:
                    yield self._finished(one, [])
        except Exception:
            yield from (self._finished(one, []) for one in held.values())
            raise
        yield from (self._finished(one, []) for one in held.values())

    def leave(self, unit: str) -> None:
        """A source has ended."""
        for key in [key for key in self._raw if key[0] == unit]:
            del self._raw[key], self._shown[key]

    def _looks(self, found: FrameResult) -> list[_Look]:
        result, frame = found.result, found.frame
        assert frame is not None, "mattes need the frame"
        matte = result.matte or of_objects(result.detections, (frame.width, frame.height))
        luma = self._luma(frame)
        looks = []
        for part in matte.parts:
            x, y, width, height = part.region
            guide = shrink(luma[y : y + height, x : x + width], part.alpha.shape)
            looks.append(_Look(part, guide, result.frame.seconds))
        return looks

    def _luma(self, frame: Frame) -> Array:
        """(height, width) uint8 of the frame as displayed."""
        return upright(self._converter.yuv420p(frame)[0][0], frame.rotation)

    def _finished(self, held: _Held, following: list[_Look]) -> FrameResult:
        result = held.found.result
        parts = []
        for number, look in enumerate(held.looks):
            after = following[number] if number < len(following) else None
            alpha = self._steadied((held.unit, number), look, after) if self._steady else look.part.alpha
            parts.append(look.part._replace(alpha=alpha, guide=look.guide))
        matte = Matte(tuple(parts), (result.frame.width, result.frame.height), self._feather)
        return held.found._replace(result=replace(result, matte=matte))

    def _steadied(self, key: tuple[str, int], look: _Look, after: _Look | None) -> Array:
        alpha, before = look.part.alpha, self._raw.get(key)
        if before is not None and look.goes_on(before):
            one = before.part.alpha
            if after is not None and after.goes_on(look):
                other = after.part.alpha
                alpha = np.maximum(np.minimum(one, other), np.minimum(np.maximum(one, other), alpha))
            change = _most_around(np.abs(look.guide - before.guide))
            still = ((MOVES - change) / np.float32(MOVES - STILL)).clip(0, 1)
            alpha = alpha + (self._shown[key] - alpha) * (still * np.float32(self._steady))
        self._raw[key], self._shown[key] = look, alpha
        return alpha


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
    if found.mask is not None:
        for mask in found.mask:
            union[mask] = 255
    grid = max(1, height // OBJECTS_GRID), max(1, width // OBJECTS_GRID)
    alpha: Any = shrink(union, grid)
    return Matte((MattePart((0, 0, width, height), alpha),), size)
