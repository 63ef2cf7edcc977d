"""The rows of a batch that are boxes, one after the other, in one pass as a CPU loop nest."""

from __future__ import annotations

from tvm.script import tirx as T

from ..tir.base import array_at, lets, variables


@T.prim_func(s_tir=True)
def take_rows(
    boxes_: T.int64, scores_: T.int64, classes_: T.int64, counts_: T.int64, batch: T.int32, rows: T.int32,
    class_count: T.int64, found_boxes_: T.int64, found_scores_: T.int64, found_classes_: T.int64, plausible_: T.int64,
):  # fmt: skip
    """Copy the first rows of each frame behind each other, and tell whether all are plausible.

    Args:
        boxes_, scores_, classes_: addresses of (batch, rows, 4) and (batch, rows) float32, and (batch, rows) int32.
        counts_: of (batch,) int32, how many rows of each frame are boxes.
        class_count: classes are below it.
        found_boxes_, found_scores_, found_classes_: of the copies; the classes are int64.
        plausible_: of one int32, which becomes 1 if every class is one, every score lies in 0..1, and every box has an
            area, else 0.
    """
    T.func_attr({"tirx.noalias": True, "global_symbol": "take_rows"})
    boxes, scores = array_at(boxes_, "float32", align=4), array_at(scores_, "float32", align=4)
    classes, counts = array_at(classes_, "int32", align=4), array_at(counts_, "int32", align=4)
    found_boxes, found_scores = array_at(found_boxes_, "float32", align=4), array_at(found_scores_, "float32", align=4)
    found_classes, plausible = array_at(found_classes_, "int64", align=8), array_at(plausible_, "int32", align=4)
    at, good = variables("int32", 1, 1)
    at[0] = 0
    good[0] = 1
    for frame in T.serial(batch):
        for row in T.serial(counts[frame]):
            start: T.let = T.Cast("int64", frame * rows + row)
            for side in T.unroll(4):
                found_boxes[at[0] * 4 + side] = boxes[start * 4 + side]
            found_scores[at[0]] = scores[start]
            found_classes[at[0]] = T.Cast("int64", classes[start])
            score, number = lets(scores[start], T.Cast("int64", classes[start]))
            area: T.let = T.And(
                boxes[start * 4 + 2] > boxes[start * 4], boxes[start * 4 + 3] > boxes[start * 4 + 1]
            )  # fmt: skip
            known: T.let = T.And(number >= 0, number < class_count)
            if T.Not(T.And(T.And(area, known), T.And(score >= T.float32(0), score <= T.float32(1)))):
                good[0] = 0
            at[0] = at[0] + 1
    plausible[0] = good[0]


def variants():
    """Every variant: {global symbol: PrimFunc}."""
    return {"take_rows": take_rows}
