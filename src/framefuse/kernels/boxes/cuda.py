"""Detections on CUDA: the same functions as in `boxes.call`, on arrays of the GPU, and merging the boxes of views.

Three launches on one stream, and one more for each WINDOW of candidates beyond the first CHUNK. Their shapes depend on
those of the arrays alone and nothing is read back. Scratch memory lies in the `Workspace` that is passed; without one a
call allocates its own, which goes back to the pool of the stream in order. To capture a call in a CUDA graph, either
make it before with a `Workspace` that lives as long as the graph and pass `maps` on the GPU, so that the graph reads
what they hold when it runs; or record it with `launch_plan.record_launches` and capture the plan.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from framefuse.cuda import device, kernel
from framefuse.cuda.device import GRAIN
from framefuse.cuda.launch_plan import Workspace, keep
from framefuse.errors import UsageError
from framefuse.kernels.arrays import device_table
from framefuse.kernels.boxes import head_cuda
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

WRITING = 64
"""Blocks that write the objects of a frame after `merge_views`, 8 at a time each."""

LISTED = ("end2end", "detr")
"""Layouts without duplicates, which nothing suppresses."""

LIKELY = 1 / 64
"""Score above which most boxes of `nms` are thought to be, which is to share out work evenly and nothing else."""
LEAST = 2.0**-40
"""Where the ranks of boxes that the edge of a view cuts end, to the same end."""

LOOK = 8
"""Integers that describe the view of a row of the batch: `Look` in merge.cu."""


class Scratch:
    """Memory that the launches of one call hand to each other, allocated on the current stream.

    Attributes:
        words: of 32 candidates each, that the largest window has.
        at: address of each array.
        candidates: arguments that the filters of all layouts and `rank` share.
    """

    def __init__(self, batch: int, capacity: int, room: int, detections: int, suppressing: int, sides: int = 4) -> None:
        self.batch, self.room, self.detections, self.suppressing = batch, room, detections, suppressing
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
        self.candidates = {name: self.at[name] for name in ("counters", "keys", "boxes", "labels")}
        self.candidates |= {"batch": batch, "capacity": capacity}


class Asked(NamedTuple):
    """The arguments of `boxes.detections` that choose boxes."""

    layout: str
    conf: float
    limit: float
    """Overlap above which the weaker box is dropped; of oriented boxes the distance below which (`distance_below`)."""
    max_det: int
    max_candidates: int
    classes: tuple[int, ...] | None
    agnostic: bool
    activation: str | None
    extra: int
    oriented: bool


def detections(
    outputs: Sequence[Any], maps: Any, asked: Asked, extras: Any, out: Found | None, workspace: Workspace | None
) -> Found:
    """`boxes.detections`, also of its errors, on CuPy's current device and stream; the result stays on the GPU."""
    stream, gpu, batch = device.current_stream(), device.current_gpu(), len(maps)
    layout, max_det = asked.layout, asked.max_det
    if layout == head_cuda.LAYOUT:
        head = head_cuda.Head.of(outputs)
        if head.batch < batch:
            raise UsageError(f"the {layout} outputs have {head.batch} images, the maps {batch}")
        heads = head_cuda.read_head(head, _table("levels", head.table, workspace, stream), asked.conf)
    else:
        heads = head_cuda.read(outputs, layout, asked.activation, batch, asked.extra)
    if heads.capacity > 2**31 - 1:
        raise UsageError(f"{layout}: {heads.capacity} candidates an image are more than 2^31 - 1")
    capacity = max(heads.capacity, 1)
    room, suppressing = max(min(capacity, asked.max_candidates), 1), layout not in LISTED
    work = _scratch(workspace, gpu, stream, batch, capacity, room, max_det, suppressing)
    (table,) = device_table(wanted, asked.classes, heads.classes)
    if out is None:
        out = Found.make(batch, max_det, device.cupy().empty, sides=5 if asked.oriented else 4)
    given = {"anchors": heads.anchors, "classes": heads.classes or (0 if asked.classes is None else table.size)}
    given |= {"confidence": asked.conf, "wanted": table}
    kernel.launch(heads.symbol, stream=stream, **given, **heads.arguments, **work.candidates)
    rows = {f"out_{name}": array for name, array in out._asdict().items()}
    if asked.oriented:
        _select_oriented(work, heads, asked, rows, workspace or Workspace(), stream)
        return out
    rows |= {"maps": _table("maps", maps, workspace, stream) if type(maps) is np.ndarray else maps, "indices": 0}
    _select(work, asked.conf, asked.limit, asked.agnostic, rows, stream)
    if extras is not None:
        found = {"anchors": out.anchors, "counts": out.counts, "detections": max_det, "batch": batch}
        given = heads.extras | found | {"extra": asked.extra, "gathered": extras}
        kernel.launch(f"gather_extras_{heads.sample}", stream=stream, **given)
    return out


