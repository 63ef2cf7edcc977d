"""Masks and boxes drawn into the planes of an image, on the host or on the GPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from framefuse.cuda import device
from framefuse.errors import UsageError
from framefuse.frame import PixelFormat
from framefuse.kernels.cpu import _address, _function
from framefuse.kernels.masks import cuda as masks_cuda

Plane = Any
"""(h, w) or (h, w, 2) of the format's samples; numpy, or an array on a GPU."""


def overlay(
    planes: Sequence[Plane],
    format: PixelFormat,
    labels: Any,
    inks: NDArray[np.uint8],
    opacity: NDArray[np.uint8],
    *,
    rows: tuple[int, int] | None = None,
    stream: int | None = None,
) -> None:
    """Tint each pixel with the ink of its label, in place; `kernels.reference.overlay` is the formula, in integers.

    Args:
        planes: of yuv420p, nv12 or nv21; writable, samples of a row adjacent, any row pitch.
        labels: (h, w) uint8, on the device of the planes.
        inks: (256, 3) uint8 Y, U, V of each label, on the host.
        opacity: (256,) uint8 of each label, 0 (transparent) to 255, on the host; 0 for "no object".
        rows: draw only these rows of chroma and the luma that they cover, so that threads can share an image on the
            host.
        stream: pointer of a CUDA stream; None: CuPy's current one.

    Raises:
        UsageError: wrong pixel format, shape or dtype.
    """
    components, step = _components(planes, format)
    _check("inks", inks, (256, 3))
    _check("opacity", opacity, (256,))
    if masks_cuda.is_cuda(planes[0]):
        masks_cuda.overlay(components, step, labels, inks, opacity, stream)
        return
    _check("labels", labels, planes[0].shape)
    table = np.concatenate((inks, opacity[:, None]), axis=1).astype(np.int32)
    height, width = labels.shape
    first, last = rows or (0, planes[1].shape[0])
    _function("draw_overlay")(
        *_places(components), step, _address(labels), labels.strides[0], height, width, first, last, table
    )


def draw_boxes(
    planes: Sequence[Plane],
    format: PixelFormat,
    boxes: Any,
    inks: Any,
    *,
    line_width: int,
    count: Any | None = None,
    stream: int | None = None,
) -> None:
    """Outlines just inside each box, in place, the first box on top; `kernels.reference.draw_boxes` is the formula.

    Args:
        planes: planar or semiplanar YUV of any subsampling and depth; on a GPU yuv420p, nv12 or nv21. Writable, samples
            of a row adjacent, any row pitch.
        boxes: (n, 4) x1 y1 x2 y2 in whole pixels, int32; parts outside the image are not drawn. Multiples of the
            subsampling give outlines without colour fringes.
        inks: (n, 3) Y, U, V of each box, in the planes' dtype and encoding (P010: in the upper bits).
        line_width: pixels, 1..65535.
        count: on a GPU: (1,) int32, how many of the boxes are valid; None: all.
        stream: pointer of a CUDA stream; None: CuPy's current one.

    Raises:
        UsageError: wrong pixel format, shape or dtype.
    """
    components, step = _components(planes, format, any_chroma=not masks_cuda.is_cuda(planes[0]))
    if not 1 <= line_width <= 65535:
        raise UsageError(f"line_width {line_width} is not between 1 and 65535 pixels")
    if masks_cuda.is_cuda(planes[0]):
        masks_cuda.draw_boxes(components, step, boxes, inks, line_width, count, stream)
        return
    if boxes.shape != (len(boxes), 4) or boxes.dtype != np.int32:
        raise UsageError(f"boxes are {boxes.dtype} {boxes.shape}, expected int32 (n, 4)")
    _check("inks", inks, (len(boxes), 3), format.dtype)
    if len(boxes):
        height, width = planes[0].shape
        # Boxes far outside are moved closer, so that nothing overflows.
        near = boxes.clip(-(2**20), 2**20)
        addresses, pitches = _places(components)[:3], [plane.strides[0] // plane.itemsize for plane in components]
        if any(plane.strides[0] % plane.itemsize for plane in components):
            raise UsageError("the pitch of a plane is not a multiple of its sample size")
        _function(f"draw_boxes_{'u8' if format.bits == 8 else 'u16'}")(
            *addresses, *pitches, step, *format.subsample, height, width, line_width, near, np.ascontiguousarray(inks)
        )


def _check(name: str, array: Any, shape: tuple[int, ...], dtype: Any = np.uint8) -> None:
    if array.shape != shape or array.dtype != dtype or (array.size and array.strides[-1] != array.itemsize):
        wanted = f"{np.dtype(dtype)} {shape}"
        raise UsageError(f"{name} are {array.dtype} {array.shape}, expected {wanted} with adjacent samples")


def _components(planes: Sequence[Plane], format: PixelFormat, *, any_chroma: bool = False) -> tuple[list[Any], int]:
    """Y, U and V as 2-D views, and samples from one chroma sample to the next."""
    usual = any_chroma or (format.bits == 8 and format.subsample == (2, 2))
    if not usual or format.layout not in ("planar", "semiplanar") or format.name.startswith("gbr"):
        raise UsageError(f"cannot draw into {format.name}", remedy="use yuv420p, nv12, or sinks.draw.Annotator")
    if masks_cuda.is_cuda(planes[0]):
        planes = [device.as_cupy(plane) for plane in planes]
    height, width = planes[0].shape[:2]
    for plane, shape in zip(planes, format.plane_shapes(width, height), strict=True):
        _check("planes", plane, shape, format.dtype)
        if plane.ndim == 3 and plane.strides[1] != 2 * plane.itemsize:
            raise UsageError(f"the chroma plane has strides {plane.strides}; its samples must be adjacent")
        if isinstance(plane, np.ndarray) and not plane.flags.writeable:
            raise UsageError("a plane is read-only", remedy="draw into a copy")
    if format.layout == "planar":
        return list(planes), 1
    y, chroma = planes
    first, second = chroma[:, :, 0], chroma[:, :, 1]
    return ([y, second, first] if format.channels == "vu" else [y, first, second]), 2


def _places(components: list[NDArray[Any]]) -> list[int]:
    """Addresses, then pitches in bytes."""
    return [_address(plane) for plane in components] + [plane.strides[0] for plane in components]
