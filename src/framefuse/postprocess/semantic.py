"""Post-processing of semantic segmentation: class scores of the model -> class masks in pixels of the source."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from framefuse.errors import CardError, NonFiniteError
from framefuse.kernels.masks import call as masks
from framefuse.preprocess import Placement


class ClassMasks:
    """Upsamples scores to what the model saw, then takes the argmax of each pixel, as training frameworks do.

    The buffer of upsampled scores, classes x height x width float32 of the largest part, is reused between calls, so
    instances are not thread-safe.
    """

    def __init__(self) -> None:
        self._scores = np.empty(0, np.float32)

    def __call__(self, scores: NDArray[Any], placements: Sequence[Placement]) -> list[NDArray[np.uint8]]:
        """Class masks of the images, or of the part of each that its placement uses: (height, width).

        Args:
            scores: (batch, classes, h, w), float32; other types are copied. Batch rows beyond `placements` are padding.
            placements: where each image lies in the model input.

        Raises:
            CardError: h and w are not the same fraction of the input's sides.
            NonFiniteError: NaN or infinity in the scores of an image.
        """
        return [self._one(rows, placement) for rows, placement in zip(scores, placements, strict=False)]

    def _one(self, scores: NDArray[Any], placement: Placement) -> NDArray[np.uint8]:
        classes, height, width = scores.shape
        wide, high = placement.size
        if height * wide != width * high:
            raise CardError(
                f"the model returned {width}x{height} scores for an input of {wide}x{high}",
                remedy="export it with scores at the size of the input, or at 1/2, 1/4, ... of it",
            )
        if scores.dtype != np.float32:
            scores = scores.astype(np.float32)
        with np.errstate(invalid="ignore", over="ignore"):
            finite = bool(np.isfinite(scores.sum(dtype=np.float64)))
        if not finite:
            raise NonFiniteError(
                "the model returned NaN or infinity",
                remedy="run it with --precision fp32; if that does not help, the model file is damaged",
            )
        fraction = width / wide
        left, top, across, down = (side * fraction for side in placement.content)
        size = placement.shown[::-1]
        count = classes * size[0] * size[1]
        if self._scores.size < count:
            self._scores = np.empty(count, np.float32)
        out = self._scores[:count].reshape(classes, *size)
        upsampled = masks.upsample(scores, size, content=(left, top, across, down), out=out)
        found: NDArray[np.uint8] = masks.argmax(upsampled[None])[0]
        return found
