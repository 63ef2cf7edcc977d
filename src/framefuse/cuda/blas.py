"""Matrix products by cuBLAS, which can be captured in a CUDA graph. CuPy refuses its own during a capture."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from ctypes import c_float, c_int, c_int64, c_size_t, c_uint32, c_uint64, c_void_p
from functools import cache
from typing import Any, NamedTuple

from framefuse.cuda import device
from framefuse.errors import CapabilityError, EngineError

LIBRARIES = "libcublas.so.13", "libcublas.so.12"
WORKSPACE = 4 << 20
"""Bytes that a product may use beside its matrices, at an address that is a multiple of 256."""
FLOAT32, FLOAT16 = 0, 2
"""CUDA_R_32F and CUDA_R_16F."""
FLOAT32_SUMS, EXACT_PRODUCTS, TF32_PRODUCTS, ANY_ALGORITHM = 68, 69, 77, -1
"""CUBLAS_COMPUTE_32F, _PEDANTIC and _FAST_TF32, and CUBLAS_GEMM_DEFAULT."""
TRANSPOSE_A, TRANSPOSE_B, EPILOGUE, BIAS_POINTER = 3, 4, 7, 8
"""CUBLASLT_MATMUL_DESC_…"""
PLAIN, RELU, BIAS = 1, 2, 4
"""CUBLASLT_EPILOGUE_DEFAULT, and what others are put together from."""
COUNT, STEP = 5, 6
"""CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT and _STRIDED_BATCH_OFFSET."""
MOST_WORKSPACE, ALIGNMENTS = 1, (5, 6, 7, 8)
"""CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, and _MIN_ALIGNMENT_…_BYTES of A, B, C and D."""
ALIGNMENT = 16
"""Bytes, of what cuBLASLt multiplies; its heuristics fail for some mixtures of smaller ones."""

_lock = threading.Lock()


class Matrices(NamedTuple):
    """float32 matrices in the memory of the GPU, or float16 ones."""

    address: int
    by_columns: bool
    """Whether it is the elements of a column that lie side by side, not those of a row."""
    pitch: int
    """Elements from one row, or column, to the next."""
    size: int
    """Elements from one matrix to the next; 0: all are the same."""
    half: bool = False

    @property
    def kind(self) -> int:
        """cudaDataType_t."""
        return FLOAT16 if self.half else FLOAT32

    @property
    def aligned(self) -> bool:
        """Whether rows begin at multiples of 16 bytes, or columns."""
        itemsize = 2 if self.half else 4
        return not (self.address % ALIGNMENT or self.pitch * itemsize % ALIGNMENT or self.size * itemsize % ALIGNMENT)


def product(
    a: Matrices, b: Matrices, c: Matrices, shape: Sequence[int], *, workspace: int, scale: float = 1.0, row: int = 0,
    relu: bool = False, exact: bool = False,
) -> Callable[[int], None]:  # fmt: skip
    """What starts c[i] = scale a[i] b[i] + row on the stream at an address. Sums are float32.

    float32 factors are rounded to TF32, which has the 10 bits of float16 after the point.

    Args:
        a, b: of the same type.
        c: by rows.
        shape: (count, m, k, n) of `count` products of m x k with k x n.
        workspace: address of WORKSPACE bytes, which other work on the stream may use afterwards.
        row: address of n numbers of the type of c, which are added to each of its rows; 0: none are. Factors must be
            float16, and all rows begin at multiples of 16 bytes.
        relu: whether what is below 0 becomes 0 afterwards, under the same conditions.
        exact: whether float32 factors stay as they are.

    Raises:
        CapabilityError: there is no cuBLAS.
        EngineError: cuBLAS refuses; what the function returns raises it too.
    """
    if a.half and a.aligned and b.aligned and c.aligned:
        found = _fused(a, b, c, shape, workspace, scale, row, relu)
        if found is not None:
            return found
    if row or relu:
        message = f"cuBLAS has no product of {tuple(shape)} that adds a row"
        raise EngineError(message, remedy="use --precision tf32, or another engine")
    compute = FLOAT32_SUMS if a.half else EXACT_PRODUCTS if exact else TF32_PRODUCTS
    return lambda stream: _multiply(a, b, c, shape, workspace, scale, compute, stream)


def _multiply(
    a: Matrices, b: Matrices, c: Matrices, shape: Sequence[int], workspace: int, scale: float, compute: int, stream: int
) -> None:
    (count, m, k, n), library = shape, _library()

    def matrix(x: Matrices) -> tuple[Any, ...]:
        return c_void_p(x.address), x.kind, x.pitch, ctypes.c_longlong(x.size)

    with _lock:
        handle = _handle(int(device.cupy().cuda.Device().id))
        _check("set the stream", library.cublasSetStream_v2(handle, c_void_p(stream)))
        _check("set the workspace", library.cublasSetWorkspace_v2(handle, c_void_p(workspace), c_size_t(WORKSPACE)))
        # cuBLAS counts along columns, so it multiplies the transposed matrices: c^T = b^T a^T.
        code = library.cublasGemmStridedBatchedEx(
            handle, int(b.by_columns), int(a.by_columns), n, m, k, ctypes.byref(c_float(scale)), *matrix(b), *matrix(a),
            ctypes.byref(c_float(0)), *matrix(c), count, compute, ANY_ALGORITHM,
        )  # fmt: skip
        _check("multiply", code)


class _Described:
    """What cuBLASLt is told of a product.

    Args:
        kind: "MatmulDesc", "MatrixLayout" or "MatmulPreference".
    """

    def __init__(self, kind: str, *given: Any) -> None:
        library, self.at = _library(), c_void_p()
        _check(f"make a {kind}", getattr(library, f"cublasLt{kind}Create")(ctypes.byref(self.at), *given))
        self._change, self._end = (getattr(library, f"cublasLt{kind}{word}") for word in ("SetAttribute", "Destroy"))

    def set(self, attributes: dict[int, Any]) -> None:
        for name, value in attributes.items():
            code = self._change(self.at, name, ctypes.byref(value), c_size_t(ctypes.sizeof(value)))
            _check(f"set attribute {name}", code)

    def __del__(self) -> None:
        if self.at:
            self._end(self.at)


class _Found(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t."""

    _fields_ = [
        ("algorithm", c_uint64 * 8), ("workspace", c_size_t), ("state", c_int), ("waves", c_float),
        ("reserved", c_int * 4),
    ]  # fmt: skip


