"""preprocess on a GPU: frames of any sizes into the slots of one tensor, in one launch.

A table in device memory has one row for each slot (`frame_row.py`): the addresses of the planes and the slot, the
positions and the colour matrix. `PreprocessTable` owns such a table for frames that change between launches, in a
captured graph or not. A plain call uploads its table each time; the row of a single frame is a parameter of the launch,
which a kernel reads faster than memory.

Filters of many taps are applied by another kernel before (`resize.cu`), several times faster, for the frames of a
PreprocessTable that is made for them and that are not turned by a quarter.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Sequence
from functools import lru_cache
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from framefuse.cuda import device, kernel
from framefuse.cuda.launch_plan import keep, keep_cached
from framefuse.errors import UsageError
from framefuse.frame import Frame, PixelFormat
from framefuse.kernels.arrays import place
from framefuse.kernels.preprocess.filters import LINEAR, LONG, Taps, axis_taps, corner
from framefuse.kernels.preprocess.frame_row import (
    ADDRESS,
    BYTES,
    COEFFICIENT,
    COLUMNS,
    MODES,
    PLAIN,
    STORES,
    WORD,
    lanes,
    scratch_pitch,
    span,
)
from framefuse.kernels.preprocess.plan import OUTPUTS, Content, MemoryFormat, Request, coefficients

MAX_FRAMES = 65535

TILES = (32, 16, 8, 4)
"""Columns that `resize.cu` may compute at once."""
TILE_PIXELS, TILE_WEIGHTS = {1: 676, 2: 356, 3: 228, 4: 228}, 1536
"""What it has room for: pixels of a line, by interleaved components, and weights."""

CHANNELS = (3, 4, 8)
"""Channels that an NHWC output on a GPU may have."""

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
        address, shape, strides, dtype = place(out)
        if len(shape) == axes == 3:
            shape, strides = (1, *shape), (math.prod(shape), *strides)
        dense = all(shape[i] == 1 or strides[i] == math.prod(shape[i + 1 :]) for i in range(1, len(shape)))
        if len(shape) != 4 or not dense or strides[0] < 0:
            raise UsageError(
                f"out has shape {shape} and strides {strides} in elements",
                remedy="pass (3, height, width) or (height, width, channels) for a frame, with one more axis in "
                "front for a batch, and slots that are C-contiguous",
            )
        if dtype not in OUTPUTS:
            raise UsageError(f"out is {dtype}", remedy=f"pass an array of {', '.join(OUTPUTS)}")
        return cls(address, shape, strides[0] * SIZES[OUTPUTS[dtype]], dtype)


def is_cuda(frame: Frame) -> bool:
    """Whether the planes lie on a GPU."""
    plane = frame.planes[0]
    return hasattr(type(plane), "__cuda_array_interface__")  # of the type, as CuPy's takes a microsecond to make


class PreprocessTable:
    """The frames of one batch as the kernel finds them on the device; rows may change between launches.

        table = PreprocessTable(frame.format, batch)     # before a capture
        table.set(0, frame, content=..., ...)
        table.upload(stream)                             # copies the rows
        table.launch(stream)                             # may be captured in a CUDA graph

    Slots that are not set are filled with zeros. Upload and launch are ordered by the stream alone. Keep the table as
    long as a graph in which its launch is captured, and the frames until the launch has ended.

    Args:
        format: of every frame; its layout and sample type choose the kernel. Sizes, matrix and range may differ.
        out: (frames, 3, height, width) for "nchw", (frames, height, width, 3 | 4 | 8) for "nhwc"; float32, float16,
            bfloat16 (also as its bits in uint16), uint8 or int8, on the GPU. The table keeps it.
        allocate: makes the host memory of the rows from its shape and dtype; with page-locked memory, `upload` may be
            captured too.
        filters: whether frames may have an interpolation of many taps (area, antialias). Such frames are several times
            faster then, for 12 bytes of GPU memory for each pixel of `out` and a second kernel in each launch.

    Raises:
        UsageError: `out` cannot be written.
        CapabilityError: there is no usable GPU.
    """

    def __init__(
        self,
        format: PixelFormat,
        out: Any,
        *,
        memory_format: MemoryFormat = "nchw",
        allocate: Callable[..., NDArray[Any]] = np.zeros,
        filters: bool = False,
    ) -> None:
        self.symbol = _symbol(format, Output.of(out), memory_format)
        self._format, self._keep, self._memory_format = format, out, memory_format
        self._out = Output.of(out)
        if not 0 < self._out.shape[0] <= MAX_FRAMES:
            raise UsageError(f"out has {self._out.shape[0]} slots, not 1 to {MAX_FRAMES}")
        self._rows = allocate((self._out.shape[0], BYTES), np.uint8)
        self._addresses = self._rows.view(np.int64)
        self._tables: list[tuple[Any, ...]] = [()] * len(self._rows)
        self._kinds: list[Any] = [None] * len(self._rows)
        self._seen: weakref.ref[Frame] | None = None
        """The last frame that was set, whose addresses and shapes follow."""
        self._pointers: list[int] = []
        self._facts: tuple[Any, ...] = ()
        for slot in range(len(self._rows)):
            self.clear(slot)
        resize = f"resize_{_sample(format)}"
        kernel.prepare([resize, self.symbol] if filters else [self.symbol])
        self._device = device.cupy().empty(self._rows.nbytes, np.uint8)
        height = self._out.shape[2 if memory_format == "nchw" else 1]
        arguments = _arguments(format.layout, self._out, memory_format, height)
        whole = {"table": int(self._device.data.ptr), "frames": len(self._rows)}
        self._launches = [kernel.bind(self.symbol, **whole, **arguments)]
        self._scratch: Any = None
        if filters:
            width = arguments["width"]
            self._scratch = device.cupy().empty((len(self._rows), 3, height, scratch_pitch(width)), np.float32)
            size = {"planes": format.plane_count, "width": width, "height": height}
            self._launches.insert(0, kernel.bind(resize, **whole, **size))
        self.upload()
        device.synchronize()

    def set(self, slot: int, frame: Frame, **options: Any) -> None:
        """Write the row of a slot on the host. `options` are those of `preprocess` except `memory_format` and `rows`.

        Raises:
            UsageError: an option or a plane cannot be used, or the frame has another layout or sample type.
        """
        made, given = self._format, frame.format
        if made is not given and (made.layout, made.dtype) != (given.layout, given.dtype):
            raise UsageError(f"a {frame.format.name} frame does not fit a table of {self._format.name} frames")
        if "rows" in options:
            raise UsageError("a table fills whole slots", remedy="leave out rows")
        self._look_at(frame)
        kind = (*options.values(), *self._facts)
        if kind == self._kinds[slot]:  # frames of one video differ only in their addresses
            for number, pointer in enumerate(self._pointers):  # faster than an assignment of the list
                self._addresses[slot, number] = pointer
            return
        row, self._tables[slot] = _row_of(frame, self._out, slot, {"memory_format": self._memory_format, **options})
        if self._scratch is not None and row.view(np.int32)[COLUMNS]:
            row.view(np.int32)[WORD["along_mode0"]] = MODES["resized"]
            scratch = int(self._scratch.data.ptr) + slot * (self._scratch.nbytes // len(self._rows))
            row.view(np.int64)[ADDRESS["scratch"]] = scratch
        self._rows[slot] = row
        self._kinds[slot] = kind

    def replace_frame(self, slots: int, frame: Frame) -> bool:
        """Write the first `slots` rows again, all of them views of one frame, for another frame with the same views;
        False: it differs from the last one in more than its addresses, so that nothing was written."""
        before = self._facts
        self._look_at(frame)
        if self._facts == before:
            self._addresses[:slots, : len(self._pointers)] = self._pointers
        return self._facts == before

    def _look_at(self, frame: Frame) -> None:
        if self._seen is None or self._seen() is not frame:  # otherwise another view of the frame before
            planes = [device.as_cupy(plane) for plane in frame.planes]
            shapes = [(plane.shape, plane.strides) for plane in planes]
            self._seen, self._pointers = weakref.ref(frame), [plane.data.ptr for plane in planes]
            self._facts = (frame.format, frame.matrix, frame.full_range, frame.rotation, *shapes)

    def clear(self, slot: int) -> None:
        """Let the next launch fill the slot with zeros."""
        self._rows[slot] = 0
        self._addresses[slot, ADDRESS["output"]] = self._out.address + slot * self._out.pitch
        self._tables[slot], self._kinds[slot] = (), None

    @property
    def nbytes(self) -> int:
        """Bytes that `upload` copies."""
        return self._rows.nbytes

    def upload(self, stream: int | None = None) -> None:
        """Start to copy the rows to the device. Page-locked rows may be set again once the copy has ended, others as
        soon as this returns."""
        device.copy_to_device(self._rows, self._device, stream)

    def launch(self, stream: int | None = None) -> None:
        """Start the kernels over every slot."""
        for launch in self._launches:
            launch(stream)


def fill(
    frames: Sequence[Frame], out: Any, contents: Sequence[Content], options: dict[str, Any], stream: Any, axes: int = 4
) -> None:
    """`kernels.preprocess_batch` where the frames lie on a GPU: a launch for each kind of frame. `out` has 4 axes, or 3
    if it is one slot."""
    output, memory_format = Output.of(out, axes), options.get("memory_format", "nchw")
    height = output.shape[2 if memory_format == "nchw" else 1]
    first, last = options.get("rows") or (0, height)
    kinds: dict[str, list[int]] = {}
    for index, frame in enumerate(frames):
        kinds.setdefault(_symbol(frame.format, output, memory_format), []).append(index)
    for symbol, members in kinds.items():
        found = [_row_of(frames[index], output, index, {**options, "content": contents[index]}) for index in members]
        if any(tables := [tables for _, tables in found]):
            keep_cached(tables, stream)
        alone = len(members) == 1
        arguments = _arguments(frames[members[0]].format.layout, output, memory_format, last - first, alone=alone)
        if alone:
            symbol, rows = f"{symbol}_one", found[0][0].tobytes()
        else:
            rows = keep(device.upload(np.stack([row for row, _ in found]), stream))
        kernel.launch(symbol, stream=stream, table=rows, frames=len(members), **arguments)


def _symbol(format: PixelFormat, out: Output, memory_format: MemoryFormat) -> str:
    nchw = memory_format == "nchw"
    channels = out.shape[1 if nchw else 3]
    if channels not in ((3,) if nchw else CHANNELS):
        known = "3" if nchw else ", ".join(map(str, CHANNELS))
        raise UsageError(f"out has {channels} channels", remedy=f"on a GPU, {memory_format} has {known}")
    return f"preprocess_{format.layout}_{_sample(format)}_{memory_format}{'' if nchw else channels}"


def _sample(format: PixelFormat) -> str:
    return "u8" if format.dtype == np.uint8 else "u16"


def _arguments(
    layout: str, out: Output, memory_format: MemoryFormat, rows: int, *, alone: bool = False
) -> dict[str, int]:
    """Arguments of the kernel that do not depend on a frame."""
    nchw = memory_format == "nchw"
    height, width = out.shape[2:] if nchw else out.shape[1:3]
    output = OUTPUTS[out.dtype]
    memory = "nchw" if nchw else f"nhwc{out.shape[3]}"
    grain = SIZES[output] * lanes(layout, memory, output, alone)
    vectors = width % span(layout, memory, alone) == 0 and out.address % grain == 0 and out.pitch % grain == 0
    size = {"width": width, "height": rows, "channel_pitch": width * height}
    return size | {"vectors": int(vectors), "store": STORES[output]}


def _row_of(frame: Frame, out: Output, slot: int, options: dict[str, Any]) -> tuple[NDArray[np.uint8], tuple[Any, ...]]:
    """The row of a frame, and the filter tables that must live as long as it is used."""
    if not 0 <= slot < out.shape[0]:
        raise UsageError(f"slot {slot} is not one of the {out.shape[0]} of out")
    request = Request.of(frame, SimpleNamespace(shape=out.shape[1:], dtype=out.dtype), **options)  # type: ignore[arg-type]
    if request.pad_value is None:
        raise UsageError("pad_value is None", remedy="pass a grey level: on a GPU, padding is always written")
    planes = [_plane(frame, number) for number in range(len(frame.planes))]
    geometry, tables = _geometry(request, tuple(pitch for _, pitch in planes), device.current_gpu())
    row = geometry.copy()
    addresses = row.view(np.int64)
    addresses[: len(planes)] = [address for address, _ in planes]
    step = out.shape[3] if request.memory_format == "nhwc" else 1
    first = request.rows[0] * request.size[0] * step * SIZES[request.output]
    addresses[ADDRESS["output"]] = out.address + slot * out.pitch + first
    return row, tables


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
def _geometry(request: Request, pitches: tuple[int, ...], gpu: int) -> tuple[NDArray[np.uint8], tuple[Any, ...]]:
    """A row without the addresses of planes and output, and the filter tables whose addresses it holds."""
    row = np.zeros(BYTES, np.uint8)
    integers, fractions = row.view(np.int32), row.view(np.float32)
    addresses, tables = row.view(np.int64), []
    fractions[COEFFICIENT : COEFFICIENT + 21] = coefficients(request)
    packed, semiplanar = (request.format.layout == name for name in ("packed", "semiplanar"))
    beside = len(request.format.channels) if packed else 1, 2 if semiplanar else 1  # samples to that of the next pixel
    direct, picked = request.interpolation not in LONG, True
    turned = request.rotation in (90, 270)
    tile = 0 if direct or turned else TILES[0]
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
            origin = (count - 1 + start if backwards else -start) * 2 * length + 2 * count * region
            origin += corner(length, count, request.interpolation)
            if request.interpolation != "nearest":
                origin -= subsample * count
            if max(abs(origin), abs(step * (extent + 8)), abs(origin + step * (extent + 8)), unit) >= 2**31:
                raise UsageError(
                    f"resizing {length} pixels to {count} needs numbers of more than 32 bits",
                    remedy="resize in two steps, or crop first",
                )
            if kind == 0 and request.interpolation in LINEAR:
                picked = picked and origin % unit == 0 and step % unit == 0
            values = {"step": step, "whole": step // unit, "rest": step % unit, "offset": origin, "unit": unit}
            values |= {"lowest": region // subsample, "highest": -(-(region + length) // subsample) - 1}
            values["pitch"] = pitches[kind] if coded == 1 else size * beside[kind]
            for name, value in values.items():
                integers[WORD[f"{axis}_{name}{kind}"]] = value
            fractions[WORD[f"{axis}_inverse{kind}"]] = 1 / unit
            fractions[WORD[f"{axis}_weight{kind}"]] = 1 / unit if request.interpolation in LINEAR else 0
            if not direct:
                resize = region, length, count, subsample, request.interpolation
                reached = backwards, begin - start, end - start
                table = _filter(gpu, *reached, *resize)
                tables.append(table)
                addresses[ADDRESS[f"{axis}{kind}"]] = table.data.ptr
                integers[WORD[f"{axis}_filter{kind}"]] = table.shape[1]
                if axis == "along" and tile:
                    tile = min(tile, _tile(_taps(*reached, *resize), beside[kind]))
    integers[COLUMNS] = tile
    integers[WORD[PLAIN]] = int(request.rotation == 0)
    integers[WORD["along_mode0"]] = MODES["filtered" if not direct else "picked" if picked else "linear"]
    return row, tuple(tables)


@lru_cache(maxsize=256)
def _filter(gpu: int, backwards: bool, begin: int, end: int, *resize: Any) -> Any:
    """Filter table of an axis on the device; a row per position: first sample, taps, weights, 4 bytes each."""
    taps = _taps(backwards, begin, end, *resize)
    table = np.column_stack([taps.first, taps.count, np.ascontiguousarray(taps.weight).view(np.int32)])
    return device.uploaded(table)


def _taps(backwards: bool, begin: int, end: int, *resize: Any) -> Taps:
    """Taps of the positions begin .. end - 1 of an axis."""
    taps = axis_taps(*resize)
    return (taps[::-1] if backwards else taps)[begin:end]


def _tile(taps: Taps, components: int) -> int:
    """Columns of a plane with interleaved components that `resize.cu` can compute at once; 0: too few."""
    room = taps.weight.shape[1] + 6 & ~3
    for columns in TILES:
        starts = np.arange(0, len(taps.first), columns)
        widths = np.maximum.reduceat(taps.first + taps.count, starts) - np.minimum.reduceat(taps.first, starts)
        # Up to 3 more samples, as words are read from where they begin, then whole groups of 4.
        if widths.max() + 6 <= TILE_PIXELS[components] and columns * room <= TILE_WEIGHTS:
            return columns
    return 0
