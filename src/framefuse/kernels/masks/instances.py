"""Instance masks from prototypes, and COCO run-length encoding, on the host or on the GPU where the arrays lie.

On a GPU a call only launches (see `kernels.masks`); `count` is then the device array that says how many of the n
instances are valid, so nothing is read back between suppression and masks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from framefuse.cuda import kernel
from framefuse.cuda.launch_plan import Workspace
from framefuse.errors import UsageError
from framefuse.kernels.arrays import address, checked, device_table, kind, new, on, on_gpu, pitch
from framefuse.kernels.cpu import _function, _scratch
from framefuse.kernels.masks.call import Region, device_taps, taps

Crop = Literal["image", "prototypes"]
Size = tuple[int, int]

MAX_PIXELS = 2**31 - 1
"""Pixels of a mask: runs count them in int32."""

TEXT_PER_RUN = 4
"""Characters kept for each run; one to two are usual."""


@dataclass(frozen=True, eq=False)
class Runs:
    """Run lengths of n masks of one size: pixels unset, set, unset, ... down the columns, as COCO counts them.

    `runs[rows]` selects with a mask, a slice or indices; the lengths are shared.
    """

    lengths: NDArray[np.int32]
    """The runs of all masks; those of mask i are lengths[starts[i]:ends[i]]."""
    starts: NDArray[np.int32]
    ends: NDArray[np.int32]
    size: Size
    """Height and width of a mask."""

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, rows: Any) -> Runs:
        return Runs(self.lengths, self.starts[rows], self.ends[rows], self.size)

    @classmethod
    def concatenate(cls, parts: Sequence[Runs]) -> Runs:
        """The masks of all parts, which have one size and are at least one."""
        before = np.cumsum([0, *(len(part.lengths) for part in parts)], dtype=np.int32)
        starts = [part.starts + first for part, first in zip(parts, before, strict=False)]
        ends = [part.ends + first for part, first in zip(parts, before, strict=False)]
        lengths = np.concatenate([part.lengths for part in parts])
        return cls(lengths, np.concatenate(starts), np.concatenate(ends), parts[0].size)

    def decode(self) -> NDArray[np.bool_]:
        """(n, height, width): the masks themselves."""
        height, width = self.size
        masks = np.empty((len(self), height, width), np.bool_)
        for mask, start, end in zip(masks, self.starts.tolist(), self.ends.tolist(), strict=True):
            states = np.arange(end - start) % 2 == 1
            mask.T[:] = states.repeat(self.lengths[start:end]).reshape(width, height)
        return masks

    def labels(self, values: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """(height, width) uint8: values[i] where mask i is set, the first mask on top; elsewhere 0. The last axis is
        contiguous, the rows are apart."""
        height, width = self.size
        if values.shape != (len(self),):
            raise UsageError(f"{len(self)} masks of {width}x{height}, but values {values.shape}")
        labels = np.zeros((height, 64 * -(-width // 64)), np.uint8)  # the kernel writes 64 columns at once
        if len(self):
            starts, ends, values = map(np.ascontiguousarray, (self.starts, self.ends, values))
            changes = _scratch.get("label changes", (64 * (height + 1),), np.uint8)
            place = address(labels), labels.shape[1], height
            _function("run_labels")(self.lengths, starts, ends, values, *place, changes)
        return labels[:, :width]

    @property
    def areas(self) -> NDArray[np.int64]:
        """(n,): pixels that are set."""
        spans = zip(self.starts.tolist(), self.ends.tolist(), strict=True)
        return np.array([self.lengths[start + 1 : end : 2].sum() for start, end in spans], np.int64)

    def to_coco(self) -> list[dict[str, Any]]:
        """`{"size": [height, width], "counts": bytes}` of each mask, exactly as pycocotools' `encode` writes it."""
        if not len(self.ends):
            return []
        text = np.empty(7 * int((self.ends - self.starts).sum()), np.uint8)
        starts, ends = np.ascontiguousarray(self.starts), np.ascontiguousarray(self.ends)
        text_ends = np.empty_like(ends)
        _function("run_text")(self.lengths, starts, ends, text, text_ends)
        data, bounds = text.tobytes(), [0, *text_ends.tolist()]
        return [{"size": list(self.size), "counts": data[a:b]} for a, b in pairwise(bounds)]

    def to_json(self) -> list[dict[str, Any]]:
        """`to_coco` with `counts` as text, as COCO's files have them."""
        return [{**mask, "counts": mask["counts"].decode()} for mask in self.to_coco()]


