"""The preprocess kernels for CPUs that permute bytes: up to two taps in each direction, on bytes, in registers.

Formula, colour and store are those of `tir_cpu.py`. A block of neighbouring output pixels is computed at once from
windows of each source row: a permute picks both taps of every pixel as 16-bit words, a multiply-add weights them with
exact integers of 1 / unit, and the rest stays in registers; the weights of rows are divided by that unit. The sizes of
blocks and windows are a `Form` of `filters.py`, which depends on the CPU: AVX2 permutes 16 bytes at once, too few for
the pixels of packed images, which `tir_cpu.py` takes there, and AVX-512 VBMI 128.

The tables of windows come from `filters.py` and do not depend on the row. The last block of a row overlaps the one
before it, so there is no remainder. Cache lines that the next row will read and write are prefetched explicitly: with
skipped rows the hardware prefetchers fail, which took longer than all of the arithmetic.
"""

from __future__ import annotations

from types import SimpleNamespace

from tvm import tirx
from tvm.script import tirx as T

from ..tir.base import arrays_at, clipped, colour, switch
from ._tir_store import STORES, WORDS, WRITTEN, filler, move, outputs_at, word
from .filters import FORMS

LAYOUTS = ("planar", "semiplanar", "packed3", "packed4", "gray")


def load(buffer, at, lanes):
    return buffer[tirx.Ramp(at, tirx.const(1, "int64"), lanes)]


def permute_short(plane, starts, picks):
    """Both taps of each pixel as 16-bit words, from the first bytes of the windows and a table of bytes to pick."""
    both = tirx.Shuffle([load(plane, start, 16) for start in starts], [tirx.const(i, "int32") for i in range(32)])
    # An index whose highest bit is set picks a zero.
    return tirx.reinterpret("int16x16", tirx.call_llvm_pure_intrin("uint8x32", "llvm.x86.avx2.pshuf.b", both, picks))


