"""Greedy suppression of sorted candidates on CUDA. `_boxes_cuda.py` says what they are.

A launch treats a window of the candidates, `begin` to `end`, in two parts. All blocks compare boxes and leave bits; the
last of an image's blocks to be done (`last_of`) then decides, a chunk after the other, who is kept.

Suppression within a chunk looks for the fixed point of

    kept(i) = no j < i with overlap(i, j) is kept

All candidates decide at once, as soon as what they depend on has decided, so it takes as many rounds as the longest
chain of boxes each of which hangs on the one before: few in practice, and never more than there are boxes. The result
is that of the greedy loop.
"""

from tvm.script import tirx as T

from . import _tir_iou as _iou
from ._tir_cuda import CHUNK, LARGE, WINDOW, buffer, wide
from ._tir_iou import placed

MERGE = """
static __device__ __forceinline__ void merge(unsigned* word, unsigned bits) { if (bits) atomicOr(word, bits); }
"""

LAST_OF = """
// Whether this block is the last of `blocks` to come here. It then sees what all of them wrote.
static __device__ __forceinline__ int last_of(int* ticket, int blocks) {
  __shared__ int last;
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    last = atomicAdd(ticket, 1) == blocks - 1;
    __threadfence();
  }
  __syncthreads();
  return last;
}
"""


def score_of(key):
    """The score in a key; `ordered` undone."""
    code = (key >> T.uint64(32)).astype("uint32")
    negative = (code >> T.uint32(31)) != T.uint32(0)
    return T.reinterpret("float32", T.Select(negative, code, code ^ T.uint32(0x7FFFFFFF)))


def index_of(key):
    """The index in a key."""
    return (key & T.uint64(0xFFFFFFFF)).astype("uint32").astype("int32")


TILE_ROWS, TILE_WORDS = 4, 2
"""Candidates, and words of 32 candidates, that a warp compares at a time. Small, for a few are many warps' work."""


