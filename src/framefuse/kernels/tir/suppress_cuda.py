"""Greedy suppression of sorted candidates on CUDA. `_boxes_cuda.py` says what they are.

Suppression within a chunk looks for the fixed point of

    kept(i) = no j < i with overlap(i, j) is kept

All candidates decide at once, as soon as what they depend on has decided, so it takes as many rounds as the longest
chain of boxes each of which hangs on the one before: few in practice, and never more than there are boxes. The result
is that of the greedy loop.
"""

from tvm.script import tirx as T

from . import _iou
from ._boxes_cuda import CHUNK, DENSE, LARGE, buffer, wide
from ._iou import placed

MERGE = """
static __device__ __forceinline__ void merge(unsigned* word, unsigned bits) { if (bits) atomicOr(word, bits); }
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
"""Candidates, and words of 32 candidates, that a warp of `overlap` compares. Small, for a few are many warps' work."""


def overlap(rotated):
    """`overlap` or `overlap_rotated`: bits of the candidates that candidate i overlaps, 32 to a word.

    local[chunk, word, i] has those of its own chunk that do not come after it, dense[i, word] those of later chunks.
    Where `later` is 0, of the first chunk only; else the others'.
    """
    sides = 8 if rotated else 4

    def area(box):
        return T.float32(4) * box[2] * box[3] if rotated else (box[2] - box[0]) * (box[3] - box[1])

    @T.prim_func
    def kernel(
        blocks: T.int32,
        batch: T.int32,
        room: T.int32,
        dense_words: T.int32,
        later: T.int32,
        threshold: T.float32,
        agnostic: T.int32,
        counters_: T.int64,
        boxes_: T.int64,
        labels_: T.int64,
        local_: T.int64,
        dense_: T.int64,
    ):
        T.func_attr({"tirx.noalias": True, "global_symbol": "overlap_rotated" if rotated else "overlap", "fmad": False})
        T.device_entry()
        block, picture = T.cta_id([blocks, batch])
        thread = T.thread_id([256])
        counters = buffer(counters_, "int32", 4)
        boxes = buffer(boxes_, "float32", 16)
        labels = buffer(labels_, "int32", 4)
        local = buffer(local_, "uint32", 4)
        dense = buffer(dense_, "uint32", 4)
        lane: T.let = thread % 32
        count: T.let = T.min(counters[picture * 2], room)
        start: T.let = wide(picture) * wide(room)
        chunks: T.let = (room + CHUNK - 1) // CHUNK
        local_start: T.let = wide(picture) * wide(chunks) * (CHUNK * CHUNK // 32)
        dense_start: T.let = wide(picture) * wide(dense_words) * wide(dense_words) * 32
        limit: T.let = T.Select(later != 0, count, T.min(count, CHUNK))
        across: T.let = (limit + TILE_WORDS * 32 - 1) // (TILE_WORDS * 32)
        down: T.let = (limit + TILE_ROWS - 1) // TILE_ROWS
        rows = T.alloc_local((TILE_ROWS, sides), "float32")
        row_areas = T.alloc_local((TILE_ROWS,), "float32")
        row_labels = T.alloc_local((TILE_ROWS,), "int32")
        box = T.alloc_local((sides,), "float32")
        polygon = T.alloc_local((2, 2, 8), "float32")
        corners_of = T.alloc_local((2,), "int32")
        part_of = T.alloc_local((1,), "float32")
        areas = T.alloc_local((TILE_WORDS,), "float32")
        shared = T.alloc_local((TILE_ROWS, TILE_WORDS), "float32")
        tile = thread // 32 * blocks + block
        while tile < across * down:
            first: T.let = tile // across * TILE_ROWS
            word: T.let = tile % across * TILE_WORDS
            inside: T.let = T.And(word * 32 // CHUNK == first // CHUNK, word * 32 < first + TILE_ROWS)
            beyond: T.let = T.And(word * 32 // CHUNK > first // CHUNK, word < dense_words)
            asked: T.let = T.Or(later == 0, word * 32 >= CHUNK)
            if T.And(T.Or(inside, beyond), asked):
                for r in T.unroll(TILE_ROWS):
                    at: T.let = start + wide(T.min(first + r, count - 1))
                    for half in T.unroll(sides // 4):
                        for side in T.vectorized(4):
                            rows[r, half * 4 + side] = boxes[at * sides + half * 4 + side]
                    row_areas[r] = area([rows[r, side] for side in range(4)])
                    row_labels[r] = T.Select(agnostic != 0, 0, labels[at])
                for w in T.unroll(TILE_WORDS):
                    at: T.let = start + wide(T.min((word + w) * 32 + lane, count - 1))
                    for half in T.unroll(sides // 4):
                        for side in T.vectorized(4):
                            box[half * 4 + side] = boxes[at * sides + half * 4 + side]
                    areas[w] = area(box)
                    label: T.let = T.Select(agnostic != 0, 0, labels[at])
                    for r in T.unroll(TILE_ROWS):
                        if rotated:
                            # Of the two, the one before is the first: the area depends on it to the last bit.
                            row_box = [rows[r, side] for side in range(6)]
                            shared[r, w] = T.float32(0)
                            if T.And(row_labels[r] == label, _iou.near(row_box, box)):
                                if inside:
                                    _iou.intersect_rotated(box, row_box, polygon, corners_of, part_of)
                                else:
                                    _iou.intersect_rotated(row_box, box, polygon, corners_of, part_of)
                                shared[r, w] = part_of[0]
                        else:
                            shared[r, w] = _iou.shared(
                                [rows[r, 0], rows[r, 1], rows[r, 2], rows[r, 3]], box, row_labels[r] == label
                            )
                mine = T.uint32(0)
                for w in T.unroll(TILE_WORDS):
                    for r in T.unroll(TILE_ROWS):
                        # Most share nothing, and 0 is slow to divide: it is not, and nothing is unless a lane needs it.
                        meet: T.let = T.And((word + w) * 32 + lane < count, shared[r, w] > 0)
                        if T.cuda.ballot_sync(T.uint32(0xFFFFFFFF), meet.astype("int32")) != T.uint32(0):
                            part: T.let = T.Select(meet, shared[r, w], T.float32(1))
                            whole: T.let = T.Select(meet, row_areas[r] + areas[w] - shared[r, w], T.float32(1))
                            bits = T.cuda.ballot_sync(
                                T.uint32(0xFFFFFFFF), T.And(meet, part / whole > threshold).astype("int32")
                            )
                            if r * TILE_WORDS + w == lane:
                                mine = bits
                i: T.let = first + lane // TILE_WORDS
                w: T.let = word + lane % TILE_WORDS
                if T.And(lane < TILE_ROWS * TILE_WORDS, i < count):
                    if inside:
                        local[
                            local_start
                            + (wide(i // CHUNK) * (CHUNK // 32) + wide(w % (CHUNK // 32))) * CHUNK
                            + wide(i % CHUNK)
                        ] = mine
                    elif w < dense_words:
                        dense[dense_start + wide(i) * wide(dense_words) + wide(w)] = mine
            tile = tile + blocks * 8

    return kernel


def finish(rotated):
    """`finish` or `finish_rotated`: sorted candidates and their overlaps -> rows of the result. A block is a picture.

    With `indices`, the rows are the indices of the candidates, in `out_classes`, and the counts.
    """
    sides = 8 if rotated else 4

    def numbers(boxes, at):
        return [boxes[at * sides + side] for side in range(6 if rotated else 4)]

    def sized(box):
        return [*box, (box[2] - box[0]) * (box[3] - box[1])]

    @T.inline
    def hides(boxes, other, at, rivals, threshold, hidden, polygon, corners, part):
        """hidden[0] = whether one box suppresses another. The last resort: one pair after the other."""
        hidden[0] = 0
        if rotated:
            if T.And(rivals, _iou.near(numbers(boxes, other), numbers(boxes, at))):
                _iou.intersect_rotated(numbers(boxes, other), numbers(boxes, at), polygon, corners, part)
                whole = (
                    T.float32(4) * boxes[other * 8 + 2] * boxes[other * 8 + 3]
                    + T.float32(4) * boxes[at * 8 + 2] * boxes[at * 8 + 3]
                    - part[0]
                )
                hidden[0] = (part[0] / whole > threshold).astype("int32")
        else:
            hidden[0] = _iou.suppresses(
                sized(numbers(boxes, other)), sized(numbers(boxes, at)), rivals, threshold
            ).astype("int32")

    @T.prim_func
    def kernel(
        batch: T.int32,
        room: T.int32,
        dense_words: T.int32,
        detections: T.int32,
        suppressing: T.int32,
        later: T.int32,
        indices: T.int32,
        threshold: T.float32,
        agnostic: T.int32,
        counters_: T.int64,
        keys_: T.int64,
        boxes_: T.int64,
        labels_: T.int64,
        local_: T.int64,
        dense_: T.int64,
        kept_: T.int64,
        maps_: T.int64,
        out_boxes_: T.int64,
        out_scores_: T.int64,
        out_classes_: T.int64,
        out_counts_: T.int64,
        out_non_finite_: T.int64,
    ):
        T.func_attr({"tirx.noalias": True, "global_symbol": "finish_rotated" if rotated else "finish", "fmad": False})
        T.device_entry()
        picture = T.cta_id([batch])
        thread = T.thread_id([CHUNK])
        counters = buffer(counters_, "int32", 4)
        keys = buffer(keys_, "uint64", 8)
        boxes = buffer(boxes_, "float32", 16)
        labels = buffer(labels_, "int32", 4)
        local = buffer(local_, "uint32", 4)
        dense = buffer(dense_, "uint32", 4)
        kept = buffer(kept_, "int32", 4)
        maps = T.decl_buffer((LARGE, 8), "float32", data=T.reinterpret("handle", maps_), align=4)
        out_boxes = buffer(out_boxes_, "float32", 4)
        out_scores = buffer(out_scores_, "float32", 4)
        out_classes = buffer(out_classes_, "int32", 4)
        out_counts = buffer(out_counts_, "int32", 4)
        out_non_finite = buffer(out_non_finite_, "int32", 4)
        taken = T.alloc_shared((2, CHUNK // 32), "uint32")
        gone = T.alloc_shared((2, CHUNK // 32), "uint32")
        removed = T.alloc_shared((DENSE // 32,), "uint32")
        before = T.alloc_local((CHUNK // 32,), "uint32")
        hidden = T.alloc_local((1,), "int32")
        polygon = T.alloc_local((2, 2, 8), "float32")
        corners = T.alloc_local((2,), "int32")
        part = T.alloc_local((1,), "float32")
        box = T.alloc_local((4,), "float32")
        some_taken = T.alloc_local((4,), "uint32")
        some_gone = T.alloc_local((4,), "uint32")
        warp: T.let = thread // 32
        lane: T.let = thread % 32
        own: T.let = T.uint32(1) << lane.astype("uint32")
        earlier: T.let = own - T.uint32(1)
        count: T.let = T.min(counters[picture * 2], room)
        start: T.let = wide(picture) * wide(room)
        chunks: T.let = (room + CHUNK - 1) // CHUNK
        local_start: T.let = wide(picture) * wide(chunks) * (CHUNK * CHUNK // 32)
        dense_start: T.let = wide(picture) * wide(dense_words) * wide(dense_words) * 32
        kept_start: T.let = wide(picture) * wide(detections)
        if thread < DENSE // 32:
            removed[thread] = T.uint32(0)
        found = T.int32(0)
        chunk = T.int32(0)
        turn = T.int32(0)
        limit: T.let = T.Select(T.Or(later != 0, suppressing == 0), count, T.min(count, CHUNK))
        while T.And(chunk * CHUNK < limit, found < detections):
            i: T.let = chunk * CHUNK + thread
            at: T.let = start + wide(T.min(i, count - 1))
            # 0: undecided, 1: kept, 2: gone
            state = T.Select(i < count, 0, 2)
            if suppressing == 0:
                state = T.Select(i < count, 1, 2)
            else:
                for w in T.unroll(CHUNK // 32):
                    before[w] = T.uint32(0)
                    if T.And(w <= warp, i < count):
                        before[w] = local[
                            local_start + (wide(chunk) * (CHUNK // 32) + w) * CHUNK + wide(thread)
                        ] & T.Select(w == warp, earlier, T.uint32(0xFFFFFFFF))
                if chunk * CHUNK < dense_words * 32:
                    if T.And(chunk > 0, removed[chunk * (CHUNK // 32) + warp] & own != T.uint32(0)):
                        state = 2
                else:
                    k = T.int32(0)
                    while T.And(k < found, state == 0):
                        other: T.let = start + wide(kept[kept_start + wide(k)])
                        rivals: T.let = T.Or(agnostic != 0, labels[other] == labels[at])
                        hides(boxes, other, at, rivals, threshold, hidden, polygon, corners, part)
                        state = T.Select(hidden[0] != 0, 2, state)
                        k = k + 1
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
                kept[to] = i
                if indices != 0:
                    out_classes[to] = index_of(key)
                else:
                    out_classes[to] = label
                    out_scores[to] = score_of(key)
                    for side in T.unroll(4):
                        out_boxes[to * 4 + side] = placed(box[side], side % 2, maps, picture)
            T.cuda.cta_sync()
            enough: T.let = T.min(found + total, detections)
            if T.And(later != 0, enough < detections):
                k = found + warp
                while k < enough:
                    kept_row: T.let = dense_start + wide(kept[kept_start + wide(k)]) * wide(dense_words)
                    if kept[kept_start + wide(k)] < dense_words * 32:
                        w = (chunk + 1) * (CHUNK // 32) + lane
                        while w < T.min(dense_words, (count + 31) // 32):
                            T.evaluate(
                                T.cuda.func_call(
                                    "merge", removed.ptr_to([w]), dense[kept_row + wide(w)], source_code=MERGE
                                )
                            )
                            w = w + 32
                    k = k + 32
                T.cuda.cta_sync()
            found = enough
            chunk = chunk + 1
        # What is not done is left to `later`, which begins again; what is done has no candidates then.
        done: T.let = T.Or(later == 0, count > 0)
        if T.And(T.And(thread == 0, done), T.Or(limit == count, found == detections)):
            out_counts[picture] = found
            if indices == 0:
                out_non_finite[picture] = counters[picture * 2 + 1]
            counters[picture * 2] = 0
            counters[picture * 2 + 1] = 0

    return kernel


def cuda_variants():
    """Every variant: {symbol: PrimFunc}."""
    kernels = [make(rotated) for make in (overlap, finish) for rotated in (False, True)]
    return {str(kernel.attrs["global_symbol"]): kernel for kernel in kernels}
