"""8-bit numbers of cuDNN: INT8, and FP8 as E4M3 (4 bits of exponent, 3 of mantissa, no infinity; "FP8 formats for deep
learning", Micikevicius et al., 2022). Conversion saturates."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from framefuse.engines.cudnn.network import Type

Array = NDArray[Any]

LARGEST: dict[Type, float] = {"fp8": 448.0, "int8": 127.0}
SMALLEST_EXPONENT = -6
NAN = 0x7F


def encode(values: Array, kind: Type) -> NDArray[np.uint8]:
    """The nearest 8-bit numbers as bytes; ties go to even."""
    if kind == "int8":
        return np.clip(np.rint(np.asarray(values, np.float32)), -128, 127).astype(np.int8).view(np.uint8)
    bounded = np.clip(np.asarray(values, np.float32), -LARGEST[kind], LARGEST[kind])
    size = np.abs(bounded)
    exponent = np.maximum(np.frexp(size)[1] - 1, SMALLEST_EXPONENT)
    step = np.ldexp(np.float32(1), exponent - 3)
    codes = np.searchsorted(_E4M3, np.rint(size / step) * step)
    found: NDArray[np.uint8] = (codes | np.signbit(bounded).astype(np.int64) << 7).astype(np.uint8)
    return found


def decode(codes: NDArray[np.uint8], kind: Type) -> NDArray[np.float32]:
    """Bytes -> values, the inverse of `encode`."""
    if kind == "int8":
        return codes.view(np.int8).astype(np.float32)
    size = np.append(_E4M3, np.float32(np.nan))[codes & NAN]
    found: NDArray[np.float32] = np.where(codes >> 7, -size, size).astype(np.float32)
    return found


def rounded(values: Array, kind: Type, scale: float | Array) -> NDArray[np.float32]:
    """Values quantised with `scale` and dequantised."""
    found: NDArray[np.float32] = decode(encode(values / scale, kind), kind) * np.float32(scale)
    return found


def weight_scales(weight: Array, kind: Type) -> NDArray[np.float32]:
    """Scale per output channel that maps its largest weight to the largest 8-bit number."""
    size = np.abs(weight).reshape(len(weight), -1).max(1)
    return np.where(size > 0, size / LARGEST[kind], 1).astype(np.float32)


def _positive() -> NDArray[np.float32]:
    codes = np.arange(NAN)
    exponent, mantissa = codes >> 3, codes & 7
    normal = np.ldexp((8 + mantissa).astype(np.float32), exponent - 10)
    return np.where(exponent > 0, normal, np.ldexp(mantissa.astype(np.float32), -9)).astype(np.float32)


_E4M3 = _positive()
"""The non-negative numbers by code, ascending."""
