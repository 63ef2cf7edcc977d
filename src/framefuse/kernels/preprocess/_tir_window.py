"""The preprocess kernel for CPUs that permute bytes: up to two taps in each direction, on bytes, in registers.

Formula, colour and store are those of `tir_cpu.py`. A block of neighbouring output pixels is computed at once from
windows of each source row: a permute picks both taps of every pixel as 16-bit words, a multiply-add weights them with
exact integers of 1 / unit, and the rest stays in registers; the weights of rows are divided by that unit. The sizes of
blocks and windows are a `Form`, which depends on the CPU.

The tables of windows come from `windows.py` and do not depend on the row. The last block of a row overlaps the one
before it, so there is no remainder. Cache lines that the next row will read and write are prefetched explicitly: with
skipped rows the hardware prefetchers fail, which took longer than all of the arithmetic.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.script import tirx as T

from ..tir.base import clipped, colour
from ._tir_store import STORES, filler, lay_out, word


@dataclass(frozen=True)
class Form:
    """Sizes and instructions of the kernel for a CPU."""

    name: str
    """The kernels are called `preprocess_<name>_<layout>`."""
    block: int
    """Output pixels that are computed at once."""
    halves: tuple[int, ...]
    """Possible numbers of windows of a block of a packed image; other layouts use the first."""
    permute: Callable[..., Any]
    """(plane, first bytes of the windows, table of bytes to pick) -> both taps of each pixel as 16-bit words."""
    multiply_add: str
    """LLVM intrinsic that adds neighbouring products of 16-bit words."""


def prefetch(buffer, at, *, write):
    """Prefetch the cache line of an element."""
    constants = [tirx.const(value, "int32") for value in (int(write), 3, 1)]  # 3: near; 1: data
    return tirx.call_llvm_intrin("void", "llvm.prefetch.p0", tirx.address_of(buffer[at]), *constants)


def load(buffer, at, lanes):
    return buffer[tirx.Ramp(at, tirx.const(1, "int64"), lanes)]


def variant(form, layout):
    """The PrimFunc `preprocess_<name of the form>_<layout>`."""
    packed = layout.startswith("packed")
    chroma = layout in ("planar", "semiplanar")
    lanes = form.block

    def both_taps(plane, starts, picks, weights):
        """Sums of both horizontal taps of a block of one component of a row, times the unit."""
        words = form.permute(plane, starts, picks)
        return tirx.call_llvm_pure_intrin(f"int32x{lanes}", form.multiply_add, words, weights).astype(
            f"float32x{lanes}"
        )

    def nest(luma_rows, halves, store):
        """Write the image's part of a row from `luma_rows` rows of the first plane and two of the others."""

        def component(planes, rows, scales, firsts, picks, weights, blocks, block, k):
            """Component k of a block; of a packed image, before the sum over its rows."""
            kind = 0 if packed or k == 0 else 1
            plane = planes[k if layout == "planar" else kind]
            count = luma_rows if kind == 0 else 2
            at = kind * blocks + block
            windows = [T.cast(firsts[2 * at + half], "int64") for half in range(halves)]
            table = min(k, 1) if layout == "planar" else k
            chosen = load(picks, (table * blocks + block) * 4 * lanes, 4 * lanes)
            pairs = load(weights, at * 2 * lanes, 2 * lanes)
            own = rows[2 * (k if layout == "planar" else kind) :][:count]
            sums = [both_taps(plane, [row + window for window in windows], chosen, pairs) for row in own]
            return sums if packed else total(sums, scales[2 * kind :])

        def total(sums, scales, value=None):
            for part, scale in zip(sums, scales, strict=False):
                value = part * scale if value is None else value + part * scale
            return value

        def pixels(planes, rows, scales, firsts, picks, weights, blocks, block, coefficients, red, channel):
            """An output channel of a block. That of a packed image is one of its channels, of which `red` is red."""
            given = (planes, rows, scales, firsts, picks, weights, blocks, block)
            if not packed:
                return colour(coefficients, channel, [component(*given, k) for k in range(3 if chroma else 1)])
            of = (red, 1, 2 - red)[channel]
            sums = component(*given, of)
            factor = coefficients[3 * channel + of]
            start = tirx.Broadcast(coefficients[9 + channel], lanes)
            return clipped(coefficients, channel, total(sums, [scale * factor for scale in scales], start))

        @T.inline
        def paint(plane0, plane1, plane2, row0, row0b, row1, row1b, row2, row2b, ahead0, ahead1, ahead2, scale0,
                  scale0b, scale1, scale1b, firsts, picks, weights, blocks, count, coefficients, red, flip, target, at,
                  channel_pitch, row_pitch):  # fmt: skip
            for block in T.serial(blocks):
                x: T.let = T.min(lanes * block, count - lanes)
                window: T.let = T.cast(firsts[2 * block], "int64")
                last: T.let = T.cast(firsts[2 * block + 1], "int64")
                T.evaluate(prefetch(plane0, row0 + ahead0 + window, write=False))
                if packed:
                    T.evaluate(prefetch(plane0, row0 + ahead0 + last + 64, write=False))
                    if halves == 2:
                        T.evaluate(prefetch(plane0, row0 + ahead0 + last, write=False))
                if luma_rows == 2:
                    T.evaluate(prefetch(plane0, row0b + ahead0 + window, write=False))
                    if packed:
                        T.evaluate(prefetch(plane0, row0b + ahead0 + last + 64, write=False))
                        if halves == 2:
                            T.evaluate(prefetch(plane0, row0b + ahead0 + last, write=False))
                if chroma:
                    beside: T.let = T.cast(firsts[2 * (blocks + block)], "int64")
                    T.evaluate(prefetch(plane1, row1 + ahead1 + beside, write=False))
                    T.evaluate(prefetch(plane1, row1b + ahead1 + beside, write=False))
                    if layout == "planar":
                        T.evaluate(prefetch(plane2, row2 + ahead2 + beside, write=False))
                        T.evaluate(prefetch(plane2, row2b + ahead2 + beside, write=False))
                for c in T.unroll(3):
                    T.evaluate(prefetch(target, at + row_pitch + c * channel_pitch + x, write=True))
                target[T.ramp(at + x, T.int64(1), lanes)] = word(
                    pixels((plane0, plane1, plane2), (row0, row0b, row1, row1b, row2, row2b),
                           (scale0, scale0b, scale1, scale1b), firsts, picks, weights, blocks, block, coefficients, red,
                           0), store, flip, lanes)  # fmt: skip
                target[T.ramp(at + channel_pitch + x, T.int64(1), lanes)] = word(
                    pixels((plane0, plane1, plane2), (row0, row0b, row1, row1b, row2, row2b),
                           (scale0, scale0b, scale1, scale1b), firsts, picks, weights, blocks, block, coefficients, red,
                           1), store, flip, lanes)  # fmt: skip
                target[T.ramp(at + 2 * channel_pitch + x, T.int64(1), lanes)] = word(
                    pixels((plane0, plane1, plane2), (row0, row0b, row1, row1b, row2, row2b),
                           (scale0, scale0b, scale1, scale1b), firsts, picks, weights, blocks, block, coefficients, red,
                           2), store, flip, lanes)  # fmt: skip

        return paint

    def painter(store):
        """Write a whole row: `left` pixels of padding, the image, and padding up to `width`."""
        fill = filler(store)
        near, far = form.halves[0], form.halves[-1] if packed else form.halves[0]
        one_near, two_near = nest(1, near, store), nest(2, near, store)
        one_far, two_far = (nest(1, far, store), nest(2, far, store)) if far != near else (one_near, two_near)

        @T.inline
        def paint_row(plane0, plane1, plane2, row0, row0b, row1, row1b, row2, row2b, ahead0, ahead1, ahead2, scale0,
                      scale0b, scale1, scale1b, firsts, picks, weights, blocks, halves, taps, count, coefficients, red,
                      flip, target, at, channel_pitch, row_pitch, inside, left, width):  # fmt: skip
            if inside:
                fill(target, coefficients, flip, at, channel_pitch, left)
                if halves == near:
                    if taps == 1:
                        one_near(plane0, plane1, plane2, row0, row0b, row1, row1b, row2, row2b, ahead0, ahead1, ahead2,
                                 scale0, scale0b, scale1, scale1b, firsts, picks, weights, blocks, count, coefficients,
                                 red, flip, target, at + left, channel_pitch, row_pitch)  # fmt: skip
                    else:
                        two_near(plane0, plane1, plane2, row0, row0b, row1, row1b, row2, row2b, ahead0, ahead1, ahead2,
                                 scale0, scale0b, scale1, scale1b, firsts, picks, weights, blocks, count, coefficients,
                                 red, flip, target, at + left, channel_pitch, row_pitch)  # fmt: skip
                elif far != near:
                    if taps == 1:
                        one_far(plane0, plane1, plane2, row0, row0b, row1, row1b, row2, row2b, ahead0, ahead1, ahead2,
                                scale0, scale0b, scale1, scale1b, firsts, picks, weights, blocks, count, coefficients,
                                red, flip, target, at + left, channel_pitch, row_pitch)  # fmt: skip
                    else:
                        two_far(plane0, plane1, plane2, row0, row0b, row1, row1b, row2, row2b, ahead0, ahead1, ahead2,
                                scale0, scale0b, scale1, scale1b, firsts, picks, weights, blocks, count, coefficients,
                                red, flip, target, at + left, channel_pitch, row_pitch)  # fmt: skip
                fill(target, coefficients, flip, at + left + count, channel_pitch, width - left - count)
            else:
                fill(target, coefficients, flip, at, channel_pitch, width)

        return paint_row

    paint_f32, paint_f16, paint_bf16, paint_byte = map(painter, STORES)

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
        red: T.int32,
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
        blocks: T.int32,
        halves: T.int32,
        row_index: T.handle,
        row_weight: T.handle,
        coefficient: T.handle,
        window_first: T.handle,
        window_index: T.handle,
        window_pairs: T.handle,
    ):
        T.func_attr({"tirx.noalias": True, "global_symbol": f"preprocess_{form.name}_{layout}"})
        content_rows, row_taps, firsts_size = T.int32(), T.int32(), T.int32()
        picks_size, weights_size = T.int32(), T.int32()
        # TVM would assume its default alignment of 64 bytes without a check; numpy guarantees 16.
        yi = T.match_buffer(row_index, (4, content_rows), "int32", align=4)
        yw = T.match_buffer(row_weight, (row_taps,), "float32", align=4)
        coefficients = T.match_buffer(coefficient, (21,), "float32", align=4)
        firsts = T.match_buffer(window_first, (firsts_size,), "int32", align=4)
        picks = T.match_buffer(window_index, (picks_size,), "uint8", align=1)
        weights = T.match_buffer(window_pairs, (weights_size,), "int16", align=2)
        plane0 = T.decl_buffer((picks_size,), "uint8", data=T.reinterpret("handle", address0), align=1)
        plane1 = T.decl_buffer((picks_size,), "uint8", data=T.reinterpret("handle", address1), align=1)
        plane2 = T.decl_buffer((picks_size,), "uint8", data=T.reinterpret("handle", address2), align=1)
        target32 = T.decl_buffer((picks_size,), "float32", data=T.reinterpret("handle", target_address), align=1)
        target16 = T.decl_buffer((picks_size,), "uint16", data=T.reinterpret("handle", target_address), align=1)
        target8 = T.decl_buffer((picks_size,), "uint8", data=T.reinterpret("handle", target_address), align=1)
        laid32 = T.decl_buffer((picks_size,), "float32", data=T.reinterpret("handle", laid_address), align=1)
        laid16 = T.decl_buffer((picks_size,), "uint16", data=T.reinterpret("handle", laid_address), align=1)
        laid8 = T.decl_buffer((picks_size,), "uint8", data=T.reinterpret("handle", laid_address), align=1)
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
                if store == 0:
                    paint_f32(plane0, plane1, plane2, row0, row0b, row1, row1b, row2, row2b, ahead0, ahead1, ahead2,
                              scale0, scale0b, scale1, scale1b, firsts, picks, weights, wide_blocks, halves, yi[1, r],
                              T.cast(content_width, "int64"), coefficients, red, flip, target32, at,
                              T.cast(channel_pitch, "int64"), row_pitch, inside, left, width)  # fmt: skip
                elif store == 1:
                    paint_f16(plane0, plane1, plane2, row0, row0b, row1, row1b, row2, row2b, ahead0, ahead1, ahead2,
                              scale0, scale0b, scale1, scale1b, firsts, picks, weights, wide_blocks, halves, yi[1, r],
                              T.cast(content_width, "int64"), coefficients, red, flip, target16, at,
                              T.cast(channel_pitch, "int64"), row_pitch, inside, left, width)  # fmt: skip
                elif store == 2:
                    paint_bf16(plane0, plane1, plane2, row0, row0b, row1, row1b, row2, row2b, ahead0, ahead1, ahead2,
                               scale0, scale0b, scale1, scale1b, firsts, picks, weights, wide_blocks, halves, yi[1, r],
                               T.cast(content_width, "int64"), coefficients, red, flip, target16, at,
                               T.cast(channel_pitch, "int64"), row_pitch, inside, left, width)  # fmt: skip
                else:
                    paint_byte(plane0, plane1, plane2, row0, row0b, row1, row1b, row2, row2b, ahead0, ahead1, ahead2,
                               scale0, scale0b, scale1, scale1b, firsts, picks, weights, wide_blocks, halves, yi[1, r],
                               T.cast(content_width, "int64"), coefficients, red, flip, target8, at,
                               T.cast(channel_pitch, "int64"), row_pitch, inside, left, width)  # fmt: skip
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
