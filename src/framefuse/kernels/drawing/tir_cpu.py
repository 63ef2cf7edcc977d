"""Overlay of label maps (4:2:0) and outlines of boxes (any YUV) in Y, U and V planes, and lines in one component, for
the CPU.

`masks/reference.py` states the formulas. `chroma_step` is 1 for separate U and V planes and 2 for interleaved ones
(nv12), so that one kernel serves both. Addresses are those of the first sample of each component; pitches are in
samples.
"""

from __future__ import annotations

from tvm import tirx
from tvm.script import tirx as T

from ..tir.base import SAMPLES, array_at, arrays_at, lets, variables


def by_255(total):
    """An integer below 65535 divided by 255, in 16 bits, of which a vector holds twice as many."""
    total, one, eight = total.astype("uint16"), tirx.const(1, "uint16"), tirx.const(8, "uint16")
    return ((total + one + (total >> eight)) >> eight).astype("uint8")


def mix(sample, ink, component):
    """A sample below an ink of one opacity for many: ink is colour * opacity + 127 of each component, 255 - opacity."""
    return by_255(sample.astype("uint16") * ink[3] + ink[component])


@T.inline
def tint(plane, start, count, step, ink, component):
    """Mix `count` samples with an ink; loops of a length and step that are known become vectors."""
    for k in T.serial(count):
        plane[start + k * step] = mix(plane[start + k * step], ink, component)