def _fused(
    a: Matrices, b: Matrices, c: Matrices, shape: Sequence[int], workspace: int, scale: float, row: int, relu: bool
) -> Callable[[int], None] | None:
    """The product by cuBLASLt, of float16; None: it has no kernel for it."""
    (count, m, k, n), library = shape, _library()
    handle = _handle(int(device.cupy().cuda.Device().id))  # it is one of cuBLASLt, too

    def layout(x: Matrices, rows: int, columns: int) -> _Described:
        sides = (rows, columns) if x.by_columns else (columns, rows)
        found = _Described("MatrixLayout", x.kind, *map(c_uint64, sides), c_int64(x.pitch))
        found.set({COUNT: c_int(count), STEP: c_int64(x.size)})
        return found

    # As above, c^T = b^T a^T, so B is what cuBLASLt calls A.
    operation = _Described("MatmulDesc", FLOAT32_SUMS, FLOAT32)
    operation.set({TRANSPOSE_A: c_int(b.by_columns), TRANSPOSE_B: c_int(a.by_columns)})
    operation.set({EPILOGUE: c_uint32((RELU * relu | BIAS * bool(row)) or PLAIN)})
    if row:
        operation.set({BIAS_POINTER: c_void_p(row)})
    right, left, made = layout(b, k, n), layout(a, m, k), layout(c, m, n)
    preference = _Described("MatmulPreference")
    preference.set({MOST_WORKSPACE: c_uint64(WORKSPACE), **dict.fromkeys(ALIGNMENTS, c_uint32(ALIGNMENT))})
    found, number = _Found(), c_int()
    code = library.cublasLtMatmulAlgoGetHeuristic(
        handle, operation.at, right.at, left.at, made.at, made.at, preference.at, 1, ctypes.byref(found),
        ctypes.byref(number),
    )  # fmt: skip
    if code or not number.value or found.state:
        return None
    factor, nothing, to = c_float(scale), c_float(0), c_void_p(c.address)

    def start(stream: int) -> None:
        code = library.cublasLtMatmul(
            handle, operation.at, ctypes.byref(factor), c_void_p(b.address), right.at, c_void_p(a.address), left.at,
            ctypes.byref(nothing), to, made.at, to, made.at, ctypes.byref(found.algorithm), c_void_p(workspace),
            c_size_t(WORKSPACE), c_void_p(stream),
        )  # fmt: skip
        _check("multiply", code)

    return start


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
    handle = c_void_p()
    _check("start", _library().cublasCreate_v2(ctypes.byref(handle)))
    return handle
