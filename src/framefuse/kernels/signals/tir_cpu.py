"""Signals of scene complexity as CPU loop nests: shrink the luma, then count over the small image.

`signals/reference.py` states the formulas; all of it is integer arithmetic.
"""

from __future__ import annotations

from tvm.script import tirx as T

from ..tir.base import SAMPLES, array_at


def shrink_variant(sample):
    """The PrimFunc `signal_shrink_<sample>`: means of step x step blocks, brought to 8 bits."""

    @T.prim_func(s_tir=True)
    def kernel(
        luma_address: T.int64, pitch: T.int32, small_address: T.int64, height: T.int32,
        width: T.int32, step: T.int32, shift: T.int32,
        sums: T.Buffer(("size",), "int32", align=4),
    ):  # fmt: skip
        T.func_attr({"tirx.noalias": True, "global_symbol": f"signal_shrink_{sample}"})
        size = T.int32()
        total = T.alloc_buffer((1,), "int32")
        luma = array_at(luma_address, SAMPLES[sample], size)
        small = array_at(small_address, "uint8", size)
        area: T.let = step * step
        for y in T.serial(height):
            for x in T.serial(width * step):
                sums[x] = T.Cast("int32", luma[y * step * pitch + x]) >> shift
            for k in T.serial(step - 1):
                at: T.let = (y * step + k + 1) * pitch
                for x in T.serial(width * step):
                    sums[x] = sums[x] + (T.Cast("int32", luma[at + x]) >> shift)
            for x in T.serial(width):
                total[0] = area // 2
                for k in T.serial(step):
                    total[0] = total[0] + sums[x * step + k]
                small[y * width + x] = T.Cast("uint8", total[0] // area)

    return kernel


def step(small, before, after):
    """Grey levels from a pixel to another."""
    return small[after].astype("int32") - small[before].astype("int32")


@T.prim_func(s_tir=True)
def signal_count(
    small_address: T.int64, previous_address: T.int64, height: T.int32, width: T.int32,
    threshold: T.int32,
    counts: T.Buffer((258,), "int32", align=4), work: T.Buffer(("size",), "int32", align=4),
):  # fmt: skip
    """counts: 256 histogram bins, edge pixels, sum of absolute differences (0 where previous_address is 0).

    work holds four histograms, taken in turn, so that equal neighbours do not wait for each other.
    """
    T.func_attr({"tirx.noalias": True, "global_symbol": "signal_count"})
    size = T.int32()
    small = array_at(small_address, "uint8", size)
    previous = array_at(previous_address, "uint8", size)
    sums = T.alloc_buffer((2,), "int32")
    for k in T.serial(1024):
        work[k] = 0
    sums[0] = 0
    sums[1] = 0
    for y in T.serial(height):
        at: T.let = y * width
        for x in T.serial(width):
            bin: T.let = x % 4 * 256 + T.Cast("int32", small[at + x])
            work[bin] = work[bin] + 1
        if previous_address != T.int64(0):
            for x in T.serial(width):
                sums[1] = sums[1] + T.abs(T.Cast("int32", small[at + x]) - T.Cast("int32", previous[at + x]))
        if T.And(y > 0, y < height - 1):
            for x in T.serial(T.max(width - 2, 0)):
                a: T.let = at - width + x
                b: T.let = at + x
                c: T.let = at + width + x
                across: T.let = step(small, a, a + 2) + 2 * step(small, b, b + 2) + step(small, c, c + 2)
                down: T.let = step(small, a, c) + 2 * step(small, a + 1, c + 1) + step(small, a + 2, c + 2)
                sums[0] = sums[0] + T.Cast("int32", across * across + down * down > threshold * threshold)
    for k in T.serial(256):
        counts[k] = work[k] + work[256 + k] + work[512 + k] + work[768 + k]
    counts[256] = sums[0]
    counts[257] = sums[1]


def variants():
    """Every variant: {global symbol: PrimFunc}."""
    return {f"signal_shrink_{sample}": shrink_variant(sample) for sample in SAMPLES} | {"signal_count": signal_count}
