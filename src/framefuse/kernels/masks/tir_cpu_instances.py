"""Instance masks from prototypes, and run-length encoding, as CPU loop nests.

`masks/reference.py` states the formulas. All work happens inside the box of each instance. Logits are computed once for
the prototype samples under the box, stretched to the image's columns once for each prototype row, and only then down.

Runs come without a mask: along an image column the stretched logit is linear between two prototype rows, so it changes
sign at most once there, and cells whose ends have the sign of the pixel before are skipped whole.

`boxes` is (n, 8) int32: the samples kept, left, right, top, bottom (those outside count as logit 0), then the pixels
that may be set, left, right, top, bottom (`instances._plan` makes it). `xi`, `xw`, `yi`, `yw` are taps: for each pixel
the lower sample, and the weight of the upper. Where `factor` is above 1 they count samples of logits enlarged by it;
`ei`, `ew`, `fi`, `fw` are the taps of those, across and down. Scratch comes as arguments.
"""

from __future__ import annotations

from tvm import tirx
from tvm.script import tirx as T

from ..tir.base import array_at, lerp, lets, variables


def differ(a, b):
    """Whether one of two mask values is set and the other is not."""
    zero = tirx.const(0, "uint8")
    return (a != zero).astype("int32") != (b != zero).astype("int32")


@T.inline
def accumulate(logits, prototypes, coefficients, i, channels, plane_pitch, base, count, at):
    """logits[at + x] += coefficients . prototypes over `count` samples of a row."""
    for c in T.serial(channels):
        weight: T.let = coefficients[i, c]
        for x in T.serial(count):
            logits[at + x] = logits[at + x] + weight * prototypes[base + c * plane_pitch + x]


@T.inline
def enlarge(values, source, target, index, weight, first, count):
    """values[target + k]: samples that begin at `source`, enlarged; `first` is the first of `count` that result."""
    for k in T.serial(count):
        at: T.let = source + index[first + k] - index[first]
        values[target + k] = lerp(values[at], values[at + 1], weight[first + k])


@T.inline
def emit(runs, state, position, capacity):
    """Close a run at `position`; state is run count, last position, value."""
    if state[0] < capacity:
        runs[state[0]] = position - state[1]
    state[0] = state[0] + 1
    state[1] = position


@T.prim_func(s_tir=True)
def instance_paint(
    prototype_address: T.int64, channels: T.int32, plane_pitch: T.int32, row_pitch: T.int32,
    coefficients: T.Buffer(("n", "channels"), "float32", align=4),
    boxes: T.Buffer(("n", 8), "int32", align=4), xi: T.Buffer(("width",), "int32", align=4),
    xw: T.Buffer(("width",), "float32", align=4), yi: T.Buffer(("height",), "int32", align=4),
    yw: T.Buffer(("height",), "float32", align=4), factor: T.int32, ei: T.Buffer(("fine_x",), "int32", align=4),
    ew: T.Buffer(("fine_x",), "float32", align=4), fi: T.Buffer(("fine_y",), "int32", align=4),
    fw: T.Buffer(("fine_y",), "float32", align=4), values: T.Buffer(("n",), "uint8", align=1),
    target_address: T.int64, item_pitch: T.int64, target_pitch: T.int64,
    logits: T.Buffer(("size",), "float32", align=4), rows: T.Buffer(("row_size",), "float32", align=4),
):  # fmt: skip
    """Write values[i] where mask i is set."""
    T.func_attr({"tirx.noalias": True, "global_symbol": "instance_paint"})
    n, size = T.int32(), T.int32()
    prototypes = array_at(prototype_address, "float32", size)
    beyond: T.let = T.if_then_else(factor > 1, 2, 1)
    for j in T.serial(n):
        # Backwards, so that where instances share a target the first, the surest, lies on top.
        i: T.let = n - 1 - j
        x0, x1, y0, y1 = lets(boxes[i, 4], boxes[i, 5], boxes[i, 6], boxes[i, 7])
        if T.And(x0 < x1, y0 < y1):
            left, top = lets(xi[x0], yi[y0])
            fine, last = lets(xi[x1 - 1] + 2 - left, yi[y1 - 1] + 1)
            from_x, from_y = lets(ei[left], fi[top])
            pitch, count = lets(ei[left + fine - 1] + beyond - from_x, fi[last] + beyond - from_y)
            wide: T.let = x1 - x0
            begin, end = lets(T.max(from_x, boxes[i, 0]), T.min(from_x + pitch, boxes[i, 1]))
            first: T.let = T.if_then_else(factor > 1, pitch, 0) - left
            for r in T.serial(count):
                for x in T.serial(pitch):
                    logits[x] = T.float32(0)
                if T.And(from_y + r >= boxes[i, 2], from_y + r < boxes[i, 3]):
                    source = T.meta_var((prototypes, coefficients, i, channels, plane_pitch))
                    accumulate(logits, *source, (from_y + r) * row_pitch + begin, end - begin, begin - from_x)
                if factor > 1:
                    enlarge(logits, 0, pitch, ei, ew, left, fine)
                for x in T.serial(wide):
                    at: T.let = first + xi[x0 + x]
                    rows[r * wide + x] = lerp(logits[at], logits[at + 1], xw[x0 + x])
            for y in T.serial(y1 - y0):
                down: T.let = yi[y0 + y]
                upper, lower = lets((fi[down] - from_y) * wide, (fi[down + 1] - from_y) * wide)
                weight: T.let = yw[y0 + y]
                item = T.meta_var(target_address + T.Cast("int64", i) * item_pitch)
                row = T.meta_var(T.Cast("int64", y0 + y) * target_pitch)
                target = array_at(item + row + T.Cast("int64", x0), "uint8", size)
                ink: T.let = values[i]
                if factor > 1:
                    above, below = lets(fw[down], fw[down + 1])
                    for x in T.serial(wide):
                        one = T.meta_var(lerp(rows[upper + x], rows[upper + wide + x], above))
                        two = T.meta_var(lerp(rows[lower + x], rows[lower + wide + x], below))
                        target[x] = T.Select(lerp(one, two, weight) > T.float32(0), ink, target[x])
                else:
                    for x in T.serial(wide):
                        logit = T.meta_var(lerp(rows[upper + x], rows[upper + wide + x], weight))
                        target[x] = T.Select(logit > T.float32(0), ink, target[x])


