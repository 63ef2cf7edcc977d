"""The raw logits of a YOLOv8 head on CUDA, read where the network wrote them: layout "yolov8_head".

Its outputs are views of wider pictures in NHWC: for each level (batch, rows, columns, 4 * bins) and (batch, rows,
columns, classes). All anchors, level after level, must lie at one distance, so that one launch reads them all; so they
do where a network writes its levels into one list of anchors.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from framefuse.errors import UsageError
from framefuse.kernels import cuda

LAYOUT = "yolov8_head"
SYMBOL = "filter_head_f16"
BYTES = 2
"""Of a float16."""


class Head(NamedTuple):
    """Where the logits lie; pitches in elements."""

    sides: int
    sides_picture: int
    sides_pitch: int
    scores: int
    scores_picture: int
    scores_pitch: int
    levels: tuple[tuple[int, int], ...]
    batch: int
    bins: int
    classes: int

    @property
    def anchors(self) -> int:
        return sum(rows * columns for rows, columns in self.levels)

    @classmethod
    def of(cls, outputs: Sequence[Any]) -> Head:
        """
        Raises:
            UsageError: shapes, dtype or places are not those of the layout.
        """
        arrays = [cuda.as_cupy(output) for output in outputs]
        shapes = [tuple(array.shape) for array in arrays]
        pairs = list(zip(shapes[::2], shapes[1::2], strict=False))
        fits = all(len(a) == len(b) == 4 and a[:3] == b[:3] for a, b in pairs) and len({a[0] for a, _ in pairs}) == 1
        alike = len({(a[3], b[3]) for a, b in pairs if len(a) == len(b) == 4}) == 1
        if len(shapes) % 2 or not fits or not alike or shapes[0][3] % 4 or 0 in shapes[0] or 0 in shapes[1]:
            raise UsageError(
                f"the {LAYOUT} outputs have shapes {shapes}",
                remedy="for each level they are (batch, rows, columns, 4 * bins) and (batch, rows, columns, classes)",
            )
        if any(array.dtype != np.float16 for array in arrays):
            raise UsageError(
                f"the {LAYOUT} outputs are {', '.join(str(array.dtype) for array in arrays)}",
                remedy="on a GPU, pass float16",
            )
        sides, scores = _place(arrays[::2]), _place(arrays[1::2])
        levels = tuple((rows, columns) for (_, rows, columns, _), _ in pairs)
        return cls(*sides, *scores, levels, shapes[0][0], shapes[0][3] // 4, shapes[1][3])


def _place(levels: Sequence[Any]) -> tuple[int, int, int]:
    """Address, elements from picture to picture, elements from anchor to anchor."""
    start, address = cuda.address(levels[0]), cuda.address(levels[0])
    picture, _, pitch, _ = (stride // BYTES for stride in levels[0].strides)
    for level in levels:
        batch, rows, columns, channels = level.shape
        strides = tuple(stride // BYTES for stride in level.strides)
        dense = (
            (batch == 1 or strides[0] == picture)
            and (rows == 1 or strides[1] == columns * pitch)
            and (columns == 1 or strides[2] == pitch)
            and (channels == 1 or strides[3] == 1)
        )
        if not dense or cuda.address(level) != address:
            raise UsageError(
                f"the anchors of a {LAYOUT} output of shape {level.shape} do not follow those of the level before",
                remedy="write all levels into one array (batch, anchors, channels) and pass views of it",
            )
        address += rows * columns * pitch * BYTES
    return start, picture, pitch


def launch(head: Head, conf: float, wanted: Any, candidates: Mapping[str, Any], stream: int, batch: int) -> None:
    """Start the filter. `candidates` are the arguments that filters of all layouts share."""
    cuda.launch(
        SYMBOL,
        stream=stream,
        sides_=head.sides,
        sides_picture=head.sides_picture,
        sides_pitch=head.sides_pitch,
        scores_=head.scores,
        scores_picture=head.scores_picture,
        scores_pitch=head.scores_pitch,
        cells_=_cells(int(cuda.cupy().cuda.runtime.getDevice()), head.levels),
        anchors=head.anchors,
        bins=head.bins,
        classes=head.classes,
        confidence=conf,
        logit=logit_below(conf),
        wanted_=wanted,
        **{**candidates, "batch": batch},
    )


def logit_below(conf: float) -> float:
    """A logit that every one reaches whose sigmoid exceeds `conf` in float32; those near it are computed."""
    probability = float(np.float32(conf))
    largest = float(np.finfo(np.float32).max)
    if probability <= 0:
        return -largest
    if probability >= 1:
        return largest
    logit = math.log(probability / (1 - probability))
    return logit - 1e-3 * (1 + abs(logit))


def cells(levels: Sequence[tuple[int, int]]) -> NDArray[np.float32]:
    """(4, anchors): centre of each cell in cells, x and y; width and height of a cell, of the picture's as 1."""
    parts = []
    for rows, columns in levels:
        y, x = np.divmod(np.arange(rows * columns), columns)
        full = np.ones(rows * columns)
        parts.append(np.stack([x + 0.5, y + 0.5, full / columns, full / rows]))
    return np.ascontiguousarray(np.concatenate(parts, 1), np.float32)


@cache  # a captured graph may hold the address
def _cells(device: int, levels: tuple[tuple[int, int], ...]) -> Any:
    return cuda.cupy().asarray(cells(levels))
