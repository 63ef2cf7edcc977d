"""Mosaic: the class masks of several views of one frame become one mask of the frame."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from framefuse.common.polygons import within
from framefuse.frame import Region, View
from framefuse.prediction import Masks

NOTHING = 0
"""Class of the pixels that no view shows: the background, if the model has one."""
FAR = 2**20
"""Depth, in pixels, where no edge counts."""


def join(found: Sequence[Masks], views: Sequence[View], size: tuple[int, int]) -> NDArray[np.uint8]:
    """The class of each pixel of a frame, (height, width).

    A pixel takes the class of the view in which it lies deepest: farthest from the edges that are not the frame's,
    where a model sees least of what is around. A view that lies inside another one wins over it, since it shows more
    detail; of equals the first wins. What is in no view, or outside its polygon, is NOTHING.

    A view of the whole frame alone changes nothing.

    Args:
        found: masks of the size of each view's region.
        size: width and height of the frame.
    """
    if len(found) == 1 and found[0].class_id.shape == size[::-1] and not views[0].outline:
        whole: NDArray[np.uint8] = found[0].class_id
        return whole
    joined = np.full(size[::-1], NOTHING, np.uint8)
    for part, ((x, y, width, height), owned) in zip(found, _owned(tuple(views), size), strict=True):
        np.copyto(joined[y : y + height, x : x + width], part.class_id, where=owned)
    return joined


@lru_cache(maxsize=4)
def _owned(views: tuple[View, ...], size: tuple[int, int]) -> list[tuple[Region, NDArray[np.bool_]]]:
    """Region of each view, and which of its pixels it decides."""
    regions = [view.region or (0, 0, *size) for view in views]
    inner = [sum(_holds(other, region) for other in regions) for region in regions]
    best, owner = np.zeros(size[::-1], np.int64), np.full(size[::-1], -1, np.int16)
    for number, (view, region, level) in enumerate(zip(views, regions, inner, strict=True)):
        x, y, width, height = region
        across, down = _depths(x, width, size[0]), _depths(y, height, size[1])
        depth = np.minimum(across, down[:, None]) + level * FAR
        if view.outline:
            centres = np.arange(x, x + width) + 0.5, np.arange(y, y + height)[:, None] + 0.5
            depth[~within(*centres, view.outline)] = 0
        here = slice(y, y + height), slice(x, x + width)
        deeper = depth > best[here]
        best[here][deeper], owner[here][deeper] = depth[deeper], number
    return [
        ((x, y, width, height), owner[y : y + height, x : x + width] == number)
        for number, (x, y, width, height) in enumerate(regions)
    ]


def _holds(outer: Region, inner: Region) -> bool:
    """Whether a region lies inside another, larger one."""
    ends = (outer[axis] + outer[axis + 2] >= inner[axis] + inner[axis + 2] for axis in (0, 1))
    return outer != inner and outer[0] <= inner[0] and outer[1] <= inner[1] and all(ends)


def _depths(start: int, length: int, frame: int) -> NDArray[Any]:
    """Distance of each pixel of a region from its edges along one axis, 1 at an edge; the frame's own do not count."""
    steps, far = np.arange(1, length + 1), np.full(length, FAR)
    before = steps if start > 0 else far
    after = steps[::-1] if start + length < frame else far
    return np.minimum(before, after)
