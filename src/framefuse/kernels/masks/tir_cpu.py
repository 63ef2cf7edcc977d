"""Mask operations as CPU loop nests: class arg-max, separable smoothing, temporal average, stretching, composition.

`reference.py` states the formulas. Arrays come as addresses with pitches in elements, so that rows may be padded
and memory read-only; scratch comes as arguments.
"""

from __future__ import annotations

from tvm.script import tirx as T

from ..tir.base import array_at, arrays_at, lerp, stored

TYPES = {"u8": "uint8", "f32": "float32"}

BLOCK = 1024
"""Pixels whose best class is held in the first-level cache while the classes stream by."""


def blended(foreground, background, alpha):
    """(f a + b (255 - a) + 127) // 255 of bytes; exact for 0 <= n < 65,790: (n + 1 + (n >> 8)) >> 8."""
    value = foreground.astype("int32") * alpha + background.astype("int32") * (255 - alpha) + 127
    return ((value + 1 + (value >> 8)) >> 8).astype("uint8")


@T.prim_func(s_tir=True)
def mask_argmax(
    score_address: T.int64, plane_pitch: T.int64, target_address: T.int64, classes: T.int32,
    pixels: T.int32, foreground: T.int32,
    best: T.Buffer((BLOCK,), "float32", align=4), label: T.Buffer((BLOCK,), "int32", align=4),
):  # fmt: skip
    """Labels of `pixels` adjacent pixels; with foreground >= 0: 255 where that class wins, else 0."""
    T.func_attr({"tirx.noalias": True, "global_symbol": "mask_argmax"})
    target = array_at(target_address, "uint8", pixels)
    for block in T.serial((pixels + BLOCK - 1) // BLOCK):
        start: T.let = block * BLOCK
        count: T.let = T.min(BLOCK, pixels - start)
        for x in T.serial(count):
            best[x] = T.float32("-inf")
        for x in T.serial(count):
            label[x] = 0
        for c in T.serial(classes):
            scores = array_at(score_address + T.Cast("int64", c) * plane_pitch, "float32", pixels, align=4)
            for x in T.serial(count):
                label[x] = T.Select(scores[start + x] > best[x], c, label[x])
                best[x] = T.Select(scores[start + x] > best[x], scores[start + x], best[x])
        if foreground < 0:
            for x in T.serial(count):
                target[start + x] = T.Cast("uint8", label[x])
        else:
            for x in T.serial(count):
                target[start + x] = T.Cast("uint8", T.Select(label[x] == foreground, 255, 0))


def smooth_variant(source_type, target_type):
    """The PrimFunc `mask_smooth_<source>_<target>`: taps down into a row, edges repeated, then taps across."""

    @T.prim_func(s_tir=True)
    def kernel(
        source_address: T.int64, source_pitch: T.int32, target_address: T.int64, target_pitch: T.int32,
        height: T.int32, width: T.int32, scale: T.float32,
        weights: T.Buffer(("length",), "float32", align=4), row: T.Buffer(("row_size",), "float32", align=4),
        sums: T.Buffer(("sum_size",), "float32", align=4),
    ):  # fmt: skip
        T.func_attr({"tirx.noalias": True, "global_symbol": f"mask_smooth_{source_type}_{target_type}"})
        length, row_size = T.int32(), T.int32()
        source = array_at(source_address, TYPES[source_type], row_size)
        target = array_at(target_address, TYPES[target_type], row_size)
        radius: T.let = length // 2
        for y in T.serial(height):
            for x in T.serial(width):
                row[radius + x] = T.float32(0)
            for k in T.serial(length):
                at: T.let = T.min(T.max(y + k - radius, 0), height - 1) * source_pitch
                down: T.let = weights[k]
                for x in T.serial(width):
                    row[radius + x] = row[radius + x] + down * T.Cast("float32", source[at + x])
            for k in T.serial(radius):
                row[k] = row[radius]
                row[radius + width + k] = row[radius + width - 1]
            for x in T.serial(width):
                sums[x] = T.float32(0)
            for k in T.serial(length):
                across: T.let = weights[k]
                for x in T.serial(width):
                    sums[x] = sums[x] + across * row[x + k]
            for x in T.serial(width):
                target[y * target_pitch + x] = stored(sums[x] * scale, target_type)

    return kernel


def ema_variant(source_type):
    """The PrimFunc `mask_ema_<source>`."""

    @T.prim_func(s_tir=True)
    def kernel(
        source_address: T.int64, source_pitch: T.int32, state_address: T.int64, state_pitch: T.int32,
        height: T.int32, width: T.int32, weight: T.float32,
    ):  # fmt: skip
        T.func_attr({"tirx.noalias": True, "global_symbol": f"mask_ema_{source_type}"})
        source = array_at(source_address, TYPES[source_type], width)
        state = array_at(state_address, "float32", width, align=4)
        for y in T.serial(height):
            for x in T.serial(width):
                state[y * state_pitch + x] = lerp(
                    state[y * state_pitch + x], T.Cast("float32", source[y * source_pitch + x]), weight
                )

    return kernel


def upsample_variant(kind):
    """The PrimFunc `mask_upsample_<type>`: taps across for each source row once, then taps down."""

    @T.prim_func(s_tir=True)
    def kernel(
        source_address: T.int64, source_pitch: T.int32, target_address: T.int64, target_pitch: T.int32,
        source_height: T.int32,
        xi: T.Buffer(("width",), "int32", align=4), xw: T.Buffer(("width",), "float32", align=4),
        yi: T.Buffer(("height",), "int32", align=4), yw: T.Buffer(("height",), "float32", align=4),
        rows: T.Buffer(("size",), "float32", align=4),
    ):  # fmt: skip
        T.func_attr({"tirx.noalias": True, "global_symbol": f"mask_upsample_{kind}"})
        width, height, size = T.int32(), T.int32(), T.int32()
        source, target = arrays_at((source_address, target_address), TYPES[kind], size)
        held = T.alloc_buffer((2,), "int32")
        # Source row r lies stretched in slot r % 2.
        held[0] = -1
        held[1] = -1
        for y in T.serial(height):
            for k in T.serial(2):
                r: T.let = T.min(yi[y] + k, source_height - 1)
                slot: T.let = r % 2
                if held[slot] != r:
                    held[slot] = r
                    for x in T.serial(width):
                        left: T.let = r * source_pitch + xi[x]
                        # The upper tap is read only where it counts: the last sample has no neighbour.
                        step: T.let = T.Cast("int32", xw[x] > T.float32(0))
                        rows[slot * width + x] = lerp(
                            T.Cast("float32", source[left]), T.Cast("float32", source[left + step]), xw[x]
                        )
            upper: T.let = yi[y] % 2 * width
            lower: T.let = T.min(yi[y] + 1, source_height - 1) % 2 * width
            weight: T.let = yw[y]
            for x in T.serial(width):
                target[y * target_pitch + x] = stored(lerp(rows[upper + x], rows[lower + x], weight), kind)

    return kernel


def composite_variant(channels):
    """The PrimFunc `mask_composite_<channels>`."""

    @T.prim_func(s_tir=True)
    def kernel(
        foreground_address: T.int64, foreground_pitch: T.int32, background_address: T.int64,
        background_pitch: T.int32, alpha_address: T.int64, alpha_pitch: T.int32, target_address: T.int64,
        target_pitch: T.int32, height: T.int32, width: T.int32,
    ):  # fmt: skip
        T.func_attr({"tirx.noalias": True, "global_symbol": f"mask_composite_{channels}"})
        addresses = T.meta_var((foreground_address, background_address, alpha_address, target_address))
        foreground, background, alphas, target = arrays_at(addresses, "uint8", width)
        for y in T.serial(height):
            for x in T.serial(width):
                alpha: T.let = T.Cast("int32", alphas[y * alpha_pitch + x])
                for c in T.unroll(channels):
                    at: T.let = x * channels + c
                    target[y * target_pitch + at] = blended(
                        foreground[y * foreground_pitch + at], background[y * background_pitch + at], alpha
                    )

    return kernel


def variants():
    """Every variant: {global symbol: PrimFunc}."""
    kernels = [mask_argmax, *(smooth_variant(*pair) for pair in (("u8", "u8"), ("u8", "f32"), ("f32", "f32")))]
    kernels += [*map(ema_variant, TYPES), *map(upsample_variant, TYPES), *map(composite_variant, (1, 3, 4))]
    return {str(kernel.attrs["global_symbol"]): kernel for kernel in kernels}
