"""preprocess on a GPU: frames of any sizes into the slots of one tensor, in one launch.

A table in device memory holds one row for each slot (`tir/_frame_row.py`): where the planes and the slot are, the
positions, the colours. `PreprocessTable` is for a captured graph, which is launched again and again while the rows
change; `preprocess_batch` makes a table of its own and remembers it. The row of a single frame is a parameter of the
launch, which a kernel reads faster than memory.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from framefuse.cuda import device, kernel
from framefuse.cuda import launch_plan as calls
from framefuse.errors import UsageError
from framefuse.frame import Frame, PixelFormat
from framefuse.kernels.preprocess.cuda_rows import SIZES, Output, row_of
from framefuse.kernels.preprocess.frame_row import ADDRESS, BYTES, STORES, lanes, span
from framefuse.kernels.preprocess.plan import OUTPUTS, Content, MemoryFormat

MAX_FRAMES = 65535
REMEMBERED = 64
"""Tables kept, those of captured graphs not counted."""

CHANNELS = (3, 4, 8)
"""Channels that an NHWC output on a GPU may have."""


def is_cuda(frame: Frame) -> bool:
    """Whether the planes lie on a GPU."""
    plane = frame.planes[0]
    return type(plane) is not np.ndarray and hasattr(plane, "__cuda_array_interface__")


class PreprocessTable:
    """Frames of one kind as the kernel finds them on the device; rows may change between launches.

        table = PreprocessTable(frame.format, batch)     # before the capture, which launches only
        table.set(0, frame, content=..., ...)
        table.upload(stream)                             # not captured: copies the rows
        table.launch(stream)                             # captured, or not

    Slots that were never set are filled with zeros. Upload and launch are ordered by the stream alone.

    Args:
        format: of every frame; its planes' layout and sample type choose the kernel, all else may differ.
        out: (frames, 3, height, width) for "nchw", (frames, height, width, 3 | 4 | 8) for "nhwc"; float32, float16,
            bfloat16 (also as its bits in uint16), uint8 or int8, on the GPU. Its memory must stay where it is.
        allocate: makes the host's memory of the rows from its shape and dtype; page-locked memory lets `upload` be
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
        """Write the row of a slot, on the host. `options` are those of `preprocess` but `memory_format` and `rows`.

        Raises:
            UsageError: an option or a plane cannot be used, or the frame is of another kind than the table.
        """
        if (frame.format.layout, frame.format.dtype) != (self._format.layout, self._format.dtype):
            raise UsageError(f"a {frame.format.name} frame does not fit a table of {self._format.name} frames")
        if "rows" in options:
            raise UsageError("a table fills whole slots", remedy="leave out rows")
        planes = [device.as_cupy(plane) for plane in frame.planes]
        kind = (*options.values(), frame.format, frame.matrix, frame.full_range, frame.rotation,
                *((plane.shape, plane.strides) for plane in planes))  # fmt: skip
        if kind == self._kinds[slot]:  # images of one stream differ in their addresses alone
            self._addresses[slot, : len(planes)] = [plane.data.ptr for plane in planes]
            return
        row, self._tables[slot] = row_of(frame, self._out, slot, {"memory_format": self._memory_format, **options})
        self._rows[slot] = row
        self._kinds[slot] = kind

    def clear(self, slot: int) -> None:
        """The slot is to be filled with zeros; no frame is read for it."""
        self._rows[slot] = 0
        self._addresses[slot, ADDRESS["output"]] = self._out.address + slot * self._out.pitch
        self._tables[slot], self._kinds[slot] = (), None

    @property
    def nbytes(self) -> int:
        """What `upload` copies."""
        return self._rows.nbytes

    def upload(self, stream: int | None = None) -> None:
        """Copy the rows to the device. Those of the host may be set again as soon as this returns."""
        _copy(self._rows, self._device, stream)

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
    """`kernels.preprocess_batch` where the frames lie on a GPU; `out` has so many axes, 3: it is one slot.

    Decoders hand out the same addresses again, so what a call comes to is remembered: the next with the same addresses,
    shapes and options only launches.
    """
    key = _key(frames, out, contents, options)
    launches = None if key is None else _calls.get(key)
    if launches is None:
        launches = _prepare(frames, Output.of(out, axes), contents, options)
        if key is not None:
            _calls[key] = launches
            while len(_calls) > CALLS:
                _calls.popitem(last=False)
    for launch in launches:
        launch.start(stream)


class _Single(NamedTuple):
    """One frame, whose row goes to the kernel with the launch itself."""

    launch: kernel.Bound
    keep: Any

    def start(self, stream: int | None) -> None:
        if self.keep:
            calls.pin(self.keep, stream)
        self.launch(stream)


