"""What a network needs on CUDA between its convolutions, on float16 images in NHWC that are slices of wider ones.

Element (c, y, x) of image b lies at `b * image + y * row + x * column + c` elements from an address. Channels come
in eights, 16 bytes; addresses, pitches and slices are multiples of that.

    network_pack      float32 or float16 NCHW -> NHWC, the further channels 0
    network_upsample  each pixel `scale` times along both axes; scale 1 copies
    network_pool      maxima of windows, of those, and of those again: one launch for a pyramid
    network_decode    raw detection head -> boxes and scores, as exporters write them
    network_unpack    NHWC -> float32 NCHW
"""

from tvm.script import tirx as T

from ..boxes.levels import FIELDS, FIRST, SCORES, SIDES

LARGE = 1 << 40
"""Elements of a buffer whose size nobody needs."""
THREADS = 256

TILE = 10
"""Rows and columns of a block of pooling."""
REACH = 6
"""Pixels that a chain of pools may see beyond a tile: three windows of 5."""
SPAN = TILE + 2 * REACH
POOLS = 3

ROWS = 32
"""Anchors of a block of decode."""
WIDEST = 256
"""Channels of a row that decode reads at once."""

LOWEST = 0xFC00FC00
"""Two float16 of minus infinity."""

COPY = """
static __device__ __forceinline__ void copy_16(int64_t to, int64_t from) {
  *(uint4*)to = __ldg((const uint4*)from);
}
"""

MAXIMA = """
// Of two pairs of float16.
static __device__ __forceinline__ unsigned max_pair(unsigned a, unsigned b) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  unsigned both;
  asm("max.f16x2 %0, %1, %2;" : "=r"(both) : "r"(a), "r"(b));
  return both;
#else
  half2 x, y;
  x.x.bits = a; x.y.bits = a >> 16; y.x.bits = b; y.y.bits = b >> 16;
  return max(x.x, y.x).bits | (unsigned)max(x.y, y.y).bits << 16;
#endif
}
"""


def buffer(address, dtype, align):
    return T.decl_buffer((LARGE,), dtype, data=T.reinterpret("handle", address), align=align)


def wide(value):
    return value.astype("int64")


def pair(a, b):
    return T.cuda.func_call("max_pair", a, b, source_code=MAXIMA, return_type="uint32")


