"""How far two runs of a network agree: the measure by which 8 bits are accepted."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from framefuse.engines.cudnn.network import AnchorHead, Head

Array = NDArray[Any]

CONFIDENCE = 0.25
"""From here on an anchor has found something."""
OVERLAP = 0.9
"""Two boxes of one anchor that overlap by this are the same."""
DIFFERENCE = 0.1
"""Of confidence, at most."""


def agreement(expected: list[Array], found: list[Array], head: Head | AnchorHead | None) -> float:
    """Part of what either of two runs finds on which they agree, 0 to 1.

    With a detection head: of the anchors with a confidence of at least `CONFIDENCE` in one of them, those that have the
    same class, boxes that overlap by `OVERLAP` and confidences no further apart than `DIFFERENCE`. Without one, or
    where nothing is found: 1 less the norm of the difference over the norm of what was expected.

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
            same &= one[:, _first(head) :].argmax(1) == other[:, _first(head) :].argmax(1)
            same &= _overlap(one[:, :4], other[:, :4]) >= OVERLAP
            return float(same.mean())
    norm = sum(float(np.square(values, dtype=np.float64).sum()) for values in expected)
    error = sum(float(np.square(a.astype(np.float64) - b).sum()) for a, b in zip(expected, found, strict=True))
    return float(max(0.0, 1 - (error / max(norm, 1e-30)) ** 0.5))


def _anchors(values: Array, head: Head | AnchorHead) -> Array:
    """(batch, anchors, numbers of an anchor), a view: centre and size of its box, then objectness and scores."""
    return values if isinstance(head, AnchorHead) else values.transpose(0, 2, 1)


def _first(head: Head | AnchorHead) -> int:
    """Of the scores, among the numbers of an anchor."""
    return 5 if isinstance(head, AnchorHead) else 4


def _confidence(anchors: Array, head: Head | AnchorHead) -> Array:
    best: Array = anchors[..., _first(head) :].max(-1)
    return best * anchors[..., 4] if isinstance(head, AnchorHead) else best


def _overlap(one: Array, other: Array) -> Array:
    """Intersection over union, row by row."""
    low = np.maximum(one[:, :2] - one[:, 2:] / 2, other[:, :2] - other[:, 2:] / 2)
    high = np.minimum(one[:, :2] + one[:, 2:] / 2, other[:, :2] + other[:, 2:] / 2)
    common = np.maximum(0, high - low).prod(1)
    found: Array = common / np.maximum(one[:, 2:].prod(1) + other[:, 2:].prod(1) - common, 1e-9)
    return found
