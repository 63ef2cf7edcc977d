"""How many values are NaN or infinite, for CUDA: what says that a model failed whose outputs never come to the host."""

from tvm.script import tirx as T

from ._tir_cuda import buffer, wide
from ._tir_iou import broken

THREADS = 256
BLOCKS = 64
"""For each image; the blocks stride over its values together."""


def count_non_finite():
    """counts[image] += its values that are not finite."""

    @T.prim_func
    def kernel(values_: T.int64, image_pitch: T.int64, n: T.int32, size: T.int32, counts_: T.int64):
        T.func_attr({"tirx.noalias": True, "global_symbol": "count_non_finite_f32"})
        T.device_entry()
        block, image = T.cta_id([BLOCKS, n])
        thread = T.thread_id([THREADS])
        values = buffer(values_, "float32", 4)
        counts = buffer(counts_, "int32", 4)
        found = T.int32(0)
        for step in T.serial((size + BLOCKS * THREADS - 1) // (BLOCKS * THREADS)):
            at: T.let = (step * BLOCKS + block) * THREADS + thread
            value: T.let = values[wide(image) * image_pitch + wide(T.min(at, size - 1))]
            found = found + T.And(at < size, broken(value)).astype("int32")
        if found > 0:
            T.evaluate(T.cuda.atomic_add(counts.ptr_to([image]), found))

    return kernel


def cuda_variants():
    """Every variant: {symbol: PrimFunc}."""
    return {"count_non_finite_f32": count_non_finite()}
