"""The compiled network in NumPy: the same steps over the same planned memory, for tests against the ONNX model.

All steps share one arena, so errors of the memory plan change the results. Any order of steps that the schedule allows
gives the same results.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided, sliding_window_view
from numpy.typing import NDArray

from framefuse.engines.cudnn.compiled import Compiled
from framefuse.engines.cudnn.execution import rounded, weight_scales
from framefuse.engines.cudnn.network import Attention, Conv, General, Head, Pool, attend, decode

Array = NDArray[Any]


def run(compiled: Compiled, images: Array, *, order: list[int] | None = None, dtype: Any = np.float32) -> list[Array]:
    """Run the steps.

    Args:
        images: (batch, 3, height, width) float32.
        order: of the steps; None: list order.
        dtype: of the arena; the GPU uses float16. 8-bit values are rounded and stored dequantised.

    Returns:
        The network's outputs without padding, (batch, channels, height, width) each.
    """
    arena = np.full(compiled.memory.size, np.nan, dtype)
    fill(compiled, arena, images)
    for index in order or range(len(compiled.placement.steps)):
        step(compiled, arena, index)
    return outputs(compiled, arena)


def view(compiled: Compiled, arena: Array, name: str) -> Array:
    """A value as a writable view (batch, channels, height, width)."""
    found, size = compiled.view(name), arena.itemsize
    strides = (compiled.image(name) * size, size, found.row * size, found.column * size)
    return as_strided(
        arena[compiled.memory.offsets[found.buffer] + found.offset :], (compiled.batch, *found.shape), strides
    )


def fill(compiled: Compiled, arena: Array, images: Array) -> None:
    """Write the network's input."""
    target = view(compiled, arena, compiled.network.input)
    target[:, : images.shape[1]] = images
    target[:, images.shape[1] :] = 0


def step(compiled: Compiled, arena: Array, index: int) -> None:
    """Run one step; arithmetic is float32."""
    operation = compiled.placement.steps[index]
    if isinstance(operation, General):
        made = run_general(compiled, arena, operation)
        for name, value in zip(operation.ys, made, strict=True):
            target = view(compiled, arena, name)
            target[:, : value.shape[1]], target[:, value.shape[1] :] = value, 0
        return
    x = view(compiled, arena, operation.x).astype(np.float32)
    if isinstance(operation, Conv):
        weight, bias = _stored(compiled, operation, arena.dtype)
        y = _conv(x, weight, operation) + bias[:, None, None]
        if operation.activation == "silu":
            y = y / (1 + np.exp(-y))
        elif operation.activation == "relu":
            y = np.maximum(y, 0)
        if operation.residual is not None:
            y = y + view(compiled, arena, operation.residual).astype(np.float32)
        if operation.last == "relu":
            y = np.maximum(y, 0)
        elif operation.last == "silu":
            y = y / (1 + np.exp(-y))
        if (kind := compiled.type(operation.y)) != "fp16":
            y = rounded(y, kind, compiled.scale(operation.y))
        view(compiled, arena, operation.y)[...] = y
    elif isinstance(operation, Pool):
        margin = operation.kernel // 2
        for name in operation.ys:
            x = np.pad(x, ((0, 0), (0, 0), (margin, margin), (margin, margin)), constant_values=-np.inf)
            x = sliding_window_view(x, (operation.kernel, operation.kernel), (2, 3)).max((-1, -2))
            view(compiled, arena, name)[...] = x
    elif isinstance(operation, Attention):
        view(compiled, arena, operation.y)[...] = attend(x, operation)
    else:
        view(compiled, arena, operation.y)[...] = x.repeat(operation.scale, 2).repeat(operation.scale, 3)


def run_general(compiled: Compiled, arena: Array, step: General) -> list[Array]:
    """What nodes without kernels make, of as many images at once as the file takes."""
    given = {name: value(compiled, arena, name).astype(np.float32) for name in step.xs}
    count = step.images or compiled.batch
    parts = [
        step.program.run({name: found[at : at + count] for name, found in given.items()}, step.ys)
        for at in range(0, compiled.batch, count)
    ]
    return [np.concatenate(found) for found in zip(*parts, strict=True)]


def value(compiled: Compiled, arena: Array, name: str) -> Array:
    """A value without padding."""
    kept = [channel for channel, model in enumerate(compiled.network.padding.get(name, ())) if model >= 0]
    return view(compiled, arena, name)[:, kept or slice(None)].copy()


def outputs(compiled: Compiled, arena: Array) -> list[Array]:
    """The network's outputs without padding."""
    if compiled.network.tail is not None:
        return run_general(compiled, arena, compiled.network.tail)
    return [value(compiled, arena, name) for name in compiled.network.outputs]


def _stored(compiled: Compiled, conv: Conv, dtype: Any) -> tuple[Array, Array]:
    """Weights and bias as stored on the GPU, converted to float32."""
    kind = compiled.type(conv.x)
    if kind == "fp16":
        return conv.weight.astype(dtype).astype(np.float32), conv.bias.astype(dtype).astype(np.float32)
    return rounded(conv.weight, kind, weight_scales(conv.weight, kind)[:, None, None, None]), conv.bias


def _conv(x: Array, weight: Array, step: Conv) -> Array:
    top, left, bottom, right = step.pads
    x = np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)))
    (rows, columns), (down, across) = weight.shape[2:], step.dilation
    windows = sliding_window_view(x, ((rows - 1) * down + 1, (columns - 1) * across + 1), (2, 3))
    windows = windows[:, :, :: step.stride[0], :: step.stride[1], ::down, ::across]
    batch, channels, height, width = windows.shape[:4]
    groups = step.groups
    parts = windows.reshape(batch, groups, channels // groups, height, width, rows, columns)
    kernels = weight.reshape(groups, len(weight) // groups, *weight.shape[1:])
    y: Array = np.einsum("bgchwij,gocij->bgohw", parts, kernels, optimize=True)
    return y.reshape(batch, -1, height, width)


def decode_levels(values: Sequence[NDArray[Any]], head: Head, height: int, width: int) -> Array:
    """`decode` for a batch; `values` are those of `Head.values`, (batch, channels, rows, columns)."""
    flat = [value.reshape(*value.shape[:2], -1) for value in values]
    sides, scores = np.concatenate(flat[::2], 2), np.concatenate(flat[1::2], 2)
    return np.stack([decode(a, b, head, height, width) for a, b in zip(sides, scores, strict=True)])
