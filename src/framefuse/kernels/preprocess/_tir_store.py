"""The last steps of the CPU kernels of preprocess: colour conversion, store and output layout."""

from tvm import tirx
from tvm.script import tirx as T

from ..tir.base import array_at, clipped, colour

WRITTEN = {"f32": "float32", "f16": "uint16", "bf16": "uint16", "byte": "uint8"}
"""Kinds of stores and the types that they write."""
STORES = {"f32": 0, "f16": 1, "bf16": 2, "byte": 3}
WORDS = {"float32": 0, "uint8": 3, "uint16": 1}
"""The argument `store` for each kind, and for each type: the last may be any other."""


def word(value, store, flip, lanes=1):
    """A value, or a vector of `lanes` values, in the type that is written.

    byte: the offset that the plan adds makes truncation round; flipping bit 7 makes the byte signed.
    """

    def of(dtype):
        return dtype if lanes == 1 else f"{dtype}x{lanes}"

    if store == "f16":
        return tirx.reinterpret(of("uint16"), value.astype(of("float16")))
    if store == "bf16":  # rounds to nearest, halves to even
        bits = tirx.reinterpret(of("uint32"), value)
        last = tirx.bitwise_and(bits >> tirx.const(16, "uint32"), tirx.const(1, "uint32"))
        return ((bits + last + tirx.const(0x7FFF, "uint32")) >> tirx.const(16, "uint32")).astype(of("uint16"))
    if store == "byte":
        return tirx.bitwise_xor(value.astype(of("int32")), flip).astype(of("uint8"))
    return value


def filler(store):
    """A function that writes padding."""

    @T.inline
    def fill(target, coefficients, flip, at, channel_pitch, count):
        """`count` pixels from `at`."""
        for c in T.unroll(3):
            for x in T.serial(count):
                target[at + c * channel_pitch + x] = word(coefficients[18 + c], store, flip)

    return fill


def painters(layout):
    """Functions that write a row of the image and its padding: `paint` for a kind of store, and `copy_bytes`."""

    def painted(coefficients, channel, comps, columns, x, red, store, flip):
        """An output channel, as written. That of a packed image is one of its own channels, of which `red` is red."""
        if layout.startswith("packed"):
            of = (red, 1, 2 - red)[channel]
            value = coefficients[9 + channel] + coefficients[3 * channel + of] * comps[of * columns + x]
            return word(clipped(coefficients, channel, value), store, flip)
        parts = [comps[k * columns + x] for k in range(1 if layout == "gray" else 3)]
        return word(colour(coefficients, channel, parts), store, flip)

    def painter(store):
        fill = filler(store)

        @T.inline
        def paint_row(target, coefficients, comps, columns, red, flip, at, channel_pitch, left, count, width):
            """A row: `left` pixels of padding, `count` of the image, and padding up to `width`."""
            fill(target, coefficients, flip, at, channel_pitch, left)
            for x in T.serial(count):
                given = T.meta_var((comps, columns, x, red, store, flip))
                target[at + left + x] = painted(coefficients, 0, *given)
                target[at + left + channel_pitch + x] = painted(coefficients, 1, *given)
                target[at + left + 2 * channel_pitch + x] = painted(coefficients, 2, *given)
            fill(target, coefficients, flip, at + left + count, channel_pitch, width - left - count)

        return paint_row

    rows = {store: painter(store) for store in STORES}
    fill_byte = filler("byte")

    def paint(store, targets, *given):
        rows[store](targets[WRITTEN[store]], *given)

    @T.inline
    def copy_bytes(target, picked, coefficients, flip, at, channel_pitch, left, count, width, red):
        """A row whose bytes are stored unchanged, channel `red` of a pixel first."""
        fill_byte(target, coefficients, flip, at, channel_pitch, left)
        for x in T.serial(count):
            target[at + left + x] = tirx.bitwise_xor(picked[4 * x + red], flip.astype("uint8"))
            target[at + left + channel_pitch + x] = tirx.bitwise_xor(picked[4 * x + 1], flip.astype("uint8"))
            target[at + left + 2 * channel_pitch + x] = tirx.bitwise_xor(picked[4 * x + 2 - red], flip.astype("uint8"))
        fill_byte(target, coefficients, flip, at + left + count, channel_pitch, width - left - count)

    return paint, copy_bytes


def outputs_at(address, size):
    """The output at an address as arrays of all types that are written, by type."""
    return {dtype: array_at(address, dtype, size) for dtype in WORDS}


def move(word, targets, laids, *steps):
    """`lay_out` for a type of the output."""
    lay_out(targets[word], laids[word], *steps)


@T.inline
def lay_out(target, laid, channel_pitch, row_pitch, first, count, strip, width, channel_step, row_step,
            column_step):  # fmt: skip
    """Move `count` rows from the scratch strip to the output, whose steps are given. NHWC may have spare channels."""
    if channel_step > 1:
        for c in T.serial(3):
            for x in T.serial(width):
                for j in T.serial(count):
                    laid[c * channel_step + x * column_step + first + j] = target[c * channel_pitch + j * row_pitch + x]
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
