"""Instance masks from prototypes, and run-length encoding, as CPU loop nests.

`reference/masks.py` states the formulas. All work happens inside the box of each instance. Logits are computed once for
the prototype samples under the box, stretched to the image's columns once for each prototype row, and only then down.

Runs come without a mask: along an image column the stretched logit is linear between two prototype rows, so it changes
sign at most once there, and cells whose ends have the sign of the pixel before are skipped whole.

`boxes` is (n, 8) int32: the samples kept, left, right, top, bottom (those outside count as logit 0), then the pixels
that may be set, left, right, top, bottom (`plan_instances` makes it). `across` and `down` are taps: for each pixel the
lower sample, and the weight of the upper. Scratch comes as arguments.
"""

from tvm import tirx
from tvm.script import tirx as T

from ..tir.base import lerp


def differ(a, b):
    """Whether one of two mask values is set and the other is not."""
    zero = tirx.const(0, "uint8")
    return (a != zero).astype("int32") != (b != zero).astype("int32")


def instance_variant(kind):
    """The PrimFunc `instance_<kind>`: "paint" writes a value where the mask is set, "runs" writes COCO run lengths."""

    @T.inline
    def accumulate(logits, prototypes, coefficients, i, base, count, at, stride, channels, plane_pitch):
        """logits[at + x * stride] += coefficients . prototypes over `count` samples of a row."""
        for c in T.serial(channels):
            weight: T.let = coefficients[i, c]
            for x in T.serial(count):
                logits[at + x * stride] = logits[at + x * stride] + weight * prototypes[base + c * plane_pitch + x]

    @T.inline
    def emit(runs, state, position, capacity):
        """Close a run at `position`; state is run count, last position, value."""
        if state[0] < capacity:
            runs[state[0]] = position - state[1]
        state[0] = state[0] + 1
        state[1] = position

    if kind == "paint":

        @T.prim_func(s_tir=True)
        def kernel(
            prototype_address: T.int64,
            channels: T.int32,
            plane_pitch: T.int32,
            row_pitch: T.int32,
            coefficient: T.handle,
            box: T.handle,
            value: T.handle,
            across_index: T.handle,
            across_weight: T.handle,
            down_index: T.handle,
            down_weight: T.handle,
            target_address: T.int64,
            item_pitch: T.int64,
            target_pitch: T.int64,
            logit_scratch: T.handle,
            row_scratch: T.handle,
        ):
            T.func_attr({"tirx.noalias": True, "global_symbol": f"instance_{kind}"})
            n, width, height, size, row_size = T.int32(), T.int32(), T.int32(), T.int32(), T.int32()
            coefficients = T.match_buffer(coefficient, (n, channels), "float32", align=4)
            boxes = T.match_buffer(box, (n, 8), "int32", align=4)
            values = T.match_buffer(value, (n,), "uint8", align=1)
            xi = T.match_buffer(across_index, (width,), "int32", align=4)
            xw = T.match_buffer(across_weight, (width,), "float32", align=4)
            yi = T.match_buffer(down_index, (height,), "int32", align=4)
            yw = T.match_buffer(down_weight, (height,), "float32", align=4)
            logits = T.match_buffer(logit_scratch, (size,), "float32", align=4)
            rows = T.match_buffer(row_scratch, (row_size,), "float32", align=4)
            prototypes = T.decl_buffer((size,), "float32", data=T.reinterpret("handle", prototype_address), align=1)
            for j in T.serial(n):
                # Backwards, so that where instances share a target the first, the surest, lies on top.
                i: T.let = n - 1 - j
                x0: T.let = boxes[i, 4]
                x1: T.let = boxes[i, 5]
                y0: T.let = boxes[i, 6]
                y1: T.let = boxes[i, 7]
                if T.And(x0 < x1, y0 < y1):
                    left: T.let = xi[x0]
                    top: T.let = yi[y0]
                    pitch: T.let = xi[x1 - 1] + 2 - left
                    count: T.let = yi[y1 - 1] + 2 - top
                    wide: T.let = x1 - x0
                    begin: T.let = T.max(left, boxes[i, 0])
                    end: T.let = T.min(left + pitch, boxes[i, 1])
                    for r in T.serial(count):
                        for x in T.serial(pitch):
                            logits[x] = T.float32(0)
                        if T.And(top + r >= boxes[i, 2], top + r < boxes[i, 3]):
                            accumulate(
                                logits,
                                prototypes,
                                coefficients,
                                i,
                                (top + r) * row_pitch + begin,
                                end - begin,
                                begin - left,
                                1,
                                channels,
                                plane_pitch,
                            )
                        for x in T.serial(wide):
                            rows[r * wide + x] = lerp(
                                logits[xi[x0 + x] - left], logits[xi[x0 + x] - left + 1], xw[x0 + x]
                            )
                    for y in T.serial(y1 - y0):
                        upper: T.let = (yi[y0 + y] - top) * wide
                        weight: T.let = yw[y0 + y]
                        target = T.decl_buffer(
                            (size,),
                            "uint8",
                            data=T.reinterpret(
                                "handle",
                                target_address
                                + T.Cast("int64", i) * item_pitch
                                + T.Cast("int64", y0 + y) * target_pitch
                                + T.Cast("int64", x0),
                            ),
                            align=1,
                        )
                        ink: T.let = values[i]
                        for x in T.serial(wide):
                            target[x] = T.Select(
                                lerp(rows[upper + x], rows[upper + wide + x], weight) > T.float32(0), ink, target[x]
                            )

        return kernel

    @T.prim_func(s_tir=True)
    def kernel(
        prototype_address: T.int64,
        channels: T.int32,
        plane_pitch: T.int32,
        row_pitch: T.int32,
        coefficient: T.handle,
        box: T.handle,
        across_index: T.handle,
        across_weight: T.handle,
        down_index: T.handle,
        down_weight: T.handle,
        down_start: T.handle,
        run: T.handle,
        end_of_runs: T.handle,
        logit_scratch: T.handle,
        column_scratch: T.handle,
    ):
        T.func_attr({"tirx.noalias": True, "global_symbol": f"instance_{kind}"})
        n, width, height, starts_size = T.int32(), T.int32(), T.int32(), T.int32()
        size, column_size, capacity = T.int32(), T.int32(), T.int32()
        coefficients = T.match_buffer(coefficient, (n, channels), "float32", align=4)
        boxes = T.match_buffer(box, (n, 8), "int32", align=4)
        xi = T.match_buffer(across_index, (width,), "int32", align=4)
        xw = T.match_buffer(across_weight, (width,), "float32", align=4)
        yi = T.match_buffer(down_index, (height,), "int32", align=4)
        yw = T.match_buffer(down_weight, (height,), "float32", align=4)
        starts = T.match_buffer(down_start, (starts_size,), "int32", align=4)
        runs = T.match_buffer(run, (capacity,), "int32", align=4)
        ends = T.match_buffer(end_of_runs, (n,), "int32", align=4)
        logits = T.match_buffer(logit_scratch, (size,), "float32", align=4)
        column = T.match_buffer(column_scratch, (column_size,), "float32", align=4)
        prototypes = T.decl_buffer((size,), "float32", data=T.reinterpret("handle", prototype_address), align=1)
        state = T.alloc_buffer((3,), "int32")
        state[0] = 0
        for i in T.serial(n):
            state[1] = 0
            state[2] = 0
            x0: T.let = boxes[i, 4]
            x1: T.let = boxes[i, 5]
            y0: T.let = boxes[i, 6]
            y1: T.let = boxes[i, 7]
            if T.And(x0 < x1, y0 < y1):
                left: T.let = xi[x0]
                top: T.let = yi[y0]
                wide: T.let = xi[x1 - 1] + 2 - left
                count: T.let = yi[y1 - 1] + 2 - top
                begin: T.let = T.max(left, boxes[i, 0])
                end: T.let = T.min(left + wide, boxes[i, 1])
                whole: T.let = T.And(y0 == 0, y1 == height)
                # Transposed: a prototype column is contiguous, so that the taps across vectorise along it.
                for k in T.serial(wide * count):
                    logits[k] = T.float32(0)
                for r in T.serial(count):
                    if T.And(top + r >= boxes[i, 2], top + r < boxes[i, 3]):
                        for x in T.serial(end - begin):
                            column[x] = T.float32(0)
                        accumulate(
                            column,
                            prototypes,
                            coefficients,
                            i,
                            (top + r) * row_pitch + begin,
                            end - begin,
                            0,
                            1,
                            channels,
                            plane_pitch,
                        )
                        for x in T.serial(end - begin):
                            logits[(begin - left + x) * count + r] = column[x]
                for u in T.serial(x1 - x0):
                    x: T.let = x0 + u
                    at: T.let = (xi[x] - left) * count
                    across: T.let = xw[x]
                    for r in T.serial(count):
                        column[r] = lerp(logits[at + r], logits[at + count + r], across)
                    for r in T.serial(count - 1):
                        upper: T.let = column[r]
                        lower: T.let = column[r + 1]
                        same: T.let = T.if_then_else(
                            state[2] == 1,
                            T.And(upper > T.float32(0), lower > T.float32(0)),
                            T.And(upper <= T.float32(0), lower <= T.float32(0)),
                        )
                        if T.Not(same):
                            start: T.let = T.max(starts[top + r], y0)
                            stop: T.let = T.min(starts[top + r + 1], y1)
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

    return kernel


