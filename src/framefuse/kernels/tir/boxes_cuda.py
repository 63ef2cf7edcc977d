"""Detections in TIRx for CUDA: launches whose shapes do not depend on the data; counts stay on the device.

    filter_*    raw outputs -> candidates of each picture in any order, each with a unique key (score, anchor)
    rank        a candidate's place is the number of smaller keys; each is copied to its place
    overlap     which candidates overlap by more than the threshold, as bits
    finish      greedy suppression, a chunk of 1,024 candidates at a time; rows of the result in source pixels

`overlap` and `finish` run for the first chunk, which mostly holds enough, and again, with `later`, for all of them;
where the first pair has finished a picture, the second finds no candidates.

Suppression within a chunk looks for the fixed point of

    kept(i) = no j < i with overlap(i, j) is kept

All candidates decide at once, as soon as what they depend on has decided, so it takes as many rounds as the longest
chain of boxes each of which hangs on the one before: few in practice, and never more than there are boxes. The result
is that of the greedy loop.

blockIdx.y (in `finish` blockIdx.x) is the picture. `counters` (batch, 2) are the candidates and the anchors left out
for a NaN or an infinity. They must be 0 at first, and `finish` sets them back.
"""

from tvm.script import tirx as T

from . import _iou
from ._iou import broken, ordered, placed

SAMPLES = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}

CHUNK = 1024
"""Candidates that decide together: the threads of a block."""

DENSE = 8192
"""Candidates whose overlaps are all kept as bits; the rare ones after them are compared with the kept boxes."""

LAST = 1 << 30
"""After every class."""

LARGE = 1 << 40
"""Elements of a buffer whose size nobody needs."""

RESERVE = """
// A place for each lane of the warp that wants one, counted in `counter`.
static __device__ __forceinline__ int reserve(int* counter, int wanted) {
  unsigned lanes = __ballot_sync(0xffffffffu, wanted), lane = threadIdx.x & 31u;
  if (lanes == 0u) return 0;
  int first = 0;
  if (lane == 0u) first = atomicAdd(counter, __popc(lanes));
  return __shfl_sync(0xffffffffu, first, 0) + __popc(lanes & ((1u << lane) - 1u));
}
"""

MERGE = """
static __device__ __forceinline__ void merge(unsigned* word, unsigned bits) { if (bits) atomicOr(word, bits); }
"""


def buffer(address, dtype, align):
    return T.decl_buffer((LARGE,), dtype, data=T.reinterpret("handle", address), align=align)


def read(values, index):
    return values[index].astype("float32")


def wide(value):
    return value.astype("int64")


def key_of(score, index):
    """Unique, ascending by descending score, then by index."""
    return (ordered(score).astype("uint64") << T.uint64(32)) | index.astype("uint64")


def score_of(key):
    """The score in a key; `ordered` undone."""
    code = (key >> T.uint64(32)).astype("uint32")
    negative = (code >> T.uint32(31)) != T.uint32(0)
    return T.reinterpret("float32", T.Select(negative, code, code ^ T.uint32(0x7FFFFFFF)))


def corners(boxes, at):
    """x1, y1, x2, y2, area of a box."""
    sides = [boxes[at * 4 + side] for side in range(4)]
    return [*sides, (sides[2] - sides[0]) * (sides[3] - sides[1])]


@T.inline
def append(counters, keys, boxes, labels, picture, capacity, keep, score, label, index, x1, y1, x2, y2):
    """Add a candidate where `keep`. Every lane of the warp must come here."""
    slot = T.cuda.func_call("reserve", counters.ptr_to([picture * 2]), keep, source_code=RESERVE, return_type="int32")
    if keep != 0:
        at: T.let = wide(picture) * wide(capacity) + wide(slot)
        keys[at] = key_of(score, index)
        labels[at] = label
        boxes[at * 4] = x1
        boxes[at * 4 + 1] = y1
        boxes[at * 4 + 2] = x2
        boxes[at * 4 + 3] = y2


