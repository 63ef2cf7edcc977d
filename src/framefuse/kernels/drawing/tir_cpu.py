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


def mix(sample, left, ink):
    """A sample below an ink of one opacity for many: `left` is 255 - opacity, `ink` colour * opacity + 127."""
    return by_255(sample.astype("uint16") * left + ink)


@T.inline
def tint(plane, start, count, step, ink, component):
    """Mix `count` samples with an ink; loops of a length and step that are known become vectors."""
    left, colour = lets(ink[3], ink[component])  # at hand: LLVM does not know that they stay
    for k in T.serial(count):
        plane[start + k * step] = mix(plane[start + k * step], left, colour)


def stranger(one, label):
    """1 if a label is neither none nor the given one, else 0."""
    return tirx.Select(
        tirx.Or(one == tirx.const(0, "uint8"), one == label), tirx.const(0, "uint8"), tirx.const(1, "uint8")
    )


def shown(labels, at, label):
    """How many of two pixels have a label."""
    return (labels[at] == label).astype("int32") + (labels[at + 1] == label).astype("int32")


def by_1020(total):
    """The average of four pixels' mixtures with colours, which are sums of products with opacities, plus 510."""
    return by_255(total // 4)


@T.inline
def tint_luma(luma, labels, at, label_at, label, ink):
    """Mix those of 16 samples that have the label with its ink."""
    wanted, left, colour = lets(label, ink[3], ink[0])
    for x in T.serial(16):
        under: T.let = luma[at + x]
        luma[at + x] = T.Select(labels[label_at + x] == wanted, mix(under, left, colour), under)


@T.inline
def tint_chroma(plane, start, step, covered, opacity, colour):
    """Mix 8 chroma samples with a colour, each by how many of its pixels are covered."""
    (value,) = lets(colour)
    for k in T.serial(8):
        weight: T.let = covered[k] * opacity
        under: T.let = T.Cast("int32", plane[start + k * step])
        plane[start + k * step] = by_1020(under * (1020 - weight) + weight * value + 510)


@T.inline
def tint_cell(
    luma, u, v, y_pitch, u_pitch, v_pitch, chroma_step, labels, label_pitch, inks, sums, height, width, cell_y, cell_x
):
    """Mix a chroma sample, and the pixels that it covers, with the inks of any labels."""
    for k in T.unroll(3):
        sums[k] = 0
    for corner in T.unroll(4):
        y: T.let = T.min(2 * cell_y + corner // 2, height - 1)
        x: T.let = T.min(2 * cell_x + corner % 2, width - 1)
        label: T.let = T.Cast("int32", labels[y * label_pitch + x])
        opacity: T.let = inks[label, 3]
        sums[0] = sums[0] + opacity
        sums[1] = sums[1] + opacity * inks[label, 1]
        sums[2] = sums[2] + opacity * inks[label, 2]
        # An odd edge repeats its pixel, which is drawn once.
        inside: T.let = T.And(y == 2 * cell_y + corner // 2, x == 2 * cell_x + corner % 2)
        if T.And(opacity != 0, inside):
            at: T.let = y * y_pitch + x
            under: T.let = T.Cast("int32", luma[at]) * (255 - opacity)
            luma[at] = by_255(under + inks[label, 0] * opacity + 127)
    if sums[0] != 0:
        u_at: T.let = cell_y * u_pitch + cell_x * chroma_step
        v_at: T.let = cell_y * v_pitch + cell_x * chroma_step
        u[u_at] = by_1020(T.Cast("int32", u[u_at]) * (1020 - sums[0]) + sums[1] + 510)
        v[v_at] = by_1020(T.Cast("int32", v[v_at]) * (1020 - sums[0]) + sums[2] + 510)


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
    (seen,), (ink,), (sums, covered) = variables("uint8", 4), variables("uint16", 4), variables("int32", 3, 8)
    for cell_y in T.serial((height + 1) // 2):
        top: T.let = 2 * cell_y
        bottom: T.let = T.min(top + 1, height - 1)
        for group in T.serial(width // 64 + 1):
            # Most of an image is unlabelled: look at 64 pixels of both rows at once.
            seen[3] = T.uint8(1)
            if T.And(group * 64 + 64 <= width, inks[0, 3] == 0):
                seen[3] = T.uint8(0)
                for x in T.serial(64):
                    at: T.let = group * 64 + x
                    seen[3] = seen[3] | labels[top * label_pitch + at] | labels[bottom * label_pitch + at]
            for slot in T.serial(T.if_then_else(seen[3] == T.uint8(0), 0, 4)):
                part: T.let = group * 4 + slot
                start: T.let = part * 16
                first, second = lets(top * label_pitch + start, bottom * label_pitch + start)
                # Most of the rest has one label, or the edge of one object: look at 16 pixels of both rows for bits
                # that any has, bits that all have, and whether there is a label besides none and one other.
                seen[0] = T.uint8(1)
                seen[1] = T.uint8(0)
                seen[2] = T.uint8(1)
                if T.And(start + 16 <= width, top != bottom):
                    seen[0] = T.uint8(0)
                    seen[1] = T.uint8(255)
                    for x in T.serial(16):
                        seen[0] = seen[0] | labels[first + x] | labels[second + x]
                        seen[1] = seen[1] & labels[first + x] & labels[second + x]
                    if T.And(T.And(seen[0] != seen[1], seen[1] == T.uint8(0)), inks[0, 3] == 0):
                        seen[2] = T.uint8(0)
                        for x in T.serial(16):
                            seen[2] = seen[2] | stranger(labels[first + x], seen[0])
                            seen[2] = seen[2] | stranger(labels[second + x], seen[0])
                if T.Or(seen[0] == seen[1], seen[2] == T.uint8(0)):
                    label: T.let = T.Cast("int32", seen[0])
                    opacity: T.let = inks[label, 3]
                    u_start: T.let = cell_y * u_pitch + part * 8 * chroma_step
                    v_start: T.let = cell_y * v_pitch + part * 8 * chroma_step
                    if opacity != 0:
                        ink[3] = T.Cast("uint16", 255 - opacity)
                        for k in T.unroll(3):
                            ink[k] = T.Cast("uint16", inks[label, k] * opacity + 127)
                        if seen[2] == T.uint8(0):
                            tint_luma(luma, labels, top * y_pitch + start, first, seen[0], ink)
                            tint_luma(luma, labels, bottom * y_pitch + start, second, seen[0], ink)
                            for k in T.serial(8):
                                above = T.meta_var(shown(labels, first + 2 * k, seen[0]))
                                covered[k] = above + shown(labels, second + 2 * k, seen[0])
                            if chroma_step == 1:
                                tint_chroma(u, u_start, 1, covered, opacity, inks[label, 1])
                                tint_chroma(v, v_start, 1, covered, opacity, inks[label, 2])
                            else:
                                tint_chroma(u, u_start, 2, covered, opacity, inks[label, 1])
                                tint_chroma(v, v_start, 2, covered, opacity, inks[label, 2])
                        else:
                            tint(luma, top * y_pitch + start, 16, 1, ink, 0)
                            tint(luma, bottom * y_pitch + start, 16, 1, ink, 0)
                            if chroma_step == 1:
                                tint(u, u_start, 8, 1, ink, 1)
                                tint(v, v_start, 8, 1, ink, 2)
                            else:
                                tint(u, u_start, 8, 2, ink, 1)
                                tint(v, v_start, 8, 2, ink, 2)
                else:
                    for k in T.serial((T.min(16, width - start) + 1) // 2):
                        components = T.meta_var((luma, u, v, y_pitch, u_pitch, v_pitch, chroma_step))
                        tint_cell(*components, labels, label_pitch, inks, sums, height, width, cell_y, start // 2 + k)


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
    (place,) = variables("int64", 1)
    for j in T.serial(n):
        i: T.let = n - 1 - j
        flat, steep = lets(segments[i, 2] - segments[i, 0], segments[i, 3] - segments[i, 1])
        steps: T.let = T.max(T.max(flat, -flat), T.max(steep, -steep))
        # Along x for a flat line and for a point, along y for a steep one.
        down: T.let = T.Cast("int32", T.max(flat, -flat) < T.max(steep, -steep))
        forward: T.let = T.if_then_else(T.if_then_else(down == 1, steep, flat) < 0, -1, 1)
        first: T.let = segments[i, down] - T.if_then_else(steps == 0, line // 2, 0)
        slope: T.let = T.Cast("int64", T.if_then_else(down == 1, flat, steep)) * T.int64(65536)
        each: T.let = slope // T.Cast("int64", T.max(steps, 1))
        along, across = lets(T.if_then_else(down == 1, pitch, step), T.if_then_else(down == 1, step, pitch))
        shift_along, length = lets(
            T.if_then_else(down == 1, shift_y, shift_x), T.if_then_else(down == 1, height, width)
        )
        shift, limit = lets(T.if_then_else(down == 1, shift_x, shift_y), T.if_then_else(down == 1, width, height))
        up: T.let = (T.int32(1) << shift) - 1
        place[0] = T.Cast("int64", segments[i, 1 - down]) * T.int64(65536) + T.int64(32768)
        for k in T.serial(T.if_then_else(steps == 0, line, steps + 1)):
            at: T.let = first + k * forward
            if T.And(at >= 0, (at >> shift_along) < length):
                begin: T.let = T.Cast("int32", place[0] >> T.int64(16)) - line // 2
                low, high = lets(T.max(begin, 0) >> shift, T.min((T.max(begin + line, 0) + up) >> shift, limit))
                for c in T.serial(T.max(high - low, 0)):
                    samples[(at >> shift_along) * along + (low + c) * across] = values[i]
            place[0] = place[0] + each


def variants():
    """Every variant: {global symbol: PrimFunc}."""
    return {"draw_overlay": draw_overlay, "draw_lines": draw_lines} | {
        f"draw_boxes_{sample}": boxes_variant(sample) for sample in SAMPLES
    }
