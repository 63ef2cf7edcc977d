"""Blocks of newer detectors on CUDA, on float16 images in NHWC that are slices of wider ones; as network_cuda.py.

    network_depthwise   a filter for each channel, bias, activation, residual: one kernel
    network_attention   softmax(q k) v over the pixels of an image, for each head
    network_anchors     raw head with anchors -> boxes, objectness and scores, as exporters of YOLOv5 write them

Channels come in eights, 16 bytes; addresses, pitches and slices are multiples of that.
"""

from tvm.script import tirx as T

LARGE = 1 << 40
"""Elements of a buffer whose size nobody needs."""
THREADS = 256

QUERIES = 8
"""Queries of a block of attention."""
WARPS = THREADS // 32
KEYS = 64
"""Channels of a query, at most."""
VALUES = 128
"""Channels of a value, at most."""
PAIRS = VALUES // 64
"""Pairs of channels of a value that a lane of a warp adds up."""
AHEAD = 8
"""Values that a warp asks for before it adds the first of them."""
LOWEST = T.float32(-3.0e38)
ALL = T.uint32(0xFFFFFFFF)

NONE, SILU, RELU = 0, 1, 2
"""Activations."""


def buffer(address, dtype, align):
    return T.decl_buffer((LARGE,), dtype, data=T.reinterpret("handle", address), align=align)


def wide(value):
    return value.astype("int64")