class DeviceRuns(NamedTuple):
    """Run lengths of n masks of one size, and COCO's compressed strings of them, in device memory."""

    lengths: Any
    """(n, capacity) int32: pixels unset, set, unset, ... down the columns."""
    counts: Any
    """(n,) int32: runs of each mask. Runs beyond the capacity are counted but not kept."""
    text: Any
    """(n, room) uint8: the compressed strings."""
    text_lengths: Any
    """(n,) int32: characters of each."""
    size: Size
    """Height and width of a mask."""

    def to_coco(self) -> list[dict[str, Any]]:
        """`{"size": [height, width], "counts": bytes}` of each mask, as pycocotools writes it. Waits.

        Raises:
            UsageError: a mask had more runs than the capacity.
        """
        counts, lengths = self.counts.get(), self.text_lengths.get()
        longest, room = int(counts.max(initial=0)), int(lengths.max(initial=0))
        if longest > self.lengths.shape[1] or room > self.text.shape[1]:
            raise UsageError(
                f"a mask has {longest} runs in {room} characters, more than the capacity of {self.lengths.shape[1]}",
                remedy=f"pass capacity={max(longest, -(-room // TEXT_PER_RUN))}",
            )
        text = self.text[:, : max(room, 1)].get()
        return [
            {"size": list(self.size), "counts": text[i, :length].tobytes()} for i, length in enumerate(lengths.tolist())
        ]


def instance_masks(
    prototypes: Any,
    coefficients: Any,
    boxes: Any,
    size: Size,
    *,
    content: Region | None = None,
    crop: Crop = "image",
    out: Any | None = None,
    count: Any | None = None,
    workspace: Workspace | None = None,
    stream: int | None = None,
) -> Any:
    """mask[i] = bilinear(coefficients[i] . prototypes) > 0, cropped to the box, at the size of the image.

    `kernels.reference.instance_logits` states the formula, which call of the training frameworks each `crop` equals,
    and the arguments. Instances are independent: threads may fill disjoint slices of `out` at once.

    Args:
        count: on a GPU: (1,) int32, how many of the instances are valid (the others give empty masks); None: all.
        out: (n, *size) bool or uint8; it gets 0 and 1. Rows may be padded, pixels of a row must be adjacent.
        workspace: on a GPU: where intermediate results lie; a call in a captured graph needs one.
        stream: pointer of a CUDA stream; None: CuPy's current one.

    Raises:
        UsageError: an array has the wrong shape or dtype.
    """
    with on(on_gpu(prototypes), stream):
        request = _Request.of(prototypes, coefficients, boxes, size, content, crop, count)
        masks = _target(out, request.gpu, (len(request.boxes), *size), "bool", "uint8")
        _paint(request, None, masks, workspace)
    return masks if out is None else out


def instance_labels(
    prototypes: Any,
    coefficients: Any,
    boxes: Any,
    size: Size,
    *,
    labels: Any | None = None,
    content: Region | None = None,
    crop: Crop = "image",
    out: Any | None = None,
    count: Any | None = None,
    workspace: Workspace | None = None,
    stream: int | None = None,
) -> Any:
    """One label map of all instances, the first on top: `labels[i]` where the mask of `instance_masks` is set, else 0.

    Args:
        labels: (n,) uint8; 1 + i % 255 when left out.
        out: `size` uint8.

    Raises:
        UsageError: an array has the wrong shape or dtype.
    """
    with on(on_gpu(prototypes), stream):
        request = _Request.of(prototypes, coefficients, boxes, size, content, crop, count)
        gpu, n = request.gpu, len(request.boxes)
        if labels is None:
            (labels,) = device_table(_labels, max(n, 1)) if gpu else _labels(n)
        else:
            labels = checked("labels", labels, gpu, (n,), "uint8")
        painted = _target(out, gpu, size, "uint8")
        _paint(request, labels, painted[None], workspace)
    return painted if out is None else out


