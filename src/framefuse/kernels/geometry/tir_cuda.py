"""warp_affine, warp_perspective and remap in TVM TensorIR for CUDA.

A thread computes PIXELS neighbouring pixels of a row of one image, blockIdx.z, in all its planes. Positions are those
of `_tir_positions.py`; along a row the fixed-point ones are summed, which is exact. A tile is nearly square, so that
the source of a rotated image stays in the first-level cache. If all its pixels lie within the source, a thread issues
all loads first; the three or four bytes of a pixel and those of its neighbour are loaded as aligned words and shifted
into place. Threads next to the border compute their pixels one after the other, which keeps registers few.

For pixels of three bytes, neighbouring lanes compute neighbouring pixels and those of a thread lie COLUMNS apart, so
that a warp reads few source lines at a time; four lanes combine their 12 bytes into three words. Most rotations of such
images use `tir_cuda_warp_tile.py`, which is faster.
"""

from tvm import tirx
from tvm.script import tirx as T

from ..tir.base import array_at, arrays_at, lerp, registers, stored, threads, wide
from ._tir_cuda_warp import align, blend, fixed, joined, rounded
from ._tir_positions import BORDER, BYTES, MATRIX, clamped, reciprocal, weight_of_fixed, whole_of_fixed

SAMPLES = {"u8": "uint8", "f32": "float32"}
CHANNELS = (1, 3, 4)
AFFINE, PERSPECTIVE = 0, 1

PIXELS = 4
COLUMNS, ROWS = 16, 8
"""Threads of a block in x and in y."""
WIDE = COLUMNS * PIXELS
ATTRIBUTES = {"resident": 12, "carried": ["numbers", BYTES]}
"""`resident`: minimum number of resident blocks per multiprocessor, which bounds registers."""