def nms(
    boxes: Any,
    scores: Any,
    classes: Any,
    threshold: float,
    max_det: int | None,
    out: Any,
    workspace: Workspace | None = None,
    stream: int | None = None,
) -> tuple[Any, Any]:
    """`boxes.nms` on CuPy's current device and stream: indices (max_det,) int32, and (1,) int32, how many there are."""
    view, points = head_cuda.View.of(boxes), head_cuda.View.of(scores)
    count, rotated = view.shape[0], view.shape[1] == 5
    if (view.sample, points.sample) != ("f32", "f32"):
        raise UsageError(f"boxes are {boxes.dtype}, scores {scores.dtype}", remedy="pass float32")
    room, capacity = max(count if max_det is None else min(count, max_det), 1), max(count, 1)
    stream = device.current_stream() if stream is None else stream
    sizes = 1, capacity, capacity, room, True, 8 if rotated else 4
    work = _scratch(workspace, device.current_gpu(), stream, *sizes)
    target, counted = (device.cupy().empty(room, np.int32), device.cupy().empty(1, np.int32)) if out is None else out
    labels, words = (0, 1) if classes is None else head_cuda.integers("classes", classes)
    arguments: dict[str, Any] = {"values": view.address, "pitch": view.strides[0], "scores": points.address}
    arguments |= {"class_ids": labels, "label_words": words, "anchors": count, **work.candidates}
    if rotated:
        del arguments["batch"]
    else:
        arguments |= {"image_pitch": 0, "scores_image_pitch": 0, "class_ids_image_pitch": 0}
        arguments |= {"scores_pitch": 1, "class_ids_pitch": 1}
        arguments |= {"classes": 0, "confidence": -np.inf, "wanted": 0}
    kernel.launch("filter_rotated" if rotated else "filter_listed_f32", stream=stream, **arguments)
    suffix = "_rotated" if rotated else ""
    _select(work, LIKELY, threshold, classes is None, _indices(target, counted), stream, suffix)
    return target, counted


def place_cells(output: Any, placed: Any, size: tuple[int, int], conf: float, *, stream: int) -> None:
    """Boxes of YOLOX as layout yolov5 has them, on CuPy's current device.

    Args:
        output: (batch, anchors, 5 + classes) on the GPU: see `postprocess.decoders.yolox`. There is an anchor for each
            cell of strides 8, 16, 32 and so on.
        placed: the same shape, float32, C-contiguous; rows whose objectness is not above `conf` become 0.
        size: height and width of the model input.
        stream: pointer of a CUDA stream.
    """
    view = head_cuda.View.of(output)
    batch, anchors, columns = view.shape
    given = {"batch": batch, "anchors": anchors, "columns": columns, "height": size[0], "width": size[1]}
    kernel.launch(f"place_cells_{view.sample}", stream=stream, **view.named(), **given, confidence=conf, placed=placed)


def count_non_finite(values: Any, counts: Any, *, stream: int) -> None:
    """counts[b] += number of values[b] that are NaN or infinite.

    Args:
        values: (batch, ...) float32 on the GPU, C-contiguous.
        counts: (batch,) int32 on the GPU.
        stream: pointer of a CUDA stream.
    """
    places = {"values": values, "image_pitch": values[0].size, "n": len(counts), "size": values[0].size}
    kernel.launch("count_non_finite_f32", stream=stream, **places, counts=counts)


class Merged(NamedTuple):
    """Objects of frames, padded to K = max_det rows; rows at and beyond counts[b] are undefined."""

    boxes: Any
    """(frames, K, 4) float32: x1, y1, x2, y2 in pixels."""
    scores: Any
    """(frames, K) float32, descending."""
    classes: Any
    """(frames, K) int32."""
    views: Any
    """(frames, K) int32: number of the view in which each was found."""
    counts: Any
    """(frames,) int32."""

    @classmethod
    def make(cls, frames: int, max_det: int, new: Callable[..., Any]) -> Merged:
        """Arrays made by `new(shape, dtype)`, one after the other."""
        rows = (frames, max_det)
        floats = new((*rows, 4), np.float32), new(rows, np.float32)
        return cls(*floats, new(rows, np.int32), new(rows, np.int32), new((frames,), np.int32))


