"""8-bit numbers of cuDNN: INT8, and FP8 as E4M3 (4 bits of exponent, 3 of mantissa, no infinity; "FP8 formats for deep
learning", Micikevicius et al., 2022). Conversion saturates."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from framefuse.engines.cudnn.network import Type

Array = NDArray[Any]

LARGEST: dict[Type, float] = {"fp8": 448.0, "int8": 127.0}
SMALLEST_EXPONENT = -6
_FORMATS: dict[Type, Any] = {"fp8": ml_dtypes.float8_e4m3fn, "int8": np.int8}


def encode(values: Array, kind: Type) -> NDArray[np.uint8]:
    """The nearest 8-bit numbers as bytes; ties go to even."""
    nearest: Array = _nearest(np.asarray(values, np.float32), kind, np)
    return nearest.astype(_FORMATS[kind]).view(np.uint8)


def decode(codes: NDArray[np.uint8], kind: Type) -> NDArray[np.float32]:
    """Bytes -> values, the inverse of `encode`."""
    found: NDArray[np.float32] = codes.view(_FORMATS[kind]).astype(np.float32)
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
