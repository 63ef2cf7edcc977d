"""The raw head of a YOLOv8 in TVM TensorIR, CPU nests: logits of one level -> candidates, in the order of its anchors.

    filter_head_<sample>

An anchor's class logits lie side by side, as do the logits of its four distances to the box's sides, so that anchors
below the threshold cost one pass over the former and nothing of the latter. Nothing is allocated or threaded in here.
"""

from __future__ import annotations

from tvm import tirx
from tvm.script import tirx as T

from ..tir.base import array_at
from .tir_cpu import ANCHOR, HALF, ROWS, SCORE, ZERO

SAMPLES = {"f32": ("float32", "int32"), "bf16": ("uint16", "int16")}
"""Types of the values as they are stored, and of the integers that have their order."""

GROUP = 32
"""Anchors that are asked at once whether one of them is above the threshold. Their logits are whole vectors."""

ONE = tirx.const(1, "float32")
INFINITE = {"f32": 0x7F800000, "bf16": 0x7F80}
"""The key of infinity; those of NaN are beyond. -infinity has its complement."""

LOWEST = tirx.const(-87, "float32")
"""exp of anything less counts as exp of this."""

EXP = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1, 1, 1)
"""Cephes' polynomial for exp on +-ln(2) / 2, highest power first."""


def exp(x):
    """exp of a float32 that is not above 80, to 2 units in the last place; no library is called."""
    x = tirx.max(x, LOWEST)
    halves = T.floor(x * tirx.const(1.44269504088896341, "float32") + HALF)
    rest = x - halves * tirx.const(0.693359375, "float32") + halves * tirx.const(2.12194440e-4, "float32")
    value = tirx.const(EXP[0], "float32")
    for coefficient in EXP[1:]:
        value = value * rest + tirx.const(coefficient, "float32")
    power = (halves.astype("int32") + 127) << 23
    return value * T.reinterpret("float32", power)


def read(values, index, sample):
    """A value as float32."""
    if sample == "f32":
        return values[index]
    return T.reinterpret("float32", values[index].astype("uint32") << tirx.const(16, "uint32"))


def key(values, index, sample):
    """An integer in the order of the floats."""
    integer = SAMPLES[sample][1]
    bits = T.reinterpret(integer, values[index])
    top = 31 if sample == "f32" else 15
    return bits ^ ((bits >> tirx.const(top, integer)) & tirx.const((1 << top) - 1, integer))


