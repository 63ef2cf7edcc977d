"""Outlines of masks as polygons."""

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from framefuse.kernels.masks.instances import Runs

TOLERANCE = 0.75
"""Pixels that an outline may be off the edge of its mask."""
STEPS = ((0, 1), (1, 0), (0, -1), (-1, 0))
"""Down, right, up, left, in x and y."""


def outline(mask: Runs) -> NDArray[np.float64]:
    """(m, 2) x and y in pixels: the outer edge of the largest connected part of one mask, without its holes.

    Args:
        mask: one mask; it has pixels.
    """
    height = mask.size[0]
    ends = np.cumsum(mask.lengths[mask.starts[0] : mask.ends[0]])
    spans = _spans(ends[0:-1:2].tolist(), ends[1::2].tolist(), height)
    part = _largest(spans)
    left, top = part[0][0], min(span[1] for span in part)
    right, bottom = part[-1][0] + 1, max(span[2] for span in part)
    inside = np.zeros((bottom - top + 2, right - left + 2), np.bool_)  # with a border
    for column, begin, end in part:
        inside[begin - top + 1 : end - top + 1, column - left + 1] = True
    corners = _follow(inside.tolist(), (1, part[0][1] - top + 1))
    found: NDArray[np.float64] = _simple(np.array(corners, np.float64)) + np.array((left - 1, top - 1))
    return found


Span = tuple[int, int, int]
"""Column, first row, and the row after the last."""


def _spans(begins: list[int], ends: list[int], height: int) -> list[Span]:
    """Runs, which may go on in the next column, as spans of single columns."""
    found = []
    for begin, end in zip(begins, ends, strict=False):
        while begin < end:
            column, row = divmod(begin, height)
            stop = min(end, (column + 1) * height)
            found.append((column, row, row + stop - begin))
            begin = stop
    return found


def _largest(spans: list[Span]) -> list[Span]:
    """The spans of the connected part with the most pixels, from left to right, each column from the top."""
    parent = list(range(len(spans)))

    def root(number: int) -> int:
        while parent[number] != number:
            parent[number] = number = parent[parent[number]]
        return number

    first = 0  # of the column to the left
    for number, (column, begin, end) in enumerate(spans):
        while spans[first][0] < column - 1:
            first += 1
        for other in range(first, number):
            if spans[other][0] == column:
                break
            if spans[other][1] < end and begin < spans[other][2]:
                parent[root(number)] = root(other)
    areas = [0] * len(spans)
    for number, (_, begin, end) in enumerate(spans):
        areas[root(number)] += end - begin
    best = areas.index(max(areas))
    return [span for number, span in enumerate(spans) if root(number) == best]


def _follow(inside: list[list[bool]], start: tuple[int, int]) -> list[tuple[int, int]]:
    """The corners of the edge, with the pixels on its left hand, from the upper left corner of a pixel with none to its
    left; where two pixels touch at a corner only, it stays with its own."""
    (x, y), heading = start, 0
    corners = [start]
    while True:
        x, y = x + STEPS[heading][0], y + STEPS[heading][1]
        if (x, y) == start:
            return corners
        # The pixels ahead: on the left hand and on the right hand of the heading.
        ahead = [(x, y), (x, y - 1), (x - 1, y - 1), (x - 1, y)]
        left, right = ahead[heading], ahead[(heading + 3) % 4]
        if not inside[left[1]][left[0]]:
            turn = 1
        elif inside[right[1]][right[0]]:
            turn = -1
        else:
            continue
        corners.append((x, y))
        heading = (heading + turn) % 4


def _simple(points: NDArray[np.float64]) -> NDArray[np.float64]:
    """A closed polygon without the points that it can spare: Douglas and Peucker, from two points far apart on."""
    far = int(np.hypot(*(points - points[0]).T).argmax())
    keep = np.zeros(len(points) + 1, np.bool_)
    closed = np.vstack((points, points[:1]))
    keep[[0, far, -1]] = True
    spans = [(0, far), (far, len(points))]
    while spans:
        begin, end = spans.pop()
        if end - begin < 2:
            continue
        way, away = closed[end] - closed[begin], closed[begin + 1 : end] - closed[begin]
        length = np.hypot(*way)
        distances = np.abs(away @ (-way[1], way[0])) / length if length else np.hypot(*away.T)
        worst = int(distances.argmax())
        if distances[worst] > TOLERANCE:
            middle = begin + 1 + worst
            keep[middle] = True
            spans += pairwise((begin, middle, end))
    return points[keep[:-1]] if keep[:-1].sum() > 2 else points
