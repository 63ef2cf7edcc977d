"""Semantic segmentation: scores of each class for each pixel of the model input to the class of each source pixel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from framefuse.errors import CardError, NonFiniteError
from framefuse.kernels.masks import call as masks
from framefuse.preprocess import Placement


class ClassMasks:
    """Stretches the scores over the image, then takes the best class of each pixel, as training frameworks do.

    The stretched scores, (classes, height, width) float32, are kept from call to call: one thread at a time.
    """

    def __init__(self) -> None:
        self._scores = np.empty((0, 0, 0), np.float32)

    def __call__(self, scores: NDArray[Any], placements: Sequence[Placement]) -> list[NDArray[np.uint8]]:
        """Class masks (height, width) of the shown images.

        Args:
            scores: (batch, classes, h, w), float32; other types are copied. Rows beyond `placements` are padding.
            placements: where each image lies in the model input.

        Raises:
            CardError: h and w are not the same part of the input's sides.
            NonFiniteError: NaN or infinity in the scores of an image.
        """
        return [self._one(rows, placement) for rows, placement in zip(scores, placements, strict=False)]

    def _one(self, scores: NDArray[Any], placement: Placement) -> NDArray[np.uint8]:
        classes, height, width = scores.shape
        wide, high = placement.size
        if height * wide != width * high:
            raise CardError(
                f"the model put out {width}x{height} scores for an input of {wide}x{high}",
                remedy="export it with scores at the size of the input, or at 1/2, 1/4, ... of it",
            )
        if scores.dtype != np.float32:
            scores = scores.astype(np.float32)
        with np.errstate(invalid="ignore", over="ignore"):
            finite = bool(np.isfinite(scores.sum(dtype=np.float64)))
        if not finite:
            raise NonFiniteError(
                "the model put out NaN or infinity",
                remedy="run it with --precision fp32; if they are still there, the model file is damaged",
            )
        part = width / wide
        left, top, across, down = (side * part for side in placement.content)
        source_width, source_height = placement.source
        shape = classes, source_height, source_width
        if self._scores.shape != shape:
            self._scores = np.empty(shape, np.float32)
        stretched = masks.upsample(
            scores, (source_height, source_width), content=(left, top, across, down), out=self._scores
        )
        found: NDArray[np.uint8] = masks.argmax(stretched[None])[0]
        return found
