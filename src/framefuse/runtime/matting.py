"""Steadies the mattes of a run from frame to frame, for each source and view."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from framefuse.config import Settings
from framefuse.frame import Frame
from framefuse.kernels.masks.call import box_blur
from framefuse.kernels.masks.guided import shrink
from framefuse.prediction import Array, Detections, Matte, MattePart
from framefuse.runtime.program import FrameResult
from framefuse.sinks.images import FrameConverter, upright
from framefuse.sources import SourceInfo

CUT = 0.12
"""Mean change of luma (0..1) from one frame to the next above which the scene has changed."""
MOVES = 0.06
"""Change of luma of a sample above which the matte there follows the model at once."""
GAP = 0.5
"""Seconds between two frames after which nothing is known about the second."""
OBJECTS_GRID = 4
"""Pixels, across and down, that the masks of objects give one sample of a matte."""


class _Past(NamedTuple):
    """What one view has shown before."""

    alpha: Array
    guide: Array
    seconds: float | None


class Matting:
    """Gives the results of a run their mattes. Those of each source come in its order; sources may alternate."""

    def __init__(self, settings: Settings, info_of: Callable[[str], SourceInfo]) -> None:
        self._steady, self._feather, self._info_of = settings.matte_steady, settings.matte_feather, info_of
        self._converter = FrameConverter()
        self._past: dict[tuple[str, int], _Past] = {}
        self.cuts = 0

    def follow(self, results: Iterable[FrameResult]) -> Iterator[FrameResult]:
        """The results with steady mattes, which know the luma that guides them."""
        for found in results:
            result, frame = found.result, found.frame
            assert frame is not None, "mattes need the frame"
            matte = result.matte or of_objects(result.detections, (frame.width, frame.height))
            luma = self.luma(frame)
            unit = self._info_of(result.frame.source_id).unit_of(result.frame.source_id)
            seconds = result.frame.seconds
            parts = tuple(self._steadied((unit, n), part, luma, seconds) for n, part in enumerate(matte.parts))
            yield found._replace(result=replace(result, matte=Matte(parts, matte.size, self._feather)))

    def leave(self, unit: str) -> None:
        """A source has ended."""
        for key in [key for key in self._past if key[0] == unit]:
            del self._past[key]

    def luma(self, frame: Frame) -> Array:
        """(height, width) uint8 of the frame as displayed."""
        return upright(self._converter.yuv420p(frame)[0][0], frame.rotation)

    def _steadied(self, key: tuple[str, int], part: MattePart, luma: Array, seconds: float | None) -> MattePart:
        x, y, width, height = part.region
        alpha, guide = part.alpha, shrink(luma[y : y + height, x : x + width], part.alpha.shape)
        past = self._past.get(key)
        if past is not None and self._goes_on(past, guide, seconds):
            change = np.abs(guide - past.guide)
            if change.mean() > CUT:
                self.cuts += 1
            else:
                still = (1 - box_blur(change, 1) / np.float32(MOVES)).clip(0, 1)
                alpha = alpha + (past.alpha - alpha) * (still * np.float32(self._steady))
        self._past[key] = _Past(alpha, guide, seconds)
        return part._replace(alpha=alpha, guide=guide)

    def _goes_on(self, past: _Past, guide: Array, seconds: float | None) -> bool:
        if past.guide.shape != guide.shape or not self._steady:
            return False
        return seconds is None or past.seconds is None or 0 < seconds - past.seconds <= GAP


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