def suppress(rotated):
    """`suppress` or `suppress_rotated`: sorted candidates of a window -> rows of the result.

    Compared are, in tiles: candidates of the window with those before them in their chunk -> local[chunk, word, i];
    with those of later chunks of the window -> dense[i, word]; and boxes that earlier windows kept, with all of the
    window -> removed[word], which is 0 before and after the launch. `progress` holds, for an image, the blocks that
    are done and the boxes kept so far; both are 0 at first and when the last candidate has been treated.

    With `indices`, the rows are the indices of the candidates, in `out_classes`, and the counts.
    """
    sides = 8 if rotated else 4
    # Clipping polygons is long code, which is not repeated.
    repeat = T.serial if rotated else T.unroll

    def area(box):
        return T.float32(4) * box[2] * box[3] if rotated else (box[2] - box[0]) * (box[3] - box[1])

    @T.prim_func
    def kernel(
        blocks: T.int32,
        batch: T.int32,
        room: T.int32,
        begin: T.int32,
        end: T.int32,
        words: T.int32,
        detections: T.int32,
        suppressing: T.int32,
        indices: T.int32,
        threshold: T.float32,
        agnostic: T.int32,
        counters_: T.int64,
        progress_: T.int64,
        keys_: T.int64,
        boxes_: T.int64,
        labels_: T.int64,
        local_: T.int64,
        dense_: T.int64,
        removed_: T.int64,
        kept_: T.int64,
        maps_: T.int64,
        out_boxes_: T.int64,
        out_scores_: T.int64,
        out_classes_: T.int64,
        out_counts_: T.int64,
        out_non_finite_: T.int64,
    ):
        T.func_attr(
            {
                "tirx.noalias": True,
                "global_symbol": "suppress_rotated" if rotated else "suppress",
                "fmad": False,
            }
        )
        T.device_entry()
        T.evaluate(T.call_extern("int32", "let_next_begin"))
        block, image = T.cta_id([blocks, batch])
        thread = T.thread_id([CHUNK])
        counters = buffer(counters_, "int32", 4)
        progress = buffer(progress_, "int32", 4)
        keys = buffer(keys_, "uint64", 8)
        boxes = buffer(boxes_, "float32", 16)
        labels = buffer(labels_, "int32", 4)
        local = buffer(local_, "uint32", 4)
        dense = buffer(dense_, "uint32", 4)
        removed = buffer(removed_, "uint32", 4)
        kept = buffer(kept_, "int32", 4)
        maps = T.decl_buffer((LARGE, 8), "float32", data=T.reinterpret("handle", maps_), align=4)
        out_boxes = buffer(out_boxes_, "float32", 4)
        out_scores = buffer(out_scores_, "float32", 4)
        out_classes = buffer(out_classes_, "int32", 4)
        out_counts = buffer(out_counts_, "int32", 4)
        out_non_finite = buffer(out_non_finite_, "int32", 4)
        taken = T.alloc_shared((2, CHUNK // 32), "uint32")
        gone = T.alloc_shared((2, CHUNK // 32), "uint32")
        hidden = T.alloc_shared((WINDOW // 32,), "uint32")
        rows = T.alloc_local((TILE_ROWS, sides), "float32")
        row_areas = T.alloc_local((TILE_ROWS,), "float32")
        row_labels = T.alloc_local((TILE_ROWS,), "int32")
        row_at = T.alloc_local((TILE_ROWS,), "int32")
        other = T.alloc_local((sides,), "float32")
        polygon = T.alloc_local((2, 2, 8), "float32")
        corners_of = T.alloc_local((2,), "int32")
        part_of = T.alloc_local((1,), "float32")
        before = T.alloc_local((CHUNK // 32,), "uint32")
        box = T.alloc_local((4,), "float32")
        some_taken = T.alloc_local((4,), "uint32")
        some_gone = T.alloc_local((4,), "uint32")
        warp: T.let = thread // 32
        lane: T.let = thread % 32
        own: T.let = T.uint32(1) << lane.astype("uint32")
        earlier: T.let = own - T.uint32(1)
        count: T.let = T.min(counters[image * 2], room)
        known: T.let = progress[image * 2 + 1]
        size: T.let = T.min(count, end) - begin
        start: T.let = wide(image) * wide(room) + wide(begin)
        local_start: T.let = wide(image) * wide((words + 31) // 32) * (CHUNK * CHUNK // 32)
        dense_start: T.let = wide(image) * wide(words) * wide(words) * 32
        removed_start: T.let = image * (WINDOW // 32)
        kept_start: T.let = wide(image) * wide(detections)
        # An image that is finished has no candidates left. (The first window gives a result of none, too.)
        if T.Or(begin == 0, size > 0):
            if suppressing != 0:
                across: T.let = (size + TILE_WORDS * 32 - 1) // (TILE_WORDS * 32)
                down: T.let = (size + TILE_ROWS - 1) // TILE_ROWS
                tile = warp * blocks + block
                while tile < across * (down + (known + TILE_ROWS - 1) // TILE_ROWS):
                    line: T.let = T.truncdiv(tile, across)
                    word: T.let = (tile - line * across) * TILE_WORDS
                    past: T.let = line >= down
                    first: T.let = (line - T.Select(past, down, 0)) * TILE_ROWS
                    same: T.let = T.And(T.Not(past), word * 32 // CHUNK == first // CHUNK)
                    inside: T.let = T.And(same, word * 32 < first + TILE_ROWS)
                    if T.Or(T.Or(inside, past), word * 32 // CHUNK > first // CHUNK):
                        for r in T.unroll(TILE_ROWS):
                            row_at[r] = T.min(first + r, size - 1)
                            if past:
                                row_at[r] = kept[kept_start + wide(T.min(first + r, known - 1))] - begin
                        for r in T.unroll(TILE_ROWS):
                            at: T.let = start + wide(row_at[r])
                            for half in T.unroll(sides // 4):
                                for side in T.vectorized(4):
                                    rows[r, half * 4 + side] = boxes[at * sides + half * 4 + side]
                            row_areas[r] = area([rows[r, side] for side in range(4)])
                            row_labels[r] = T.Select(agnostic != 0, 0, labels[at])
                        mine = T.uint32(0)
                        for w in repeat(TILE_WORDS):
                            at: T.let = start + wide(T.min((word + w) * 32 + lane, size - 1))
                            for half in T.unroll(sides // 4):
                                for side in T.vectorized(4):
                                    other[half * 4 + side] = boxes[at * sides + half * 4 + side]
                            label: T.let = T.Select(agnostic != 0, 0, labels[at])
                            there: T.let = (word + w) * 32 + lane < size
                            for r in repeat(TILE_ROWS):
                                rivals: T.let = T.And(there, row_labels[r] == label)
                                if rotated:
                                    part_of[0] = T.float32(0)
                                    if T.And(rivals, _iou.near([rows[r, k] for k in range(6)], other)):
                                        # The one before is the first: the area depends on it to the last bit.
                                        _iou.intersect_rotated(
                                            [T.Select(inside, other[k], rows[r, k]) for k in range(6)],
                                            [T.Select(inside, rows[r, k], other[k]) for k in range(6)],
                                            polygon, corners_of, part_of,
                                        )  # fmt: skip
                                else:
                                    part_of[0] = _iou.shared([rows[r, k] for k in range(4)], other, rivals)
                                part: T.let = part_of[0]
                                whole: T.let = row_areas[r] + area(other) - part
                                # A division is slow and mostly not needed to know on which side it falls.
                                bound: T.let = threshold * whole
                                sure: T.let = T.And(whole > T.float32(0), part > bound * T.float32(1.0001))
                                open_: T.let = T.And(T.And(part > T.float32(0), part >= bound), T.Not(sure))
                                bits = T.cuda.ballot_sync(T.uint32(0xFFFFFFFF), sure.astype("int32"))
                                if T.cuda.ballot_sync(T.uint32(0xFFFFFFFF), open_.astype("int32")) != T.uint32(0):
                                    bits = bits | T.cuda.ballot_sync(
                                        T.uint32(0xFFFFFFFF), T.And(open_, part / whole > threshold).astype("int32")
                                    )
                                if r * TILE_WORDS + w == lane:
                                    mine = bits
                        i: T.let = first + lane // TILE_WORDS
                        w: T.let = word + lane % TILE_WORDS
                        if T.And(lane < TILE_ROWS * TILE_WORDS, w < words):
                            if past:
                                if i < known:
                                    T.evaluate(
                                        T.cuda.func_call(
                                            "merge", removed.ptr_to([removed_start + w]), mine, source_code=MERGE
                                        )
                                    )
                            elif i < size:
                                if inside:
                                    local[
                                        local_start
                                        + wide((i // CHUNK * (CHUNK // 32) + w % (CHUNK // 32)) * CHUNK + i % CHUNK)
                                    ] = mine
                                else:
                                    dense[dense_start + wide(i * words + w)] = mine
                    tile = tile + blocks * (CHUNK // 32)
            last = T.cuda.func_call(
                "last_of", progress.ptr_to([image * 2]), blocks, source_code=LAST_OF, return_type="int32"
            )
            if last != 0:
                if thread < WINDOW // 32:
                    hidden[thread] = T.uint32(0)
                    if known > 0:
                        hidden[thread] = removed[removed_start + thread]
                        removed[removed_start + thread] = T.uint32(0)
                T.cuda.cta_sync()
                found = known
                chunk = T.int32(0)
                turn = T.int32(0)
                while T.And(chunk * CHUNK < size, found < detections):
                    i: T.let = chunk * CHUNK + thread
                    at: T.let = start + wide(T.min(i, size - 1))
                    # 0: undecided, 1: kept, 2: gone
                    state = T.Select(i < size, T.Select(suppressing == 0, 1, 0), 2)
                    if suppressing != 0:
                        for w in T.unroll(CHUNK // 32):
                            before[w] = T.uint32(0)
                            if T.And(w <= warp, i < size):
                                before[w] = local[
                                    local_start + wide((chunk * (CHUNK // 32) + w) * CHUNK + thread)
                                ] & T.Select(w == warp, earlier, T.uint32(0xFFFFFFFF))
                        if hidden[chunk * (CHUNK // 32) + warp] & own != T.uint32(0):
                            state = 2
                    for side in T.vectorized(4):
                        box[side] = boxes[at * sides + side]
                    label: T.let = labels[at]
                    key: T.let = keys[at]
                    deciding = T.int32(1)
                    while deciding != 0:
                        turn = 1 - turn  # what others may still read stays as it is
                        taken_bits = T.cuda.ballot_sync(T.uint32(0xFFFFFFFF), T.Select(state == 1, 1, 0))
                        gone_bits = T.cuda.ballot_sync(T.uint32(0xFFFFFFFF), T.Select(state == 2, 1, 0))
                        if lane == 0:
                            taken[turn, warp] = taken_bits
                            gone[turn, warp] = gone_bits
                        deciding = T.cuda.syncthreads_or(T.Select(state == 0, 1, 0))
                        if state == 0:
                            hit = T.uint32(0)
                            open_ = T.uint32(0)
                            for w in T.unroll(CHUNK // 128):
                                if w * 4 <= warp:
                                    for v in T.vectorized(4):
                                        some_taken[v] = taken[turn, w * 4 + v]
                                    for v in T.vectorized(4):
                                        some_gone[v] = gone[turn, w * 4 + v]
                                    for v in T.unroll(4):
                                        hit = hit | (before[w * 4 + v] & some_taken[v])
                                        open_ = open_ | (before[w * 4 + v] & ~some_gone[v])
                            if hit != T.uint32(0):
                                state = 2
                            elif open_ == T.uint32(0):
                                state = 1
                    bits: T.let = T.popcount(taken[turn, lane]).astype("int32")
                    total: T.let = T.cuda.warp_sum(bits)
                    warps_before: T.let = T.cuda.warp_sum(T.Select(lane < warp, bits, 0))
                    row: T.let = found + warps_before + T.popcount(taken[turn, warp] & earlier).astype("int32")
                    if T.And(state == 1, row < detections):
                        to: T.let = kept_start + wide(row)
                        kept[to] = begin + i
                        if indices != 0:
                            out_classes[to] = index_of(key)
                        else:
                            out_classes[to] = label
                            out_scores[to] = score_of(key)
                            for side in T.unroll(4):
                                out_boxes[to * 4 + side] = placed(box[side], side % 2, maps, image)
                    T.cuda.cta_sync()
                    enough: T.let = T.min(found + total, detections)
                    if T.And(T.And(suppressing != 0, enough < detections), (chunk + 1) * CHUNK < size):
                        k = found + warp
                        while k < enough:
                            hides: T.let = dense_start + wide((kept[kept_start + wide(k)] - begin) * words)
                            w = (chunk + 1) * (CHUNK // 32) + lane
                            while w < (size + 31) // 32:
                                T.evaluate(
                                    T.cuda.func_call(
                                        "merge", hidden.ptr_to([w]), dense[hides + wide(w)], source_code=MERGE
                                    )
                                )
                                w = w + 32
                            k = k + 32
                        T.cuda.cta_sync()
                    found = enough
                    chunk = chunk + 1
                if thread == 0:
                    progress[image * 2] = 0
                    progress[image * 2 + 1] = found
                    if T.Or(count <= end, found == detections):
                        progress[image * 2 + 1] = 0
                        out_counts[image] = found
                        if indices == 0:
                            out_non_finite[image] = counters[image * 2 + 1]
                        counters[image * 2] = 0
                        counters[image * 2 + 1] = 0

    return kernel


def cuda_variants():
    """Every variant: {symbol: PrimFunc}."""
    return {"suppress": suppress(False), "suppress_rotated": suppress(True)}
