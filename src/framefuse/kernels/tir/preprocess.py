"""preprocess in TVM TensorIR: planes -> resize -> RGB -> normalise -> (3, H, W), in one pass.

    p_k     = bilinear tap of component k            (weights of 0 make it `nearest`)
    out_c   = min(max(M[c] . p + o[c], lo[c]), hi[c])

Normalisation is folded into M and o, and the clip to 0..255 into lo and hi (`plan.py` says how), so one form serves
every pixel format, colour matrix, range and mean. Sample type, layout and output type make the variants; all else is an
argument.

Planes and output come as addresses with pitches in elements: read-only and strided memory needs no copy, and a batch
can be a table of them. Tables and scratch come as arrays. Nothing is allocated or threaded in here.

The CPU nest works row by row: blend two source rows (vertical taps) into a float row, gather horizontal taps side by
side, then let the compiler vectorise colour and store. Every loop is plain enough for LLVM to do that; a conditional or
a second gather inside one of them would cost several times its price.

The rows of a frame turned by 90 degrees go down the columns of the output. They are painted into `target`, a scratch of
`strip` rows, and turned from there, so that whole cache lines are written. Otherwise `target` is the output itself.
"""

from tvm import tirx
from tvm.script import tirx as T

LAYOUTS = ("planar", "semiplanar", "packed3", "packed4", "gray")
SAMPLES = {"u8": "uint8", "u16": "uint16"}
OUTPUTS = {"f32": "float32", "f16": "float16", "u8": "uint8"}


def lerp(a, b, weight):
    return a + (b - a) * weight


def colour(coefficients, channel, components):
    """One output channel from the components of a pixel; coefficients are M (9), o (3), lo (3), hi (3), pad (3)."""
    value = coefficients[9 + channel]
    for column, component in enumerate(components):
        value = value + coefficients[3 * channel + column] * component
    return tirx.min(tirx.max(value, coefficients[12 + channel]), coefficients[15 + channel])


def stored(value, output):
    """Value as it is written: uint8 rounds to nearest, halves up (it is never negative: lo is at least 0)."""
    if output == "u8":
        return (value + tirx.const(0.5, "float32")).astype("int32").astype("uint8")
    return value.astype(OUTPUTS[output])