@T.prim_func(s_tir=True)
def instance_runs(
    prototype_address: T.int64, channels: T.int32, plane_pitch: T.int32, row_pitch: T.int32,
    coefficients: T.Buffer(("n", "channels"), "float32", align=4), boxes: T.Buffer(("n", 8), "int32", align=4),
    xi: T.Buffer(("width",), "int32", align=4), xw: T.Buffer(("width",), "float32", align=4),
    yi: T.Buffer(("height",), "int32", align=4), yw: T.Buffer(("height",), "float32", align=4), factor: T.int32,
    ei: T.Buffer(("fine_x",), "int32", align=4), ew: T.Buffer(("fine_x",), "float32", align=4),
    fi: T.Buffer(("fine_y",), "int32", align=4), fw: T.Buffer(("fine_y",), "float32", align=4),
    starts: T.Buffer(("starts_size",), "int32", align=4), runs: T.Buffer(("capacity",), "int32", align=4),
    ends: T.Buffer(("n",), "int32", align=4), logits: T.Buffer(("size",), "float32", align=4),
    column: T.Buffer(("column_size",), "float32", align=4),
):  # fmt: skip
    """The run lengths of all masks, one after the other; those of mask i end at ends[i]."""
    T.func_attr({"tirx.noalias": True, "global_symbol": "instance_runs"})
    n, width, height = T.int32(), T.int32(), T.int32()
    size, capacity = T.int32(), T.int32()
    prototypes = array_at(prototype_address, "float32", size)
    beyond: T.let = T.if_then_else(factor > 1, 2, 1)
    state = T.alloc_buffer((3,), "int32")
    state[0] = 0
    for i in T.serial(n):
        state[1] = 0
        state[2] = 0
        x0, x1, y0, y1 = lets(boxes[i, 4], boxes[i, 5], boxes[i, 6], boxes[i, 7])
        if T.And(x0 < x1, y0 < y1):
            left, top = lets(xi[x0], yi[y0])
            wide, tall = lets(xi[x1 - 1] + 2 - left, yi[y1 - 1] + 2 - top)
            from_x, from_y = lets(ei[left], fi[top])
            pitch, count = lets(ei[left + wide - 1] + beyond - from_x, fi[top + tall - 1] + beyond - from_y)
            begin, end = lets(T.max(from_x, boxes[i, 0]), T.min(from_x + pitch, boxes[i, 1]))
            whole: T.let = T.And(y0 == 0, y1 == height)
            enlarged: T.let = T.if_then_else(factor > 1, count, 0)
            # Transposed: a prototype column is contiguous, so that the taps across vectorise along it.
            for k in T.serial(wide * count):
                logits[k] = T.float32(0)
            for r in T.serial(count):
                if T.And(from_y + r >= boxes[i, 2], from_y + r < boxes[i, 3]):
                    for x in T.serial(pitch):
                        column[x] = T.float32(0)
                    source = T.meta_var((prototypes, coefficients, i, channels, plane_pitch))
                    accumulate(column, *source, (from_y + r) * row_pitch + begin, end - begin, begin - from_x)
                    if factor > 1:
                        enlarge(column, 0, pitch, ei, ew, left, wide)
                        for x in T.serial(wide):
                            logits[x * count + r] = column[pitch + x]
                    else:
                        for x in T.serial(pitch):
                            logits[x * count + r] = column[x]
            for u in T.serial(x1 - x0):
                x: T.let = x0 + u
                at: T.let = (xi[x] - left) * count
                across: T.let = xw[x]
                for r in T.serial(count):
                    column[r] = lerp(logits[at + r], logits[at + count + r], across)
                if factor > 1:
                    enlarge(column, 0, count, fi, fw, top, tall)
                for r in T.serial(tall - 1):
                    upper, lower = lets(column[enlarged + r], column[enlarged + r + 1])
                    same: T.let = T.if_then_else(
                        state[2] == 1,
                        T.And(upper > T.float32(0), lower > T.float32(0)),
                        T.And(upper <= T.float32(0), lower <= T.float32(0)),
                    )
                    if T.Not(same):
                        start, stop = lets(T.max(starts[top + r], y0), T.min(starts[top + r + 1], y1))
                        for k in T.serial(T.max(stop - start, 0)):
                            y: T.let = start + k
                            inside: T.let = T.Cast("int32", lerp(upper, lower, yw[y]) > T.float32(0))
                            if inside != state[2]:
                                emit(runs, state, x * height + y, capacity)
                                state[2] = inside
                if T.And(state[2] == 1, T.Not(whole)):
                    if x * height + y1 < width * height:
                        emit(runs, state, x * height + y1, capacity)
                    state[2] = 0
            if T.And(state[2] == 1, x1 < width):
                emit(runs, state, x1 * height, capacity)
        emit(runs, state, width * height, capacity)
        ends[i] = state[0]


