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
        runs = [_anchors(run[0], head) for run in (expected, found)]
        either = np.maximum(*(_confidence(run, head) for run in runs)) >= CONFIDENCE
        if either.any():
            one, other = (run[either] for run in runs)
            same = np.abs(_confidence(one, head) - _confidence(other, head)) <= DIFFERENCE
            same &= one[:, _first_score(head) :].argmax(1) == other[:, _first_score(head) :].argmax(1)
            same &= _overlap(one[:, :4], other[:, :4]) >= OVERLAP
            return float(same.mean())
    norm = sum(float(np.square(values, dtype=np.float64).sum()) for values in expected)
    error = sum(float(np.square(a.astype(np.float64) - b).sum()) for a, b in zip(expected, found, strict=True))
    return float(max(0.0, 1 - (error / max(norm, 1e-30)) ** 0.5))


def _anchors(values: Array, head: Head | AnchorHead) -> Array:
    """View as (batch, anchors, fields): centre and size of the box, objectness (anchor heads only), scores."""
    return values if isinstance(head, AnchorHead) else values.transpose(0, 2, 1)


def _first_score(head: Head | AnchorHead) -> int:
    """Index of the first score among the fields of an anchor."""
    return 5 if isinstance(head, AnchorHead) else 4


def _confidence(anchors: Array, head: Head | AnchorHead) -> Array:
    best: Array = anchors[..., _first_score(head) :].max(-1)
    return best * anchors[..., 4] if isinstance(head, AnchorHead) else best


def _overlap(one: Array, other: Array) -> Array:
    """Intersection over union, row by row."""
    low = np.maximum(one[:, :2] - one[:, 2:] / 2, other[:, :2] - other[:, 2:] / 2)
    high = np.minimum(one[:, :2] + one[:, 2:] / 2, other[:, :2] + other[:, 2:] / 2)
    common = np.maximum(0, high - low).prod(1)
    found: Array = common / np.maximum(one[:, 2:].prod(1) + other[:, 2:].prod(1) - common, 1e-9)
    return found