def merge_views(
    found: Found, looks: Any, views: int, *, agnostic: bool, out: Merged, workspace: Workspace | None = None
) -> None:
    """Join the objects of each frame's views, on CuPy's current device and stream. Reads nothing back.

    Args:
        found: objects of the rows of a batch, in pixels of their frame.
        looks: (batch, LOOK) int32 on the GPU: left, top, right and bottom of the row's view in pixels of the frame; the
            sides that lie inside the frame (1 left, 2 top, 4 right, 8 bottom); the frame's number in `out`, -1: the row
            is not merged; the number of the view in its frame; 0. Views of a frame are neighbours, in order from 0.
        views: most views that a frame has.
        agnostic: whether boxes of different classes may be one object.
        out: the objects of each frame, on the GPU.
    """
    (batch, detections), frames = found.scores.shape, len(out.counts)
    room, stream = views * detections, device.current_stream()
    work = _scratch(workspace, device.current_gpu(), stream, frames, room, room, room, True, 8)
    workspace = workspace or Workspace()
    kept = workspace.get("views_kept", (frames, room), np.int32)
    counts = workspace.get("views_counts", (frames,), np.int32)
    verdicts = workspace.get("views_verdicts", (batch, detections), np.int32)
    grown = workspace.get("views_grown", (frames, room, 4), np.float32)
    scores = workspace.get("views_scores", (frames, room), np.float32)
    labels = {"looks": looks, "found_classes": found.classes, "batch": batch, "detections": detections}
    rows = {"found_boxes": found.boxes, "found_scores": found.scores, "found_counts": found.counts}
    rows |= labels | {"verdicts": verdicts, "agnostic": int(agnostic)}
    boxes = {"kept": kept, "kept_counts": counts, "grown": grown, "grown_scores": scores, "room": room}
    boxes |= {"blocks": WRITING, "images": frames}
    kernel.launch("gather_views", stream=stream, **work.candidates | rows)
    _select(work, LEAST, 0.5, agnostic, _indices(kept, counts), stream, "_views")
    kernel.launch("grow_views", stream=stream, **rows, **boxes)
    written = {f"out_{name}": array for name, array in out._asdict().items()}
    kernel.launch("order_views", stream=stream, **labels, **boxes, **written)


def _indices(target: Any, counted: Any) -> dict[str, Any]:
    """Rows of a result that are indices of candidates and nothing else."""
    unused = dict.fromkeys(("maps", "out_boxes", "out_scores", "out_anchors", "out_non_finite"), 0)
    return {**unused, "out_classes": target, "out_counts": counted, "indices": 1}


def _select(
    work: Scratch, conf: float, threshold: float, agnostic: bool, rows: dict[str, Any], stream: int, suffix: str = ""
) -> None:
    """From candidates to the rows of the result: sorted, and without what is suppressed."""
    batch, room, suppressing = work.batch, work.room, work.suppressing
    given = rows | _ranked(work, conf, stream, suffix)
    given |= {name: work.at[name] for name in ("counters", "progress", "local", "dense", "removed", "kept")}
    given |= {"batch": batch, "room": room, "words": work.words, "detections": work.detections}
    given |= {"suppressing": int(suppressing), "threshold": threshold, "agnostic": int(agnostic)}
    given["blocks"] = (COMPARING if batch == 1 else COMPARED) if suppressing else 1
    bounds = [0, min(room, CHUNK), *range(CHUNK + WINDOW, room, WINDOW), room] if suppressing else [0, room]
    for begin, end in pairwise(bounds):
        if begin == 0 or begin < end:
            kernel.launch(f"suppress{suffix}", stream=stream, begin=begin, end=end, **given)


def _ranked(work: Scratch, conf: float, stream: int, suffix: str = "") -> dict[str, Any]:
    """Sort the candidates; where their keys, boxes and labels then are."""
    blocks = BLOCKS if work.batch == 1 else RANKING * BLOCKS // min(max(work.batch, 1), 8)
    targets = {name: work.at[name] for name in ("sorted_keys", "sorted_boxes", "sorted_labels")}
    given = work.candidates | targets | {"room": work.room, "confidence": conf, "blocks": blocks}
    kernel.launch(f"rank{suffix}", stream=stream, **given)
    return {name.removeprefix("sorted_"): place for name, place in targets.items()}


def _select_oriented(
    work: Scratch, heads: head_cuda.Heads, asked: Asked, rows: dict[str, Any], workspace: Workspace, stream: int
) -> None:
    """From candidates to the rows of a result of oriented boxes."""
    batch, room = work.batch, work.room
    spreads = workspace.get("oriented_spreads", (batch, room, 8), np.float32)
    turned = workspace.get("oriented_boxes", (batch, room, 5), np.float32)
    dropped = workspace.get("oriented_dropped", (batch, room), np.int32)
    found = _ranked(work, asked.conf, stream)
    shared = {"counters": work.at["counters"], "room": room, "batch": batch}
    listed = {"keys": found["keys"], "labels": found["labels"], "turned": turned}
    given = heads.boxes | {"last": heads.columns + asked.extra - 1, "spreads": spreads}
    kernel.launch(f"spread_oriented_{heads.sample}", stream=stream, **given, **listed, **shared)
    given = {"spreads": spreads, "limit": asked.limit, "agnostic": int(asked.agnostic), "dropped": dropped}
    kernel.launch("drop_oriented", stream=stream, **given, **shared)
    given = rows | listed | shared | {"dropped": dropped, "detections": work.detections}
    kernel.launch("place_oriented", stream=stream, **given)


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


def wanted(classes: tuple[int, ...] | None, count: int) -> tuple[NDArray[np.uint8]]:
    """(count,) 1 for each class to keep; `count` 0: as long as needed."""
    if classes is None:
        return (np.ones(max(count, 1), np.uint8),)
    return (np.isin(np.arange(count or max(classes, default=0) + 1), classes).astype(np.uint8),)
