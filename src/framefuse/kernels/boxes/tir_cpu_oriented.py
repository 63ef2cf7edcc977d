"""Suppression of oriented boxes in TVM TensorIR, CPU nest: candidates -> index[: counts[image]] by descending score.

    suppress_oriented

A candidate is compared with every one above it, kept or not (`reference.detections`). Rows 0..4 of a candidate are the
centre and `reference.covariances`.
"""

from __future__ import annotations

from tvm import tirx
from tvm.script import tirx as T

from ..tir.base import variables
from .tir_cpu import AREA, CHUNK, ROWS, ZERO, rank_all, rows
from .tir_cpu_head import exp

EPSILON = tirx.const(1e-7, "float32")


def distance(a, b):
    """The part of Bhattacharyya's distance that grows with that of the centres, and the exponential of twice the rest:
    boxes are cx, cy, variances in x and y, covariance."""
    x, y = a[0] - b[0], a[1] - b[1]
    sx, sy, sc = a[2] + b[2], a[3] + b[3], a[4] + b[4]
    area = sx * sy - sc * sc
    far = (sx * y * y + sy * x * x - tirx.const(2, "float32") * sc * x * y) / (area + EPSILON)
    product = tirx.max(a[2] * a[3] - a[4] * a[4], ZERO) * tirx.max(b[2] * b[3] - b[4] * b[4], ZERO)
    spread = area / (tirx.const(4, "float32") * tirx.sqrt(product) + EPSILON) + EPSILON
    return far * tirx.const(0.25, "float32"), spread


def near(above, k, boxes, i, labels, label, limit):
    """Whether two boxes of one class may be closer than `limit`: the largest variance does not exceed the sum of both,
    so the distance is at least a quarter of that of the centres, squared, over that sum."""
    x, y = above[0, k] - boxes[0, i], above[1, k] - boxes[1, i]
    reach = tirx.const(4, "float32") * limit * (above[AREA, k] + boxes[AREA, i] + EPSILON)
    return T.And(x * x + y * y <= reach, labels[k] == label)


@T.prim_func(s_tir=True)
def suppress_oriented(
    image: T.int32, candidates: T.int32, detections: T.int32, limit: T.float32, agnostic: T.int32,
    boxes: T.Buffer((ROWS, "capacity"), "float32", align=4), labels: T.Buffer(("capacity",), "int32", align=4),
    totals: T.Buffer((2,), "int32", align=4), keys: T.Buffer((2, "capacity"), "uint32", align=4),
    orders: T.Buffer((2, "capacity"), "int32", align=4), places: T.Buffer((256,), "int32", align=4),
    above: T.Buffer((ROWS, "room"), "float32", align=4), above_labels: T.Buffer(("room",), "int32", align=4),
    index: T.Buffer(("room",), "int32", align=4), counts: T.Buffer(("batch",), "int32", align=4),
):  # fmt: skip
    T.func_attr({"tirx.noalias": True, "global_symbol": "suppress_oriented"})
    side, rank, found, hit, maybe = variables("int32", 1, 1, 1, 1, 1)
    n: T.let = totals[0]
    rank_all(boxes, keys, orders, places, side, rank, n)
    for i in T.serial(n):
        boxes[AREA, i] = boxes[2, i] + boxes[3, i]
    rank[0] = 0
    found[0] = 0
    while T.And(rank[0] < T.min(n, candidates), found[0] < detections):
        i: T.let = orders[side[0], rank[0]]
        row: T.let = rank[0]
        label: T.let = T.Select(agnostic != 0, 0, labels[i])
        hit[0] = 0
        if limit > ZERO:
            for chunk in T.serial((row + CHUNK - 1) // CHUNK):
                if hit[0] == 0:
                    maybe[0] = 0
                    for lane in T.serial(T.min(CHUNK, row - chunk * CHUNK)):
                        k: T.let = chunk * CHUNK + lane
                        maybe[0] = maybe[0] | near(above, k, boxes, i, above_labels, label, limit).astype("int32")
                    if maybe[0] != 0:
                        for lane in T.serial(T.min(CHUNK, row - chunk * CHUNK)):
                            k: T.let = chunk * CHUNK + lane
                            if T.And(hit[0] == 0, near(above, k, boxes, i, above_labels, label, limit)):
                                apart = T.meta_var(distance(rows(above, k, 5), rows(boxes, i, 5)))
                                rest: T.let = T.float32(2) * (limit - apart[0])
                                hit[0] = (apart[1] < exp(rest)).astype("int32")
        for r in T.unroll(5):
            above[r, row] = boxes[r, i]
        above[AREA, row] = boxes[AREA, i]
        above_labels[row] = label
        if hit[0] == 0:
            index[found[0]] = i
            found[0] = found[0] + 1
        rank[0] = row + 1
    counts[image] = found[0]


def variants():
    """Every variant: {global symbol: PrimFunc}."""
    return {"suppress_oriented": suppress_oriented}
