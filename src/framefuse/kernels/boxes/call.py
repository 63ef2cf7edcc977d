"""Detections: raw outputs of a model to boxes in source pixels, and non-maximum suppression."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from framefuse.cuda.launch_plan import Workspace
from framefuse.errors import UsageError
from framefuse.kernels.arrays import on_gpu
from framefuse.kernels.boxes import cuda as boxes_cuda
from framefuse.kernels.boxes import head_cuda
from framefuse.kernels.boxes.cuda import LISTED, Asked
from framefuse.kernels.boxes.reference import READERS, Found, covariances, distance_below, placed_oriented
from framefuse.kernels.cpu import _address, _function, _scratch, _tensor
from framefuse.kernels.preprocess.plan import MAX_ELEMENTS

MAX_CANDIDATES = 30_000
"""Boxes that suppression looks at, those with the highest scores; bounds its time."""

COMPILED = {"yolov8": 5, "yolov5": 6}
"""Layouts whose filter is compiled, and the values that an anchor has at least."""

ORIENTED = ("yolov8", "yolov5", "end2end")
"""Layouts that may have an angle after the classes."""

HEAD = head_cuda.LAYOUT
"""Layout of the raw logits of a yolov8 head, which the engines for the CPU may put out instead of decoded boxes."""

SAMPLES = {np.dtype(np.float32): "f32", np.dtype(np.float16): "f16"}
HEAD_SAMPLES = {np.dtype(np.float32): "f32", np.dtype(np.uint16): "bf16"}

_ROWS, _SCORE, _ANCHOR = 9, 6, 8
"""Rows of the array of candidates, and those of the score and the anchor, as in `tir_cpu.py`."""

_BLOCK = 1024


@lru_cache(maxsize=1)
def _take_rows() -> Any:
    function = _function("take_rows")
    function.release_gil = False  # it takes microseconds, and to get the lock back, milliseconds where many want it
    return function


def take_rows(
    boxes: NDArray[Any], scores: NDArray[Any], classes: NDArray[Any], counts: NDArray[Any], class_count: int
) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.int64], bool]:
    """Copies of the rows of a batch that are boxes, those of one frame behind those of the other.

    Args:
        boxes: (batch, rows, 4) float32: x1, y1, x2, y2.
        scores: (batch, rows) float32.
        classes: (batch, rows) int32.
        counts: (batch,) int32, how many rows of each frame are boxes: the first.
        class_count: classes are below it.

    Returns:
        Boxes (n, 4), scores (n,), classes (n,), and whether all are plausible: each class lies in 0..class_count - 1,
        each score in 0..1, and each box has an area.
    """
    given = [np.ascontiguousarray(array) for array in (boxes, scores, classes, np.asarray(counts, np.int32))]
    count, good = int(given[3].sum()), np.zeros(1, np.int32)
    found = np.empty((count, 4), np.float32), np.empty(count, np.float32), np.empty(count, np.int64)
    results = [_address(array) for array in (*found, good)]
    _take_rows()(*[_address(array) for array in given], *scores.shape, class_count, *results)
    return *found, bool(good[0])


def detections(
    outputs: Sequence[Any],
    layout: str,
    maps: NDArray[np.float32],
    *,
    conf: float,
    iou: float,
    max_det: int,
    max_candidates: int = MAX_CANDIDATES,
    classes: Sequence[int] | None = None,
    agnostic: bool = False,
    activation: str | None = None,
    extra: int = 0,
    extras: Any | None = None,
    oriented: bool = False,
    out: Found | None = None,
    workspace: Workspace | None = None,
) -> Found:
    """Keep the boxes above `conf`, drop duplicates, map the rest back to the images.

    `kernels.reference.detections` says what the layouts and the arguments mean; this one finds the same boxes. Batch
    rows of `outputs` beyond `maps` are padding and ignored. Outputs on a GPU (CuPy, torch, DLPack) are read by CUDA
    kernels on CuPy's current stream, and the result stays there; `boxes_cuda` says what a CUDA graph needs. Oriented
    boxes on a GPU are in units of the model; `placed_oriented` does the rest.

    Args:
        extras: on a GPU: (batch, max_det, extra) float32, which gets the values of each object after its classes.
        out: where to write; None makes new arrays.
        workspace: on a GPU, scratch memory that repeated calls share, which a captured graph needs for as long as it
            lives. None: each call allocates its own.

    Raises:
        UsageError: an argument has a wrong value, shape or dtype; the message says which.
        CapabilityError: there are no compiled kernels for this machine.
    """
    if layout not in READERS:
        raise UsageError(f"unknown output layout {layout!r}", remedy=f"choose one of {', '.join(READERS)}")
    if oriented and layout not in ORIENTED:
        raise UsageError(f"oriented boxes have no layout {layout!r}", remedy=f"choose one of {', '.join(ORIENTED)}")
    if not 0 <= iou <= 1:
        raise UsageError(f"iou {iou} is not between 0 and 1")
    extra = max(extra, int(oriented))
    batch = _check(outputs, layout, maps, max_det, max_candidates, extra)
    suppressing, sides = layout not in LISTED, 5 if oriented else 4
    limit = _threshold(iou) if not oriented else distance_below(iou) if suppressing else -1.0
    wanted = None if classes is None else tuple(classes)
    asked = Asked(layout, conf, limit, max_det, max_candidates, wanted, agnostic, activation, extra, oriented)
    if on_gpu(outputs[0]):
        return boxes_cuda.detections(outputs, maps, asked, extras, out, workspace)
    if out is None:
        out = Found.make(batch, max_det, np.empty, sides)
    elif out.boxes.shape != (batch, max_det, sides):
        raise UsageError(f"out.boxes has shape {out.boxes.shape}, not {(batch, max_det, sides)}")
    read = _filter_head if layout == HEAD else _filter if layout in COMPILED else _read
    for image in range(batch):
        work = read(outputs, image, asked)
        if oriented:
            _find_oriented(work, outputs[0], image, maps[image], asked, out)
            continue
        out.non_finite[image] = work.totals[1]
        limits = max_candidates, max_det, limit, int(suppressing), int(agnostic)
        _function("suppress_boxes")(image, *limits, *work.suppression, out.counts)
        _function("place_boxes")(image, *work.candidates[:2], work.index, maps, *out[:3], out.anchors, out.counts)
    return out


def _find_oriented(
    work: _Work, output: NDArray[Any], image: int, row: NDArray[np.float32], asked: Asked, found: Found
) -> None:
    """The oriented boxes of one image from its candidates, whose angles are still in the output."""
    count = int(work.totals[0])
    anchors = work.boxes[_ANCHOR, :count].view(np.int32)
    rows = output[image].T if asked.layout == "yolov8" else output[image]
    values = rows[anchors].astype(np.float32, copy=False)
    turned = np.isfinite(values[:, -1])
    if not turned.all():
        values, anchors, scores = values[turned], anchors[turned], work.boxes[_SCORE, :count][turned]
        broken = int(work.totals[1]) + count - len(anchors)
        work.load(np.empty((0, len(anchors))), scores, work.labels[:count][turned], anchors, broken)
    boxes = values[:, [0, 1, 2, 3, -1]]
    work.boxes[:2, : len(boxes)] = boxes[:, :2].T
    work.boxes[2:5, : len(boxes)] = covariances(boxes)
    found.non_finite[image] = work.totals[1]
    limits = asked.max_candidates, asked.max_det, asked.limit, int(asked.agnostic)
    _function("suppress_oriented")(image, *limits, *work.suppression, found.counts)
    index = work.index[: found.counts[image]]
    parts = placed_oriented(boxes[index], row), work.boxes[_SCORE, index], work.labels[index], anchors[index]
    for to, part in zip((found.boxes, found.scores, found.classes, found.anchors), parts, strict=True):
        to[image, : len(index)] = part


def nms(
    boxes: Any,
    scores: Any,
    classes: Any | None = None,
    *,
    iou: float,
    max_det: int | None = None,
    out: Any | None = None,
    workspace: Workspace | None = None,
) -> Any:
    """Greedy NMS: by descending score, keep a box unless one kept before it overlaps it by more than `iou`.

    `kernels.reference.nms` states the formula and the arguments; rotated boxes are (n, 5). Arrays on a GPU (CuPy,
    torch, DLPack) are read by CUDA kernels on CuPy's current stream, and the result is a CuPy array.

    Args:
        boxes: on a GPU, float32, as are the scores; the classes are int32 or int64.
        out: (max_det,) int32 of which the result is the beginning; None makes a new array. On a GPU, a pair: that, and
            (1,) int32 for how many there are. Then nothing is waited for, the call may be captured in a CUDA graph, and
            the result is the pair; without `out` the host waits to learn how many there are.
        workspace: as of `detections`.

    Raises:
        UsageError: an argument has a wrong shape.
        CapabilityError: there are no compiled kernels for this machine.
    """
    if boxes.ndim != 2 or boxes.shape[1] not in (4, 5):
        raise UsageError(f"boxes have shape {boxes.shape}", remedy="pass (n, 4) x1 y1 x2 y2 or (n, 5) cx cy w h angle")
    count = len(boxes)
    if scores.shape != (count,) or (classes is not None and classes.shape != (count,)):
        raise UsageError(f"{count} boxes, but scores {scores.shape}, classes {getattr(classes, 'shape', None)}")
    room = count if max_det is None else min(count, max_det)
    if on_gpu(boxes):
        if out is not None and not (len(out) == 2 and len(out[0]) >= room and len(out[1]) == 1):
            raise UsageError("out is not a pair of arrays", remedy=f"pass ({room},) and (1,) int32 on the GPU")
        kept = boxes_cuda.nms(boxes, scores, classes, _threshold(iou), max_det, out, workspace)
        return kept if out is not None else kept[0][: int(kept[1][0])]
    if out is not None and (out.ndim != 1 or len(out) < room or out.dtype != np.int32):
        raise UsageError(f"out is {out.dtype} {out.shape}", remedy=f"pass ({room},) int32")
    finite = np.flatnonzero(np.isfinite(boxes).all(axis=1) & np.isfinite(scores))
    work = _work.fit(max(count, 1), max(room, 1))
    if boxes.shape[1] == 5:
        x, y, width, height, angle = boxes[finite].T.astype(np.float64)
        sides = np.stack((x, y, width / 2, height / 2, np.cos(angle), np.sin(angle)))
    else:
        sides = boxes[finite].T
    labels = np.zeros(1, np.int32) if classes is None else classes[finite]
    work.load(sides, scores[finite], labels, finite, 0)
    counts = np.empty(1, np.int32)
    suppress = _function("suppress_rotated" if boxes.shape[1] == 5 else "suppress_boxes")
    suppress(0, count, room, _threshold(iou), 1, int(classes is None), *work.suppression, counts)
    result = np.empty(int(counts[0]), np.int32) if out is None else out[: counts[0]]
    result[:] = finite[work.index[: counts[0]]]
    return result


class _Work(threading.local):
    """Candidates of one image, and scratch; grown to the most that this thread has seen."""

    def __init__(self) -> None:
        self.capacity, self.detections = 0, 0

    def fit_for(self, asked: Asked, capacity: int) -> _Work:
        """Make room for so many candidates of an image, and for all that they are compared with."""
        rivals = min(capacity, asked.max_candidates) if asked.oriented else 0
        return self.fit(max(capacity, 1), max(asked.max_det, rivals))

    def fit(self, capacity: int, detections: int) -> _Work:
        """Make room for so many candidates and rows of the result."""
        if capacity <= self.capacity and detections <= self.detections:
            return self
        self.capacity, self.detections = max(capacity, self.capacity), max(detections, self.detections)
        self.boxes = np.zeros((_ROWS, self.capacity), np.float32)
        self.labels = np.zeros(self.capacity, np.int32)
        self.totals = np.zeros(2, np.int32)
        self.index = np.zeros(self.detections, np.int32)
        room = np.zeros(2 * _BLOCK + 15, np.float32)
        skipped = -(_address(room) // 4) % 16  # to the beginning of a cache line of 64 bytes
        self.running = _tensor(room[skipped : skipped + 2 * _BLOCK].reshape(2, _BLOCK))
        sorting = (  # keys and orders, places by digit, kept boxes and their labels
            np.zeros((2, self.capacity), np.uint32),
            np.zeros((2, self.capacity), np.int32),
            np.zeros(256, np.int32),
            np.zeros((_ROWS, self.detections), np.float32),
            np.zeros(self.detections, np.int32),
        )
        self.candidates = tuple(map(_tensor, (self.boxes, self.labels, self.totals)))
        self.suppression = (*self.candidates, *map(_tensor, sorting), self.index)
        return self

    def load(
        self, sides: NDArray[Any], scores: NDArray[Any], labels: NDArray[Any], anchors: NDArray[Any], non_finite: int
    ) -> None:
        count = len(scores)
        self.boxes[: len(sides), :count] = sides
        self.boxes[_SCORE, :count] = scores
        self.boxes[_ANCHOR, :count] = anchors.astype(np.int32).view(np.float32)
        self.labels[:count] = labels
        self.totals[:] = count, non_finite


_work = _Work()


def _filter(outputs: Sequence[Any], image: int, asked: Asked) -> _Work:
    """Candidates of one image in a yolov8 (batch, 4 + nc + extra, N) or yolov5 (batch, N, 5 + nc + extra) output."""
    (output,) = outputs
    _, values, anchors = output.shape
    if asked.layout == "yolov5":
        values, anchors = anchors, values
    count = values - COMPILED[asked.layout] + 1 - asked.extra
    work, pitch = _work.fit_for(asked, anchors), output.strides[1] // output.itemsize
    place = _address(output) + image * output.strides[0], pitch, anchors, count
    run = _function(f"filter_{asked.layout}_{SAMPLES[output.dtype]}")
    run(*place, asked.conf, _wanted(asked.classes, count), *work.candidates, work.running)
    return work


def _filter_head(outputs: Sequence[Any], image: int, asked: Asked) -> _Work:
    """Candidates of one image in the logits of a yolov8 head: distances and classes of each level."""
    levels = [output.shape[1] * output.shape[2] for output in outputs[::2]]
    work = _work.fit_for(asked, sum(levels))
    count, bins = outputs[1].shape[3], outputs[0].shape[3] // 4
    sample = HEAD_SAMPLES[outputs[0].dtype]
    limits = bins, count, asked.conf, _head_threshold(asked.conf, sample)
    rest = _wanted(asked.classes, count), *work.candidates, _scratch.get("head_weights", (4 * bins + 4,))
    run = _function(f"filter_head_{sample}")
    for level, pair in enumerate(zip(outputs[::2], outputs[1::2], strict=True)):
        places = [_address(output) + image * output.strides[0] for output in pair]
        run(*places, *pair[0].shape[1:3], *limits, sum(levels[:level]), *rest)
    return work


def _read(outputs: Sequence[Any], image: int, asked: Asked) -> _Work:
    """Candidates of a layout with few rows, for which numpy is fast enough."""
    values = [output[image].astype(np.float32, copy=False) for output in outputs]
    found = READERS[asked.layout](values, asked.conf, asked.activation)
    if asked.classes is not None:
        found = found.take(np.flatnonzero(np.isin(found.classes, asked.classes)))
    work = _work.fit_for(asked, len(found.scores))
    work.load(found.boxes.T, found.scores, found.classes, found.rows, found.non_finite)
    return work


@lru_cache(maxsize=64)
def _head_threshold(conf: float, sample: str) -> int:
    """A key (`tir_cpu_head.py`) that that of a logit reaches if its sigmoid exceeds `conf`; those near are computed."""
    bits = int(np.float32(head_cuda.logit_below(conf)).view(np.int32))
    key = bits if bits >= 0 else bits ^ 0x7FFFFFFF
    return key if sample == "f32" else (key >> 16)


@lru_cache(maxsize=64)
def _wanted(classes: tuple[int, ...] | None, count: int) -> Any:
    return _tensor(boxes_cuda.wanted(classes, count)[0])


@lru_cache(maxsize=64)
def _threshold(iou: float) -> float:
    """The largest float32 that does not exceed `iou`: a float32 exceeds the one if and only if it exceeds the other."""
    threshold = np.float32(iou)
    return float(threshold if float(threshold) <= iou else np.nextafter(threshold, np.float32(-np.inf)))


def _check(outputs: Sequence[Any], layout: str, maps: Any, max_det: int, max_candidates: int, extra: int) -> int:
    """The number of images."""
    if maps.ndim != 2 or maps.shape[1] != 8 or maps.dtype != np.float32:
        raise UsageError(f"maps are {maps.dtype} {maps.shape}", remedy="pass (batch, 8) float32")
    if max_det < 1 or max_candidates < 1:
        raise UsageError(f"max_det {max_det} and max_candidates {max_candidates} must be at least 1")
    if layout == HEAD and not (outputs and on_gpu(outputs[0])):
        _check_head(outputs, len(maps))
    if layout not in COMPILED or on_gpu(outputs[0]):
        return len(maps)
    if len(outputs) != 1:
        raise UsageError(f"{layout} has one output, not {len(outputs)}")
    (output,) = outputs
    values = output.shape[2 if layout == "yolov5" else 1] if output.ndim == 3 else 0
    if values < COMPILED[layout] + extra or len(output) < len(maps):
        raise UsageError(
            f"the {layout} output has shape {output.shape} for {len(maps)} images",
            remedy="its shapes are (batch, 4 + classes, anchors) for yolov8, (batch, anchors, 5 + classes) for yolov5",
        )
    if output.dtype not in SAMPLES or (output.size and output.shape[2] > 1 and output.strides[2] != output.itemsize):
        raise UsageError(
            f"the {layout} output is {output.dtype} with strides {output.strides} bytes",
            remedy="pass float32 or float16 whose last axis is contiguous",
        )
    if output.strides[1] * output.shape[1] > MAX_ELEMENTS * output.itemsize:
        raise UsageError(f"the {layout} output has more than {MAX_ELEMENTS} values an image: shape {output.shape}")
    return len(maps)


def _check_head(outputs: Sequence[Any], images: int) -> None:
    if not all(isinstance(output, np.ndarray) and output.flags.c_contiguous for output in outputs):
        raise UsageError(f"{HEAD} outputs are read on the host, and contiguous", remedy="pass numpy arrays")
    head_cuda.check_shapes([tuple(output.shape) for output in outputs], images)
    if len({output.dtype for output in outputs}) != 1 or outputs[0].dtype not in HEAD_SAMPLES:
        raise UsageError(
            f"the {HEAD} outputs are {', '.join(str(output.dtype) for output in outputs)}",
            remedy="pass float32, or uint16 with the bits of bfloat16",
        )
