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
from framefuse.kernels import cuda, head_cuda
from framefuse.kernels.reference.boxes import Found

SAMPLES = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}

DENSE, CHUNK = 8192, 1024
"""As in `tir/boxes_cuda.py`."""

BLOCKS = 264
"""Blocks of the launches that share out what the device counted: two for each multiprocessor of a large GPU."""


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

    def __init__(self, batch: int, capacity: int, room: int, detections: int, suppressing: bool) -> None:
        self.dense_words = -(-min(room, DENSE) // 32)
        chunks = -(-room // CHUNK)
        shapes: dict[str, tuple[Any, Any]] = {
            "keys": ((batch, capacity), np.uint64),
            "boxes": ((batch, capacity, 4), np.float32),
            "labels": ((batch, capacity), np.int32),
            "sorted_keys": ((batch, room), np.uint64),
            "sorted_boxes": ((batch, room, 4), np.float32),
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
    head = head_cuda.Head.of(outputs) if layout == head_cuda.LAYOUT else None
    if head is None:
        views = [View.of(output) for output in outputs]
        values = views[-1]
        batch, anchors, count = _sizes(views, layout, activation, len(maps))
    else:
        batch, anchors, count = len(maps), head.anchors, head.classes
        if head.batch < batch:
            raise UsageError(f"the {layout} outputs have {head.batch} pictures, the maps {batch}")
    capacity = anchors * count if layout == "detr" else anchors
    if capacity > 2**31 - 1:
        raise UsageError(f"{layout}: {capacity} candidates a picture are more than 2^31 - 1")
    room, suppressing = max(min(capacity, max_candidates), 1), layout.startswith("yolo")
    stream = cuda.current_stream()
    device = int(cuda.cupy().cuda.runtime.getDevice())
    work = _workspace(device, stream, batch, max(capacity, 1), room, max_det, suppressing)
    table = _wanted(device, None if classes is None else tuple(classes), count)
    if out is None:
        out = _empty(batch, max_det)
    candidates = {
        "batch": batch,
        "capacity": max(capacity, 1),
        "counters_": work.at["counters"],
        "keys_": work.at["keys"],
        "boxes_": work.at["boxes"],
        "labels_": work.at["labels"],
    }
    if head is not None:
        head_cuda.launch(head, conf, table, candidates, stream, batch)
    else:
        sides = {}
        if layout == "detr":
            sides = {
                "sides_": views[0].address,
                "sides_picture_pitch": views[0].strides[0],
                "sides_pitch": views[0].strides[1],
            }
        cuda.launch(
            f"filter_{layout}_{values.sample}",
            stream=stream,
            values_=values.address,
            picture_pitch=values.strides[0],
            pitch=values.strides[1],
            anchors=anchors,
            classes=table.size if layout == "end2end" and classes is not None else count,
            confidence=conf,
            wanted_=table,
            **sides,
            **candidates,
        )
    blocks = BLOCKS // min(max(batch, 1), 8)
    cuda.launch(
        "rank",
        stream=stream,
        blocks=blocks,
        room=room,
        confidence=conf,
        sorted_keys_=work.at["sorted_keys"],
        sorted_boxes_=work.at["sorted_boxes"],
        sorted_labels_=work.at["sorted_labels"],
        **candidates,
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
    rows = {
        "detections": max_det,
        "suppressing": int(suppressing),
        "keys_": work.at["sorted_keys"],
        "kept_": work.at["kept"],
        "maps_": _uploaded(device, maps.shape, maps.tobytes()) if isinstance(maps, np.ndarray) else maps,
        "out_boxes_": out.boxes,
        "out_scores_": out.scores,
        "out_classes_": out.classes,
        "out_counts_": out.counts,
        "out_non_finite_": out.non_finite,
    }
    for later in range(2 if suppressing and room > CHUNK else 1):
        if suppressing:
            cuda.launch("overlap", stream=stream, blocks=blocks, later=later, **shared)
        cuda.launch("finish", stream=stream, later=later, **rows, **shared)
    return out


def _sizes(views: Sequence[View], layout: str, activation: str | None, batch: int) -> tuple[int, int, int]:
    """Pictures, anchors (or queries), and classes (0: not known from the shape)."""
    shapes = [view.shape for view in views]
    alike = len({view.sample for view in views}) == 1
    if layout == "detr" and (len(views) != 2 or activation not in (None, "sigmoid") or not alike):
        raise UsageError(
            f"detr with {len(views)} outputs and activation {activation} has no CUDA kernel",
            remedy="have the model put out boxes and logits, or copy its outputs to the host",
        )
    least = {"yolov8": 5, "yolov5": 6, "end2end": 6, "detr": 1}[layout]
    values = shapes[-1]
    columns = values[1 if layout == "yolov8" else -1] if len(values) == 3 else 0
    expected = 2 if layout == "detr" else 1
    if len(views) != expected or len(values) != 3 or columns < least or any(shape[0] < batch for shape in shapes):
        raise UsageError(f"the {layout} outputs have shapes {shapes} for {batch} pictures")
    if layout == "detr" and shapes[0][1:] != (values[1], 4):
        raise UsageError(f"detr boxes have shape {shapes[0]}, logits {values}")
    anchors = values[2] if layout == "yolov8" else values[1]
    return batch, anchors, {"yolov8": columns - 4, "yolov5": columns - 5, "end2end": 0, "detr": columns}[layout]


@cache  # a captured graph may hold the addresses
def _workspace(
    device: int, stream: int, batch: int, capacity: int, room: int, detections: int, suppressing: bool
) -> Workspace:
    return Workspace(batch, capacity, room, detections, suppressing)


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