@T.prim_func(s_tir=True)
def draw_overlay(
    y_address: T.int64, u_address: T.int64, v_address: T.int64, y_pitch: T.int32,
    u_pitch: T.int32, v_pitch: T.int32, chroma_step: T.int32, label_address: T.int64, label_pitch: T.int32,
    height: T.int32, width: T.int32,
    inks: T.Buffer((256, 4), "int32", align=4),
):  # fmt: skip
    """inks[label] is y, u, v, opacity (0..255)."""
    T.func_attr({"tirx.noalias": True, "global_symbol": "draw_overlay"})
    luma, u, v, labels = arrays_at((y_address, u_address, v_address, label_address), "uint8", width)
    (seen,), (ink,), (sums,) = variables("uint8", 2), variables("uint16", 4), variables("int32", 3)
    for cell_y in T.serial((height + 1) // 2):
        top: T.let = 2 * cell_y
        bottom: T.let = T.min(top + 1, height - 1)
        for part in T.serial(width // 16 + 1):
            start: T.let = part * 16
            # Most of an image is unlabelled, most of the rest has one label: look at 16 pixels of both rows at once.
            seen[0] = T.uint8(1)
            seen[1] = T.uint8(0)
            if T.And(start + 16 <= width, top != bottom):
                seen[0] = T.uint8(0)
                seen[1] = T.uint8(255)
                for x in T.serial(16):
                    above, below = lets(labels[top * label_pitch + start + x], labels[bottom * label_pitch + start + x])
                    seen[0] = seen[0] | above | below
                    seen[1] = seen[1] & above & below
            if seen[0] == seen[1]:
                label: T.let = T.Cast("int32", seen[0])
                ink[3] = T.Cast("uint16", 255 - inks[label, 3])
                for k in T.unroll(3):
                    ink[k] = T.Cast("uint16", inks[label, k] * inks[label, 3] + 127)
                if ink[3] != T.uint16(255):
                    tint(luma, top * y_pitch + start, 16, 1, ink, 0)
                    tint(luma, bottom * y_pitch + start, 16, 1, ink, 0)
                    if chroma_step == 1:
                        tint(u, cell_y * u_pitch + part * 8, 8, 1, ink, 1)
                        tint(v, cell_y * v_pitch + part * 8, 8, 1, ink, 2)
                    else:
                        tint(u, cell_y * u_pitch + part * 16, 8, 2, ink, 1)
                        tint(v, cell_y * v_pitch + part * 16, 8, 2, ink, 2)
            else:
                for k in T.serial((T.min(16, width - start) + 1) // 2):
                    cell_x: T.let = start // 2 + k
                    for k in T.unroll(3):
                        sums[k] = 0
                    for corner in T.unroll(4):
                        y: T.let = T.min(top + corner // 2, height - 1)
                        x: T.let = T.min(2 * cell_x + corner % 2, width - 1)
                        label: T.let = T.Cast("int32", labels[y * label_pitch + x])
                        opacity: T.let = inks[label, 3]
                        sums[0] = sums[0] + opacity
                        sums[1] = sums[1] + opacity * inks[label, 1]
                        sums[2] = sums[2] + opacity * inks[label, 2]
                        # An odd edge repeats its pixel, which is drawn once.
                        inside: T.let = T.And(y == top + corner // 2, x == 2 * cell_x + corner % 2)
                        if T.And(opacity != 0, inside):
                            at: T.let = y * y_pitch + x
                            under: T.let = T.Cast("int32", luma[at]) * (255 - opacity)
                            luma[at] = by_255(under + inks[label, 0] * opacity + 127)
                    if sums[0] != 0:
                        beside = T.meta_var(cell_x * chroma_step)
                        u_at, v_at = lets(cell_y * u_pitch + beside, cell_y * v_pitch + beside)
                        u[u_at] = by_255((T.Cast("int32", u[u_at]) * (1020 - sums[0]) + sums[1] + 510) // 4)
                        v[v_at] = by_255((T.Cast("int32", v[v_at]) * (1020 - sums[0]) + sums[2] + 510) // 4)


def boxes_variant(sample):
    """The PrimFunc `draw_boxes_<sample>`: outlines of `line` pixels inside boxes (n, 4) int32 with inks (n, 3), the
    first box on top, for any chroma subsampling."""
    dtype = SAMPLES[sample]

    @T.prim_func(s_tir=True)
    def kernel(
        y_address: T.int64, u_address: T.int64, v_address: T.int64, y_pitch: T.int32,
        u_pitch: T.int32, v_pitch: T.int32, chroma_step: T.int32, sub_x: T.int32, sub_y: T.int32,
        height: T.int32, width: T.int32, line: T.int32,
        boxes: T.Buffer(("n", 4), "int32", align=4), inks: T.Buffer(("n", 3), dtype, align=1),
    ):  # fmt: skip
        T.func_attr({"tirx.noalias": True, "global_symbol": f"draw_boxes_{sample}"})
        n = T.int32()
        luma, u, v = arrays_at((y_address, u_address, v_address), dtype, width)
        for j in T.serial(n):
            i: T.let = n - 1 - j
            x1, x2 = lets(boxes[i, 0], boxes[i, 2])
            # Columns of the left and of the right line; they meet in a narrow box.
            left, right = lets(T.max(x1, 0), T.min(x2, width))
            for row in T.serial(T.max(T.min(boxes[i, 3], height) - T.max(boxes[i, 1], 0), 0)):
                y: T.let = T.max(boxes[i, 1], 0) + row
                edge: T.let = T.Or(y < boxes[i, 1] + line, y >= boxes[i, 3] - line)
                # One span over the whole row, or two.
                left_end: T.let = T.if_then_else(edge, right, T.min(x1 + line, right))
                right_start: T.let = T.if_then_else(edge, right, T.max(x2 - line, left))
                for x in T.serial(T.max(left_end - left, 0)):
                    luma[y * y_pitch + left + x] = inks[i, 0]
                for x in T.serial(T.max(right - right_start, 0)):
                    luma[y * y_pitch + right_start + x] = inks[i, 0]
                if y % sub_y == 0:
                    u_row, v_row = lets(y // sub_y * u_pitch, y // sub_y * v_pitch)
                    # A chroma sample belongs to its top-left pixel.
                    first, second = lets((left + sub_x - 1) // sub_x, (right_start + sub_x - 1) // sub_x)
                    for x in T.serial(T.max((left_end + sub_x - 1) // sub_x - first, 0)):
                        u[u_row + (first + x) * chroma_step] = inks[i, 1]
                        v[v_row + (first + x) * chroma_step] = inks[i, 2]
                    for x in T.serial(T.max((right + sub_x - 1) // sub_x - second, 0)):
                        u[u_row + (second + x) * chroma_step] = inks[i, 1]
                        v[v_row + (second + x) * chroma_step] = inks[i, 2]

    return kernel


@T.prim_func(s_tir=True)
def draw_lines(
    address: T.int64, pitch: T.int32, step: T.int32, height: T.int32, width: T.int32, shift_x: T.int32,
    shift_y: T.int32, line: T.int32,
    segments: T.Buffer(("n", 4), "int32", align=4), values: T.Buffer(("n",), "uint8", align=1),
):  # fmt: skip
    """Straight lines from (x1, y1) to (x2, y2) in pixels, `line` pixels wide, the first on top, in a component of
    height x width samples of 2^shift pixels each: `line` pixels across in each column, or in each row of a steep line;
    a point is a square. Positions are in 1/65536 pixels."""
    T.func_attr({"tirx.noalias": True, "global_symbol": "draw_lines"})
    n = T.int32()
    samples = array_at(address, "uint8", pitch)
    at, slope = variables("int64", 2, 2)
    ends = T.alloc_buffer((4,), "int32")
    for j in T.serial(n):
        i: T.let = n - 1 - j
        across, down = lets(segments[i, 2] - segments[i, 0], segments[i, 3] - segments[i, 1])
        flat, steep = lets(T.max(across, -across), T.max(down, -down))
        steps: T.let = T.max(flat, steep)
        wide: T.let = T.if_then_else(T.And(flat >= steep, steps > 0), 1, line)
        high: T.let = T.if_then_else(T.And(flat < steep, steps > 0), 1, line)
        for k in T.unroll(2):
            at[k] = T.Cast("int64", segments[i, k]) * T.int64(65536) + T.int64(32768)
            slope[k] = (
                T.Cast("int64", segments[i, k + 2] - segments[i, k])
                * T.int64(65536)
                // T.Cast("int64", T.max(steps, 1))
            )
        for _ in T.serial(steps + 1):
            left: T.let = T.Cast("int32", at[0] >> T.int64(16)) - wide // 2
            top: T.let = T.Cast("int32", at[1] >> T.int64(16)) - high // 2
            ends[0] = T.max(left, 0) >> shift_x
            ends[1] = T.max(top, 0) >> shift_y
            ends[2] = T.min((T.max(left + wide, 0) + (T.int32(1) << shift_x) - 1) >> shift_x, width)
            ends[3] = T.min((T.max(top + high, 0) + (T.int32(1) << shift_y) - 1) >> shift_y, height)
            for y in T.serial(T.max(ends[3] - ends[1], 0)):
                for x in T.serial(T.max(ends[2] - ends[0], 0)):
                    samples[(ends[1] + y) * pitch + (ends[0] + x) * step] = values[i]
            at[0] = at[0] + slope[0]
            at[1] = at[1] + slope[1]


def variants():
    """Every variant: {global symbol: PrimFunc}."""
    return {"draw_overlay": draw_overlay, "draw_lines": draw_lines} | {
        f"draw_boxes_{sample}": boxes_variant(sample) for sample in SAMPLES
    }
