"""yuv_to_rgb, rgb_to_yuv, normalize and change_layout in TVM TensorIR for CUDA.

yuv_to_rgb: a thread computes PIXELS neighbouring pixels of a row, so that a warp writes whole cache lines of float32
planes. If four luma samples and their two chroma pairs are whole words (`paired`), each takes one load. blockIdx.z is
the frame; the addresses of several frames come from a table on the device. rgb_to_yuv: a thread computes 2x2 pixels.
The others: a thread computes a pixel.
"""

from tvm import tirx
from tvm.script import tirx as T

from ..tir.base import OUTPUTS, SAMPLES, array_at, arrays_at, colour, lerp, registers, stored, threads, wide

PLANAR, SEMIPLANAR, PACKED3, PACKED4, GRAY = range(5)
"""As in `tir_cpu.py`."""
IMAGES = {"u8": "uint8", "f32": "float32", "f16": "float16"}

COEFFICIENTS = 20
"""Floats of `call._coefficients`: those of `tir.base.colour`, and two more to make whole vectors."""

PIXELS = 4
COLUMNS, ROWS = 32, 4
"""Threads of a block in x and in y."""
WIDE = COLUMNS * PIXELS


def rgb_variant(sample, output):
    """The PrimFunc `yuv_to_rgb_<sample>_<output>`."""
    name = f"yuv_to_rgb_{sample}_{output}"
    size = 1 if sample == "u8" else 2

    def load(address):
        return T.call_extern("float32", f"load_{sample}", address)

    def sample_at(plane, pitch, y, index):
        return load(plane + (wide(y) * wide(pitch) + wide(index)) * size)

    @T.inline
    def neighbour(near, far, weight, slot, position, shift, count):
        """near[slot], far[slot] = the two samples around a pixel; weight[slot] = the weight of the far one."""
        stretch = 1 << shift
        offset = 2 * (position - (position >> shift << shift)) + 1 - stretch
        near[slot] = position >> shift
        far[slot] = T.min(T.max(near[slot] + T.Select(offset < 0, -1, 1), 0), count - 1)
        weight[slot] = T.Cast("float32", T.max(offset, -offset)) / T.Cast("float32", 2 * stretch)

    @T.inline
    def interpolated(comps, k, plane, pitch, step, near, far, weight):
        upper = plane + wide(near[1]) * wide(pitch) * size
        lower = plane + wide(far[1]) * wide(pitch) * size
        here = wide(near[0] * step) * size
        beside = wide(far[0] * step) * size
        comps[k] = lerp(
            lerp(load(upper + here), load(lower + here), weight[1]),
            lerp(load(upper + beside), load(lower + beside), weight[1]),
            weight[0],
        )

    @T.inline
    def words_of(words, first, count, address):
        """words[first ...] = samples from an address, two or four in each word."""
        for w in T.unroll(count * size // 4):
            words[first + w] = T.call_extern("uint32", "load_pair_u16", address + T.int64(4 * w))

    def sample_of(words, first, k):
        """Sample k in words."""
        part = words[first + k * size // 4] >> T.Cast("uint32", k * size % 4 * 8)
        return tirx.bitwise_and(part, T.uint32(255 if size == 1 else 65535)).astype("float32")

    @T.prim_func(s_tir=True)
    def kernel(
        table: T.int64, address0: T.int64, address1: T.int64, address2: T.int64, target: T.int64,
        pitch0: T.int32, pitch1: T.int32, pitch2: T.int32, layout: T.int32, shift_x: T.int32, shift_y: T.int32,
        linear: T.int32, height: T.int32, width: T.int32, frames: T.int32, row_pitch: T.int32,
        channel_pitch: T.int32, interleaved: T.int32, vectors: T.int32, paired: T.int32,
        numbers: T.int64,
    ):  # fmt: skip
        T.func_attr({"tirx.noalias": True, "global_symbol": name, "carried": ["numbers", 4 * COEFFICIENTS]})
        rows = array_at(table, "int64", align=8)
        coefficients = array_at(numbers, "float32", align=4)
        grid = T.meta_var(((width + WIDE - 1) // WIDE, (height + ROWS - 1) // ROWS, frames))
        frame, block_y, block_x, thread_y, thread_x = threads(grid, (COLUMNS, ROWS))
        x = (block_x * COLUMNS + thread_x) * PIXELS
        y = block_y * ROWS + thread_y
        if T.And(x < width, y < height):
            comps, weight = registers("float32", 3 * PIXELS, 2)
            words = T.alloc_buffer((2 * size,), "uint32", scope="local")
            near, far = registers("int32", 2, 2)
            results = T.alloc_buffer((3 * PIXELS,), OUTPUTS[output], scope="local")
            plane0, plane1, plane2, written = address0, address1, address2, target
            if table != T.int64(0):
                plane0 = rows[frame * 4]
                plane1 = rows[frame * 4 + 1]
                plane2 = rows[frame * 4 + 2]
                written = rows[frame * 4 + 3]
            if paired != 0:
                words_of(words, 0, PIXELS, plane0 + (wide(y) * wide(pitch0) + wide(x)) * size)
                chroma = T.meta_var(wide(y >> shift_y) * wide(pitch1) + wide(x))
                words_of(words, size, PIXELS, plane1 + chroma * size)
                for p in T.unroll(PIXELS):
                    comps[3 * p] = sample_of(words, 0, p)
                    comps[3 * p + 1] = sample_of(words, size, p // 2 * 2)
                    comps[3 * p + 2] = sample_of(words, size, p // 2 * 2 + 1)
            else:
                for p in T.unroll(PIXELS):
                    comps[3 * p + 1] = T.float32(0)
                    comps[3 * p + 2] = T.float32(0)
                    column = T.min(x + p, width - 1)
                    if layout == PACKED3:
                        for k in T.unroll(3):
                            comps[3 * p + k] = sample_at(plane0, pitch0, y, 3 * column + k)
                    elif layout == PACKED4:
                        for k in T.unroll(3):
                            comps[3 * p + k] = sample_at(plane0, pitch0, y, 4 * column + k)
                    else:
                        comps[3 * p] = sample_at(plane0, pitch0, y, column)
                        if layout != GRAY:
                            # In semiplanar frames U and V are interleaved.
                            planar = layout == PLANAR
                            other = T.Select(planar, plane2, plane1 + T.int64(size))
                            pitch = T.Select(planar, pitch2, pitch1)
                            step = T.Select(planar, 1, 2)
                            if linear == 0:
                                row = y >> shift_y
                                index = (column >> shift_x) * step
                                comps[3 * p + 1] = sample_at(plane1, pitch1, row, index)
                                comps[3 * p + 2] = sample_at(other, pitch, row, index)
                            else:
                                down = (height + (1 << shift_y) - 1) >> shift_y
                                across = (width + (1 << shift_x) - 1) >> shift_x
                                neighbour(near, far, weight, 0, column, shift_x, across)
                                neighbour(near, far, weight, 1, y, shift_y, down)
                                taps = T.meta_var((step, near, far, weight))
                                interpolated(comps, 3 * p + 1, plane1, pitch1, *taps)
                                interpolated(comps, 3 * p + 2, other, pitch, *taps)
            for p in T.unroll(PIXELS):
                parts = T.meta_var([comps[3 * p + k] for k in range(3)])
                if interleaved != 0:
                    for c in T.unroll(3):
                        results[p * 3 + c] = stored(colour(coefficients, c, parts), output)
                else:
                    for c in T.unroll(3):
                        results[c * PIXELS + p] = stored(colour(coefficients, c, parts), output)
            out = array_at(written, OUTPUTS[output], align=16)
            at = wide(y) * wide(row_pitch)
            if vectors != 0:
                start = at + wide(x) * T.Select(interleaved != 0, T.int64(3), T.int64(1))
                step = T.Select(interleaved != 0, T.int64(PIXELS), wide(channel_pitch))
                for g in T.unroll(3):
                    for e in T.vectorized(PIXELS):
                        out[start + wide(g) * step + e] = results[g * PIXELS + e]
            else:
                for p in T.unroll(PIXELS):
                    if x + p < width:
                        for c in T.unroll(3):
                            if interleaved != 0:
                                out[at + wide(3 * (x + p) + c)] = results[p * 3 + c]
                            else:
                                out[at + wide(c) * wide(channel_pitch) + wide(x + p)] = results[c * PIXELS + p]

    return kernel


def yuv_variant(source):
    """The PrimFunc `rgb_to_yuv_<source>`."""
    size = 1 if source == "u8" else 4

    def load(address):
        return T.call_extern("float32", f"load_{source}", address)

    def code(coefficients, component, rgb):
        """A component of a pixel: coefficients are three weights and an offset for each of Y, Cb, Cr."""
        value = coefficients[4 * component + 3]
        for k in range(3):
            value = value + coefficients[4 * component + k] * rgb[k]
        return stored(tirx.min(tirx.max(value, T.float32(0)), T.float32(255)), "u8")

    @T.prim_func(s_tir=True)
    def kernel(
        image: T.int64, image_pitch: T.int32, channel_pitch: T.int32, step: T.int32,
        height: T.int32, width: T.int32, address0: T.int64, address1: T.int64, address2: T.int64,
        pitch0: T.int32, pitch1: T.int32, pitch2: T.int32, chroma_step: T.int32, subsample: T.int32,
        numbers: T.int64,
    ):  # fmt: skip
        T.func_attr({"tirx.noalias": True, "global_symbol": f"rgb_to_yuv_{source}", "carried": ["numbers", 48]})
        coefficients = array_at(numbers, "float32", align=4)
        plane0, plane1, plane2 = arrays_at((address0, address1, address2), "uint8")
        grid = T.meta_var(((width + 63) // 64, (height + 15) // 16))
        block_y, block_x, thread_y, thread_x = threads(grid, (32, 8))
        left = (block_x * 32 + thread_x) * 2
        top = (block_y * 8 + thread_y) * 2
        if T.And(left < width, top < height):
            sums, rgb = registers("float32", 3, 3)
            luma = T.meta_var(code(coefficients, 0, rgb))
            cb = T.meta_var(code(coefficients, 1, rgb))
            cr = T.meta_var(code(coefficients, 2, rgb))
            for c in T.unroll(3):
                sums[c] = T.float32(0)
            for j in T.unroll(2):
                for i in T.unroll(2):
                    # At an odd edge the last pixel is read twice, and written twice with one value.
                    x = T.min(left + i, width - 1)
                    y = T.min(top + j, height - 1)
                    for c in T.unroll(3):
                        at = wide(y) * wide(image_pitch) + wide(c) * wide(channel_pitch) + wide(x * step)
                        rgb[c] = load(image + at * size)
                        sums[c] = sums[c] + rgb[c]
                    plane0[wide(y) * wide(pitch0) + wide(x)] = luma
                    if subsample == 1:
                        plane1[wide(y) * wide(pitch1) + wide(x * chroma_step)] = cb
                        plane2[wide(y) * wide(pitch2) + wide(x * chroma_step)] = cr
            if subsample == 2:
                for c in T.unroll(3):
                    rgb[c] = sums[c] * T.float32(0.25)
                column = wide((left >> 1) * chroma_step)
                plane1[wide(top >> 1) * wide(pitch1) + column] = cb
                plane2[wide(top >> 1) * wide(pitch2) + column] = cr

    return kernel


def image_variant(source, target, scaled):
    """The PrimFunc `normalize_<source>_<target>` (scaled) or `change_layout_<source>`."""
    name = f"normalize_{source}_{target}" if scaled else f"change_layout_{source}"
    attributes = {"tirx.noalias": True, "global_symbol": name} | ({"carried": ["numbers", 32]} if scaled else {})

    @T.prim_func(s_tir=True)
    def kernel(
        image_address: T.int64, image_pitch: T.int32, image_channel: T.int32, image_step: T.int32,
        image_stride: T.int64, out_address: T.int64, out_pitch: T.int32, out_channel: T.int32, out_step: T.int32,
        out_stride: T.int64, images: T.int32, channels: T.int32, height: T.int32, width: T.int32,
        numbers: T.int64,
    ):  # fmt: skip
        T.func_attr(attributes)
        scales = array_at(numbers, "float32", align=4)
        image = array_at(image_address, IMAGES[source])
        out = array_at(out_address, IMAGES[target])
        grid = T.meta_var(((width + 63) // 64, (height + 3) // 4, images))
        number, block_y, block_x, thread_y, thread_x = threads(grid, (64, 4))
        x = block_x * 64 + thread_x
        y = block_y * 4 + thread_y
        if T.And(x < width, y < height):
            at = wide(number) * image_stride + wide(y) * wide(image_pitch) + wide(x * image_step)
            to = wide(number) * out_stride + wide(y) * wide(out_pitch) + wide(x * out_step)
            for c in T.unroll(4):
                if c < channels:
                    value = T.meta_var(image[at + wide(c) * wide(image_channel)])
                    if scaled:
                        out[to + wide(c) * wide(out_channel)] = T.Cast(
                            IMAGES[target], T.Cast("float32", value) * scales[c] + scales[4 + c]
                        )
                    else:
                        out[to + wide(c) * wide(out_channel)] = value

    return kernel


def cuda_variants():
    """Every variant: {symbol: PrimFunc}."""
    kernels = [rgb_variant(sample, output) for sample in SAMPLES for output in ("u8", "f32", "f16")]
    kernels += [yuv_variant(source) for source in ("u8", "f32")]
    kernels += [image_variant(source, target, True) for source in IMAGES for target in ("f32", "f16")]
    kernels += [image_variant(source, source, False) for source in IMAGES]
    return {str(kernel.attrs["global_symbol"]): kernel for kernel in kernels}