class _Many(NamedTuple):
    """Frames whose rows lie in a table on the device, one for each stream that uses it."""

    symbol: str
    rows: NDArray[np.uint8]
    content: bytes
    keep: Any
    arguments: dict[str, int]

    def start(self, stream: int | None) -> None:
        table = calls.keep(_remembered(self.rows, self.content, self.keep, stream))
        calls.keep(self.keep)
        kernel.launch(self.symbol, stream=stream, table=int(table.data.ptr), frames=len(self.rows), **self.arguments)


CALLS = 256
"""Calls remembered."""

_calls: OrderedDict[Any, list[_Single | _Many]] = OrderedDict()


def _key(frames: Sequence[Frame], out: Any, contents: Sequence[Content], options: dict[str, Any]) -> Any:
    """All that a call depends on, cheaply; None where an array is neither CuPy's nor torch's, or an option a list."""
    try:
        key = [calls.seen(out), *contents, *options.items()]
        for frame in frames:
            key.append((frame.format, frame.matrix, frame.full_range, frame.rotation))
            key += [calls.seen(plane) for plane in frame.planes]
        hash(tuple(key))
    except TypeError:
        return None
    return tuple(key)


def _prepare(
    frames: Sequence[Frame], output: Output, contents: Sequence[Content], options: dict[str, Any]
) -> list[_Single | _Many]:
    memory_format = options.get("memory_format", "nchw")
    height = output.shape[2 if memory_format == "nchw" else 1]
    first, last = options.get("rows") or (0, height)
    kinds: dict[str, list[int]] = {}
    for index, frame in enumerate(frames):
        kinds.setdefault(_symbol(frame.format, output, memory_format), []).append(index)
    launches: list[_Single | _Many] = []
    for symbol, members in kinds.items():
        found = [row_of(frames[index], output, index, {**options, "content": contents[index]}) for index in members]
        arguments = _arguments(
            frames[members[0]].format.layout, output, memory_format, last - first, alone=len(members) == 1
        )
        if len(members) == 1:
            ((row, tables),) = found
            launch = kernel.bind(f"{symbol}_one", table=row.tobytes(), **arguments)
            launches.append(_Single(launch, tables))
        else:
            kernel.prepare([symbol])
            rows = np.stack([row for row, _ in found])
            launches.append(_Many(symbol, rows, rows.tobytes(), [tables for _, tables in found], arguments))
    return launches


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
    """Those of the kernel that are not of a frame."""
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


def _copy(rows: NDArray[np.uint8], target: Any, stream: int | None) -> None:
    # From pageable memory: CUDA takes its own copy of so few bytes before this returns, and does not wait for the GPU.
    runtime = device.cupy().cuda.runtime
    runtime.memcpyAsync(
        target.data.ptr,
        rows.ctypes.data,
        rows.nbytes,
        runtime.memcpyHostToDevice,
        device.current_stream() if stream is None else stream,
    )


class _Table(NamedTuple):
    """Rows on the device, and when they are there."""

    rows: Any
    arrived: Any
    keep: Any


_tables: OrderedDict[tuple[int, bytes, int], _Table] = OrderedDict()
"""By device, rows and stream. Each is used on one stream alone, from which its memory comes and to which it returns."""
_captured: dict[tuple[int, bytes], _Table] = {}
"""Those that a captured graph reads, on whatever stream: never given up."""


def _remembered(rows: NDArray[np.uint8], content: bytes, keep: Any, stream: int | None) -> Any:
    """The rows on the device. Decoders hand out the same addresses again, so mostly they are there already."""
    module = device.cupy()
    pointer = device.current_stream() if stream is None else stream
    gpu = device.current_gpu()
    if device.capturing(pointer):
        table = _captured.get((gpu, content)) or next(
            (table for key, table in list(_tables.items()) if key[:2] == (gpu, content)), None
        )
        if table is None:
            raise UsageError(
                "preprocess is captured with frames, options or an output that it has not seen before",
                remedy="call it once before the capture, or capture PreprocessTable.launch",
            )
        table.arrived.synchronize()
        _captured[gpu, content] = table
        return table.rows
    found = _tables.get((gpu, content, pointer))
    if found is None:
        with device.stream_at(pointer) as here:
            found = _Table(module.empty(rows.nbytes, np.uint8), module.cuda.Event(disable_timing=True), keep)
            _copy(rows, found.rows, pointer)
            found.arrived.record(here)
        _tables[gpu, content, pointer] = found
        while len(_tables) > REMEMBERED:
            _tables.popitem(last=False)
    return found.rows
