"""preprocess in TVM TensorIR for CUDA: a batch of frames of any sizes in one launch.

Formula and colour are those of `tir_cpu.py`. A thread computes a few neighbouring pixels of a row, so that a warp
writes whole cache lines. blockIdx.z is the frame, which a row of a table on the device describes (`frame_row.py`):
writing the table gives a captured launch other frames.

Taps of `nearest` and `linear` are computed here in exact integers: a float estimate of the quotient is off by at most
one, and the remainder corrects it; the other pixels of the thread follow by addition. Filters of more taps come as
tables. Both clamp to the samples that exist, so what a thread computes outside the image is harmless; padding replaces
it. Or `resize.cu` has applied the tables already, and the components are read as it left them.
"""

from tvm import tirx
from tvm.script import tirx as T

from ..tir.base import LARGE, OUTPUTS, SAMPLES, array_at, colour, lerp, registers, stored, switch, threads, wide
from .frame_row import ADDRESS, AXIS, BYTES, COEFFICIENT, MODES, STORES, WORD, lanes, scratch_pitch, span

LAYOUTS = ("planar", "semiplanar", "packed", "gray")
MEMORIES = {"nchw": 3, "nhwc3": 3, "nhwc4": 4, "nhwc8": 8}
"""Memory formats of the output and their channels; those after the third are 0."""

BLOCKS = {4: (32, 4), 8: (16, 8)}
"""Threads of a block in x and in y, by pixels per thread."""

TAPS = 3
"""Taps of a long filter that a thread loads at once for each of its pixels: more take more registers than there are."""

RESIDENT = {4: 8, 8: 7}
"""Minimum number of resident blocks per multiprocessor, by pixels per thread: the best measured compromise between few
registers and few threads."""


class _Fractions:
    """Words of a row that are floats."""

    def __init__(self, words):
        self.words = words

    def __getitem__(self, index):
        return T.reinterpret("float32", self.words[index])


