"""Mask operations for CUDA: class arg-max, separable smoothing, temporal average, stretching, composition.

The arithmetic is that of `tir_cpu.py`. Planes of a batch lie `..._item` elements apart; pitches are in elements.
"""

from tvm.script import tirx as T

from ..tir.base import OUTPUTS, array_at, lerp, stored
from ._tir_blend import TYPES, blended

THREADS = 256
SPAN = 2
"""Pixels of a thread of arg-max, a block apart, so that each warp reads whole lines."""
AHEAD = 11
"""Classes that it reads at once."""

TILE_X, TILE_Y = 64, 4
"""Pixels of a block of smoothing: its rows are made in shared memory, with the radius on both sides."""
REACH = 64
"""Largest radius of smoothing."""


def argmax_variant(kind):
    """The PrimFunc `mask_argmax_<type of the scores>`."""

    @T.prim_func(s_tir=True)
    def kernel(
        scores_address: T.int64,
        score_item: T.int64,
        class_pitch: T.int64,
        target_address: T.int64,
        target_item: T.int64,
        n: T.int32,
        classes: T.int32,
        pixels: T.int32,
        foreground: T.int32,
    ):
        T.func_attr({"tirx.noalias": True, "global_symbol": f"mask_argmax_{kind}"})
        scores = array_at(scores_address, OUTPUTS[kind], align=2)
        target = array_at(target_address, "uint8")
        for i in T.thread_binding(n, thread="blockIdx.y"):
            for block in T.thread_binding((pixels + THREADS * SPAN - 1) // (THREADS * SPAN), thread="blockIdx.x"):
                for thread in T.thread_binding(THREADS, thread="threadIdx.x"):
                    best = T.alloc_buffer((SPAN,), "float32", scope="local")
                    label = T.alloc_buffer((SPAN,), "int32", scope="local")
                    ahead = T.alloc_buffer((AHEAD * SPAN,), "float32", scope="local")
                    first = block * (THREADS * SPAN) + thread
                    base = T.Cast("int64", i) * score_item
                    for k in T.unroll(SPAN):
                        best[k] = T.float32("-inf")
                        label[k] = 0
                    for group in T.serial((classes + AHEAD - 1) // AHEAD):
                        # Past the end, the last class or pixel is read again: it wins nothing, or is not written.
                        for a in T.unroll(AHEAD):
                            c = T.min(group * AHEAD + a, classes - 1)
                            for k in T.unroll(SPAN):
                                x = T.min(first + k * THREADS, pixels - 1)
                                ahead[a * SPAN + k] = T.Cast(
                                    "float32", scores[base + T.Cast("int64", c) * class_pitch + x]
                                )
                        for a in T.unroll(AHEAD):
                            for k in T.unroll(SPAN):
                                if ahead[a * SPAN + k] > best[k]:
                                    best[k] = ahead[a * SPAN + k]
                                    label[k] = group * AHEAD + a
                    for k in T.unroll(SPAN):
                        x = first + k * THREADS
                        if x < pixels:
                            value = label[k]
                            if foreground >= 0:
                                value = T.if_then_else(label[k] == foreground, 255, 0)
                            target[T.Cast("int64", i) * target_item + x] = T.Cast("uint8", value)

    return kernel


def smooth_variant(source_type, target_type):
    """The PrimFunc `mask_smooth_<source>_<target>`: a block makes a tile, down into shared memory, then across."""

    @T.prim_func(s_tir=True)
    def kernel(
        source_address: T.int64,
        source_item: T.int64,
        source_pitch: T.int32,
        target_address: T.int64,
        target_item: T.int64,
        target_pitch: T.int32,
        n: T.int32,
        height: T.int32,
        width: T.int32,
        scale: T.float32,
        radius: T.int32,
        weights_address: T.int64,
    ):
        T.func_attr({"tirx.noalias": True, "global_symbol": f"mask_smooth_{source_type}_{target_type}"})
        source = array_at(source_address, TYPES[source_type])
        target = array_at(target_address, TYPES[target_type])
        weights = array_at(weights_address, "float32", align=4)
        for i in T.thread_binding(n, thread="blockIdx.z"):
            for block_y in T.thread_binding((height + TILE_Y - 1) // TILE_Y, thread="blockIdx.y"):
                for block_x in T.thread_binding((width + TILE_X - 1) // TILE_X, thread="blockIdx.x"):
                    for thread in T.thread_binding(THREADS, thread="threadIdx.x"):
                        rows = T.alloc_buffer((TILE_Y * (TILE_X + 2 * REACH),), "float32", scope="shared")
                        wide = TILE_X + 2 * radius
                        item = T.Cast("int64", i) * source_item
                        for part in T.serial((TILE_Y * wide + THREADS - 1) // THREADS):
                            cell = part * THREADS + thread
                            if cell < TILE_Y * wide:
                                row = cell // wide
                                x = T.min(T.max(block_x * TILE_X + cell - row * wide - radius, 0), width - 1)
                                total = T.float32(0)
                                for k in T.serial(2 * radius + 1):
                                    y = T.min(T.max(block_y * TILE_Y + row + k - radius, 0), height - 1)
                                    total = total + weights[k] * T.Cast(
                                        "float32", source[item + T.Cast("int64", y) * source_pitch + x]
                                    )
                                rows[cell] = total
                        T.tvm_storage_sync("shared")
                        for part in T.unroll(TILE_X * TILE_Y // THREADS):
                            column = thread % TILE_X
                            row = part * (THREADS // TILE_X) + thread // TILE_X
                            x = block_x * TILE_X + column
                            y = block_y * TILE_Y + row
                            if T.And(x < width, y < height):
                                total = T.float32(0)
                                for k in T.serial(2 * radius + 1):
                                    total = total + weights[k] * rows[row * wide + column + k]
                                target[T.Cast("int64", i) * target_item + T.Cast("int64", y) * target_pitch + x] = (
                                    stored(total * scale, target_type)
                                )

    return kernel


def ema_variant(kind):
    """The PrimFunc `mask_ema_<source>`."""

    @T.prim_func(s_tir=True)
    def kernel(
        source_address: T.int64,
        source_item: T.int64,
        source_pitch: T.int32,
        state_address: T.int64,
        state_item: T.int64,
        state_pitch: T.int32,
        n: T.int32,
        height: T.int32,
        width: T.int32,
        weight: T.float32,
    ):
        T.func_attr({"tirx.noalias": True, "global_symbol": f"mask_ema_{kind}"})
        source = array_at(source_address, TYPES[kind])
        state = array_at(state_address, "float32", align=4)
        for i in T.thread_binding(n, thread="blockIdx.z"):
            for y in T.thread_binding(height, thread="blockIdx.y"):
                for block in T.thread_binding((width + THREADS - 1) // THREADS, thread="blockIdx.x"):
                    for thread in T.thread_binding(THREADS, thread="threadIdx.x"):
                        x = block * THREADS + thread
                        if x < width:
                            at = T.Cast("int64", i) * state_item + T.Cast("int64", y) * state_pitch + x
                            value = source[T.Cast("int64", i) * source_item + T.Cast("int64", y) * source_pitch + x]
                            state[at] = lerp(state[at], T.Cast("float32", value), weight)

    return kernel


def upsample_variant(kind):
    """The PrimFunc `mask_upsample_<type>`."""

    @T.prim_func(s_tir=True)
    def kernel(
        source_address: T.int64,
        source_item: T.int64,
        source_pitch: T.int32,
        target_address: T.int64,
        target_item: T.int64,
        target_pitch: T.int32,
        n: T.int32,
        height: T.int32,
        width: T.int32,
        across_index: T.int64,
        across_weight: T.int64,
        down_index: T.int64,
        down_weight: T.int64,
    ):
        T.func_attr({"tirx.noalias": True, "global_symbol": f"mask_upsample_{kind}"})
        source = array_at(source_address, TYPES[kind])
        target = array_at(target_address, TYPES[kind])
        xi = array_at(across_index, "int32", align=4)
        xw = array_at(across_weight, "float32", align=4)
        yi = array_at(down_index, "int32", align=4)
        yw = array_at(down_weight, "float32", align=4)
        for i in T.thread_binding(n, thread="blockIdx.z"):
            for y in T.thread_binding(height, thread="blockIdx.y"):
                for block in T.thread_binding((width + THREADS - 1) // THREADS, thread="blockIdx.x"):
                    for thread in T.thread_binding(THREADS, thread="threadIdx.x"):
                        x = block * THREADS + thread
                        if x < width:
                            across = xw[x]
                            down = yw[y]
                            # A sample whose weight is 0 may not exist.
                            right = T.Cast("int32", across > T.float32(0))
                            below = T.Cast("int64", T.if_then_else(down > T.float32(0), source_pitch, 0))
                            at = T.Cast("int64", i) * source_item + T.Cast("int64", yi[y]) * source_pitch + xi[x]
                            upper = lerp(T.Cast("float32", source[at]), T.Cast("float32", source[at + right]), across)
                            lower = lerp(
                                T.Cast("float32", source[at + below]),
                                T.Cast("float32", source[at + below + right]),
                                across,
                            )
                            target[T.Cast("int64", i) * target_item + T.Cast("int64", y) * target_pitch + x] = stored(
                                lerp(upper, lower, down), kind
                            )

    return kernel


@T.prim_func(s_tir=True)
def mask_composite(
    foreground_address: T.int64,
    foreground_pitch: T.int32,
    background_address: T.int64,
    background_pitch: T.int32,
    alpha_address: T.int64,
    alpha_pitch: T.int32,
    target_address: T.int64,
    target_pitch: T.int32,
    height: T.int32,
    width: T.int32,
    channels: T.int32,
):
    """A thread makes one sample of one channel."""
    T.func_attr({"tirx.noalias": True, "global_symbol": "mask_composite"})
    foreground = array_at(foreground_address, "uint8")
    background = array_at(background_address, "uint8")
    alphas = array_at(alpha_address, "uint8")
    target = array_at(target_address, "uint8")
    for y in T.thread_binding(height, thread="blockIdx.y"):
        for block in T.thread_binding((width * channels + THREADS - 1) // THREADS, thread="blockIdx.x"):
            for thread in T.thread_binding(THREADS, thread="threadIdx.x"):
                x = block * THREADS + thread
                if x < width * channels:
                    row = T.Cast("int64", y)
                    target[row * target_pitch + x] = T.Cast(
                        "uint8",
                        blended(
                            T.Cast("int32", foreground[row * foreground_pitch + x]),
                            T.Cast("int32", background[row * background_pitch + x]),
                            T.Cast("int32", alphas[row * alpha_pitch + x // channels]),
                        ),
                    )


def cuda_variants():
    """Every variant: {symbol: PrimFunc}."""
    functions = {f"mask_argmax_{kind}": argmax_variant(kind) for kind in ("f32", "f16")}
    functions |= {
        f"mask_smooth_{a}_{b}": smooth_variant(a, b) for a, b in (("u8", "u8"), ("u8", "f32"), ("f32", "f32"))
    }
    functions |= {f"mask_ema_{kind}": ema_variant(kind) for kind in TYPES}
    functions |= {f"mask_upsample_{kind}": upsample_variant(kind) for kind in TYPES}
    return functions | {"mask_composite": mask_composite}