def variant(layout, sample, output):
    """The PrimFunc `preprocess_<layout>_<sample>_<output>`."""
    dtype = SAMPLES[sample]
    channels = {"packed3": 3, "packed4": 4}.get(layout, 0)

    def components(lanes, weights, x):
        if layout == "gray":
            return (lerp(lanes[0, 2 * x], lanes[0, 2 * x + 1], weights[0, x]),)
        if layout == "planar":
            return (
                lerp(lanes[0, 2 * x], lanes[0, 2 * x + 1], weights[0, x]),
                lerp(lanes[1, 2 * x], lanes[1, 2 * x + 1], weights[1, x]),
                lerp(lanes[2, 2 * x], lanes[2, 2 * x + 1], weights[1, x]),
            )
        if layout == "semiplanar":
            return (
                lerp(lanes[0, 2 * x], lanes[0, 2 * x + 1], weights[0, x]),
                lerp(lanes[1, 4 * x], lanes[1, 4 * x + 2], weights[1, x]),
                lerp(lanes[1, 4 * x + 1], lanes[1, 4 * x + 3], weights[1, x]),
            )
        return lanes[0, 4 * x], lanes[0, 4 * x + 1], lanes[0, 4 * x + 2]

    def sample_at(plane, index):
        return plane[index].astype("float32")

    @T.inline
    def blend(plane, rows, k, start, stop, upper, lower, weight):
        """rows[k] = vertical tap between two rows of a plane, whose first elements are `upper` and `lower`."""
        if weight == T.float32(0):
            for i in T.serial(start, stop):
                rows[k, i] = sample_at(plane, upper + i)
        else:
            for i in T.serial(start, stop):
                rows[k, i] = lerp(sample_at(plane, upper + i), sample_at(plane, lower + i), weight)

    @T.inline
    def gather(rows, lanes, k, index, axis, count, width):
        """lanes[k] = for each output pixel the `width` neighbouring elements that its horizontal taps need."""
        for x in T.serial(count):
            for lane in T.vectorized(width):
                lanes[k, x * width + lane] = rows[k, index[axis, x] + lane]

    @T.inline
    def gather_packed(rows, lanes, index, weights, count):
        """lanes[0] = horizontal tap of four channels at once (the fourth is ignored)."""
        for x in T.serial(count):
            for lane in T.vectorized(4):
                lanes[0, x * 4 + lane] = lerp(
                    rows[0, index[0, x] + lane], rows[0, index[0, x] + channels + lane], weights[0, x]
                )

    @T.inline
    def fill(target, coefficients, at, channel_pitch, count):
        """Padding: `count` pixels from `at`."""
        for c in T.unroll(3):
            for x in T.serial(count):
                target[at + c * channel_pitch + x] = stored(coefficients[18 + c], output)

    @T.inline
    def paint(target, coefficients, lanes, weights, at, channel_pitch, count):
        for x in T.serial(count):
            target[at + x] = stored(colour(coefficients, 0, components(lanes, weights, x)), output)
            target[at + channel_pitch + x] = stored(colour(coefficients, 1, components(lanes, weights, x)), output)
            target[at + 2 * channel_pitch + x] = stored(colour(coefficients, 2, components(lanes, weights, x)), output)

    @T.prim_func(s_tir=True)
    def kernel(
        address0: T.int64,
        address1: T.int64,
        address2: T.int64,
        pitch0: T.int32,
        pitch1: T.int32,
        pitch2: T.int32,
        target_address: T.int64,
        turned_address: T.int64,
        channel_pitch: T.int32,
        row_pitch: T.int32,
        strip: T.int32,
        turned_channel_pitch: T.int32,
        turned_row_pitch: T.int32,
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
        column_index: T.handle,
        column_weight: T.handle,
        row_index: T.handle,
        row_weight: T.handle,
        coefficient: T.handle,
        row_scratch: T.handle,
        lane_scratch: T.handle,
    ):
        T.func_attr({"tirx.noalias": True, "global_symbol": f"preprocess_{layout}_{sample}_{output}"})
        columns, content_rows, row_size, lane_size = T.int32(), T.int32(), T.int32(), T.int32()
        # The default alignment of 64 bytes would be assumed, not checked; numpy promises 16.
        xi = T.match_buffer(column_index, (2, columns), "int32", align=4)
        xw = T.match_buffer(column_weight, (2, columns), "float32", align=4)
        yi = T.match_buffer(row_index, (4, content_rows), "int32", align=4)
        yw = T.match_buffer(row_weight, (2, content_rows), "float32", align=4)
        coefficients = T.match_buffer(coefficient, (21,), "float32", align=4)
        rows = T.match_buffer(row_scratch, (3, row_size), "float32", align=4)
        lanes = T.match_buffer(lane_scratch, (3, lane_size), "float32", align=4)
        plane0 = T.decl_buffer((row_size,), dtype, data=T.reinterpret("handle", address0), align=1)
        plane1 = T.decl_buffer((row_size,), dtype, data=T.reinterpret("handle", address1), align=1)
        plane2 = T.decl_buffer((row_size,), dtype, data=T.reinterpret("handle", address2), align=1)
        target = T.decl_buffer((row_size,), OUTPUTS[output], data=T.reinterpret("handle", target_address), align=1)
        turned = T.decl_buffer((row_size,), OUTPUTS[output], data=T.reinterpret("handle", turned_address), align=1)
        for part in T.serial((height + strip - 1) // strip):
            first: T.let = part * strip
            count: T.let = T.min(strip, height - first)
            for j in T.serial(count):
                y: T.let = first + j
                at: T.let = j * row_pitch
                if T.And(y >= top, y < top + content_height):
                    r: T.let = y - top
                    right: T.let = left + content_width
                    blend(plane0, rows, 0, start0, stop0, yi[0, r] * pitch0, yi[1, r] * pitch0, yw[0, r])
                    if channels > 0:
                        gather_packed(rows, lanes, xi, xw, content_width)
                    else:
                        gather(rows, lanes, 0, xi, 0, content_width, 2)
                    if layout == "planar":
                        blend(plane1, rows, 1, start1, stop1, yi[2, r] * pitch1, yi[3, r] * pitch1, yw[1, r])
                        blend(plane2, rows, 2, start1, stop1, yi[2, r] * pitch2, yi[3, r] * pitch2, yw[1, r])
                        gather(rows, lanes, 1, xi, 1, content_width, 2)
                        gather(rows, lanes, 2, xi, 1, content_width, 2)
                    if layout == "semiplanar":
                        blend(plane1, rows, 1, start1, stop1, yi[2, r] * pitch1, yi[3, r] * pitch1, yw[1, r])
                        gather(rows, lanes, 1, xi, 1, content_width, 4)
                    fill(target, coefficients, at, channel_pitch, left)
                    paint(target, coefficients, lanes, xw, at + left, channel_pitch, content_width)
                    fill(target, coefficients, at + right, channel_pitch, width - right)
                else:
                    fill(target, coefficients, at, channel_pitch, width)
            if turned_row_pitch > 0:
                for c in T.serial(3):
                    for x in T.serial(width):
                        for j in T.serial(count):
                            turned[c * turned_channel_pitch + x * turned_row_pitch + first + j] = target[
                                c * channel_pitch + j * row_pitch + x
                            ]

    return kernel


def variants():
    """Every variant: {global symbol: PrimFunc}."""
    return {
        f"preprocess_{layout}_{sample}_{output}": variant(layout, sample, output)
        for layout in LAYOUTS
        for sample in SAMPLES
        for output in OUTPUTS
    }