@T.prim_func(s_tir=True)
def mask_runs(
    mask_address: T.int64, pitch: T.int64, height: T.int32, width: T.int32,
    runs: T.Buffer(("capacity",), "int32", align=4), offset: T.handle,
):  # fmt: skip
    """COCO run lengths of one row-major mask (non-zero is set). offsets[width] becomes the number of runs.

    Two passes over the rows, each comparing a row with the one above: count the changes of each column, then write them
    where the columns before it end. So memory is read along its rows although the runs go down the columns.
    """
    T.func_attr({"tirx.noalias": True, "global_symbol": "mask_runs"})
    capacity = T.int32()
    offsets = T.match_buffer(offset, (width + 1,), "int32", align=4)
    state = T.alloc_buffer((2,), "int32")
    first = array_at(mask_address, "uint8", width)
    final = array_at(mask_address + T.Cast("int64", height - 1) * pitch, "uint8", width)
    offsets[0] = T.Cast("int32", first[0] != T.uint8(0))
    for x in T.serial(width - 1):
        offsets[x + 1] = T.Cast("int32", differ(first[x + 1], final[x]))
    for y in T.serial(height - 1):
        above = array_at(mask_address + T.Cast("int64", y) * pitch, "uint8", width)
        row = array_at(mask_address + T.Cast("int64", y + 1) * pitch, "uint8", width)
        for x in T.serial(width):
            offsets[x] = offsets[x] + T.Cast("int32", differ(row[x], above[x]))
    state[0] = 0
    for x in T.serial(width):
        state[1] = offsets[x]
        offsets[x] = state[0]
        state[0] = state[0] + state[1]
    offsets[width] = state[0] + 1
    if state[0] + 1 <= capacity:
        if first[0] != T.uint8(0):
            runs[0] = 0
            offsets[0] = 1
        for x in T.serial(width - 1):
            if differ(first[x + 1], final[x]):
                runs[offsets[x + 1]] = (x + 1) * height
                offsets[x + 1] = offsets[x + 1] + 1
        for y in T.serial(height - 1):
            above = array_at(mask_address + T.Cast("int64", y) * pitch, "uint8", width)
            row = array_at(mask_address + T.Cast("int64", y + 1) * pitch, "uint8", width)
            for part in T.serial((width + 31) // 32):
                start: T.let = part * 32
                count: T.let = T.min(32, width - start)
                state[1] = 0
                for x in T.serial(count):
                    state[1] = state[1] | T.Cast("int32", row[start + x] ^ above[start + x])
                if state[1] != 0:
                    for k in T.serial(count):
                        x: T.let = start + k
                        if differ(row[x], above[x]):
                            runs[offsets[x]] = x * height + y + 1
                            offsets[x] = offsets[x] + 1
        # Positions to lengths, from the back.
        runs[state[0]] = width * height
        for k in T.serial(state[0]):
            at: T.let = state[0] - k
            runs[at] = runs[at] - runs[at - 1]


@T.prim_func(s_tir=True)
def run_text(
    runs: T.Buffer(("capacity",), "int32", align=4), starts: T.Buffer(("n",), "int32", align=4),
    ends: T.Buffer(("n",), "int32", align=4), characters: T.Buffer(("room",), "uint8", align=1),
    text_ends: T.Buffer(("n",), "int32", align=4),
):  # fmt: skip
    """Runs starts[i]..ends[i] - 1 of each item as COCO's compressed strings, one after the other.

    Each run from the fourth on is coded as the difference to the run two before it: little-endian groups of 5 bits, bit
    5 says that more follow, bit 4 of the last is the sign; 48 is added to make it a printable character.
    """
    T.func_attr({"tirx.noalias": True, "global_symbol": "run_text"})
    n = T.int32()
    length, rest, more = variables("int32", 1, 1, 1)
    length[0] = 0
    for i in T.serial(n):
        for k in T.serial(ends[i] - starts[i]):
            at: T.let = starts[i] + k
            rest[0] = runs[at] - T.if_then_else(k > 2, runs[at - 2], 0)
            more[0] = 1
            while more[0] != 0:
                bits: T.let = rest[0] & 31
                rest[0] = rest[0] >> 5
                more[0] = T.Cast("int32", rest[0] != T.if_then_else((bits & 16) != 0, -1, 0))
                characters[length[0]] = T.Cast("uint8", bits + 32 * more[0] + 48)
                length[0] = length[0] + 1
        text_ends[i] = length[0]


@T.prim_func(s_tir=True)
def run_labels(
    runs: T.Buffer(("size",), "int32", align=4), starts: T.Buffer(("n",), "int32", align=4),
    ends: T.Buffer(("n",), "int32", align=4), values: T.Buffer(("n",), "uint8", align=1),
    address: T.int64, pitch: T.int32, height: T.int32, changes: T.Buffer(("change_size",), "uint8", align=1),
):  # fmt: skip
    """values[i] wherever mask i is set, the first mask on top.

    Runs go down the columns, memory along the rows: so 64 columns are painted at once, from the rows where one of their
    runs begins or ends. `changes` are (height + 1) rows of 64 zeros, and that again afterwards.
    """
    T.func_attr({"tirx.noalias": True, "global_symbol": "run_labels"})
    n = T.int32()
    labels = array_at(address, "uint8", pitch)
    (inside,) = variables("uint8", 64)
    # Column and row of what comes next; the group of columns at hand, its first row, and the row after its last.
    column, row, left, group, top, bottom = variables("int32", 1, 1, 1, 1, 1, 1)
    for j in T.serial(n):
        i: T.let = n - 1 - j
        column[0] = 0
        row[0] = 0
        group[0] = 0
        top[0] = height
        bottom[0] = 0
        # One more run than there are, so that the last group is painted.
        for k in T.serial(ends[i] - starts[i] + 1):
            last: T.let = starts[i] + k == ends[i]
            left[0] = T.if_then_else(T.Or(last, k % 2 == 1), T.if_then_else(last, 1, runs[starts[i] + k]), 0)
            while left[0] > 0:
                if T.Or(last, column[0] // 64 != group[0]):
                    for x in T.serial(64):
                        inside[x] = T.uint8(0)
                    for r in T.serial(T.max(bottom[0] - top[0], 0)):
                        at, mark = lets((top[0] + r) * pitch + group[0] * 64, (top[0] + r) * 64)
                        for x in T.serial(64):
                            inside[x] = inside[x] ^ changes[mark + x]
                            changes[mark + x] = T.uint8(0)
                            labels[at + x] = (labels[at + x] & ~inside[x]) | (values[i] & inside[x])
                    for x in T.serial(64):
                        changes[bottom[0] * 64 + x] = T.uint8(0)
                    group[0] = column[0] // 64
                    top[0] = height
                    bottom[0] = 0
                part: T.let = T.min(left[0], height - row[0])
                if T.Not(last):
                    begin: T.let = row[0] * 64 + column[0] % 64
                    changes[begin] = changes[begin] ^ T.uint8(255)
                    changes[begin + part * 64] = changes[begin + part * 64] ^ T.uint8(255)
                    top[0] = T.min(top[0], row[0])
                    bottom[0] = T.max(bottom[0], row[0] + part)
                left[0] = left[0] - part
                row[0] = row[0] + part
                if row[0] >= height:
                    row[0] = 0
                    column[0] = column[0] + 1
            if T.And(T.Not(last), k % 2 == 0):
                row[0] = row[0] + runs[starts[i] + k]
                if row[0] >= height:
                    column[0] = column[0] + row[0] // height
                    row[0] = row[0] % height


def variants():
    """Every variant: {global symbol: PrimFunc}."""
    kernels = {"instance_paint": instance_paint, "instance_runs": instance_runs}
    return kernels | {"mask_runs": mask_runs, "run_text": run_text, "run_labels": run_labels}
