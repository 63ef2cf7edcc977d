"""Instance masks from prototypes, and COCO run-length encoding, on the host or on the GPU where the arrays lie.

On a GPU a call only launches (see `kernels.masks`); `count` is then the device array that says how many of the n
instances are valid, so nothing is read back between suppression and masks.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from framefuse.cuda.launch_plan import Workspace
from framefuse.errors import UsageError
from framefuse.kernels.arrays import address, checked, device_table, new, on, on_gpu, pitch
from framefuse.kernels.cpu import _function, _scratch
from framefuse.kernels.masks import instances_cuda
from framefuse.kernels.masks.instances_cuda import DeviceRuns, Request, row_starts
from framefuse.kernels.masks.taps import Region, taps

Crop = Literal["image", "prototypes"]
Size = tuple[int, int]


class Runs(NamedTuple):
    """Run lengths of n masks of one size: pixels unset, set, unset, ... down the columns, as COCO counts them."""

    lengths: NDArray[np.int32]
    """The runs of all masks; those of mask i are lengths[starts[i]:ends[i]]."""
    starts: NDArray[np.int32]
    ends: NDArray[np.int32]
    size: Size
    """Height and width of a mask."""

    def to_coco(self) -> list[dict[str, Any]]:
        """`{"size": [height, width], "counts": bytes}` of each mask, exactly as pycocotools' `encode` writes it."""
        if not len(self.ends):
            return []
        text = np.empty(7 * int((self.ends - self.starts).sum()), np.uint8)
        ends = np.empty_like(self.ends)
        _function("run_text")(self.lengths, self.starts, self.ends, text, ends)
        data, bounds = text.tobytes(), [0, *ends.tolist()]
        return [{"size": list(self.size), "counts": data[a:b]} for a, b in pairwise(bounds)]


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
        request = Request.of(prototypes, coefficients, boxes, size, content, crop, count)
        n = len(request.boxes)
        masks = _target(out, request.gpu, (n, *size), "bool", "uint8")
        if request.gpu:
            instances_cuda.paint("instance_masks", request, 0, n, masks, workspace or Workspace())
        else:
            _paint(request, np.ones(n, np.uint8), masks, masks.strides[0], masks.strides[1])
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
        request = Request.of(prototypes, coefficients, boxes, size, content, crop, count)
        gpu, n = request.gpu, len(request.boxes)
        if labels is None:
            (labels,) = device_table(_labels, max(n, 1)) if gpu else _labels(n)
        else:
            labels = checked("labels", labels, gpu, (n,), "uint8")
        painted = _target(out, gpu, size, "uint8")
        if gpu:
            instances_cuda.paint("instance_labels", request, labels, 1, painted[None], workspace or Workspace())
        else:
            _paint(request, labels, painted, 0, painted.strides[0])
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
        request = Request.of(prototypes, coefficients, boxes, size, content, crop, count)
        if request.gpu:
            return instances_cuda.instance_runs(request, capacity, workspace or Workspace())
    first, scratch = _host(request)
    (starts,) = row_starts(size[0], request.content[1], request.content[3], request.prototypes.shape[1])
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
            return instances_cuda.mask_runs(masks, capacity, workspace or Workspace())
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


def native_content(samples: Size, size: Size) -> tuple[int, int, int, int]:
    """Where a letterboxed image of `size` (height, width) lies within prototypes of (mh, mw) samples.

    In whole samples, rounded as the YOLO frameworks' `scale_masks` does: with gain = min(mh / H, mw / W) and pad =
    ((mw - W gain) / 2, (mh - H gain) / 2), left and top are round(pad - 0.1), right and bottom (mw, mh) minus
    round(pad + 0.1).
    """
    gain = min(samples[0] / size[0], samples[1] / size[1])
    pad_y, pad_x = (samples[0] - size[0] * gain) / 2, (samples[1] - size[1] * gain) / 2
    left, top = round(pad_x - 0.1), round(pad_y - 0.1)
    return left, top, samples[1] - round(pad_x + 0.1) - left, samples[0] - round(pad_y + 0.1) - top


def _target(out: Any, gpu: bool, shape: tuple[int, ...], *dtypes: str) -> Any:
    """`out` checked, or new memory; on the host without a pixel that is set."""
    if out is None:
        return new(gpu, shape, dtypes[0]) if gpu else np.zeros(shape, dtypes[0])
    found = checked("out", out, gpu, shape, *dtypes)
    if not gpu:
        found[...] = 0
    return found


def _host(request: Request) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """The arguments that come first in the kernels on the host, and last: scratch for logits (a border of one sample
    around all prototypes) and for stretched rows."""
    prototypes, size, (left, top, width, height) = request.prototypes, request.size, request.content
    channels, mh, mw = prototypes.shape
    across, down = taps(size[1], left, width, mw), taps(size[0], top, height, mh)
    scale = (width / size[1], height / size[0])
    plan = plan_instances(request.boxes, (left, top), scale, (mh, mw), across[0], down[0], request.crop)
    places = address(prototypes), channels, pitch(prototypes, 0), pitch(prototypes, 1)
    stretched = max((mh + 1) * size[1], mw + 1)
    scratch = _scratch.get("logits", ((mh + 1) * (mw + 1),)), _scratch.get("stretched", (stretched,))
    return (*places, request.coefficients, plan, *across, *down), scratch


def _paint(request: Request, values: NDArray[np.uint8], out: NDArray[Any], item_pitch: int, row_pitch: int) -> None:
    if len(values):
        first, scratch = _host(request)
        _function("instance_paint")(*first, values, address(out), item_pitch, row_pitch, *scratch)


def plan_instances(
    boxes: NDArray[Any],
    origin: tuple[float, float],
    scale: tuple[float, float],
    samples: Size,
    across: NDArray[np.int32],
    down: NDArray[np.int32],
    crop: str,
) -> NDArray[np.int32]:
    """(n, 8): for each box the samples kept (left, right, top, bottom), then the pixels that may be set."""
    height, width = len(down), len(across)
    if crop == "prototypes":
        boxes = boxes * np.array(scale * 2, np.float32) + np.array(origin * 2, np.float32)
    with np.errstate(invalid="ignore"):
        empty = ~((boxes[:, 0] < boxes[:, 2]) & (boxes[:, 1] < boxes[:, 3]))
    edges = np.ceil(np.where(empty[:, None], 0, boxes))
    plan = np.empty((len(boxes), 8), np.int32)
    if crop == "image":
        plan[:, :4] = 0, samples[1], 0, samples[0]
        plan[:, 4:] = edges[:, [0, 2, 1, 3]].clip(0, (width, width, height, height))
        return plan
    plan[:, :4] = edges[:, [0, 2, 1, 3]].clip(0, (samples[1], samples[1], samples[0], samples[0]))
    for k, index in ((0, across), (2, down)):
        # A pixel may be set when one of its two taps is kept.
        plan[:, 4 + k] = np.searchsorted(index, plan[:, k] - 1)
        plan[:, 5 + k] = np.where(plan[:, k] < plan[:, k + 1], np.searchsorted(index, plan[:, k + 1] - 1, "right"), 0)
    return plan
