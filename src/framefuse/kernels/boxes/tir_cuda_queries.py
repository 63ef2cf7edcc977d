"""Candidates of detections on CUDA from queries, and from boxes alone. `_boxes_cuda.py` says what they are."""

from tvm.script import tirx as T

from ._tir_cuda import LAST, SAMPLES, append, append_box, buffer, read, wide
from ._tir_iou import broken


def filter_detr(sample):
    """Boxes (batch, queries, 4) cx cy w h and logits (batch, queries, classes), of which every pair competes.

    A warp reads a query.
    """

    @T.prim_func
    def kernel(
        values_: T.int64,
        image_pitch: T.int64,
        pitch: T.int32,
        sides_: T.int64,
        sides_image_pitch: T.int64,
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
        block, image = T.cta_id([(anchors + 7) // 8, batch])
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
        start: T.let = wide(image) * image_pitch + wide(query) * wide(pitch)
        corner: T.let = wide(image) * sides_image_pitch + wide(query) * wide(sides_pitch)
        bad = broken(read(sides, corner + lane % 4)).astype("int32")
        for step in T.serial((classes + 31 - lane) // 32):
            bad = bad | broken(read(values, start + step * 32 + lane)).astype("int32")
        worst = T.cuda.warp_max(bad)
        if T.And(T.And(mine, lane == 0), worst != 0):
            T.evaluate(T.cuda.atomic_add(counters.ptr_to([image * 2 + 1]), T.int32(1)))
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
            append_box(
                counters, keys, boxes, labels, image, capacity, keep, score, label, query * classes + label,
                x - half_width, y - half_height, x + half_width, y + half_height,
            )  # fmt: skip

    return kernel


def filter_queries(sample):
    """As `filter_detr`, with the best class of each query alone, of scores as they are or after a softmax whose last
    class is "no object"."""

    @T.prim_func
    def kernel(
        values_: T.int64,
        image_pitch: T.int64,
        pitch: T.int32,
        sides_: T.int64,
        sides_image_pitch: T.int64,
        sides_pitch: T.int32,
        batch: T.int32,
        anchors: T.int32,
        classes: T.int32,
        softmax: T.int32,
        confidence: T.float32,
        wanted_: T.int64,
        capacity: T.int32,
        counters_: T.int64,
        keys_: T.int64,
        boxes_: T.int64,
        labels_: T.int64,
    ):
        T.func_attr({"tirx.noalias": True, "global_symbol": f"filter_queries_{sample}", "fmad": False})
        T.device_entry()
        block, image = T.cta_id([(anchors + 7) // 8, batch])
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
        start: T.let = wide(image) * image_pitch + wide(query) * wide(pitch)
        corner: T.let = wide(image) * sides_image_pitch + wide(query) * wide(sides_pitch)
        bad = broken(read(sides, corner + lane % 4)).astype("int32")
        lowest: T.let = T.reinterpret("float32", T.uint32(0xFF800000))
        best = lowest
        largest = lowest
        label = T.int32(LAST)
        for step in T.serial((classes + 31 - lane) // 32):
            at: T.let = step * 32 + lane
            value: T.let = read(values, start + at)
            bad = bad | broken(value).astype("int32")
            largest = T.max(largest, value)
            if T.And(T.Or(softmax == 0, at < classes - 1), value > best):
                best = value
                label = at
        top = T.cuda.warp_max(best)
        first = T.cuda.warp_min(T.Select(best == top, label, T.int32(LAST)))
        worst = T.cuda.warp_max(bad)
        score = top
        if softmax != 0:
            most = T.cuda.warp_max(largest)
            total = T.float32(0)
            for step in T.serial((classes + 31 - lane) // 32):
                total = total + T.exp(read(values, start + step * 32 + lane) - most)
            whole = T.cuda.warp_sum(total)
            score = T.exp(top - most) / whole
        mine: T.let = T.And(block * 8 + thread // 32 < anchors, lane == 0)
        if T.And(mine, worst != 0):
            T.evaluate(T.cuda.atomic_add(counters.ptr_to([image * 2 + 1]), T.int32(1)))
        keep = T.int32(0)
        if T.And(T.And(mine, worst == 0), T.And(score > confidence, first < LAST)):
            keep = wanted[first].astype("int32")
        x: T.let = read(sides, corner)
        y: T.let = read(sides, corner + 1)
        half_width: T.let = read(sides, corner + 2) * T.float32(0.5)
        half_height: T.let = read(sides, corner + 3) * T.float32(0.5)
        append_box(
            counters, keys, boxes, labels, image, capacity, keep, score, first, query,
            x - half_width, y - half_height, x + half_width, y + half_height,
        )  # fmt: skip

    return kernel


def filter_listed(sample):
    """Boxes (batch, rows, 4) x1 y1 x2 y2, scores and classes (batch, rows), each in an array of its own.

    Classes are samples (`label_words` 0) or integers of so many words; an address of 0: all are 0.
    """

    @T.prim_func
    def kernel(
        values_: T.int64,
        image_pitch: T.int64,
        pitch: T.int32,
        scores_: T.int64,
        scores_image_pitch: T.int64,
        classes_: T.int64,
        classes_image_pitch: T.int64,
        label_words: T.int32,
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
        T.func_attr({"tirx.noalias": True, "global_symbol": f"filter_listed_{sample}", "fmad": False})
        T.device_entry()
        block, image = T.cta_id([(anchors + 127) // 128, batch])
        thread = T.thread_id([128])
        values = buffer(values_, SAMPLES[sample], 2)
        scores = buffer(scores_, SAMPLES[sample], 2)
        names = buffer(classes_, SAMPLES[sample], 2)
        numbers = buffer(classes_, "int32", 4)
        wanted = buffer(wanted_, "uint8", 1)
        counters = buffer(counters_, "int32", 4)
        keys = buffer(keys_, "uint64", 8)
        boxes = buffer(boxes_, "float32", 4)
        labels = buffer(labels_, "int32", 4)
        row: T.let = T.min(block * 128 + thread, anchors - 1)
        mine: T.let = block * 128 + thread < anchors
        start: T.let = wide(image) * image_pitch + wide(row) * wide(pitch)
        score: T.let = read(scores, wide(image) * scores_image_pitch + wide(row))
        at: T.let = wide(image) * classes_image_pitch + wide(row)
        bad = broken(score).astype("int32")
        for side in T.unroll(4):
            bad = bad | broken(read(values, start + side)).astype("int32")
        label = T.int32(0)
        if classes_ != T.int64(0):
            if label_words == 0:
                bad = bad | broken(read(names, at)).astype("int32")
                if bad == 0:
                    label = T.floor(read(names, at) + T.float32(0.5)).astype("int32")
            else:
                label = numbers[at * wide(label_words)]
        if T.And(mine, bad != 0):
            T.evaluate(T.cuda.atomic_add(counters.ptr_to([image * 2 + 1]), T.int32(1)))
        keep = T.int32(0)
        if T.And(T.And(mine, bad == 0), score > confidence):
            # `classes` is the length of `wanted`; with 0, every class is.
            keep = T.int32(1)
            if classes > 0:
                keep = T.int32(0)
                if T.And(label >= 0, label < classes):
                    keep = wanted[label].astype("int32")
        append_box(
            counters, keys, boxes, labels, image, capacity, keep, score, label, row,
            read(values, start), read(values, start + 1), read(values, start + 2), read(values, start + 3),
        )  # fmt: skip

    return kernel


def filter_rotated():
    """Rotated boxes (rows, 5) cx cy w h angle, and their scores and classes as `filter_listed` takes them."""

    @T.prim_func
    def kernel(
        values_: T.int64,
        pitch: T.int32,
        scores_: T.int64,
        classes_: T.int64,
        label_words: T.int32,
        anchors: T.int32,
        capacity: T.int32,
        counters_: T.int64,
        keys_: T.int64,
        boxes_: T.int64,
        labels_: T.int64,
    ):
        T.func_attr({"tirx.noalias": True, "global_symbol": "filter_rotated", "fmad": False})
        T.device_entry()
        block = T.cta_id([(anchors + 127) // 128])
        thread = T.thread_id([128])
        values = buffer(values_, "float32", 4)
        scores = buffer(scores_, "float32", 4)
        numbers = buffer(classes_, "int32", 4)
        counters = buffer(counters_, "int32", 4)
        keys = buffer(keys_, "uint64", 8)
        boxes = buffer(boxes_, "float32", 4)
        labels = buffer(labels_, "int32", 4)
        places = T.alloc_local((1,), "int64")
        row: T.let = T.min(block * 128 + thread, anchors - 1)
        start: T.let = wide(row) * wide(pitch)
        score: T.let = scores[row]
        bad = broken(score).astype("int32")
        for side in T.unroll(5):
            bad = bad | broken(values[start + side]).astype("int32")
        label = T.int32(0)
        if classes_ != T.int64(0):
            label = numbers[wide(row) * wide(label_words)]
        keep: T.let = T.And(block * 128 + thread < anchors, bad == 0).astype("int32")
        append(counters, keys, labels, places, T.int32(0), capacity, keep, score, label, row)
        if keep != 0:
            angle: T.let = values[start + 4].astype("float64")
            boxes[places[0] * 8] = values[start]
            boxes[places[0] * 8 + 1] = values[start + 1]
            boxes[places[0] * 8 + 2] = values[start + 2] * T.float32(0.5)
            boxes[places[0] * 8 + 3] = values[start + 3] * T.float32(0.5)
            boxes[places[0] * 8 + 4] = T.cos(angle).astype("float32")
            boxes[places[0] * 8 + 5] = T.sin(angle).astype("float32")
            boxes[places[0] * 8 + 6] = T.float32(0)
            boxes[places[0] * 8 + 7] = T.float32(0)

    return kernel


def cuda_variants():
    """Every variant: {symbol: PrimFunc}."""
    kernels = [make(sample) for make in (filter_detr, filter_queries, filter_listed) for sample in SAMPLES]
    return {str(kernel.attrs["global_symbol"]): kernel for kernel in [*kernels, filter_rotated()]}
