"""Detections in TVM TensorIR, CPU nests: raw outputs -> candidates; then sorted, suppressed, mapped.

    filter_yolov8_<sample>, filter_yolov5_<sample>   raw output of one image -> candidates in the order of its anchors
    suppress_boxes, suppress_rotated                 candidates -> at most max_det of them, by descending score
    place_boxes                                      these -> rows of the result

Candidates are a struct of arrays: boxes (ROWS, capacity), labels (capacity,); totals[0] is how many there are.
totals[1] counts the anchors with a NaN or an infinity; they are left out. All scratch comes as arguments; nothing is
allocated or threaded in here.
"""

from __future__ import annotations

from operator import add

from tvm import tirx
from tvm.script import tirx as T

from ..tir.base import array_at, lerp, variables

SAMPLES = {"f32": "float32", "f16": "float16"}

BLOCK = 1024
"""Anchors that a yolov8 output is read in: long runs for the prefetcher, and what the arg-max of the survivors reads
again is still in the cache."""

LANES = 8
"""Class rows read at once, so that the running maximum is loaded and stored once for so many."""

STRIP = 32
"""Anchors of which it is asked at once whether there is anything to do: mostly there is not."""

CHUNK = 64
"""Kept boxes that a candidate is compared with before it is asked whether one of them suppressed it."""

ROWS, SCORE, AREA, ANCHOR = 9, 6, 7, 8
"""Rows of the array of candidates: 4 sides (or cx, cy, half width, half height, cos, sin), their score, their area, and
the bits of the number of the anchor or query, which says where the rest of the output belongs."""

ZERO, HALF = tirx.const(0, "float32"), tirx.const(0.5, "float32")
LEAST = tirx.const(-3.4028234663852886e38, "float32")


def broken(value):
    """Whether a float32 is NaN or infinite, by its exponent."""
    exponent = tirx.const(0x7F800000, "int32")
    return (T.reinterpret("int32", value) & exponent) == exponent


def ordered(score):
    """Integers in the opposite order of the scores: ascending keys are descending scores. -0 equals 0."""
    bits = T.reinterpret("uint32", tirx.Select(score == ZERO, ZERO, score))
    negative = (bits >> tirx.const(31, "uint32")) != tirx.const(0, "uint32")
    return tirx.Select(negative, bits, bits ^ tirx.const(0x7FFFFFFF, "uint32"))


def placed(value, axis, maps, image):
    """Source pixels: maps are, for x and y each, model pixels per unit, left or top, 1 / scale, size of the image."""
    pixels = (value * maps[image, axis] - maps[image, 2 + axis]) * maps[image, 4 + axis]
    return tirx.min(tirx.max(pixels, ZERO), maps[image, 6 + axis])


def suppresses(a, b, rivals, threshold):
    """overlap(a, b) = intersection / (area(a) + area(b) - intersection) exceeds the threshold, between `rivals`.

    In float32, every step rounded, as torchvision.ops.nms computes it. Boxes are x1, y1, x2, y2, area; `rivals` says
    whether they are of one class. That condition stands between the product and the difference on purpose: fused into
    a single rounding they would decide some ties differently.
    """
    width = tirx.max(tirx.min(a[2], b[2]) - tirx.max(a[0], b[0]), ZERO)
    height = tirx.max(tirx.min(a[3], b[3]) - tirx.max(a[1], b[1]), ZERO)
    inside = tirx.Select(rivals, width * height, ZERO)
    return inside / (a[4] + b[4] - inside) > threshold


def corner(a, b, number):
    """A corner, 0..3 in order, of rotated box a (cx, cy, half width, half height, cos, sin) in the frame of b: x, y."""
    across = tirx.Select(tirx.any(number == 1, number == 2), a[2], -a[2])
    down = tirx.Select(number >= 2, a[3], -a[3])
    x = a[0] - b[0] + across * a[4] - down * a[5]
    y = a[1] - b[1] + across * a[5] + down * a[4]
    return x * b[4] + y * b[5], y * b[4] - x * b[5]


