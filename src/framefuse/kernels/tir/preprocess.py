"""preprocess in TVM TensorIR: planes -> resize -> RGB -> normalise -> model input, in one pass.

    p_k     = separable filter of component k        (1 tap: nearest; 2: linear; more: area, antialias)
    out_c   = min(max(M[c] . p + o[c], lo[c]), hi[c])

Normalisation is folded into M and o, and the clip to 0..255 into lo and hi (`plan.py` says how), so one form serves
every pixel format, colour matrix, range and mean. Layout and sample type of the planes make the variants; all else,
the output's type and memory format included, is an argument, looked at once a row.

Planes and output come as addresses with pitches in elements: read-only and strided memory needs no copy, and a batch
can be a table of them. Tables and scratch come as arrays. Nothing is allocated or threaded in here.

The CPU nest works row by row: blend the source rows (vertical taps) into a float row, gather and sum the horizontal
taps into one float row a component, then colour and store. Where a position has one tap in both directions, samples are
picked from the plane itself; where bytes are wanted just as they were packed, they go by without colour (`plain`).
Every loop is simple enough for LLVM to vectorise; a conditional or a second gather inside one of them would cost
several times its price.

Rows are painted as three planes. Where the output is not that (rows of a frame turned by 90 degrees go down its
columns; NHWC has channels side by side), they are painted into `target`, a scratch of `strip` rows, and laid out from
there, so that whole cache lines are written. Otherwise `target` is the output itself.
"""

from tvm import tirx
from tvm.script import tirx as T

from ._base import SAMPLES, colour, lerp

LAYOUTS = ("planar", "semiplanar", "packed3", "packed4", "gray")
STORES = {"f32": "float32", "f16": "uint16", "bf16": "uint16", "byte": "uint8"}
"""How values are stored, in the order of the argument `store`, and as what they are written."""

PAIR_SCALE = -1 / 32768
"""Unit of the weights in `pairs`: negative, since 16 bits hold -32768 but not 32768."""


def word(value, store, flip):
    """Value as it is written. byte: what the plan added makes truncation round; flipping bit 7 makes it signed."""
    if store == "f16":
        return tirx.reinterpret("uint16", value.astype("float16"))
    if store == "bf16":  # to nearest, halves to even
        bits = tirx.reinterpret("uint32", value)
        last = tirx.bitwise_and(bits >> tirx.const(16, "uint32"), tirx.const(1, "uint32"))
        return ((bits + last + tirx.const(0x7FFF, "uint32")) >> tirx.const(16, "uint32")).astype("uint16")
    if store == "byte":
        return tirx.bitwise_xor(value.astype("int32"), flip).astype("uint8")
    return value


def neighbours(one, other, weights, channels):
    """Of two pixels, each given by 16 bytes from it on: weighted sum of it and the next pixel, in four channels.

    `weights` are eight 16-bit pairs. LLVM knows the form as one instruction (pmaddwd) after a byte shuffle.
    """
    places = [c + n * channels for c in (0, 1, 2, channels - 1) for n in (0, 1)]
    beside = tirx.Shuffle([one, other], [tirx.const(start + i, "int32") for start in (0, 16) for i in places])
    products = beside.astype("int32x16") * weights.astype("int32x16")
    even, odd = (tirx.Shuffle([products], [tirx.const(i, "int32") for i in range(n, 16, 2)]) for n in (0, 1))
    return (even + odd).astype("float32x8")


