"""Source positions of a warp as whole pixels and weights, for the CPU and CUDA kernels.

    affine        position = (M[0] x + M[1] y + M[2]) / 2^32, in exact 64-bit integers
    perspective   position = (u / w, v / w) in float64; (0, 0) where w is 0
    table         position = (map_x[y, x], map_y[y, x])

`nearest` adds half a pixel and drops the weights. Positions are clamped to +-2^30 pixels; NaN counts as -2^30.

The numbers of a warp are passed to CUDA kernels by value, in BYTES: the homography (9 float64), at MATRIX the affine
matrix (6 int64), at BORDER the values of the border (4 float32), each counted in elements of its type.
"""

from tvm import tirx

LIMIT = float(1 << 30)
HALF = 1 << 31
MATRIX, BORDER, BYTES = 9, 30, 144


def i64(value):
    return tirx.const(value, "int64")


def whole_of_fixed(position):
    """Pixels of a 32.32 fixed-point position."""
    return (position >> i64(32)).astype("int32")


def weight_of_fixed(position):
    """Weight of the next pixel: the upper 24 bits of the fraction, which float32 holds exactly."""
    fraction = ((position >> i64(8)) & i64(0xFFFFFF)).astype("int32")
    return fraction.astype("float32") * tirx.const(2.0**-24, "float32")


def clamped(position):
    """A float64 position within the limits. Comparisons with NaN are false, which gives the lower limit."""
    lowest, highest = tirx.const(-LIMIT, "float64"), tirx.const(LIMIT, "float64")
    return tirx.min(tirx.Select(position > lowest, position, lowest), highest)


def reciprocal(w):
    """1 / w, or 0 for 0."""
    # Not a Select: let-binding one of floats breaks TVM's integer-set analysis.
    zero = (w == tirx.const(0.0, "float64")).astype("float64")
    return (tirx.const(1.0, "float64") - zero) / (w + zero)