def variant(sample):
    """The PrimFunc `filter_head_<sample>`."""
    stored, integer = SAMPLES[sample]
    infinite = tirx.const(INFINITE[sample], integer)
    minus_infinite = tirx.const(~INFINITE[sample], integer)

    @T.inline
    def decode(values, weights, boxes, bins, n, a, columns, rows):
        """boxes[:, n] from the distributions of four distances: each is the mean of 0, 1, ... by softmax."""
        start = T.meta_var(a * 4 * bins)
        column = T.meta_var((a % columns).astype("float32"))
        row = T.meta_var((a // columns).astype("float32"))
        width = T.meta_var(columns.astype("float32"))
        height = T.meta_var(rows.astype("float32"))
        for side in T.unroll(4):
            weights[4 * bins] = read(values, start + side * bins, sample)
            for k in T.serial(1, bins):
                weights[4 * bins] = T.max(weights[4 * bins], read(values, start + side * bins + k, sample))
            for k in T.serial(bins):
                weights[k] = exp(read(values, start + side * bins + k, sample) - weights[4 * bins])
            weights[4 * bins + 1] = ZERO
            weights[4 * bins + 2] = ZERO
            for k in T.serial(bins):
                weights[4 * bins + 1] = weights[4 * bins + 1] + weights[k]
                weights[4 * bins + 2] = weights[4 * bins + 2] + weights[k] * T.Cast("float32", k)
            boxes[side, n] = weights[4 * bins + 2] / weights[4 * bins + 1]
        boxes[0, n] = (column + HALF - boxes[0, n]) / width
        boxes[1, n] = (row + HALF - boxes[1, n]) / height
        boxes[2, n] = (column + HALF + boxes[2, n]) / width
        boxes[3, n] = (row + HALF + boxes[3, n]) / height

    @T.prim_func(s_tir=True)
    def kernel(
        distances_: T.int64, logits_: T.int64, height: T.int32, width: T.int32, bins: T.int32,
        classes: T.int32, confidence: T.float32, threshold: T.int32, before: T.int32,
        wanted: T.Buffer(("classes",), "uint8", align=1), boxes: T.Buffer((ROWS, "capacity"), "float32", align=4),
        labels: T.Buffer(("capacity",), "int32", align=4), totals: T.Buffer((2,), "int32", align=4),
        weights: T.Buffer(("weights_size",), "float32", align=4),
    ):  # fmt: skip
        T.func_attr({"tirx.noalias": True, "global_symbol": f"filter_head_{sample}"})
        distances = array_at(distances_, stored, bins, align=2)
        logits = array_at(logits_, stored, bins, align=2)
        highest = T.alloc_buffer((GROUP,), integer)
        lowest = T.alloc_buffer((GROUP,), integer)
        best = T.alloc_buffer((1,), integer)
        least = T.alloc_buffer((1,), integer)
        label = T.alloc_buffer((1,), "int32")
        bad = T.alloc_buffer((1,), "int32")
        if before == 0:
            totals[0] = 0
            totals[1] = 0
        anchors: T.let = height * width
        floor: T.let = T.Cast(integer, threshold)
        for group in T.serial((anchors + GROUP - 1) // GROUP):
            begin: T.let = group * GROUP
            best[0] = infinite
            least[0] = infinite
            if begin + GROUP <= anchors:
                for lane in T.vectorized(GROUP):
                    highest[lane] = minus_infinite
                for lane in T.vectorized(GROUP):
                    lowest[lane] = infinite
                for c in T.serial(classes):
                    for lane in T.vectorized(GROUP):
                        highest[lane] = T.max(highest[lane], key(logits, begin * classes + c * GROUP + lane, sample))
                    for lane in T.vectorized(GROUP):
                        lowest[lane] = T.min(lowest[lane], key(logits, begin * classes + c * GROUP + lane, sample))
                best[0] = highest[0]
                least[0] = lowest[0]
                for lane in T.serial(1, GROUP):
                    best[0] = T.max(best[0], highest[lane])
                    least[0] = T.min(least[0], lowest[lane])
            if T.Or(best[0] >= floor, least[0] <= minus_infinite):
                for a in T.serial(begin, T.min(begin + GROUP, anchors)):
                    best[0] = key(logits, a * classes, sample)
                    least[0] = key(logits, a * classes, sample)
                    for c in T.serial(1, classes):
                        best[0] = T.max(best[0], key(logits, a * classes + c, sample))
                        least[0] = T.min(least[0], key(logits, a * classes + c, sample))
                    bad[0] = T.Or(best[0] >= infinite, least[0] <= minus_infinite).astype("int32")
                    if T.And(bad[0] == 0, best[0] >= floor):
                        label[0] = 0
                        while key(logits, a * classes + label[0], sample) != best[0]:
                            label[0] = label[0] + 1
                        weights[0] = ONE / (ONE + exp(-read(logits, a * classes + label[0], sample)))
                        if weights[0] > confidence:
                            n: T.let = totals[0]
                            boxes[SCORE, n] = weights[0]
                            labels[n] = label[0]
                            for k in T.serial(4 * bins):
                                value = T.meta_var(key(distances, a * 4 * bins + k, sample))
                                bad[0] = bad[0] | T.Or(value >= infinite, value <= minus_infinite).astype("int32")
                            if T.And(bad[0] == 0, wanted[label[0]] != T.uint8(0)):
                                decode(distances, weights, boxes, bins, n, a, width, height)
                                boxes[ANCHOR, n] = T.reinterpret("float32", before + a)
                                totals[0] = n + 1
                    totals[1] = totals[1] + bad[0]

    return kernel


def variants():
    """Every variant: {global symbol: PrimFunc}."""
    return {f"filter_head_{sample}": variant(sample) for sample in SAMPLES}
