"""The outputs of a model on the GPU, by layout: which kernel reads them, and where they lie.

Layout "yolov8_head" are the raw logits of a YOLOv8 head where the network wrote them, views of wider images in NHWC,
float16: for each level (batch, rows, columns, 4 * bins) and (batch, rows, columns, classes). The pixels of an image
must lie at one distance from each other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from framefuse.cuda import device
from framefuse.errors import UsageError
from framefuse.kernels.arrays import device_table, place

LAYOUT = "yolov8_head"

FIELDS, FIRST, SIDES, SCORES = 8, 0, 1, 4
"""The table of the levels of a head, which CUDA kernels read as `Level` of `levels.cuh`, has a row of FIELDS int64 for
each: at FIRST its first anchor; from SIDES and from SCORES on a `Place` of the logits of distances and of classes."""

SAMPLES = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}


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
        """Raise UsageError unless shapes, dtype and places are those of the layout."""
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
    """Raise UsageError unless they are those of the outputs of a head for so many images."""
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
    image, row, pitch, step = (stride // array.itemsize for stride in array.strides)
    if columns == 1:
        pitch = row
    if (rows > 1 and row != columns * pitch) or (channels > 1 and step != 1):
        raise UsageError(
            f"a {LAYOUT} output of shape {array.shape} has strides {array.strides} bytes",
            remedy="pass views of whole images in NHWC",
        )
    return Place(device.address(array), image, pitch)


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


def cells(levels: Sequence[tuple[int, int]], height: int, width: int) -> NDArray[np.float64]:
    """(4, anchors): centre of each cell in cells (x, y), and the cell's size (x, y), of an image of that size."""
    parts = []
    for rows, columns in levels:
        y, x = np.mgrid[0:rows, 0:columns].reshape(2, -1)
        full = np.ones(rows * columns)
        parts.append(np.stack([x + 0.5, y + 0.5, full * (width / columns), full * (height / rows)]))
    return np.concatenate(parts, 1)


def _cells(levels: tuple[tuple[int, int], ...]) -> tuple[NDArray[np.float32]]:
    return (np.ascontiguousarray(cells(levels, 1, 1), np.float32),)


class View(NamedTuple):
    """Where the values of an array on the GPU lie; pitches in elements."""

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    sample: str

    @classmethod
    def of(cls, array: Any) -> View:
        """Raise UsageError unless it is on a GPU, of a dtype of SAMPLES, and its last axis is contiguous."""
        address, shape, strides, dtype = place(array)
        sample = SAMPLES.get(dtype)
        if sample is None or (0 not in shape and shape[-1] > 1 and strides[-1] != 1):
            raise UsageError(
                f"an output is {dtype}, shape {shape}, strides {strides}",
                remedy="pass float32, float16 or bfloat16 whose last axis is contiguous",
            )
        return cls(address, shape, strides, sample)

    @property
    def itemsize(self) -> int:
        return 4 if self.sample == "f32" else 2

    def named(self, name: str = "", skip: int = 0) -> dict[str, int]:
        """Its address, `skip` elements on, and its first two strides, as kernels take them; "": as `values`."""
        prefix = f"{name}_" if name else ""
        strides = {f"{prefix}image_pitch": self.strides[0], f"{prefix}pitch": self.strides[1]}
        return {name or "values": self.address + skip * self.itemsize, **strides}


class Heads(NamedTuple):
    """How the outputs of a model are read."""

    symbol: str
    arguments: dict[str, Any]
    anchors: int
    capacity: int
    """Candidates of an image at most."""
    classes: int
    """0: not known from the shape."""
    sample: str
    """Type of the values, as in SAMPLES."""
    columns: int
    """Values of an anchor before those after its classes."""
    boxes: dict[str, int]
    """Where the values of an anchor lie, as kernels take it."""
    extras: dict[str, int]
    """Where those after its classes lie."""


NOTHING: tuple[str, int, dict[str, int], dict[str, int]] = ("", 0, {}, {})
"""The last four of layouts whose anchors say nothing after their classes."""


