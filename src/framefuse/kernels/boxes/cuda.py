"""Detections on CUDA: the same functions as in `boxes.call`, on arrays of the GPU.

Three launches on one stream, and one more for each WINDOW of candidates beyond the first CHUNK. Their shapes depend on
those of the arrays alone and nothing is read back. Scratch memory lies in the `Workspace` that is passed; without one a
call allocates its own, which goes back to the pool of the stream in order. To capture a call in a CUDA graph, either
make it before with a `Workspace` that lives as long as the graph and pass `maps` on the GPU, so that the graph reads
what they hold when it runs; or record it with `launch_plan.record_launches` and capture the plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from framefuse.cuda import device, kernel
from framefuse.cuda.launch_plan import Workspace, keep, keep_cached
from framefuse.cuda.pools import GRAIN
from framefuse.errors import UsageError
from framefuse.kernels.boxes import head_cuda, outputs_cuda
from framefuse.kernels.boxes.reference import Found

WINDOW, CHUNK = 8192, 1024
"""As in `common.cuh`."""

BLOCKS = 264
"""Blocks of the launches that share out what the device counted: two for each multiprocessor of a large GPU."""

RANKING = 2
"""Times as many blocks rank the candidates of a batch."""

COMPARING = 132
"""Blocks that compare the boxes of an image, and COMPARED for each of many images."""
COMPARED = 16

LISTED = ("end2end", "detr")
"""Layouts without duplicates, which nothing suppresses."""


class Scratch:
    """Memory that the launches of one call hand to each other, allocated on the current stream.

    Attributes:
        words: of 32 candidates each, that the largest window has.
        at: address of each array.
    """

    def __init__(self, batch: int, capacity: int, room: int, detections: int, suppressing: int, sides: int = 4) -> None:
        self.words = -(-min(room, WINDOW) // 32) if suppressing else 1
        chunks = -(-self.words // (CHUNK // 32))
        counters = {"counters": 8 * batch, "progress": 8 * batch, "removed": 4 * batch * (WINDOW // 32)}
        sizes = {
            **counters,
            "keys": 8 * batch * capacity,
            "boxes": 4 * batch * capacity * sides,
            "labels": 4 * batch * capacity,
            "sorted_keys": 8 * batch * room,
            "sorted_boxes": 4 * batch * room * sides,
            "sorted_labels": 4 * batch * room,
            "kept": 4 * batch * detections,
            "local": 4 * batch * chunks * (CHUNK // 32) * CHUNK,
            "dense": 4 * (batch * self.words * 32 * self.words if chunks > 1 else 1),
        }
        starts = [0, *accumulate(-(-size // GRAIN) * GRAIN for size in sizes.values())]
        self._memory = device.cupy().empty(starts[-1], np.uint8)
        self._memory[: starts[len(counters)]] = 0  # the kernels leave the counters at 0 for the next call
        first = device.address(self._memory)
        self.at = {name: first + start for name, start in zip(sizes, starts, strict=False)}


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
    workspace: Workspace | None = None,
) -> Found:
    """`boxes.detections` on CuPy's current device and stream; the result stays on the GPU.

    Raises:
        UsageError: an array has a wrong shape or dtype, or the model's variant has no CUDA kernel.
        CapabilityError: no GPU, no CuPy or no NVRTC.
    """
    heads: outputs_cuda.Heads | head_cuda.Head
    if layout == head_cuda.LAYOUT:
        heads = head_cuda.Head.of(outputs)
        if heads.batch < len(maps):
            raise UsageError(f"the {layout} outputs have {heads.batch} images, the maps {len(maps)}")
    else:
        heads = outputs_cuda.read(outputs, layout, activation, len(maps))
    batch, capacity = len(maps), heads.anchors if isinstance(heads, head_cuda.Head) else heads.capacity
    if capacity > 2**31 - 1:
        raise UsageError(f"{layout}: {capacity} candidates an image are more than 2^31 - 1")
    room, suppressing = max(min(capacity, max_candidates), 1), layout not in LISTED
    stream = device.current_stream()
    gpu = device.current_gpu()
    work = _scratch(workspace, gpu, stream, batch, max(capacity, 1), room, max_det, suppressing)
    table = keep_cached(_wanted(gpu, None if classes is None else tuple(classes), heads.classes), stream)
    if out is None:
        out = Found.make(batch, max_det, device.cupy().empty)
    candidates = _candidates(work, batch, max(capacity, 1))
    if isinstance(heads, head_cuda.Head):
        levels = _table("levels", heads.table, workspace, stream)
        head_cuda.launch(heads, levels, conf, table, candidates, stream, batch)
    else:
        kernel.launch(
            heads.symbol,
            stream=stream,
            anchors=heads.anchors,
            classes=heads.classes or (0 if classes is None else table.size),
            confidence=conf,
            wanted=table,
            **heads.arguments,
            **candidates,
        )
    rows = {
        "maps": _table("maps", maps, workspace, stream) if type(maps) is np.ndarray else maps,
        "out_boxes": out.boxes,
        "out_scores": out.scores,
        "out_classes": out.classes,
        "out_counts": out.counts,
        "out_non_finite": out.non_finite,
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
    workspace: Workspace | None = None,
    stream: int | None = None,
) -> tuple[Any, Any]:
    """`boxes.nms` on CuPy's current device and stream: indices (max_det,) int32, and (1,) int32, how many there are.

    Raises:
        UsageError: an array has a wrong shape or dtype, or is not on a GPU.
        CapabilityError: no GPU, no CuPy or no NVRTC.
    """
    view, points = outputs_cuda.View.of(boxes), outputs_cuda.View.of(scores)
    count, rotated = view.shape[0], view.shape[1] == 5
    if (view.sample, points.sample) != ("f32", "f32"):
        raise UsageError(f"boxes are {boxes.dtype}, scores {scores.dtype}", remedy="pass float32")
    room = max(count if max_det is None else min(count, max_det), 1)
    stream = device.current_stream() if stream is None else stream
    gpu = device.current_gpu()
    capacity = max(count, 1)
    work = _scratch(workspace, gpu, stream, 1, capacity, capacity, room, True, 8 if rotated else 4)
    target, counted = (device.cupy().empty(room, np.int32), device.cupy().empty(1, np.int32)) if out is None else out
    labels, words = (0, 1) if classes is None else outputs_cuda.integers("classes", classes)
    arguments: dict[str, Any] = {
        "values": view.address,
        "pitch": view.strides[0],
        "scores": points.address,
        "class_ids": labels,
        "label_words": words,
        "anchors": count,
    }
    if not rotated:
        arguments |= {
            "image_pitch": 0,
            "scores_image_pitch": 0,
            "class_ids_image_pitch": 0,
            "classes": 0,
            "confidence": -np.inf,
            "wanted": 0,
        }
    candidates = _candidates(work, 1, capacity)
    if rotated:
        del candidates["batch"]
    kernel.launch("filter_rotated" if rotated else "filter_listed_f32", stream=stream, **arguments, **candidates)
    rows = {
        "maps": 0,
        "out_boxes": 0,
        "out_scores": 0,
        "out_classes": target,
        "out_counts": counted,
        "out_non_finite": 0,
        "indices": 1,
    }
    agnostic, suffix = classes is None, "_rotated" if rotated else ""
    _select(work, 1, capacity, capacity, room, LIKELY, threshold, agnostic, True, rows, stream, suffix)
    return target, counted


def count_non_finite(values: Any, counts: Any, *, stream: int) -> None:
    """counts[b] += number of values[b] that are NaN or infinite.

    Args:
        values: (batch, ...) float32 on the GPU, C-contiguous.
        counts: (batch,) int32 on the GPU.
        stream: pointer of a CUDA stream.
    """
    size = values[0].size
    kernel.launch("count_non_finite_f32", stream=stream, values=values, image_pitch=size, n=len(counts), size=size,
                  counts=counts)  # fmt: skip


LIKELY = 1 / 64
"""Score above which most boxes of `nms` are thought to be, which is to share out work evenly and nothing else."""


def _candidates(work: Scratch, batch: int, capacity: int) -> dict[str, Any]:
    return {
        "batch": batch,
        "capacity": capacity,
        "counters": work.at["counters"],
        "keys": work.at["keys"],
        "boxes": work.at["boxes"],
        "labels": work.at["labels"],
    }


def _select(
    work: Scratch,
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
    blocks = BLOCKS if batch == 1 else RANKING * BLOCKS // min(max(batch, 1), 8)
    kernel.launch(
        f"rank{suffix}",
        stream=stream,
        blocks=blocks,
        room=room,
        confidence=confidence,
        sorted_keys=work.at["sorted_keys"],
        sorted_boxes=work.at["sorted_boxes"],
        sorted_labels=work.at["sorted_labels"],
        **_candidates(work, batch, capacity),
    )
    bounds = [0, min(room, CHUNK), *range(CHUNK + WINDOW, room, WINDOW), room] if suppressing else [0, room]
    for begin, end in pairwise(bounds):
        if begin == 0 or begin < end:
            kernel.launch(
                f"suppress{suffix}",
                stream=stream,
                blocks=(COMPARING if batch == 1 else COMPARED) if suppressing else 1,
                batch=batch,
                room=room,
                begin=begin,
                end=end,
                words=work.words,
                detections=max_det,
                suppressing=int(suppressing),
                threshold=threshold,
                agnostic=int(agnostic),
                counters=work.at["counters"],
                progress=work.at["progress"],
                keys=work.at["sorted_keys"],
                boxes=work.at["sorted_boxes"],
                labels=work.at["sorted_labels"],
                local=work.at["local"],
                dense=work.at["dense"],
                removed=work.at["removed"],
                kept=work.at["kept"],
                **rows,
            )


def _scratch(workspace: Workspace | None, gpu: int, stream: int, *sizes: int) -> Scratch:
    """Scratch of these sizes, from the workspace or, without one, for this call alone."""

    def make() -> Scratch:
        if device.capturing(stream):
            raise UsageError("this call allocates scratch memory during a capture", remedy=device.PLAN_FIRST)
        with device.stream_at(stream):  # to which its memory returns, in order
            return Scratch(*sizes)

    if workspace is None:
        return keep(make())
    return workspace.once("boxes", (gpu, stream, *sizes), make)


def _table(name: str, table: NDArray[Any], workspace: Workspace | None, stream: int) -> Any:
    """A small array of the host on the device: in the workspace, where the same content is found again, or for this
    call alone."""
    table = np.ascontiguousarray(table)
    if workspace is None:
        return keep(device.upload(table, stream))
    return workspace.once(name, (stream, table.shape, table.tobytes()), lambda: device.upload(table, stream))


@lru_cache(maxsize=64)
def _wanted(gpu: int, classes: tuple[int, ...] | None, count: int) -> Any:
    """1 for each class to keep, on the GPU; `count` 0: as long as needed."""
    if classes is None:
        return device.uploaded(np.ones(max(count, 1), np.uint8))
    table = np.isin(np.arange(count or max(classes, default=0) + 1), classes)
    return device.uploaded(table.astype(np.uint8))
