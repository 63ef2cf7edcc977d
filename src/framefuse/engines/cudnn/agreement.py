"""Agreement between two runs of a network, which decides whether 8-bit layers are accurate enough."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from framefuse.engines.cudnn.network import AnchorHead, Head

Array = NDArray[Any]

CONFIDENCE = 0.25
"""Lowest confidence at which an anchor counts as a detection."""
OVERLAP = 0.9
"""Lowest IoU at which two boxes of one anchor count as equal."""
DIFFERENCE = 0.1
"""Largest difference between two confidences that count as equal."""


def agreement(expected: list[Array], found: list[Array], head: Head | AnchorHead | None) -> float:
    """Agreement of two runs, 0 to 1; 0 where `found` has NaN or infinity.

    With a detection head: the share of anchors with a confidence of at least `CONFIDENCE` in either run that have the
    same class, an IoU of at least `OVERLAP` and confidences that differ by at most `DIFFERENCE`. Without a head, or
    without such anchors: 1 - norm(expected - found) / norm(expected).

    Args:
        expected, found: results of `Execution.finish`.
    """
    if not all(np.isfinite(values).all() for values in found):
        return 0.0
    if head is not None:
        (boxes, scores), (other_boxes, other_scores) = (_boxes_and_scores(run[0], head) for run in (expected, found))
        confidence, other_confidence = scores.max(-1), other_scores.max(-1)
        either = np.maximum(confidence, other_confidence) >= CONFIDENCE
        if either.any():
            same = np.abs(confidence - other_confidence) <= DIFFERENCE
            same &= scores.argmax(-1) == other_scores.argmax(-1)
            return float((same[either] & (_overlap(boxes[either], other_boxes[either]) >= OVERLAP)).mean())
    norm = sum(float(np.square(values, dtype=np.float64).sum()) for values in expected)
    error = sum(float(np.square(a.astype(np.float64) - b).sum()) for a, b in zip(expected, found, strict=True))
    return float(max(0.0, 1 - (error / max(norm, 1e-30)) ** 0.5))


def _boxes_and_scores(values: Array, head: Head | AnchorHead) -> tuple[Array, Array]:
    """(batch, anchors, 4) centre and size of the boxes, and (batch, anchors, classes) confidences."""
    if isinstance(head, AnchorHead):
        return values[..., :4], values[..., 5:] * values[..., 4:5]
    return values[:, :4].transpose(0, 2, 1), values[:, 4:].transpose(0, 2, 1)


def _overlap(one: Array, other: Array) -> Array:
    """Intersection over union, row by row."""
    low = np.maximum(one[:, :2] - one[:, 2:] / 2, other[:, :2] - other[:, 2:] / 2)
    high = np.minimum(one[:, :2] + one[:, 2:] / 2, other[:, :2] + other[:, 2:] / 2)
    common = np.maximum(0, high - low).prod(1)
    found: Array = common / np.maximum(one[:, 2:].prod(1) + other[:, 2:].prod(1) - common, 1e-9)
    return found