def variant(layout, sample):
    """The PrimFunc `preprocess_<layout>_<sample>`."""
    dtype = SAMPLES[sample]
    channels = {"packed3": 3, "packed4": 4}.get(layout, 0)
    bytes_pass = channels > 0 and sample == "u8"
    picked_dtype = dtype if channels > 0 else "int32"

    def sample_at(plane, index):
        return plane[index].astype("float32")

    def components(comps, columns, x):
        return [comps[k * columns + x] for k in range(1 if layout == "gray" else 3)]

    @T.inline
    def blend(plane, row, start, stop, first, pitch, taps, weights, at):
        """row = vertical filter of the `taps` rows of a plane whose first element is `first`."""
        if taps == 1:
            for i in T.serial(start, stop):
                row[i] = sample_at(plane, first + i)
        else:
            upper: T.let = weights[at]
            lower: T.let = weights[at + 1]
            for i in T.serial(start, stop):
                row[i] = sample_at(plane, first + i) * upper + sample_at(plane, first + pitch + i) * lower
            for t in T.serial(taps - 2):
                weight: T.let = weights[at + 2 + t]
                from_: T.let = first + (t + 2) * pitch
                for i in T.serial(start, stop):
                    row[i] = row[i] + sample_at(plane, from_ + i) * weight

    @T.inline
    def filtered(row, lanes, index, weights, axis, taps, count):
        """lanes[4x..] = four partial sums of a horizontal filter of `taps` weights a pixel, a multiple of four."""
        for x in T.serial(count):
            for lane in T.vectorized(4):
                lanes[x * 4 + lane] = row[index[axis, x] + lane] * weights[axis, x * taps + lane]
            for q in T.serial(1, taps // 4):
                for lane in T.vectorized(4):
                    lanes[x * 4 + lane] = (
                        lanes[x * 4 + lane]
                        + row[index[axis, x] + q * 4 + lane] * weights[axis, x * taps + q * 4 + lane]
                    )

    @T.inline
    def one_component(plane, comps, row, lanes, picked, index, weights, axis, xtaps, k, columns, count, start, stop,
                      first, pitch, ytaps, yweights, at):  # fmt: skip
        """comps[k] = a plane of its own, resized."""
        if T.And(xtaps == 1, ytaps == 1):
            for x in T.serial(count):
                picked[x] = plane[first + index[axis, x]].astype("int32")
            for x in T.serial(count):
                comps[k * columns + x] = picked[x].astype("float32")
        else:
            blend(plane, row, start, stop, first, pitch, ytaps, yweights, at)
            if xtaps == 1:
                for x in T.serial(count):
                    comps[k * columns + x] = row[index[axis, x]]
            elif xtaps == 2:
                for x in T.serial(count):
                    for lane in T.vectorized(2):
                        lanes[x * 2 + lane] = row[index[axis, x] + lane]
                for x in T.serial(count):
                    comps[k * columns + x] = lerp(lanes[2 * x], lanes[2 * x + 1], weights[axis, x])
            else:
                filtered(row, lanes, index, weights, axis, xtaps, count)
                for x in T.serial(count):
                    comps[k * columns + x] = lanes[4 * x] + lanes[4 * x + 1] + lanes[4 * x + 2] + lanes[4 * x + 3]

    @T.inline
    def two_components(plane, comps, row, lanes, index, weights, xtaps, columns, count, start, stop, first, pitch,
                       ytaps, yweights, at):  # fmt: skip
        """comps[1], comps[2] = a plane of interleaved chroma, resized."""
        blend(plane, row, start, stop, first, pitch, ytaps, yweights, at)
        if xtaps == 1:
            for x in T.serial(count):
                for lane in T.vectorized(2):
                    lanes[x * 2 + lane] = row[index[1, x] + lane]
            for x in T.serial(count):
                comps[columns + x] = lanes[2 * x]
                comps[2 * columns + x] = lanes[2 * x + 1]
        elif xtaps == 2:
            for x in T.serial(count):
                for lane in T.vectorized(4):
                    lanes[x * 4 + lane] = row[index[1, x] + lane]
            for x in T.serial(count):
                comps[columns + x] = lerp(lanes[4 * x], lanes[4 * x + 2], weights[1, x])
                comps[2 * columns + x] = lerp(lanes[4 * x + 1], lanes[4 * x + 3], weights[1, x])
        else:
            filtered(row, lanes, index, weights, 1, xtaps, count)
            for x in T.serial(count):
                comps[columns + x] = lanes[4 * x] + lanes[4 * x + 2]
                comps[2 * columns + x] = lanes[4 * x + 1] + lanes[4 * x + 3]

    @T.inline
    def one_by_one(plane, lanes, index, weights, begin, end, first, second, upper, lower, last):
        """lanes = bilinear taps of packed pixels begin .. end - 1; nothing past the element `last` of a row is read."""
        for x in T.serial(begin, end):
            for c in T.serial(3):
                here: T.let = index[0, x] + c
                beyond: T.let = T.min(here + channels, last)
                lanes[4 * x + c] = (
                    lerp(sample_at(plane, first + here), sample_at(plane, first + beyond), weights[0, x]) * upper
                    + lerp(sample_at(plane, second + here), sample_at(plane, second + beyond), weights[0, x]) * lower
                )

    @T.inline
    def bilinear_bytes(plane, lanes, index, weights, pairs, begin, end, count, last, first, pitch, ytaps, yweights,
                       at):  # fmt: skip
        """lanes = bilinear taps of packed bytes, two pixels at once; 16 bytes can be read from begin .. end - 1."""
        second: T.let = first + pitch * (ytaps - 1)
        upper: T.let = yweights[at]
        lower: T.let = T.if_then_else(ytaps == 1, T.float32(0), yweights[at + ytaps - 1])
        one_by_one(plane, lanes, index, weights, 0, begin, first, second, upper, lower, last)
        for half in T.serial((end - begin) // 2):
            x: T.let = begin + 2 * half
            one: T.let = index[0, x]
            other: T.let = index[0, x + 1]
            lanes[T.ramp(4 * x, 1, 8)] = neighbours(
                plane[T.ramp(first + one, 1, 16)],
                plane[T.ramp(first + other, 1, 16)],
                pairs[T.ramp(8 * x, 1, 16)],
                channels,
            ) * T.broadcast(upper * T.float32(PAIR_SCALE), 8) + neighbours(
                plane[T.ramp(second + one, 1, 16)],
                plane[T.ramp(second + other, 1, 16)],
                pairs[T.ramp(8 * x, 1, 16)],
                channels,
            ) * T.broadcast(lower * T.float32(PAIR_SCALE), 8)
        one_by_one(plane, lanes, index, weights, end, count, first, second, upper, lower, last)

    @T.inline
    def packed_components(plane, comps, row, lanes, picked, index, weights, pairs, begin, end, xtaps, columns, count,
                          start, stop, first, pitch, ytaps, yweights, at, plain):  # fmt: skip
        """comps = three of the interleaved channels of a plane, resized; `plain`: picked = all of them, rounded.

        Four channels are handled at once: there is a fourth, or the next pixel's first.
        """
        if T.And(xtaps == 1, ytaps == 1):
            for x in T.serial(count):
                for lane in T.vectorized(4):
                    picked[x * 4 + lane] = plane[first + index[0, x] + lane]
            if plain == 0:
                for x in T.serial(count):
                    comps[x] = picked[x * 4].astype("float32")
                    comps[columns + x] = picked[x * 4 + 1].astype("float32")
                    comps[2 * columns + x] = picked[x * 4 + 2].astype("float32")
        else:
            if T.And(bytes_pass, T.And(xtaps <= 2, ytaps <= 2)):
                if bytes_pass:
                    bilinear_bytes(plane, lanes, index, weights, pairs, begin, end, count, stop - 1, first, pitch,
                                   ytaps, yweights, at)  # fmt: skip
            else:
                blend(plane, row, start, stop, first, pitch, ytaps, yweights, at)
                if xtaps <= 2:
                    for x in T.serial(count):
                        for lane in T.vectorized(4):
                            lanes[x * 4 + lane] = lerp(
                                row[index[0, x] + lane], row[index[0, x] + channels + lane], weights[0, x]
                            )
                else:
                    for x in T.serial(count):
                        for lane in T.vectorized(4):
                            lanes[x * 4 + lane] = row[index[0, x] + lane] * weights[0, x * xtaps]
                        for t in T.serial(1, xtaps):
                            for lane in T.vectorized(4):
                                lanes[x * 4 + lane] = (
                                    lanes[x * 4 + lane]
                                    + row[index[0, x] + t * channels + lane] * weights[0, x * xtaps + t]
                                )
            if plain == 0:
                for x in T.serial(count):
                    comps[x] = lanes[4 * x]
                    comps[columns + x] = lanes[4 * x + 1]
                    comps[2 * columns + x] = lanes[4 * x + 2]
            else:
                for i in T.serial(4 * count):
                    picked[i] = (lanes[i] + T.float32(0.5)).astype("int32").astype(picked_dtype)

    def painter(store):
        @T.inline
        def fill(target, coefficients, flip, at, channel_pitch, count):
            """Padding: `count` pixels from `at`."""
            for c in T.unroll(3):
                for x in T.serial(count):
                    target[at + c * channel_pitch + x] = word(coefficients[18 + c], store, flip)

        @T.inline
        def paint(target, coefficients, comps, columns, flip, at, channel_pitch, left, count, width):
            """A row: `left` pixels of padding, `count` of the picture, and padding up to `width`."""
            fill(target, coefficients, flip, at, channel_pitch, left)
            for x in T.serial(count):
                target[at + left + x] = word(colour(coefficients, 0, components(comps, columns, x)), store, flip)
                target[at + left + channel_pitch + x] = word(
                    colour(coefficients, 1, components(comps, columns, x)), store, flip
                )
                target[at + left + 2 * channel_pitch + x] = word(
                    colour(coefficients, 2, components(comps, columns, x)), store, flip
                )
            fill(target, coefficients, flip, at + left + count, channel_pitch, width - left - count)

        return fill, paint

    (_, paint_f32), (_, paint_f16), (_, paint_bf16), (fill_byte, paint_byte) = map(painter, STORES)

    @T.inline
    def copy_bytes(target, picked, coefficients, flip, at, channel_pitch, left, count, width, red, blue):
        """A row whose bytes are stored as they are, channel `red` of a pixel first."""
        fill_byte(target, coefficients, flip, at, channel_pitch, left)
        for x in T.serial(count):
            target[at + left + x] = tirx.bitwise_xor(picked[4 * x + red], flip.astype("uint8"))
            target[at + left + channel_pitch + x] = tirx.bitwise_xor(picked[4 * x + 1], flip.astype("uint8"))
            target[at + left + 2 * channel_pitch + x] = tirx.bitwise_xor(picked[4 * x + blue], flip.astype("uint8"))
        fill_byte(target, coefficients, flip, at + left + count, channel_pitch, width - left - count)

    @T.inline
    def lay_out(target, laid, channel_pitch, row_pitch, first, count, strip, width, channel_step, row_step,
                column_step):  # fmt: skip
        """`count` painted rows to where they belong; steps are those of the output. NHWC may have spare channels."""
        if channel_step > 1:
            for c in T.serial(3):
                for x in T.serial(width):
                    for j in T.serial(count):
                        laid[c * channel_step + x * column_step + first + j] = target[
                            c * channel_pitch + j * row_pitch + x
                        ]
        elif strip > 1:
            for x in T.serial(width):
                for j in T.serial(count):
                    to: T.let = x * column_step + (first + j) * row_step
                    for c in T.unroll(3):
                        laid[to + c] = target[c * channel_pitch + j * row_pitch + x]
                    for c in T.serial(3, row_step):
                        laid[to + c] = T.cast(0, laid.dtype)
        elif column_step == 3:
            for x in T.serial(width):
                for c in T.unroll(3):
                    laid[first * row_step + 3 * x + c] = target[c * channel_pitch + x]
        else:
            for i in T.serial(width * column_step):
                laid[first * row_step + i] = T.cast(0, laid.dtype)
            for x in T.serial(width):
                for c in T.unroll(3):
                    laid[first * row_step + x * column_step + c] = target[c * channel_pitch + x]

    @T.prim_func(s_tir=True)
    def kernel(
        address0: T.int64,
        address1: T.int64,
        address2: T.int64,
        pitch0: T.int32,
        pitch1: T.int32,
        pitch2: T.int32,
        target_address: T.int64,
        laid_address: T.int64,
        store: T.int32,
        flip: T.int32,
        plain: T.int32,
        channel_pitch: T.int32,
        row_pitch: T.int32,
        strip: T.int32,
        channel_step: T.int32,
        row_step: T.int32,
        column_step: T.int32,
        height: T.int32,
        width: T.int32,
        top: T.int32,
        left: T.int32,
        content_height: T.int32,
        content_width: T.int32,
        start0: T.int32,
        stop0: T.int32,
        start1: T.int32,
        stop1: T.int32,
        taps0: T.int32,
        taps1: T.int32,
        begin: T.int32,
        end: T.int32,
        column_index: T.handle,
        column_weight: T.handle,
        column_pairs: T.handle,
        row_index: T.handle,
        row_weight: T.handle,
        coefficient: T.handle,
        row_scratch: T.handle,
        lane_scratch: T.handle,
        component_scratch: T.handle,
        picked_scratch: T.handle,
    ):
        T.func_attr({"tirx.noalias": True, "global_symbol": f"preprocess_{layout}_{sample}"})
        index_columns, weight_columns, content_rows, row_taps = T.int32(), T.int32(), T.int32(), T.int32()
        row_size, lane_size, columns3, picked_size = T.int32(), T.int32(), T.int32(), T.int32()
        pair_size = T.int32()
        # The default alignment of 64 bytes would be assumed, not checked; numpy promises 16.
        xi = T.match_buffer(column_index, (2, index_columns), "int32", align=4)
        xw = T.match_buffer(column_weight, (2, weight_columns), "float32", align=4)
        pairs = T.match_buffer(column_pairs, (pair_size,), "int16", align=2)
        yi = T.match_buffer(row_index, (4, content_rows), "int32", align=4)
        yw = T.match_buffer(row_weight, (row_taps,), "float32", align=4)
        coefficients = T.match_buffer(coefficient, (21,), "float32", align=4)
        row = T.match_buffer(row_scratch, (row_size,), "float32", align=4)
        lanes = T.match_buffer(lane_scratch, (lane_size,), "float32", align=4)
        comps = T.match_buffer(component_scratch, (columns3,), "float32", align=4)
        picked = T.match_buffer(picked_scratch, (picked_size,), picked_dtype, align=1)
        plane0 = T.decl_buffer((row_size,), dtype, data=T.reinterpret("handle", address0), align=1)
        plane1 = T.decl_buffer((row_size,), dtype, data=T.reinterpret("handle", address1), align=1)
        plane2 = T.decl_buffer((row_size,), dtype, data=T.reinterpret("handle", address2), align=1)
        target32 = T.decl_buffer((row_size,), "float32", data=T.reinterpret("handle", target_address), align=1)
        target16 = T.decl_buffer((row_size,), "uint16", data=T.reinterpret("handle", target_address), align=1)
        target8 = T.decl_buffer((row_size,), "uint8", data=T.reinterpret("handle", target_address), align=1)
        laid32 = T.decl_buffer((row_size,), "float32", data=T.reinterpret("handle", laid_address), align=1)
        laid16 = T.decl_buffer((row_size,), "uint16", data=T.reinterpret("handle", laid_address), align=1)
        laid8 = T.decl_buffer((row_size,), "uint8", data=T.reinterpret("handle", laid_address), align=1)
        columns: T.let = columns3 // 3
        taps: T.let = row_taps // (2 * content_rows)
        for part in T.serial((height + strip - 1) // strip):
            first: T.let = part * strip
            count: T.let = T.min(strip, height - first)
            for j in T.serial(count):
                r: T.let = first + j - top
                inside: T.let = T.And(r >= 0, r < content_height)
                before: T.let = T.if_then_else(inside, left, width)
                shown: T.let = T.if_then_else(inside, content_width, 0)
                if inside:
                    if channels > 0:
                        packed_components(plane0, comps, row, lanes, picked, xi, xw, pairs, begin, end, taps0, columns,
                                          content_width, start0, stop0, yi[0, r] * pitch0, pitch0, yi[1, r], yw,
                                          r * taps, plain)  # fmt: skip
                    else:
                        one_component(plane0, comps, row, lanes, picked, xi, xw, 0, taps0, 0, columns, content_width,
                                      start0, stop0, yi[0, r] * pitch0, pitch0, yi[1, r], yw, r * taps)  # fmt: skip
                    if layout == "planar":
                        one_component(plane1, comps, row, lanes, picked, xi, xw, 1, taps1, 1, columns, content_width,
                                      start1, stop1, yi[2, r] * pitch1, pitch1, yi[3, r], yw,
                                      (content_rows + r) * taps)  # fmt: skip
                        one_component(plane2, comps, row, lanes, picked, xi, xw, 1, taps1, 2, columns, content_width,
                                      start1, stop1, yi[2, r] * pitch2, pitch2, yi[3, r], yw,
                                      (content_rows + r) * taps)  # fmt: skip
                    if layout == "semiplanar":
                        two_components(plane1, comps, row, lanes, xi, xw, taps1, columns, content_width, start1, stop1,
                                       yi[2, r] * pitch1, pitch1, yi[3, r], yw, (content_rows + r) * taps)  # fmt: skip
                at: T.let = j * row_pitch
                if store == 0:
                    paint_f32(target32, coefficients, comps, columns, flip, at, channel_pitch, before, shown, width)
                elif store == 1:
                    paint_f16(target16, coefficients, comps, columns, flip, at, channel_pitch, before, shown, width)
                elif store == 2:
                    paint_bf16(target16, coefficients, comps, columns, flip, at, channel_pitch, before, shown, width)
                elif plain == 0:
                    paint_byte(target8, coefficients, comps, columns, flip, at, channel_pitch, before, shown, width)
                elif bytes_pass:
                    if plain == 1:
                        copy_bytes(target8, picked, coefficients, flip, at, channel_pitch, before, shown, width, 0, 2)
                    else:
                        copy_bytes(target8, picked, coefficients, flip, at, channel_pitch, before, shown, width, 2, 0)
            if column_step > 0:
                if store == 0:
                    lay_out(target32, laid32, channel_pitch, row_pitch, first, count, strip, width, channel_step,
                            row_step, column_step)  # fmt: skip
                elif store == 3:
                    lay_out(target8, laid8, channel_pitch, row_pitch, first, count, strip, width, channel_step,
                            row_step, column_step)  # fmt: skip
                else:
                    lay_out(target16, laid16, channel_pitch, row_pitch, first, count, strip, width, channel_step,
                            row_step, column_step)  # fmt: skip

    return kernel


def variants():
    """Every variant: {global symbol: PrimFunc}. No format has four packed channels of 16 bits."""
    kinds = [(layout, sample) for layout in LAYOUTS for sample in SAMPLES if (layout, sample) != ("packed4", "u16")]
    return {f"preprocess_{layout}_{sample}": variant(layout, sample) for layout, sample in kinds}
