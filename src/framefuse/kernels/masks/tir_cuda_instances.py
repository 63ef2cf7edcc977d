"""Instance masks from prototypes for CUDA: the plan, and from logits (`logits_cuda.py`) masks, labels or runs.

The arithmetic is that of `instances.py`. Nothing is read back: the plan of each box is made on the device, launches
cover the most that may be there, and `count` (an address, or 0 for all) says how many of the n instances are valid.

Runs: a block takes an instance, a thread a column, as `_runs_cuda.py` says. `runs_cuda.py` makes lengths and text of
the positions.
"""

from tvm.script import tirx as T

from ..tir.base import lerp
from ._tir_cuda_instances import PLAN
from ._tir_cuda_runs import close, counted, first_place, put
from ._tir_cuda_scan import LARGE, THREADS


@T.inline
def search(table, length, value, result):
    """result[0] = how many of the ascending table[0..length - 1] are less than value."""
    low = 0
    high = length
    while low < high:
        middle = (low + high) // 2
        if table[middle] < value:
            low = middle + 1
        else:
            high = middle
    result[0] = low


@T.prim_func(s_tir=True)
def instance_plan(
    boxes_address: T.int64,
    count_address: T.int64,
    n: T.int32,
    crop: T.int32,
    scale_x: T.float32,
    scale_y: T.float32,
    origin_x: T.float32,
    origin_y: T.float32,
    samples_x: T.int32,
    samples_y: T.int32,
    across_index: T.int64,
    down_index: T.int64,
    width: T.int32,
    height: T.int32,
    plan_address: T.int64,
):
    """crop: 0 in the image, 1 at the prototypes."""
    T.func_attr({"tirx.noalias": True, "global_symbol": "instance_plan", "fmad": False})
    boxes = T.decl_buffer((LARGE,), "float32", data=T.reinterpret("handle", boxes_address), align=4)
    counts = T.decl_buffer((LARGE,), "int32", data=T.reinterpret("handle", count_address), align=4)
    xi = T.decl_buffer((LARGE,), "int32", data=T.reinterpret("handle", across_index), align=4)
    yi = T.decl_buffer((LARGE,), "int32", data=T.reinterpret("handle", down_index), align=4)
    plan = T.decl_buffer((LARGE,), "int32", data=T.reinterpret("handle", plan_address), align=4)
    for block in T.thread_binding((n + 63) // 64, thread="blockIdx.x"):
        for thread in T.thread_binding(64, thread="threadIdx.x"):
            i = block * 64 + thread
            if i < n:
                edges = T.alloc_buffer((4,), "int32", scope="local")
                found = T.alloc_buffer((1,), "int32", scope="local")
                valid = n
                if count_address != T.int64(0):
                    valid = counts[0]
                x1 = boxes[i * 4]
                y1 = boxes[i * 4 + 1]
                x2 = boxes[i * 4 + 2]
                y2 = boxes[i * 4 + 3]
                limit_x = width
                limit_y = height
                if crop == 1:
                    x1 = x1 * scale_x + origin_x
                    y1 = y1 * scale_y + origin_y
                    x2 = x2 * scale_x + origin_x
                    y2 = y2 * scale_y + origin_y
                    limit_x = samples_x
                    limit_y = samples_y
                # Comparisons are false with NaN.
                empty = 1
                if T.And(T.And(x1 < x2, y1 < y2), i < valid):
                    empty = 0
                for k in T.unroll(4):
                    edges[k] = 0
                if empty == 0:
                    edges[0] = T.Cast("int32", T.min(T.max(T.ceil(x1), T.float32(0)), T.Cast("float32", limit_x)))
                    edges[1] = T.Cast("int32", T.min(T.max(T.ceil(x2), T.float32(0)), T.Cast("float32", limit_x)))
                    edges[2] = T.Cast("int32", T.min(T.max(T.ceil(y1), T.float32(0)), T.Cast("float32", limit_y)))
                    edges[3] = T.Cast("int32", T.min(T.max(T.ceil(y2), T.float32(0)), T.Cast("float32", limit_y)))
                at = i * PLAN
                if crop == 1:
                    for k in T.unroll(4):
                        plan[at + k] = edges[k]
                        plan[at + 4 + k] = 0
                    if edges[0] < edges[1]:
                        search(xi, width, edges[0] - 1, found)
                        plan[at + 4] = found[0]
                        search(xi, width, edges[1], found)
                        plan[at + 5] = found[0]
                    if edges[2] < edges[3]:
                        search(yi, height, edges[2] - 1, found)
                        plan[at + 6] = found[0]
                        search(yi, height, edges[3], found)
                        plan[at + 7] = found[0]
                else:
                    plan[at] = 0
                    plan[at + 1] = samples_x
                    plan[at + 2] = 0
                    plan[at + 3] = samples_y
                    for k in T.unroll(4):
                        plan[at + 4 + k] = edges[k]


@T.inline
def stretched(logits, base, samples_x, left, row, weight, result):
    """result[0] = tap across, at a row of the logits of an instance. The last sample has no neighbour, and weight 0."""
    here = logits[base + row * samples_x + left]
    beside = here
    if weight > T.float32(0):
        beside = logits[base + row * samples_x + left + 1]
    result[0] = lerp(here, beside, weight)


def paint_variant(kind):
    """The PrimFunc `instance_<masks or labels>`: PIXELS neighbouring pixels a thread."""
    pixels = 4
    wide = 32 * pixels

    @T.inline
    def inside(logits, plan, xi, xw, yi, yw, i, x, y, samples_x, samples_y, pair, result):
        """result[0] = whether a pixel of the plan's range is set."""
        base = T.Cast("int64", i) * samples_x * samples_y
        row = yi[y]
        down = yw[y]
        stretched(logits, base, samples_x, xi[x], row, xw[x], pair)
        upper = pair[0]
        lower = upper
        if down > T.float32(0):
            stretched(logits, base, samples_x, xi[x], row + 1, xw[x], pair)
            lower = pair[0]
        result[0] = T.Cast("int32", lerp(upper, lower, down) > T.float32(0))

    @T.inline
    def masks(logits, plan, xi, xw, yi, yw, labels, i, n, x, y, samples_x, samples_y, pair, result, value):
        value[0] = 0
        at = i * PLAN
        if T.And(T.And(x >= plan[at + 4], x < plan[at + 5]), T.And(y >= plan[at + 6], y < plan[at + 7])):
            inside(logits, plan, xi, xw, yi, yw, i, x, y, samples_x, samples_y, pair, result)
            value[0] = result[0]

    @T.inline
    def first_label(logits, plan, xi, xw, yi, yw, labels, i, n, x, y, samples_x, samples_y, pair, result, value):
        value[0] = 0
        k = 0
        while k < n:
            at = k * PLAN
            if T.And(T.And(x >= plan[at + 4], x < plan[at + 5]), T.And(y >= plan[at + 6], y < plan[at + 7])):
                inside(logits, plan, xi, xw, yi, yw, k, x, y, samples_x, samples_y, pair, result)
                if result[0] != 0:
                    value[0] = T.Cast("int32", labels[k])
                    k = n
            k = k + 1

    body = masks if kind == "masks" else first_label

    @T.prim_func(s_tir=True)
    def kernel(
        logits_address: T.int64,
        plan_address: T.int64,
        across_index: T.int64,
        across_weight: T.int64,
        down_index: T.int64,
        down_weight: T.int64,
        labels_address: T.int64,
        n: T.int32,
        targets: T.int32,
        samples_x: T.int32,
        samples_y: T.int32,
        width: T.int32,
        height: T.int32,
        target_address: T.int64,
        item_pitch: T.int64,
        row_pitch: T.int64,
        vectors: T.int32,
    ):
        T.func_attr({"tirx.noalias": True, "global_symbol": f"instance_{kind}"})
        logits = T.decl_buffer((LARGE,), "float32", data=T.reinterpret("handle", logits_address), align=4)
        plan = T.decl_buffer((LARGE,), "int32", data=T.reinterpret("handle", plan_address), align=4)
        xi = T.decl_buffer((LARGE,), "int32", data=T.reinterpret("handle", across_index), align=4)
        xw = T.decl_buffer((LARGE,), "float32", data=T.reinterpret("handle", across_weight), align=4)
        yi = T.decl_buffer((LARGE,), "int32", data=T.reinterpret("handle", down_index), align=4)
        yw = T.decl_buffer((LARGE,), "float32", data=T.reinterpret("handle", down_weight), align=4)
        labels = T.decl_buffer((LARGE,), "uint8", data=T.reinterpret("handle", labels_address), align=1)
        target = T.decl_buffer((LARGE,), "uint8", data=T.reinterpret("handle", target_address), align=4)
        words = T.decl_buffer((LARGE,), "uint32", data=T.reinterpret("handle", target_address), align=4)
        for i in T.thread_binding(targets, thread="blockIdx.z"):
            for block_y in T.thread_binding((height + 7) // 8, thread="blockIdx.y"):
                for block_x in T.thread_binding((width + wide - 1) // wide, thread="blockIdx.x"):
                    for thread_y in T.thread_binding(8, thread="threadIdx.y"):
                        for thread_x in T.thread_binding(32, thread="threadIdx.x"):
                            y = block_y * 8 + thread_y
                            x = (block_x * 32 + thread_x) * pixels
                            at = T.Cast("int64", i) * item_pitch + T.Cast("int64", y) * row_pitch + x
                            pair = T.alloc_buffer((1,), "float32", scope="local")
                            result = T.alloc_buffer((1,), "int32", scope="local")
                            value = T.alloc_buffer((1,), "int32", scope="local")
                            if T.And(y < height, x < width):
                                if vectors != 0:
                                    word = T.uint32(0)
                                    for p in T.serial(pixels):
                                        body(
                                            logits, plan, xi, xw, yi, yw, labels, i, n, x + p, y,
                                            samples_x, samples_y, pair, result, value,
                                        )  # fmt: skip
                                        word = word | (T.Cast("uint32", value[0]) << T.Cast("uint32", 8 * p))
                                    words[at // 4] = word
                                else:
                                    for p in T.serial(pixels):
                                        if x + p < width:
                                            body(
                                                logits, plan, xi, xw, yi, yw, labels, i, n, x + p, y,
                                                samples_x, samples_y, pair, result, value,
                                            )  # fmt: skip
                                            target[at + p] = T.Cast("uint8", value[0])

    return kernel


@T.prim_func(s_tir=True)
def instance_runs(
    logits_address: T.int64,
    plan_address: T.int64,
    across_index: T.int64,
    across_weight: T.int64,
    down_index: T.int64,
    down_weight: T.int64,
    down_start: T.int64,
    n: T.int32,
    samples_x: T.int32,
    samples_y: T.int32,
    width: T.int32,
    height: T.int32,
    positions_address: T.int64,
    capacity: T.int32,
    ends_address: T.int64,
):
    """Positions (n, capacity) at which runs end, and the number of runs; those beyond the capacity are counted only."""
    T.func_attr({"tirx.noalias": True, "global_symbol": "instance_runs"})
    logits = T.decl_buffer((LARGE,), "float32", data=T.reinterpret("handle", logits_address), align=4)
    plan = T.decl_buffer((LARGE,), "int32", data=T.reinterpret("handle", plan_address), align=4)
    xi = T.decl_buffer((LARGE,), "int32", data=T.reinterpret("handle", across_index), align=4)
    xw = T.decl_buffer((LARGE,), "float32", data=T.reinterpret("handle", across_weight), align=4)
    yi = T.decl_buffer((LARGE,), "int32", data=T.reinterpret("handle", down_index), align=4)
    yw = T.decl_buffer((LARGE,), "float32", data=T.reinterpret("handle", down_weight), align=4)
    starts = T.decl_buffer((LARGE,), "int32", data=T.reinterpret("handle", down_start), align=4)
    positions = T.decl_buffer((LARGE,), "int32", data=T.reinterpret("handle", positions_address), align=4)
    ends = T.decl_buffer((LARGE,), "int32", data=T.reinterpret("handle", ends_address), align=4)
    for i in T.thread_binding(n, thread="blockIdx.x"):
        for thread in T.thread_binding(THREADS, thread="threadIdx.x"):
            sums = T.alloc_buffer((2 * THREADS,), "int32", scope="shared")
            final = T.alloc_buffer((THREADS + 1,), "int32", scope="shared")
            pair = T.alloc_buffer((1,), "float32", scope="local")
            x0 = plan[i * PLAN + 4]
            x1 = plan[i * PLAN + 5]
            y0 = plan[i * PLAN + 6]
            y1 = plan[i * PLAN + 7]
            columns = T.max(x1 - x0, 0)
            if y0 >= y1:
                columns = 0
            whole = 0
            if T.And(y0 == 0, y1 == height):
                whole = 1
            base = T.Cast("int64", i) * samples_x * samples_y
            begin = T.Cast("int64", i) * capacity
            total = 0
            for part in T.serial((columns + THREADS - 1) // THREADS):
                x = x0 + part * THREADS + thread
                # Where the box is as high as the image, a column goes on from the end of the one before it.
                last = 0
                if T.And(x < x1, whole == 1):
                    row = yi[y1 - 1]
                    down = yw[y1 - 1]
                    stretched(logits, base, samples_x, xi[x], row, xw[x], pair)
                    upper = pair[0]
                    lower = upper
                    if down > T.float32(0):
                        stretched(logits, base, samples_x, xi[x], row + 1, xw[x], pair)
                        lower = pair[0]
                    last = T.Cast("int32", lerp(upper, lower, down) > T.float32(0))
                if thread == THREADS - 1:
                    # The end of the chunk before is kept for the first thread of this one.
                    final[0] = T.if_then_else(part == 0, 0, final[THREADS])
                T.tvm_storage_sync("shared")
                final[thread + 1] = last
                T.tvm_storage_sync("shared")
                before = final[thread]
                for step in T.serial(2):
                    # First count, then write.
                    changes = 0
                    at = first_place(sums, thread, begin, total, step)
                    if x < x1:
                        value = before
                        first = yi[y0]
                        weight = xw[x]
                        stretched(logits, base, samples_x, xi[x], first, weight, pair)
                        upper = pair[0]
                        for r in T.serial(yi[y1 - 1] + 1 - first):
                            row = first + r
                            lower = upper
                            if row + 1 < samples_y:
                                stretched(logits, base, samples_x, xi[x], row + 1, weight, pair)
                                lower = pair[0]
                            same = 0
                            if T.And(T.And(upper > T.float32(0), lower > T.float32(0)), value == 1):
                                same = 1
                            if T.And(T.And(upper <= T.float32(0), lower <= T.float32(0)), value == 0):
                                same = 1
                            if same == 0:
                                start = T.max(starts[row], y0)
                                stop = T.min(starts[row + 1], y1)
                                for k in T.serial(T.max(stop - start, 0)):
                                    inside = T.Cast("int32", lerp(upper, lower, yw[start + k]) > T.float32(0))
                                    if inside != value:
                                        value = inside
                                        put(positions, at + changes, begin + capacity, x * height + start + k, step)
                                        changes = changes + 1
                            upper = lower
                        ending = 0
                        if T.And(value == 1, T.Or(whole == 0, x == x1 - 1)):
                            ending = 1
                        if T.And(ending == 1, x * height + y1 < width * height):
                            put(positions, at + changes, begin + capacity, x * height + y1, step)
                            changes = changes + 1
                    counted(sums, thread, changes, step)
                total = total + sums[THREADS - 1]
                T.tvm_storage_sync("shared")
            close(positions, ends, i, thread, begin, total, capacity, width * height)


def cuda_variants():
    """Every variant: {symbol: PrimFunc}."""
    functions = {"instance_plan": instance_plan, "instance_runs": instance_runs}
    return functions | {f"instance_{kind}": paint_variant(kind) for kind in ("masks", "labels")}
