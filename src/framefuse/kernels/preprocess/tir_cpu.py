"""preprocess in TVM TensorIR: planes -> resize -> RGB -> normalise -> model input, in one pass.

    p_k     = separable filter of component k        (1 tap: nearest; 2: linear; more: area, antialias)
    out_c   = min(max(M[c] . p + o[c], lo[c]), hi[c])

Normalisation is folded into M and o, and the clip to 0..255 into lo and hi (see `plan.py`), so one form serves every
pixel format, colour matrix, range and mean. There is a variant for each layout and sample type of the planes; all else,
including the output's type and memory format, is an argument that is tested once per row.

Planes and output are addresses with pitches in elements, so that read-only and strided memory needs no copy and a batch
can be a table of addresses. Tables and scratch are arrays, whose alignment is stated: TVM would assume 64 bytes without
a check, and numpy guarantees 16. The kernel neither allocates nor starts threads.

It works row by row: blend the source rows (vertical taps) into a float row, gather and sum the horizontal taps into one
float row per component, then convert and store. Where a position has one tap in both directions, samples are read from
the plane directly; packed bytes that are wanted unchanged skip the colour conversion (`plain`). Every loop is simple
enough for LLVM to vectorise; a conditional or a second gather inside one of them would make it several times slower.

Rows are written as three planes. If the output has another layout (NHWC, or columns for a rotation by 90 degrees), they
are written to `target`, a scratch strip of `strip` rows, and moved from there to `laid`, so that whole cache lines are
written. Otherwise `target` is the output itself.
"""

from __future__ import annotations

from tvm.script import tirx as T

from ..tir.base import SAMPLES, arrays_at, lets, switch
from ._tir_filter import filters
from ._tir_store import STORES, WORDS, move, outputs_at, painters

LAYOUTS = ("planar", "semiplanar", "packed3", "packed4", "gray")


def variant(layout, sample):
    """The PrimFunc `preprocess_<layout>_<sample>`."""
    dtype = SAMPLES[sample]
    channels = {"packed3": 3, "packed4": 4}.get(layout, 0)
    bytes_pass = channels > 0 and sample == "u8"
    picked_dtype = dtype if channels > 0 else "int32"
    components, packed_components = filters(layout, sample)
    paint, copy_bytes = painters(layout)

    @T.prim_func(s_tir=True)
    def kernel(
        address0: T.int64, address1: T.int64, address2: T.int64, pitch0: T.int32, pitch1: T.int32, pitch2: T.int32,
        target_address: T.int64, laid_address: T.int64, store: T.int32, flip: T.int32,
        red: T.int32, channel_pitch: T.int32, row_pitch: T.int32, strip: T.int32, channel_step: T.int32,
        row_step: T.int32, column_step: T.int32, height: T.int32, width: T.int32, top: T.int32,
        left: T.int32, content_height: T.int32, content_width: T.int32, plain: T.int32,
        start0: T.int32, stop0: T.int32, start1: T.int32, stop1: T.int32, taps0: T.int32, taps1: T.int32,
        begin: T.int32, end: T.int32,
        yi: T.Buffer((4, "content_rows"), "int32", align=4), yw: T.Buffer(("row_taps",), "float32", align=4),
        coefficients: T.Buffer((21,), "float32", align=4), xi: T.Buffer((2, "index_columns"), "int32", align=4),
        xw: T.Buffer((2, "weight_columns"), "float32", align=4), pairs: T.Buffer(("pair_size",), "int16", align=2),
        row: T.Buffer(("row_size",), "float32", align=4), lanes: T.Buffer(("lane_size",), "float32", align=4),
        comps: T.Buffer(("columns3",), "float32", align=4), picked: T.Buffer(("picked_size",), picked_dtype, align=1),
    ):  # fmt: skip
        T.func_attr({"tirx.noalias": True, "global_symbol": f"preprocess_{layout}_{sample}"})
        content_rows, row_taps, row_size, columns3 = T.int32(), T.int32(), T.int32(), T.int32()
        plane0, plane1, plane2 = arrays_at((address0, address1, address2), dtype, row_size)
        targets = T.meta_var(outputs_at(target_address, row_size))
        laids = T.meta_var(outputs_at(laid_address, row_size))
        columns: T.let = columns3 // 3
        taps: T.let = row_taps // (2 * content_rows)
        for part in T.serial((height + strip - 1) // strip):
            first: T.let = part * strip
            count: T.let = T.min(strip, height - first)
            for j in T.serial(count):
                r: T.let = first + j - top
                inside: T.let = T.And(r >= 0, r < content_height)
                before, shown = lets(T.if_then_else(inside, left, width), T.if_then_else(inside, content_width, 0))
                if inside:
                    into = T.meta_var((comps, row, lanes, picked, xi, xw))
                    luma = T.meta_var((start0, stop0, yi[0, r] * pitch0, pitch0, yi[1, r], yw, r * taps))
                    chroma = T.meta_var((taps1, columns, content_width, start1, stop1))
                    below = T.meta_var((yi[3, r], yw, (content_rows + r) * taps))
                    if channels > 0:
                        packed_components(plane0, *into, pairs, begin, end, taps0, columns, content_width, *luma, plain)
                    else:
                        components(1, plane0, *into, 0, taps0, columns, content_width, *luma)
                    if layout == "planar":
                        components(1, plane1, *into, 1, *chroma, yi[2, r] * pitch1, pitch1, *below)
                        components(1, plane2, *into, 2, *chroma, yi[2, r] * pitch2, pitch2, *below)
                    if layout == "semiplanar":
                        components(2, plane1, *into, 1, *chroma, yi[2, r] * pitch1, pitch1, *below)
                at: T.let = j * row_pitch
                place = T.meta_var((flip, at, channel_pitch, before, shown, width))
                colours = T.meta_var((coefficients, comps, columns, red))
                if plain == 0:
                    switch(store, STORES, paint, targets, *colours, *place)
                elif bytes_pass:
                    copy_bytes(targets["uint8"], picked, coefficients, *place, red)
            if column_step > 0:
                steps = T.meta_var((strip, width, channel_step, row_step, column_step))
                switch(store, WORDS, move, targets, laids, channel_pitch, row_pitch, first, count, *steps)

    return kernel


def variants():
    """Every variant: {global symbol: PrimFunc}. No format has four packed channels of 16 bits."""
    kinds = [(layout, sample) for layout in LAYOUTS for sample in SAMPLES if (layout, sample) != ("packed4", "u16")]
    return {f"preprocess_{layout}_{sample}": variant(layout, sample) for layout, sample in kinds}
