"""Raw outputs of networks that leave their decoding to others, as outputs of layout yolov5: cx cy w h in pixels of the
model input, objectness, a score per class, keypoints.

Only what may exceed the confidence is decoded; rows of zeros fill the images of a batch up to the fullest. Anchors of
several levels follow each other, row by row: 1 / stride of the sides of the input each, rounded up.
"""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from framefuse.errors import CardError

Floats = NDArray[np.float32]

NANODET_BINS = 8
"""Bins of a distance of NanoDet."""
HEAT_STRIDE = 4
"""Pixels of the input in a sample of a heat map."""


def grid(size: tuple[int, int], strides: Sequence[int]) -> Floats:
    """(anchors, 3) column, row and stride of each cell of all levels.

    Args:
        size: height and width of the model input.
    """
    levels = []
    for stride in strides:
        rows, columns = (-(-side // stride) for side in size)
        row, column = np.divmod(np.arange(rows * columns, dtype=np.float32), np.float32(columns))
        levels.append(np.stack((column, row, np.full_like(row, stride)), axis=1))
    return np.concatenate(levels)


def strides_of(anchors: int, size: tuple[int, int]) -> tuple[int, ...] | None:
    """The strides of a head with so many anchors, one for each cell; None: it has others."""
    known: tuple[tuple[int, ...], ...] = (8, 16, 32), (8, 16, 32, 64)
    return next((strides for strides in known if anchors == len(grid(size, strides))), None)


def strides_of_cells(anchors: int, size: tuple[int, int]) -> tuple[int, ...]:
    """The strides of a head with so many anchors, one for each cell.

    Raises:
        CardError: it has others.
    """
    if found := strides_of(anchors, size):
        return found
    why = f"the model returned {anchors} anchors for an input of {size[1]}x{size[0]}, not one for each cell"
    raise CardError(f"{why} of strides 8, 16, 32 and perhaps 64", remedy="export it with its boxes decoded")


def yolox(outputs: Sequence[Floats], size: tuple[int, int], conf: float) -> Iterator[Floats]:
    """(b, N, 5 + nc): x y in cells from the corner of the cell, logarithms of w h in strides, objectness, scores."""
    (output,) = outputs
    cells = grid(size, strides_of_cells(output.shape[1], size))
    for rows in output:
        asked = np.flatnonzero(~(rows[:, 4] <= conf))
        chosen, at = rows[asked].copy(), cells[asked]
        chosen[:, :2] = (chosen[:, :2] + at[:, :2]) * at[:, 2:]
        with np.errstate(over="ignore"):
            chosen[:, 2:4] = np.exp(chosen[:, 2:4]) * at[:, 2:]
        yield chosen


def nanodet(outputs: Sequence[Floats], size: tuple[int, int], conf: float) -> Iterator[Floats]:
    """(b, N, nc + 4 * bins): scores, then logits of the distances to the left, top, right and bottom side in strides.

    A distance is the mean of 0, 1, ... bins - 1 by the softmax of its logits. Centres are those of the cells with three
    levels (NanoDet), and their corners with four (NanoDet-Plus).
    """
    (output,) = outputs
    strides = strides_of_cells(output.shape[1], size)
    cells = grid(size, strides)
    cells[:, :2] += 0.5 * (len(strides) == 3)
    classes = output.shape[2] - 4 * NANODET_BINS
    for rows in output:
        asked = np.flatnonzero(~(rows[:, :classes].max(axis=1) <= conf))
        at, logits = cells[asked], rows[asked, classes:].reshape(-1, 4, NANODET_BINS)
        weights = np.exp(logits - logits.max(axis=2, keepdims=True))
        sides = weights @ np.arange(NANODET_BINS, dtype=np.float32) / weights.sum(axis=2)
        start, end = (at[:, :2] - sides[:, :2]) * at[:, 2:], (at[:, :2] + sides[:, 2:]) * at[:, 2:]
        objectness = np.ones((len(asked), 1), np.float32)
        yield np.hstack(((start + end) / 2, end - start, objectness, rows[asked, :classes]))


def centerface(outputs: Sequence[Floats], size: tuple[int, int], conf: float) -> Iterator[Floats]:
    """Heat map (b, 1, h, w), logarithms of height and width, offsets of row and column (b, 2, h, w) each, landmarks
    (b, 2 k, h, w): y and x of each from the box's corner, in its sides."""
    heat, sides, offsets, landmarks = outputs
    for image in range(len(heat)):
        row, column = np.nonzero(~(heat[image, 0] <= conf))
        high, wide = np.exp(sides[image, :, row, column]).T * HEAT_STRIDE
        y, x = (offsets[image, :, row, column].T + np.stack((row, column)) + 0.5) * HEAT_STRIDE
        points = landmarks[image, :, row, column].reshape(len(row), landmarks.shape[1] // 2, 2)[:, :, ::-1]
        sides_of, corners = np.stack((wide, high), axis=1), np.stack((x - wide / 2, y - high / 2), axis=1)
        flat = (points * sides_of[:, None] + corners[:, None]).reshape(len(row), landmarks.shape[1])
        rows = np.stack((x, y, wide, high, np.ones_like(x), heat[image, 0, row, column]), axis=1)
        yield np.hstack((rows, flat)).astype(np.float32)


def centernet(outputs: Sequence[Floats], size: tuple[int, int], conf: float) -> Iterator[Floats]:
    """Heat map (b, nc, h, w) of logits, or of scores if none is outside of 0..1; width and height, then offsets of
    column and row (b, 2, h, w) each, in samples. Only what is largest among its eight neighbours is an object."""
    heat, sides, offsets = outputs
    if heat.min() < 0 or heat.max() > 1:
        with np.errstate(over="ignore"):
            heat = np.float32(1) / (np.float32(1) + np.exp(-heat))
    padded = np.pad(heat, ((0, 0), (0, 0), (1, 1), (1, 1)), constant_values=-np.inf)
    around = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))
    for image in range(len(heat)):
        label, row, column = np.nonzero(~(heat[image] <= conf))
        peak = ~(heat[image, label, row, column] < around[image, label, row, column].max(axis=(1, 2)))
        label, row, column = label[peak], row[peak], column[peak]
        wide, high = sides[image, :, row, column].T * HEAT_STRIDE
        x, y = (offsets[image, :, row, column].T + np.stack((column, row))) * HEAT_STRIDE
        scores = np.zeros((len(label), heat.shape[1]), np.float32)
        scores[np.arange(len(label)), label] = heat[image, label, row, column]
        yield np.hstack((np.stack((x, y, wide, high, np.ones_like(x)), axis=1), scores)).astype(np.float32)


DECODERS: dict[str, Callable[[Sequence[Floats], tuple[int, int], float], Iterator[Floats]]] = {
    decoder.__name__: decoder for decoder in (yolox, nanodet, centerface, centernet)
}
"""By the layout that they read."""


def decoded(layout: str, outputs: Sequence[NDArray[np.generic]], size: tuple[int, int], conf: float) -> Floats:
    """(batch, k, values): the outputs of a layout of DECODERS as one of layout yolov5.

    Args:
        outputs: in the order of the layout.
        size: height and width of the model input.
        conf: what does not exceed it is left out; NaN stays.
    """
    rows = list(DECODERS[layout]([np.asarray(output, np.float32) for output in outputs], size, conf))
    padded = np.zeros((len(rows), max(1, *map(len, rows)), rows[0].shape[1]), np.float32)
    for target, found in zip(padded, rows, strict=True):
        target[: len(found)] = found
    return padded