def variant(layout, sample, memory, alone=False):
    """The PrimFunc `preprocess_<layout>_<sample>_<memory>`, or `..._one` for one frame whose row is a parameter."""
    many = span(layout, memory, alone)
    columns, lines = BLOCKS[many]
    across = columns * many
    size = 1 if sample == "u8" else 2
    bits = 8 * size
    channels = MEMORIES[memory]
    chroma = layout in ("planar", "semiplanar")
    side_by_side = 3 if layout == "packed" else 1
    count = 1 if layout == "gray" else 3

    def place(channel, pixel):
        return channel * many + pixel if memory == "nchw" else pixel * channels + channel

    def begin(element, channel_pitch):
        """Where an element of a thread's pixels goes, if a whole vector begins there."""
        return element // many * wide(channel_pitch) + element % many if memory == "nchw" else element

    def painted(coefficients, channel, comps, first):
        return colour(_Fractions(coefficients), channel, [comps[first + k] for k in range(count)])

    def fraction(word):
        return T.reinterpret("float32", word)

    def load(address):
        return T.call_extern("float32", f"load_{sample}", address)

    def pair(address):
        return T.call_extern("uint32", f"load_pair_{sample}", address)

    def half(number, word):
        """Sample 0 or 1 of the two in a word."""
        if sample == "u8":
            return T.call_extern("float32", "byte_f32", word, number)
        if number == 0:
            return tirx.bitwise_and(word, tirx.const((1 << bits) - 1, "uint32")).astype("float32")
        return (word >> tirx.const(bits, "uint32")).astype("float32")

    def blended(number, words, across, down):
        """One half of each of four words, which are two taps of both axes."""
        upper, lower = (lerp(half(number, words[k]), half(number, words[k + 1]), across) for k in (0, 2))
        return lerp(upper, lower, down)

    @T.inline
    def fetch(words, first, groups, integers, row, at):
        """Load groups of four words from a row, each at once."""
        for g in T.unroll(groups):
            for e in T.vectorized(4):
                words[first + 4 * g + e] = integers[row, at + 4 * g + e]

    @T.inline
    def taps(axis, position, number, wholes, weights, first, stride):
        """Taps of neighbouring positions; position p is in slot first + p * stride: wholes[slot] = the first sample,
        weights[slot] = the weight of the next. `axis` holds the first words of AXIS."""
        # A plain assignment makes a variable; TVM would inline a `T.let` wherever it is used.
        unit = axis[2]
        numerator = axis[0] * position + axis[1]
        whole = (numerator.astype("float32") * fraction(axis[6])).astype("int32")
        rest = numerator - whole * unit
        low = rest < 0
        high = rest >= unit
        whole = whole + T.Select(high, 1, 0) - T.Select(low, 1, 0)
        rest = rest + T.Select(low, unit, 0) - T.Select(high, unit, 0)
        for p in T.unroll(number):
            wholes[first + p * stride] = whole
            weights[first + p * stride] = rest.astype("float32") * fraction(axis[7])
            if p + 1 < number:
                rest = rest + axis[9]
                over = rest >= unit
                whole = whole + axis[8] + T.Select(over, 1, 0)
                rest = rest - T.Select(over, unit, 0)

    @T.inline
    def clamp(axis, number, wholes, offsets, first, stride):
        """offsets[2 slot] and [2 slot + 1] = bytes to both samples of a slot. Beyond the ends both are the last sample,
        so their weights do not matter."""
        for p in T.unroll(number):
            slot = first + p * stride
            offsets[2 * slot] = T.max(T.min(wholes[slot], axis[5]), axis[4]) * axis[3]
            offsets[2 * slot + 1] = T.max(T.min(wholes[slot] + 1, axis[5]), axis[4]) * axis[3]

    @T.inline
    def one(comps, k, plane, add, ups, wys, y, lefts, wxs, x):
        """comps[k] = both taps of both axes of a plane, `add` bytes into a pixel; y and x are the slots of the taps."""
        a = plane + wide(ups[2 * y]) + add
        b = plane + wide(ups[2 * y + 1]) + add
        comps[k] = lerp(
            lerp(load(a + wide(lefts[2 * x])), load(a + wide(lefts[2 * x + 1])), wxs[x]),
            lerp(load(b + wide(lefts[2 * x])), load(b + wide(lefts[2 * x + 1])), wxs[x]),
            wys[y],
        )

    @T.inline
    def two(comps, k, plane, ups, wys, y, lefts, wxs, x):
        """comps[k], comps[k + 1] = the same for a plane of interleaved chroma."""
        words = T.alloc_buffer((4,), "uint32", scope="local")
        a = plane + wide(ups[2 * y])
        b = plane + wide(ups[2 * y + 1])
        words[0] = pair(a + wide(lefts[2 * x]))
        words[1] = pair(a + wide(lefts[2 * x + 1]))
        words[2] = pair(b + wide(lefts[2 * x]))
        words[3] = pair(b + wide(lefts[2 * x + 1]))
        comps[k] = blended(0, words, wxs[x], wys[y])
        comps[k + 1] = blended(1, words, wxs[x], wys[y])

    @T.inline
    def filtered(comps, k, kind, together, integers, row, plane, along_table, across_table, x, first, last, j):
        """comps[3p + k..] = the weighted samples for each pixel p from x on of a plane in which `together` components
        are interleaved. A thread waits for the samples of all its pixels, TAPS taps of each, at once."""
        xs = array_at(along_table, "int32", align=4)
        xw = array_at(along_table, "float32", align=4)
        ys = array_at(across_table, "int32", align=4)
        yw = array_at(across_table, "float32", align=4)
        y = j * integers[row, WORD[f"across_filter{kind}"]]
        step = wide(integers[row, WORD[f"along_pitch{kind}"]])
        pitch = wide(integers[row, WORD[f"across_pitch{kind}"]])
        entries, lefts, counts, most = registers("int32", many, many, many, 1)
        across = T.alloc_buffer((3 * many,), "float32", scope="local")
        most[0] = 0
        for p in T.unroll(many):
            entries[p] = (T.min(T.max(x + p, first), last - 1) - first) * integers[row, WORD[f"along_filter{kind}"]]
            lefts[p] = xs[entries[p]]
            counts[p] = xs[entries[p] + 1]
            most[0] = T.max(most[0], counts[p])
            for c in T.unroll(together):
                comps[3 * p + k + c] = T.float32(0)
        for v in T.serial(ys[y + 1]):
            line = plane + wide(ys[y] + v) * pitch
            for p in T.unroll(many):
                for c in T.unroll(together):
                    across[3 * p + c] = T.float32(0)
            for group in T.serial((most[0] + TAPS - 1) // TAPS):
                for u in T.unroll(TAPS):
                    for p in T.unroll(many):
                        tap = T.min(group * TAPS + u, counts[p] - 1)
                        beyond = group * TAPS + u >= counts[p]
                        weight = T.Select(beyond, T.float32(0), xw[entries[p] + 2 + tap])
                        at = line + wide(lefts[p] + tap) * step
                        for c in T.unroll(together):
                            across[3 * p + c] = across[3 * p + c] + weight * load(at + c * size)
            for p in T.unroll(many):
                for c in T.unroll(together):
                    comps[3 * p + k + c] = comps[3 * p + k + c] + yw[y + 2 + v] * across[3 * p + c]

    @T.inline
    def resized(comps, scratch, x, y, width, height):
        """All components of the pixels, as `resize.cu` left them."""
        planes = array_at(scratch, "float32", align=16)
        words = T.alloc_buffer((count * many,), "float32", scope="local")
        for k in T.unroll(count):
            vector = (k * wide(height) + y) * wide(scratch_pitch(width) // 4) + x // 4
            for g in T.unroll(many // 4):
                for e in T.vectorized(4):
                    words[k * many + 4 * g + e] = planes[4 * (vector + g) + e]
            for p in T.unroll(many):
                comps[3 * p + k] = words[k * many + p]

    @T.inline
    def linear(comps, plane0, plane1, plane2, ups, wys, lefts, wxs):
        """All components of the pixels, without a branch, so that all loads are issued at once."""
        for p in T.unroll(many):
            for k in T.unroll(side_by_side):
                one(comps, 3 * p + k, plane0, k * size, ups, wys, 0, lefts, wxs, 2 * p)
            if layout == "planar":
                one(comps, 3 * p + 1, plane1, 0, ups, wys, 1, lefts, wxs, 2 * p + 1)
                one(comps, 3 * p + 2, plane2, 0, ups, wys, 1, lefts, wxs, 2 * p + 1)
            if layout == "semiplanar":
                two(comps, 3 * p + 1, plane1, ups, wys, 1, lefts, wxs, 2 * p + 1)

    @T.inline
    def near_one(comps, k, line, below, step, add, wholes, wxs, wy, slot, pick):
        """comps[k] as in `one`, for samples `step` bytes apart on two lines of a plane and inside its ends."""
        a = line + wide(wholes[slot]) * step + add
        if pick:
            comps[k] = load(a)
        else:
            b = below + wide(wholes[slot]) * step + add
            comps[k] = lerp(lerp(load(a), load(a + step), wxs[slot]), lerp(load(b), load(b + step), wxs[slot]), wy)

    @T.inline
    def near_two(comps, k, line, below, wholes, wxs, wy, slot):
        """comps[k], comps[k + 1] as in `two`, likewise."""
        words = T.alloc_buffer((4,), "uint32", scope="local")
        a = line + wide(wholes[slot]) * T.int64(2 * size)
        b = below + wide(wholes[slot]) * T.int64(2 * size)
        words[0] = pair(a)
        words[1] = pair(a + 2 * size)
        words[2] = pair(b)
        words[3] = pair(b + 2 * size)
        comps[k] = blended(0, words, wxs[slot], wy)
        comps[k + 1] = blended(1, words, wxs[slot], wy)

    @T.inline
    def plain(comps, pick, along0, plane0, plane1, plane2, ups, wys, wholes, wxs):
        """`linear` for unrotated images away from the ends: one address serves both taps of a line."""
        step0 = wide(along0[3]) if layout == "packed" else T.int64(size)
        line0 = plane0 + wide(ups[0])
        below0 = plane0 + wide(ups[1])
        for p in T.unroll(many):
            for k in T.unroll(side_by_side):
                near_one(comps, 3 * p + k, line0, below0, step0, k * size, wholes, wxs, wys[0], 2 * p, pick)
        if chroma:
            line1 = plane1 + wide(ups[2])
            below1 = plane1 + wide(ups[3])
        if layout == "planar":
            line2 = plane2 + wide(ups[2])
            below2 = plane2 + wide(ups[3])
            for p in T.unroll(many):
                near_one(comps, 3 * p + 1, line1, below1, T.int64(size), 0, wholes, wxs, wys[1], 2 * p + 1, False)
                near_one(comps, 3 * p + 2, line2, below2, T.int64(size), 0, wholes, wxs, wys[1], 2 * p + 1, False)
        if layout == "semiplanar":
            for p in T.unroll(many):
                near_two(comps, 3 * p + 1, line1, below1, wholes, wxs, wys[1], 2 * p + 1)

    @T.inline
    def pixels(values, addresses, integers, row, x, y, width, height):
        """values = neighbouring pixels, converted and laid out."""
        coefficients, extents = registers("int32", 24, 4)
        along0, along1, across0, across1 = registers("int32", len(AXIS), len(AXIS), 8, 8)
        # Load everything in the row except the coefficients before any branch, so that it arrives at once.
        fetch(extents, 0, 1, integers, row, WORD["along_begin"])
        fetch(coefficients, 16, 2, integers, row, COEFFICIENT + 16)
        fetch(along0, 0, 3, integers, row, WORD["along_step0"])
        fetch(across0, 0, 2, integers, row, WORD["across_step0"])
        fetch(along1, 0, 3, integers, row, WORD["along_step1"])
        if chroma:
            fetch(across1, 0, 2, integers, row, WORD["across_step1"])
        plane0 = addresses[row, ADDRESS["plane0"]]
        plane1 = addresses[row, ADDRESS["plane1"]]
        plane2 = addresses[row, ADDRESS["plane2"]]
        if T.And(T.And(y >= extents[2], y < extents[3]), T.And(x + many > extents[0], x < extents[1])):
            lefts, ups, wholes, heights, inner = registers("int32", 4 * many, 4, 2 * many, 2, 1)
            wxs, wys, comps = registers("float32", 2 * many, 2, 3 * many)
            mode = along0[11]
            direct = along1[11]
            if mode < MODES["filtered"]:
                taps(along0, x, many, wholes, wxs, 0, 2)
                taps(across0, y, 1, heights, wys, 0, 1)
                clamp(across0, 1, heights, ups, 0, 1)
                # Whether all taps exist and lie in memory as the pixels do.
                inner[0] = 0
                if T.And(T.And(wholes[0] >= along0[4], wholes[2 * many - 2] < along0[5]), direct != 0):
                    inner[0] = 1
                if chroma:
                    taps(along1, x, many, wholes, wxs, 1, 2)
                    taps(across1, y, 1, heights, wys, 1, 1)
                    clamp(across1, 1, heights, ups, 1, 1)
                    if T.Not(T.And(wholes[1] >= along1[4], wholes[2 * many - 1] < along1[5])):
                        inner[0] = 0
                if inner[0] != 0:
                    if mode == MODES["picked"]:
                        plain(comps, True, along0, plane0, plane1, plane2, ups, wys, wholes, wxs)
                    else:
                        plain(comps, False, along0, plane0, plane1, plane2, ups, wys, wholes, wxs)
                else:
                    clamp(along0, many, wholes, lefts, 0, 2)
                    if chroma:
                        clamp(along1, many, wholes, lefts, 1, 2)
                    linear(comps, plane0, plane1, plane2, ups, wys, lefts, wxs)
            elif T.And(not alone, mode == MODES["resized"]):
                resized(comps, addresses[row, ADDRESS["scratch"]], x, y, width, height)
            else:
                along_table0 = addresses[row, ADDRESS["along0"]]
                across_table0 = addresses[row, ADDRESS["across0"]]
                along_table1 = addresses[row, ADDRESS["along1"]]
                across_table1 = addresses[row, ADDRESS["across1"]]
                j = y - extents[2]
                begin = extents[0]
                end = extents[1]
                filtered(
                    comps, 0, 0, side_by_side, integers, row, plane0, along_table0, across_table0, x, begin, end, j
                )
                if layout == "planar":
                    filtered(comps, 1, 1, 1, integers, row, plane1, along_table1, across_table1, x, begin, end, j)
                    filtered(comps, 2, 1, 1, integers, row, plane2, along_table1, across_table1, x, begin, end, j)
                if layout == "semiplanar":
                    filtered(comps, 1, 1, 2, integers, row, plane1, along_table1, across_table1, x, begin, end, j)
            fetch(coefficients, 0, 4, integers, row, COEFFICIENT)
            for p in T.unroll(many):
                for c in T.unroll(3):
                    values[place(c, p)] = painted(coefficients, c, comps, 3 * p)
            if T.Or(x < extents[0], x + many > extents[1]):
                for p in T.unroll(many):
                    if T.Or(x + p < extents[0], x + p >= extents[1]):
                        for c in T.unroll(3):
                            values[place(c, p)] = fraction(coefficients[18 + c])
        else:
            for p in T.unroll(many):
                for c in T.unroll(3):
                    values[place(c, p)] = fraction(coefficients[18 + c])
        for p in T.unroll(many):
            for c in T.unroll(channels - 3):
                values[place(c + 3, p)] = T.float32(0)

    @T.inline
    def write(output, values, target, x, y, width, channel_pitch, vectors):
        """Store the pixels: as vectors, or one by one up to the end of the row."""
        out = array_at(target, OUTPUTS[output], align=16)
        words = T.alloc_buffer((channels * many,), OUTPUTS[output], scope="local")
        for e in T.unroll(channels * many):
            words[e] = stored(values[e], output)
        at = (wide(y) * wide(width) + wide(x)) * (1 if memory == "nchw" else channels)
        if vectors > 0:
            group = T.meta_var(lanes(layout, memory, output, alone))
            for g in T.unroll(channels * many // group):
                for e in T.vectorized(group):
                    out[at + begin(g * group, channel_pitch) + e] = words[g * group + e]
        else:
            for p in T.unroll(many):
                if x + p < width:
                    for c in T.unroll(channels):
                        out[at + (c * wide(channel_pitch) + p if memory == "nchw" else p * channels + c)] = words[
                            place(c, p)
                        ]

    @T.inline
    def fill(addresses, integers, frame, x, y, width, height, channel_pitch, vectors, store):
        """Neighbouring pixels of one frame."""
        if T.And(x < width, y < height):
            values = T.alloc_buffer((channels * many,), "float32", scope="local")
            pixels(values, addresses, integers, frame, x, y, width, height)
            target = addresses[frame, ADDRESS["output"]]
            switch(store, STORES, write, values, target, x, y, width, channel_pitch, vectors)

    name = f"preprocess_{layout}_{sample}_{memory}{'_one' if alone else ''}"
    attributes = {"tirx.noalias": True, "global_symbol": name}
    attributes |= {"carried": ["table", BYTES]} if alone else {"resident": RESIDENT[many]}
    rows = 1 if alone else LARGE

    @T.prim_func(s_tir=True)
    def kernel(
        table: T.int64, frames: T.int32, width: T.int32, height: T.int32, channel_pitch: T.int32,
        vectors: T.int32, store: T.int32,
    ):  # fmt: skip
        T.func_attr(attributes)
        addresses = T.decl_buffer((rows, BYTES // 8), "int64", data=T.reinterpret("handle", table), align=16)
        integers = T.decl_buffer((rows, BYTES // 4), "int32", data=T.reinterpret("handle", table), align=16)
        grid = T.meta_var(((width + across - 1) // across, (height + lines - 1) // lines, frames))
        frame, block_y, block_x, thread_y, thread_x = threads(grid, (columns, lines))
        x = (block_x * columns + thread_x) * many
        y = block_y * lines + thread_y
        row = T.meta_var(0 if alone else frame)
        fill(addresses, integers, row, x, y, width, height, channel_pitch, vectors, store)

    return kernel


def cuda_variants():
    """Every variant: {symbol: PrimFunc}."""
    functions = [
        variant(layout, sample, memory, alone)
        for layout in LAYOUTS
        for sample in SAMPLES
        for memory in MEMORIES
        for alone in (False, True)
    ]
    return {str(function.attrs["global_symbol"]): function for function in functions}
