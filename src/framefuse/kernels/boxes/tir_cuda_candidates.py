"""Candidates of detections on CUDA: from the raw outputs of each layout. `_boxes_cuda.py` says what they are."""

from tvm.script import tirx as T

from ._tir_cuda import LAST, SAMPLES, append_box, buffer, read, wide
from ._tir_iou import broken

AHEAD, SPAN = 10, 2
"""Classes that a thread of `filter_yolov8` reads at once, of so many anchors."""
INFINITE = 0x7F800000
"""Bits of an infinity; those of a NaN are more, without the sign."""


def magnitude(value):
    """The bits of a float without its sign, which are in the order of the numbers."""
    return T.reinterpret("uint32", value) & T.uint32(0x7FFFFFFF)


def filter_yolov8(sample):
    """(batch, 4 + classes, anchors). A block reads SPAN times 32 anchors; its 8 warps share the classes."""
    width = SPAN * 32

    @T.prim_func
    def kernel(
        values_: T.int64,
        image_pitch: T.int64,
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
        block, image = T.cta_id([(anchors + width - 1) // width, batch])
        thread = T.thread_id([256])
        values = buffer(values_, SAMPLES[sample], 2)
        wanted = buffer(wanted_, "uint8", 1)
        counters = buffer(counters_, "int32", 4)
        keys = buffer(keys_, "uint64", 8)
        boxes = buffer(boxes_, "float32", 4)
        labels = buffer(labels_, "int32", 4)
        bests = T.alloc_shared((8, width), "float32")
        firsts = T.alloc_shared((8, width), "int32")
        worsts = T.alloc_shared((8, width), "uint32")
        sides = T.alloc_shared((4, width), "float32")
        scores = T.alloc_local((AHEAD * SPAN,), "float32")
        own = T.alloc_local((SPAN,), "float32")
        at = T.alloc_local((SPAN,), "int64")
        best = T.alloc_local((SPAN,), "float32")
        label = T.alloc_local((SPAN,), "int32")
        worst = T.alloc_local((SPAN,), "uint32")
        warp: T.let = thread // 32
        lane: T.let = thread % 32
        for k in T.unroll(SPAN):
            at[k] = wide(image) * image_pitch + wide(T.min(block * width + k * 32 + lane, anchors - 1))
            best[k] = T.reinterpret("float32", T.uint32(0xFF800000))
            label[k] = warp
            own[k] = T.float32(0)
            if warp < 4:
                own[k] = read(values, at[k] + wide(warp) * wide(pitch))
            worst[k] = magnitude(own[k])
        for step in T.serial((classes + 8 * AHEAD - 1 - warp) // (8 * AHEAD)):
            for a in T.unroll(AHEAD):  # past the end, the last class of the warp again
                nearest: T.let = T.min((step * AHEAD + a) * 8, (classes - 1 - warp) // 8 * 8)
                for k in T.unroll(SPAN):
                    scores[a * SPAN + k] = read(values, at[k] + wide(4 + warp + nearest) * wide(pitch))
            for a in T.unroll(AHEAD):
                for k in T.unroll(SPAN):
                    worst[k] = T.max(worst[k], magnitude(scores[a * SPAN + k]))
                    if scores[a * SPAN + k] > best[k]:
                        best[k] = scores[a * SPAN + k]
                        label[k] = warp + (step * AHEAD + a) * 8
        for k in T.unroll(SPAN):
            if warp < 4:
                sides[warp, k * 32 + lane] = own[k]
            bests[warp, k * 32 + lane] = best[k]
            firsts[warp, k * 32 + lane] = label[k]
            worsts[warp, k * 32 + lane] = worst[k]
        T.cuda.cta_sync()
        if thread < width:
            top = bests[0, thread]
            first = firsts[0, thread]
            bad = worsts[0, thread]
            for other in T.unroll(1, 8):
                value: T.let = bests[other, thread]
                bad = T.max(bad, worsts[other, thread])
                if T.Or(value > top, T.And(value == top, firsts[other, thread] < first)):
                    top = value
                    first = firsts[other, thread]
            mine: T.let = block * width + thread < anchors
            if T.And(mine, bad >= T.uint32(INFINITE)):
                T.evaluate(T.cuda.atomic_add(counters.ptr_to([image * 2 + 1]), T.int32(1)))
            keep = T.int32(0)
            if T.And(T.And(mine, bad < T.uint32(INFINITE)), top > confidence):
                keep = wanted[first].astype("int32")
            x: T.let = sides[0, thread]
            y: T.let = sides[1, thread]
            half_width: T.let = sides[2, thread] * T.float32(0.5)
            half_height: T.let = sides[3, thread] * T.float32(0.5)
            append_box(
                counters, keys, boxes, labels, image, capacity, keep, top, first, block * width + thread,
                x - half_width, y - half_height, x + half_width, y + half_height,
            )  # fmt: skip

    return kernel


def filter_yolov5(sample):
    """(batch, anchors, 5 + classes). A warp reads an anchor."""

    @T.prim_func
    def kernel(
        values_: T.int64,
        image_pitch: T.int64,
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
        block, image = T.cta_id([(anchors + 7) // 8, batch])
        thread = T.thread_id([256])
        values = buffer(values_, SAMPLES[sample], 2)
        wanted = buffer(wanted_, "uint8", 1)
        counters = buffer(counters_, "int32", 4)
        keys = buffer(keys_, "uint64", 8)
        boxes = buffer(boxes_, "float32", 4)
        labels = buffer(labels_, "int32", 4)
        lane: T.let = thread % 32
        anchor: T.let = block * 8 + thread // 32
        start: T.let = wide(image) * image_pitch + wide(T.min(anchor, anchors - 1)) * wide(pitch)
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
            T.evaluate(T.cuda.atomic_add(counters.ptr_to([image * 2 + 1]), T.int32(1)))
        keep = T.int32(0)
        if T.And(T.And(mine, worst == 0), T.And(objectness > confidence, top > confidence)):
            keep = wanted[first].astype("int32")
        x: T.let = read(values, start)
        y: T.let = read(values, start + 1)
        half_width: T.let = read(values, start + 2) * T.float32(0.5)
        half_height: T.let = read(values, start + 3) * T.float32(0.5)
        append_box(
            counters, keys, boxes, labels, image, capacity, keep, top, first, anchor,
            x - half_width, y - half_height, x + half_width, y + half_height,
        )  # fmt: skip

    return kernel


def filter_end2end(sample):
    """(batch, rows, 6). A thread reads a row."""

    @T.prim_func
    def kernel(
        values_: T.int64,
        image_pitch: T.int64,
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
        block, image = T.cta_id([(anchors + 127) // 128, batch])
        thread = T.thread_id([128])
        values = buffer(values_, SAMPLES[sample], 2)
        wanted = buffer(wanted_, "uint8", 1)
        counters = buffer(counters_, "int32", 4)
        keys = buffer(keys_, "uint64", 8)
        boxes = buffer(boxes_, "float32", 4)
        labels = buffer(labels_, "int32", 4)
        anchor: T.let = block * 128 + thread
        start: T.let = wide(image) * image_pitch + wide(T.min(anchor, anchors - 1)) * wide(pitch)
        bad = T.int32(0)
        for field in T.serial(6):
            bad = bad | broken(read(values, start + field)).astype("int32")
        if T.And(anchor < anchors, bad != 0):
            T.evaluate(T.cuda.atomic_add(counters.ptr_to([image * 2 + 1]), T.int32(1)))
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
        append_box(
            counters, keys, boxes, labels, image, capacity, keep, score, label, anchor,
            read(values, start), read(values, start + 1), read(values, start + 2), read(values, start + 3),
        )  # fmt: skip

    return kernel


def cuda_variants():
    """Every variant: {symbol: PrimFunc}."""
    kernels = [make(sample) for make in (filter_yolov8, filter_yolov5, filter_end2end) for sample in SAMPLES]
    return {str(kernel.attrs["global_symbol"]): kernel for kernel in kernels}
