"""Matrix products by cuBLAS, which can be captured in a CUDA graph. CuPy refuses its own during a capture."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

from framefuse.cuda import device
from framefuse.errors import CapabilityError, EngineError

LIBRARIES = "libcublas.so.13", "libcublas.so.12"
WORKSPACE = 4 << 20
"""Bytes that a product may use beside its matrices, at an address that is a multiple of 256."""
FLOAT32, EXACT_PRODUCTS, TF32_PRODUCTS, ANY_ALGORITHM = 0, 69, 77, -1
"""CUDA_R_32F, CUBLAS_COMPUTE_32F_PEDANTIC, CUBLAS_COMPUTE_32F_FAST_TF32 and CUBLAS_GEMM_DEFAULT."""

_lock = threading.Lock()


class Matrices(NamedTuple):
    """float32 matrices in the memory of the GPU."""

    address: int
    by_columns: bool
    """Whether it is the elements of a column that lie side by side, not those of a row."""
    pitch: int
    """Elements from one row, or column, to the next."""
    size: int
    """Elements from one matrix to the next; 0: all are the same."""


def multiply(
    a: Matrices, b: Matrices, c: int, shape: Sequence[int], *, workspace: int, stream: int, exact: bool = False
) -> None:
    """c[i] = a[i] b[i], on a stream.

    Factors are rounded to TF32, which has the 10 bits of float16 after the point; sums are float32.

    Args:
        c: address of dense matrices.
        shape: (count, m, k, n) of `count` products of m x k with k x n.
        workspace: address of WORKSPACE bytes, which other work on the stream may use afterwards.
        exact: whether factors stay float32.

    Raises:
        CapabilityError: there is no cuBLAS.
        EngineError: cuBLAS refuses.
    """
    (count, m, k, n), one, zero = shape, ctypes.c_float(1), ctypes.c_float(0)

    def matrix(x: Matrices) -> tuple[Any, ...]:
        return ctypes.c_void_p(x.address), FLOAT32, x.pitch, ctypes.c_longlong(x.size)

    library = _library()
    with _lock:
        handle = _handle(int(device.cupy().cuda.Device().id))
        _check("set the stream", library.cublasSetStream_v2(handle, ctypes.c_void_p(stream)))
        given = handle, ctypes.c_void_p(workspace), ctypes.c_size_t(WORKSPACE)
        _check("set the workspace", library.cublasSetWorkspace_v2(*given))
        # cuBLAS counts along columns, so it multiplies the transposed matrices: c^T = b^T a^T.
        code = library.cublasGemmStridedBatchedEx(
            handle, int(b.by_columns), int(a.by_columns), n, m, k, ctypes.byref(one), *matrix(b), *matrix(a),
            ctypes.byref(zero), *matrix(Matrices(c, False, n, m * n)), count,
            EXACT_PRODUCTS if exact else TF32_PRODUCTS, ANY_ALGORITHM,
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
