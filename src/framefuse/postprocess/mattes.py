"""Scores of pixels to how much of each is foreground."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from framefuse.errors import CardError, UsageError
from framefuse.frame import View
from framefuse.kernels.masks import call as kernels
from framefuse.postprocess import raise_non_finite, scored
from framefuse.prediction import Matte, MattePart
from framefuse.preprocess import Placement

BACKGROUND = "background", "void", "bg"
"""Names of the class that is no foreground; without one it is class 0."""
OVERSHOOT = 0.1
"""How far a matte may leave 0..1, by rounding or interpolation inside the model; logits leave it further."""


def in_views(mattes: Sequence[Matte], views: Sequence[View], size: tuple[int, int]) -> Matte:
    """The matte of a frame of that width and height from those of its views."""
    parts = [part._replace(region=view.region or part.region)
             for matte, view in zip(mattes, views, strict=True) for part in matte.parts]  # fmt: skip
    return Matte(tuple(parts), size)


class Foreground:
    """Makes the matte of each image of a batch from the scores of its pixels.

    One class is a matte, whose values are logits if they leave 0..1 by more than OVERSHOOT; several are scores, of
    which the greatest wins.

    Args:
        names: those of the classes.
        classes: numbers of those that are foreground; none: all but the background.
    """

    def __init__(self, names: Mapping[int, str], classes: Sequence[int] = ()) -> None:
        self._classes = classes
        self._names = names

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
        left, top, wide, high = scored(scores.shape, placement)
        width, height = placement.shown
        grid = max(1, min(round(high), height)), max(1, min(round(wide), width))
        alpha = self._share(scores)
        if (left, top, *grid) != (0, 0, *alpha.shape):
            alpha = kernels.upsample(alpha, grid, content=(left, top, wide, high))
        return Matte((MattePart((0, 0, width, height), alpha),), (width, height))

    def _share(self, scores: NDArray[np.float32]) -> NDArray[np.float32]:
        """(h, w) in 0..1: the probability that a pixel is foreground."""
        if len(scores) == 1:
            logits = scores.min() < -OVERSHOOT or scores.max() > 1 + OVERSHOOT
            single: NDArray[np.float32] = 1 / (1 + np.exp(-scores[0].clip(-80, 80))) if logits else scores[0].clip(0, 1)
            return single
        wanted = self._wanted(len(scores))
        powers = np.exp(scores - scores.max(0))
        share: NDArray[np.float32] = powers[wanted].sum(0) / powers.sum(0)
        return share

    def _wanted(self, count: int) -> list[int]:
        if self._classes:
            if max(self._classes) >= count:
                message = f"class {max(self._classes)} was asked for, and the model has {count} classes"
                raise UsageError(message, remedy=f"choose from 0 to {count - 1}")
            return list(self._classes)
        named = [number for number, name in self._names.items() if name.casefold() in BACKGROUND] or [0]
        if not (found := [number for number in range(count) if number not in named]):
            raise CardError(f"all {count} classes are background", remedy="name the classes in its card")
        return found