def filter_yolov8(sample):
    """(batch, 4 + classes, anchors). A block reads 32 anchors; its 8 warps share the classes."""

    @T.prim_func
    def kernel(
        values_: T.int64,
        picture_pitch: T.int64,
        pitch: T.int32,
        batch: T.int32,
        anchors: T.int32,
        classes: T.int32,
        confidence: T.float32,
        wanted_: T.int64,
        capacity: T.int32,
        counters_: T.int64,
        keys_: T.int64,
        boxes_: T.int64,
        labels_: T.int64,
    ):
        T.func_attr({"tirx.noalias": True, "global_symbol": f"filter_yolov8_{sample}", "fmad": False})
        T.device_entry()
        block, picture = T.cta_id([(anchors + 31) // 32, batch])
        thread = T.thread_id([256])
        values = buffer(values_, SAMPLES[sample], 2)
        wanted = buffer(wanted_, "uint8", 1)
        counters = buffer(counters_, "int32", 4)
        keys = buffer(keys_, "uint64", 8)
        boxes = buffer(boxes_, "float32", 4)
        labels = buffer(labels_, "int32", 4)
        bests = T.alloc_shared((8, 32), "float32")
        firsts = T.alloc_shared((8, 32), "int32")
        bads = T.alloc_shared((8, 32), "int32")
        sides = T.alloc_shared((4, 32), "float32")
        warp: T.let = thread // 32
        lane: T.let = thread % 32
        anchor: T.let = T.min(block * 32 + lane, anchors - 1)
        start: T.let = wide(picture) * picture_pitch + wide(anchor)
        best = T.reinterpret("float32", T.uint32(0xFF800000))
        label = warp
        bad = T.int32(0)
        for step in T.serial((classes + 7 - warp) // 8):
            value: T.let = read(values, start + wide(4 + warp + step * 8) * wide(pitch))
            bad = bad | broken(value).astype("int32")
            if value > best:
                best = value
                label = warp + step * 8
        if warp < 4:
            side: T.let = read(values, start + wide(warp) * wide(pitch))
            bad = bad | broken(side).astype("int32")
            sides[warp, lane] = side
        bests[warp, lane] = best
        firsts[warp, lane] = label
        bads[warp, lane] = bad
        T.cuda.cta_sync()
        if warp == 0:
            for other in T.serial(1, 8):
                value: T.let = bests[other, lane]
                bad = bad | bads[other, lane]
                if T.Or(value > best, T.And(value == best, firsts[other, lane] < label)):
                    best = value
                    label = firsts[other, lane]
            mine: T.let = block * 32 + lane < anchors
            if T.And(mine, bad != 0):
                T.evaluate(T.cuda.atomic_add(counters.ptr_to([picture * 2 + 1]), T.int32(1)))
            keep = T.int32(0)
            if T.And(T.And(mine, bad == 0), best > confidence):
                keep = wanted[label].astype("int32")
            x: T.let = sides[0, lane]
            y: T.let = sides[1, lane]
            half_width: T.let = sides[2, lane] * T.float32(0.5)
            half_height: T.let = sides[3, lane] * T.float32(0.5)
            append(
                counters, keys, boxes, labels, picture, capacity, keep, best, label, anchor,
                x - half_width, y - half_height, x + half_width, y + half_height,
            )  # fmt: skip

    return kernel


def filter_yolov5(sample):
    """(batch, anchors, 5 + classes). A warp reads an anchor."""

    @T.prim_func
    def kernel(
        values_: T.int64,
        picture_pitch: T.int64,
        pitch: T.int32,
        batch: T.int32,
        anchors: T.int32,
        classes: T.int32,
        confidence: T.float32,
        wanted_: T.int64,
        capacity: T.int32,
        counters_: T.int64,
        keys_: T.int64,
        boxes_: T.int64,
        labels_: T.int64,
    ):
        T.func_attr({"tirx.noalias": True, "global_symbol": f"filter_yolov5_{sample}", "fmad": False})
        T.device_entry()
        block, picture = T.cta_id([(anchors + 7) // 8, batch])
        thread = T.thread_id([256])
        values = buffer(values_, SAMPLES[sample], 2)
        wanted = buffer(wanted_, "uint8", 1)
        counters = buffer(counters_, "int32", 4)
        keys = buffer(keys_, "uint64", 8)
        boxes = buffer(boxes_, "float32", 4)
        labels = buffer(labels_, "int32", 4)
        lane: T.let = thread % 32
        anchor: T.let = block * 8 + thread // 32
        start: T.let = wide(picture) * picture_pitch + wide(T.min(anchor, anchors - 1)) * wide(pitch)
        objectness: T.let = read(values, start + 4)
        best = T.reinterpret("float32", T.uint32(0xFF800000))
        label = T.int32(LAST)
        bad = T.int32(0)
        for step in T.serial((classes + 36 - lane) // 32):
            at: T.let = step * 32 + lane
            value: T.let = read(values, start + at)
            bad = bad | broken(value).astype("int32")
            if T.And(at >= 5, value * objectness > best):
                best = value * objectness
                label = at - 5
        top = T.cuda.warp_max(best)
        first = T.cuda.warp_min(T.Select(best == top, label, T.int32(LAST)))
        worst = T.cuda.warp_max(bad)
        mine: T.let = T.And(anchor < anchors, lane == 0)
        if T.And(mine, worst != 0):
            T.evaluate(T.cuda.atomic_add(counters.ptr_to([picture * 2 + 1]), T.int32(1)))
        keep = T.int32(0)
        if T.And(T.And(mine, worst == 0), T.And(objectness > confidence, top > confidence)):
            keep = wanted[first].astype("int32")
        x: T.let = read(values, start)
        y: T.let = read(values, start + 1)
        half_width: T.let = read(values, start + 2) * T.float32(0.5)
        half_height: T.let = read(values, start + 3) * T.float32(0.5)
        append(
            counters, keys, boxes, labels, picture, capacity, keep, top, first, anchor,
            x - half_width, y - half_height, x + half_width, y + half_height,
        )  # fmt: skip

    return kernel


def filter_end2end(sample):
    """(batch, rows, 6). A thread reads a row."""

    @T.prim_func
    def kernel(
        values_: T.int64,
        picture_pitch: T.int64,
        pitch: T.int32,
        batch: T.int32,
        anchors: T.int32,
        classes: T.int32,
        confidence: T.float32,
        wanted_: T.int64,
        capacity: T.int32,
        counters_: T.int64,
        keys_: T.int64,
        boxes_: T.int64,
        labels_: T.int64,
    ):
        T.func_attr({"tirx.noalias": True, "global_symbol": f"filter_end2end_{sample}", "fmad": False})
        T.device_entry()
        block, picture = T.cta_id([(anchors + 127) // 128, batch])
        thread = T.thread_id([128])
        values = buffer(values_, SAMPLES[sample], 2)
        wanted = buffer(wanted_, "uint8", 1)
        counters = buffer(counters_, "int32", 4)
        keys = buffer(keys_, "uint64", 8)
        boxes = buffer(boxes_, "float32", 4)
        labels = buffer(labels_, "int32", 4)
        anchor: T.let = block * 128 + thread
        start: T.let = wide(picture) * picture_pitch + wide(T.min(anchor, anchors - 1)) * wide(pitch)
        bad = T.int32(0)
        for field in T.serial(6):
            bad = bad | broken(read(values, start + field)).astype("int32")
        if T.And(anchor < anchors, bad != 0):
            T.evaluate(T.cuda.atomic_add(counters.ptr_to([picture * 2 + 1]), T.int32(1)))
        score: T.let = read(values, start + 4)
        label = T.int32(0)
        keep = T.int32(0)
        if T.And(T.And(anchor < anchors, bad == 0), score > confidence):
            label = T.floor(read(values, start + 5) + T.float32(0.5)).astype("int32")
            # `classes` is the length of `wanted`; with 0, every class is.
            keep = T.int32(1)
            if classes > 0:
                keep = T.int32(0)
                if T.And(label >= 0, label < classes):
                    keep = wanted[label].astype("int32")
        append(
            counters, keys, boxes, labels, picture, capacity, keep, score, label, anchor,
            read(values, start), read(values, start + 1), read(values, start + 2), read(values, start + 3),
        )  # fmt: skip

    return kernel


def filter_detr(sample):
    """Boxes (batch, queries, 4) cx cy w h and logits (batch, queries, classes), of which every pair competes.

    A warp reads a query.
    """

    @T.prim_func
    def kernel(
        values_: T.int64,
        picture_pitch: T.int64,
        pitch: T.int32,
        sides_: T.int64,
        sides_picture_pitch: T.int64,
        sides_pitch: T.int32,
        batch: T.int32,
        anchors: T.int32,
        classes: T.int32,
        confidence: T.float32,
        wanted_: T.int64,
        capacity: T.int32,
        counters_: T.int64,
        keys_: T.int64,
        boxes_: T.int64,
        labels_: T.int64,
    ):
        T.func_attr({"tirx.noalias": True, "global_symbol": f"filter_detr_{sample}", "fmad": False})
        T.device_entry()
        block, picture = T.cta_id([(anchors + 7) // 8, batch])
        thread = T.thread_id([256])
        values = buffer(values_, SAMPLES[sample], 2)
        sides = buffer(sides_, SAMPLES[sample], 2)
        wanted = buffer(wanted_, "uint8", 1)
        counters = buffer(counters_, "int32", 4)
        keys = buffer(keys_, "uint64", 8)
        boxes = buffer(boxes_, "float32", 4)
        labels = buffer(labels_, "int32", 4)
        lane: T.let = thread % 32
        query: T.let = T.min(block * 8 + thread // 32, anchors - 1)
        mine: T.let = block * 8 + thread // 32 < anchors
        start: T.let = wide(picture) * picture_pitch + wide(query) * wide(pitch)
        corner: T.let = wide(picture) * sides_picture_pitch + wide(query) * wide(sides_pitch)
        bad = broken(read(sides, corner + lane % 4)).astype("int32")
        for step in T.serial((classes + 31 - lane) // 32):
            bad = bad | broken(read(values, start + step * 32 + lane)).astype("int32")
        worst = T.cuda.warp_max(bad)
        if T.And(T.And(mine, lane == 0), worst != 0):
            T.evaluate(T.cuda.atomic_add(counters.ptr_to([picture * 2 + 1]), T.int32(1)))
        x: T.let = read(sides, corner)
        y: T.let = read(sides, corner + 1)
        half_width: T.let = read(sides, corner + 2) * T.float32(0.5)
        half_height: T.let = read(sides, corner + 3) * T.float32(0.5)
        for step in T.serial((classes + 31) // 32):
            label: T.let = T.min(step * 32 + lane, classes - 1)
            score: T.let = T.float32(1) / (T.float32(1) + T.exp(-read(values, start + label)))
            keep = T.int32(0)
            if T.And(T.And(mine, worst == 0), T.And(step * 32 + lane < classes, score > confidence)):
                keep = wanted[label].astype("int32")
            append(
                counters, keys, boxes, labels, picture, capacity, keep, score, label, query * classes + label,
                x - half_width, y - half_height, x + half_width, y + half_height,
            )  # fmt: skip

    return kernel


LISTED, AHEAD = 1024, 4
"""Candidates of a block in `rank` that it keeps at hand. Keys that a thread reads at once."""

ONE = 0x7FFFFFFF - 0x3F800000
"""`ordered` of the score 1."""


def rank():
    """sorted[place] = candidate, where place is the number of candidates with a smaller key.

    A block ranks those of its own range of scores: it reads every key, counts those before its range and compares the
    others in it with each other. The ranges share out what lies between 1 and the confidence on a logarithmic scale.
    """

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
        T.func_attr({"tirx.noalias": True, "global_symbol": "rank", "fmad": False})
        T.device_entry()
        block, picture = T.cta_id([blocks, batch])
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
        count: T.let = counters[picture * 2]
        start: T.let = wide(picture) * wide(capacity)
        target: T.let = wide(picture) * wide(room)
        least: T.let = ordered(T.max(confidence, T.float32(0))).astype("int64")
        width: T.let = T.max(least - T.int64(ONE), T.int64(0)) // wide(blocks) + T.int64(1)
        low = T.Select(block == 0, T.int64(0), T.int64(ONE) + wide(block) * width).astype("uint64") << T.uint64(32)
        high = (T.int64(ONE) + wide(block + 1) * width).astype("uint64") << T.uint64(32)
        if thread < 2:
            sizes[thread] = 0
        T.cuda.cta_sync()
        before = T.int32(0)
        for step in T.serial((count + AHEAD * 512 - 1) // (AHEAD * 512)):
            for a in T.unroll(AHEAD):
                others[a] = keys[start + wide(T.min((step * AHEAD + a) * 512 + thread, count - 1))]
            for a in T.unroll(AHEAD):
                at: T.let = (step * AHEAD + a) * 512 + thread
                below: T.let = T.And(at < count, others[a] < low)
                before = before + T.Select(below, 1, 0)
                mine = T.int32(0)
                if T.And(T.And(at < count, others[a] >= low), T.Or(block == blocks - 1, others[a] < high)):
                    mine = 1
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
                if T.And(key >= low, T.Or(block == blocks - 1, key < high)):
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
                for side in T.vectorized(4):
                    sorted_boxes[to * 4 + side] = boxes[source * 4 + side]
            member = member + 512

    return kernel


TILE_ROWS, TILE_WORDS = 4, 2
"""Candidates, and words of 32 candidates, that a warp of `overlap` compares. Small, for a few are many warps' work."""


def overlap():
    """Bits of the candidates that candidate i overlaps, 32 to a word.

    local[chunk, word, i] has those of its own chunk that do not come after it, dense[i, word] those of later chunks.
    Where `later` is 0, of the first chunk only; else the others'.
    """

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
        T.func_attr({"tirx.noalias": True, "global_symbol": "overlap", "fmad": False})
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
        rows = T.alloc_local((TILE_ROWS, 5), "float32")
        row_labels = T.alloc_local((TILE_ROWS,), "int32")
        box = T.alloc_local((4,), "float32")
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
                    for side in T.vectorized(4):
                        rows[r, side] = boxes[at * 4 + side]
                    rows[r, 4] = (rows[r, 2] - rows[r, 0]) * (rows[r, 3] - rows[r, 1])
                    row_labels[r] = T.Select(agnostic != 0, 0, labels[at])
                for w in T.unroll(TILE_WORDS):
                    at: T.let = start + wide(T.min((word + w) * 32 + lane, count - 1))
                    for side in T.vectorized(4):
                        box[side] = boxes[at * 4 + side]
                    areas[w] = (box[2] - box[0]) * (box[3] - box[1])
                    label: T.let = T.Select(agnostic != 0, 0, labels[at])
                    for r in T.unroll(TILE_ROWS):
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
                            whole: T.let = T.Select(meet, rows[r, 4] + areas[w] - shared[r, w], T.float32(1))
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


def finish():
    """Sorted candidates and their overlaps -> rows of the result. A block is a picture."""

    @T.prim_func
    def kernel(
        batch: T.int32,
        room: T.int32,
        dense_words: T.int32,
        detections: T.int32,
        suppressing: T.int32,
        later: T.int32,
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
        T.func_attr({"tirx.noalias": True, "global_symbol": "finish", "fmad": False})
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
                        if _iou.suppresses(
                            corners(boxes, other),
                            corners(boxes, at),
                            T.Or(agnostic != 0, labels[other] == labels[at]),
                            threshold,
                        ):
                            state = 2
                        k = k + 1
            for side in T.vectorized(4):
                box[side] = boxes[at * 4 + side]
            label: T.let = labels[at]
            score: T.let = score_of(keys[at])
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
                out_classes[to] = label
                out_scores[to] = score
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
            out_non_finite[picture] = counters[picture * 2 + 1]
            counters[picture * 2] = 0
            counters[picture * 2 + 1] = 0

    return kernel


def cuda_variants():
    """Every variant: {symbol: PrimFunc}."""
    filters = (filter_yolov8, filter_yolov5, filter_end2end, filter_detr)
    kernels = [filter(sample) for filter in filters for sample in SAMPLES] + [rank(), overlap(), finish()]
    return {str(kernel.attrs["global_symbol"]): kernel for kernel in kernels}
