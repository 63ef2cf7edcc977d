"""yuv_to_rgb, rgb_to_yuv, normalize and change_layout in TVM TensorIR for the CPU, row by row.

yuv_to_rgb: the contribution of chroma to red, green and blue is computed once for each chroma sample and spread over
the pixels that it covers, in a scratch that stays in the first-level cache; then one loop adds luma, clips and stores.
Packed formats go straight through the matrix. rgb_to_yuv: pixels of one or two rows become floats, then luma, then the
mean for chroma.

There is a variant for each sample type, since it changes the instructions of the loops; pixel format, layout and chroma
siting are tested once per row.
"""

from __future__ import annotations

from tvm import tirx
from tvm.script import tirx as T

from ..tir.base import OUTPUTS, SAMPLES, array_at, arrays_at, colour, lerp, lets, stored, switch

PLANAR, SEMIPLANAR, PACKED3, PACKED4, GRAY = range(5)
"""Codes of frame.PixelFormat.layout, packed layouts by their channels."""
IMAGES = {"u8": "uint8", "f32": "float32", "f16": "float16"}


def rgb_variant(sample, output):
    """The PrimFunc `yuv_to_rgb_<sample>_<output>`."""
    dtype = SAMPLES[sample]

    def sample_at(plane, index):
        return plane[index].astype("float32")

    def packed(coefficients, plane, at, step, c, x):
        """Output channel c of packed pixel x."""
        return stored(colour(coefficients, c, [sample_at(plane, at + step * x + k) for k in range(3)]), output)

    def shaded(gains, low, high, plane, at, tints, c, x):
        """Output channel c of pixel x from luma and the contribution of chroma."""
        return stored(tirx.min(tirx.max(gains[c] * sample_at(plane, at + x) + tints[c, x], low), high), output)

    @T.inline
    def convert(pair, k, plane, at, step, count):
        for i in T.serial(count):
            pair[k, i] = sample_at(plane, at + i * step)

    @T.inline
    def blend(edged, plane, upper, lower, down, step, count):
        """edged = vertical tap of a chroma row, with its ends repeated once."""
        for i in T.serial(count):
            edged[i + 1] = lerp(sample_at(plane, upper + i * step), sample_at(plane, lower + i * step), down)
        edged[0] = edged[1]
        edged[count + 1] = edged[count]

    def across(edged, i, phase, stretch):
        """Chroma at pixel `phase` of the `stretch` pixels of sample i (at i + 1), which is sited in their centre."""
        offset = 2 * phase + 1 - stretch
        neighbour = tirx.Select(offset < 0, edged[i], edged[i + 2])
        return lerp(edged[i + 1], neighbour, tirx.abs(offset).astype("float32") * T.float32(0.5 / stretch))

    @T.inline
    def spread(stretch, pair, k, edged, width):
        for i in T.serial((width + stretch - 1) // stretch):
            for phase in T.unroll(stretch):
                pair[k, i * stretch + phase] = across(edged, i, phase, stretch)

    @T.inline
    def interpolate(pair, k, edged, plane, upper, lower, down, step, width, sub_x):
        """pair[k] = a chroma row at full width."""
        blend(edged, plane, upper, lower, down, step, (width + sub_x - 1) // sub_x)
        if sub_x == 1:
            convert(pair, k, edged, 1, 1, width)
        else:
            switch(sub_x, {2: 2, 4: 4}, spread, pair, k, edged, width)

    @T.inline
    def tint(stretch, tints, coefficients, pair, width):
        """tints = the contribution of chroma; each sample of the pair covers `stretch` pixels."""
        for c in T.unroll(3):
            for i in T.serial((width + stretch - 1) // stretch):
                for phase in T.unroll(stretch):
                    tints[c, i * stretch + phase] = (
                        coefficients[9 + c]
                        + coefficients[3 * c + 1] * pair[0, i]
                        + coefficients[3 * c + 2] * pair[1, i]
                    )

    @T.inline
    def paint(target, to, channel_pitch, interleaved, width, channel_of, *given):
        """A row of the output, whose channel c of pixel x is channel_of(*given, c, x)."""
        if interleaved != 0:
            for x in T.serial(width):
                for c in T.unroll(3):
                    target[to + 3 * x + c] = channel_of(*given, c, x)
        else:
            for c in T.unroll(3):
                for x in T.serial(width):
                    target[to + c * channel_pitch + x] = channel_of(*given, c, x)

    @T.prim_func(s_tir=True)
    def kernel(
        address0: T.int64, address1: T.int64, address2: T.int64, pitch0: T.int32, pitch1: T.int32, pitch2: T.int32,
        target_address: T.int64, layout: T.int32, linear: T.int32, height: T.int32,
        width: T.int32, row_pitch: T.int32, channel_pitch: T.int32, interleaved: T.int32,
        sub_x: T.int32, sub_y: T.int32,
        weights: T.Buffer(("phases",), "float32", align=4), coefficients: T.Buffer((20,), "float32", align=4),
        tints: T.Buffer((3, "row_size"), "float32", align=4), pair: T.Buffer((2, "row_size"), "float32", align=4),
        edged: T.Buffer(("edge_size",), "float32", align=4),
    ):  # fmt: skip
        T.func_attr({"tirx.noalias": True, "global_symbol": f"yuv_to_rgb_{sample}_{output}"})
        row_size = T.int32()
        plane0, plane1, plane2 = arrays_at((address0, address1, address2), dtype, row_size)
        target = array_at(target_address, OUTPUTS[output], row_size)
        gains = T.alloc_buffer((3,), "float32")
        for y in T.serial(height):
            near, phase = lets(y // sub_y, y % sub_y)
            beside: T.let = T.Select(2 * phase + 1 < sub_y, near - 1, near + 1)
            far: T.let = T.min(T.max(beside, 0), (height + sub_y - 1) // sub_y - 1)
            to: T.let = y * row_pitch
            # With nearest chroma, one chroma row serves all the luma rows that it covers.
            if T.And(layout <= SEMIPLANAR, T.Or(linear != 0, phase == 0)):
                columns: T.let = (width + sub_x - 1) // sub_x
                down: T.let = weights[phase]
                if linear != 0:
                    if layout == PLANAR:
                        interpolate(pair, 0, edged, plane1, near * pitch1, far * pitch1, down, 1, width, sub_x)
                        interpolate(pair, 1, edged, plane2, near * pitch2, far * pitch2, down, 1, width, sub_x)
                    else:
                        interpolate(pair, 0, edged, plane1, near * pitch1, far * pitch1, down, 2, width, sub_x)
                        interpolate(pair, 1, edged, plane1, near * pitch1 + 1, far * pitch1 + 1, down, 2, width, sub_x)
                    tint(1, tints, coefficients, pair, width)
                else:
                    if layout == PLANAR:
                        convert(pair, 0, plane1, near * pitch1, 1, columns)
                        convert(pair, 1, plane2, near * pitch2, 1, columns)
                    else:
                        convert(pair, 0, plane1, near * pitch1, 2, columns)
                        convert(pair, 1, plane1, near * pitch1 + 1, 2, columns)
                    switch(sub_x, {1: 1, 2: 2, 4: 4}, tint, tints, coefficients, pair, width)
            if T.And(layout == GRAY, y == 0):
                for c in T.unroll(3):
                    for x in T.serial(width):
                        tints[c, x] = coefficients[9 + c]
            row = T.meta_var((target, to, channel_pitch, interleaved, width))
            if layout == PACKED3:
                paint(*row, packed, coefficients, plane0, y * pitch0, 3)
            elif layout == PACKED4:
                paint(*row, packed, coefficients, plane0, y * pitch0, 4)
            else:
                # Read outside the loops: the compiler cannot know that no output overlaps the table.
                for c in T.unroll(3):
                    gains[c] = coefficients[3 * c]
                low, high = lets(coefficients[12], coefficients[15])
                luma: T.let = y * pitch0
                paint(*row, shaded, gains, low, high, plane0, luma, tints)

    return kernel


def yuv_variant(source):
    """The PrimFunc `rgb_to_yuv_<source>`."""

    def code(coefficients, component, rows, row, x):
        """A component of a pixel: coefficients are three weights and an offset for each of Y, Cb, Cr."""
        value = coefficients[4 * component] * rows[row, x]
        for k in (1, 2):
            value = value + coefficients[4 * component + k] * rows[row + k, x]
        value = value + coefficients[4 * component + 3]
        return stored(tirx.min(tirx.max(value, T.float32(0)), T.float32(255)), "u8")

    @T.inline
    def unpack(step, rows, row, image, at, channel_pitch, width):
        for k in T.unroll(3):
            for x in T.serial(width):
                rows[row + k, x] = image[at + k * channel_pitch + x * step].astype("float32")
            rows[row + k, width] = rows[row + k, width - 1]

    @T.prim_func(s_tir=True)
    def kernel(
        image_address: T.int64, image_pitch: T.int32, channel_pitch: T.int32, step: T.int32,
        height: T.int32, width: T.int32, address0: T.int64, address1: T.int64, address2: T.int64,
        pitch0: T.int32, pitch1: T.int32, pitch2: T.int32, chroma_step: T.int32, subsample: T.int32,
        coefficients: T.Buffer((12,), "float32", align=4), rows: T.Buffer((9, "size"), "float32", align=4),
    ):  # fmt: skip
        T.func_attr({"tirx.noalias": True, "global_symbol": f"rgb_to_yuv_{source}"})
        size = T.int32()
        image = array_at(image_address, IMAGES[source], size)
        plane0, plane1, plane2 = arrays_at((address0, address1, address2), "uint8", size)
        for block in T.serial((height + subsample - 1) // subsample):
            for j in T.serial(subsample):
                # An odd last row is used twice; `unpack` does the same with an odd last column.
                y: T.let = T.min(block * subsample + j, height - 1)
                at: T.let = y * image_pitch
                switch(step, {3: 3, 4: 4, 1: 1}, unpack, rows, 3 * j, image, at, channel_pitch, width)
                for x in T.serial(width):
                    plane0[y * pitch0 + x] = code(coefficients, 0, rows, 3 * j, x)
            means: T.let = 6 * (subsample - 1)
            if subsample == 2:
                for k in T.unroll(3):
                    for i in T.serial((width + 1) // 2):
                        rows[6 + k, i] = (
                            rows[k, 2 * i] + rows[k, 2 * i + 1] + rows[3 + k, 2 * i] + rows[3 + k, 2 * i + 1]
                        ) * T.float32(0.25)
            for i in T.serial((width + subsample - 1) // subsample):
                plane1[block * pitch1 + i * chroma_step] = code(coefficients, 1, rows, means, i)
            for i in T.serial((width + subsample - 1) // subsample):
                plane2[block * pitch2 + i * chroma_step] = code(coefficients, 2, rows, means, i)

    return kernel


def image_variant(source, target, scaled):
    """The PrimFunc `normalize_<source>_<target>` (scaled) or `change_layout_<source>`."""
    name = f"normalize_{source}_{target}" if scaled else f"change_layout_{source}"

    def value(image, index, gains, biases, i):
        if not scaled:
            return image[index]
        return (image[index].astype("float32") * gains[i] + biases[i]).astype(IMAGES[target])

    @T.inline
    def separate(channels, out, image, gains, biases, at, to, to_channel, width):
        for c in T.unroll(channels):
            for x in T.serial(width):
                out[to + c * to_channel + x] = value(image, at + x * channels + c, gains, biases, c)

    @T.inline
    def join(channels, out, image, gains, biases, at, channel_pitch, to, width):
        for x in T.serial(width):
            for c in T.unroll(channels):
                out[to + x * channels + c] = value(image, at + c * channel_pitch + x, gains, biases, c)

    @T.prim_func(s_tir=True)
    def kernel(
        image_address: T.int64, image_pitch: T.int32, image_channel: T.int32, image_step: T.int32,
        out_address: T.int64, out_pitch: T.int32, out_channel: T.int32, out_step: T.int32,
        channels: T.int32, height: T.int32, width: T.int32,
        gains: T.Buffer(("size",), "float32", align=4), biases: T.Buffer(("size",), "float32", align=4),
    ):  # fmt: skip
        T.func_attr({"tirx.noalias": True, "global_symbol": name})
        size = T.int32()
        image = array_at(image_address, IMAGES[source], size)
        out = array_at(out_address, IMAGES[target], size)
        for y in T.serial(height):
            at, to = lets(y * image_pitch, y * out_pitch)
            if T.And(image_step > 1, out_step > 1):
                for i in T.serial(width * channels):
                    out[to + i] = value(image, at + i, gains, biases, i)
            elif image_step > 1:
                switch(channels, {3: 3, 4: 4}, separate, out, image, gains, biases, at, to, out_channel, width)
            elif out_step > 1:
                switch(channels, {3: 3, 4: 4}, join, out, image, gains, biases, at, image_channel, to, width)
            else:
                for c in T.serial(channels):
                    for x in T.serial(width):
                        out[to + c * out_channel + x] = value(image, at + c * image_channel + x, gains, biases, c)

    return kernel


def variants():
    """Every variant: {global symbol: PrimFunc}."""
    kernels = [rgb_variant(sample, output) for sample in SAMPLES for output in ("u8", "f32", "f16")]
    kernels += [yuv_variant(source) for source in ("u8", "f32")]
    kernels += [image_variant(source, target, True) for source in IMAGES for target in ("f32", "f16")]
    kernels += [image_variant(source, source, False) for source in IMAGES]
    return {str(kernel.attrs["global_symbol"]): kernel for kernel in kernels}
