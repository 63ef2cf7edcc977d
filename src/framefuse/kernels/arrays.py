"""Arrays of the host and of GPUs alike, as kernels take them: checks, new memory, addresses, constant tables."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from typing import Any

import numpy as np

from framefuse.cuda import device
from framefuse.cuda.launch_plan import keep_cached
from framefuse.errors import UsageError
from framefuse.kernels import cpu

KINDS = {
    np.dtype(name): kind for name, kind in (("uint8", "u8"), ("uint16", "u16"), ("float32", "f32"), ("float16", "f16"))
}
"""How kernels abbreviate element types."""


def on_gpu(array: Any) -> bool:
    """Whether an array lies on a GPU; anything that is not numpy is taken for that, and checked on use."""
    return not isinstance(array, np.ndarray) or hasattr(array, "__cuda_array_interface__")


def on(gpu: bool, stream: int | None) -> AbstractContextManager[Any]:
    """Make a stream CuPy's current one, so that memory made here is safe to use on it; on the host, nothing."""
    return device.stream_at(stream) if gpu and stream is not None else nullcontext()


def place(array: Any) -> tuple[int, tuple[int, ...], tuple[int, ...], str]:
    """Address, shape, pitches in elements and dtype of an array on a GPU; also torch's bfloat16, unknown to CuPy."""
    if getattr(array, "is_cuda", False):
        return array.data_ptr(), tuple(array.shape), tuple(array.stride()), str(array.dtype).removeprefix("torch.")
    found = device.as_cupy(array)
    strides = tuple(stride // found.itemsize for stride in found.strides)
    return device.address(found), tuple(found.shape), strides, str(found.dtype)


def kind(array: Any) -> str:
    """The type of a checked array as kernels abbreviate it."""
    return KINDS[array.dtype]


def pitch(array: Any, axis: int) -> int:
    """Elements from one index of an axis to the next."""
    return int(array.strides[axis] // array.itemsize)


def address(array: Any) -> int:
    return device.address(array) if on_gpu(array) else cpu._address(array)


def batch(array: Any) -> Any:
    """(h, w) or (n, h, w) as (n, h, w), where n is 0 if there are no samples."""
    if array.ndim not in (2, 3):
        raise UsageError(f"array has shape {array.shape}, expected (h, w) or (n, h, w)")
    planes = array[None] if array.ndim == 2 else array
    return planes if planes.size else planes[:0]


def checked(name: str, array: Any, gpu: bool, shape: tuple[int, ...], *dtypes: str, dense: int = 1) -> Any:
    """The array, on a GPU as CuPy's, if it has that shape, one of the dtypes, and contiguous last `dense` axes.

    Raises:
        UsageError: it has not, or is not on that device.
    """
    if on_gpu(array) and not gpu:
        raise UsageError(f"{name} is not on the host, where the kernel runs")
    found = device.as_cupy(array) if gpu else array
    fits = found.shape == shape and found.dtype in dtypes
    contiguous = all(
        found.strides[axis] == found.itemsize * math.prod(shape[axis + 1 :])
        for axis in range(len(shape) - dense, len(shape))
        if fits and found.size and shape[axis] > 1
    )
    if not (fits and contiguous) or any(stride % found.itemsize for stride in found.strides):
        raise UsageError(
            f"{name} is {found.dtype} {found.shape} with strides {found.strides} bytes, "
            f"expected {' or '.join(dtypes)} {shape} whose last {dense} axes are contiguous"
        )
    return found


def new(gpu: bool, shape: tuple[int, ...], dtype: Any) -> Any:
    """An uninitialised array."""
    return device.cupy().empty(shape, dtype) if gpu else np.empty(shape, dtype)


def zeros(gpu: bool, shape: tuple[int, ...], dtype: Any) -> Any:
    return (device.cupy() if gpu else np).zeros(shape, dtype)


def to_host(array: Any) -> Any:
    """The array in the memory of the host, once the work on CuPy's current stream has ended."""
    return device.cupy().asnumpy(array) if on_gpu(array) else array


def target(out: Any, gpu: bool, shape: tuple[int, ...], dtype: str, *, dense: int = 1) -> Any:
    """`out` checked, or new memory."""
    return new(gpu, shape, dtype) if out is None else checked("out", out, gpu, shape, dtype, dense=dense)


@lru_cache(maxsize=256)
def _device_table(gpu: int, key: tuple[Any, ...], make: Any) -> tuple[Any, ...]:
    return tuple(device.uploaded(part) for part in make(*key))


def device_table(make: Any, *key: Any) -> tuple[Any, ...]:
    """The arrays of make(*key), which are constant, on the current device; the last 256 results are cached.

    Raises:
        UsageError: the current stream is being captured and nothing would keep them (`launch_plan.keep_cached`).
    """
    return keep_cached(_device_table(device.current_gpu(), key, make), None)
