"""Mattes of both eyes of a stereo picture that support each other.

As in `masks.call`, numpy arrays go to the CPU, others to the GPU on which they lie, in order with CuPy's current
stream.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from framefuse.cuda import kernel
from framefuse.kernels.arrays import checked, new, on_gpu

RADIUS = 2
"""Samples on each side of one that are compared with it."""
NEAR, FAR = 1 / 16, 1 / 32
"""How much further to the right, and to the left, the left eye sees a point than the right eye, of the width at most.
Of VR180 a sixteenth is 11 degrees, which lenses 64 mm apart see at a third of a metre."""
DIFFERS = 0.02
"""Mean difference of the luma (0..1) of the samples that are compared from which on the other eye says nothing."""


def agreed(alphas: Sequence[Any], guides: Sequence[Any], weight: float) -> list[Any]:
    """The mattes of the left and the right eye, each the weighted mean of its own and that of the other eye.

    What is at x in the left eye is at x - d in the right one. Of all d from -FAR to NEAR times the width, that counts
    for which the samples around differ least in luma: by c on average; of several, the least one. The other eye has
    the weight (1 - c / DIFFERS), at least 0, times `weight`. The luma is rounded to 8 bits for this.

    Args:
        alphas: (rows, columns) float32 in 0..1, contiguous, of the left and of the right eye.
        guides: luma of both, of the same shape and in 0..1.
        weight: 0..1.
    """
    rows, columns = alphas[0].shape
    first, last = -int(columns * FAR), int(columns * NEAR)
    most = (2 * RADIUS + 1) ** 2 * 255 * DIFFERS
    if on_gpu(alphas[0]):
        names = "left_alpha", "right_alpha", "left_guide", "right_guide"
        given = {f"{name}_address": checked(name, array, True, (rows, columns), "float32", dense=2)
                 for name, array in zip(names, (*alphas, *guides), strict=True)}  # fmt: skip
        both = new(True, (2, rows, columns), np.float32)
        facts: dict[str, Any] = {"first": first, "last": last, "most": most, "weight": weight}
        kernel.launch("matte_eyes", **given, rows=rows, columns=columns, **facts, target_address=both)
        return [both[0], both[1]]
    left, right = (np.rint(guide * np.float32(255)).astype(np.uint8) for guide in guides)
    least = np.full((2, rows, columns), np.iinfo(np.uint16).max, np.uint16)
    shifts = np.zeros((2, rows, columns), np.int16)
    for shift in range(first, last + 1):
        seen = slice(max(shift, 0), columns + min(shift, 0)), slice(max(-shift, 0), columns - max(shift, 0))
        sums = _sums(left[:, seen[0]], right[:, seen[1]])
        for eye, there in enumerate(seen):
            better = sums < least[eye, :, there]
            np.copyto(least[eye, :, there], sums, where=better)
            np.copyto(shifts[eye, :, there], shift, where=better)
    weights = (1 - least / np.float32(most)).clip(0) * np.float32(weight)
    places = np.arange(columns) - shifts[0], np.arange(columns) + shifts[1]
    others = [np.take_along_axis(alphas[1 - eye], places[eye], 1) for eye in (0, 1)]
    return [(own + weight * other) / (1 + weight) for own, other, weight in zip(alphas, others, weights, strict=True)]


def _sums(left: NDArray[np.uint8], right: NDArray[np.uint8]) -> NDArray[np.uint16]:
    """Differences, summed over the samples around each; what is beyond the edges is as the edge."""
    differences = np.maximum(left, right) - np.minimum(left, right)
    padded = np.pad(differences, RADIUS, mode="edge")
    count, (rows, columns) = 2 * RADIUS + 1, left.shape
    down = np.zeros((rows, padded.shape[1]), np.uint16)
    for step in range(count):
        down += padded[step : step + rows]
    sums = np.zeros((rows, columns), np.uint16)
    for step in range(count):
        sums += down[:, step : step + columns]
    return sums
