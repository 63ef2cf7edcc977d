"""Bilinear warp_affine of pixels of three bytes on CUDA, through shared memory.

A block computes a square of SIDE pixels. It first copies the source rectangle that it reads to shared memory, in
vectors of 16 bytes or, beyond the image, pixel by pixel with the border's value; then every thread blends its pixels
from there. The two lines of 16 pixels of a warp lie 16 banks apart (PITCH), so that small rotations cause few bank
conflicts. Positions, weights and rounding are those of `tir_cuda.py`, which takes images whose rectangles do not fit or
whose rows are not aligned.
"""

from tvm.script import tirx as T

from ..tir.base import array_at, wide
from ._tir_cuda_warp import align, blend, joined
from ._tir_positions import BYTES, MATRIX, weight_of_fixed, whole_of_fixed

SIDE = 32
COLUMNS, ROWS = 16, 4
"""Threads of a block in x and in y, which is also the distance between the pixels of a thread."""
PITCH, HEIGHT = 192, 60
"""Bytes of a row in shared memory, and rows; `cuda.py` knows both limits."""
GROUPS = PITCH // 12
"""Groups of four pixels, which are three words, in a row."""
AHEAD = 3
"""Vectors that a thread loads at once."""
ATTRIBUTES = {"resident": 16, "carried": ["numbers", BYTES]}
"""`resident`: minimum number of resident blocks per multiprocessor, which bounds registers."""