def half(words, c):
    """Number c of the float16 in words of 32 bits, as float32."""
    bits = T.Cast("uint16", T.shift_right(words[c // 2], T.Cast("uint32", c % 2 * 16)))
    return T.reinterpret("float16", bits).astype("float32")


def depthwise():
    @T.prim_func
    def kernel(
        x_: T.int64,
        x_image: T.int64,
        x_row: T.int32,
        x_column: T.int32,
        weight_: T.int64,
        bias_: T.int64,
        residual_: T.int64,
        residual_image: T.int64,
        residual_row: T.int32,
        residual_column: T.int32,
        y_: T.int64,
        y_image: T.int64,
        y_row: T.int32,
        y_column: T.int32,
        batch: T.int32,
        groups: T.int32,
        in_height: T.int32,
        in_width: T.int32,
        height: T.int32,
        width: T.int32,
        rows: T.int32,
        columns: T.int32,
        stride_y: T.int32,
        stride_x: T.int32,
        top: T.int32,
        left: T.int32,
        dilation_y: T.int32,
        dilation_x: T.int32,
        activation: T.int32,
    ):
        """A thread makes 8 channels of a pixel. Weights: (rows, columns, channels); residual 0: there is none."""
        T.func_attr({"tirx.noalias": True, "global_symbol": "network_depthwise"})
        T.device_entry()
        block, image = T.cta_id([(height * width * groups + THREADS - 1) // THREADS, batch])
        thread = T.thread_id([THREADS])
        x = buffer(x_, "uint32", 16)
        weight = buffer(weight_, "uint32", 16)
        bias = buffer(bias_, "uint32", 16)
        residual = buffer(residual_, "uint32", 16)
        y = buffer(y_, "float16", 16)
        sums = T.alloc_local((8,), "float32")
        read = T.alloc_local((4,), "uint32")
        factor = T.alloc_local((4,), "uint32")
        result = T.alloc_local((8,), "float16")
        item: T.let = block * THREADS + thread
        if item < height * width * groups:
            group: T.let = item % groups
            pixel: T.let = item // groups
            row: T.let = pixel // width
            column: T.let = pixel % width
            for k in T.vectorized(4):
                factor[k] = bias[wide(group * 4 + k)]
            for c in T.unroll(8):
                sums[c] = half(factor, c)
            for j in T.serial(rows):
                source_y: T.let = row * stride_y - top + j * dilation_y
                if T.And(source_y >= 0, source_y < in_height):
                    for i in T.serial(columns):
                        source_x: T.let = column * stride_x - left + i * dilation_x
                        if T.And(source_x >= 0, source_x < in_width):
                            at: T.let = (
                                wide(image) * (x_image // T.int64(8))
                                + wide(source_y) * wide(x_row // 8)
                                + wide(source_x) * wide(x_column // 8)
                                + wide(group)
                            )
                            tap: T.let = wide((j * columns + i) * groups + group) * T.int64(4)
                            for k in T.vectorized(4):
                                read[k] = x[at * T.int64(4) + wide(k)]
                            for k in T.vectorized(4):
                                factor[k] = weight[tap + wide(k)]
                            for c in T.unroll(8):
                                sums[c] = sums[c] + half(read, c) * half(factor, c)
            for c in T.unroll(8):
                if activation == SILU:
                    sums[c] = sums[c] / (T.float32(1) + T.exp(-sums[c]))
                if activation == RELU:
                    sums[c] = T.max(sums[c], T.float32(0))
            if residual_ != T.int64(0):
                beside: T.let = (
                    wide(image) * (residual_image // T.int64(8))
                    + wide(row) * wide(residual_row // 8)
                    + wide(column) * wide(residual_column // 8)
                    + wide(group)
                )
                for k in T.vectorized(4):
                    read[k] = residual[beside * T.int64(4) + wide(k)]
                for c in T.unroll(8):
                    sums[c] = sums[c] + half(read, c)
            to: T.let = (
                wide(image) * y_image + wide(row) * wide(y_row) + wide(column) * wide(y_column) + wide(group * 8)
            )
            for c in T.unroll(8):
                result[c] = sums[c].astype("float16")
            for c in T.vectorized(8):
                y[to + wide(c)] = result[c]

    return kernel


def attention():
    @T.prim_func
    def kernel(
        x_: T.int64,
        x_image: T.int64,
        x_column: T.int32,
        y_: T.int64,
        y_image: T.int64,
        y_column: T.int32,
        batch: T.int32,
        heads: T.int32,
        keys: T.int32,
        values: T.int32,
        pixels: T.int32,
        scale: T.float32,
    ):
        """A block makes QUERIES queries of a head. Its warps share the keys, 32 at a time, each with a softmax of its
        own: first a lane is a key, then two channels of every value. In the end the warps' sums are put together.

        Channels of x: queries of all heads, then keys, then values; eights of each a head. Every sum is float32.
        """
        T.func_attr({"tirx.noalias": True, "global_symbol": "network_attention", "resident": 2})
        T.device_entry()
        tile, head, image = T.cta_id([(pixels + QUERIES - 1) // QUERIES, heads, batch])
        thread = T.thread_id([THREADS])
        x = buffer(x_, "uint32", 16)
        halves = buffer(x_, "float16", 2)
        y = buffer(y_, "float16", 2)
        query = T.alloc_shared((QUERIES * KEYS,), "float32")
        shares = T.alloc_shared((THREADS * QUERIES,), "float32")
        parts = T.alloc_shared((WARPS * QUERIES * VALUES,), "float32")
        peaks = T.alloc_shared((WARPS * QUERIES,), "float32")
        totals = T.alloc_shared((WARPS * QUERIES,), "float32")
        sums = T.alloc_local((QUERIES * PAIRS * 2,), "float32")
        highest = T.alloc_local((QUERIES,), "float32")
        best = T.alloc_local((QUERIES,), "float32")
        total = T.alloc_local((QUERIES,), "float32")
        score = T.alloc_local((QUERIES,), "float32")
        key = T.alloc_local((KEYS // 2,), "uint32")
        value = T.alloc_local((AHEAD * PAIRS,), "uint32")
        numbers = T.alloc_local((8,), "float32")
        four = T.alloc_local((4,), "float32")
        warp: T.let = thread // 32
        lane: T.let = thread % 32
        start: T.let = wide(image) * (x_image // T.int64(8))
        column: T.let = wide(x_column // 8)
        first_key: T.let = start + wide((heads + head) * (keys // 8))
        first_value: T.let = (start + wide(2 * heads * (keys // 8) + head * (values // 8))) * T.int64(4) + wide(lane)
        for step in T.unroll(QUERIES * KEYS // THREADS):
            item: T.let = step * THREADS + thread
            if item % KEYS < keys:
                pixel: T.let = T.min(tile * QUERIES + item // KEYS, pixels - 1)
                at: T.let = wide(image) * x_image + wide(pixel) * wide(x_column) + wide(head * keys + item % KEYS)
                query[item] = halves[at].astype("float32") * scale
        for q in T.unroll(QUERIES):
            highest[q] = LOWEST
            total[q] = T.float32(0)
        for k in T.unroll(QUERIES * PAIRS * 2):
            sums[k] = T.float32(0)
        T.cuda.cta_sync()
        for turn in T.serial((pixels + THREADS - 1) // THREADS):
            first: T.let = turn * THREADS + warp * 32
            if first < pixels:
                mine: T.let = first_key + wide(T.min(first + lane, pixels - 1)) * column
                for group in T.unroll(KEYS // 8):
                    if group * 8 < keys:
                        for k in T.vectorized(4):
                            key[group * 4 + k] = x[(mine + wide(group)) * T.int64(4) + wide(k)]
                for q in T.unroll(QUERIES):
                    score[q] = T.float32(0)
                for group in T.unroll(KEYS // 8):
                    if group * 8 < keys:
                        for c in T.unroll(8):
                            numbers[c] = half(key, group * 8 + c)
                        for q in T.unroll(QUERIES):
                            for part in T.unroll(2):
                                for k in T.vectorized(4):
                                    four[k] = query[q * KEYS + group * 8 + part * 4 + k]
                                for k in T.unroll(4):
                                    score[q] = score[q] + four[k] * numbers[part * 4 + k]
                for q in T.unroll(QUERIES):
                    score[q] = T.Select(first + lane < pixels, score[q], LOWEST)
                    best[q] = score[q]
                for bit in T.unroll(5):
                    for q in T.unroll(QUERIES):
                        best[q] = T.max(best[q], T.tvm_warp_shuffle_xor(ALL, best[q], 1 << bit, 32, 32))
                for q in T.unroll(QUERIES):
                    best[q] = T.max(best[q], highest[q])
                    highest[q] = T.exp(highest[q] - best[q])
                    score[q] = T.exp(score[q] - best[q])
                    total[q] = total[q] * highest[q] + score[q]
                    for k in T.unroll(PAIRS * 2):
                        sums[q * PAIRS * 2 + k] = sums[q * PAIRS * 2 + k] * highest[q]
                    highest[q] = best[q]
                T.cuda.warp_sync()
                for part in T.unroll(QUERIES // 4):
                    for k in T.vectorized(4):
                        shares[thread * QUERIES + part * 4 + k] = score[part * 4 + k]
                T.cuda.warp_sync()
                for some in T.serial(32 // AHEAD):
                    for j in T.unroll(AHEAD):
                        pixel: T.let = T.min(first + some * AHEAD + j, pixels - 1)
                        for pair in T.unroll(PAIRS):
                            if pair * 64 + lane * 2 < values:
                                at: T.let = first_value + wide(pixel) * column * T.int64(4) + wide(pair * 32)
                                value[j * PAIRS + pair] = x[at]
                    for j in T.unroll(AHEAD):
                        for pair in T.unroll(PAIRS):
                            if pair * 64 < values:
                                numbers[pair * 2] = half(value, (j * PAIRS + pair) * 2)
                                numbers[pair * 2 + 1] = half(value, (j * PAIRS + pair) * 2 + 1)
                        for part in T.unroll(QUERIES // 4):
                            for k in T.vectorized(4):
                                four[k] = shares[(warp * 32 + some * AHEAD + j) * QUERIES + part * 4 + k]
                            for pair in T.unroll(PAIRS):
                                if pair * 64 < values:
                                    for k in T.unroll(4):
                                        for odd in T.unroll(2):
                                            to: T.let = (part * 4 + k) * PAIRS * 2 + pair * 2 + odd
                                            sums[to] = sums[to] + four[k] * numbers[pair * 2 + odd]
        for bit in T.unroll(5):
            for q in T.unroll(QUERIES):
                total[q] = total[q] + T.tvm_warp_shuffle_xor(ALL, total[q], 1 << bit, 32, 32)
        for q in T.unroll(QUERIES):
            if lane == 0:
                peaks[warp * QUERIES + q] = highest[q]
                totals[warp * QUERIES + q] = total[q]
            for pair in T.unroll(PAIRS):
                for k in T.vectorized(2):
                    parts[(warp * QUERIES + q) * VALUES + pair * 64 + lane * 2 + k] = sums[(q * PAIRS + pair) * 2 + k]
        T.cuda.cta_sync()
        for step in T.serial((QUERIES * values + THREADS - 1) // THREADS):
            item: T.let = step * THREADS + thread
            q: T.let = item // values
            if T.And(item < QUERIES * values, tile * QUERIES + q < pixels):
                top = LOWEST
                for other in T.unroll(WARPS):
                    top = T.max(top, peaks[other * QUERIES + q])
                whole = T.float32(0)
                result = T.float32(0)
                for other in T.unroll(WARPS):
                    weight: T.let = T.exp(peaks[other * QUERIES + q] - top)
                    whole = whole + weight * totals[other * QUERIES + q]
                    result = result + weight * parts[(other * QUERIES + q) * VALUES + item % values]
                to: T.let = wide(image) * y_image + wide(tile * QUERIES + q) * wide(y_column)
                y[to + wide(head * values + item % values)] = (result / whole).astype("float16")

    return kernel


def anchors():
    @T.prim_func
    def kernel(
        x_: T.int64,
        x_image: T.int64,
        x_column: T.int32,
        table_: T.int64,
        y_: T.int64,
        batch: T.int32,
        per_cell: T.int32,
        fields: T.int32,
        height: T.int32,
        width: T.int32,
        first: T.int32,
        anchors: T.int32,
        stride_x: T.float32,
        stride_y: T.float32,
    ):
        """One level: a thread makes one number. `table`: width and height of each anchor, model pixels, float32."""
        T.func_attr({"tirx.noalias": True, "global_symbol": "network_anchors"})
        T.device_entry()
        block, image = T.cta_id([(height * width * per_cell * fields + THREADS - 1) // THREADS, batch])
        thread = T.thread_id([THREADS])
        x = buffer(x_, "float16", 2)
        table = buffer(table_, "float32", 4)
        y = buffer(y_, "float32", 4)
        item: T.let = block * THREADS + thread
        if item < height * width * per_cell * fields:
            channel: T.let = item % (per_cell * fields)
            pixel: T.let = item // (per_cell * fields)
            anchor: T.let = channel // fields
            kind: T.let = channel % fields
            raw: T.let = x[wide(image) * x_image + wide(pixel) * wide(x_column) + wide(channel)].astype("float32")
            share: T.let = T.float32(1) / (T.float32(1) + T.exp(-raw))
            result = share
            if kind == 0:
                result = (T.float32(2) * share - T.float32(0.5) + (pixel % width).astype("float32")) * stride_x
            if kind == 1:
                result = (T.float32(2) * share - T.float32(0.5) + (pixel // width).astype("float32")) * stride_y
            if T.Or(kind == 2, kind == 3):
                result = T.float32(4) * share * share * table[wide(anchor * 2 + kind - 2)]
            to: T.let = wide(image) * wide(anchors) + wide(first + anchor * height * width + pixel)
            y[to * wide(fields) + wide(kind)] = result

    return kernel


def cuda_variants():
    """Every variant: {symbol: PrimFunc}."""
    kernels = [depthwise(), attention(), anchors()]
    return {str(kernel.attrs["global_symbol"]): kernel for kernel in kernels}