def variant(sample, channels):
    """The PrimFunc `warp_<sample>_<channels>`."""
    dtype = SAMPLES[sample]
    size = 1 if sample == "u8" else 4
    words = sample == "u8" and channels > 1
    # Words are read up to 11 bytes from the left pixel; this keeps them within the row.
    margin = 4 if words else 1
    packed = words and channels == 3
    apart = COLUMNS if packed else 1

    def load(address):
        return T.call_extern("float32", f"load_{sample}", address)

    def word(address):
        return T.call_extern("uint32", "load_pair_u16", address)

    def byte(words, first, k):
        return (words[first + k // 4] >> T.Cast("uint32", 8 * (k % 4))).astype("uint8")

    @T.inline
    def fetch(words, k, address):
        """words[k ... k + 2] = the aligned words around an address."""
        base = tirx.bitwise_and(address, T.int64(-4))
        for w in T.unroll(3):
            words[k + w] = word(base + T.int64(4 * w))

    def shift(address):
        return T.Cast("uint32", address) * T.uint32(8)

    @T.inline
    def inner_words(results, pixels, at, words, bits, source, pitch, whole, weight, linear):
        """Pixels away from the border; `packed`: each three bytes of pixels[p]. All loads come first, so that they
        overlap."""
        for p in T.unroll(PIXELS):
            at[p] = source + (wide(whole[2 * p + 1]) * wide(pitch) + wide(whole[2 * p] * channels))
        if linear != 0:
            for p in T.unroll(PIXELS):
                fetch(words, 6 * p, at[p])
                fetch(words, 6 * p + 3, at[p] + wide(pitch))
            for p in T.unroll(PIXELS):
                align(words, 6 * p, shift(at[p]))
                align(words, 6 * p + 3, shift(at[p] + wide(pitch)))
                if packed:
                    blend(pixels, p, words, 6 * p, bits, weight[2 * p], weight[2 * p + 1])
                else:
                    for c in T.unroll(channels):
                        k = T.meta_var(channels + c)
                        left = lerp(fixed(words, 6 * p, c), fixed(words, 6 * p + 3, c), weight[2 * p + 1])
                        right = lerp(fixed(words, 6 * p, k), fixed(words, 6 * p + 3, k), weight[2 * p + 1])
                        results[p * channels + c] = rounded(lerp(left, right, weight[2 * p]))
        else:
            for p in T.unroll(PIXELS):
                fetch(words, 6 * p, at[p])
            for p in T.unroll(PIXELS):
                align(words, 6 * p, shift(at[p]))
                if packed:
                    pixels[p] = words[6 * p] & T.uint32(0xFFFFFF)
                else:
                    for c in T.unroll(channels):
                        results[p * channels + c] = byte(words, 6 * p, c)

    @T.inline
    def put_packed(out, words, pixels, target, pitch, x, y, columns, rows, lane, vectors):
        """Write the pixels. Every lane of a warp takes part, including those beyond the image."""
        for p in T.unroll(PIXELS):
            word: T.let = joined(pixels[p], lane)
            column: T.let = x + p * COLUMNS
            at: T.let = target + wide(y) * wide(pitch) + wide(column * channels)
            if T.And(y < rows, column < columns):
                if vectors == 0:
                    for c in T.unroll(channels):
                        out[at + c] = (pixels[p] >> T.uint32(8 * c)).astype("uint8")
                elif lane % 4 < 3:
                    words[(at + wide(lane % 4)) // T.int64(4)] = word

    @T.inline
    def inner(results, value, source, pitch, whole, weight, linear):
        """Pixels away from the border, sample by sample."""
        for p in T.unroll(PIXELS):
            at = source + (wide(whole[2 * p + 1]) * wide(pitch) + wide(whole[2 * p] * channels)) * size
            for c in T.unroll(channels):
                here = at + c * size
                value[0] = load(here)
                if linear != 0:
                    below = here + wide(pitch) * size
                    value[0] = lerp(
                        lerp(value[0], load(below), weight[2 * p + 1]),
                        lerp(load(here + channels * size), load(below + channels * size), weight[2 * p + 1]),
                        weight[2 * p],
                    )
                results[p * channels + c] = stored(value[0], sample)

    @T.inline
    def edge(values, taken, source, x, y, right, down, pitch, height, width, linear, replicate, value):
        """The channels of a pixel at a position that may be next to or beyond the border.

        The nearest samples inside are always read, so that no load waits for a comparison or another load.
        """
        if T.And(replicate == 0, T.Or(T.Or(x < -1, x >= width), T.Or(y < -1, y >= height))):
            for c in T.unroll(channels):
                values[c] = value[c]
        else:
            for k in T.unroll(4):
                column = T.min(T.max(x + k % 2, 0), width - 1)
                row = T.min(T.max(y + k // 2, 0), height - 1)
                at = source + (wide(row) * wide(pitch) + wide(column * channels)) * size
                # Negative where the border's value applies.
                inner = T.Cast("int32", T.Or(replicate != 0, T.And(x + k % 2 == column, y + k // 2 == row))) - 1
                for c in T.unroll(channels):
                    taken[4 * c + k] = load(at + c * size)
                for c in T.unroll(channels):
                    taken[4 * c + k] = T.call_extern("float32", "chosen_f32", taken[4 * c + k], value[c], inner)
            for c in T.unroll(channels):
                values[c] = taken[4 * c]
                if linear != 0:
                    beside = lerp(taken[4 * c + 1], taken[4 * c + 3], down)
                    values[c] = lerp(lerp(taken[4 * c], taken[4 * c + 2], down), beside, right)

    def chosen(array, k, p):
        """array[2 p + k], for p of a loop, without an address in memory for the array."""
        value = array[2 * PIXELS - 2 + k]
        for q in reversed(range(PIXELS - 1)):
            value = T.Select(p == q, array[2 * q + k], value)
        return value

    def placed(whole, weight, p):
        """Position of pixel p of a loop: whole x and y, weights x and y."""
        return [chosen(array, k, p) for array in (whole, weight) for k in (0, 1)]

    @T.inline
    def split(whole, weight, slot, position, half):
        placed = clamped(position) + half
        floor = T.floor(placed)
        whole[slot] = T.Cast("int32", floor)
        weight[slot] = T.Cast("float32", placed - floor)

    @T.prim_func(s_tir=True)
    def kernel(
        source: T.int64, source_pitch: T.int32, source_plane: T.int64, source_image: T.int64,
        height: T.int32, width: T.int32, target: T.int64, target_pitch: T.int32, target_plane: T.int64,
        target_image: T.int64, columns: T.int32, rows: T.int32, images: T.int32, planes: T.int32,
        vectors: T.int32, kind: T.int32, linear: T.int32, replicate: T.int32, half: T.float64,
        map_x: T.int64, map_y: T.int64, map_x_pitch: T.int32, map_y_pitch: T.int32,
        numbers: T.int64,
    ):  # fmt: skip
        T.func_attr({"tirx.noalias": True, "global_symbol": f"warp_{sample}_{channels}"} | ATTRIBUTES)
        h = array_at(numbers, "float64", align=8)
        m = array_at(numbers, "int64", align=8)
        border = array_at(numbers, "float32", align=4)
        out = array_at(target, dtype, align=16)
        out_words = array_at(target, "uint32", align=4)
        xs, ys = arrays_at((map_x, map_y), "float32", align=4)
        grid = T.meta_var(((columns + WIDE - 1) // WIDE, (rows + ROWS - 1) // ROWS, images))
        image, block_y, block_x, thread_y, thread_x = threads(grid, (COLUMNS, ROWS))
        x = block_x * WIDE + thread_x * (1 if packed else PIXELS)
        y = block_y * ROWS + thread_y
        if T.Or(packed, T.And(x < columns, y < rows)):
            whole, inside = registers("int32", 2 * PIXELS, 1)
            weight, values, value, taken = registers("float32", 2 * PIXELS, channels, 4, 4 * channels)
            results = T.alloc_buffer((PIXELS * channels,), dtype, scope="local")
            words_, pixels, bits = registers("uint32", 6 * PIXELS, PIXELS, channels)
            places = T.alloc_buffer((PIXELS,), "int64", scope="local")
            if kind == AFFINE:
                across = m[MATRIX] * wide(x) + m[MATRIX + 1] * wide(y) + m[MATRIX + 2]
                down = m[MATRIX + 3] * wide(x) + m[MATRIX + 4] * wide(y) + m[MATRIX + 5]
                for p in T.unroll(PIXELS):
                    whole[2 * p] = whole_of_fixed(across)
                    whole[2 * p + 1] = whole_of_fixed(down)
                    weight[2 * p] = weight_of_fixed(across)
                    weight[2 * p + 1] = weight_of_fixed(down)
                    across = across + m[MATRIX] * T.int64(apart)
                    down = down + m[MATRIX + 3] * T.int64(apart)
            elif kind == PERSPECTIVE:
                for p in T.unroll(PIXELS):
                    column = T.Cast("float64", x + p * apart)
                    row = T.Cast("float64", y)
                    inverse = reciprocal(h[6] * column + (h[7] * row + h[8]))
                    across_ = (h[0] * column + (h[1] * row + h[2])) * inverse
                    down_ = (h[3] * column + (h[4] * row + h[5])) * inverse
                    split(whole, weight, 2 * p, across_, half)
                    split(whole, weight, 2 * p + 1, down_, half)
            else:
                for p in T.unroll(PIXELS):
                    column = T.min(x + p * apart, columns - 1)
                    row = T.min(y, rows - 1)
                    at_x = wide(row) * wide(map_x_pitch) + wide(column)
                    at_y = wide(row) * wide(map_y_pitch) + wide(column)
                    split(whole, weight, 2 * p, T.Cast("float64", xs[at_x]), half)
                    split(whole, weight, 2 * p + 1, T.Cast("float64", ys[at_y]), half)
            inside[0] = 1
            for p in T.unroll(PIXELS):
                if T.Or(
                    whole[2 * p].astype("uint32") >= T.max(width - margin, 0).astype("uint32"),
                    whole[2 * p + 1].astype("uint32") >= (height - 1).astype("uint32"),
                ):
                    inside[0] = 0
            for plane in T.serial(planes if channels == 1 else 1):
                for k in T.unroll(4):
                    value[k] = border[BORDER + k]
                if channels == 1:  # the values are those of up to four planes
                    value[0] = border[BORDER + T.min(plane, 3)]
                skipped = wide(image) * source_image + wide(plane) * source_plane
                begin = source + skipped * size
                limits = T.meta_var((source_pitch, height, width, linear, replicate, value))
                taps = T.meta_var((begin, source_pitch, whole, weight, linear))
                written = T.meta_var(wide(image) * target_image + wide(plane) * target_plane)
                at = written + wide(y) * wide(target_pitch) + wide(x * channels)
                if packed:
                    if inside[0] != 0:
                        inner_words(results, pixels, places, words_, bits, *taps)
                    else:
                        for p in T.serial(PIXELS):
                            edge(values, taken, begin, *placed(whole, weight, p), *limits)
                            for q in T.unroll(PIXELS):
                                if p == q:
                                    pixels[q] = T.uint32(0)
                                    for c in T.unroll(channels):
                                        level = T.meta_var(stored(values[c], sample).astype("uint32"))
                                        pixels[q] |= level << T.uint32(8 * c)
                    place = wide(image) * target_image
                    lane = thread_y * COLUMNS + thread_x
                    where = T.meta_var((target_pitch, x, y, columns, rows, lane, vectors))
                    put_packed(out, out_words, pixels, place, *where)
                elif inside[0] != 0:
                    if words:
                        inner_words(results, pixels, places, words_, bits, *taps)
                    else:
                        inner(results, values, *taps)
                    if vectors != 0:
                        for g in T.unroll(channels):
                            for e in T.vectorized(PIXELS):
                                out[at + g * PIXELS + e] = results[g * PIXELS + e]
                    else:
                        for p in T.unroll(PIXELS):
                            if x + p < columns:
                                for c in T.unroll(channels):
                                    out[at + p * channels + c] = results[p * channels + c]
                else:
                    for p in T.serial(T.min(PIXELS, columns - x)):
                        edge(values, taken, begin, *placed(whole, weight, p), *limits)
                        for c in T.unroll(channels):
                            out[at + p * channels + c] = stored(values[c], sample)

    return kernel


def cuda_variants():
    """Every variant: {symbol: PrimFunc}."""
    return {f"warp_{sample}_{channels}": variant(sample, channels) for sample in SAMPLES for channels in CHANNELS}