@T.prim_func
def warp_tile(
    source: T.int64, source_pitch: T.int32, source_image: T.int64, height: T.int32,
    width: T.int32, target: T.int64, target_pitch: T.int32, target_image: T.int64,
    columns: T.int32, rows: T.int32, images: T.int32, replicate: T.int32, numbers: T.int64,
    left: T.int64, right: T.int64, top: T.int64, bottom: T.int64, value: T.int32,
):  # fmt: skip
    """`left` to `bottom` is how far the positions of a block reach from that of its first pixel, in 1 / 2^32
    pixels; `value` are the three bytes of the border."""
    T.func_attr({"tirx.noalias": True, "global_symbol": "warp_tile"} | ATTRIBUTES)
    T.device_entry()
    m = array_at(numbers, "int64", align=8)
    block_x, block_y, image = T.cta_id([(columns + SIDE - 1) // SIDE, (rows + SIDE - 1) // SIDE, images])
    thread = T.thread_id([COLUMNS * ROWS])
    loads = array_at(source, "uint32", align=16)
    samples = array_at(source, "uint8")
    out = array_at(target, "uint32", align=4)
    tile = T.alloc_shared((HEIGHT * PITCH // 4 + 4,), "uint32")
    corner = T.alloc_local((2,), "int64")
    words = T.alloc_local((6,), "uint32")
    bits = T.alloc_local((3,), "uint32")
    pixels = T.alloc_local((1,), "uint32")
    taken = T.alloc_local((4 * AHEAD,), "uint32")
    quad = T.alloc_local((4,), "uint32")
    column: T.let = thread % COLUMNS
    row: T.let = thread // COLUMNS
    # Values that are the same for all threads of a block are computed separately, once.
    corner[0] = m[MATRIX] * wide(block_x * SIDE) + m[MATRIX + 1] * wide(block_y * SIDE) + m[MATRIX + 2]
    corner[1] = m[MATRIX + 3] * wide(block_x * SIDE) + m[MATRIX + 4] * wide(block_y * SIDE) + m[MATRIX + 5]
    x0 = whole_of_fixed(corner[0] + left) // 4 * 4  # four pixels are whole words
    x1 = whole_of_fixed(corner[0] + right) + 1
    y0 = whole_of_fixed(corner[1] + top)
    y1 = whole_of_fixed(corner[1] + bottom) + 1
    inside: T.let = T.And(T.And(x0 >= 0, y0 >= 0), T.And(x1 < width, y1 < height))
    apart: T.let = T.Or(T.Or(x1 < 0, y1 < 0), T.Or(x0 >= width, y0 >= height))
    bare: T.let = T.And(replicate == 0, apart)
    lead = T.int32(0)
    if inside:
        lead = x0 * 3 % 16
        reach = (x1 + 1 - x0) * 3 + lead
        at = (
            wide(image) * (source_image // T.int64(16))
            + wide(y0 + row) * wide(source_pitch // 16)
            + wide(x0 * 3 // 16 + column)
        )
        step = wide(source_pitch // 16 * ROWS)
        line = row
        while line <= y1 - y0:
            for a in T.unroll(AHEAD):
                if T.And(line + a * ROWS <= y1 - y0, column * 16 < reach):
                    for k in T.vectorized(4):
                        taken[4 * a + k] = loads[(at + step * T.int64(a)) * T.int64(4) + k]
            for a in T.unroll(AHEAD):
                if T.And(line + a * ROWS <= y1 - y0, column * 16 < reach):
                    for k in T.vectorized(4):
                        tile[(line + a * ROWS) * (PITCH // 4) + column * 4 + k] = taken[4 * a + k]
            line = line + AHEAD * ROWS
            at = at + step * T.int64(AHEAD)
    elif T.Not(bare):
        group = thread
        while group < (y1 - y0 + 1) * GROUPS:
            source_x: T.let = x0 + group % GROUPS * 4
            source_y: T.let = y0 + group // GROUPS
            near_y: T.let = T.min(T.max(source_y, 0), height - 1)
            line_at: T.let = wide(image) * source_image + wide(near_y) * wide(source_pitch)
            shown: T.let = T.Or(replicate != 0, source_y == near_y)
            to: T.let = group // GROUPS * (PITCH // 4) + group % GROUPS * 3
            if T.And(T.And(shown, source_x <= x1), T.And(source_x >= 0, source_x + 3 < width)):
                for k in T.unroll(3):
                    tile[to + k] = loads[(line_at + wide(source_x * 3)) // T.int64(4) + k]
            elif source_x <= x1:
                for k in T.unroll(4):
                    near_x: T.let = T.min(T.max(source_x + k, 0), width - 1)
                    quad[k] = value.astype("uint32")
                    if T.And(shown, T.Or(replicate != 0, source_x + k == near_x)):
                        quad[k] = samples[line_at + wide(near_x * 3)].astype("uint32")
                        for c in T.unroll(1, 3):
                            sample: T.let = samples[line_at + wide(near_x * 3 + c)]
                            quad[k] = quad[k] | (sample.astype("uint32") << T.uint32(8 * c))
                for k in T.unroll(3):
                    tile[to + k] = (quad[k] >> T.uint32(8 * k)) | (quad[k + 1] << T.uint32(24 - 8 * k))
            group = group + COLUMNS * ROWS
    T.cuda.cta_sync()
    across = corner[0] - (wide(x0) << T.int64(32)) + m[MATRIX] * wide(column) + m[MATRIX + 1] * wide(row)
    down = corner[1] - (wide(y0) << T.int64(32)) + m[MATRIX + 3] * wide(column) + m[MATRIX + 4] * wide(row)
    left_x: T.let = block_x * SIDE + column
    y = block_y * SIDE + row
    place = (wide(image) * target_image + wide(y) * wide(target_pitch) + wide(left_x * 3 + column % 4)) // T.int64(4)
    for _ in T.serial(SIDE // ROWS):
        for side in T.unroll(SIDE // COLUMNS):
            pixels[0] = value.astype("uint32")
            if T.Not(bare):
                here_x: T.let = across + m[MATRIX] * T.int64(side * COLUMNS)
                here_y: T.let = down + m[MATRIX + 3] * T.int64(side * COLUMNS)
                at: T.let = whole_of_fixed(here_y) * PITCH + whole_of_fixed(here_x) * 3 + lead
                for k in T.unroll(3):
                    words[k] = tile[at // 4 + k]
                    words[3 + k] = tile[at // 4 + PITCH // 4 + k]
                align(words, 0, at.astype("uint32") * T.uint32(8))
                align(words, 3, at.astype("uint32") * T.uint32(8))
                blend(pixels, 0, words, 0, bits, weight_of_fixed(here_x), weight_of_fixed(here_y))
            word: T.let = joined(pixels[0], column)
            if T.And(T.And(column % 4 < 3, y < rows), left_x + side * COLUMNS < columns):
                out[place + side * (COLUMNS * 3 // 4)] = word
        across = across + m[MATRIX + 1] * T.int64(ROWS)
        down = down + m[MATRIX + 4] * T.int64(ROWS)
        y = y + ROWS
        place = place + wide(target_pitch) * (ROWS // 4)


def cuda_variants():
    """Every variant: {symbol: PrimFunc}."""
    return {"warp_tile": warp_tile}
