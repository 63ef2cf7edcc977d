"""Instance masks and run-length encoding on a GPU: launches only; what was found is read back by `to_coco` alone."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from framefuse.cuda import kernel
from framefuse.cuda.launch_plan import Workspace
from framefuse.errors import UsageError
from framefuse.kernels.arrays import checked, device_table, kind, on_gpu, pitch
from framefuse.kernels.masks.taps import Region, device_taps, taps

MAX_PIXELS = 2**31 - 1
"""Pixels of a mask: runs count them in int32."""

TEXT_PER_RUN = 4
"""Characters kept for each run; one to two are usual."""


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
    size: tuple[int, int]
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


def row_starts(count: int, start: float, length: float, samples: int) -> tuple[NDArray[np.int32]]:
    """The first pixel whose lower tap is at least r, for r = 0..samples."""
    return (np.searchsorted(taps(count, start, length, samples)[0], np.arange(samples + 1)).astype(np.int32),)


class Request(NamedTuple):
    """The checked arguments that all instance kernels share."""

    gpu: bool
    prototypes: Any
    coefficients: Any
    boxes: Any
    size: tuple[int, int]
    content: Region
    crop: str
    count: Any
    """Address or array of the number of valid instances on a GPU; 0: all."""

    @classmethod
    def of(
        cls,
        prototypes: Any,
        coefficients: Any,
        boxes: Any,
        size: tuple[int, int],
        content: Region | None,
        crop: str,
        count: Any,
    ) -> Request:
        """
        Raises:
            UsageError: an array has the wrong shape or dtype, or another argument a wrong value.
        """
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
        return cls(gpu, prototypes, coefficients, boxes, size, region, crop, valid)


def _logits(request: Request, workspace: Workspace) -> tuple[dict[str, Any], tuple[Any, ...]]:
    """Find the logits of each instance at prototype resolution, where its box needs them.

    Returns:
        What later kernels share, and the arguments of `row_starts`.
    """
    channels, mh, mw = request.prototypes.shape
    n, (height, width), (left, top, wide, high) = len(request.boxes), request.size, request.content
    plan, logits = workspace.get("plan", (n, 8), np.int32), workspace.get("logits", (n, mh, mw), np.float32)
    tables = device_taps(request.size, request.content, (mh, mw))
    shared = {"plan_address": plan, "n": n, "samples_x": mw, "samples_y": mh}
    indices = {name: tables[name] for name in ("across_index", "down_index")}
    extent = {"width": width, "height": height}
    scales: dict[str, Any] = {"scale_x": wide / width, "scale_y": high / height, "origin_x": left, "origin_y": top}
    given = {"boxes_address": request.boxes, "count_address": request.count}
    crop = int(request.crop == "prototypes")
    kernel.launch("instance_plan", **shared, **indices, **extent, **scales, **given, crop=crop)
    prototypes = request.prototypes
    pitches = {"channels": channels, "plane_pitch": pitch(prototypes, 0), "row_pitch": pitch(prototypes, 1)}
    given = {"prototypes_address": prototypes, "coefficients_address": request.coefficients}
    symbol = f"instance_logits_{kind(prototypes)}"
    kernel.launch(symbol, **shared, **indices, **pitches, **given, logits_address=logits)
    arguments = {**shared, **tables, **extent, "logits_address": logits}
    return arguments, (height, top, high, mh)


def paint(symbol: str, request: Request, labels: Any, targets: int, out: Any, workspace: Workspace) -> None:
    """Masks into (n, h, w), or labels into (1, h, w) with labels (n,)."""
    places = {"target_address": out, "item_pitch": out.strides[0], "row_pitch": out.strides[1]}
    vectors = all(value % 4 == 0 for value in (*out.strides[:2], out.shape[2], out.data.ptr))
    given = _logits(request, workspace)[0]
    kernel.launch(symbol, **given, **places, labels_address=labels, targets=targets, vectors=int(vectors))


def instance_runs(request: Request, capacity: int, workspace: Workspace) -> DeviceRuns:
    positions, counts = _positions(len(request.boxes), capacity, workspace)
    given, starts = _logits(request, workspace)
    (down_start,) = device_table(row_starts, *starts)
    runs = {"positions_address": positions, "capacity": capacity, "ends_address": counts}
    kernel.launch("instance_runs", **given, **runs, down_start=down_start)
    return _encode(positions, counts, request.size, workspace)


def mask_runs(masks: Any, capacity: int, workspace: Workspace) -> DeviceRuns:
    n, height, width = masks.shape
    positions, counts = _positions(n, capacity, workspace)
    places = {"masks_address": masks, "item_pitch": masks.strides[0], "row_pitch": masks.strides[1]}
    runs = {"positions_address": positions, "capacity": capacity, "ends_address": counts}
    kernel.launch("mask_positions", **places, **runs, n=n, width=width, height=height)
    return _encode(positions, counts, (height, width), workspace)


def _positions(n: int, capacity: int, workspace: Workspace) -> tuple[Any, Any]:
    if capacity < 1 or n * capacity > 2**40:
        raise UsageError(f"capacity {capacity} is not a number of runs")
    return workspace.get("positions", (n, capacity), np.int32), workspace.get("counts", (n,), np.int32)


def _encode(positions: Any, counts: Any, size: tuple[int, int], workspace: Workspace) -> DeviceRuns:
    n, capacity = positions.shape
    room = TEXT_PER_RUN * capacity
    lengths, text = workspace.get("lengths", (n, capacity), np.int32), workspace.get("text", (n, room), np.uint8)
    text_lengths = workspace.get("text_lengths", (n,), np.int32)
    shared = {"positions_address": positions, "capacity": capacity, "ends_address": counts, "n": n}
    kernel.launch("run_lengths", **shared, lengths_address=lengths)
    kernel.launch("run_text", **shared, text_address=text, room=room, text_ends_address=text_lengths)
    return DeviceRuns(lengths, counts, text, text_lengths, size)
