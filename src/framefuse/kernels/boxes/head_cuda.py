"""The raw logits of a YOLOv8 head on CUDA, read where the network wrote them: layout "yolov8_head".

Its outputs are views of wider images in NHWC, float16: for each level (batch, rows, columns, 4 * bins) and (batch,
rows, columns, classes). The pixels of an image must lie at one distance from each other.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from framefuse.cuda import device, kernel
from framefuse.cuda.launch_plan import keep_cached
from framefuse.errors import UsageError
from framefuse.kernels.boxes.levels import FIELDS, FIRST, SCORES, SIDES

LAYOUT = "yolov8_head"
SYMBOL = "filter_head_f16"
BYTES = 2
"""Of a float16."""


class Place(NamedTuple):
    """Where the values of one output lie."""

    address: int
    image: int
    """Elements from image to image."""
    pitch: int
    """Elements from anchor to anchor."""


class Head(NamedTuple):
    """Where the logits lie."""

    sides: tuple[Place, ...]
    scores: tuple[Place, ...]
    levels: tuple[tuple[int, int], ...]
    batch: int
    bins: int
    classes: int

    @property
    def anchors(self) -> int:
        return sum(rows * columns for rows, columns in self.levels)

    @property
    def table(self) -> NDArray[np.int64]:
        """(levels, FIELDS), as the kernels read it."""
        table, first = np.zeros((len(self.levels), FIELDS), np.int64), 0
        for row, sides, scores, (rows, columns) in zip(table, self.sides, self.scores, self.levels, strict=True):
            row[FIRST], row[SIDES : SIDES + 3], row[SCORES : SCORES + 3] = first, sides, scores
            first += rows * columns
        return table

    @classmethod
    def of(cls, outputs: Sequence[Any]) -> Head:
        """
        Raises:
            UsageError: shapes, dtype or places are not those of the layout.
        """
        arrays = [device.as_cupy(output) for output in outputs]
        shapes = [tuple(array.shape) for array in arrays]
        check_shapes(shapes)
        if any(array.dtype != np.float16 for array in arrays):
            raise UsageError(
                f"the {LAYOUT} outputs are {', '.join(str(array.dtype) for array in arrays)}",
                remedy="on a GPU, pass float16",
            )
        places = [_place(array) for array in arrays]
        levels = tuple((rows, columns) for _, rows, columns, _ in shapes[::2])
        return cls(tuple(places[::2]), tuple(places[1::2]), levels, shapes[0][0], shapes[0][3] // 4, shapes[1][3])


def check_shapes(shapes: Sequence[tuple[int, ...]], images: int = 0) -> None:
    """
    Raises:
        UsageError: they are not those of the outputs of a head for so many images.
    """
    pairs = list(zip(shapes[::2], shapes[1::2], strict=False))
    fits = all(len(a) == len(b) == 4 and a[:3] == b[:3] and a[0] >= images for a, b in pairs)
    alike = len({(a[0], a[3], b[3]) for a, b in pairs if len(a) == len(b) == 4}) == 1
    if len(shapes) % 2 or not (fits and alike) or shapes[0][3] % 4 or 0 in (*shapes[0][1:], *shapes[1][1:]):
        raise UsageError(
            f"the {LAYOUT} outputs have shapes {list(shapes)} for {images} images",
            remedy="for each level they are (batch, rows, columns, 4 * bins) and (batch, rows, columns, classes)",
        )


def _place(array: Any) -> Place:
    _, rows, columns, channels = array.shape
    image, row, pitch, step = (stride // BYTES for stride in array.strides)
    if columns == 1:
        pitch = row
    if (rows > 1 and row != columns * pitch) or (channels > 1 and step != 1):
        raise UsageError(
            f"a {LAYOUT} output of shape {array.shape} has strides {array.strides} bytes",
            remedy="pass views of whole images in NHWC",
        )
    return Place(device.address(array), image, pitch)


def launch(
    head: Head, levels: Any, conf: float, wanted: Any, candidates: Mapping[str, Any], stream: int, batch: int
) -> None:
    """Start the filter.

    Args:
        levels: `head.table` on the GPU.
        candidates: the arguments that filters of all layouts share.
    """
    kernel.launch(
        SYMBOL,
        stream=stream,
        table=levels,
        levels=len(head.levels),
        cells=keep_cached(_cells(device.current_gpu(), head.levels), stream),
        anchors=head.anchors,
        bins=head.bins,
        classes=head.classes,
        confidence=conf,
        logit=logit_below(conf),
        wanted=wanted,
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
    """(4, anchors): centre of each cell in cells, x and y; width and height of a cell, of the image's as 1."""
    parts = []
    for rows, columns in levels:
        y, x = np.divmod(np.arange(rows * columns), columns)
        full = np.ones(rows * columns)
        parts.append(np.stack([x + 0.5, y + 0.5, full / columns, full / rows]))
    return np.ascontiguousarray(np.concatenate(parts, 1), np.float32)


@lru_cache(maxsize=64)
def _cells(gpu: int, levels: tuple[tuple[int, int], ...]) -> Any:
    return device.uploaded(cells(levels))
