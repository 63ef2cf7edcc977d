"""Resizing in the CPU kernel of preprocess, for any filter and any CPU: components of an output row from source rows.

Source rows are blended (vertical taps) into a float row, whose horizontal taps are gathered and summed into one float
row per component. Where a position has one tap in both directions, samples are read from the plane directly.
"""

from tvm import tirx
from tvm.script import tirx as T

from ..tir.base import SAMPLES, lerp, lets

PAIR_SCALE = -1 / 32768
"""Unit of the weights in `pairs`: negative, since 16 bits hold -32768 but not 32768."""


def neighbours(one, other, weights, channels):
    """For two pixels, each given by the 16 bytes from it on: weighted sums of it and the next pixel in four channels.

    `weights` are eight 16-bit pairs. LLVM compiles this form to a byte shuffle and one instruction (pmaddwd).
    """
    places = [c + n * channels for c in (0, 1, 2, channels - 1) for n in (0, 1)]
    beside = tirx.Shuffle([one, other], [tirx.const(start + i, "int32") for start in (0, 16) for i in places])
    products = beside.astype("int32x16") * weights.astype("int32x16")
    even, odd = (tirx.Shuffle([products], [tirx.const(i, "int32") for i in range(n, 16, 2)]) for n in (0, 1))
    return (even + odd).astype("float32x8")


def filters(layout, sample):
    """`components` and `packed_components` for planes of a layout and a sample type."""
    channels = {"packed3": 3, "packed4": 4}.get(layout, 0)
    bytes_pass = channels > 0 and sample == "u8"
    picked_dtype = SAMPLES[sample] if channels > 0 else "int32"

    def sample_at(plane, index):
        return plane[index].astype("float32")

    @T.inline
    def blend(plane, row, start, stop, first, pitch, taps, weights, at):
        """row = vertical filter of the `taps` rows of a plane whose first element is `first`."""
        if taps == 1:
            for i in T.serial(start, stop):
                row[i] = sample_at(plane, first + i)
        else:
            upper, lower = lets(weights[at], weights[at + 1])
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
                    lanes[x * 4 + lane] += row[index[axis, x] + q * 4 + lane] * weights[axis, x * taps + q * 4 + lane]

    def total(lanes, at, step):
        value = lanes[at]
        for lane in range(step, 4, step):
            value = value + lanes[at + lane]
        return value

    @T.inline
    def components(together, plane, comps, row, lanes, picked, index, weights, k, xtaps, columns, count, start, stop,
                   first, pitch, ytaps, yweights, at):  # fmt: skip
        """comps[k ...] = a plane, resized, in which `together` components are interleaved: 1, or 2 of chroma."""
        axis = T.meta_var(min(k, 1))
        if T.And(together == 1, T.And(xtaps == 1, ytaps == 1)):
            for x in T.serial(count):
                picked[x] = plane[first + index[axis, x]].astype("int32")
            for x in T.serial(count):
                comps[k * columns + x] = picked[x].astype("float32")
        else:
            blend(plane, row, start, stop, first, pitch, ytaps, yweights, at)
            if T.And(together == 1, xtaps == 1):
                for x in T.serial(count):
                    comps[k * columns + x] = row[index[axis, x]]
            elif xtaps == 1:
                for x in T.serial(count):
                    for lane in T.vectorized(together):
                        lanes[together * x + lane] = row[index[axis, x] + lane]
                for x in T.serial(count):
                    for c in T.unroll(together):
                        comps[(k + c) * columns + x] = lanes[together * x + c]
            elif xtaps == 2:
                for x in T.serial(count):
                    for lane in T.vectorized(2 * together):
                        lanes[2 * together * x + lane] = row[index[axis, x] + lane]
                for x in T.serial(count):
                    for c in T.unroll(together):
                        here = T.meta_var(2 * together * x + c)
                        comps[(k + c) * columns + x] = lerp(lanes[here], lanes[here + together], weights[axis, x])
            else:
                filtered(row, lanes, index, weights, axis, xtaps, count)
                for x in T.serial(count):
                    for c in T.unroll(together):
                        comps[(k + c) * columns + x] = total(lanes, 4 * x + c, together)

    @T.inline
    def one_by_one(plane, lanes, index, weights, begin, end, first, second, upper, lower, last):
        """lanes = bilinear taps of packed pixels begin .. end - 1, without reading past element `last` of a row."""
        for x in T.serial(begin, end):
            for c in T.serial(3):
                here: T.let = index[0, x] + c
                beyond: T.let = T.min(here + channels, last)
                lanes[4 * x + c] = (
                    lerp(sample_at(plane, first + here), sample_at(plane, first + beyond), weights[0, x]) * upper
                    + lerp(sample_at(plane, second + here), sample_at(plane, second + beyond), weights[0, x]) * lower
                )

    def two_pixels(row, weight, plane, one, other, pairs):
        """Horizontal taps of two packed pixels of a row, weighted."""
        both = [plane[T.ramp(row + at, 1, 16)] for at in (one, other)]
        return neighbours(*both, pairs, channels) * T.broadcast(weight * T.float32(PAIR_SCALE), 8)

    @T.inline
    def bilinear_bytes(plane, lanes, index, weights, pairs, begin, end, count, last, first, pitch, ytaps, yweights,
                       at):  # fmt: skip
        """lanes = bilinear taps of packed bytes, two pixels at once; reads 16 bytes from each of begin .. end - 1."""
        second: T.let = first + pitch * (ytaps - 1)
        upper, lower = lets(yweights[at], T.if_then_else(ytaps == 1, T.float32(0), yweights[at + ytaps - 1]))
        one_by_one(plane, lanes, index, weights, 0, begin, first, second, upper, lower, last)
        for half in T.serial((end - begin) // 2):
            x: T.let = begin + 2 * half
            one, other = lets(index[0, x], index[0, x + 1])
            given = T.meta_var((plane, one, other, pairs[T.ramp(8 * x, 1, 16)]))
            lanes[T.ramp(4 * x, 1, 8)] = two_pixels(first, upper, *given) + two_pixels(second, lower, *given)
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
                    for c in T.unroll(3):
                        comps[c * columns + x] = picked[x * 4 + c].astype("float32")
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
                                sample = T.meta_var(row[index[0, x] + t * channels + lane])
                                lanes[x * 4 + lane] += sample * weights[0, x * xtaps + t]
            if plain == 0:
                for x in T.serial(count):
                    for c in T.unroll(3):
                        comps[c * columns + x] = lanes[4 * x + c]
            else:
                for i in T.serial(4 * count):
                    picked[i] = (lanes[i] + T.float32(0.5)).astype("int32").astype(picked_dtype)

    return components, packed_components
