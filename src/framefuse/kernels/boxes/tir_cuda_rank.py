"""Candidates on CUDA in the order of their keys. `_boxes_cuda.py` says what they are."""

from tvm.script import tirx as T

from ._tir_cuda import RESERVE, buffer, wide
from ._tir_iou import ordered

LISTED, AHEAD = 1024, 4
"""Candidates of a block in `rank` that it keeps at hand. Keys that a thread reads at once."""

ONE = 0x7FFFFFFF - 0x3F800000
"""`ordered` of the score 1."""


def upper(key):
    """The half of a key that is `ordered` of the score."""
    return (key >> T.uint64(32)).astype("uint32")


def rank(sides):
    """`rank`, for boxes of 4 numbers, or `rank_rotated`, of 8: sorted[place] = candidate.

    The place is the number of candidates with a smaller key.

    A block ranks those of its own range of scores: it reads every key, counts those before its range and compares the
    others in it with each other. The ranges share out what lies between 1 and the confidence on a logarithmic scale.
    """
    symbol = "rank" if sides == 4 else "rank_rotated"

    @T.prim_func
    def kernel(
        blocks: T.int32,
        batch: T.int32,
        capacity: T.int32,
        room: T.int32,
        confidence: T.float32,
        counters_: T.int64,
        keys_: T.int64,
        boxes_: T.int64,
        labels_: T.int64,
        sorted_keys_: T.int64,
        sorted_boxes_: T.int64,
        sorted_labels_: T.int64,
    ):
        T.func_attr({"tirx.noalias": True, "global_symbol": symbol, "fmad": False})
        T.device_entry()
        T.evaluate(T.call_extern("int32", "let_next_begin"))
        block, image = T.cta_id([blocks, batch])
        thread = T.thread_id([512])
        counters = buffer(counters_, "int32", 4)
        keys = buffer(keys_, "uint64", 8)
        boxes = buffer(boxes_, "float32", 16)
        labels = buffer(labels_, "int32", 4)
        sorted_keys = buffer(sorted_keys_, "uint64", 8)
        sorted_boxes = buffer(sorted_boxes_, "float32", 16)
        sorted_labels = buffer(sorted_labels_, "int32", 4)
        listed = T.alloc_shared((LISTED,), "uint64")
        listed_at = T.alloc_shared((LISTED,), "int32")
        sizes = T.alloc_shared((2,), "int32")
        others = T.alloc_local((AHEAD,), "uint64")
        count: T.let = counters[image * 2]
        start: T.let = wide(image) * wide(capacity)
        target: T.let = wide(image) * wide(room)
        least: T.let = ordered(T.max(confidence, T.float32(0))).astype("int64")
        width: T.let = T.max(least - T.int64(ONE), T.int64(0)) // wide(blocks) + T.int64(1)
        lowest: T.let = T.Select(block == 0, T.int64(0), T.int64(ONE) + wide(block) * width)
        next_: T.let = T.Select(block == blocks - 1, T.int64(1 << 32), T.int64(ONE) + wide(block + 1) * width)
        low: T.let = lowest.astype("uint32")
        span: T.let = (next_ - lowest - T.int64(1)).astype("uint32")
        if thread < 2:
            sizes[thread] = 0
        T.cuda.cta_sync()
        before = T.int32(0)
        for step in T.serial((count + AHEAD * 512 - 1) // (AHEAD * 512)):
            for a in T.unroll(AHEAD):
                others[a] = keys[start + wide(T.min((step * AHEAD + a) * 512 + thread, count - 1))]
            for a in T.unroll(AHEAD):
                at: T.let = (step * AHEAD + a) * 512 + thread
                there: T.let = at < count
                before = before + T.And(there, upper(others[a]) < low).astype("int32")
                mine = T.And(there, upper(others[a]) - low <= span).astype("int32")
                slot = T.cuda.func_call("reserve", sizes.ptr_to([0]), mine, source_code=RESERVE, return_type="int32")
                if T.And(mine != 0, slot < LISTED):
                    listed[slot] = others[a]
                    listed_at[slot] = at
        before = T.cuda.warp_sum(before)
        if thread % 32 == 0:
            T.evaluate(T.cuda.atomic_add(sizes.ptr_to([1]), before))
        T.cuda.cta_sync()
        size: T.let = sizes[0]
        crowded: T.let = size > LISTED
        member = thread
        while member < T.Select(crowded, count, size):
            key = T.uint64(0)
            at = member
            place = T.int32(0)
            if crowded:
                key = keys[start + wide(member)]
                place = room
                if upper(key) - low <= span:
                    place = 0
                    for other in T.serial(count):
                        place = place + T.Select(keys[start + wide(other)] < key, 1, 0)
            else:
                key = listed[member]
                at = listed_at[member]
                place = sizes[1]
                for other in T.serial(size):
                    place = place + T.Select(listed[other] < key, 1, 0)
            if place < room:
                source: T.let = start + wide(at)
                to: T.let = target + wide(place)
                sorted_keys[to] = key
                sorted_labels[to] = labels[source]
                for half in T.unroll(sides // 4):
                    for side in T.vectorized(4):
                        sorted_boxes[to * sides + half * 4 + side] = boxes[source * sides + half * 4 + side]
            member = member + 512

    return kernel


def cuda_variants():
    """Every variant: {symbol: PrimFunc}."""
    return {"rank": rank(4), "rank_rotated": rank(8)}
