"""preprocess: the one pass from a decoder's planes to a model's input."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from framefuse.errors import UsageError
from framefuse.frame import Frame, Region
from framefuse.kernels.cpu import _address, _function, _scratch, _tensor
from framefuse.kernels.preprocess import cuda as preprocess_cuda
from framefuse.kernels.preprocess.filters import Interpolation
from framefuse.kernels.preprocess.plan import MAX_ELEMENTS, ChannelOrder, Content, MemoryFormat, Request, Triple, plan

_Call = tuple[Callable[[list[int], int], None], object]
"""The compiled kernel with all arguments that frames and outputs of one kind share, called with the addresses of the
planes and of `out`; and the objects to which the key or the call refers by address."""


class _Calls(threading.local):
    """Prepared calls of a thread on the host by format, sizes and options. They share the thread's scratch."""

    def __init__(self) -> None:
        self.known: dict[Hashable, _Call] = {}


_calls = _Calls()
MAX_CALLS = 64


def _pitches(frame: Frame) -> tuple[int, ...]:
    """Pitch in elements of each plane, padded to three."""
    pitches = []
    for number, plane in enumerate(frame.planes):
        if not isinstance(plane, np.ndarray):
            raise UsageError(f"plane {number} is a {type(plane).__name__}, not an array on the host")
        pitch = plane.strides[0] // plane.itemsize
        if pitch * plane.itemsize != plane.strides[0] or not plane[0].flags.c_contiguous:
            raise UsageError(
                f"plane {number} has strides {plane.strides} bytes; within a row its samples must be adjacent",
                remedy="pass np.ascontiguousarray(plane), which copies",
            )
        if abs(pitch) * plane.shape[0] > MAX_ELEMENTS:
            raise UsageError(f"plane {number} has {plane.shape[0]} rows {pitch} samples apart, more than 2^31 samples")
        pitches.append(pitch)
    return (*pitches, *pitches[:1] * (3 - len(pitches)))


def preprocess(
    frame: Frame,
    out: NDArray[Any],
    *,
    content: Content,
    interpolation: Interpolation,
    pad_value: float | None,
    mean: Triple,
    std: Triple,
    channel_order: ChannelOrder,
    memory_format: MemoryFormat = "nchw",
    roi: Region | None = None,
    rows: tuple[int, int] | None = None,
    stream: int | None = None,
) -> None:
    """Resize, convert to RGB, normalise and lay out a frame as a model input, in one pass over its own planes.

    `kernels.reference.preprocess` is the specification: the formula, the standards and the meaning of the arguments are
    stated there. This function agrees with it to 0.02 grey levels. The frame's planes may be read-only and have any row
    pitch; `out` may be a slot of a batch, so a batch of differently sized frames is a loop over its slots.

    With `pad_value` None the padding is not written, for an output that is filled repeatedly and already has it. On a
    GPU padding is always written, so None is refused.

    The GIL is released while it runs, so threads may fill disjoint `rows` of one output at once:

        with ThreadPoolExecutor(2) as pool:
            halves = (0, height // 2), (height // 2, height)
            for part in [pool.submit(preprocess, frame, out, rows=rows, **options) for rows in halves]:
                part.result()

    Parts of an image that is rotated by 90 degrees may differ from the whole by a rounding of float32.

    Planes that are CuPy arrays are preprocessed on their GPU into a CuPy, torch or DLPack array there, in order with
    `stream` (pointer of a CUDA stream; None: CuPy's current one). A single frame may be captured in a CUDA graph, with
    interpolation "area" or "antialias" as a plan of `record_launches`.

    Raises:
        UsageError: an argument or a plane cannot be used; the message says which and why.
        CapabilityError: there are no compiled kernels for this machine.
    """
    if preprocess_cuda.is_cuda(frame):
        options: dict[str, Any] = {"interpolation": interpolation, "pad_value": pad_value, "roi": roi, "rows": rows}
        options |= {"mean": mean, "std": std, "channel_order": channel_order, "memory_format": memory_format}
        preprocess_cuda.fill([frame], out, [content], options, stream, axes=3)
        return
    planes = frame.planes
    key = (
        id(frame.format), frame.rotation, frame.matrix, frame.full_range, *[(p.shape, p.strides) for p in planes],
        getattr(out, "shape", None), getattr(out, "strides", None), getattr(out, "dtype", None), tuple(content),
        interpolation, pad_value, tuple(mean), tuple(std), channel_order, memory_format, roi and tuple(roi),
        rows and tuple(rows),
    )  # fmt: skip
    call = _calls.known.get(key)
    if call is None or not out.flags.writeable:
        request = Request.of(
            frame, out, content, interpolation, pad_value, mean, std, channel_order, memory_format, roi, rows
        )
        call = _call(request, _pitches(frame), frame)
        if len(_calls.known) >= MAX_CALLS:
            _calls.known.clear()
        _calls.known[key] = call
    addresses = [_address(plane) for plane in planes]
    addresses += addresses[:1] * (3 - len(addresses))
    call[0](addresses, _address(out))