def near(a, b):
    """Whether the circles around two rotated boxes meet: if not, neither do the boxes."""
    x, y = a[0] - b[0], a[1] - b[1]
    reach = tirx.sqrt(a[2] * a[2] + a[3] * a[3]) + tirx.sqrt(b[2] * b[2] + b[3] * b[3])
    return x * x + y * y <= reach * reach


@T.inline
def clip_by(polygon, count, source, target, axis, sign, limit):
    """polygon[target] = the part of convex polygon[source] where sign * coordinate <= limit (Sutherland and Hodgman).

    polygon is (2, 2, 20): side, axis, corner; count is (2,): corners of each side. Four clips of 4 corners make 8 or
    less, but where all lie on the lines, rounding may turn 4 into 6, those into 9, 13 and 19.
    """
    count[target] = 0
    for v in T.serial(count[source]):
        w: T.let = T.Select(v + 1 == count[source], 0, v + 1)
        room: T.let = limit - sign * polygon[source, axis, v]
        next_room: T.let = limit - sign * polygon[source, axis, w]
        if room >= ZERO:
            polygon[target, 0, count[target]] = polygon[source, 0, v]
            polygon[target, 1, count[target]] = polygon[source, 1, v]
            count[target] = count[target] + 1
        if T.And(T.max(room, next_room) >= ZERO, T.min(room, next_room) < ZERO):
            part: T.let = room / (room - next_room)
            for k in T.unroll(2):
                polygon[target, k, count[target]] = lerp(polygon[source, k, v], polygon[source, k, w], part)
            count[target] = count[target] + 1


@T.inline
def intersect_rotated(a, b, polygon, count, shared):
    """shared[0] = area that two rotated boxes share: the corners of a, clipped by the sides of b in the frame of b."""
    for number in T.serial(4):
        polygon[0, 0, number] = corner(a, b, number)[0]
        polygon[0, 1, number] = corner(a, b, number)[1]
    count[0] = 4
    clip_by(polygon, count, 0, 1, 0, T.float32(1), b[2])
    clip_by(polygon, count, 1, 0, 0, T.float32(-1), b[2])
    clip_by(polygon, count, 0, 1, 1, T.float32(1), b[3])
    clip_by(polygon, count, 1, 0, 1, T.float32(-1), b[3])
    shared[0] = T.float32(0)
    for v in T.serial(count[0]):
        w: T.let = T.Select(v + 1 == count[0], 0, v + 1)
        shared[0] += T.float32(0.5) * (polygon[0, 0, v] * polygon[0, 1, w] - polygon[0, 0, w] * polygon[0, 1, v])
    shared[0] = T.max(shared[0], T.float32(0))


def read(values, index):
    return values[index].astype("float32")


def pairwise(operation, terms):
    """A balanced tree of operations: short dependency chains."""
    while len(terms) > 1:
        terms = [operation(*terms[i : i + 2]) if i + 1 < len(terms) else terms[i] for i in range(0, len(terms), 2)]
    return terms[0]


def column(values, start, pitch, count):
    """`count` values of one anchor in successive rows."""
    return [read(values, start + lane * pitch) for lane in range(count)]


def asked(running, k, confidence):
    """1 where the anchor's best score is above the threshold, or one of its values may be NaN or infinite."""
    return T.Or(running[0, k] > confidence, broken(running[1, k])).astype("int32")


@T.inline
def append(boxes, labels, totals, x, y, width, height, score, label, anchor):
    """One more candidate, from its centre and size."""
    n: T.let = totals[0]
    boxes[0, n] = x - width * HALF
    boxes[1, n] = y - height * HALF
    boxes[2, n] = x + width * HALF
    boxes[3, n] = y + height * HALF
    boxes[SCORE, n] = score
    boxes[ANCHOR, n] = T.reinterpret("float32", anchor)
    labels[n] = label
    totals[0] = n + 1


