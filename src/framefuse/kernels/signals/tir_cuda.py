"""Signals of scene complexity for CUDA: shrink the luma, then count over the small image with atomic additions.

The arithmetic is that of `signals.py`. The first kernel also clears the counts of the second.
"""

from tvm.script import tirx as T

from ..tir.base import SAMPLES

LARGE = 1 << 40
"""Elements of a buffer whose size nobody needs."""
THREADS = 256
COUNTS = 258


def shrink_variant(sample):
    """The PrimFunc `signal_shrink_<sample>`."""

    @T.prim_func(s_tir=True)
    def kernel(
        luma_address: T.int64,
        pitch: T.int32,
        small_address: T.int64,
        height: T.int32,
        width: T.int32,
        step: T.int32,
        shift: T.int32,
        counts_address: T.int64,
    ):
        T.func_attr({"tirx.noalias": True, "global_symbol": f"signal_shrink_{sample}"})
        luma = T.decl_buffer((LARGE,), SAMPLES[sample], data=T.reinterpret("handle", luma_address), align=1)
        small = T.decl_buffer((LARGE,), "uint8", data=T.reinterpret("handle", small_address), align=1)
        counts = T.decl_buffer((LARGE,), "int32", data=T.reinterpret("handle", counts_address), align=4)
        for block in T.thread_binding((height * width + THREADS - 1) // THREADS, thread="blockIdx.x"):
            for thread in T.thread_binding(THREADS, thread="threadIdx.x"):
                at = block * THREADS + thread
                if block == 0:
                    for k in T.unroll(2):
                        if k * THREADS + thread < COUNTS:
                            counts[k * THREADS + thread] = 0
                if at < height * width:
                    y = at // width
                    x = at - y * width
                    total = step * step // 2
                    for j in T.serial(step):
                        row = T.Cast("int64", y * step + j) * pitch + x * step
                        for k in T.serial(step):
                            total = total + (T.Cast("int32", luma[row + k]) >> shift)
                    small[at] = T.Cast("uint8", total // (step * step))

    return kernel


@T.prim_func(s_tir=True)
def signal_count(
    small_address: T.int64,
    previous_address: T.int64,
    height: T.int32,
    width: T.int32,
    threshold: T.int32,
    counts_address: T.int64,
):
    """counts: 256 histogram bins, edge pixels, sum of absolute differences (0 where previous_address is 0)."""
    T.func_attr({"tirx.noalias": True, "global_symbol": "signal_count"})
    small = T.decl_buffer((LARGE,), "uint8", data=T.reinterpret("handle", small_address), align=1)
    previous = T.decl_buffer((LARGE,), "uint8", data=T.reinterpret("handle", previous_address), align=1)
    counts = T.decl_buffer((LARGE,), "int32", data=T.reinterpret("handle", counts_address), align=4)
    for block in T.thread_binding((height * width + THREADS - 1) // THREADS, thread="blockIdx.x"):
        for thread in T.thread_binding(THREADS, thread="threadIdx.x"):
            shares = T.alloc_buffer((COUNTS,), "int32", scope="shared")
            at = block * THREADS + thread
            for k in T.unroll(2):
                if k * THREADS + thread < COUNTS:
                    shares[k * THREADS + thread] = 0
            T.tvm_storage_sync("shared")
            if at < height * width:
                y = at // width
                x = at - y * width
                value = T.Cast("int32", small[at])
                T.evaluate(T.call_extern("int32", "atomicAdd", T.address_of(shares[value]), 1))
                if previous_address != T.int64(0):
                    difference = T.abs(value - T.Cast("int32", previous[at]))
                    T.evaluate(T.call_extern("int32", "atomicAdd", T.address_of(shares[257]), difference))
                if T.And(T.And(x > 0, x < width - 1), T.And(y > 0, y < height - 1)):
                    corners = T.alloc_buffer((9,), "int32", scope="local")
                    for k in T.unroll(9):
                        corners[k] = T.Cast("int32", small[at + (k // 3 - 1) * width + k % 3 - 1])
                    across = corners[2] - corners[0] + 2 * (corners[5] - corners[3]) + corners[8] - corners[6]
                    down = corners[6] - corners[0] + 2 * (corners[7] - corners[1]) + corners[8] - corners[2]
                    if across * across + down * down > threshold * threshold:
                        T.evaluate(T.call_extern("int32", "atomicAdd", T.address_of(shares[256]), 1))
            T.tvm_storage_sync("shared")
            for k in T.unroll(2):
                bin = k * THREADS + thread
                if bin < COUNTS:
                    share = shares[bin]
                    if share != 0:
                        T.evaluate(T.call_extern("int32", "atomicAdd", T.address_of(counts[bin]), share))


def cuda_variants():
    """Every variant: {symbol: PrimFunc}."""
    return {f"signal_shrink_{sample}": shrink_variant(sample) for sample in SAMPLES} | {"signal_count": signal_count}
