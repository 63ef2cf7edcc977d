"""Detections on CUDA: the same function as `boxes.detections`, on arrays of the GPU.

Six launches, three for layouts without suppression, on one stream; their shapes depend on those of the arrays alone,
nothing is read back, so they may be captured in a CUDA graph. The workspace and the table of classes are made at the
first call with the same shapes and kept: call once before capturing. Each stream has a workspace of its own, so graphs
that may run at the same time must have been captured on different streams. For a graph, pass `maps` on the GPU: it then
reads what they hold when it runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, lru_cache
from typing import Any, NamedTuple

import numpy as np

from framefuse.errors import UsageError
from framefuse.kernels import calls, cuda, head_cuda
from framefuse.kernels.reference.boxes import Found

SAMPLES = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}

DENSE, CHUNK = 8192, 1024
"""As in `tir/_boxes_cuda.py`."""

BLOCKS = 264
"""Blocks of the launches that share out what the device counted: two for each multiprocessor of a large GPU."""

OVERLAPPING = 2
"""Times as many blocks compare the boxes of a batch."""

LISTED = ("end2end", "detr")
"""Layouts without duplicates, which nothing suppresses."""


class View(NamedTuple):
    """Where the values of an array on the GPU lie; pitches in elements."""

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    sample: str

    @classmethod
    def of(cls, array: Any) -> View:
        """
        Raises:
            UsageError: it is not on a GPU, of another dtype, or its last axis is not contiguous.
        """
        if getattr(array, "is_cuda", False):  # torch, whose bfloat16 CuPy has no name for
            address, shape, strides = array.data_ptr(), tuple(array.shape), tuple(array.stride())
        else:
            array = cuda.as_cupy(array)
            address, shape = cuda.address(array), array.shape
            strides = tuple(stride // array.dtype.itemsize for stride in array.strides)
        sample = SAMPLES.get(str(array.dtype).removeprefix("torch."))
        if sample is None or (0 not in shape and shape[-1] > 1 and strides[-1] != 1):
            raise UsageError(
                f"an output is {array.dtype}, shape {shape}, strides {strides}",
                remedy="pass float32, float16 or bfloat16 whose last axis is contiguous",
            )
        return cls(address, shape, strides, sample)


class Workspace:
    """What the launches write between each other, on one stream.

    Attributes:
        dense_words: words of 32 candidates whose overlaps with later chunks are kept as bits.
        at: address of each array.
    """

    def __init__(
        self, batch: int, capacity: int, room: int, detections: int, suppressing: bool, sides: int = 4
    ) -> None:
        self.dense_words = -(-min(room, DENSE) // 32)
        chunks = -(-room // CHUNK)
        shapes: dict[str, tuple[Any, Any]] = {
            "keys": ((batch, capacity), np.uint64),
            "boxes": ((batch, capacity, sides), np.float32),
            "labels": ((batch, capacity), np.int32),
            "sorted_keys": ((batch, room), np.uint64),
            "sorted_boxes": ((batch, room, sides), np.float32),
            "sorted_labels": ((batch, room), np.int32),
            "kept": ((batch, detections), np.int32),
            "local": ((batch, chunks, CHUNK // 32, CHUNK) if suppressing else 1, np.uint32),
            "dense": ((batch, self.dense_words * 32, self.dense_words) if suppressing and chunks > 1 else 1, np.uint32),
        }
        self._arrays = {name: cuda.cupy().empty(*facts) for name, facts in shapes.items()}
        self._arrays["counters"] = cuda.cupy().zeros((batch, 2), np.int32)
        self.at = {name: cuda.address(array) for name, array in self._arrays.items()}


def detections(
    outputs: Sequence[Any],
    layout: str,
    maps: Any,
    *,
    conf: float,
    threshold: float,
    max_det: int,
    max_candidates: int,
    classes: Sequence[int] | None,
    agnostic: bool,
    activation: str | None,
    out: Found | None,
) -> Found:
    """`boxes.detections` on CuPy's current device and stream; the result stays on the GPU.

    Raises:
        UsageError: an array has a wrong shape or dtype, or the model's variant has no CUDA kernel.
        CapabilityError: no GPU, no CuPy or no NVRTC.
    """
    heads: _Heads | head_cuda.Head
    if layout == head_cuda.LAYOUT:
        heads = head_cuda.Head.of(outputs)
        if heads.batch < len(maps):
            raise UsageError(f"the {layout} outputs have {heads.batch} pictures, the maps {len(maps)}")
    else:
        heads = _heads(outputs, layout, activation, len(maps))
    batch, capacity = len(maps), heads.anchors if isinstance(heads, head_cuda.Head) else heads.capacity
    if capacity > 2**31 - 1:
        raise UsageError(f"{layout}: {capacity} candidates a picture are more than 2^31 - 1")
    room, suppressing = max(min(capacity, max_candidates), 1), layout not in LISTED
    stream = cuda.current_stream()
    device = int(cuda.cupy().cuda.runtime.getDevice())
    work = _workspace(device, stream, batch, max(capacity, 1), room, max_det, suppressing, 4)
    table = _wanted(device, None if classes is None else tuple(classes), heads.classes)
    if out is None:
        out = _empty(batch, max_det)
    candidates = _candidates(work, batch, max(capacity, 1))
    if isinstance(heads, head_cuda.Head):
        head_cuda.launch(heads, conf, table, candidates, stream, batch)
    else:
        cuda.launch(
            heads.symbol,
            stream=stream,
            anchors=heads.anchors,
            classes=heads.classes or (0 if classes is None else table.size),
            confidence=conf,
            wanted_=table,
            **heads.arguments,
            **candidates,
        )
    rows = {
        "maps_": calls.keep(_uploaded(device, maps.shape, maps.tobytes())) if type(maps) is np.ndarray else maps,
        "out_boxes_": out.boxes,
        "out_scores_": out.scores,
        "out_classes_": out.classes,
        "out_counts_": out.counts,
        "out_non_finite_": out.non_finite,
        "indices": 0,
    }
    _select(work, batch, max(capacity, 1), room, max_det, conf, threshold, agnostic, suppressing, rows, stream)
    return out


def nms(
    boxes: Any,
    scores: Any,
    classes: Any,
    *,
    threshold: float,
    max_det: int | None,
    out: Any,
    stream: int | None = None,
) -> tuple[Any, Any]:
    """`boxes.nms` on CuPy's current device and stream: indices (max_det,) int32, and (1,) int32, how many there are.

    Raises:
        UsageError: an array has a wrong shape or dtype, or is not on a GPU.
        CapabilityError: no GPU, no CuPy or no NVRTC.
    """
    view, points = View.of(boxes), View.of(scores)
    count, rotated = view.shape[0], view.shape[1] == 5
    if (view.sample, points.sample) != ("f32", "f32"):
        raise UsageError(f"boxes are {boxes.dtype}, scores {scores.dtype}", remedy="pass float32")
    room = max(count if max_det is None else min(count, max_det), 1)
    stream = cuda.current_stream() if stream is None else stream
    device = int(cuda.cupy().cuda.runtime.getDevice())
    capacity = max(count, 1)
    work = _workspace(device, stream, 1, capacity, capacity, room, True, 8 if rotated else 4)
    target, counted = (cuda.cupy().empty(room, np.int32), cuda.cupy().empty(1, np.int32)) if out is None else out
    labels, words = (0, 1) if classes is None else _integers("classes", classes)
    arguments: dict[str, Any] = {
        "values_": view.address,
        "pitch": view.strides[0],
        "scores_": points.address,
        "classes_": labels,
        "label_words": words,
        "anchors": count,
    }
    if not rotated:
        arguments |= {
            "picture_pitch": 0,
            "scores_picture_pitch": 0,
            "classes_picture_pitch": 0,
            "classes": 0,
            "confidence": -np.inf,
            "wanted_": 0,
        }
    candidates = _candidates(work, 1, capacity)
    if rotated:
        del candidates["batch"]
    cuda.launch("filter_rotated" if rotated else "filter_listed_f32", stream=stream, **arguments, **candidates)
    rows = {
        "maps_": 0,
        "out_boxes_": 0,
        "out_scores_": 0,
        "out_classes_": target,
        "out_counts_": counted,
        "out_non_finite_": 0,
        "indices": 1,
    }
    agnostic, suffix = classes is None, "_rotated" if rotated else ""
    _select(work, 1, capacity, capacity, room, LIKELY, threshold, agnostic, True, rows, stream, suffix)
    return target, counted


LIKELY = 1 / 64
"""Score above which most boxes of `nms` are thought to be, which is to share out work evenly and nothing else."""


def _candidates(work: Workspace, batch: int, capacity: int) -> dict[str, Any]:
    return {
        "batch": batch,
        "capacity": capacity,
        "counters_": work.at["counters"],
        "keys_": work.at["keys"],
        "boxes_": work.at["boxes"],
        "labels_": work.at["labels"],
    }


def _select(
    work: Workspace,
    batch: int,
    capacity: int,
    room: int,
    max_det: int,
    confidence: float,
    threshold: float,
    agnostic: bool,
    suppressing: bool,
    rows: dict[str, Any],
    stream: int,
    suffix: str = "",
) -> None:
    """From candidates to the rows of the result: sorted, and without what is suppressed."""
    blocks = BLOCKS // min(max(batch, 1), 8)
    cuda.launch(
        f"rank{suffix}",
        stream=stream,
        blocks=blocks,
        room=room,
        confidence=confidence,
        sorted_keys_=work.at["sorted_keys"],
        sorted_boxes_=work.at["sorted_boxes"],
        sorted_labels_=work.at["sorted_labels"],
        **_candidates(work, batch, capacity),
    )
    shared = {
        "batch": batch,
        "room": room,
        "dense_words": work.dense_words,
        "threshold": threshold,
        "agnostic": int(agnostic),
        "counters_": work.at["counters"],
        "boxes_": work.at["sorted_boxes"],
        "labels_": work.at["sorted_labels"],
        "local_": work.at["local"],
        "dense_": work.at["dense"],
    }
    rows |= {
        "detections": max_det,
        "suppressing": int(suppressing),
        "keys_": work.at["sorted_keys"],
        "kept_": work.at["kept"],
    }
    for later in range(2 if suppressing and room > CHUNK else 1):
        if suppressing:
            cuda.launch(
                f"overlap{suffix}",
                stream=stream,
                blocks=blocks if batch == 1 else OVERLAPPING * blocks,
                later=later,
                **shared,
            )
        cuda.launch(f"finish{suffix}", stream=stream, later=later, **rows, **shared)


class _Heads(NamedTuple):
    """How the outputs of a model are read."""

    symbol: str
    arguments: dict[str, Any]
    anchors: int
    capacity: int
    """Candidates of a picture at most."""
    classes: int
    """0: not known from the shape."""


def _heads(outputs: Sequence[Any], layout: str, activation: str | None, batch: int) -> _Heads:
    if layout == "detr" and len(outputs) == 3:
        return _listed(outputs, batch)
    views = [View.of(output) for output in outputs]
    expected = (1, 2) if layout == "detr" else (1,)
    shapes = [view.shape for view in views]
    least = {"yolov8": 5, "yolov5": 6, "end2end": 6, "detr": 1 if len(views) == 2 else 5}.get(layout)
    if least is None:
        raise UsageError(f"{layout} outputs are not read on a GPU", remedy="copy them to the host")
    values = shapes[-1]
    columns = values[1 if layout == "yolov8" else -1] if len(values) == 3 else 0
    if len(views) not in expected or columns < least or any(shape[0] < batch for shape in shapes):
        raise UsageError(f"the {layout} outputs have shapes {shapes} for {batch} pictures")
    last = views[-1]
    anchors = values[2] if layout == "yolov8" else values[1]
    arguments = {"values_": last.address, "picture_pitch": last.strides[0], "pitch": last.strides[1]}
    if layout != "detr":
        count = {"yolov8": columns - 4, "yolov5": columns - 5, "end2end": 0}[layout]
        return _Heads(f"filter_{layout}_{last.sample}", arguments, anchors, anchors, count)
    sides, count = views[0], columns
    if len(views) == 1:  # the boxes are the first four columns
        count -= 4
        arguments["values_"] += 4 * (4 if last.sample == "f32" else 2)
    elif shapes[0][1:] != (anchors, 4) or sides.sample != last.sample:
        raise UsageError(f"detr boxes are {sides.sample} {shapes[0]}, logits {last.sample} {values}")
    arguments |= {
        "sides_": sides.address,
        "sides_picture_pitch": sides.strides[0],
        "sides_pitch": sides.strides[1],
    }
    if (activation or ("sigmoid" if len(views) == 2 else "none")) == "sigmoid":
        return _Heads(f"filter_detr_{last.sample}", arguments, anchors, anchors * count, count)
    arguments["softmax"] = int(activation == "softmax")
    return _Heads(f"filter_queries_{last.sample}", arguments, anchors, anchors, count)


def _listed(outputs: Sequence[Any], batch: int) -> _Heads:
    """Labels (batch, rows), boxes (batch, rows, 4) and scores (batch, rows)."""
    labels, boxes, scores = outputs
    view, points = View.of(boxes), View.of(scores)
    shapes = [tuple(output.shape) for output in outputs]
    rows = view.shape[1] if len(view.shape) == 3 else 0
    fits = shapes[0] == shapes[2] == view.shape[:2] and len(view.shape) == 3 and view.shape[2] == 4
    if not fits or view.shape[0] < batch or view.sample != points.sample:
        raise UsageError(
            f"the detr outputs have shapes {shapes} for {batch} pictures",
            remedy="pass labels (batch, rows), boxes (batch, rows, 4), and scores (batch, rows) of the same dtype",
        )
    if "int" in str(labels.dtype):
        address, words = _integers("labels", labels)
        pitch = int(cuda.as_cupy(labels).strides[0] // cuda.as_cupy(labels).itemsize)
    else:
        names = View.of(labels)
        if names.sample != view.sample:
            raise UsageError(f"labels are {labels.dtype}, boxes {boxes.dtype}", remedy="pass integers, or one dtype")
        address, words, pitch = names.address, 0, names.strides[0]
    arguments = {
        "values_": view.address,
        "picture_pitch": view.strides[0],
        "pitch": view.strides[1],
        "scores_": points.address,
        "scores_picture_pitch": points.strides[0],
        "classes_": address,
        "classes_picture_pitch": pitch,
        "label_words": words,
    }
    return _Heads(f"filter_listed_{view.sample}", arguments, rows, rows, 0)


def _integers(name: str, array: Any) -> tuple[int, int]:
    """Address of integers, and how many words of 32 bits each has."""
    found = cuda.as_cupy(array)
    if found.dtype.name not in ("int32", "int64") or (found.shape[-1] > 1 and found.strides[-1] != found.itemsize):
        raise UsageError(f"{name} are {found.dtype}, strides {found.strides}", remedy="pass int32 or int64, contiguous")
    return cuda.address(found), found.itemsize // 4


@cache  # a captured graph may hold the addresses
def _workspace(
    device: int, stream: int, batch: int, capacity: int, room: int, detections: int, suppressing: bool, sides: int
) -> Workspace:
    return Workspace(batch, capacity, room, detections, suppressing, sides)


@cache
def _wanted(device: int, classes: tuple[int, ...] | None, count: int) -> Any:
    """1 for each class to keep, on the GPU; `count` 0: as long as needed."""
    if classes is None:
        return cuda.cupy().asarray(np.ones(max(count, 1), np.uint8))
    table = np.isin(np.arange(count or max(classes, default=0) + 1), classes)
    return cuda.cupy().asarray(table.astype(np.uint8))


@lru_cache(maxsize=1024)
def _uploaded(device: int, shape: tuple[int, ...], content: bytes) -> Any:
    return cuda.cupy().asarray(np.frombuffer(content, np.float32).reshape(shape))


def _empty(batch: int, max_det: int) -> Found:
    new = cuda.cupy().empty
    return Found(
        new((batch, max_det, 4), np.float32),
        new((batch, max_det), np.float32),
        new((batch, max_det), np.int32),
        new((batch,), np.int32),
        new((batch,), np.int32),
    )