def read(outputs: Sequence[Any], layout: str, activation: str | None, batch: int, extra: int = 0) -> Heads:
    """Raise UsageError unless they fit the layout, each other, and the batch.

    Args:
        extra: values of an anchor after its classes.
    """
    if layout == "detr" and len(outputs) == 3:
        return _listed(outputs, batch)
    views = [View.of(output) for output in outputs]
    expected = (1, 2) if layout == "detr" else (1,)
    shapes = [view.shape for view in views]
    least = {"yolov8": 5, "yolov5": 6, "end2end": 6, "detr": 1 if len(views) == 2 else 5}.get(layout)
    if least is None:
        raise UsageError(f"{layout} outputs are not read on a GPU", remedy="copy them to the host")
    values = shapes[-1]
    columns = (values[1 if layout == "yolov8" else -1] if len(values) == 3 else 0) - extra
    if len(views) not in expected or columns < least or any(shape[0] < batch for shape in shapes):
        raise UsageError(f"the {layout} outputs have shapes {shapes} for {batch} images")
    last = views[-1]
    anchors, arguments = values[2] if layout == "yolov8" else values[1], last.named()
    pitch, step = (1, last.strides[1]) if layout == "yolov8" else (last.strides[1], 1)
    boxes = arguments | {"pitch": pitch, "step": step}
    extras = boxes | {"values": last.address + columns * step * last.itemsize}
    more = last.sample, columns, boxes, extras
    if layout == "end2end":  # x1, y1, x2, y2, score, class
        arguments |= last.named("scores", skip=4) | last.named("class_ids", skip=5) | {"label_words": 0}
        return Heads(f"filter_listed_{last.sample}", arguments, anchors, anchors, 0, *more)
    if layout != "detr":
        count = columns - least + 1
        return Heads(f"filter_{layout}_{last.sample}", arguments, anchors, anchors, count, *more)
    sides, count = views[0], columns
    if len(views) == 1:  # the boxes are the first four columns
        count, arguments = count - 4, last.named(skip=4)
    elif shapes[0][1:] != (anchors, 4) or sides.sample != last.sample:
        raise UsageError(f"detr boxes are {sides.sample} {shapes[0]}, logits {last.sample} {values}")
    arguments |= sides.named("sides")
    if (activation or ("sigmoid" if len(views) == 2 else "none")) == "sigmoid":
        return Heads(f"filter_detr_{last.sample}", arguments, anchors, anchors * count, count, *NOTHING)
    arguments["softmax"] = int(activation == "softmax")
    return Heads(f"filter_queries_{last.sample}", arguments, anchors, anchors, count, *NOTHING)


def _listed(outputs: Sequence[Any], batch: int) -> Heads:
    """Labels (batch, rows), boxes (batch, rows, 4) and scores (batch, rows)."""
    labels, boxes, scores = outputs
    view, points = View.of(boxes), View.of(scores)
    shapes = [tuple(output.shape) for output in outputs]
    rows = view.shape[1] if len(view.shape) == 3 else 0
    fits = shapes[0] == shapes[2] == view.shape[:2] and len(view.shape) == 3 and view.shape[2] == 4
    if not fits or view.shape[0] < batch or view.sample != points.sample:
        raise UsageError(
            f"the detr outputs have shapes {shapes} for {batch} images",
            remedy="pass labels (batch, rows), boxes (batch, rows, 4), and scores (batch, rows) of the same dtype",
        )
    if "int" in str(labels.dtype):
        address, words = integers("labels", labels)
        pitch = int(device.as_cupy(labels).strides[0] // device.as_cupy(labels).itemsize)
        names = {"class_ids": address, "class_ids_image_pitch": pitch, "class_ids_pitch": 1, "label_words": words}
    else:
        numbers = View.of(labels)
        if numbers.sample != view.sample:
            raise UsageError(f"labels are {labels.dtype}, boxes {boxes.dtype}", remedy="pass integers, or one dtype")
        names = numbers.named("class_ids") | {"label_words": 0}
    arguments = view.named() | points.named("scores") | names
    return Heads(f"filter_listed_{view.sample}", arguments, rows, rows, 0, *NOTHING)


def read_head(head: Head, levels: Any, conf: float) -> Heads:
    """`levels`: `head.table` on the GPU."""
    (table,) = device_table(_cells, head.levels)
    arguments = {"table": levels, "levels": len(head.levels), "cells": table, "bins": head.bins}
    arguments["logit"] = logit_below(conf)
    return Heads("filter_head_f16", arguments, head.anchors, head.anchors, head.classes, *NOTHING)


def integers(name: str, array: Any) -> tuple[int, int]:
    """Address of integers, and how many words of 32 bits each has."""
    found = device.as_cupy(array)
    if found.dtype.name not in ("int32", "int64") or (found.shape[-1] > 1 and found.strides[-1] != found.itemsize):
        raise UsageError(f"{name} are {found.dtype}, strides {found.strides}", remedy="pass int32 or int64, contiguous")
    return device.address(found), found.itemsize // 4
