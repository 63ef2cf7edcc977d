"""A pixel body of your own, for the CPU and for CUDA: docs/guide/own-kernel.md walks through it.

Night vision: out = green tones of the luma of an RGB image, brightened by `gain`.
"""

from tvm import tirx
from tvm.script import tirx as T

from framefuse.kernels.tir.base import stored

LARGE = 1 << 40
"""Elements of a buffer whose size nobody needs."""


def night(red, green, blue, gain):
    """The body: one pixel in, one pixel out. It is an expression, so both loop nests can share it."""
    luma = (red * 0.299 + green * 0.587 + blue * 0.114) * gain
    bright = tirx.min(luma, tirx.const(255.0, "float32"))
    return bright * 0.3, bright, bright * 0.3


def toned(pixel, i, gain, channel):
    """A channel of pixel i, before it is stored."""
    return night(*(pixel[i * 3 + c].astype("float32") for c in range(3)), gain)[channel]


@T.inline
def paint(pixel, out, i, gain):
    """Pixel i of the output."""
    out[i * 3] = stored(toned(pixel, i, gain, 0), "u8")
    out[i * 3 + 1] = stored(toned(pixel, i, gain, 1), "u8")
    out[i * 3 + 2] = stored(toned(pixel, i, gain, 2), "u8")


def variants():
    """For the CPU: row after row; the compiler vectorises the inner loop."""

    @T.prim_func(s_tir=True)
    def kernel(source: T.int64, target: T.int64, pixels: T.int32, gain: T.float32):
        T.func_attr({"tirx.noalias": True, "global_symbol": "night"})
        pixel = T.decl_buffer((LARGE,), "uint8", data=T.reinterpret("handle", source), align=1)
        out = T.decl_buffer((LARGE,), "uint8", data=T.reinterpret("handle", target), align=1)
        for i in T.serial(pixels):
            paint(pixel, out, i, gain)

    return {"night": kernel}


def cuda_variants():
    """For CUDA: a thread for each pixel. The grid is an expression in the arguments."""

    @T.prim_func(s_tir=True)
    def kernel(source: T.int64, target: T.int64, pixels: T.int32, gain: T.float32):
        T.func_attr({"tirx.noalias": True, "global_symbol": "night"})
        pixel = T.decl_buffer((LARGE,), "uint8", data=T.reinterpret("handle", source), align=1)
        out = T.decl_buffer((LARGE,), "uint8", data=T.reinterpret("handle", target), align=1)
        for block in T.thread_binding((pixels + 255) // 256, thread="blockIdx.x"):
            for thread in T.thread_binding(256, thread="threadIdx.x"):
                if block * 256 + thread < pixels:
                    paint(pixel, out, block * 256 + thread, gain)

    return {"night": kernel}
