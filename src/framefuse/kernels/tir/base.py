"""Pixel arithmetic that the kernels for the CPU and CUDA share."""

from tvm import tirx
from tvm.script import tirx as T

SAMPLES = {"u8": "uint8", "u16": "uint16"}
OUTPUTS = {"f32": "float32", "f16": "float16", "bf16": "uint16", "u8": "uint8", "i8": "int8"}
"""Output types and the types in which they are stored: bfloat16 as its bits."""

LARGE = 1 << 40
"""Elements of an array that is reached by its address and whose true size does not matter."""


def array_at(address, dtype, size=LARGE, align=1):
    """The array of `size` elements at an address, which is a multiple of `align` bytes."""
    return T.decl_buffer((size,), dtype, data=T.reinterpret("handle", address), align=align)


def arrays_at(addresses, dtype, size=LARGE, align=1):
    """`array_at` for each address."""
    return [array_at(address, dtype, size, align) for address in addresses]


def lets(*values):
    """`T.let` for values that belong together: an assignment names them."""
    return [T.Bind(value) for value in values]


def variables(dtype, *shapes, scope="global"):
    """Buffers of a kernel's own, each given by its shape or its number of elements."""
    return [T.alloc_buffer(shape if isinstance(shape, tuple) else (shape,), dtype, scope=scope) for shape in shapes]


def threads(grid, block):
    """Indices of a CUDA thread's block in the grid, then its own, each from z or y to x; extents are from x on.

    An assignment names them; what follows is what a thread does.
    """
    blocks = [(f"blockIdx.{axis}", extent) for axis, extent in zip("xyz", grid, strict=False)]
    own = [(f"threadIdx.{axis}", extent) for axis, extent in zip("xyz", block, strict=False)]
    return [T.thread_binding(extent, thread=axis) for axis, extent in [*blocks[::-1], *own[::-1]]]


def registers(dtype, *sizes):
    """Arrays of a CUDA thread."""
    return variables(dtype, *sizes, scope="local")


def switch(value, cases, emit, *given):
    """emit(name, *given) for the name whose number in `cases` a value equals; the last name is for all other values."""
    (name, number), *others = cases.items()
    if not others:
        emit(name, *given)
        return
    with T.If(value == number):
        with T.Then():
            emit(name, *given)
        with T.Else():
            switch(value, dict(others), emit, *given)


def wide(value):
    return value.astype("int64")


def lerp(a, b, weight):
    return a + (b - a) * weight


def colour(coefficients, channel, components):
    """One output channel from the components of a pixel; coefficients are M (9), o (3), lo (3), hi (3), pad (3)."""
    value = coefficients[9 + channel]
    for column, component in enumerate(components):
        value = value + coefficients[3 * channel + column] * component
    return clipped(coefficients, channel, value)


def clipped(coefficients, channel, value):
    """The value of an output channel within the limits of its coefficients."""
    return tirx.min(tirx.max(value, coefficients[12 + channel]), coefficients[15 + channel])


def stored(value, output):
    """The value in the output's type: integers round halves up and must be in range, floats round halves to even."""
    if output in ("u8", "i8"):  # truncation rounds, since no value is negative
        lowest = {"u8": 0, "i8": -128}[output]
        level = (value + tirx.const(0.5 - lowest, "float32")).astype("int32") + lowest
        return level.astype(OUTPUTS[output])
    if output == "bf16":
        bits = tirx.reinterpret("uint32", value)
        last = (bits >> tirx.const(16, "uint32")) & tirx.const(1, "uint32")
        return ((bits + last + tirx.const(0x7FFF, "uint32")) >> tirx.const(16, "uint32")).astype("uint16")
    return value.astype(OUTPUTS[output])
