"""Blocks of newer detectors on CUDA, on float16 pictures in NHWC that are slices of wider ones; as network_cuda.py.

    network_depthwise   a filter for each channel, bias, activation, residual: one kernel
    network_attention   softmax(q k) v over the pixels of a picture, for each head
    network_anchors     raw head with anchors -> boxes, objectness and scores, as exporters of YOLOv5 write them

Channels come in eights, 16 bytes; addresses, pitches and slices are multiples of that.
"""

from tvm.script import tirx as T

LARGE = 1 << 40
"""Elements of a buffer whose size nobody needs."""
THREADS = 256

TILE = 32
"""Queries of a block of attention, and keys of a turn."""
KEYS = 64
"""Channels of a query, at most."""
VALUES = 128
"""Channels of a value, at most."""
LANES = 8
"""Threads of a query."""

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
        x_picture: T.int64,
        x_row: T.int32,
        x_column: T.int32,
        weight_: T.int64,
        bias_: T.int64,
        residual_: T.int64,
        residual_picture: T.int64,
        residual_row: T.int32,
        residual_column: T.int32,
        y_: T.int64,
        y_picture: T.int64,
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
        block, picture = T.cta_id([(height * width * groups + THREADS - 1) // THREADS, batch])
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
                                wide(picture) * (x_picture // T.int64(8))
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
                    wide(picture) * (residual_picture // T.int64(8))
                    + wide(row) * wide(residual_row // 8)
                    + wide(column) * wide(residual_column // 8)
                    + wide(group)
                )
                for k in T.vectorized(4):
                    read[k] = residual[beside * T.int64(4) + wide(k)]
                for c in T.unroll(8):
                    sums[c] = sums[c] + half(read, c)
            to: T.let = (
                wide(picture) * y_picture + wide(row) * wide(y_row) + wide(column) * wide(y_column) + wide(group * 8)
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
        x_picture: T.int64,
        x_column: T.int32,
        y_: T.int64,
        y_picture: T.int64,
        y_column: T.int32,
        batch: T.int32,
        heads: T.int32,
        keys: T.int32,
        values: T.int32,
        pixels: T.int32,
        scale: T.float32,
    ):
        """A block makes TILE queries of a head, eight threads each; keys come TILE at a time, their softmax with them.

        Channels of x: queries of all heads, then keys, then values. Every sum is float32.
        """
        T.func_attr({"tirx.noalias": True, "global_symbol": "network_attention"})
        T.device_entry()
        tile, head, picture = T.cta_id([(pixels + TILE - 1) // TILE, heads, batch])
        thread = T.thread_id([THREADS])
        x = buffer(x_, "float16", 2)
        y = buffer(y_, "float16", 2)
        query = T.alloc_shared((TILE, KEYS + 1), "float32")
        key = T.alloc_shared((TILE, KEYS + 1), "float32")
        value = T.alloc_shared((TILE, VALUES), "float32")
        score = T.alloc_shared((TILE, TILE + 1), "float32")
        sums = T.alloc_local((VALUES // LANES,), "float32")
        start: T.let = wide(picture) * x_picture
        mine: T.let = thread // LANES
        lane: T.let = thread % LANES
        for step in T.serial((TILE * KEYS) // THREADS):
            item: T.let = step * THREADS + thread
            if item < TILE * keys:
                pixel: T.let = T.min(tile * TILE + item // keys, pixels - 1)
                at: T.let = start + wide(pixel) * wide(x_column) + wide(head * keys + item % keys)
                query[item // keys, item % keys] = x[at].astype("float32") * scale
        for j in T.unroll(VALUES // LANES):
            sums[j] = T.float32(0)
        highest = T.float32(-3.0e38)
        total = T.float32(0)
        for turn in T.serial((pixels + TILE - 1) // TILE):
            T.cuda.cta_sync()
            for step in T.serial((TILE * KEYS) // THREADS):
                item: T.let = step * THREADS + thread
                if item < TILE * keys:
                    pixel: T.let = T.min(turn * TILE + item // keys, pixels - 1)
                    at: T.let = start + wide(pixel) * wide(x_column) + wide((heads + head) * keys + item % keys)
                    key[item // keys, item % keys] = x[at].astype("float32")
            for step in T.serial((TILE * VALUES) // THREADS):
                item: T.let = step * THREADS + thread
                if item < TILE * values:
                    pixel: T.let = T.min(turn * TILE + item // values, pixels - 1)
                    first: T.let = 2 * heads * keys + head * values
                    at: T.let = start + wide(pixel) * wide(x_column) + wide(first + item % values)
                    value[item // values, item % values] = x[at].astype("float32")
            T.cuda.cta_sync()
            for j in T.unroll(TILE // LANES):
                other: T.let = j * LANES + lane
                dot = T.float32(0)
                for c in T.serial(keys):
                    dot = dot + query[mine, c] * key[other, c]
                score[mine, other] = T.Select(turn * TILE + other < pixels, dot, T.float32(-3.0e38))
            T.cuda.cta_sync()
            before: T.let = highest
            for j in T.serial(TILE):
                highest = T.max(highest, score[mine, j])
            T.cuda.cta_sync()
            for j in T.unroll(TILE // LANES):
                score[mine, j * LANES + lane] = T.exp(score[mine, j * LANES + lane] - highest)
            T.cuda.cta_sync()
            less: T.let = T.exp(before - highest)
            total = total * less
            for j in T.unroll(VALUES // LANES):
                sums[j] = sums[j] * less
            for other in T.serial(TILE):
                share: T.let = score[mine, other]
                total = total + share
                for j in T.unroll(VALUES // LANES):
                    if j * LANES + lane < values:
                        sums[j] = sums[j] + share * value[other, j * LANES + lane]
        if tile * TILE + mine < pixels:
            to: T.let = wide(picture) * y_picture + wide(tile * TILE + mine) * wide(y_column) + wide(head * values)
            for j in T.unroll(VALUES // LANES):
                if j * LANES + lane < values:
                    y[to + wide(j * LANES + lane)] = (sums[j] / total).astype("float16")

    return kernel


def anchors():
    @T.prim_func
    def kernel(
        x_: T.int64,
        x_picture: T.int64,
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
        block, picture = T.cta_id([(height * width * per_cell * fields + THREADS - 1) // THREADS, batch])
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
            raw: T.let = x[wide(picture) * x_picture + wide(pixel) * wide(x_column) + wide(channel)].astype("float32")
            share: T.let = T.float32(1) / (T.float32(1) + T.exp(-raw))
            result = share
            if kind == 0:
                result = (T.float32(2) * share - T.float32(0.5) + (pixel % width).astype("float32")) * stride_x
            if kind == 1:
                result = (T.float32(2) * share - T.float32(0.5) + (pixel // width).astype("float32")) * stride_y
            if T.Or(kind == 2, kind == 3):
                result = T.float32(4) * share * share * table[wide(anchor * 2 + kind - 2)]
            to: T.let = wide(picture) * wide(anchors) + wide(first + anchor * height * width + pixel)
            y[to * wide(fields) + wide(kind)] = result

    return kernel


def cuda_variants():
    """Every variant: {symbol: PrimFunc}."""
    kernels = [depthwise(), attention(), anchors()]
    return {str(kernel.attrs["global_symbol"]): kernel for kernel in kernels}