def _call(request: Request, pitches: tuple[int, ...], frame: Frame) -> _Call:
    todo, size, format = plan(request), request.dtype.itemsize, request.format
    arrays, strip, at = list(todo.tables), None, 0
    if todo.strip_elements:
        strip = _scratch.get(f"preprocess_strip{size}", (todo.strip_elements,), f"u{size}")
        at = _address(strip)
    if todo.scratch is not None:
        row, columns = todo.scratch
        sizes = {"row": row, "lanes": 4 * columns, "components": 3 * columns}
        arrays += [_scratch.get(f"preprocess_{name}", (count,)) for name, count in sizes.items()]
        if format.layout == "packed":  # samples as they are read: whole pixels unchanged, others as they are converted
            arrays.append(_scratch.get(f"preprocess_pixels{format.bits}", (4 * columns,), format.dtype))
        else:
            arrays.append(_scratch.get("preprocess_samples", (columns,), np.int32))
    function, offset, rest = _function(todo.name), todo.offset * size, (*todo.walk, *map(_tensor, arrays))

    def run(addresses: list[int], out: int) -> None:
        written = out + offset
        function(*addresses, *pitches, at or written, written, *rest)

    return run, (frame.format, strip)


def preprocess_batch(
    frames: Sequence[Frame], out: Any, *, contents: Sequence[Content], stream: int | None = None, **options: Any
) -> None:
    """`preprocess` frame i into out[i] for every i; further slots of `out` are not written.

    Args:
        frames: of any sizes, all on the host or all on one GPU, where frames of one plane layout and sample type share
            a launch.
        out: (slots, 3, height, width), or (slots, height, width, channels) with memory_format "nhwc", whose channels on
            a GPU are 3, 4 or 8.
        contents: for each frame, as `preprocess` takes it.
        stream: pointer of a CUDA stream; None: CuPy's current one.
        options: of `preprocess`, for all frames.

    On a GPU each call uploads a table of its frames, so it cannot be captured in a CUDA graph. For repeated calls use
    `PreprocessTable`, whose frames may change between launches, or `record_launches`, whose plan reads the same arrays.

    Raises:
        UsageError: an argument cannot be used, or a stream is being captured.
        CapabilityError: there are no compiled kernels for this machine.
    """
    if len(frames) != len(contents) or len(frames) > len(out):
        raise UsageError(f"{len(frames)} frames, {len(contents)} contents and {len(out)} slots do not fit together")
    if frames and preprocess_cuda.is_cuda(frames[0]):
        preprocess_cuda.fill(frames, out, contents, options, stream)
        return
    for frame, slot, content in zip(frames, out, contents, strict=False):
        preprocess(frame, slot, content=content, **options)
