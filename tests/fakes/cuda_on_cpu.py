"""CUDA kernels on the CPU: g++ compiles the source, and loops take the place of blocks and threads.

`install` puts this in the place of the GPU, for kernels whose threads do not talk to each other.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import re
import subprocess
import tempfile
import threading
from collections.abc import Callable
from functools import cache, lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided

from framefuse.cuda import blas, cubins, device, driver, kernel

SHIM = r"""
#include <cmath>
#include <cstdint>
#include <cstring>
#include <algorithm>
using std::min; using std::max;
#define CUDART_INF_F __builtin_inff()
#define __expf expf
#define __fdividef(value, by) ((value) / (by))
#define __global__
#define __device__
#define __forceinline__ inline
#define __noinline__
#define __launch_bounds__(...)
#define __restrict__
#define __grid_constant__
#define __align__(n) alignas(n)
struct dim { int x, y, z; };
static thread_local dim threadIdx, blockIdx;
struct alignas(16) uint4 { unsigned x, y, z, w; };
struct alignas(16) int4 { int x, y, z, w; };
struct alignas(16) float4 { float x, y, z, w; };
struct alignas(4) ushort2 { unsigned short x, y; };
struct alignas(2) uchar2 { unsigned char x, y; };
struct alignas(2) char2 { signed char x, y; };
struct alignas(8) float2 { float x, y; };
struct alignas(8) uint2 { unsigned x, y; };
struct alignas(8) int2 { int x, y; };
struct alignas(8) ushort4 { unsigned short x, y, z, w; };
struct alignas(4) uchar4 { unsigned char x, y, z, w; };
template <class T> T __ldg(const T* address) { return *address; }
static unsigned short half_bits(float value) {
  _Float16 half = (_Float16)value; unsigned short bits; memcpy(&bits, &half, 2); return bits;
}
static float half_value(unsigned short bits) { _Float16 half; memcpy(&half, &bits, 2); return (float)half; }
static unsigned __float_as_uint(float value) { unsigned bits; memcpy(&bits, &value, 4); return bits; }
static float __uint_as_float(unsigned bits) { float value; memcpy(&value, &bits, 4); return value; }
static unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
  const unsigned long long bytes = (unsigned long long)y << 32 | x;
  unsigned word = 0;
  for (int k = 0; k < 4; ++k) word |= (unsigned)(bytes >> 8 * (selector >> 4 * k & 7) & 255) << 8 * k;
  return word;
}
#define FRAMEFUSE_HALF_FROM_FLOAT half_bits
#define FRAMEFUSE_HALF_TO_FLOAT half_value
"""

# For kernels that do not call what their program has for threads that talk.
ALONE = """
#define __shared__ static
static void __syncthreads() {}
"""

LOOPS = """
extern "C" void run(char* p, int gx, int gy, int gz, int bx, int by, int bz) {{
  for (blockIdx.z = 0; blockIdx.z < gz; ++blockIdx.z) for (blockIdx.y = 0; blockIdx.y < gy; ++blockIdx.y)
  for (blockIdx.x = 0; blockIdx.x < gx; ++blockIdx.x) for (threadIdx.z = 0; threadIdx.z < bz; ++threadIdx.z)
  for (threadIdx.y = 0; threadIdx.y < by; ++threadIdx.y) for (threadIdx.x = 0; threadIdx.x < bx; ++threadIdx.x)
    call({entry}, p);
}}
"""

# Each parameter lies in a slot of 8 bytes, as the launcher packs it; the last may want more alignment.
CALL = """
template <class A> A taken(char* p) { A value; memcpy(&value, p, sizeof value); return value; }
template <class... A, size_t... I> void spread(void (*f)(A...), char* p, std::index_sequence<I...>) {
  f(taken<A>(p + 8 * I)...);
}
template <class... A> void call(void (*f)(A...), char* p) { spread(f, p, std::index_sequence_for<A...>()); }
"""


CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "framefuse-tests"
"""What is compiled, by what it was compiled from, and by what: shared by tests, pytest's workers, and with later runs.
It may be removed at any time."""
FLAGS = ["-std=c++17", "-O1", "-w", "-fno-strict-aliasing", "-ffp-contract=off", "-shared", "-fPIC"]
FLAGS += ["-U_FORTIFY_SOURCE"]  # with it, longjmp refuses to go to another fibre


@lru_cache(maxsize=1)
def compiler() -> str:
    return subprocess.run(["g++", "--version"], check=True, capture_output=True, text=True).stdout


@cache
def compiled(text: str) -> ctypes.CDLL:
    """The library that g++ makes of a text, made once."""
    key = hashlib.sha256("\0".join([compiler(), *FLAGS, text]).encode()).hexdigest()
    library = CACHE / "cuda-on-cpu" / f"{key}.so"
    if not library.exists():
        library.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=library.parent) as scratch:
            source, made = Path(scratch, "kernel.cpp"), Path(scratch, library.name)
            source.write_text(text, encoding="utf-8")
            subprocess.run(["g++", *FLAGS, str(source), "-o", str(made)], check=True)
            os.replace(made, library)  # whole at once: another process may look
    return ctypes.CDLL(str(library))


def source(description: cubins.Description) -> str:
    """The source of a kernel, without the others of its program."""
    common, *kernels = re.split(r"(?=// launch: )", description.program)
    own = "".join(kernel for kernel in kernels if f" {description.entry}(" in kernel)
    return description.source.replace(description.program, common + own) if own else description.source


class Compiled:
    """Kernels by symbol, compiled when first launched."""

    def __init__(self) -> None:
        self.library = lru_cache(maxsize=None)(lambda symbol: compiled(self.text(cubins.describe(symbol))))
        self._turn = threading.Lock()  # the threads of a launch are kept in static variables

    def text(self, description: cubins.Description) -> str:
        """What g++ is given."""
        alone = ALONE if description.program else ""
        return (
            SHIM + alone + "#include <utility>\n" + source(description) + CALL + LOOPS.format(entry=description.entry)
        )

    def launch(self, symbol: str, *, stream: int | None = None, **arguments: Any) -> None:
        description = cubins.describe(symbol)
        packing = kernel.Packing(description)
        slots = ctypes.create_string_buffer(8 * packing.slots)
        grid = packing(arguments, slots)
        with self._turn:
            self.library(symbol).run(slots, *grid, *description.block)

    def bind(self, symbol: str, **arguments: Any) -> Any:
        return lambda stream=None: self.launch(symbol, **arguments)


class HostArray(np.ndarray[Any, Any]):
    """A numpy array that passes for one of CuPy."""

    def get(self) -> np.ndarray[Any, Any]:
        return self.view(np.ndarray)

    @property
    def data(self) -> Any:
        address = self.ctypes.data
        return SimpleNamespace(
            ptr=address, memset_async=lambda value, size, stream: ctypes.memset(address, value, size)
        )

    @property
    def __cuda_array_interface__(self) -> Any:
        return self.__array_interface__


class Stream(contextlib.nullcontext[None]):
    ptr = 0

    def __init__(self, non_blocking: bool) -> None:
        super().__init__()

    def synchronize(self) -> None: ...


def on_device(array: np.ndarray[Any, Any]) -> HostArray:
    """The same memory as an array of the fake GPU."""
    return array.view(HostArray)


def product(
    a: blas.Matrices, b: blas.Matrices, c: blas.Matrices, shape: Any, *, workspace: int, scale: float = 1.0,
    row: int = 0, relu: bool = False, exact: bool = False,
) -> Callable[[int], None]:  # fmt: skip
    """As `blas.product`."""
    count, m, k, n = shape
    assert a.half == b.half
    assert not (row or relu) or (a.half and a.aligned and b.aligned and c.aligned and row % 16 == 0)

    def matrices(x: blas.Matrices, rows: int, columns: int) -> Any:
        assert x.pitch >= (rows if x.by_columns else columns)
        dtype, strides = np.dtype(np.float16 if x.half else np.float32), (1, x.pitch) if x.by_columns else (x.pitch, 1)
        memory = np.frombuffer((ctypes.c_char * dtype.itemsize).from_address(x.address), dtype)
        return as_strided(memory, (count, rows, columns), [dtype.itemsize * step for step in (x.size, *strides)])

    def start(stream: int) -> None:
        found = matrices(a, m, k).astype(np.float32) @ matrices(b, k, n).astype(np.float32) * np.float32(scale)
        if row:
            found = found + matrices(blas.Matrices(row, False, n, 0, c.half), 1, n)
        matrices(c, m, n)[...] = np.maximum(found, 0) if relu else found

    return start


def install(monkeypatch: pytest.MonkeyPatch, kind: type[Compiled] = Compiled) -> Compiled:
    """Make `kernels.cuda` launch on the CPU. `kind`: `cuda_fibres.Fibres` where threads talk to each other."""
    runtime = SimpleNamespace(
        getDevice=lambda: 0,
        streamSynchronize=lambda stream: None,
        memcpyHostToDevice=1,
        memcpyDeviceToHost=2,
        memcpyAsync=lambda to, source, size, kind, stream: ctypes.memmove(to, source, size),
    )
    module = SimpleNamespace(
        __name__="fake",
        ndarray=HostArray,
        zeros=lambda shape, dtype: on_device(np.zeros(shape, dtype)),
        empty=lambda shape, dtype: on_device(np.empty(shape, dtype)),
        asarray=lambda array: on_device(np.ascontiguousarray(array)),
        cuda=SimpleNamespace(
            runtime=runtime,
            alloc_pinned_memory=bytearray,
            Event=lambda disable_timing: SimpleNamespace(record=lambda stream=None: None),
            Stream=Stream,
            get_current_stream=lambda: Stream(non_blocking=True),
        ),
    )
    kernels = kind()
    monkeypatch.setattr(device, "cupy", lambda: module)
    monkeypatch.setattr(device, "_uploads", {})
    monkeypatch.setattr(device, "current_stream", lambda: 0)
    monkeypatch.setattr(device, "stream_at", contextlib.nullcontext)
    monkeypatch.setattr(device, "capturing", lambda stream: False)
    monkeypatch.setattr(driver, "has_ended", lambda event: True)
    monkeypatch.setattr(driver, "record", lambda event, stream=None: None)
    monkeypatch.setattr(driver, "download", lambda to, source, size: ctypes.memmove(to, source, size))
    monkeypatch.setattr(kernel, "prepare", lambda symbols: None)
    monkeypatch.setattr(kernel, "compile_ahead", lambda symbols: None)
    monkeypatch.setattr(kernel, "launch", kernels.launch)
    monkeypatch.setattr(kernel, "bind", kernels.bind)
    monkeypatch.setattr(blas, "product", product)
    return kernels
