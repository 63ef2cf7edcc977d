"""Candidates from the raw logits of a YOLOv8 head on CUDA: nothing is decoded but what exceeds the threshold.

What comes after is `boxes_cuda.py`, which explains keys, counters and capacity.
"""

from tvm.script import tirx as T

from . import _tir_iou as _iou
from ._tir_cuda import LAST, append_box, buffer, wide
from .levels import FIELDS, FIRST, SCORES, SIDES

WARPS = 8
"""Anchors of a block."""


def filter_head():
    @T.prim_func
    def kernel(
        levels_: T.int64,
        levels: T.int32,
        cells_: T.int64,
        batch: T.int32,
        anchors: T.int32,
        bins: T.int32,
        classes: T.int32,
        confidence: T.float32,
        logit: T.float32,
        wanted_: T.int64,
        capacity: T.int32,
        counters_: T.int64,
        keys_: T.int64,
        boxes_: T.int64,
        labels_: T.int64,
    ):
        """A warp reads an anchor. `logit` is at most that of `confidence`: below it nothing is decoded.

        `levels` of `_levels.py` says where the logits lie; `cells` (4, anchors): centre of the cell in cells, x and y,
        and its width and height in units of the boxes.
        """
        T.func_attr({"tirx.noalias": True, "global_symbol": "filter_head_f16"})
        T.device_entry()
        block, image = T.cta_id([(anchors + WARPS - 1) // WARPS, batch])
        thread = T.thread_id([WARPS * 32])
        table = buffer(levels_, "int64", 8)
        cells = buffer(cells_, "float32", 4)
        wanted = buffer(wanted_, "uint8", 1)
        counters = buffer(counters_, "int32", 4)
        keys = buffer(keys_, "uint64", 8)
        boxes = buffer(boxes_, "float32", 4)
        labels = buffer(labels_, "int32", 4)
        distances = T.alloc_local((4,), "float32")
        lane: T.let = thread % 32
        anchor: T.let = T.min(block * WARPS + thread // 32, anchors - 1)
        inside: T.let = block * WARPS + thread // 32 < anchors
        level = T.int32(0)
        for other in T.serial(1, levels):
            if table[other * FIELDS + FIRST] <= wide(anchor):
                level = other
        scores = buffer(table[level * FIELDS + SCORES], "float16", 2)
        row: T.let = wide(anchor) - table[level * FIELDS + FIRST]
        start: T.let = wide(image) * table[level * FIELDS + SCORES + 1] + row * table[level * FIELDS + SCORES + 2]
        best = T.reinterpret("float32", T.uint32(0xFF800000))
        label = T.int32(LAST)
        bad = T.int32(0)
        for step in T.serial((classes + 31 - lane) // 32):
            value: T.let = scores[start + wide(step * 32 + lane)].astype("float32")
            bad = bad | _iou.broken(value).astype("int32")
            if value > best:
                best = value
                label = step * 32 + lane
        top = T.cuda.warp_max(best)
        first = T.cuda.warp_min(T.Select(best == top, label, T.int32(LAST)))
        worst = T.cuda.warp_max(bad)
        if T.And(inside, T.And(worst == 0, top > logit)):
            sides = buffer(table[level * FIELDS + SIDES], "float16", 2)
            from_: T.let = wide(image) * table[level * FIELDS + SIDES + 1] + row * table[level * FIELDS + SIDES + 2]
            for side in T.unroll(4):
                highest = T.reinterpret("float32", T.uint32(0xFF800000))
                for step in T.serial((bins + 31 - lane) // 32):
                    value: T.let = sides[from_ + wide(side * bins + step * 32 + lane)].astype("float32")
                    bad = bad | _iou.broken(value).astype("int32")
                    highest = T.max(highest, value)
                highest = T.cuda.warp_max(highest)
                total = T.float32(0)
                weighted = T.float32(0)
                for step in T.serial((bins + 31 - lane) // 32):
                    bin: T.let = step * 32 + lane
                    weight: T.let = T.exp(sides[from_ + wide(side * bins + bin)].astype("float32") - highest)
                    total = total + weight
                    weighted = weighted + weight * bin.astype("float32")
                total = T.cuda.warp_sum(total)
                weighted = T.cuda.warp_sum(weighted)
                distances[side] = weighted / total
            worst = T.cuda.warp_max(bad)
            x: T.let = cells[wide(anchor)]
            y: T.let = cells[wide(anchors) + wide(anchor)]
            width: T.let = cells[wide(anchors) * T.int64(2) + wide(anchor)]
            height: T.let = cells[wide(anchors) * T.int64(3) + wide(anchor)]
            score: T.let = T.float32(1) / (T.float32(1) + T.exp(-top))
            keep = T.int32(0)
            if T.And(T.And(lane == 0, worst == 0), score > confidence):
                keep = wanted[first].astype("int32")
            append_box(
                counters, keys, boxes, labels, image, capacity, keep, score, first, anchor,
                (x - distances[0]) * width, (y - distances[1]) * height,
                (x + distances[2]) * width, (y + distances[3]) * height,
            )  # fmt: skip
        if T.And(T.And(inside, lane == 0), worst != 0):
            T.evaluate(T.cuda.atomic_add(counters.ptr_to([image * 2 + 1]), T.int32(1)))

    return kernel


def cuda_variants():
    """Every variant: {symbol: PrimFunc}."""
    kernel = filter_head()
    return {str(kernel.attrs["global_symbol"]): kernel}
