"""preprocess on a GPU: frames of any sizes into the slots of one tensor, in one launch.

A table in device memory has one row for each slot (`frame_row.py`): the addresses of the planes and the slot, the
positions and the colour matrix. `PreprocessTable` owns such a table for frames that change between launches, in a
captured graph or not. A plain call uploads its table each time; the row of a single frame is a parameter of the launch,
which a kernel reads faster than memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from framefuse.cuda import device, kernel
from framefuse.cuda.launch_plan import keep, keep_cached
from framefuse.errors import UsageError
from framefuse.frame import Frame, PixelFormat
from framefuse.kernels.preprocess.cuda_rows import SIZES, Output, row_of
from framefuse.kernels.preprocess.frame_row import ADDRESS, BYTES, STORES, lanes, span
from framefuse.kernels.preprocess.plan import OUTPUTS, Content, MemoryFormat

MAX_FRAMES = 65535

CHANNELS = (3, 4, 8)
"""Channels that an NHWC output on a GPU may have."""


def is_cuda(frame: Frame) -> bool:
    """Whether the planes lie on a GPU."""
    plane = frame.planes[0]
    return type(plane) is not np.ndarray and hasattr(plane, "__cuda_array_interface__")


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
        for slot in range(len(self._rows)):
            self.clear(slot)
        kernel.prepare([self.symbol])
        self._device = device.cupy().empty(self._rows.nbytes, np.uint8)
        height = self._out.shape[2 if memory_format == "nchw" else 1]
        arguments = _arguments(format.layout, self._out, memory_format, height)
        table = int(self._device.data.ptr)
        self._launch = kernel.bind(self.symbol, table=table, frames=len(self._rows), **arguments)
        self.upload()
        device.cupy().cuda.runtime.streamSynchronize(device.current_stream())

    def set(self, slot: int, frame: Frame, **options: Any) -> None:
        """Write the row of a slot on the host. `options` are those of `preprocess` except `memory_format` and `rows`.

        Raises:
            UsageError: an option or a plane cannot be used, or the frame has another layout or sample type.
        """
        if (frame.format.layout, frame.format.dtype) != (self._format.layout, self._format.dtype):
            raise UsageError(f"a {frame.format.name} frame does not fit a table of {self._format.name} frames")
        if "rows" in options:
            raise UsageError("a table fills whole slots", remedy="leave out rows")
        planes = [device.as_cupy(plane) for plane in frame.planes]
        kind = (*options.values(), frame.format, frame.matrix, frame.full_range, frame.rotation,
                *((plane.shape, plane.strides) for plane in planes))  # fmt: skip
        if kind == self._kinds[slot]:  # frames of one video differ only in their addresses
            self._addresses[slot, : len(planes)] = [plane.data.ptr for plane in planes]
            return
        row, self._tables[slot] = row_of(frame, self._out, slot, {"memory_format": self._memory_format, **options})
        self._rows[slot] = row
        self._kinds[slot] = kind

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
        """Start the kernel over every slot."""
        self._launch(stream)


def fill(
    frames: Sequence[Frame],
    out: Any,
    contents: Sequence[Content],
    options: dict[str, Any],
    stream: int | None,
    *,
    axes: int = 4,
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
        found = [row_of(frames[index], output, index, {**options, "content": contents[index]}) for index in members]
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
    sample = "u8" if format.dtype == np.uint8 else "u16"
    return f"preprocess_{format.layout}_{sample}_{memory_format}{'' if nchw else channels}"


def _arguments(
    layout: str, out: Output, memory_format: MemoryFormat, rows: int, *, alone: bool = False
) -> dict[str, int]:
    """Arguments of the kernel that do not depend on a frame."""
    nchw = memory_format == "nchw"
    height, width = out.shape[2:] if nchw else out.shape[1:3]
    output = OUTPUTS[out.dtype]
    memory = "nchw" if nchw else f"nhwc{out.shape[3]}"
    grain = SIZES[output] * lanes(layout, memory, output, alone)
    return {
        "width": width,
        "height": rows,
        "channel_pitch": width * height,
        "vectors": int(
            width % span(layout, memory, alone) == 0 and out.address % grain == 0 and out.pitch % grain == 0
        ),
        "store": STORES[output],
    }