def _labels(n: int) -> tuple[NDArray[np.uint8]]:
    return ((1 + np.arange(n) % 255).astype(np.uint8),)


def instance_runs(
    prototypes: Any,
    coefficients: Any,
    boxes: Any,
    size: Size,
    *,
    content: Region | None = None,
    crop: Crop = "image",
    count: Any | None = None,
    capacity: int = 8192,
    workspace: Workspace | None = None,
    stream: int | None = None,
) -> Runs | DeviceRuns:
    """Run lengths of the masks of `instance_masks`, without a mask being made.

    Args:
        capacity: on a GPU: runs kept of each mask.

    Raises:
        UsageError: an array has the wrong shape or dtype.
    """
    with on(on_gpu(prototypes), stream):
        request = _Request.of(prototypes, coefficients, boxes, size, content, crop, count)
        if request.gpu:
            workspace = workspace or Workspace()
            return _encoded(_instance_positions(request, capacity, workspace), size, workspace)
    first, scratch = _host(request)
    (starts,) = _row_starts(*request.down)
    ends, capacity = np.zeros(len(request.boxes), np.int32), 4096
    while True:
        lengths = _scratch.get("runs", (capacity,), np.int32)
        if len(ends):
            _function("instance_runs")(*first, starts, lengths, ends, *scratch)
        capacity = int(ends[-1]) if len(ends) else 0
        if capacity <= lengths.size:
            break
    return Runs(lengths[:capacity].copy(), np.concatenate(([0], ends)).astype(np.int32)[:-1], ends, size)


def mask_runs(
    masks: Any, *, capacity: int = 8192, workspace: Workspace | None = None, stream: int | None = None
) -> Runs | DeviceRuns:
    """Run lengths of (n, height, width) masks, bool or uint8, where non-zero is set.

    Args:
        capacity: on a GPU: runs kept of each mask.

    Raises:
        UsageError: wrong shape or dtype, or a mask without pixels.
    """
    if masks.ndim != 3 or 0 in masks.shape[1:]:
        raise UsageError(f"masks have shape {tuple(masks.shape)}, expected (n, height, width) with pixels")
    gpu, (_, height, width) = on_gpu(masks), masks.shape
    with on(gpu, stream):
        masks = checked("masks", masks, gpu, masks.shape, "bool", "uint8")
        if gpu:
            places = {"masks_address": masks, "item_pitch": masks.strides[0], "row_pitch": masks.strides[1]}
            places |= {"n": len(masks), "width": width, "height": height}
            workspace = workspace or Workspace()
            positions = _positions("mask_positions", places, len(masks), capacity, workspace)
            return _encoded(positions, (height, width), workspace)
    offsets = _scratch.get("offsets", (width + 1,), np.int32)[: width + 1]
    parts: list[NDArray[np.int32]] = []
    capacity = 4096
    for mask in masks:
        while True:
            lengths = _scratch.get("runs", (capacity,), np.int32)
            _function("mask_runs")(address(mask), mask.strides[0], height, width, lengths, offsets)
            capacity = max(capacity, int(offsets[width]))
            if offsets[width] <= lengths.size:
                break
        parts.append(lengths[: offsets[width]].copy())
    bounds = np.cumsum([0, *map(len, parts)], dtype=np.int32)
    return Runs(np.concatenate(parts) if parts else np.empty(0, np.int32), bounds[:-1], bounds[1:], (height, width))


