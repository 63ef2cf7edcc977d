"""preprocess: the one pass from a decoder's planes to a model's input."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from framefuse.errors import UsageError
from framefuse.frame import Frame
from framefuse.kernels import preprocess_cuda
from framefuse.kernels.cpu import _address, _function, _scratch
from framefuse.kernels.plan import (
    MAX_ELEMENTS,
    ChannelOrder,
    Content,
    Interpolation,
    MemoryFormat,
    Region,
    Request,
    Triple,
    plan,
)


def _planes(frame: Frame) -> tuple[list[int], list[int]]:
    """Address and pitch in elements of each plane, padded to three."""
    addresses, pitches = [], []
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
        addresses.append(_address(plane))
        pitches.append(pitch)
    spare = 3 - len(addresses)
    return addresses + addresses[:1] * spare, pitches + pitches[:1] * spare


def preprocess(
    frame: Frame,
    out: NDArray[Any],
    *,
    content: Content,
    interpolation: Interpolation,
    pad_value: float,
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
    stated there. This one agrees with it to 0.02 grey levels. The frame's planes may be read-only and have any row
    pitch; `out` may be a slot of a batch, so a batch of differently sized frames is a loop over its slots.

    The GIL is released while it runs, so threads may fill disjoint `rows` of one output at once:

        with ThreadPoolExecutor(2) as pool:
            halves = (0, height // 2), (height // 2, height)
            for part in [pool.submit(preprocess, frame, out, rows=rows, **options) for rows in halves]:
                part.result()

    Planes of CuPy arrays are preprocessed on their GPU, into a CuPy, torch or DLPack array there, in order with
    `stream` (pointer of a CUDA stream; None: CuPy's current one). `preprocess_batch` says what holds in a captured
    graph.

    Raises:
        UsageError: an argument or a plane cannot be used; the message says which and why.
        CapabilityError: there are no compiled kernels for this machine.
    """
    if preprocess_cuda.is_cuda(frame):
        preprocess_batch(
            [frame],
            preprocess_cuda.as_batch(out),
            contents=[content],
            interpolation=interpolation,
            pad_value=pad_value,
            mean=mean,
            std=std,
            channel_order=channel_order,
            memory_format=memory_format,
            roi=roi,
            rows=rows,
            stream=stream,
        )
        return
    request = Request.of(
        frame, out, content, interpolation, pad_value, mean, std, channel_order, memory_format, roi, rows
    )
    todo = plan(request)
    addresses, pitches = _planes(frame)
    written = _address(out) + todo.offset * out.itemsize
    target = written
    if todo.strip_elements:
        target = _address(_scratch.get(f"preprocess_strip{out.itemsize}", (todo.strip_elements,), f"u{out.itemsize}"))
    scratch = (
        _scratch.get("preprocess_row", (todo.row_elements,)),
        _scratch.get("preprocess_lanes", (4 * todo.columns,)),
        _scratch.get("preprocess_components", (3 * todo.columns,)),
        _picked(request, todo.columns),
    )
    _function(todo.name)(*addresses, *pitches, target, written, *todo.walk, *todo.tables, *scratch)


def preprocess_batch(
    frames: Sequence[Frame],
    out: Any,
    *,
    contents: Sequence[Content],
    stream: int | None = None,
    **options: Any,
) -> None:
    """`preprocess` frame i into out[i], for every i; `out` may have more slots, which are left alone.

    Args:
        frames: of any sizes, all on the host or all on one GPU; there, those of one plane layout and sample type share
            one launch.
        out: (slots, 3, height, width), or (slots, height, width, channels) with memory_format "nhwc", whose channels on
            a GPU are 3, 4 or 8.
        contents: for each frame, as `preprocess` takes it.
        stream: pointer of a CUDA stream; None: CuPy's current one.
        options: of `preprocess`, for all frames.

    In the capture of a CUDA graph, call it with the very frames and arrays with which it was called before; the graph
    then reads those. `PreprocessTable` is for graphs that are to read others later.

    Raises:
        UsageError: an argument cannot be used, or a capture meets frames that were not preprocessed before.
        CapabilityError: there are no compiled kernels for this machine.
    """
    if len(frames) != len(contents) or len(frames) > len(out):
        raise UsageError(f"{len(frames)} frames, {len(contents)} contents and {len(out)} slots do not fit together")
    if frames and preprocess_cuda.is_cuda(frames[0]):
        preprocess_cuda.fill(frames, out, contents, options, stream)
        return
    for frame, slot, content in zip(frames, out, contents, strict=False):
        preprocess(frame, slot, content=content, **options)


def _picked(request: Request, columns: int) -> NDArray[Any]:
    """Scratch for samples picked from a plane: whole pixels as they are, single samples as the kernel converts them."""
    if request.format.layout == "packed":
        return _scratch.get(f"preprocess_pixels{request.format.bits}", (4 * columns,), request.format.dtype)
    return _scratch.get("preprocess_samples", (columns,), np.int32)