@T.prim_func(s_tir=True)
def mask_runs(
    mask_address: T.int64,
    pitch: T.int64,
    height: T.int32,
    width: T.int32,
    run: T.handle,
    offset: T.handle,
):
    """COCO run lengths of one row-major mask (non-zero is set). offsets[width] becomes the number of runs.

    Two passes over the rows, each comparing a row with the one above: count the changes of each column, then write them
    where the columns before it end. So memory is read along its rows although the runs go down the columns.
    """
    T.func_attr({"tirx.noalias": True, "global_symbol": "mask_runs"})
    capacity = T.int32()
    runs = T.match_buffer(run, (capacity,), "int32", align=4)
    offsets = T.match_buffer(offset, (width + 1,), "int32", align=4)
    state = T.alloc_buffer((2,), "int32")
    first = T.decl_buffer((width,), "uint8", data=T.reinterpret("handle", mask_address), align=1)
    final = T.decl_buffer(
        (width,),
        "uint8",
        data=T.reinterpret("handle", mask_address + T.Cast("int64", height - 1) * pitch),
        align=1,
    )
    offsets[0] = T.Cast("int32", first[0] != T.uint8(0))
    for x in T.serial(width - 1):
        offsets[x + 1] = T.Cast("int32", differ(first[x + 1], final[x]))
    for y in T.serial(height - 1):
        above = T.decl_buffer(
            (width,), "uint8", data=T.reinterpret("handle", mask_address + T.Cast("int64", y) * pitch), align=1
        )
        row = T.decl_buffer(
            (width,), "uint8", data=T.reinterpret("handle", mask_address + T.Cast("int64", y + 1) * pitch), align=1
        )
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
            above = T.decl_buffer(
                (width,), "uint8", data=T.reinterpret("handle", mask_address + T.Cast("int64", y) * pitch), align=1
            )
            row = T.decl_buffer(
                (width,), "uint8", data=T.reinterpret("handle", mask_address + T.Cast("int64", y + 1) * pitch), align=1
            )
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
def run_text(run: T.handle, start_of_runs: T.handle, end_of_runs: T.handle, text: T.handle, end_of_text: T.handle):
    """Runs starts[i]..ends[i] - 1 of each item as COCO's compressed strings, one after the other.

    Each run from the fourth on is coded as the difference to the run two before it: little-endian groups of 5 bits, bit
    5 says that more follow, bit 4 of the last is the sign; 48 is added to make it a printable character.
    """
    T.func_attr({"tirx.noalias": True, "global_symbol": "run_text"})
    n, capacity, room = T.int32(), T.int32(), T.int32()
    runs = T.match_buffer(run, (capacity,), "int32", align=4)
    starts = T.match_buffer(start_of_runs, (n,), "int32", align=4)
    ends = T.match_buffer(end_of_runs, (n,), "int32", align=4)
    characters = T.match_buffer(text, (room,), "uint8", align=1)
    text_ends = T.match_buffer(end_of_text, (n,), "int32", align=4)
    length = T.alloc_buffer((1,), "int32")
    rest = T.alloc_buffer((1,), "int32")
    more = T.alloc_buffer((1,), "int32")
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


def variants():
    """Every variant: {global symbol: PrimFunc}."""
    return {
        "instance_paint": instance_variant("paint"),
        "instance_runs": instance_variant("runs"),
        "mask_runs": mask_runs,
        "run_text": run_text,
    }
