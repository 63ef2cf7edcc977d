"""COCO run lengths of masks for CUDA: the positions at which runs end, their lengths, their compressed text."""

from tvm.script import tirx as T

from ._tir_cuda_runs import close, counted, first_place, put
from ._tir_cuda_scan import LARGE, THREADS, scan


@T.prim_func(s_tir=True)
def mask_positions(
    masks_address: T.int64,
    item_pitch: T.int64,
    row_pitch: T.int64,
    n: T.int32,
    width: T.int32,
    height: T.int32,
    positions_address: T.int64,
    capacity: T.int32,
    ends_address: T.int64,
):
    """The same as `instance_runs` from row-major masks: a thread walks a column, so a warp reads along the rows."""
    T.func_attr({"tirx.noalias": True, "global_symbol": "mask_positions"})
    masks = T.decl_buffer((LARGE,), "uint8", data=T.reinterpret("handle", masks_address), align=1)
    positions = T.decl_buffer((LARGE,), "int32", data=T.reinterpret("handle", positions_address), align=4)
    ends = T.decl_buffer((LARGE,), "int32", data=T.reinterpret("handle", ends_address), align=4)
    for i in T.thread_binding(n, thread="blockIdx.x"):
        for thread in T.thread_binding(THREADS, thread="threadIdx.x"):
            sums = T.alloc_buffer((2 * THREADS,), "int32", scope="shared")
            item = T.Cast("int64", i) * item_pitch
            begin = T.Cast("int64", i) * capacity
            total = 0
            for part in T.serial((width + THREADS - 1) // THREADS):
                x = part * THREADS + thread
                for step in T.serial(2):
                    changes = 0
                    at = first_place(sums, thread, begin, total, step)
                    if x < width:
                        value = 0
                        if x > 0:
                            value = T.Cast(
                                "int32", masks[item + T.Cast("int64", height - 1) * row_pitch + x - 1] != T.uint8(0)
                            )
                        for y in T.serial(height):
                            inside = T.Cast("int32", masks[item + T.Cast("int64", y) * row_pitch + x] != T.uint8(0))
                            if inside != value:
                                value = inside
                                put(positions, at + changes, begin + capacity, x * height + y, step)
                                changes = changes + 1
                    counted(sums, thread, changes, step)
                total = total + sums[THREADS - 1]
                T.tvm_storage_sync("shared")
            close(positions, ends, i, thread, begin, total, capacity, width * height)


@T.inline
def length_at(positions, begin, k, result):
    """result[0] = run k from the positions at which runs end."""
    result[0] = positions[begin + k]
    if k > 0:
        result[0] = result[0] - positions[begin + k - 1]


@T.prim_func(s_tir=True)
def run_lengths(
    positions_address: T.int64,
    capacity: T.int32,
    ends_address: T.int64,
    n: T.int32,
    lengths_address: T.int64,
):
    """Lengths (n, capacity) from positions."""
    T.func_attr({"tirx.noalias": True, "global_symbol": "run_lengths"})
    positions = T.decl_buffer((LARGE,), "int32", data=T.reinterpret("handle", positions_address), align=4)
    ends = T.decl_buffer((LARGE,), "int32", data=T.reinterpret("handle", ends_address), align=4)
    lengths = T.decl_buffer((LARGE,), "int32", data=T.reinterpret("handle", lengths_address), align=4)
    for i in T.thread_binding(n, thread="blockIdx.y"):
        for block in T.thread_binding((capacity + THREADS - 1) // THREADS, thread="blockIdx.x"):
            for thread in T.thread_binding(THREADS, thread="threadIdx.x"):
                k = block * THREADS + thread
                begin = T.Cast("int64", i) * capacity
                result = T.alloc_buffer((1,), "int32", scope="local")
                if k < T.min(ends[i], capacity):
                    length_at(positions, begin, k, result)
                    lengths[begin + k] = result[0]


@T.prim_func(s_tir=True)
def run_text(
    positions_address: T.int64,
    capacity: T.int32,
    ends_address: T.int64,
    n: T.int32,
    text_address: T.int64,
    room: T.int32,
    text_ends_address: T.int64,
):
    """COCO's compressed strings (n, room) from positions, and their lengths; a thread takes a run."""
    T.func_attr({"tirx.noalias": True, "global_symbol": "run_text"})
    positions = T.decl_buffer((LARGE,), "int32", data=T.reinterpret("handle", positions_address), align=4)
    ends = T.decl_buffer((LARGE,), "int32", data=T.reinterpret("handle", ends_address), align=4)
    text = T.decl_buffer((LARGE,), "uint8", data=T.reinterpret("handle", text_address), align=1)
    text_ends = T.decl_buffer((LARGE,), "int32", data=T.reinterpret("handle", text_ends_address), align=4)
    for i in T.thread_binding(n, thread="blockIdx.x"):
        for thread in T.thread_binding(THREADS, thread="threadIdx.x"):
            sums = T.alloc_buffer((2 * THREADS,), "int32", scope="shared")
            result = T.alloc_buffer((1,), "int32", scope="local")
            begin = T.Cast("int64", i) * capacity
            count = T.min(ends[i], capacity)
            total = 0
            for part in T.serial((count + THREADS - 1) // THREADS):
                k = part * THREADS + thread
                code = 0
                size = 0
                if k < count:
                    length_at(positions, begin, k, result)
                    code = result[0]
                    if k > 2:
                        length_at(positions, begin, k - 2, result)
                        code = code - result[0]
                    # 5 bits a character, the last with room for the sign: -16..15 take one.
                    rest = code
                    more = 1
                    while more != 0:
                        bits = rest & 31
                        rest = rest >> 5
                        more = T.Cast("int32", rest != T.if_then_else((bits & 16) != 0, -1, 0))
                        size = size + 1
                sums[thread] = size
                scan(sums, thread)
                at = total + sums[thread] - size
                for digit in T.serial(size):
                    if at + digit < room:
                        more = T.if_then_else(digit < size - 1, 32, 0)
                        text[T.Cast("int64", i) * room + at + digit] = T.Cast(
                            "uint8", ((code >> (5 * digit)) & 31) + more + 48
                        )
                T.tvm_storage_sync("shared")
                total = total + sums[THREADS - 1]
                T.tvm_storage_sync("shared")
            if thread == 0:
                text_ends[i] = total


def cuda_variants():
    """Every variant: {symbol: PrimFunc}."""
    return {"mask_positions": mask_positions, "run_lengths": run_lengths, "run_text": run_text}