def pack(sample):
    dtype = {"f32": "float32", "f16": "float16"}[sample]

    @T.prim_func
    def kernel(
        x_: T.int64,
        y_: T.int64,
        batch: T.int32,
        pixels: T.int32,
        channels: T.int32,
        groups: T.int32,
    ):
        """A thread makes the `groups` times 8 channels of a pixel."""
        T.func_attr({"tirx.noalias": True, "global_symbol": f"network_pack_{sample}"})
        T.device_entry()
        block, image = T.cta_id([(pixels + THREADS - 1) // THREADS, batch])
        thread = T.thread_id([THREADS])
        x = buffer(x_, dtype, 2)
        y = buffer(y_, "float16", 16)
        values = T.alloc_local((8,), "float16")
        pixel: T.let = block * THREADS + thread
        if pixel < pixels:
            for group in T.serial(groups):
                for c in T.unroll(8):
                    values[c] = T.float16(0)
                    if group * 8 + c < channels:
                        at: T.let = (wide(image) * wide(channels) + wide(group * 8 + c)) * wide(pixels) + wide(pixel)
                        values[c] = x[at].astype("float16")
                to: T.let = ((wide(image) * wide(pixels) + wide(pixel)) * wide(groups) + wide(group)) * T.int64(8)
                for c in T.vectorized(8):
                    y[to + wide(c)] = values[c]

    return kernel


def unpack():
    @T.prim_func
    def kernel(
        x_: T.int64,
        x_image: T.int64,
        x_row: T.int32,
        x_column: T.int32,
        y_: T.int64,
        batch: T.int32,
        channels: T.int32,
        height: T.int32,
        width: T.int32,
    ):
        """A thread makes a pixel of a channel."""
        T.func_attr({"tirx.noalias": True, "global_symbol": "network_unpack"})
        T.device_entry()
        block, channel, image = T.cta_id([(height * width + THREADS - 1) // THREADS, channels, batch])
        thread = T.thread_id([THREADS])
        x = buffer(x_, "float16", 2)
        y = buffer(y_, "float32", 4)
        pixel: T.let = block * THREADS + thread
        if pixel < height * width:
            at: T.let = wide(pixel // width) * wide(x_row) + wide(pixel % width) * wide(x_column) + wide(channel)
            to: T.let = (wide(image) * wide(channels) + wide(channel)) * wide(height * width) + wide(pixel)
            y[to] = x[wide(image) * x_image + at].astype("float32")

    return kernel


def upsample():
    @T.prim_func
    def kernel(
        x_: T.int64,
        x_image: T.int64,
        x_row: T.int32,
        x_column: T.int32,
        y_: T.int64,
        y_image: T.int64,
        y_row: T.int32,
        y_column: T.int32,
        batch: T.int32,
        height: T.int32,
        width: T.int32,
        groups: T.int32,
        scale: T.int32,
    ):
        """A thread makes 8 channels of a pixel of the result, which has `height` rows of `width`."""
        T.func_attr({"tirx.noalias": True, "global_symbol": "network_upsample"})
        T.device_entry()
        block, image = T.cta_id([(height * width * groups + THREADS - 1) // THREADS, batch])
        thread = T.thread_id([THREADS])
        item: T.let = block * THREADS + thread
        if item < height * width * groups:
            group: T.let = item % groups
            pixel: T.let = item // groups
            row: T.let = pixel // width
            column: T.let = pixel % width
            source: T.let = wide(row // scale) * wide(x_row) + wide(column // scale * x_column + group * 8)
            target: T.let = wide(row) * wide(y_row) + wide(column * y_column + group * 8)
            T.evaluate(
                T.cuda.func_call(
                    "copy_16",
                    y_ + (wide(image) * y_image + target) * T.int64(2),
                    x_ + (wide(image) * x_image + source) * T.int64(2),
                    source_code=COPY,
                )
            )

    return kernel


def pool():
    @T.prim_func
    def kernel(
        x_: T.int64,
        x_image: T.int64,
        x_row: T.int32,
        x_column: T.int32,
        y0_: T.int64,
        y1_: T.int64,
        y2_: T.int64,
        y_image: T.int64,
        y_row: T.int32,
        y_column: T.int32,
        batch: T.int32,
        height: T.int32,
        width: T.int32,
        groups: T.int32,
        pools: T.int32,
        radius: T.int32,
    ):
        """A block makes TILE x TILE pixels of 8 channels: maxima of all windows along x in shared memory, then along y.

        The maximum of windows of maxima is that of one larger window, so pool k sees (k + 1) * radius pixels around.
        """
        T.func_attr({"tirx.noalias": True, "global_symbol": "network_pool"})
        T.device_entry()
        tile_x, tile_y, item_z = T.cta_id([(width + TILE - 1) // TILE, (height + TILE - 1) // TILE, batch * groups])
        thread = T.thread_id([THREADS])
        image: T.let = item_z // groups
        group: T.let = item_z - image * groups
        x = buffer(x_, "uint32", 4)
        source = T.alloc_shared((SPAN * SPAN * 4,), "uint32")
        rows = T.alloc_shared((POOLS * SPAN * TILE * 4,), "uint32")
        top: T.let = tile_y * TILE - REACH
        left: T.let = tile_x * TILE - REACH
        start: T.let = wide(image) * x_image + wide(group * 8)
        for step in T.serial((SPAN * SPAN * 4 + THREADS - 1) // THREADS):
            item: T.let = step * THREADS + thread
            if item < SPAN * SPAN * 4:
                y: T.let = top + item // 4 // SPAN
                column: T.let = left + item // 4 % SPAN
                value = T.uint32(LOWEST)
                if T.And(T.And(y >= 0, y < height), T.And(column >= 0, column < width)):
                    at: T.let = start + wide(y) * wide(x_row) + wide(column) * wide(x_column)
                    value = x[at // T.int64(2) + wide(item % 4)]
                source[item] = value
        T.cuda.cta_sync()
        for step in T.serial((SPAN * TILE * 4 + THREADS - 1) // THREADS):
            item: T.let = step * THREADS + thread
            if item < SPAN * TILE * 4:
                centre: T.let = (item // 4 // TILE * SPAN + item // 4 % TILE + REACH) * 4 + item % 4
                best = source[centre]
                for p in T.serial(pools):
                    for d in T.serial(radius):
                        beyond: T.let = (p * radius + d + 1) * 4
                        best = pair(best, pair(source[centre - beyond], source[centre + beyond]))
                    rows[p * (SPAN * TILE * 4) + item] = best
        T.cuda.cta_sync()
        for step in T.serial((TILE * TILE * 4 + THREADS - 1) // THREADS):
            item: T.let = step * THREADS + thread
            line: T.let = item // 4 // TILE
            y: T.let = top + REACH + line
            column: T.let = left + REACH + item // 4 % TILE
            if T.And(item < TILE * TILE * 4, T.And(y < height, column < width)):
                to: T.let = wide(image) * y_image + wide(y) * wide(y_row) + wide(column * y_column + group * 8)
                for p in T.serial(pools):
                    first: T.let = p * (SPAN * TILE * 4) + ((line + REACH) * TILE + item // 4 % TILE) * 4 + item % 4
                    best = rows[first]
                    for d in T.serial((p + 1) * radius):
                        beyond: T.let = (d + 1) * TILE * 4
                        best = pair(best, pair(rows[first - beyond], rows[first + beyond]))
                    address: T.let = T.Select(p == 0, y0_, T.Select(p == 1, y1_, y2_))
                    target = buffer(address, "uint32", 4)
                    target[to // T.int64(2) + wide(item % 4)] = best

    return kernel


def decode():
    @T.prim_func
    def kernel(
        levels_: T.int64,
        levels: T.int32,
        cells_: T.int64,
        y_: T.int64,
        batch: T.int32,
        anchors: T.int32,
        bins: T.int32,
        classes: T.int32,
    ):
        """A block turns the rows of 32 anchors into columns; a warp reads a row, its lanes then each take an anchor.

        `levels` of `_levels.py` says where the logits lie.
        """
        T.func_attr({"tirx.noalias": True, "global_symbol": "network_decode"})
        T.device_entry()
        block, image = T.cta_id([(anchors + ROWS - 1) // ROWS, batch])
        thread = T.thread_id([THREADS])
        table = buffer(levels_, "int64", 8)
        cells = buffer(cells_, "float32", 4)
        y = buffer(y_, "float32", 4)
        tile = T.alloc_shared((ROWS, WIDEST + 1), "float32")
        distances = T.alloc_shared((4, ROWS), "float32")
        warp: T.let = thread // 32
        lane: T.let = thread % 32
        mine: T.let = T.min(block * ROWS + lane, anchors - 1)
        # The sides: 4 * bins columns are at most WIDEST.
        for turn in T.serial(ROWS // 8):
            anchor: T.let = T.min(block * ROWS + turn * 8 + warp, anchors - 1)
            level = T.int32(0)
            for other in T.serial(1, levels):
                if table[other * FIELDS + FIRST] <= wide(anchor):
                    level = other
            sides = buffer(table[level * FIELDS + SIDES], "float16", 2)
            row: T.let = wide(anchor) - table[level * FIELDS + FIRST]
            at: T.let = wide(image) * table[level * FIELDS + SIDES + 1] + row * table[level * FIELDS + SIDES + 2]
            for step in T.serial((4 * bins + 31) // 32):
                column: T.let = step * 32 + lane
                if column < 4 * bins:
                    tile[turn * 8 + warp, column] = sides[at + wide(column)].astype("float32")
        T.cuda.cta_sync()
        if warp < 4:
            highest = tile[lane, warp * bins]
            for bin in T.serial(bins):
                highest = T.max(highest, tile[lane, warp * bins + bin])
            total = T.float32(0)
            weighted = T.float32(0)
            for bin in T.serial(bins):
                weight: T.let = T.exp(tile[lane, warp * bins + bin] - highest)
                total = total + weight
                weighted = weighted + weight * bin.astype("float32")
            distances[warp, lane] = weighted / total
        T.cuda.cta_sync()
        to: T.let = wide(image) * wide(4 + classes) * wide(anchors) + wide(mine)
        inside: T.let = block * ROWS + lane < anchors
        if T.And(warp < 2, inside):
            near: T.let = distances[warp, lane]
            far: T.let = distances[warp + 2, lane]
            size: T.let = cells[wide(2 + warp) * wide(anchors) + wide(mine)]
            centre: T.let = cells[wide(warp) * wide(anchors) + wide(mine)]
            y[to + wide(warp) * wide(anchors)] = (centre + (far - near) * T.float32(0.5)) * size
            y[to + wide(2 + warp) * wide(anchors)] = (near + far) * size
        for chunk in T.serial((classes + WIDEST - 1) // WIDEST):
            T.cuda.cta_sync()
            for turn in T.serial(ROWS // 8):
                anchor: T.let = T.min(block * ROWS + turn * 8 + warp, anchors - 1)
                level = T.int32(0)
                for other in T.serial(1, levels):
                    if table[other * FIELDS + FIRST] <= wide(anchor):
                        level = other
                scores = buffer(table[level * FIELDS + SCORES], "float16", 2)
                row: T.let = wide(anchor) - table[level * FIELDS + FIRST]
                at: T.let = wide(image) * table[level * FIELDS + SCORES + 1] + row * table[level * FIELDS + SCORES + 2]
                for step in T.serial(WIDEST // 32):
                    column: T.let = chunk * WIDEST + step * 32 + lane
                    if column < classes:
                        value: T.let = scores[at + wide(column)].astype("float32")
                        tile[turn * 8 + warp, step * 32 + lane] = T.float32(1) / (T.float32(1) + T.exp(-value))
            T.cuda.cta_sync()
            for step in T.serial(WIDEST // 8):
                column: T.let = step * 8 + warp
                if T.And(inside, chunk * WIDEST + column < classes):
                    y[to + wide(4 + chunk * WIDEST + column) * wide(anchors)] = tile[lane, column]

    return kernel


def cuda_variants():
    """Every variant: {symbol: PrimFunc}."""
    kernels = [pack("f32"), pack("f16"), unpack(), upsample(), pool(), decode()]
    return {str(kernel.attrs["global_symbol"]): kernel for kernel in kernels}