def filter_yolov8(sample):
    """(4 + classes or more, anchors): cx cy w h, then a score per class, then what is not looked at."""
    size = 4 if sample == "f32" else 2

    @T.prim_func(s_tir=True)
    def kernel(
        address: T.int64, pitch: T.int32, anchors: T.int32, classes: T.int32, confidence: T.float32,
        wanted: T.Buffer(("classes",), "uint8", align=1), boxes: T.Buffer((ROWS, "capacity"), "float32", align=4),
        labels: T.Buffer(("capacity",), "int32", align=4), totals: T.Buffer((2,), "int32", align=4),
        running: T.Buffer((2, BLOCK), "float32", align=4),
    ):  # fmt: skip
        T.func_attr({"tirx.noalias": True, "global_symbol": f"filter_yolov8_{sample}"})
        values = array_at(address, SAMPLES[sample], anchors, align=2)
        label, bad, hits = variables("int32", 1, 1, 1)
        totals[0] = 0
        totals[1] = 0
        # Blocks begin where cache lines of a row do, except for the first one, which begins within its block.
        back: T.let = T.Cast("int32", address // size % (64 // size))
        for part in T.serial((anchors + back + BLOCK - 1) // BLOCK):
            begin: T.let = part * BLOCK - back
            head: T.let = T.Select(part == 0, back, 0)
            count: T.let = T.min(BLOCK, anchors - begin)
            # running[0] is the best score so far; running[1] a sum, which is finite only if every term is.
            for k in T.serial(head, count):
                running[0, k] = LEAST
                running[1, k] = pairwise(add, column(values, begin + k, pitch, 4))
            for group in T.serial(classes // LANES):
                for k in T.serial(head, count):
                    start: T.let = (4 + group * LANES) * pitch + begin + k
                    # Not the last maximum: LLVM would make a masked store of that, which is slow on some processors.
                    running[0, k] = pairwise(tirx.max, [running[0, k], *column(values, start, pitch, LANES)])
                    running[1, k] = pairwise(add, [running[1, k], *column(values, start, pitch, LANES)])
            for rest in T.serial(classes % LANES):
                for k in T.serial(head, count):
                    start: T.let = (3 + classes - rest) * pitch + begin + k
                    running[0, k] = T.max(running[0, k], read(values, start))
                    running[1, k] = running[1, k] + read(values, start)
            for group in T.serial((count + STRIP - 1) // STRIP):
                # What is left in the last strip by another block is harmless.
                hits[0] = 0
                for lane in T.serial(STRIP):
                    hits[0] = hits[0] | asked(running, group * STRIP + lane, confidence)
                if hits[0] != 0:
                    for k in T.serial(T.max(group * STRIP, head), T.min(group * STRIP + STRIP, count)):
                        if asked(running, k, confidence) != 0:
                            a: T.let = begin + k
                            bad[0] = 0
                            if broken(running[1, k]):
                                # Not finite, or finite values whose sum is too large: each is asked.
                                for c in T.serial(4 + classes):
                                    bad[0] = bad[0] | broken(read(values, c * pitch + a)).astype("int32")
                                totals[1] = totals[1] + bad[0]
                            if T.And(bad[0] == 0, running[0, k] > confidence):
                                label[0] = 0
                                while read(values, (4 + label[0]) * pitch + a) != running[0, k]:
                                    label[0] = label[0] + 1
                                if wanted[label[0]] != T.uint8(0):
                                    box = T.meta_var(column(values, a, pitch, 4))
                                    append(boxes, labels, totals, *box, running[0, k], label[0], a)

    return kernel


def filter_yolov5(sample):
    """(anchors, 5 + classes or more): cx cy w h, objectness, then a score per class, then what is not looked at;
    confidence = objectness * class score."""

    @T.prim_func(s_tir=True)
    def kernel(
        address: T.int64, pitch: T.int32, anchors: T.int32, classes: T.int32, confidence: T.float32,
        wanted: T.Buffer(("classes",), "uint8", align=1), boxes: T.Buffer((ROWS, "capacity"), "float32", align=4),
        labels: T.Buffer(("capacity",), "int32", align=4), totals: T.Buffer((2,), "int32", align=4),
        running: T.Buffer((2, BLOCK), "float32", align=4),
    ):  # fmt: skip
        T.func_attr({"tirx.noalias": True, "global_symbol": f"filter_yolov5_{sample}"})
        values = array_at(address, SAMPLES[sample], anchors, align=2)
        best = T.alloc_buffer((1,), "float32")
        label, bad = variables("int32", 1, 1)
        totals[0] = 0
        totals[1] = 0
        for a in T.serial(anchors):
            start: T.let = a * pitch
            bad[0] = 0
            for c in T.serial(5 + classes):
                bad[0] = bad[0] | broken(read(values, start + c)).astype("int32")
            totals[1] = totals[1] + bad[0]
            if T.And(bad[0] == 0, read(values, start + 4) > confidence):
                best[0] = read(values, start + 5) * read(values, start + 4)
                label[0] = 0
                for c in T.serial(1, classes):
                    score: T.let = read(values, start + 5 + c) * read(values, start + 4)
                    if score > best[0]:
                        best[0] = score
                        label[0] = c
                if T.And(best[0] > confidence, wanted[label[0]] != T.uint8(0)):
                    append(boxes, labels, totals, *column(values, start, 1, 4), best[0], label[0], a)

    return kernel


def rows(array, at, count):
    return [array[row, at] for row in range(count)]


def digit(key, place):
    return ((key >> tirx.const(8 * place, "uint32")) & tirx.const(255, "uint32")).astype("int32")


@T.inline
def sort(keys, orders, places, side, running, n, place):
    """One pass, by one byte of the keys, from keys[side], orders[side] to the other side."""
    for value in T.serial(256):
        places[value] = 0
    for i in T.serial(n):
        places[digit(keys[side[0], i], place)] = places[digit(keys[side[0], i], place)] + 1
    # A byte that all keys share, as the first often is, changes nothing.
    if places[digit(keys[side[0], 0], place)] != n:
        running[0] = 0
        for value in T.serial(256):
            running[0] = running[0] + places[value]
            places[value] = running[0] - places[value]
        for i in T.serial(n):
            to: T.let = places[digit(keys[side[0], i], place)]
            keys[1 - side[0], to] = keys[side[0], i]
            orders[1 - side[0], to] = orders[side[0], i]
            places[digit(keys[side[0], i], place)] = to + 1
        side[0] = 1 - side[0]


@T.inline
def rank_all(boxes, keys, orders, places, side, running, n):
    """orders[side[0]] = the n candidates by descending score, equal ones in their order: a stable radix sort."""
    side[0] = 0
    for i in T.serial(n):
        keys[0, i] = ordered(boxes[SCORE, i])
        orders[0, i] = i
    if n > 1:
        sort(keys, orders, places, side, running, n, 0)
        sort(keys, orders, places, side, running, n, 1)
        sort(keys, orders, places, side, running, n, 2)
        sort(keys, orders, places, side, running, n, 3)


def suppress(rotated):
    """Candidates -> index[: counts[image]], those to keep by descending score: a stable radix sort, then greedy."""
    sides = 6 if rotated else 4

    @T.inline
    def compare(boxes, kept, kept_labels, i, row, label, threshold, hit, polygon, count, shared):
        """hit[0] = whether one of the kept boxes suppresses candidate i."""
        hit[0] = 0
        if rotated:
            for k in T.serial(row):
                if T.And(T.And(hit[0] == 0, kept_labels[k] == label), near(rows(kept, k, 6), rows(boxes, i, 6))):
                    intersect_rotated(rows(kept, k, 6), rows(boxes, i, 6), polygon, count, shared)
                    hit[0] = (shared[0] / (kept[AREA, k] + boxes[AREA, i] - shared[0]) > threshold).astype("int32")
        else:
            for chunk in T.serial((row + CHUNK - 1) // CHUNK):
                if hit[0] == 0:
                    for lane in T.serial(T.min(CHUNK, row - chunk * CHUNK)):
                        k: T.let = chunk * CHUNK + lane
                        hit[0] = hit[0] | suppresses(
                            [*rows(kept, k, 4), kept[AREA, k]],
                            [*rows(boxes, i, 4), boxes[AREA, i]],
                            kept_labels[k] == label,
                            threshold,
                        ).astype("int32")

    @T.prim_func(s_tir=True)
    def kernel(
        image: T.int32, candidates: T.int32, detections: T.int32, threshold: T.float32,
        suppressing: T.int32, agnostic: T.int32,
        boxes: T.Buffer((ROWS, "capacity"), "float32", align=4), labels: T.Buffer(("capacity",), "int32", align=4),
        totals: T.Buffer((2,), "int32", align=4), keys: T.Buffer((2, "capacity"), "uint32", align=4),
        orders: T.Buffer((2, "capacity"), "int32", align=4), places: T.Buffer((256,), "int32", align=4),
        kept: T.Buffer((ROWS, "room"), "float32", align=4), kept_labels: T.Buffer(("room",), "int32", align=4),
        index: T.Buffer(("room",), "int32", align=4), counts: T.Buffer(("batch",), "int32", align=4),
    ):  # fmt: skip
        T.func_attr({"tirx.noalias": True, "global_symbol": "suppress_rotated" if rotated else "suppress_boxes"})
        side, rank, found, hit, count = variables("int32", 1, 1, 1, 1, 2)
        polygon, shared = variables("float32", (2, 2, 20), 1)
        n: T.let = totals[0]
        rank_all(boxes, keys, orders, places, side, rank, n)
        for i in T.serial(n):
            if rotated:
                boxes[AREA, i] = T.float32(4) * boxes[2, i] * boxes[3, i]
            else:
                boxes[AREA, i] = (boxes[2, i] - boxes[0, i]) * (boxes[3, i] - boxes[1, i])
        rank[0] = 0
        found[0] = 0
        while T.And(rank[0] < T.min(n, candidates), found[0] < detections):
            i: T.let = orders[side[0], rank[0]]
            row: T.let = found[0]
            label: T.let = T.Select(agnostic != 0, 0, labels[i])
            hit[0] = 0
            if suppressing != 0:
                compare(boxes, kept, kept_labels, i, row, label, threshold, hit, polygon, count, shared)
            if hit[0] == 0:
                for r in T.unroll(sides):
                    kept[r, row] = boxes[r, i]
                kept[AREA, row] = boxes[AREA, i]
                kept_labels[row] = label
                index[row] = i
                found[0] = row + 1
            rank[0] = rank[0] + 1
        counts[image] = found[0]

    return kernel


def place_boxes():
    """Kept candidates -> rows of the result, from model units to source pixels, clipped to the image."""

    @T.prim_func(s_tir=True)
    def kernel(
        image: T.int32,
        boxes: T.Buffer((ROWS, "capacity"), "float32", align=4), labels: T.Buffer(("capacity",), "int32", align=4),
        index: T.Buffer(("room",), "int32", align=4), maps: T.Buffer(("images", 8), "float32", align=4),
        out_boxes: T.Buffer(("batch", "detections", 4), "float32", align=4),
        out_scores: T.Buffer(("batch", "detections"), "float32", align=4),
        out_classes: T.Buffer(("batch", "detections"), "int32", align=4),
        out_anchors: T.Buffer(("batch", "detections"), "int32", align=4),
        counts: T.Buffer(("batch",), "int32", align=4),
    ):  # fmt: skip
        T.func_attr({"tirx.noalias": True, "global_symbol": "place_boxes"})
        for row in T.serial(counts[image]):
            for side in T.unroll(4):
                out_boxes[image, row, side] = placed(boxes[side, index[row]], side % 2, maps, image)
            out_scores[image, row] = boxes[SCORE, index[row]]
            out_classes[image, row] = labels[index[row]]
            out_anchors[image, row] = T.reinterpret("int32", boxes[ANCHOR, index[row]])

    return kernel


def variants():
    """Every variant: {global symbol: PrimFunc}."""
    kernels = [filter(sample) for filter in (filter_yolov8, filter_yolov5) for sample in SAMPLES]
    kernels += [suppress(False), suppress(True), place_boxes()]
    return {kernel.attrs["global_symbol"]: kernel for kernel in kernels}