def permute_wide(plane, starts, picks):
    """The same; if the pixels of a block are too far apart for one window, each half of the block has its own."""
    picked = []
    for start in starts:
        low, high = load(plane, start, 64), load(plane, start + 64, 64)
        picked.append(tirx.call_llvm_pure_intrin("uint8x64", "llvm.x86.avx512.vpermi2var.qi.512", low, picks, high))
    if len(picked) == 2:
        picked = [tirx.Shuffle(picked, [tirx.const(i + 64 * (i // 32), "int32") for i in range(64)])]
    return tirx.bitwise_and(tirx.reinterpret("int16x32", picked[0]), tirx.const(255, "int16"))


INSTRUCTIONS = {
    "short": (permute_short, "llvm.x86.avx2.pmadd.wd"),
    "wide": (permute_wide, "llvm.x86.avx512.pmaddw.d.512"),
}
"""How each form picks the taps, and LLVM's intrinsic that adds neighbouring products of 16-bit words."""


def prefetch(buffer, at, *, write):
    """Prefetch the cache line of an element."""
    constants = [tirx.const(value, "int32") for value in (int(write), 3, 1)]  # 3: near; 1: data
    return tirx.call_llvm_intrin("void", "llvm.prefetch.p0", tirx.address_of(buffer[at]), *constants)


def variant(form, layout):
    """The PrimFunc `preprocess_<name of the form>_<layout>`."""
    packed = layout.startswith("packed")
    chroma = layout in ("planar", "semiplanar")
    lanes = form.block
    permute, multiply_add = INSTRUCTIONS[form.name]

    def both_taps(plane, starts, picks, weights):
        """Sums of both horizontal taps of a block of one component of a row, times the unit."""
        sums = tirx.call_llvm_pure_intrin(f"int32x{lanes}", multiply_add, permute(plane, starts, picks), weights)
        return sums.astype(f"float32x{lanes}")

    def nest(luma_rows, halves, store):
        """Write the image's part of a row from `luma_rows` rows of the first plane and two of the others.

        `given` is what the kernel collects for a row: planes, positions in them, tables and colours.
        """

        def component(given, block, k):
            """Component k of a block; of a packed image, before the sum over its rows."""
            kind = 0 if packed or k == 0 else 1
            number = k if layout == "planar" else kind
            at = kind * given.blocks + block
            windows = [T.cast(given.firsts[2 * at + half], "int64") for half in range(halves)]
            table = min(k, 1) if layout == "planar" else k
            chosen = load(given.picks, (table * given.blocks + block) * 4 * lanes, 4 * lanes)
            pairs = load(given.weights, at * 2 * lanes, 2 * lanes)
            own = given.rows[2 * number :][: luma_rows if kind == 0 else 2]
            sums = [both_taps(given.planes[number], [row + window for window in windows], chosen, pairs) for row in own]
            return sums if packed else total(sums, given.scales[2 * kind :])

        def total(sums, scales, value=None):
            for part, scale in zip(sums, scales, strict=False):
                value = part * scale if value is None else value + part * scale
            return value

        def pixels(given, block, channel):
            """An output channel of a block, as it is stored. That of a packed image is one of its channels."""
            coefficients = given.coefficients
            if packed:
                of = (given.red, 1, 2 - given.red)[channel]
                factor = coefficients[3 * channel + of]
                start = tirx.Broadcast(coefficients[9 + channel], lanes)
                sums = total(component(given, block, of), [scale * factor for scale in given.scales], start)
                value = clipped(coefficients, channel, sums)
            else:
                components = [component(given, block, k) for k in range(3 if chroma else 1)]
                value = colour(coefficients, channel, components)
            return word(value, store, given.flip, lanes)

        def ahead(given, number, row, at, beyond=0):
            """Prefetch what the next output row reads of a plane."""
            start = given.rows[2 * number + row] + given.ahead[number]
            T.evaluate(prefetch(given.planes[number], start + at + beyond, write=False))

        def all_ahead(given, window, last, beside):
            for row in range(luma_rows):
                ahead(given, 0, row, window)
                for beyond in (64, 0)[:halves] if packed else ():
                    ahead(given, 0, row, last, beyond)
            for number in range(1, {"planar": 3, "semiplanar": 2}.get(layout, 1)):
                for row in range(2):
                    ahead(given, number, row, beside)

        @T.inline
        def paint(given, count, target, at, channel_pitch, row_pitch):
            for block in T.serial(given.blocks):
                x: T.let = T.min(lanes * block, count - lanes)
                window: T.let = T.cast(given.firsts[2 * block], "int64")
                last: T.let = T.cast(given.firsts[2 * block + 1], "int64")
                beside: T.let = T.cast(given.firsts[2 * (given.blocks * chroma + block)], "int64")
                all_ahead(given, window, last, beside)
                for c in T.unroll(3):
                    T.evaluate(prefetch(target, at + row_pitch + c * channel_pitch + x, write=True))
                target[T.ramp(at + x, T.int64(1), lanes)] = pixels(given, block, 0)
                target[T.ramp(at + channel_pitch + x, T.int64(1), lanes)] = pixels(given, block, 1)
                target[T.ramp(at + 2 * channel_pitch + x, T.int64(1), lanes)] = pixels(given, block, 2)

        return paint

    def painter(store):
        """Write a whole row: `left` pixels of padding, the image, and padding up to `width`."""
        fill = filler(store)
        windows = {number: number for number in (form.halves if packed else form.halves[:1])}
        nests = {(number, rows): nest(rows, number, store) for number in windows for rows in (1, 2)}

        def image(number, taps, *given):
            switch(taps, {1: 1, 2: 2}, lambda rows: nests[number, rows](*given))

        @T.inline
        def paint_row(target, given, halves, taps, count, inside, left, width, at, channel_pitch, row_pitch):
            if inside:
                fill(target, given.coefficients, given.flip, at, channel_pitch, left)
                switch(halves, windows, image, taps, given, count, target, at + left, channel_pitch, row_pitch)
                fill(target, given.coefficients, given.flip, at + left + count, channel_pitch, width - left - count)
            else:
                fill(target, given.coefficients, given.flip, at, channel_pitch, width)

        return paint_row

    rows = {store: painter(store) for store in STORES}

    def paint(store, targets, *given):
        rows[store](targets[WRITTEN[store]], *given)

    @T.prim_func(s_tir=True)
    def kernel(
        address0: T.int64, address1: T.int64, address2: T.int64, pitch0: T.int32, pitch1: T.int32, pitch2: T.int32,
        target_address: T.int64, laid_address: T.int64, store: T.int32, flip: T.int32,
        red: T.int32, channel_pitch: T.int32, row_pitch: T.int32, strip: T.int32, channel_step: T.int32,
        row_step: T.int32, column_step: T.int32, height: T.int32, width: T.int32, top: T.int32,
        left: T.int32, content_height: T.int32, content_width: T.int32, blocks: T.int32,
        halves: T.int32,
        yi: T.Buffer((4, "content_rows"), "int32", align=4), yw: T.Buffer(("row_taps",), "float32", align=4),
        coefficients: T.Buffer((21,), "float32", align=4), firsts: T.Buffer(("firsts_size",), "int32", align=4),
        picks: T.Buffer(("picks_size",), "uint8", align=1), weights: T.Buffer(("weights_size",), "int16", align=2),
    ):  # fmt: skip
        T.func_attr({"tirx.noalias": True, "global_symbol": f"preprocess_{form.name}_{layout}"})
        content_rows, row_taps, picks_size = T.int32(), T.int32(), T.int32()
        plane0, plane1, plane2 = arrays_at((address0, address1, address2), "uint8", picks_size)
        targets = T.meta_var(outputs_at(target_address, picks_size))
        laids = T.meta_var(outputs_at(laid_address, picks_size))
        taps: T.let = row_taps // (2 * content_rows)
        for part in T.serial((height + strip - 1) // strip):
            first: T.let = part * strip
            count: T.let = T.min(strip, height - first)
            for j in T.serial(count):
                inside: T.let = T.And(first + j >= top, first + j < top + content_height)
                r: T.let = T.max(T.min(first + j - top, content_height - 1), 0)
                following: T.let = T.min(r + 1, T.max(content_height - 1, 0))
                row0: T.let = T.cast(yi[0, r], "int64") * pitch0
                row1: T.let = T.cast(yi[2, r], "int64") * pitch1
                row2: T.let = T.cast(yi[2, r], "int64") * pitch2
                row0b: T.let = row0 + T.cast(yi[1, r] - 1, "int64") * pitch0
                row1b: T.let = row1 + T.cast(yi[3, r] - 1, "int64") * pitch1
                row2b: T.let = row2 + T.cast(yi[3, r] - 1, "int64") * pitch2
                ahead0: T.let = T.cast(yi[0, following] - yi[0, r], "int64") * pitch0
                ahead1: T.let = T.cast(yi[2, following] - yi[2, r], "int64") * pitch1
                ahead2: T.let = T.cast(yi[2, following] - yi[2, r], "int64") * pitch2
                scale0: T.let = yw[r * taps]
                scale1: T.let = yw[(content_rows + r) * taps]
                scale0b: T.let = T.if_then_else(yi[1, r] == 1, T.float32(0), yw[r * taps + taps - 1])
                scale1b: T.let = T.if_then_else(yi[3, r] == 1, T.float32(0), yw[(content_rows + r) * taps + taps - 1])
                at: T.let = T.cast(j, "int64") * row_pitch
                wide_blocks: T.let = T.cast(blocks, "int64")
                given = T.meta_var(
                    SimpleNamespace(
                        planes=(plane0, plane1, plane2),
                        rows=(row0, row0b, row1, row1b, row2, row2b),
                        ahead=(ahead0, ahead1, ahead2),
                        scales=(scale0, scale0b, scale1, scale1b),
                        firsts=firsts, picks=picks, weights=weights, blocks=wide_blocks,
                        coefficients=coefficients, red=red, flip=flip,
                    )
                )  # fmt: skip
                columns = T.meta_var(T.cast(content_width, "int64"))
                line = T.meta_var((given, halves, yi[1, r], columns, inside, left, width))
                place = T.meta_var((at, T.cast(channel_pitch, "int64"), row_pitch))
                switch(store, STORES, paint, targets, *line, *place)
            if column_step > 0:
                steps = T.meta_var((strip, width, channel_step, row_step, column_step))
                switch(store, WORDS, move, targets, laids, channel_pitch, row_pitch, first, count, *steps)

    return kernel


def variants():
    """Every variant: {global symbol: PrimFunc}."""
    pairs = [(form, layout) for form in FORMS.values() for layout in LAYOUTS if form.packed or "packed" not in layout]
    return {f"preprocess_{form.name}_{layout}": variant(form, layout) for form, layout in pairs}


def level_of(symbol):
    """The only level for which a kernel is built."""
    return next(level for level, form in FORMS.items() if form.name in symbol)
