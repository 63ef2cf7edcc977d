"""preprocess for CPUs that permute 16 bytes at once (AVX2): `_preprocess_window.py` has the nest.

A block is 8 pixels, and each half of it reads from a window of 16 bytes. Packed images, whose pixels are too far
apart for that, are left to `preprocess.py`.
"""

from tvm import tirx

from ._tir_window import Form, load, variant

LEVEL = "x86-64-v3"
"""The one level that these kernels are built for."""

LAYOUTS = ("planar", "semiplanar", "gray")


def permute(plane, starts, picks):
    both = tirx.Shuffle([load(plane, start, 16) for start in starts], [tirx.const(i, "int32") for i in range(32)])
    # An index with its highest bit set picks a zero.
    return tirx.reinterpret("int16x16", tirx.call_llvm_pure_intrin("uint8x32", "llvm.x86.avx2.pshuf.b", both, picks))


def variants():
    """Every variant: {global symbol: PrimFunc}."""
    form = Form("short", 8, (2,), permute, "llvm.x86.avx2.pmadd.wd")
    return {f"preprocess_short_{layout}": variant(form, layout) for layout in LAYOUTS}
