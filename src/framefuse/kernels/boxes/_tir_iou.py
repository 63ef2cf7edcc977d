"""Pieces of the detection kernels that the CPU nests and the CUDA kernels share; above all, what suppresses what."""

from tvm import tirx
from tvm.script import tirx as T

ZERO = tirx.const(0, "float32")


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
    inside = shared(a, b, rivals)
    return inside / (a[4] + b[4] - inside) > threshold


def shared(a, b, rivals):
    """The area that two boxes share, 0 unless they are `rivals`. Where it is 0, neither suppresses the other."""
    width = tirx.max(tirx.min(a[2], b[2]) - tirx.max(a[0], b[0]), ZERO)
    height = tirx.max(tirx.min(a[3], b[3]) - tirx.max(a[1], b[1]), ZERO)
    return tirx.Select(rivals, width * height, ZERO)


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
                polygon[target, k, count[target]] = polygon[source, k, v] + part * (
                    polygon[source, k, w] - polygon[source, k, v]
                )
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
        shared[0] = shared[0] + T.float32(0.5) * (
            polygon[0, 0, v] * polygon[0, 1, w] - polygon[0, 0, w] * polygon[0, 1, v]
        )
    shared[0] = T.max(shared[0], T.float32(0))
