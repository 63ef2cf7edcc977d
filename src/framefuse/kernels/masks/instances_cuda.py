"""Instance masks and run-length encoding on a GPU: launches only; what was found is read back by `to_coco` alone."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from framefuse.cuda import device, kernel
from framefuse.cuda.workspace import Workspace
from framefuse.errors import UsageError
from framefuse.kernels.masks.cuda import checked, device_table, device_taps, on, pitch, target
from framefuse.kernels.masks.taps import Region, taps

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


def _starts(count: int, start: float, length: float, samples: int) -> tuple[NDArray[np.int32]]:
    """The first pixel whose lower tap is at least r, for r = 0..samples."""
    return (np.searchsorted(taps(count, start, length, samples)[0], np.arange(samples + 1)).astype(np.int32),)


class Request(NamedTuple):
    """The arguments that all instance kernels share, as the public functions take them."""

    prototypes: Any
    coefficients: Any
    boxes: Any
    size: tuple[int, int]
    content: Region | None
    crop: str
    count: Any


class Logits(NamedTuple):
    """The logits of each instance at prototype resolution, where its box needs them, and what later kernels share."""

    n: int
    arguments: dict[str, Any]
    starts: tuple[Any, ...]

    @classmethod
    def of(cls, request: Request, workspace: Workspace) -> Logits:
        prototypes, coefficients, boxes, size, content, crop, count = request
        prototypes = device.as_cupy(prototypes)
        if prototypes.ndim != 3 or 0 in prototypes.shape:
            raise UsageError(f"prototypes have shape {prototypes.shape}, expected (c, mh, mw)")
        prototypes = checked("prototypes", prototypes, prototypes.shape, "float32", "float16")
        channels, mh, mw = prototypes.shape
        n = len(boxes)
        region = content or (0, 0, mw, mh)
        if not (region[2] > 0 and region[3] > 0) or min(size) < 1 or size[0] * size[1] > 2**31 - 1:
            raise UsageError(f"content {content} cannot be stretched to size {size}")
        if crop not in ("image", "prototypes"):
            raise UsageError(f"unknown crop {crop!r}", remedy="choose 'image' or 'prototypes'")
        plan, logits = workspace.get("plan", (n, 8), np.int32), workspace.get("logits", (n, mh, mw), np.float32)
        tables = device_taps(size, region, (mh, mw))
        shared = {"plan_address": plan, "n": n, "samples_x": mw, "samples_y": mh}
        indices = {name: tables[name] for name in ("across_index", "down_index")}
        kernel.launch(
            "instance_plan",
            **shared,
            **indices,
            boxes_address=checked("boxes", boxes, (n, 4), "float32", dense=2),
            count_address=0 if count is None else checked("count", count, (1,), "int32"),
            crop=int(crop == "prototypes"),
            scale_x=region[2] / size[1],
            scale_y=region[3] / size[0],
            origin_x=region[0],
            origin_y=region[1],
            width=size[1],
            height=size[0],
        )
        kernel.launch(
            f"instance_logits_{'f16' if prototypes.itemsize == 2 else 'f32'}",
            **shared,
            **indices,
            prototypes_address=prototypes,
            channels=channels,
            plane_pitch=pitch(prototypes, 0),
            row_pitch=pitch(prototypes, 1),
            coefficients_address=checked("coefficients", coefficients, (n, channels), "float32", dense=2),
            logits_address=logits,
        )
        arguments = {**shared, **tables, "logits_address": logits, "width": size[1], "height": size[0]}
        return cls(n, arguments, (size[0], region[1], region[3], mh))


def paint(symbol: str, found: Logits, labels: Any, targets: int, out: Any) -> None:
    """Masks into (n, h, w), or labels into (1, h, w) with labels (n,)."""
    pitches = out.strides[:2]
    vectors = all(value % 4 == 0 for value in (*pitches, out.shape[2], out.data.ptr))
    kernel.launch(
        symbol,
        **found.arguments,
        labels_address=labels,
        targets=targets,
        target_address=out,
        item_pitch=pitches[0],
        row_pitch=pitches[1],
        vectors=int(vectors),
    )


def instance_masks(request: Request, out: Any, workspace: Workspace | None, stream: int | None) -> Any:
    boxes, size = request.boxes, request.size
    with on(stream):
        masks = device.cupy().empty((len(boxes), *size), np.bool_) if out is None else out
        masks = checked("out", masks, (len(boxes), *size), "bool", "uint8")
        if len(boxes):
            paint("instance_masks", Logits.of(request, workspace or Workspace()), 0, len(boxes), masks)
        return masks if out is None else out


def instance_labels(request: Request, labels: Any, out: Any, workspace: Workspace | None, stream: int | None) -> Any:
    n, size = len(request.boxes), request.size
    with on(stream):
        painted = target(out, size, "uint8")
        if n == 0:
            painted.fill(0)
        else:
            values = device_table(_labels, n)[0] if labels is None else checked("labels", labels, (n,), "uint8")
            paint("instance_labels", Logits.of(request, workspace or Workspace()), values, 1, painted[None])
        return painted if out is None else out


def _labels(n: int) -> tuple[NDArray[np.uint8]]:
    return ((1 + np.arange(n) % 255).astype(np.uint8),)


def instance_runs(request: Request, capacity: int, workspace: Workspace | None, stream: int | None) -> DeviceRuns:
    n, size = len(request.boxes), request.size
    with on(stream):
        workspace = workspace or Workspace()
        positions, counts = _positions(n, capacity, workspace)
        if n:
            found = Logits.of(request, workspace)
            kernel.launch(
                "instance_runs",
                **found.arguments,
                down_start=device_table(_starts, *found.starts)[0],
                positions_address=positions,
                capacity=capacity,
                ends_address=counts,
            )
        return _encode(positions, counts, size, workspace)


def mask_runs(masks: Any, capacity: int, workspace: Workspace | None, stream: int | None) -> DeviceRuns:
    with on(stream):
        masks = device.as_cupy(masks)
        if masks.ndim != 3 or 0 in masks.shape[1:]:
            raise UsageError(f"masks have shape {masks.shape}, expected (n, height, width) with pixels")
        masks = checked("masks", masks, masks.shape, "bool", "uint8")
        n, height, width = masks.shape
        workspace = workspace or Workspace()
        positions, counts = _positions(n, capacity, workspace)
        kernel.launch(
            "mask_positions",
            masks_address=masks,
            item_pitch=masks.strides[0],
            row_pitch=masks.strides[1],
            n=n,
            width=width,
            height=height,
            positions_address=positions,
            capacity=capacity,
            ends_address=counts,
        )
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
    if n:
        kernel.launch("run_lengths", **shared, lengths_address=lengths)
        kernel.launch("run_text", **shared, text_address=text, room=room, text_ends_address=text_lengths)
    return DeviceRuns(lengths, counts, text, text_lengths, size)
