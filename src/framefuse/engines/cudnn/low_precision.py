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
    nearest: Array = _nearest(np.asarray(values, np.float32), kind, np)
    if kind == "int8":
        return nearest.astype(np.int8).view(np.uint8)
    codes = np.searchsorted(_E4M3, np.abs(nearest))
    found: NDArray[np.uint8] = (codes | np.signbit(nearest).astype(np.int64) << 7).astype(np.uint8)
    return found


def decode(codes: NDArray[np.uint8], kind: Type) -> NDArray[np.float32]:
    """Bytes -> values, the inverse of `encode`."""
    if kind == "int8":
        return codes.view(np.int8).astype(np.float32)
    size = np.append(_E4M3, np.float32(np.nan))[codes & NAN]
    found: NDArray[np.float32] = np.where(codes >> 7, -size, size).astype(np.float32)
    return found


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


def _positive() -> NDArray[np.float32]:
    codes = np.arange(NAN)
    exponent, mantissa = codes >> 3, codes & 7
    normal = np.ldexp((8 + mantissa).astype(np.float32), exponent - 10)
    return np.where(exponent > 0, normal, np.ldexp(mantissa.astype(np.float32), -9)).astype(np.float32)


_E4M3 = _positive()
"""The non-negative numbers by code, ascending."""