def enlarged(content: Region) -> tuple[int, Region]:
    """The smallest enlargement of prototypes, 1, 2 or 4, that gives `content` whole samples as its edges, and the edges
    in these; if none does, 1 and `content`.

    The YOLO frameworks cut the padding off in whole samples, and enlarge the logits first where it has none
    (`process_mask_native`).
    """
    left, top, width, height = content
    edges = np.array((left, top, left + width, top + height))
    for factor in (1, 2, 4):
        whole = np.round(edges * factor)
        if (np.abs(edges * factor - whole) < 1e-3).all():
            left, top, right, bottom = whole.tolist()
            return factor, (left, top, right - left, bottom - top)
    return 1, content


@lru_cache(maxsize=64)
def _enlarging(samples: int, factor: int) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Taps that enlarge an axis, and one more that stands for what is outside."""
    index, weight = taps(samples * factor, 0, samples, samples)
    return np.append(index, index[-1:] + (factor == 1)).astype(np.int32), np.append(weight, np.float32(0))


def _row_starts(count: int, start: float, length: float, samples: int) -> tuple[NDArray[np.int32]]:
    """The first pixel whose lower tap is at least r, for r = 0..samples."""
    return (np.searchsorted(taps(count, start, length, samples)[0], np.arange(samples + 1)).astype(np.int32),)


class _Request(NamedTuple):
    """The checked arguments that all instance kernels share."""

    gpu: bool
    prototypes: Any
    coefficients: Any
    boxes: Any
    size: Size
    content: Region
    crop: str
    count: Any
    """Address or array of the number of valid instances on a GPU; 0: all."""
    factor: int
    """By which logits are enlarged before they are stretched."""
    stretched: Region
    """`content` within enlarged logits."""

    @property
    def samples(self) -> Size:
        """Height and width of enlarged logits."""
        return self.prototypes.shape[1] * self.factor, self.prototypes.shape[2] * self.factor

    @property
    def down(self) -> tuple[int, float, float, int]:
        """The arguments of `taps` down."""
        return self.size[0], self.stretched[1], self.stretched[3], self.samples[0]

    @classmethod
    def of(
        cls, prototypes: Any, coefficients: Any, boxes: Any, size: Size, content: Region | None, crop: str, count: Any
    ) -> _Request:
        """Raise UsageError if an array has the wrong shape or dtype, or another argument a wrong value."""
        gpu, n = on_gpu(prototypes), len(boxes)
        if not gpu:
            coefficients, boxes = (np.ascontiguousarray(array, np.float32) for array in (coefficients, boxes))
        if prototypes.ndim != 3 or 0 in prototypes.shape:
            raise UsageError(f"prototypes have shape {tuple(prototypes.shape)}, expected (c, mh, mw)")
        if not gpu and prototypes.strides[2] != prototypes.itemsize:
            prototypes = np.ascontiguousarray(prototypes)
        channels, mh, mw = prototypes.shape
        prototypes = checked("prototypes", prototypes, gpu, prototypes.shape, "float32", *["float16"] * gpu)
        coefficients = checked("coefficients", coefficients, gpu, (n, channels), "float32", dense=2)
        boxes = checked("boxes", boxes, gpu, (n, 4), "float32", dense=2)
        if min(size) < 1 or size[0] * size[1] > MAX_PIXELS:
            raise UsageError(f"size {size} is not a height and a width of 1 to {MAX_PIXELS} pixels in all")
        if crop not in ("image", "prototypes"):
            raise UsageError(f"unknown crop {crop!r}", remedy="choose 'image' or 'prototypes'")
        region = content or (0, 0, mw, mh)
        if not (region[2] > 0 and region[3] > 0):
            raise UsageError(f"content {content} has no area")
        valid = 0 if count is None else checked("count", count, gpu, (1,), "int32")
        scaled = enlarged(region) if crop == "image" else (1, region)
        return cls(gpu, prototypes, coefficients, boxes, size, region, crop, valid, *scaled)


def _target(out: Any, gpu: bool, shape: tuple[int, ...], *dtypes: str) -> Any:
    """`out` checked, or new memory; on the host without a pixel that is set."""
    if out is None:
        return new(gpu, shape, dtypes[0]) if gpu else np.zeros(shape, dtypes[0])
    found = checked("out", out, gpu, shape, *dtypes)
    if not gpu:
        found[...] = 0
    return found


def _host(request: _Request) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """The arguments that come first in the kernels on the host, and last: scratch for logits (a border of one sample
    around all prototypes) and for stretched rows."""
    prototypes, factor = request.prototypes, request.factor
    channels, mh, mw = prototypes.shape
    (left, _, width, _), down = request.stretched, taps(*request.down)
    across = taps(request.size[1], left, width, request.samples[1])
    places = address(prototypes), channels, pitch(prototypes, 0), pitch(prototypes, 1)
    enlarging = factor, *_enlarging(mw, factor), *_enlarging(mh, factor)
    stretched = max((mh + 1) * request.size[1], (max(mh, mw) + 1) * (factor + 1))
    scratch = _scratch.get("logits", ((mh + 1) * (factor + 1) * (mw + 1),)), _scratch.get("stretched", (stretched,))
    return (*places, request.coefficients, _plan(request, across[0], down[0]), *across, *down, *enlarging), scratch


def _paint(request: _Request, labels: Any, out: Any, workspace: Workspace | None) -> None:
    """Masks into (n, h, w), or with labels (n,) one map of them into (1, h, w)."""
    n, masks = len(request.boxes), labels is None
    if request.gpu:
        places = {"target_address": out, "item_pitch": out.strides[0], "row_pitch": out.strides[1], "targets": len(out)}
        vectors = all(value % 4 == 0 for value in (*out.strides[:2], out.shape[2], out.data.ptr))
        given = _logits(request, workspace or Workspace())
        symbol, ink = ("instance_masks", 0) if masks else ("instance_labels", labels)
        kernel.launch(_symbol(symbol, request), **given, **places, labels_address=ink, vectors=int(vectors))
    elif n:
        first, scratch = _host(request)
        values, item_pitch = (np.ones(n, np.uint8), out.strides[0]) if masks else (labels, 0)
        _function("instance_paint")(*first, values, address(out), item_pitch, out.strides[1], *scratch)


def _plan(request: _Request, across: NDArray[np.int32], down: NDArray[np.int32]) -> NDArray[np.int32]:
    """(n, 8): for each box the samples kept (left, right, top, bottom), then the pixels that may be set."""
    (height, width), samples, boxes = request.size, request.prototypes.shape[1:], request.boxes
    if request.crop == "prototypes":
        left, top, wide, high = request.content
        boxes = boxes * np.array((wide / width, high / height) * 2, np.float32) + np.array((left, top) * 2, np.float32)
    with np.errstate(invalid="ignore"):
        empty = ~((boxes[:, 0] < boxes[:, 2]) & (boxes[:, 1] < boxes[:, 3]))
    edges = np.ceil(np.where(empty[:, None], 0, boxes))
    plan = np.empty((len(boxes), 8), np.int32)
    if request.crop == "image":
        plan[:, :4] = 0, samples[1], 0, samples[0]
        plan[:, 4:] = edges[:, [0, 2, 1, 3]].clip(0, (width, width, height, height))
        return plan
    plan[:, :4] = edges[:, [0, 2, 1, 3]].clip(0, (samples[1], samples[1], samples[0], samples[0]))
    for k, index in ((0, across), (2, down)):
        # A pixel may be set when one of its two taps is kept.
        plan[:, 4 + k] = np.searchsorted(index, plan[:, k] - 1)
        plan[:, 5 + k] = np.where(plan[:, k] < plan[:, k + 1], np.searchsorted(index, plan[:, k + 1] - 1, "right"), 0)
    return plan


def _symbol(name: str, request: _Request) -> str:
    return name if request.factor == 1 else f"{name}_enlarged"


def _logits(request: _Request, workspace: Workspace) -> dict[str, Any]:
    """Find the logits where boxes need them. Returns what later kernels share."""
    channels, mh, mw = request.prototypes.shape
    n, (height, width), (left, top, wide, high) = len(request.boxes), request.size, request.content
    plan, logits = workspace.get("plan", (n, 8), np.int32), workspace.get("logits", (n, mh, mw), np.float32)
    tables = device_taps(request.size, request.stretched, request.samples)
    extent = {"width": width, "height": height}
    shared = {"plan_address": plan, "n": n, "samples_x": mw, "samples_y": mh}
    indexed = shared | {name: tables[name] for name in ("across_index", "down_index")}
    scales: dict[str, Any] = {"scale_x": wide / width, "scale_y": high / height, "origin_x": left, "origin_y": top}
    given = {"boxes_address": request.boxes, "count_address": request.count, "crop": int(request.crop == "prototypes")}
    kernel.launch("instance_plan", **indexed, **extent, **scales, **given)
    prototypes = request.prototypes
    given = {"channels": channels, "plane_pitch": pitch(prototypes, 0), "row_pitch": pitch(prototypes, 1)}
    given |= {"prototypes_address": prototypes, "coefficients_address": request.coefficients, "factor": request.factor}
    kernel.launch(f"instance_logits_{kind(prototypes)}", **indexed, **given, logits_address=logits)
    return {**shared, **tables, **extent, "factor": request.factor, "logits_address": logits}


def _positions(symbol: str, given: dict[str, Any], n: int, capacity: int, workspace: Workspace) -> dict[str, Any]:
    """Launch the kernel that finds where the runs of n masks end. Returns the arguments of those that read them."""
    if capacity < 1 or n * capacity > 2**40:
        raise UsageError(f"capacity {capacity} is not a number of runs")
    positions, counts = workspace.get("positions", (n, capacity), np.int32), workspace.get("counts", (n,), np.int32)
    found = {"positions_address": positions, "capacity": capacity, "ends_address": counts, "n": n}
    kernel.launch(symbol, **given | found)
    return found


def _instance_positions(request: _Request, capacity: int, workspace: Workspace) -> dict[str, Any]:
    given = _logits(request, workspace)
    (given["down_start"],) = device_table(_row_starts, *request.down)
    return _positions(_symbol("instance_runs", request), given, len(request.boxes), capacity, workspace)


def _encoded(positions: dict[str, Any], size: Size, workspace: Workspace) -> DeviceRuns:
    n, capacity, get = positions["n"], positions["capacity"], workspace.get
    room = TEXT_PER_RUN * capacity
    lengths = get("lengths", (n, capacity), np.int32)
    kernel.launch("run_lengths", **positions, lengths_address=lengths)
    texts, text_lengths = get("text", (n, room), np.uint8), get("text_lengths", (n,), np.int32)
    kernel.launch("run_text", **positions, text_address=texts, room=room, text_ends_address=text_lengths)
    return DeviceRuns(lengths, positions["ends_address"], texts, text_lengths, size)


def packed_runs(
    prototypes: Any,
    coefficients: Any,
    boxes: Any,
    size: Size,
    *,
    content: Region | None = None,
    count: Any,
    capacity: int,
    packed: Any,
    rest: Any,
    counts: Any,
    workspace: Workspace,
) -> None:
    """On a GPU, CuPy's current stream: the run lengths of `instance_runs`, cropped in the image, behind each other, so
    that few bytes have to be copied to the host.

    Args:
        count: (1,) int32: valid instances, which come first.
        capacity: runs kept of each mask.
        packed: (room,) int32; what does not fit goes into `rest`.
        rest: (more,) int32; what does not fit there either is left out.
        counts: (n,) int32: runs of each mask, also those not kept; 0 for those that are not valid.

    Raises:
        UsageError: an array has the wrong shape or dtype.
    """
    request = _Request.of(prototypes, coefficients, boxes, size, content, "image", count)
    positions = _instance_positions(request, capacity, workspace)
    places = {"valid_address": count, "packed_address": packed, "rest_address": rest, "runs_address": counts}
    kernel.launch("pack_runs", **positions, **places, room=packed.size, more=rest.size)
