"""Scores of pixels to how much of each is foreground."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from framefuse.errors import CardError, UsageError
from framefuse.frame import View
from framefuse.kernels.masks.call import Region, upsample
from framefuse.kernels.masks.mattes import share
from framefuse.postprocess import raise_non_finite, scored
from framefuse.prediction import Matte, MattePart
from framefuse.preprocess import Placement

BACKGROUND = "background", "void", "bg"
"""Names of the class that is no foreground; without one it is class 0."""


def in_views(mattes: Sequence[Matte], views: Sequence[View], size: tuple[int, int]) -> Matte:
    """The matte of a frame of that width and height from those of its views."""
    parts = [part._replace(region=view.region or part.region)
             for matte, view in zip(mattes, views, strict=True) for part in matte.parts]  # fmt: skip
    return Matte(tuple(parts), size)


def cut_out(shape: tuple[int, ...], placement: Placement) -> tuple[Region, tuple[int, int]] | None:
    """The part of (classes, h, w) scores that shows an image, and the rows and columns of its matte; None: all of it.

    Raises:
        CardError: as `scored`.
    """
    left, top, wide, high = scored(shape, placement)
    width, height = placement.shown
    grid = max(1, min(round(high), height)), max(1, min(round(wide), width))
    return None if (left, top, *grid) == (0, 0, *shape[1:]) else ((left, top, wide, high), grid)


def matte_of(alpha: Any, placement: Placement, guide: Any = None) -> Matte:
    """The matte of an image, on its own."""
    return Matte((MattePart((0, 0, *placement.shown), alpha, guide),), placement.shown)


@dataclass(frozen=True, eq=False)
class Foreground:
    """Makes the matte of each image of a batch from the scores of its pixels.

    One class is a matte, whose values are logits if some leave 0..1; several are scores, of which the greatest wins.
    """

    names: Mapping[int, str]
    """Those of the classes."""
    classes: Sequence[int] = ()
    """Numbers of those that are foreground; none: all but the background."""

    def __call__(self, scores: NDArray[Any], placements: Sequence[Placement]) -> list[Matte]:
        """One matte for each image, still at the resolution of the scores.

        Args:
            scores: (batch, classes, h, w). Batch rows beyond `placements` are padding.
            placements: where each image lies in the model input.

        Raises:
            CardError: h and w are not the same fraction of the input's sides, or every class is background.
            UsageError: there is no class of such a number.
            NonFiniteError: NaN or infinity in the scores of an image.
        """
        scores = np.asarray(scores[: len(placements)], np.float32)
        if not np.isfinite(scores).all():
            raise_non_finite(np.count_nonzero(~np.isfinite(scores), axis=(1, 2, 3)), "of its scores")
        return [self._one(rows, placement) for rows, placement in zip(scores, placements, strict=True)]

    def _one(self, scores: NDArray[np.float32], placement: Placement) -> Matte:
        alpha = share(scores, self.wanted(len(scores)))
        if (cut := cut_out(scores.shape, placement)) is not None:
            alpha = upsample(alpha, cut[1], content=cut[0])
        return matte_of(alpha, placement)

    def wanted(self, count: int) -> list[int]:
        """The numbers of the classes that are foreground, of so many; errors as of a call."""
        if count == 1:
            return [0]
        if self.classes:
            if max(self.classes) >= count:
                message = f"class {max(self.classes)} was asked for, and the model has {count} classes"
                raise UsageError(message, remedy=f"choose from 0 to {count - 1}")
            return sorted(set(self.classes))
        named = [number for number, name in self.names.items() if name.casefold() in BACKGROUND] or [0]
        if not (found := [number for number in range(count) if number not in named]):
            raise CardError(f"all {count} classes are background", remedy="name the classes in its card")
        return found
