"""The table row of a frame for `tir_cuda.py`: addresses of its planes and its slot, positions, colour matrix."""

from __future__ import annotations

import math
from functools import lru_cache
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from framefuse.cuda import device
from framefuse.errors import UsageError
from framefuse.frame import Frame, PixelFormat
from framefuse.kernels.preprocess.filters import Interpolation, axis_taps
from framefuse.kernels.preprocess.frame_row import ADDRESS, BYTES, COEFFICIENT, MODES, PLAIN, WORD
from framefuse.kernels.preprocess.plan import OUTPUTS, Request, coefficients

SIZES = {"f32": 4, "f16": 2, "bf16": 2, "u8": 1, "i8": 1}
"""Bytes of an output element."""


class Output(NamedTuple):
    """A batch tensor on the GPU."""

    address: int
    shape: tuple[int, ...]
    pitch: int
    """Bytes from slot to slot."""
    dtype: str

    @classmethod
    def of(cls, out: Any, axes: int = 4) -> Output:
        if getattr(out, "is_cuda", False):  # torch, whose bfloat16 no other interface can express
            strides, size = tuple(out.stride()), out.element_size()
        else:
            out = device.as_cupy(out)
            strides, size = tuple(stride // out.itemsize for stride in out.strides), out.itemsize
        shape = tuple(out.shape)
        if len(shape) == axes == 3:
            shape, strides = (1, *shape), (math.prod(shape), *strides)
        dense = all(shape[i] == 1 or strides[i] == math.prod(shape[i + 1 :]) for i in range(1, len(shape)))
        if len(shape) != 4 or not dense or strides[0] < 0:
            raise UsageError(
                f"out has shape {shape} and strides {strides} in elements",
                remedy="pass (3, height, width) or (height, width, channels) for a frame, with one more axis in "
                "front for a batch, and slots that are C-contiguous",
            )
        dtype = str(out.dtype).removeprefix("torch.")
        if dtype not in OUTPUTS:
            raise UsageError(f"out is {dtype}", remedy=f"pass an array of {', '.join(OUTPUTS)}")
        return cls(device.address(out), shape, strides[0] * size, dtype)


class _Geometry(NamedTuple):
    """A row without the addresses of planes and output, and the filter tables whose addresses it holds."""

    row: NDArray[np.uint8]
    tables: tuple[Any, ...]


def row_of(frame: Frame, out: Output, slot: int, options: dict[str, Any]) -> tuple[NDArray[np.uint8], tuple[Any, ...]]:
    """The row of a frame, and the filter tables that must live as long as it is used."""
    if not 0 <= slot < out.shape[0]:
        raise UsageError(f"slot {slot} is not one of the {out.shape[0]} of out")
    request = Request.of(frame, SimpleNamespace(shape=out.shape[1:], dtype=out.dtype), **options)  # type: ignore[arg-type]
    if request.pad_value is None:
        raise UsageError("pad_value is None", remedy="pass a grey level: on a GPU, padding is always written")
    planes = [_plane(frame, number) for number in range(len(frame.planes))]
    geometry = _geometry(request, tuple(pitch for _, pitch in planes), device.current_gpu())
    row = geometry.row.copy()
    addresses = row.view(np.int64)
    for number, (address, _) in enumerate(planes):
        addresses[number] = address
    step = out.shape[3] if request.memory_format == "nhwc" else 1
    addresses[ADDRESS["output"]] = (
        out.address + slot * out.pitch + request.rows[0] * request.size[0] * step * SIZES[request.output]
    )
    return row, geometry.tables


def _plane(frame: Frame, number: int) -> tuple[int, int]:
    """Address and pitch in bytes."""
    plane = device.as_cupy(frame.planes[number])
    inner = plane.shape[2] if plane.ndim == 3 else 1
    if plane.strides[1] != inner * plane.itemsize or (plane.ndim == 3 and plane.strides[2] != plane.itemsize):
        raise UsageError(
            f"plane {number} has strides {plane.strides} bytes; within a row its samples must be adjacent",
            remedy="pass cupy.ascontiguousarray(plane), which copies",
        )
    address, pitch = int(plane.data.ptr), int(plane.strides[0])
    grain = 2 * plane.itemsize if frame.format.layout == "semiplanar" and number == 1 else plane.itemsize
    if abs(pitch) * plane.shape[0] >= 2**31:
        raise UsageError(f"plane {number} has {plane.shape[0]} rows {pitch} bytes apart, more than 2^31 bytes")
    if address % grain or pitch % grain:
        raise UsageError(
            f"plane {number} is at {address:#x} with rows {pitch} bytes apart; both must be multiples of {grain}",
            remedy="pass cupy.ascontiguousarray(plane), which copies",
        )
    return address, pitch


@lru_cache(maxsize=256)
def _geometry(request: Request, pitches: tuple[int, ...], gpu: int) -> _Geometry:
    row = np.zeros(BYTES, np.uint8)
    integers, fractions = row.view(np.int32), row.view(np.float32)
    addresses, tables = row.view(np.int64), []
    fractions[COEFFICIENT : COEFFICIENT + 21] = coefficients(request)
    direct, picked = request.interpolation in ("nearest", "linear"), True
    turned = request.rotation in (90, 270)
    x, y, roi_width, roi_height = request.roi
    left, top, content_width, content_height = request.content
    first, last = request.rows
    # For each axis of the output: first position, positions, region of the image, coded axis, extent of the output.
    walks = {
        "along": (left, content_width, (x, roi_width), 1 if turned else 0, request.size[0]),
        "across": (top - first, content_height, (y, roi_height), 0 if turned else 1, last - first),
    }
    for axis, (start, count, (region, length), coded, extent) in walks.items():
        begin, end = max(0, start), min(extent, start + count)
        if end <= begin:
            continue  # begin and end stay 0: only padding
        integers[WORD[f"{axis}_begin"]], integers[WORD[f"{axis}_end"]] = begin, end
        backwards = request.rotation in ((180, 270), (90, 180))[coded]
        if backwards:
            region = request.coded[coded] - region - length
        step = -2 * length if backwards else 2 * length
        size = request.format.dtype.itemsize
        for kind in range(1 if request.format.layout in ("packed", "gray") else 2):
            subsample = request.format.subsample[coded] if kind else 1
            unit = 2 * subsample * count
            origin = (2 * (count - 1 + start) + 1 if backwards else 1 - 2 * start) * length + 2 * count * region
            if request.interpolation != "nearest":
                origin -= subsample * count
            if max(abs(origin), abs(step * (extent + 8)), abs(origin + step * (extent + 8)), unit) >= 2**31:
                raise UsageError(
                    f"resizing {length} pixels to {count} needs numbers of more than 32 bits",
                    remedy="resize in two steps, or crop first",
                )
            if kind == 0 and request.interpolation == "linear":
                picked = picked and origin % unit == 0 and step % unit == 0
            values = {
                "step": step,
                "whole": step // unit,
                "rest": step % unit,
                "offset": origin,
                "unit": unit,
                "lowest": region // subsample,
                "highest": -(-(region + length) // subsample) - 1,
                "pitch": pitches[kind] if coded == 1 else size * _beside(request.format, kind),
            }
            for name, value in values.items():
                integers[WORD[f"{axis}_{name}{kind}"]] = value
            fractions[WORD[f"{axis}_inverse{kind}"]] = 1 / unit
            fractions[WORD[f"{axis}_weight{kind}"]] = 1 / unit if request.interpolation == "linear" else 0
            if not direct:
                table = _filter(region, length, count, subsample, request.interpolation, backwards, begin - start,
                                end - start, device)  # fmt: skip
                tables.append(table)
                addresses[ADDRESS[f"{axis}{kind}"]] = table.data.ptr
                integers[WORD[f"{axis}_filter{kind}"]] = table.shape[1]
    integers[WORD[PLAIN]] = int(request.rotation == 0)
    integers[WORD["along_mode0"]] = MODES["filtered" if not direct else "picked" if picked else "linear"]
    return _Geometry(row, tuple(tables))


def _beside(format: PixelFormat, kind: int) -> int:
    """Samples from one sample of a component to the next, in interleaved planes more than 1."""
    if format.layout == "packed":
        return len(format.channels)
    return 2 if format.layout == "semiplanar" and kind == 1 else 1


@lru_cache(maxsize=256)
def _filter(
    region: int,
    length: int,
    count: int,
    subsample: int,
    interpolation: Interpolation,
    backwards: bool,
    begin: int,
    end: int,
    gpu: int,
) -> Any:
    """Filter table of an axis on the device; a row per position: first sample, taps, weights, 4 bytes each."""
    taps = axis_taps(region, length, count, subsample, interpolation)
    taps = (taps[::-1] if backwards else taps)[begin:end]
    table = np.column_stack([taps.first, taps.count, np.ascontiguousarray(taps.weight).view(np.int32)])
    return device.uploaded(table)
