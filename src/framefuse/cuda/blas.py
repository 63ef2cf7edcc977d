"""Matrix products by cuBLAS, which can be captured in a CUDA graph. CuPy refuses its own during a capture."""

from __future__ import annotations

import ctypes
import math
import threading
from functools import cache
from typing import Any

import numpy as np

from framefuse.cuda import device
from framefuse.errors import CapabilityError, EngineError

LIBRARIES = "libcublas.so.13", "libcublas.so.12"
WORKSPACE = 4 << 20
"""Bytes that a product may use beside its matrices."""
AS_STORED, TRANSPOSED = 0, 1
FLOAT32, TF32_PRODUCTS, ANY_ALGORITHM = 0, 77, -1
"""CUDA_R_32F, CUBLAS_COMPUTE_32F_FAST_TF32 and CUBLAS_GEMM_DEFAULT."""

_lock = threading.Lock()


def matmul(a: Any, b: Any) -> Any:
    """The product of matrices on the GPU, as `numpy.matmul` shapes it. Runs on CuPy's current stream.

    Factors are rounded to TF32, which has the 10 bits of float16 after the point; sums are float32.

    Args:
        a, b: (..., m, k) and (..., k, n) float32, or vectors.

    Raises:
        ValueError: their shapes do not go together.
        CapabilityError: there is no cuBLAS.
        EngineError: cuBLAS refuses.
    """
    cp = device.cupy()
    if a.ndim == 1 or b.ndim == 1:
        wide = matmul(a[None] if a.ndim == 1 else a, b[:, None] if b.ndim == 1 else b)
        wide = wide[..., 0, :] if a.ndim == 1 else wide
        return wide[..., 0] if b.ndim == 1 else wide
    if a.shape[-1] != b.shape[-2]:
        raise ValueError(f"matrices {a.shape} and {b.shape}")
    if b.ndim == 2 and a.ndim > 2:  # one large product
        return matmul(a.reshape(-1, a.shape[-1]), b).reshape(*a.shape[:-1], b.shape[-1])
    outer = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    (m, k), n, count = a.shape[-2:], b.shape[-1], math.prod(outer)
    a, b = (cp.broadcast_to(one, (*outer, *one.shape[-2:])).reshape(count, *one.shape[-2:]) for one in (a, b))
    c = cp.empty((count, m, n), cp.float32)
    if c.size and k:
        (a, how_a, row_a), (b, how_b, row_b) = _stored(a), _stored(b)
        # cuBLAS counts along columns, so it multiplies the transposed matrices: c^T = b^T a^T.
        _multiply(cp, (how_b, how_a, n, m, k), (b, row_b, k * n), (a, row_a, m * k), (c, n, m * n), count)
    elif c.size:
        c.fill(0)
    return c.reshape(*outer, m, n)


def _stored(x: Any) -> tuple[Any, int, int]:
    """Matrices without gaps, how they are stored, and the elements from one row to the next."""
    if x.swapaxes(1, 2).flags.c_contiguous and not x.flags.c_contiguous:
        return x, TRANSPOSED, x.shape[1]
    return device.cupy().ascontiguousarray(x), AS_STORED, x.shape[2]


def _multiply(
    cp: Any, how: tuple[int, ...], b: tuple[Any, int, int], a: tuple[Any, int, int], c: tuple[Any, int, int], count: int
) -> None:
    one, zero = ctypes.c_float(1), ctypes.c_float(0)
    workspace = cp.empty(WORKSPACE, cp.uint8)  # other work on the stream may use it afterwards

    def matrix(x: Any, row: int, size: int) -> tuple[Any, ...]:
        return ctypes.c_void_p(x.data.ptr), FLOAT32, row, ctypes.c_longlong(size)

    library = _library()
    with _lock:
        handle = _handle(int(cp.cuda.Device().id))
        stream = ctypes.c_void_p(cp.cuda.get_current_stream().ptr)
        _check("set the stream", library.cublasSetStream_v2(handle, stream))
        given = handle, ctypes.c_void_p(workspace.data.ptr), ctypes.c_size_t(WORKSPACE)
        _check("set the workspace", library.cublasSetWorkspace_v2(*given))
        code = library.cublasGemmStridedBatchedEx(
            handle, *how, ctypes.byref(one), *matrix(*b), *matrix(*a), ctypes.byref(zero), *matrix(*c), count,
            TF32_PRODUCTS, ANY_ALGORITHM,
        )  # fmt: skip
        _check("multiply", code)


def _check(what: str, code: int) -> None:
    if code:
        raise EngineError(f"cuBLAS could not {what}: error {code}")


@cache
def _library() -> Any:
    for name in LIBRARIES:
        try:
            device.cupy().cuda.device.get_cublas_handle()  # loads the library that CuPy found
            return ctypes.CDLL(name)
        except (OSError, ImportError):
            continue
    raise CapabilityError("there is no cuBLAS", remedy="pip install 'framefuse[cuda13]'")


@cache
def _handle(gpu: int) -> Any:
    handle = ctypes.c_void_p()
    _check("start", _library().cublasCreate_v2(ctypes.byref(handle)))
    return handle
