"""Polygons and lines in a frame: what views, zones and the merging of boxes share."""

from collections.abc import Sequence
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

Point = tuple[float, float]


def in_pixels(numbers: Sequence[float], size: tuple[int, int]) -> tuple[float, ...]:
    """x, y, x, y, ... in pixels of a frame of that size (width, height), from shares of it if all are at most 1."""
    if max(map(abs, numbers)) > 1:
        return tuple(numbers)
    return tuple(number * size[index % 2] for index, number in enumerate(numbers))


def sides(outline: Sequence[Point]) -> list[tuple[Point, Point]]:
    """The sides of a polygon: each corner and the next."""
    return list(zip(outline, (*outline[1:], *outline[:1]), strict=True))


def within(x: NDArray[Any], y: NDArray[Any], outline: Sequence[Point]) -> NDArray[np.bool_]:
    """Which points lie inside a polygon: those from which a ray to the right crosses its sides an odd number of times.
    Their coordinates are broadcast, so that a column of y and a row of x are those of an image."""
    inside = np.zeros(np.broadcast_shapes(x.shape, y.shape), np.bool_)
    for (x1, y1), (x2, y2) in sides(outline):
        if y1 != y2:
            inside ^= ((y1 > y) != (y2 > y)) & (x < (x2 - x1) * (y - y1) / (y2 - y1) + x1)
    return inside


def area(outline: Sequence[Point]) -> float:
    return abs(sum(x1 * y2 - x2 * y1 for (x1, y1), (x2, y2) in sides(outline))) / 2


def turn(a: Point, b: Point, c: Point) -> float:
    """Positive if c lies to the right of the line from a to b, as seen on the screen; negative if to the left."""
    return (b[0] - a[0]) * (c[1] - a[1]) - (b[1] - a[1]) * (c[0] - a[0])


def meet(a: Point, b: Point, c: Point, d: Point) -> bool:
    """Whether the way from a to b and that from c to d have a point in common."""
    turns = turn(a, b, c), turn(a, b, d), turn(c, d, a), turn(c, d, b)
    if turns == (0, 0, 0, 0):  # on one line
        return all(max(a[k], b[k]) >= min(c[k], d[k]) and max(c[k], d[k]) >= min(a[k], b[k]) for k in (0, 1))
    return turns[0] * turns[1] <= 0 and turns[2] * turns[3] <= 0


def crosses_itself(outline: Sequence[Point]) -> bool:
    """Whether two sides of a polygon that are not neighbours meet."""
    last = len(outline) - 1
    pairs = combinations(enumerate(sides(outline)), 2)
    return any(meet(*one, *other) for (i, one), (j, other) in pairs if 1 < j - i < last)


def clipped(outline: Sequence[Point], size: tuple[int, int]) -> list[Point]:
    """The part of a polygon that lies in a frame (Sutherland and Hodgman, 1974); nothing if it lies outside."""
    left = list(outline)
    for axis, bound, sign in ((0, 0, 1), (1, 0, 1), (0, size[0], -1), (1, size[1], -1)):
        kept: list[Point] = []
        for here, there in sides(left):
            one, other = sign * (here[axis] - bound), sign * (there[axis] - bound)
            kept += [here] if one >= 0 else []
            if one * other < 0:
                share = one / (one - other)
                kept.append((here[0] + share * (there[0] - here[0]), here[1] + share * (there[1] - here[1])))
        left = kept
    return left
