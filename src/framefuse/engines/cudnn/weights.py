"""Weights of the convolutions in GPU memory: in float16, and quantised with their scales for 8-bit layers.

8-bit numbers are INT8, and FP8 as E4M3 (4 bits of exponent, 3 of mantissa, no infinity; "FP8 formats for deep
learning", Micikevicius et al., 2022). Conversion saturates.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from framefuse.cuda import device
from framefuse.engines.cudnn.compiled import Compiled
from framefuse.engines.cudnn.convolutions import BIAS, OUTPUT_SCALE, RESIDUAL_SCALE, SCALE, WEIGHT
from framefuse.engines.cudnn.network import Conv, Type

Array = NDArray[Any]
LARGEST: dict[Type, float] = {"fp8": 448.0, "int8": 127.0}
SMALLEST_EXPONENT = -6
FORMATS: dict[Type, Any] = {"fp8": ml_dtypes.float8_e4m3fn, "int8": np.int8}


def encode(values: Array, kind: Type) -> NDArray[np.uint8]:
    """The nearest 8-bit numbers as bytes; ties go to even."""
    nearest: Array = _nearest(np.asarray(values, np.float32), kind, np)
    return nearest.astype(FORMATS[kind]).view(np.uint8)


def rounded(values: Any, kind: Type, scale: float | Array, xp: Any = np) -> Any:
    """Values quantised with `scale` and dequantised, in float32; `xp` is NumPy or CuPy."""
    return _nearest(values.astype(np.float32) / np.float32(scale), kind, xp) * np.float32(scale)


def weight_scales(weight: Array, kind: Type) -> NDArray[np.float32]:
    """Scale per output channel that maps its largest weight to the largest 8-bit number."""
    size = np.abs(weight).reshape(len(weight), -1).max(1)
    return np.where(size > 0, size / LARGEST[kind], 1).astype(np.float32)


def _nearest(numbers: Any, kind: Type, xp: Any) -> Any:
    """float32 numbers rounded to 8-bit numbers, in float32."""
    if kind == "int8":
        return xp.clip(xp.rint(numbers), -128, 127)
    numbers = xp.clip(numbers, -LARGEST[kind], LARGEST[kind])
    step = xp.ldexp(np.float32(1), xp.maximum(xp.frexp(numbers)[1] - 1, SMALLEST_EXPONENT) - 3)
    return xp.rint(numbers / step) * step


ALIGNMENT = 256
"""Bytes."""


def parameters(compiled: Compiled, conv: Conv) -> dict[int, NDArray[Any]]:
    """Tensors by their unique id in cuDNN's graph; empty if the layer is all float16."""
    found: dict[int, NDArray[Any]] = {}
    kind = compiled.type(conv.x)
    if kind != "fp16":
        scales = weight_scales(conv.weight, kind)
        found[WEIGHT] = encode(conv.weight / scales[:, None, None, None], kind).transpose(0, 2, 3, 1)
        found[SCALE] = scales * np.float32(compiled.scale(conv.x))
        found[BIAS] = conv.bias.astype(np.float32)
    if conv.residual is not None and compiled.type(conv.residual) != "fp16":
        found[RESIDUAL_SCALE] = np.array([compiled.scale(conv.residual)], np.float32)
    if compiled.type(conv.y) != "fp16":
        found[OUTPUT_SCALE] = np.array([1 / compiled.scale(conv.y)], np.float32)
    return found


class Packed:
    """Arrays in one allocation on the GPU.

    Args:
        arrays: by owner, then by unique id in cuDNN's graphs.
    """

    def __init__(self, arrays: Mapping[Hashable, Mapping[int, NDArray[Any]]]) -> None:
        parts: list[bytes] = []
        self._offsets: dict[Hashable, dict[int, int]] = {}
        size = 0
        for owner, tensors in arrays.items():
            self._offsets[owner] = {}
            for uid, values in tensors.items():
                content = np.ascontiguousarray(values).tobytes()
                self._offsets[owner][uid] = size
                parts.append(content.ljust(-(-len(content) // ALIGNMENT) * ALIGNMENT, b"\0"))
                size += len(parts[-1])
        self._memory = device.cupy().asarray(np.frombuffer(b"".join(parts) or b"\0", np.uint8))

    def pointers(self, owner: Hashable) -> dict[int, int]:
        """Addresses of the owner's arrays, by unique id; empty if it has none."""
        start = int(self._memory.data.ptr)
        return {uid: start + offset for uid, offset in self._offsets.get(owner, {}).items()}


class Weights(Packed):
    """Weights and biases of all convolutions by name, float16, which batches and sizes share.

    Their layout is (out channels, rows, columns, in channels), that of depthwise filters (rows, columns, channels).
    """

    def __init__(self, convolutions: Sequence[Conv]) -> None:
        arrays: dict[Hashable, dict[int, NDArray[Any]]] = {}
        for conv in convolutions:
            order = (2, 3, 1, 0) if conv.depthwise else (0, 2, 3, 1)
            found = {WEIGHT: conv.weight.transpose(order), BIAS: conv.bias}
            arrays[conv.name] = {uid: values.astype(np.float16) for uid, values in found.items()}
        super().__init__(arrays)


class Scaled(Packed):
    """`parameters` of all steps, by index."""

    def __init__(self, compiled: Compiled) -> None:
        steps = enumerate(compiled.placement.steps)
        super().__init__({index: parameters(compiled, step) for index, step in steps if isinstance(step, Conv)})
