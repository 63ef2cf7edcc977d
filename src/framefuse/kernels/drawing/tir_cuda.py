"""Overlay of label maps and outlines of boxes in Y, U and V planes for CUDA, with the arithmetic of `tir_cpu.py`."""

from tvm.script import tirx as T

from ..tir.base import array_at

COLUMNS, ROWS = 32, 8


@T.prim_func(s_tir=True)
def draw_overlay(
    y_address: T.int64,
    u_address: T.int64,
    v_address: T.int64,
    y_pitch: T.int32,
    u_pitch: T.int32,
    v_pitch: T.int32,
    chroma_step: T.int32,
    label_address: T.int64,
    label_pitch: T.int32,
    height: T.int32,
    width: T.int32,
    inks_address: T.int64,
):
    """inks (256, 4) uint8: y, u, v, opacity."""
    T.func_attr({"tirx.noalias": True, "global_symbol": "draw_overlay"})
    luma = array_at(y_address, "uint8")
    u = array_at(u_address, "uint8")
    v = array_at(v_address, "uint8")
    labels = array_at(label_address, "uint8")
    inks = array_at(inks_address, "uint8")
    for block_y in T.thread_binding(((height + 1) // 2 + ROWS - 1) // ROWS, thread="blockIdx.y"):
        for block_x in T.thread_binding(((width + 1) // 2 + COLUMNS - 1) // COLUMNS, thread="blockIdx.x"):
            for thread_y in T.thread_binding(ROWS, thread="threadIdx.y"):
                for thread_x in T.thread_binding(COLUMNS, thread="threadIdx.x"):
                    cell_x = block_x * COLUMNS + thread_x
                    cell_y = block_y * ROWS + thread_y
                    if T.And(2 * cell_x < width, 2 * cell_y < height):
                        sums = T.alloc_buffer((3,), "int32", scope="local")
                        for k in T.unroll(3):
                            sums[k] = 0
                        for corner in T.unroll(4):
                            y = T.min(2 * cell_y + corner // 2, height - 1)
                            x = T.min(2 * cell_x + corner % 2, width - 1)
                            label = T.Cast("int32", labels[T.Cast("int64", y) * label_pitch + x]) * 4
                            opacity = T.Cast("int32", inks[label + 3])
                            if opacity != 0:
                                sums[0] = sums[0] + opacity
                                sums[1] = sums[1] + opacity * T.Cast("int32", inks[label + 1])
                                sums[2] = sums[2] + opacity * T.Cast("int32", inks[label + 2])
                                if T.And(y == 2 * cell_y + corner // 2, x == 2 * cell_x + corner % 2):
                                    at = T.Cast("int64", y) * y_pitch + x
                                    value = T.Cast("int32", luma[at]) * (255 - opacity)
                                    value = value + T.Cast("int32", inks[label]) * opacity
                                    luma[at] = T.Cast("uint8", (value + 127) // 255)
                        if sums[0] != 0:
                            u_at = T.Cast("int64", cell_y) * u_pitch + cell_x * chroma_step
                            v_at = T.Cast("int64", cell_y) * v_pitch + cell_x * chroma_step
                            u[u_at] = T.Cast(
                                "uint8", (T.Cast("int32", u[u_at]) * (1020 - sums[0]) + sums[1] + 510) // 1020
                            )
                            v[v_at] = T.Cast(
                                "uint8", (T.Cast("int32", v[v_at]) * (1020 - sums[0]) + sums[2] + 510) // 1020
                            )


@T.prim_func(s_tir=True)
def draw_boxes(
    y_address: T.int64,
    u_address: T.int64,
    v_address: T.int64,
    y_pitch: T.int32,
    u_pitch: T.int32,
    v_pitch: T.int32,
    chroma_step: T.int32,
    height: T.int32,
    width: T.int32,
    line: T.int32,
    n: T.int32,
    count_address: T.int64,
    boxes_address: T.int64,
    inks_address: T.int64,
):
    """Boxes (n, 4) int32, inks (n, 3) uint8, the first on top. `count_address` (or 0): how many of the n are valid."""
    T.func_attr({"tirx.noalias": True, "global_symbol": "draw_boxes"})
    luma = array_at(y_address, "uint8")
    u = array_at(u_address, "uint8")
    v = array_at(v_address, "uint8")
    counts = array_at(count_address, "int32", align=4)
    boxes = array_at(boxes_address, "int32", align=4)
    inks = array_at(inks_address, "uint8")
    for block_y in T.thread_binding((height + ROWS - 1) // ROWS, thread="blockIdx.y"):
        for block_x in T.thread_binding((width + COLUMNS - 1) // COLUMNS, thread="blockIdx.x"):
            for thread_y in T.thread_binding(ROWS, thread="threadIdx.y"):
                for thread_x in T.thread_binding(COLUMNS, thread="threadIdx.x"):
                    x = block_x * COLUMNS + thread_x
                    y = block_y * ROWS + thread_y
                    valid = n
                    if count_address != T.int64(0):
                        valid = T.min(n, counts[0])
                    if T.And(x < width, y < height):
                        i = 0
                        while i < valid:
                            x1 = boxes[4 * i]
                            y1 = boxes[4 * i + 1]
                            x2 = boxes[4 * i + 2]
                            y2 = boxes[4 * i + 3]
                            if T.And(
                                T.And(T.And(x >= x1, x < x2), T.And(y >= y1, y < y2)),
                                T.Or(
                                    T.Or(x < x1 + line, x >= x2 - line),
                                    T.Or(y < y1 + line, y >= y2 - line),
                                ),
                            ):
                                luma[T.Cast("int64", y) * y_pitch + x] = inks[3 * i]
                                if T.And(x % 2 == 0, y % 2 == 0):
                                    u[T.Cast("int64", y // 2) * u_pitch + x // 2 * chroma_step] = inks[3 * i + 1]
                                    v[T.Cast("int64", y // 2) * v_pitch + x // 2 * chroma_step] = inks[3 * i + 2]
                                i = valid
                            i = i + 1


def cuda_variants():
    """Every variant: {symbol: PrimFunc}."""
    return {"draw_overlay": draw_overlay, "draw_boxes": draw_boxes}
