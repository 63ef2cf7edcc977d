"""Masks and boxes drawn into the planes of an image, on the host or on the GPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from framefuse.cuda import kernel
from framefuse.errors import UsageError
from framefuse.frame import PixelFormat
from framefuse.kernels.arrays import address, checked, device_table, on, on_gpu, pitch
from framefuse.kernels.cpu import _function

Plane = Any
"""(h, w) or (h, w, 2) of the format's samples; numpy, or an array on a GPU."""

FARTHEST = 100_000
"""Pixels from the corner of an image to where a line may begin or end."""
PLACES = ("y_address", "u_address", "v_address", "y_pitch", "u_pitch", "v_pitch", "chroma_step")
"""Where the components lie, as the CUDA kernels call it."""


def overlay(
    planes: Sequence[Plane], format: PixelFormat, labels: Any, inks: Any, opacity: Any, *, stream: int | None = None
) -> None:
    """Tint each pixel with the ink of its label, in place; `kernels.reference.overlay` is the formula, in integers.

    Args:
        planes: of yuv420p, nv12 or nv21; writable, samples of a row adjacent, any row pitch.
        labels: (h, w) uint8, on the device of the planes.
        inks: (256, 3) uint8 Y, U, V of each label, on the host.
        opacity: (256,) uint8 of each label, 0 (transparent) to 255, on the host; 0 for "no object".
        stream: pointer of a CUDA stream; None: CuPy's current one.

    Raises:
        UsageError: wrong pixel format, shape or dtype.
    """
    gpu = on_gpu(planes[0])
    inks = checked("inks", inks, False, (256, 3), "uint8")
    opacity = checked("opacity", opacity, False, (256,), "uint8")
    with on(gpu, stream):
        places, (height, width) = _components(planes, format, gpu)
        labels = checked("labels", labels, gpu, (height, width), "uint8")
        if gpu:
            (table,) = device_table(_ink_table, inks.tobytes(), opacity.tobytes())
            shown = {"label_address": labels, "label_pitch": pitch(labels, 0), "inks_address": table}
            kernel.launch("draw_overlay", **dict(zip(PLACES, places, strict=True)), height=height, width=width, **shown)
        else:
            (table,) = _ink_table(inks.tobytes(), opacity.tobytes())
            place = address(labels), pitch(labels, 0)
            _function("draw_overlay")(*places, *place, height, width, table.astype(np.int32))


def _ink_table(inks: bytes, opacity: bytes) -> tuple[NDArray[np.uint8]]:
    table = np.frombuffer(inks, np.uint8).reshape(256, 3)
    return (np.concatenate((table, np.frombuffer(opacity, np.uint8)[:, None]), axis=1),)


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
    if not 1 <= line_width <= 65535:
        raise UsageError(f"line_width {line_width} is not between 1 and 65535 pixels")
    gpu, n = on_gpu(planes[0]), len(boxes)
    with on(gpu, stream):
        places, (height, width) = _components(planes, format, gpu, any_chroma=not gpu)
        dense = 2 if gpu else 1  # on the host both are copied
        boxes = checked("boxes", boxes, gpu, (n, 4), "int32", dense=dense)
        inks = checked("inks", inks, gpu, (n, 3), np.dtype(format.dtype).name, dense=dense)
        if n and gpu:
            valid = 0 if count is None else checked("count", count, gpu, (1,), "int32")
            arrays = {"count_address": valid, "boxes_address": boxes, "inks_address": inks}
            size = {"height": height, "width": width, "line": line_width, "n": n}
            kernel.launch("draw_boxes", **dict(zip(PLACES, places, strict=True)), **size, **arrays)
        elif n:
            # Boxes far outside are moved closer, so that nothing overflows.
            near = np.ascontiguousarray(boxes.clip(-(2**20), 2**20))
            draw = _function(f"draw_boxes_{'u8' if format.bits == 8 else 'u16'}")
            draw(*places, *format.subsample, height, width, line_width, near, np.ascontiguousarray(inks))


def draw_lines(
    samples: NDArray[np.uint8],
    segments: NDArray[Any],
    values: NDArray[np.uint8],
    *,
    line_width: int,
    subsample: tuple[int, int] = (1, 1),
) -> None:
    """Straight lines in one component of an image on the host, in place, the first on top; parts outside are not drawn.

    Args:
        samples: (h, w), writable; any distance between the samples of a row.
        segments: (n, 4) x1 y1 x2 y2 of their middle, in pixels; what is beyond +-FARTHEST is moved there.
        values: (n,) of each line.
        line_width: pixels.
        subsample: pixels of a sample in x and y, powers of two.

    Raises:
        UsageError: wrong shape or dtype.
    """
    segments = np.ascontiguousarray(np.rint(segments.clip(-FARTHEST, FARTHEST)), np.int32)
    values = np.ascontiguousarray(values, np.uint8)
    if segments.shape != (len(values), 4) or samples.ndim != 2 or samples.dtype != np.uint8:
        raise UsageError(f"samples {samples.dtype} {samples.shape}, segments {segments.shape}, values {values.shape}")
    if len(values) and samples.size:
        place = address(samples), *samples.strides, *samples.shape
        shifts = (pixels.bit_length() - 1 for pixels in subsample)
        _function("draw_lines")(*place, *shifts, line_width, segments, values)


def _components(
    planes: Sequence[Plane], format: PixelFormat, gpu: bool, *, any_chroma: bool = False
) -> tuple[list[int], tuple[int, int]]:
    """Addresses of Y, U and V, their pitches in samples, the samples from one chroma sample to the next; the size."""
    usual = any_chroma or (format.bits == 8 and format.subsample == (2, 2))
    if not usual or format.layout not in ("planar", "semiplanar") or format.name.startswith("gbr"):
        raise UsageError(f"cannot draw into {format.name}", remedy="use yuv420p, nv12, or sinks.draw.Annotator")
    height, width = planes[0].shape[:2]
    found = [
        checked("plane", plane, gpu, shape, np.dtype(format.dtype).name, dense=len(shape) - 1)
        for plane, shape in zip(planes, format.plane_shapes(width, height), strict=True)
    ]
    if not gpu and not all(plane.flags.writeable for plane in found):
        raise UsageError("a plane is read-only", remedy="draw into a copy")
    step = 1
    if format.layout == "semiplanar":
        y, chroma = found
        first, second = chroma[:, :, 0], chroma[:, :, 1]
        found, step = [y, second, first] if format.channels == "vu" else [y, first, second], 2
    return [*map(address, found), *(pitch(plane, 0) for plane in found), step], (height, width)
