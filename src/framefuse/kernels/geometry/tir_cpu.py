"""warp_affine, warp_perspective and remap in TVM TensorIR for the CPU.

Row by row: the positions of the pixels go to a scratch (vectorised; see `_tir_positions.py`), then pixels are sampled
one by one into a float row, which is then rounded and stored (vectorised). Planes of a planar image share the
positions. Pixels inside the source take a fast path: four vectors of channels, three lerps. Vectors of three channels
read a fourth element, so the last column counts as border.

There is a variant for each source type and number of channels; the kind of warp, interpolation and border are arguments
that are tested once per row or pixel.
"""

from __future__ import annotations

from tvm.script import tirx as T

from ..tir.base import arrays_at, lerp, lets, stored
from ._tir_positions import HALF, clamped, i64, reciprocal, weight_of_fixed, whole_of_fixed

SAMPLES = {"u8": "uint8", "f32": "float32"}
CHANNELS = (1, 3, 4)
AFFINE, PERSPECTIVE, TABLE = 0, 1, 2


def variant(sample, channels):
    """The PrimFunc `warp_<sample>_<channels>`."""
    dtype = SAMPLES[sample]
    lanes = {1: 1, 3: 4, 4: 4}[channels]

    def sample_at(source, index):
        return source[index].astype("float32")

    @T.inline
    def locate_affine(whole, weight, fixed, y, half, width):
        line = T.meta_var(T.Cast("int64", y))
        across, down = lets(fixed[1] * line + fixed[2] + half, fixed[4] * line + fixed[5] + half)
        step_x, step_y = lets(fixed[0], fixed[3])
        for x in T.serial(width):
            whole[0, x] = whole_of_fixed(across + step_x * T.Cast("int64", x))
            weight[0, x] = weight_of_fixed(across + step_x * T.Cast("int64", x))
        for x in T.serial(width):
            whole[1, x] = whole_of_fixed(down + step_y * T.Cast("int64", x))
            weight[1, x] = weight_of_fixed(down + step_y * T.Cast("int64", x))

    @T.inline
    def split(whole, weight, position, half, width):
        """Whole pixels and weights of float positions; `half` is the half pixel that `nearest` adds."""
        for axis in T.unroll(2):
            for x in T.serial(width):
                whole[axis, x] = T.Cast("int32", T.floor(clamped(position[axis, x]) + half))
            for x in T.serial(width):
                weight[axis, x] = T.Cast(
                    "float32", clamped(position[axis, x]) + half - T.floor(clamped(position[axis, x]) + half)
                )

    # Every stage goes through memory: let-binding a float that was cast from an integer breaks TVM's integer-set
    # analysis, and a scalar buffer would call TVM's allocator, which does not exist at run time.
    @T.inline
    def locate_perspective(position, h, y, width):
        for x in T.serial(width):
            position[2, x] = h[6] * T.Cast("float64", x) + (h[7] * T.Cast("float64", y) + h[8])
        for x in T.serial(width):
            position[2, x] = reciprocal(position[2, x])
        for x in T.serial(width):
            position[0, x] = (h[0] * T.Cast("float64", x) + (h[1] * T.Cast("float64", y) + h[2])) * position[2, x]
        for x in T.serial(width):
            position[1, x] = (h[3] * T.Cast("float64", x) + (h[4] * T.Cast("float64", y) + h[5])) * position[2, x]

    @T.inline
    def locate_table(position, map_x, map_y, at_x, at_y, width):
        for x in T.serial(width):
            position[0, x] = map_x[at_x + x].astype("float64")
        for x in T.serial(width):
            position[1, x] = map_y[at_y + x].astype("float64")

    def tap(x, y, source, base, pitch, height, width, c, replicate, outside):
        """A sample next to the border; the index is always clamped, so that reading is safe."""
        column = T.min(T.max(x, 0), width - 1)
        row = T.min(T.max(y, 0), height - 1)
        taken = sample_at(source, base + row * pitch + column * channels + c)
        return T.Select(T.Or(replicate != 0, T.And(x == column, y == row)), taken, outside)

    @T.inline
    def mark(whole, pitch, height, width, count):
        """whole[2] = element of the pixel if all its neighbours are inside, else -1."""
        for x in T.serial(count):
            column, row = lets(whole[0, x], whole[1, x])
            whole[2, x] = T.Select(
                T.And(T.And(column >= 0, column < width - 1 - (lanes - channels)), T.And(row >= 0, row < height - 1)),
                row * pitch + column * channels,
                -1,
            )

    @T.inline
    def blend(source, plane, base, pitch, whole, value, height, width, replicate, count, line, pair, weight):
        """line = linear taps."""
        for x in T.serial(count):
            column, row = lets(whole[0, x], whole[1, x])
            right, down = lets(weight[0, x], weight[1, x])
            if whole[2, x] >= 0:
                at: T.let = base + whole[2, x]
                # A pixel and its right neighbour are adjacent, so both are blended with those below at once.
                for lane in T.vectorized(2 * lanes):
                    pair[lane] = lerp(sample_at(source, at + lane), sample_at(source, at + pitch + lane), down)
                for lane in T.vectorized(lanes):
                    line[x * channels + lane] = lerp(pair[lane], pair[channels + lane], right)
            elif T.And(replicate == 0, T.Or(T.Or(column < -1, column >= width), T.Or(row < -1, row >= height))):
                for c in T.unroll(channels):
                    line[x * channels + c] = value[plane, c]
            else:
                for c in T.serial(channels):
                    here = T.meta_var((source, base, pitch, height, width, c, replicate, value[plane, c]))
                    line[x * channels + c] = lerp(
                        lerp(tap(column, row, *here), tap(column, row + 1, *here), down),
                        lerp(tap(column + 1, row, *here), tap(column + 1, row + 1, *here), down),
                        right,
                    )

    @T.inline
    def pick(source, plane, base, pitch, whole, value, height, width, replicate, count, target, at):
        """target = the nearest pixels, without a float row."""
        for x in T.serial(count):
            column, row = lets(whole[0, x], whole[1, x])
            inside_x, inside_y = lets(T.min(T.max(column, 0), width - 1), T.min(T.max(row, 0), height - 1))
            if T.Or(replicate != 0, T.And(column == inside_x, row == inside_y)):
                for c in T.unroll(channels):
                    target[at + x * channels + c] = source[base + inside_y * pitch + inside_x * channels + c]
            else:
                for c in T.unroll(channels):
                    target[at + x * channels + c] = stored(value[plane, c], sample)

    @T.prim_func(s_tir=True)
    def kernel(
        source_address: T.int64, source_pitch: T.int32, height: T.int32, width: T.int32,
        target_address: T.int64, target_pitch: T.int32, columns: T.int32, rows: T.int32,
        replicate: T.int32, source_plane: T.int32, target_plane: T.int32, planes: T.int32,
        kind: T.int32, linear: T.int32, half: T.float64, map_x_address: T.int64, map_y_address: T.int64,
        map_x_pitch: T.int32, map_y_pitch: T.int32,
        fixed: T.Buffer((6,), "int64", align=8), homography: T.Buffer((9,), "float64", align=8),
        value: T.Buffer(("planes", 4), "float32", align=4), whole: T.Buffer((3, "size"), "int32", align=4),
        weight: T.Buffer((2, "size"), "float32", align=4), position: T.Buffer((3, "size"), "float64", align=8),
        line: T.Buffer(("line_size",), "float32", align=4),
    ):  # fmt: skip
        T.func_attr({"tirx.noalias": True, "global_symbol": f"warp_{sample}_{channels}"})
        size = T.int32()
        source, target = arrays_at((source_address, target_address), dtype, size)
        pair = T.alloc_buffer((2 * lanes,), "float32")
        map_x, map_y = arrays_at((map_x_address, map_y_address), "float32", size, align=4)
        for y in T.serial(rows):
            if kind == AFFINE:
                locate_affine(whole, weight, fixed, y, T.Select(linear != 0, i64(0), i64(HALF)), columns)
            elif kind == PERSPECTIVE:
                locate_perspective(position, homography, y, columns)
            else:
                locate_table(position, map_x, map_y, y * map_x_pitch, y * map_y_pitch, columns)
            if kind != AFFINE:
                split(whole, weight, position, half, columns)
            if linear != 0:
                mark(whole, source_pitch, height, width, columns)
            for plane in T.serial(planes):
                base, at = lets(plane * source_plane, plane * target_plane + y * target_pitch)
                given = T.meta_var((source, plane, base, source_pitch, whole, value, height, width, replicate, columns))
                if linear == 0:
                    pick(*given, target, at)
                else:
                    blend(*given, line, pair, weight)
                    for i in T.serial(columns * channels):
                        target[at + i] = stored(line[i], sample)

    return kernel


def variants():
    """Every variant: {global symbol: PrimFunc}."""
    return {f"warp_{sample}_{channels}": variant(sample, channels) for sample in SAMPLES for channels in CHANNELS}
